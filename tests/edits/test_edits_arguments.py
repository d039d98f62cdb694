"""Edits of arguments: commas, lines, comments, parentheses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fsdp2lint.edits.apply import combine, resolve
from fsdp2lint.edits.arguments import Arguments
from fsdp2lint.edits.text import Replace
from fsdp2lint.source.source import Source
from tests.support.editing import call, edited

LINES = "f(\n    a,  # A\n    b=2,  # B\n    c=3  # C\n)\n"

CASES: list[tuple[str, Callable[[Arguments], Arguments], str]] = [
    ("f()\n", lambda a: a.add("k", "1"), "f(k=1)\n"),
    ("f(  # note\n)\n", lambda a: a.add("k", "1"), "f(  # note\n    k=1,\n)\n"),
    ("f(\n    # note\n)\n", lambda a: a.first("m"), "f(\n    # note\n    m,\n)\n"),
    ("f(a, b,)\n", lambda a: a.add("k", "1").add("m", "2"), "f(a, b, k=1, m=2,)\n"),
    ("f(*a)\n", lambda a: a.add("k", "1"), "f(*a, k=1)\n"),
    ("f(a, b, # A\n )\n", lambda a: a.add("k", "1"), "f(a, b, # A\n     k=1,\n )\n"),
    (LINES, lambda a: a.add("k", "1"), LINES.replace("3  # C", "3,  # C\n    k=1")),
    (LINES, lambda a: a.first("z"), LINES.replace("a,", "z,\n    a,")),
    ("f(\n  a,\n  b)\n", lambda a: a.add("k", "1"), "f(\n  a,\n  b,\n  k=1)\n"),
    ("f(x for x in y)\n", lambda a: a.add("k", "1"), "f((x for x in y), k=1)\n"),
    ("f(x for x in y)\n", lambda a: a.first("1"), "f(1, (x for x in y))\n"),
    ("f(x for x in y)\n", lambda a: a.name(0, "k"), "f(k=(x for x in y))\n"),
    ("f(x := 1)\n", lambda a: a.name(0, "k"), "f(k=(x := 1))\n"),
    ("f(a, b)\n", lambda a: a.name(1, "k"), "f(a, k=b)\n"),
    ("f(a , k = (b))\n", lambda a: a.rename("k", "m"), "f(a , m = (b))\n"),
    ("f(a, b)\n", lambda a: a.remove(0), "f(b)\n"),
    ("f(a, b,)\n", lambda a: a.remove(1), "f(a,)\n"),
    ("f(b,)\n", lambda a: a.remove(0), "f()\n"),
    ("f(a, k=1, **kw)\n", lambda a: a.remove("k"), "f(a, **kw)\n"),
    ("f(a, b, c)\n", lambda a: a.remove(0).remove(1).remove(2), "f()\n"),
    ("f(a, b, c)\n", lambda a: a.remove(1).remove(2), "f(a)\n"),
    ("f(a, b)\n", lambda a: a.remove(1).add("k", "1"), "f(a, k=1)\n"),
    ("f(a, b)\n", lambda a: a.remove(0).remove(1).add("k", "1"), "f(k=1)\n"),
    (LINES, lambda a: a.remove("b"), "f(\n    a,  # A\n    c=3  # C\n)\n"),
    (LINES, lambda a: a.remove("c"), "f(\n    a,  # A\n    b=2,  # B\n)\n"),
    (LINES, lambda a: a.remove("b").remove("c").add("k", "1"), "f(\n    a,  # A\n    k=1,\n)\n"),
    ("f(a,  # A\n  b)\n", lambda a: a.remove(1), "f(a,  # A\n  )\n"),
    ("f(a, b,  # B\n  c)\n", lambda a: a.remove(1), "f(a, # B\n  c)\n"),
    ('f(k=("x"  # 1\n "y"), m=2)\n', lambda a: a.remove("k"), "f(m=2)\n"),
    (
        "f((a), k=1)\n",
        lambda a: a.replace(0, "b").replace("k", lambda v: f"g({v.text})"),
        "f((b), k=g(1))\n",
    ),
    ("f(k=1)\n", lambda a: a.set("k", "2").set("m", "3"), "f(k=2, m=3)\n"),
    ("f(\r\n\ta,\r\n)\r\n", lambda a: a.add("k", "1"), "f(\r\n\ta,\r\n\tk=1,\r\n)\r\n"),
]


@pytest.mark.parametrize(("text", "change", "after"), CASES)
def test_arguments(text: str, change: Callable[[Arguments], Arguments], after: str) -> None:
    source = Source("a.py", text)
    assert edited(source, change(Arguments(source, call(source)))) == after


@pytest.mark.parametrize(
    ("text", "change", "why"),
    [
        ("f(**kw)\n", lambda a: a.add("k", "1"), "may be among"),
        ("f(k=2)\n", lambda a: a.add("k", "1"), "given already"),
        ("f(k=2, m=1)\n", lambda a: a.rename("k", "m"), "given already"),
        ("f(a, b)\n", lambda a: a.name(0, "k"), "would follow"),
        ("f(*a, b)\n", lambda a: a.remove(1), "no argument"),
        ("f(a)\n", lambda a: a.remove("k"), "no argument"),
    ],
)
def test_what_is_not_certain_is_refused(
    text: str, change: Callable[[Arguments], Arguments], why: str
) -> None:
    source = Source("a.py", text)
    with pytest.raises(ValueError, match=why):
        resolve((change(Arguments(source, call(source))),))


def test_edits_of_one_call_by_several_fixes_go_together() -> None:
    source = Source("a.py", "f(a, b=(1), c=2)\n")
    node = call(source)
    fixes = [
        (Arguments(source, node).remove("c"),),
        (Arguments(source, node).remove("b").add("k", "1"),),
        (Arguments(source, node).add("k", "1"), Replace(source, node.func, "g")),
    ]
    assert combine(fixes).texts == {source: "g(a, k=1)\n"}
