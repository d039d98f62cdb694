"""Loops, comprehensions, and what the rounds of a loop see.

A loop is walked twice: the second round sees what the first left behind. The elements of something not
known are two parts, one for each round, the same two whenever it is looped over again: that tells a
module that is sharded twice (two loops, the same element) from two modules of one list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

import libcst as cst

from fsdp2lint.interpret import conditions
from fsdp2lint.interpret.attributes import key_of
from fsdp2lint.interpret.binding import bind
from fsdp2lint.interpret.displays import store
from fsdp2lint.interpret.functions import Generator, generate
from fsdp2lint.interpret.handlers import handles, run_body
from fsdp2lint.interpret.scopes import Loop, Scope
from fsdp2lint.model.events import Iterated
from fsdp2lint.model.guards import NEVER
from fsdp2lint.model.values import (
    Container,
    Either,
    External,
    Instance,
    Literal,
    Logic,
    Module,
    Parameters,
    Part,
    Round,
    Value,
    outside,
)
from fsdp2lint.source.walk import walk

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.source.source import Site

ROUNDS = 2
MAX_EXACT = 8
"""A list of at most so many known entries is walked entry by entry."""


def note_walk(machine: Machine, value: Value, site: Site) -> None:
    """Write down that an object of a library is walked, as a loader of data, what has no order, or what was given its place."""
    for one in [v for _, v in value.options] if isinstance(value, Either) else [value]:
        loader = isinstance(one, Instance) and isinstance(one.cls, External)
        if loader or one in machine.placed or (isinstance(one, Container) and one.shuffled):
            machine.record(Iterated(machine.moment(site), one))


def elements(machine: Machine, value: Value, site: Site) -> list[Value]:
    """What the rounds of a loop over ``value`` see."""
    sides = [one for _, one in value.options] if isinstance(value, Either) else []
    if isinstance(value, Logic) and value.operator == "or":  # `parts or []`
        sides = list(value.operands)
    if sides:
        each = [elements(machine, one, site) for one in sides]
        turns = chain.from_iterable(zip_longest(*each))  # none of them hides the others
        return list(dict.fromkeys(one for one in turns if one is not None))[:MAX_EXACT]
    if isinstance(value, Container):
        return _entries(machine, value)
    if isinstance(value, Generator):
        given: list[Value] = []
        generate(machine, value, given.append, site)
        return given[:MAX_EXACT] or _rounds(value)
    if isinstance(value, Parameters):
        return _parameter_elements(machine, value)
    if isinstance(value, Literal) and isinstance(value.value, str):
        return [machine.unknown() for _ in range(ROUNDS)]
    if isinstance(value, Module) and machine.method(value, "__iter__") is None:
        held = module_entries(machine, value)
        keyed = any(base.name == "torch.nn.ModuleDict" for base in outside(value.cls))
        known = [key if keyed else entry for key, entry in held]
        if known:
            return known[:MAX_EXACT]
    if isinstance(value, Instance):
        return _iterated(machine, value, site)
    if isinstance(value, Part) and isinstance(value.key, tuple) and value.key[0] == "+":
        both = (
            value.owner,
            value.key[1],
        )  # what can be walked and is a sum is one list behind another
        return [e for one in both for e in elements(machine, one, site)][:MAX_EXACT]
    return _rounds(value)


def _rounds(value: Value) -> list[Value]:
    return [value.part(Round(n)) for n in range(ROUNDS)]


def _entries(machine: Machine, value: Container) -> list[Value]:
    entries = list(machine.memory.entries(value, machine.here))
    if value.kind == "dict":
        keys: list[Value] = []
        for key, _ in entries:
            if isinstance(key, tuple):
                keys.append(key[1])
            elif isinstance(key, str):
                keys.append(machine.literal(key_of(key)))
        return keys[:MAX_EXACT] or (_rounds(value) if value.open else [])
    found = [v for _, v in entries]
    if value.open:
        for one in found:
            one.sit(value, "[*]")
        return _different(found)[:MAX_EXACT] or _rounds(value)
    return found if len(found) <= MAX_EXACT else found[: MAX_EXACT - 1] + found[-1:]


def _different(found: list[Value]) -> list[Value]:
    """The entries of a list of unknown length: of those that one line has made, as many as a loop has rounds."""
    chosen: list[Value] = []
    times: Counter[object] = Counter()
    for one in found:
        born = one.born.node if isinstance(one, Instance) and one.born is not None else one
        times[born] += 1
        if times[born] <= ROUNDS:
            chosen.append(one)
    return chosen


def module_entries(machine: Machine, value: Module) -> list[tuple[Value, Value]]:
    """The keys and entries of a ``ModuleList``, a ``Sequential`` or a ``ModuleDict``."""
    found: list[tuple[Value, Value]] = []
    for key, entry in machine.memory.entries(value, machine.here):
        if isinstance(key, tuple) and key[0] == "[]":
            found.append((key[1], entry))
        elif isinstance(key, str) and key.startswith("["):
            found.append((machine.literal(key_of(key)), entry))
    return found


def _parameter_elements(machine: Machine, value: Parameters, take: bool = True) -> list[Value]:
    if take and value.taken is None:
        value = machine.take(value)
    parts = _rounds(value)
    if not value.named:
        return parts
    return [
        part.keep("named", machine.container("tuple", [part.part(".name"), part])) for part in parts
    ]


def _iterated(machine: Machine, value: Instance, site: Site) -> list[Value]:
    """An object of the project: its ``__iter__`` (and ``__next__``), when they are resolved."""
    method = machine.method(value, "__iter__")
    if method is None:
        return _rounds(value)
    result = machine.call(method, (), {}, site)
    if isinstance(result, Generator | Container):
        return elements(machine, result, site)
    step = machine.method(result, "__next__")
    if step is None:
        return _rounds(value)
    return [machine.call(step, (), {}, site) for _ in range(ROUNDS)]


# -- loops -----------------------------------------------------------------------------------------


def run_for(machine: Machine, node: cst.For) -> None:
    """``for target in iterable``; a generator of the project runs with the body in place of its ``yield``."""
    iterable = machine.eval(node.iter)
    base = machine.here
    loop = Loop(base)
    machine.frame.loops.append(loop)
    machine.looping += 1
    counted, uncounted = machine.counted, machine.uncounted

    def round_(value: Value) -> None:
        here = machine.here
        bind(machine, node.target, value)
        run_body(machine, node.body)
        machine.here = here

    site = machine.site(node.iter)
    machine.note_walk(iterable, site)
    machine.counted = _exact(iterable)
    machine.uncounted += not machine.counted
    if isinstance(iterable, Generator) and machine.may_enter(iterable.function):
        generate(machine, iterable, round_, site)
        _see_body(machine, node, round_)
    else:
        rounds = elements(machine, iterable, site)
        exact = _exact(iterable)
        if len(rounds) == 1 and not exact:
            rounds = rounds * ROUNDS
        for number, value in enumerate(rounds if exact else rounds[: _allowed(machine)]):
            machine.repeating += number > 0
            round_(value)
            machine.repeating -= number > 0
            if exact and loop.ended:
                break  # the others come only where this round fails
        if not rounds:
            machine.dead(lambda: round_(machine.unknown()))
    machine.counted, machine.uncounted = counted, uncounted
    machine.looping -= 1
    machine.frame.loops.pop()
    machine.here = base
    if node.orelse is not None:
        run_body(machine, node.orelse.body)
        if loop.broke:
            machine.here = base


def _allowed(machine: Machine) -> int:
    """How often a loop is walked: once when the loop around it is in its second round already."""
    return 1 if machine.repeating else MAX_EXACT


def _see_body(machine: Machine, node: cst.For, round_: Callable[[Value], None]) -> None:
    """A generator that yields nothing that is resolved must not hide the loop's body."""
    first = next(iter(node.body.body), None)
    if first is not None and not _seen(machine, node.body):
        round_(machine.unknown())


