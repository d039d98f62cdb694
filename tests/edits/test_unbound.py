"""The output checker: names that may be unbound where they are read."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest

from fsdp2lint.edits.unbound import unbound


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f():\n    return state\n", {("f", "state")}),
        ("def f(old):\n    if old:\n        state = 1\n    return state\n", {("f", "state")}),
        (
            "def f(old):\n    if old:\n        s = 1\n    else:\n        s = 2\n    return s\n",
            set(),
        ),
        (
            "def f(old):\n    if not old:\n        raise ValueError\n    else:\n        s = 2\n    return s\n",
            set(),
        ),
        ("def f(xs):\n    for x in xs:\n        y = x\n    return y\n", {("f", "y")}),
        (
            "def f(q):\n    while True:\n        y = q()\n        if y:\n            break\n    return y\n",
            set(),
        ),
        (
            "def f():\n    try:\n        y = 1\n    except OSError:\n        y = 2\n    return y\n",
            set(),
        ),
        (
            "def f():\n    try:\n        y = 1\n    except OSError:\n        pass\n    return y\n",
            {("f", "y")},
        ),
        ("def f():\n    y = y + 1\n", {("f", "y")}),
        ("def f(xs):\n    return [x for x in xs if (y := x)] + [y]\n", set()),
        ("def f():\n    def g():\n        return late\n    late = 1\n    return g\n", set()),
        ("class A:\n    x = 1\n    def f(self):\n        return x\n", {("A.f", "x")}),
        ("from a import *\ndef f():\n    return anything\n", set()),
        ("def f(m):\n    with m as x:\n        y = x\n    return y\n", set()),
        (
            "def f(m):\n    match m:\n        case [a, *b]:\n            return a, b\n    return m\n",
            set(),
        ),
        ("def f(a, b):\n    if a:\n        x = 1\n    if a and b:\n        return x\n", set()),
        ("def f(a):\n    while (x := a()):\n        print(x)\n    return x\n", set()),
        ("import os.path\nprint(os, lambda n: n, __file__)\n", set()),
        ("def f():\n    global counter\n    counter = 1\ndef g():\n    return counter\n", set()),
        ("def f(x):\n    del x\n    return x\n", {("f", "x")}),
    ],
)
def test_what_may_be_unbound(text: str, found: set[tuple[str, str]]) -> None:
    assert unbound(dedent(text)) == found


def test_a_rewriting_that_reads_a_name_too_early_is_refused() -> None:
    from fsdp2lint.api import Account, Replace, Step
    from fsdp2lint.catalogue import knowledge
    from fsdp2lint.migrate.engine import migrate
    from fsdp2lint.source.source import Source

    text = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\ndef f(m):\n    return FSDP(m)\n"
    one = knowledge.codemods()[0]

    def rewrite(program):  # type: ignore[no-untyped-def]
        for each in program.references("torch.distributed.fsdp.FullyShardedDataParallel"):
            edit = Replace(each.source, each.node, "made_later")
            yield Step((edit,), (Account(each.source, each.node, "changed", "shorter"),))

    spoiling = replace(one, rewrite=rewrite)
    done = migrate((Source("a.py", text),), [spoiling], whole=False)
    assert done.changed == []
    assert [e.why for e in done.ledger.manual] == [
        "`made_later` could be read here before it has a value"
    ]
