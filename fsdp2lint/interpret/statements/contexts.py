"""``with``: what is entered, what it binds, and what happens when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import libcst as cst
from libcst.helpers import get_full_name_for_node

from fsdp2lint.interpret import conditions
from fsdp2lint.interpret.binding import bind
from fsdp2lint.interpret.functions import Generator, generate
from fsdp2lint.interpret.handlers import run_body
from fsdp2lint.model.guards import Clause, Guards
from fsdp2lint.model.values import Instance, Value
from fsdp2lint.source.walk import walk

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.source.source import Site


def run_with(machine: Machine, node: cst.With) -> None:
    """Enter the items one inside the other, then run the body."""
    _enter(machine, node, 0, lambda: run_body(machine, node.body))


def _enter(machine: Machine, node: cst.With, index: int, body: Callable[[], None]) -> None:
    if index == len(node.items):
        body()
        return
    item = node.items[index]
    context = machine.eval(item.item)
    site = machine.site(item.item)

    def inside(value: Value) -> None:
        if item.asname is not None:
            bind(machine, item.asname.name, value)
        _enter(machine, node, index + 1, body)

    if isinstance(context, Generator) and context.function.kind == "contextmanager":
        _run_around(machine, context, inside, site)
        return
    suppressing = _suppresses(item.item)
    machine.catching += suppressing
    within = machine.within
    machine.within = (*within, context)
    entered: Value = context
    start = machine.method(context, "__enter__") or machine.method(context, "__aenter__")
    if start is not None:
        entered = machine.call(start, (), {}, site)
    inside(entered)
    machine.within = within
    machine.catching -= suppressing
    end = machine.method(context, "__exit__") or machine.method(context, "__aexit__")
    if end is not None and isinstance(context, Instance):
        here = machine.here
        nothing = machine.literal(None)
        machine.call(end, (nothing, nothing, nothing), {}, site)
        machine.here = here


_SUPPRESSING = frozenset({"assertRaises", "assertRaisesRegex", "raises", "suppress"})
"""``contextlib.suppress``, and what tests expect to be raised."""


def _suppresses(item: cst.BaseExpression) -> bool:
    """Whether the program goes on behind a context in which something is raised."""
    called = get_full_name_for_node(item.func) if isinstance(item, cst.Call) else None
    return called is not None and called.rpartition(".")[2] in _SUPPRESSING


def _run_around(
    machine: Machine, context: Generator, inside: Callable[[Value], None], site: Site
) -> None:
    """A ``@contextmanager`` of the project: the body runs in place of a ``yield`` that can be reached.

    One ``yield`` is reached whichever way the tests before it come out: where none of them is in a ``with``
    of its own, the body does not depend on which. Else it runs for each, as some branches of a choice.
    """
    start = machine.here
    reached: list[Guards] = []
    left: list[tuple[frozenset[Clause] | None, Guards]] = []
    apart = _yields_within(context.function.node)

    def give(value: Value) -> None:
        here = machine.here
        if here.impossible and not start.impossible:
            return
        if reached and not (apart and all(here.excludes(one) for one in reached)):
            return
        reached.append(here)
        added = here.since(start)
        if not apart:
            machine.here = start
        inside(value)
        left.append((added if apart else frozenset(), machine.here))
        machine.here = machine.here.also(added)

    generate(machine, context, give, site)
    if not reached:
        inside(machine.unknown())
    elif len(left) == 1:
        machine.here = left[0][1]
    else:
        machine.here = conditions.joined(start, left, fatal=not machine.catching)


def _yields_within(function: cst.CSTNode) -> bool:
    """Whether a ``yield`` of a generator is in a ``with``."""
    return any(
        isinstance(inner, cst.Yield)
        for node in walk(function, into=False)
        if isinstance(node, cst.With)
        for inner in walk(node, into=False)
    )
