"""Edits of statements: inserting, removing, moving, wrapping, in every kind of block."""

from __future__ import annotations

import pytest

from fsdp2lint.edits.apply import combine
from fsdp2lint.edits.statements import InsertAfter, InsertBefore, Move, Remove, Wrap
from fsdp2lint.edits.text import Replace
from fsdp2lint.source.source import Source
from tests.support.editing import edited, find

INSERTED = [
    ("a()\n", "a()", "x\na()\n", "a()\nx\n"),
    ("a()", "a()", "x\na()", "a()\nx"),
    ("a(); b()\n", "b()", "a()\nx\nb()\n", "a(); b()\nx\n"),
    ("a(); b()  # t\n", "a()", "x\na(); b()  # t\n", "a()\nx\nb()  # t\n"),
    ("if y: a()\n", "a()", "if y:\n    x\n    a()\n", "if y:\n    a()\n    x\n"),
    (
        "if y: a(); b()  # t\nelse: c()\n",
        "a()",
        "if y:\n    x\n    a(); b()  # t\nelse: c()\n",
        "if y:\n    a()\n    x\n    b()  # t\nelse: c()\n",
    ),
    ("try: z()\nfinally: a()\n", "a()", "try: z()\nfinally:\n    x\n    a()\n", None),
    ("def f():\n  # c\n  a()  # t\n", "a()", "def f():\n  x\n  # c\n  a()  # t\n", None),
    (
        "#!sh\n# license\n\n@d\ndef a(): b()\n",
        "@d\ndef a(): b()",
        "#!sh\n# license\n\nx\n@d\ndef a(): b()\n",
        None,
    ),
    (
        "class A:\n\t@d\n\t# c\n\tdef a(self):\n\t\tb()\n\t\t# foot\n\n\tz\n",
        "b()",
        None,
        "class A:\n\t@d\n\t# c\n\tdef a(self):\n\t\tb()\n\t\tx\n\t\t# foot\n\n\tz\n",
    ),
    (
        "if a:\n    b\nelif c():\n    d\n",
        "c()",
        "x\nif a:\n    b\nelif c():\n    d\n",
        "if a:\n    b\nelif c():\n    d\nx\n",
    ),
    ("if y:\r\n\ta()\r\n", "a()", "if y:\r\n\tx\r\n\ta()\r\n", "if y:\r\n\ta()\r\n\tx\r\n"),
    ("if y:\\\n  a()\n", "a()", "if y:\n    x\n    a()\n", None),
]


@pytest.mark.parametrize(("text", "node", "before", "after"), INSERTED)
def test_insert(text: str, node: str, before: str | None, after: str | None) -> None:
    source = Source("a.py", text)
    if before is not None:
        assert edited(source, InsertBefore(source, find(source, node), "x")) == before
    if after is not None:
        assert edited(source, InsertAfter(source, find(source, node), "x")) == after


def test_inserted_text_takes_indent_and_newline_but_not_inside_strings() -> None:
    source = Source("a.py", "def f():\r\n\tpass\r\n")
    text = 'for x in y:\n    f("""a\n  b""")\n\nz'
    after = edited(source, InsertAfter(source, find(source, "pass"), text))
    assert after == 'def f():\r\n\tpass\r\n\tfor x in y:\r\n\t    f("""a\r\n  b""")\r\n\r\n\tz\r\n'


def test_insert_into_a_shared_line_and_around_it() -> None:
    source = Source("a.py", "a(); b(); c()\n")
    edits = (
        InsertBefore(source, find(source, "a()"), "x"),
        InsertAfter(source, find(source, "c()"), "z"),
        Remove(source, find(source, "b()")),
    )
    assert edited(source, *edits) == "x\na(); c()\nz\n"


def test_inserted_text_may_come_from_elsewhere() -> None:
    source = Source("a.py", "m = f(n)\ng()\n")
    call = find(source, "f(n)")
    edits = (
        Remove(source, call),
        InsertAfter(source, find(source, "g()"), lambda new: f"h({new(call)})"),
        Replace(source, find(source, "n"), "k"),
    )
    assert edited(source, *edits) == "g()\nh(f(k))\n"


def test_two_fixes_that_insert_the_same_insert_it_once() -> None:
    source = Source("a.py", "a()\n")
    fixes = [(InsertBefore(source, find(source, "a()"), "x"),) for _ in range(2)]
    assert combine(fixes).texts == {source: "x\na()\n"}