def _seen(machine: Machine, node: cst.CSTNode) -> bool:
    first = next((n for n in walk(node, into=False) if isinstance(n, cst.Call)), None)
    return first is None or first in machine.visited


def _exact(value: Value) -> bool:
    return isinstance(value, Container) and not value.open


def run_while(machine: Machine, node: cst.While) -> None:
    """``while test``: behind ``while True`` without a ``break`` nothing comes."""
    base = machine.here
    loop = Loop(base)
    machine.frame.loops.append(loop)
    machine.looping += 1
    counted, uncounted = machine.counted, machine.uncounted
    machine.counted = _walks_a_list(node)
    machine.uncounted += not machine.counted
    endless = False
    for number in range(min(ROUNDS, _allowed(machine))):
        machine.repeating += number > 0
        test = machine.eval(node.test)
        endless = conditions.truth(machine, test) is True
        added = conditions.clauses(machine, test, True, machine.site(node.test))
        machine.here = base.also(added) if added is not None else NEVER
        run_body(machine, node.body)
        machine.here = base
        machine.repeating -= number > 0
    machine.counted, machine.uncounted = counted, uncounted
    machine.looping -= 1
    machine.frame.loops.pop()
    if endless and not loop.broke:
        machine.here = NEVER
    if node.orelse is not None:
        run_body(machine, node.orelse.body)


