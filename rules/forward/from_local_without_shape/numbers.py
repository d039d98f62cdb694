"""What the numbers of a script are on one rank of a run: `per * rank`, `min(end, 7)`, `7 % world_size`.

An expression of constants, the rank and the number of ranks has one value on each rank. `Numbers` computes it
from the values that the trace holds; what else is in the expression makes it unknown.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from fsdp2lint.api import (
    Called,
    Container,
    Either,
    Guards,
    Literal,
    Logic,
    MainRank,
    Mesh,
    Not,
    Part,
    Rank,
    Trace,
    Value,
    once,
    options,
)

Number = int | float
Shape = tuple[int, ...]
T = TypeVar("T")

_OPERATIONS: dict[str, Callable[[Number, Number], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "min": min,
    "max": max,
}
_ROUNDING: dict[str, Callable[[Number], int]] = {"math.ceil": math.ceil, "math.floor": math.floor}
_SCOPES = ("global", "group", "dimension")
_ELEMENT = re.compile(r"\[(-?\d+)\]")
_DEEPEST = 40
"""Expressions nested deeper than this are not computed: they grow in a loop."""


class Fails(Exception):
    """The expression raises on this rank: it indexes what is not there."""


class Numbers:
    """The numbers of one run: on ``rank`` of ``world`` ranks, all of which form ``mesh``.

    ``measure`` gives the shape of a value that is a tensor.
    """

    def __init__(
        self,
        trace: Trace,
        mesh: Mesh,
        rank: int,
        world: int,
        measure: Callable[[Value], Shape | None],
    ) -> None:
        self.trace = trace
        self.mesh = mesh
        self.rank = rank
        self.world = world
        self.measure = measure
        self._known: dict[Value, Number | None] = {}

    def of(self, value: Value | None) -> Number | None:
        """What a value is; None when that is not known.

        Raises:
            Fails: computing it raises on this rank.
        """
        if value is None or value.depth > _DEEPEST:
            return None
        if value not in self._known:
            self._known[value] = None
            self._known[value] = self._computed(value)
        return self._known[value]

    def whole(self, value: Value | None) -> int | None:
        """The same for an integer."""
        known = self.of(value)
        return int(known) if isinstance(known, int) else None

    def holds(self, guards: Guards) -> bool | None:
        """Whether conditions hold on this rank; None when one of them is not known."""
        verdicts = [
            _any([_turned(self.of(g.test), g.taken) for g in clause]) for clause in guards.clauses
        ]
        return False if False in verdicts else None if None in verdicts else True

    def chosen(self, value: Value) -> list[Value]:
        """What a value can be on this rank."""
        if not isinstance(value, Either):
            return [value]
        open_ = [(self.holds(guards), one) for guards, one in value.options]
        sure = [one for held, one in open_ if held]
        return sure[:1] or [one for held, one in open_ if held is not False]

    def entries(self, value: Value | None) -> list[Value] | None:
        """The elements of a list or tuple that is written out."""
        if not isinstance(value, Container) or value.open or value.kind not in ("list", "tuple"):
            return None
        keyed = list(self.trace.memory.entries(value))
        plain = all(key == f"[{number}]" for number, (key, _) in enumerate(keyed))
        return [entry for _, entry in keyed] if plain else None

    def _computed(self, value: Value) -> Number | None:
        if isinstance(value, Literal):
            return value.value if isinstance(value.value, int | float) else None
        if isinstance(value, Rank):
            own = (*_SCOPES, *(self.mesh.names or ()))
            return self.rank if value.scope in own else None
        if isinstance(value, MainRank):
            return self.rank == 0 if value.scope == "global" else None
        if isinstance(value, Either):
            found = {self.of(one) for one in self.chosen(value)}
            return found.pop() if len(found) == 1 else None
        if isinstance(value, Not):
            return _turned(self.of(value.test), False)
        if isinstance(value, Logic):
            return self._logic(value)
        if isinstance(value, Part):
            return self._attribute(value) if isinstance(value.key, str) else self._operation(value)
        return None

    def _logic(self, value: Logic) -> bool | None:
        if value.operator == "and":
            return _turned(_any([_turned(self.of(o), False) for o in value.operands]), False)
        return _any([_turned(self.of(o), True) for o in value.operands])

    def _attribute(self, value: Part) -> Number | None:
        if value.key == "['WORLD_SIZE']":
            return self.world
        found = _ELEMENT.fullmatch(str(value.key))
        return None if found is None else self._element(value.owner, int(found[1]))

    def _operation(self, value: Part) -> Number | None:
        if not value.operation:
            return None
        name, rest = value.operation, value.operands
        operands = [v for v in rest if isinstance(v, Value)]
        if name in _OPERATIONS and operands:
            return self._binary(name, value.owner, operands, reversed_="reversed" in rest)
        if name == "Minus":
            number = self.of(value.owner)
            return None if number is None else -number
        if name == "int":
            number = None if operands else self.of(value.owner)
            return None if number is None else int(number)
        if name == "len":
            return self._length(value.owner)
        if name == "[]" and len(operands) == 1:
            index = self.whole(operands[0])
            return None if index is None else self._element(value.owner, index)
        if self._counts_ranks(value, operands):
            return self.world
        return self._result(value)

    def _binary(
        self, name: str, left: Value, right: list[Value], *, reversed_: bool
    ) -> Number | None:
        numbers = [self.of(v) for v in (left, *right)]
        known = [n for n in numbers if n is not None]
        if len(known) < len(numbers) or (len(known) > 2 and name not in ("min", "max")):
            return None
        first, *others = reversed(known) if reversed_ else known
        try:
            for other in others:
                first = _OPERATIONS[name](first, other)
        except ArithmeticError:
            raise Fails from None
        return first

    def _counts_ranks(self, value: Part, operands: list[Value]) -> bool:
        """Whether this is ``dist.get_world_size()`` or the size of the mesh."""
        if value.operation != "call":
            return False
        if value.owner is self.mesh:
            return value.operands[:1] == (".size",)
        name = getattr(value.owner, "name", "")
        return name == "torch.distributed.get_world_size" and not operands

    def _length(self, value: Value) -> int | None:
        entries = self.entries(value)
        if entries is not None:
            return len(entries)
        shape = self.measure(value)
        return shape[0] if shape else None

    def _element(self, owner: Value, index: int) -> Number | None:
        entries = self.entries(owner)
        if entries is not None:
            return self.of(picked(entries, index))
        if isinstance(owner, Part) and owner.key in (".shape", (".size()",)):
            if owner.owner is self.mesh:
                return self.world
            shape = self.measure(owner.owner)
            return None if shape is None else picked(shape, index)
        called = results(self.trace).get(owner)
        if called is not None and called.name == "builtins.divmod":
            pair = [self.of(v) for v in called.arguments]
            if pair[0] is None or not pair[1]:
                return None
            return picked(divmod(pair[0], pair[1]), index)
        return None

    def _result(self, value: Part) -> Number | None:
        called = results(self.trace).get(value)
        if called is None or called.open:
            return None
        if called.name in _ROUNDING:
            number = self.of(called.argument(0, "x"))
            return None if number is None else _ROUNDING[called.name](number)
        if called.name == ".size" and called.receiver is not None:
            index = self.whole(called.argument(0, "dim"))
            shape = None if index is None else self.measure(called.receiver)
            return None if shape is None or index is None else picked(shape, index)
        return None


def picked(sequence: Sequence[T], index: int) -> T:
    """An element of a sequence.

    Raises:
        Fails: it is not there.
    """
    if not -len(sequence) <= index < len(sequence):
        raise Fails
    return sequence[index]


@once
def results(trace: Trace) -> dict[Value, Called]:
    """The calls of the script by what they return, the first of those that return the same."""
    found: dict[Value, Called] = {}
    for called in trace.of(Called):
        for one in options(called.result):
            found.setdefault(one, called)
    return found


def _turned(number: Number | None, taken: bool) -> bool | None:
    return None if number is None else bool(number) is taken


def _any(verdicts: list[bool | None]) -> bool | None:
    return True if True in verdicts else None if None in verdicts else False