REMOVED = [
    ("a()\nb()\n", ["a()"], "b()\n"),
    ("a()\nb()", ["b()"], "a()"),
    ("a(); b(); c()\n", ["a()"], "b(); c()\n"),
    ("a(); b(); c()\n", ["b()"], "a(); c()\n"),
    ("a(); b(); c();\n", ["c()"], "a(); b();\n"),
    ("a(); b(); c()\n", ["a()", "c()"], "b()\n"),
    ("a(); b(); c()\nd\n", ["a()", "b()", "c()"], "d\n"),
    ("if x: a(); b()\n", ["a()"], "if x: b()\n"),
    ("if x: a()  # t\n", ["a()"], "if x: pass  # t\n"),
    ("if x: a(); b()\nelse: c()\n", ["a()", "b()", "c()"], "if x: pass\nelse: pass\n"),
    ("if x:\n    a()  # t\n", ["a()"], "if x:\n    pass  # t\n"),
    ("if x:\n    a(); b()\n    c()\n", ["a()", "b()", "c()"], "if x:\n    pass\n"),
    ("if x:\n    a()\n    b()\n\ny()\n", ["a()", "b()"], "if x:\n    pass\n\ny()\n"),
    (
        "for i in x:\n    # why\n    a()\n\n    # d\n    b()\n",
        ["a()"],
        "for i in x:\n    # why\n\n    # d\n    b()\n",
    ),
    ("a\n\nb()\n\nc\n", ["b()"], "a\n\nc\n"),
    ("def f():\n    a()\n\n    b\n", ["a()"], "def f():\n    b\n"),
    ("def f():\n    a()\n    b()\n\n    c\n", ["a()", "b()"], "def f():\n    c\n"),
    ("def f():\n    a()\n\n    b()\n\n    c\n", ["a()", "b()"], "def f():\n    c\n"),
    ("def f():\n    x\n    a()\n    b()\n\n    c\n", ["a()", "b()"], "def f():\n    x\n\n    c\n"),
    (
        "def f():\n    # why\n    a()\n    b()\n\n    c\n",
        ["a()", "b()"],
        "def f():\n    # why\n\n    c\n",
    ),
    (
        "try:\n    a()\nexcept E:\n    b()\n",
        ["a()", "b()"],
        "try:\n    pass\nexcept E:\n    pass\n",
    ),
    (
        "class A:\n    @d\n    def f(self):\n        a()\n",
        ["@d\n    def f(self):\n        a()"],
        "class A:\n    pass\n",
    ),
    ("if x:\r\n\ta()\r\n\tb()\r\n", ["b()"], "if x:\r\n\ta()\r\n"),
    ("match x:\n    case 1: a()\n", ["a()"], "match x:\n    case 1: pass\n"),
    ("a()\n\n\nb()\n\nc()\n", ["b()"], "a()\n\n\nc()\n"),
    ("a()\n\n\nb()\nc()\n\nd()\n", ["b()", "c()"], "a()\n\n\nd()\n"),
    ("a()\n\nb()\n\nc()\n\n\nd()\n", ["b()", "c()"], "a()\n\n\nd()\n"),
]


@pytest.mark.parametrize(("text", "nodes", "after"), REMOVED)
def test_remove(text: str, nodes: list[str], after: str) -> None:
    source = Source("a.py", text)
    edits = [Remove(source, find(source, node)) for node in nodes]
    assert edited(source, *edits) == after
    assert combine([(edit,) for edit in edits]).texts == {source: after}


LONE = [
    ("if x:\n    # why\n    a()\n\n    b()\n", ["a()"], "if x:\n    b()\n"),
    (
        "if x:\n    c()\n\n    # why\n    a()\n    # too\n    b()\n",
        ["a()", "b()"],
        "if x:\n    c()\n",
    ),
    ("if x:\n    # why\n    a()\n    # else\n    b()\n", ["a()"], "if x:\n    # else\n    b()\n"),
    ("if x:\n    # why\n    a()\n    b()\n", ["a()"], "if x:\n    # why\n    b()\n"),
    ("if x:\n    # --- why\n    a()\n\n    b()\n", ["a()"], "if x:\n    # --- why\n\n    b()\n"),
    ("# license\na()\n\nb()\n", ["a()"], "# license\nb()\n"),
    ("b()\n# fmt: off\na()\n", ["a()"], "b()\n# fmt: off\n"),
]
"""A comment goes with what it is about, but for headings and what is at the top of a file or read by tools."""