def _walks_a_list(node: cst.While) -> bool:
    """Whether a loop counts the entries of a list: ``while i < len(layers):``; its rounds are the entries."""
    return any(
        isinstance(n, cst.Call) and isinstance(n.func, cst.Name) and n.func.value == "len"
        for n in walk(node.test)
    )


def comprehend(
    machine: Machine, node: cst.CompFor, action: Callable[[], None], lazy: bool = False
) -> bool:
    """Walk a comprehension; whether the number of its results is known.

    A generator expression (``lazy``) is walked here too, but leaves parameters to be read by its consumer.
    """
    frame = machine.frame
    outer = frame.scope
    frame.scope = Scope("comprehension", machine.source, outer)
    machine.looping += 1
    exact = _comprehend(machine, node, action, lazy)
    machine.looping -= 1
    frame.scope = outer
    return exact


def _comprehend(
    machine: Machine, node: cst.CompFor, action: Callable[[], None], lazy: bool
) -> bool:
    iterable = machine.eval(node.iter)
    if isinstance(iterable, Container):
        machine.note_walk(iterable, machine.site(node.iter))
    exact = _exact(iterable) and not node.ifs
    if lazy and isinstance(iterable, Parameters):
        values = _parameter_elements(machine, iterable, take=False)
    else:
        values = elements(machine, iterable, machine.site(node.iter))
    base = machine.here
    for value in values or [machine.unknown()]:
        if not values:
            machine.here = NEVER
        bind(machine, node.target, value)
        for condition in node.ifs:
            test = machine.eval(condition.test)
            added = conditions.clauses(machine, test, True, machine.site(condition.test))
            machine.here = machine.here.also(added) if added is not None else NEVER
        if node.inner_for_in is not None:
            exact = _comprehend(machine, node.inner_for_in, action, lazy) and exact
        else:
            action()
        machine.here = base
    return exact


@handles(cst.ListComp, cst.SetComp, cst.GeneratorExp)
def comprehension(machine: Machine, node: cst.ListComp | cst.SetComp | cst.GeneratorExp) -> Value:
    values: list[Value] = []
    lazy = isinstance(node, cst.GeneratorExp)
    exact = comprehend(machine, node.for_in, lambda: values.append(machine.eval(node.elt)), lazy)
    kind = "set" if isinstance(node, cst.SetComp) else "list"
    return machine.container(kind, values, open_=not exact)


@handles(cst.DictComp)
def dict_comprehension(machine: Machine, node: cst.DictComp) -> Value:
    made = Container("dict")

    def one() -> None:
        key = machine.eval(node.key)
        store(machine, made, key, machine.eval(node.value))

    exact = comprehend(machine, node.for_in, one)
    made.open = made.open or not exact
    return made
