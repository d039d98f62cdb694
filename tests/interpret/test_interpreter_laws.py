"""Laws of the interpreter, over programs that nobody would write and over every fixture.

It never raises; it ends soon; it says the same twice; it sees every call; what it writes down is in order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import libcst as cst
import pytest
from hypothesis import HealthCheck, given, settings

from fsdp2lint.interpret.entries import traces
from fsdp2lint.model.guards import ALWAYS, NEVER, Guard, unit
from fsdp2lint.model.memory import choose
from fsdp2lint.model.trace import Trace
from fsdp2lint.model.values import Either, Literal, Unknown
from fsdp2lint.project.project import Project
from fsdp2lint.source.source import Source
from tests.support.strategies import programs

ROOT = Path(__file__).parents[2]
FIXTURES = sorted(
    path for folder in ("traces", "rules") for path in (ROOT / "fixtures" / folder).rglob("*.py")
)
MAX_EVENTS = 40_000
"""How much one entry of a small program may write down."""

MAX_SECONDS = 8
"""How much processor time all entries of a small program may take, on a slow machine."""


def run(text: str, path: str = "train.py") -> tuple[Source, list[Trace]]:
    """All traces of a program, from a fresh source."""
    source = Source(path, text)
    begun = time.process_time()
    found = list(traces(Project.of([source])))
    assert time.process_time() - begun < MAX_SECONDS
    return source, found


def calls_of(source: Source) -> Iterator[cst.Call]:
    """Every call of a file; own walk, because libcst's visitors overflow on deep trees."""
    todo: list[cst.CSTNode] = [source.tree]
    while todo:
        node = todo.pop()
        if isinstance(node, cst.Annotation):
            continue
        if isinstance(node, cst.Call):
            yield node
        todo.extend(node.children)


def told(found: list[Trace]) -> list[tuple[object, ...]]:
    """What traces say, without the objects of their run."""
    return [
        (trace.entry, type(e).__name__, e.order, e.at.line, e.words(), e.guards.words())
        for trace in found
        for e in trace
    ]


def check_laws(text: str, path: str = "train.py") -> None:
    """All laws, for one program."""
    source, found = run(text, path)
    assert found, "a program has at least one trace"
    for trace in found:
        orders = [event.order for event in trace]
        assert orders == sorted(orders)
        assert len(orders) < MAX_EVENTS
        assert not any(event.guards.impossible for event in trace)
    visited = set().union(*(trace.visited for trace in found))
    missed = [
        f"{source.range(call).line}: {source.code(call)}"
        for call in calls_of(source)
        if call not in visited
    ]
    assert not missed, f"calls that no trace has visited: {missed}"
    again = told(run(text, path)[1])
    different = [pair for pair in zip_longest(told(found), again) if pair[0] != pair[1]]
    assert not different, f"two runs differ: {different[0]}"


@settings(
    max_examples=100,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs())
def test_any_program(text: str) -> None:
    check_laws(text)


@pytest.mark.parametrize(
    "path", FIXTURES, ids=lambda path: str(path.relative_to(ROOT / "fixtures"))
)
def test_every_fixture(path: Path) -> None:
    check_laws(path.read_text(encoding="utf-8"), str(path))


@pytest.mark.parametrize(
    "text",
    [
        "f(" * 150 + "x" + ")" * 150,
        "\n".join(f"if cfg.a{i}:\n    g{i}()" for i in range(200)),
        "\n".join("    " * i + f"if cfg.a{i}:" for i in range(80)) + "\n" + "    " * 80 + "f()",
        "if a:\n    f()\n" + "".join(f"elif cfg.x{i}:\n    f({i})\n" for i in range(150)),
        "\n".join(f"def f{i}(x):\n    return f{i + 1}(f{i + 1}(x))" for i in range(60)) + "\nf0(1)",
        "def f(x):\n    return g(f(x))\ndef g(x):\n    return f(g(x))\nf(1)",
        "class A(B): pass\nclass B(A): pass\nA().run()",
        "x = [x for x in x]\nx = x\nx.x = x\nx.x.x.x(x)",
        "d = {}\nd['d'] = d\nl = [d]\nl.append(l)\nprint(*l, **d)\ntorch.save(l, d)",
        "from train import *\nimport train\ntrain.f()\ndef f(): train.f()",
        "while True:\n    while True:\n        f()\ng()",
        "for a in b:\n  for c in d:\n    for e in g:\n      for h in i:\n        for j in k:\n          f()",
        "def g():\n    yield from g()\nfor x in g():\n    f(x)",
        "x = " + " + ".join(["a"] * 300) + "\nf(x)",
        "x = a\n" + "x = x + x\n" * 40 + "f(x)",
        "x = rank\n" + "x = (x and x) or not x\n" * 40 + "f(x)\nif x:\n    return g()\nh()",
        "x = a\nfor i in b:\n"
        + "".join(f"    if c.a{i}:\n        x = x or c.b{i}\n" for i in range(30))
        + "f(x)\nif x:\n    g()",
        "x = a\n" + "x = x.b if x.c else x.d\n" * 25 + "f(x)",
        "x = {}\n" + "x = {'a': x, 'b': [x, x]}\n" * 40 + "f(**x)\ntorch.save(x, 'x')",
        "x = a\n" + "x = f(x, lambda: x)\n" * 60 + "x()",
        "".join(
            f"def f{i}(x):\n    if c.a{i}:\n        return f{i + 1}(f{i + 1}(x))\n"
            for i in range(25)
        )
        + "y = f0(1)\ng(y)",
        "f()" + "".join(f".m{i}(a)" for i in range(200)),
        "@f(1)\nclass A:\n    @g(2)\n    def m(self, x=h(3)) -> None:\n        return lambda: k(4)",
        "",
        "# nothing but a comment",
        "return f()\nbreak\nyield g()",
    ],
)
def test_hard_programs(text: str) -> None:
    check_laws(text + "\n")


def test_what_comes_from_no_way_is_nothing() -> None:
    """Two values, each bound where the other side is known to hold: here neither can be."""
    test = Unknown()
    here = ALWAYS.also(unit(Guard(test, True)))
    there = ALWAYS.also(unit(Guard(test, False)))
    pair = Either(((there, Literal(1)), (there, Literal(2))))
    assert choose([(here, pair), (NEVER, Literal(3))], here) is None
    four = Literal(4)
    assert choose([(here, four), (NEVER, Literal(3))], here) is four
