"""Tests: what is known to be true, and which guards a branch is under."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fsdp2lint.model.basic_values import MAX_DEPTH, WHOLE
from fsdp2lint.model.guards import (
    FAILED,
    NEVER,
    Clause,
    Guards,
    asked,
    contradict,
    either,
    either_exactly,
    negated,
)
from fsdp2lint.model.values import (
    Bound,
    Class,
    Container,
    Default,
    Either,
    External,
    Function,
    Instance,
    Literal,
    Logic,
    MainRank,
    Mesh,
    Not,
    Optimizer,
    Parameters,
    Part,
    Partial,
    Rank,
    StateDict,
    Unknown,
    Value,
    Wrapped,
)

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.source.source import Site

Sides = tuple[frozenset[Clause] | None, frozenset[Clause] | None]
"""What holds where a test is true, and where it is not."""

IMPOSSIBLE = None
_OBJECTS = (
    Function,
    Bound,
    Class,
    Instance,
    Wrapped,
    Optimizer,
    Parameters,
    StateDict,
    Partial,
    Mesh,
)
_OPERATORS: dict[str, Callable[[Any, Any], object]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "is": operator.eq,
    "is not": operator.ne,
}
_MAIN_RANK: dict[tuple[str, object], bool] = {
    ("==", 0): True,
    ("is", 0): True,
    ("<", 1): True,
    ("<=", 0): True,
    ("!=", 0): False,
    ("is not", 0): False,
    (">", 0): False,
    (">=", 1): False,
}
_DTYPES = frozenset(
    f"torch.{name}" for name in ("bfloat16", "float16", "float32", "float64", "int64", "uint8")
)
_ARITHMETIC = frozenset("+ - * / // % ** @".split())
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}


_UNCERTAIN = frozenset({Part, Unknown})
"""The most frequent kinds of values: nothing is known of what they are."""


def truth(machine: Machine, value: Value) -> bool | None:
    """Whether ``value`` is true, when that is certain."""
    if type(value) in _UNCERTAIN:
        return None
    if isinstance(value, Literal):
        return None if isinstance(value, Default) else bool(value.value)
    if isinstance(value, Container):
        if value.open:
            return None
        return bool(next(machine.memory.entries(value, machine.here), None))
    if isinstance(value, Not):
        inner = truth(machine, value.test)
        return None if inner is None else not inner
    if isinstance(value, StateDict) and value.offloaded:
        return None  # empty on all ranks but the first
    if isinstance(value, _OBJECTS):
        return None if value in machine.memory.strangers else True
    return None


def clauses(machine: Machine, test: Value, taken: bool, site: Site) -> frozenset[Clause] | None:
    """What holds where ``test`` came out as ``taken``; None when it cannot come out so."""
    if type(test) in _UNCERTAIN:
        return asked(test, taken, site)
    return sides(machine, test, site)[0 if taken else 1]


def sides(machine: Machine, test: Value, site: Site) -> Sides:
    """What holds where ``test`` came out as true, and where it did not; None where that cannot be."""
    if type(test) in _UNCERTAIN:
        return asked(test, True, site), asked(test, False, site)
    if isinstance(test, Default):
        return sides(machine, test.setting, site)
    known = truth(machine, test)
    if known is not None:
        return (frozenset(), IMPOSSIBLE) if known else (IMPOSSIBLE, frozenset())
    if isinstance(test, Not):
        held, refused = sides(machine, test.test, site)
        return refused, held
    if isinstance(test, Rank):
        main = machine.main_rank(test.scope)
        return asked(main, False, site), asked(main, True, site)
    if isinstance(test, Logic | Either) and test.nesting <= MAX_DEPTH:
        held, exact = _side(machine, test, True, site)
        refused, exact_too = _side(machine, test, False, site)
        if held is None or refused is None:
            return held, refused
        if exact and exact_too and contradict(held, refused):
            return held, refused
        # what is said of one side may hold on the other, or only a proof by cases shows that it
        # cannot: one test keeps the two apart
        whole = test.part((WHOLE,))
        return held | asked(whole, True, site), refused | asked(whole, False, site)
    return asked(test, True, site), asked(test, False, site)


def _side(
    machine: Machine, test: Logic | Either, taken: bool, site: Site
) -> tuple[frozenset[Clause] | None, bool]:
    """One side of a test that is made of others, and whether all of it is said."""
    if isinstance(test, Logic):
        return _of_logic(machine, test, taken, site)
    return _of_either(machine, test, taken, site)


def _of_logic(
    machine: Machine, test: Logic, taken: bool, site: Site
) -> tuple[frozenset[Clause] | None, bool]:
    """``and`` taken and ``or`` not taken say something of every operand; else only of one of them."""
    every = (test.operator == "and") is taken
    found = [clauses(machine, operand, taken, site) for operand in test.operands]
    if every:
        if any(f is None for f in found):
            return IMPOSSIBLE, True
        return frozenset().union(*(f for f in found if f is not None)), True
    possible = [f for f in found if f is not None]
    if not possible:
        return IMPOSSIBLE, True
    result, exact = possible[0], True
    for other in possible[1:]:
        result, nothing_lost = either_exactly(result, other)
        exact = exact and nothing_lost
    return result, exact


def _of_either(
    machine: Machine, test: Either, taken: bool, site: Site
) -> tuple[frozenset[Clause] | None, bool]:
    """A flag set in branches: true exactly under the guards of the bindings that are true."""
    result: frozenset[Clause] | None = None
    shadowed: frozenset[Clause] = frozenset()
    exact = True
    for guards, value in test.options:
        inner = clauses(machine, value, taken, site)
        own = guards.since(machine.here)
        if inner is not None:
            mine = own | inner | shadowed
            if result is None:
                result = mine
            else:
                result, nothing_lost = either_exactly(result, mine)
                exact = exact and nothing_lost
        refused = negated(own)
        exact = exact and bool(refused or not own)
        shadowed = shadowed | refused
    return result, exact


def joined(
    base: Guards, left: list[tuple[frozenset[Clause] | None, Guards]], *, fatal: bool = False
) -> Guards:
    """What holds behind branches: nothing more, unless some of them never come out.

    ``left`` says for each branch under which clauses it was entered and what held at its end; ``fatal`` whether
    the program ends where one of them fails.
    """
    ends = [(entered, here) for entered, here in left if entered is not None]
    open_ends = [(entered, here) for entered, here in ends if not here.impossible]
    if not open_ends:
        return FAILED if ends and all(here is FAILED for _, here in ends) else NEVER
    gained = [here.since(base.also(entered)) for entered, here in open_ends]
    if len(open_ends) == len(ends):
        if not any(gained):
            return base
        result = base
        for (entered, here), more in zip(open_ends, gained, strict=True):
            soft = more & here.survived
            for lasting, survived, deadly in (
                (more - here.survived, False, False),
                (soft - here.fatal, True, False),
                (soft & here.fatal, True, True),
            ):
                added = either(negated(entered), lasting) if entered else lasting
                result = result.also(added, survived=survived, fatal=deadly)
        return result
    failed = all(here is FAILED for _, here in ends if here.impossible)
    if len(open_ends) == 1:
        entered, here = open_ends[0]
        result = base.also(entered, survived=failed, fatal=failed and fatal)
        result = result.also(gained[0] & here.fatal, survived=True, fatal=True)
        result = result.also(gained[0] & here.survived, survived=True)
        return result.also(gained[0])
    result = base
    for entered, here in ends:
        if here.impossible:
            failed = here is FAILED
            result = result.also(negated(entered), survived=failed, fatal=failed and fatal)
    return result


def invert(machine: Machine, value: Value) -> Value:
    """``not value``."""
    known = truth(machine, value)
    if known is not None:
        return machine.literal(not known)
    if isinstance(value, Default):
        value = value.setting
    if isinstance(value, Not):
        return value.test
    if isinstance(value, Rank):
        return machine.main_rank(value.scope)
    if isinstance(value, Either):
        return machine.spread(value, lambda one: invert(machine, one))
    return value.keep("not", Not(value))


def logic(machine: Machine, operator_: str, operands: list[Value]) -> Value:
    """``a and b`` or ``a or b`` as a value: an operand where that is certain, else a test."""
    left: list[Value] = []
    stops_at = operator_ == "or"
    for position, operand in enumerate(operands):
        known = truth(machine, operand)
        last = position == len(operands) - 1
        if known is stops_at:
            left.append(operand)
            break
        if known is None or last:
            left.append(
                operand.setting if known is None and isinstance(operand, Default) else operand
            )
    if len(left) == 1:
        return left[0]
    key = (operator_, *left[1:])
    return left[0].keep(("logic", *key), Logic(operator_, tuple(left)))


def compare(machine: Machine, left: Value, symbol: str, right: Value) -> Value:
    """The result of a comparison."""
    left, right = _asked_about(left, right), _asked_about(right, left)
    if isinstance(left, Either):
        return machine.spread(left, lambda one: compare(machine, one, symbol, right))
    if isinstance(right, Either):
        return machine.spread(right, lambda one: compare(machine, left, symbol, one))
    if isinstance(left, Literal) and isinstance(right, Rank) and symbol in _FLIPPED:
        return compare(machine, right, _FLIPPED[symbol], left)
    if isinstance(left, Rank):
        return _compare_rank(machine, left, symbol, right)
    if isinstance(left, Literal) and isinstance(right, Literal) and symbol in _OPERATORS:
        return _compare_constants(machine, left, symbol, right)
    if isinstance(left, Literal) and isinstance(right, Container) and symbol in ("in", "not in"):
        return _contained(machine, left, right, symbol)
    if symbol in ("is", "is not", "==", "!="):
        negative = symbol in ("is not", "!=")
        if left is right and symbol in ("is", "is not"):
            return machine.literal(not negative)
        if _is_dtype(left) and _is_dtype(right):
            return machine.literal((left is right) is not negative)
        for one, other in ((left, right), (right, left)):
            if (
                isinstance(other, Literal)
                and isinstance(one, (*_OBJECTS, Container))
                and one not in machine.memory.strangers
            ):
                return machine.literal(negative)
            if isinstance(other, Literal) and other.value is None and _is_computed(one):
                return machine.literal(negative)
        if isinstance(right, Literal) and right.value in (True, False) and _is_test(left):
            same = bool(right.value) is not negative
            return left if same else invert(machine, left)
        if negative:
            positive = "is" if symbol == "is not" else "=="
            return invert(machine, left.part((positive, right)))
    if symbol in ("in", "not in"):
        test = left.part(("in", _constants(machine, right) or right))
        return test if symbol == "in" else invert(machine, test)
    return left.part((symbol, right))


def _asked_about(value: Value, other: Value) -> Value:
    """What a comparison is about: of an empty setting that is compared with constants what else it may hold."""
    if isinstance(value, Default) and isinstance(other, Literal | Container):
        return value.setting
    return value


def _constants(machine: Machine, table: Value) -> Literal | None:
    """The constants of a display as one: what a value is looked for in is the same wherever it is written."""
    if not isinstance(table, Container) or table.open or table.kind == "dict":
        return None
    entries = [value for _, value in machine.memory.entries(table, machine.here)]
    if not entries or not all(isinstance(value, Literal) for value in entries):
        return None
    return machine.literal(tuple(v.value for v in entries if isinstance(v, Literal)))


def _is_computed(value: Value) -> bool:
    """Whether a value is what an arithmetic operator gives, which is never None."""
    return isinstance(value, Part) and isinstance(value.key, tuple) and value.key[0] in _ARITHMETIC


def _is_dtype(value: Value) -> bool:
    """Whether a value is one of torch's dtypes by its own name, not by another as ``torch.half``."""
    return isinstance(value, External) and value.name in _DTYPES