@pytest.mark.parametrize(("text", "nodes", "after"), LONE)
def test_lone_comments_go(text: str, nodes: list[str], after: str) -> None:
    source = Source("a.py", text)
    assert (
        edited(source, *(Remove(source, find(source, n), comments="lone") for n in nodes)) == after
    )


def test_the_comments_of_a_removed_statement_stay_unless_told() -> None:
    source = Source("a.py", "# head\n\n# one\na()  # two\n# three\nb()\n")
    node = find(source, "a()")
    assert edited(source, Remove(source, node)) == "# head\n\n# one\n# three\nb()\n"
    nested = Source("a.py", "if x:\n    # one\n    a()\n    b()\n")
    gone = Remove(nested, find(nested, "a()"), comments=True)
    assert edited(nested, gone) == "if x:\n    b()\n"


def test_move_takes_the_comments_and_the_edits_inside_along() -> None:
    source = Source(
        "a.py", "def f():\n    # opt\n    o = Adam(m)  # t\n    # shard\n    s(m)\n    z"
    )
    optimizer = find(source, "Adam")
    edits = (
        Move(source, optimizer, after=find(source, "s(m)")),
        Replace(source, optimizer, "AdamW"),
    )
    expected = "def f():\n    # shard\n    s(m)\n    # opt\n    o = AdamW(m)  # t\n    z"
    assert edited(source, *edits) == expected


@pytest.mark.parametrize(
    ("text", "moved", "target", "after"),
    [
        ("a(); b(); c()\n", "a()", "b()", "b()\na()\nc()\n"),
        ("if x: a(); b()\n", "a()", "b()", "if x:\n    b()\n    a()\n"),
        ("a()\nb()", "a()", "b()", "b()\na()"),
        ("a()\nb()", "b()", "a()", "a()\nb()"),
        ("a()\r\nb()\r\nc()", "c()", "a()", "a()\r\nc()\r\nb()"),
        (
            "if x:\n    a()\n    for i in y:\n        b()\n",
            "a()",
            "for i in y:\n        b()",
            "if x:\n    for i in y:\n        b()\n    a()\n",
        ),
    ],
)
def test_move_down(text: str, moved: str, target: str, after: str) -> None:
    source = Source("a.py", text)
    assert edited(source, Move(source, find(source, moved), after=find(source, target))) == after


def test_move_up() -> None:
    source = Source("a.py", "# one\na()\n\n# two\n\nb(\n  1,\n)\n")
    edit = Move(source, find(source, "b(\n  1,\n)"), before=find(source, "a()"))
    assert edited(source, edit) == "# one\nb(\n  1,\n)\na()\n\n# two\n"


def test_move_stays_within_its_block() -> None:
    source = Source("a.py", "a()\nif x:\n    b()\n")
    with pytest.raises(ValueError, match="within its block"):
        Move(source, find(source, "a()"), after=find(source, "b()"))


@pytest.mark.parametrize(
    ("text", "first", "last", "after"),
    [
        ("a()  # t\n", "a()", None, "if r:\n    a()  # t\n"),
        ("# c\nx\n# d\na()", "a()", None, "# c\nx\n# d\nif r:\n    a()"),
        ("if x: a(); b()\n", "b()", None, "if x:\n    a()\n    if r:\n        b()\n"),
        ("a(); b(); c()\n", "b()", None, "a()\nif r:\n    b()\nc()\n"),
        (
            "def f():\n\ta('''\n x''')\n\n\tb()\n",
            "a('''\n x''')",
            "b()",
            "def f():\n\tif r:\n\t\ta('''\n x''')\n\n\t\tb()\n",
        ),
        (
            "with x:\n  for i in y:\n    a()\n\n    b()\n",
            "for i in y:\n    a()\n\n    b()",
            None,
            "with x:\n  if r:\n    for i in y:\n      a()\n\n      b()\n",
        ),
    ],
)
def test_wrap(text: str, first: str, last: str | None, after: str) -> None:
    source = Source("a.py", text)
    end = find(source, last) if last else None
    assert edited(source, Wrap(source, find(source, first), "if r:", last=end)) == after


def test_wrap_with_edits_inside() -> None:
    source = Source("a.py", "a(x)\nb()\nc()\n")
    edits = (
        Wrap(source, find(source, "a(x)"), "if r:", last=find(source, "c()")),
        Replace(source, find(source, "x"), "y"),
        Remove(source, find(source, "b()")),
        InsertAfter(source, find(source, "a(x)"), "z"),
    )
    assert edited(source, *edits) == "if r:\n    a(y)\n    z\n    c()\n"