def _is_test(value: Value) -> bool:
    return isinstance(value, MainRank | Not | Logic)


def _compare_rank(machine: Machine, rank: Rank, symbol: str, right: Value) -> Value:
    if isinstance(right, Literal):
        number: object = 0 if right.value is None else right.value
        if isinstance(number, str) and number.isdigit():
            number = int(number)  # os.environ["RANK"] == "0"
        if right.value is None:
            return machine.literal(symbol not in ("is", "=="))
        try:
            known = _MAIN_RANK.get((symbol, number))
        except TypeError:
            known = None
        if known is not None and not isinstance(number, bool):
            test = machine.main_rank(rank.scope)
            return test if known else invert(machine, test)
        if number == -1 and symbol in ("==", "!="):
            # -1 is the default of launchers for "not distributed": no test between ranks
            positive = machine.external("not distributed")
            return positive if symbol == "==" else invert(machine, positive)
    if isinstance(right, Container) and symbol in ("in", "not in") and not right.open:
        entries = [v for _, v in machine.memory.entries(right, machine.here)]
        allowed = [v.value for v in entries if isinstance(v, Literal)]
        if len(allowed) == len(entries) and set(map(repr, allowed)) <= {"0", "-1"}:
            test = machine.main_rank(rank.scope)
            return test if symbol == "in" else invert(machine, test)
    if symbol in ("!=", "is not", "not in"):
        positive_symbol = {"!=": "==", "is not": "is", "not in": "in"}[symbol]
        return invert(machine, rank.part((positive_symbol, right)))
    return rank.part((symbol, right))


def _compare_constants(machine: Machine, left: Literal, symbol: str, right: Literal) -> Value:
    try:
        return machine.literal(bool(_OPERATORS[symbol](left.value, right.value)))
    except TypeError:  # the script would raise here as well
        return left.part((symbol, right))


def _contained(machine: Machine, left: Literal, right: Container, symbol: str) -> Value:
    entries = list(machine.memory.entries(right, machine.here))
    if right.kind == "dict":
        found = any(key == f"[{left.value!r}]" for key, _ in entries)
        certain = not right.open
    else:
        found = any(isinstance(v, Literal) and v.value == left.value for _, v in entries)
        certain = not right.open and all(isinstance(v, Literal) for _, v in entries)
    if found or certain:
        return machine.literal(found is (symbol == "in"))
    test = left.part(("in", right, machine.order))
    return test if symbol == "in" else invert(machine, test)
