"""A call as a meaning sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from fsdp2lint.model.events import Event, Moment
from fsdp2lint.model.values import (
    Container,
    Either,
    Literal,
    Parameters,
    Part,
    Round,
    StateDict,
    Value,
)

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.source.source import Site

E = TypeVar("E", bound=Event)
MISSING = object()
UNKNOWN = object()
MAX_DEPTH = 6


class Call:
    """One call: its canonical ``name`` (``.method`` for methods), its receiver and its arguments.

    ``open`` is true when ``*args`` or ``**kwargs`` of unknown content were passed too.
    """

    __slots__ = ("args", "keywords", "machine", "name", "open", "receiver", "site")

    def __init__(
        self,
        machine: Machine,
        site: Site,
        name: str,
        receiver: Value | None,
        args: tuple[Value, ...],
        keywords: dict[str, Value],
        open_: bool,
    ) -> None:
        self.machine = machine
        self.site = site
        self.name = name
        self.receiver = receiver
        self.args = args
        self.keywords = keywords
        self.open = open_

    def get(self, position: int, keyword: str = "") -> Value | None:
        """The argument given at ``position`` or as ``keyword``; None when it was left out or is not known."""
        if keyword and keyword in self.keywords:
            return self.keywords[keyword]
        return self.args[position] if 0 <= position < len(self.args) else None

    def constant(self, position: int, keyword: str = "", default: object = MISSING) -> object:
        """The Python constant given, ``default`` when nothing was given, :data:`UNKNOWN` else."""
        value = self.get(position, keyword)
        if value is None:
            return UNKNOWN if self.open else default
        return value.value if isinstance(value, Literal) else UNKNOWN

    @property
    def now(self) -> int:
        """The order of the next event."""
        return self.machine.order

    @property
    def moment(self) -> Moment:
        """The present moment."""
        return self.machine.moment(self.site)

    def emit(self, kind: type[E], /, **fields: Any) -> E:
        """Write an event down, at this call."""
        event = kind(self.machine.moment(self.site), **fields)
        self.machine.record(event)
        return event

    def escape(self, *values: Value) -> None:
        """The values go where nobody can follow them."""
        for value in values:
            self.machine.escape(value, self.site, self.name)

    def escape_arguments(self) -> None:
        """All arguments go where nobody can follow them."""
        self.escape(*self.args, *self.keywords.values())

    def each(self, value: Value | None) -> Iterator[Value]:
        """The values that ``value`` can be, each under its guards while it is looked at."""
        if value is None:
            return
        if not isinstance(value, Either):
            yield value
            return
        here = self.machine.here
        for guards, one in value.apart():
            self.machine.here = here.and_(guards)
            if not self.machine.here.impossible:
                yield one
        self.machine.here = here

    def is_module(self, value: Value | None) -> bool:
        """Whether ``value`` is known to be an ``nn.Module`` (built here, or used as one before)."""
        return value is not None and self.machine.is_module(value)

    def use_as_module(self, value: Value) -> None:
        """Remember that ``value`` is an ``nn.Module``: only those have what was asked of it.

        A constant is none: where ``None`` is written, the program does not come here.
        """
        if not isinstance(value, Literal):
            self.machine.modules_known.add(value)

    def run(self, function: Value, *args: Value, **keywords: Value) -> Value:
        """Call something that the script handed over (``mp.spawn(f)`` calls ``f``)."""
        return self.machine.call(function, args, keywords, self.site)

    def items(self, value: Value) -> list[Value]:
        """The entries of a container, as far as they are known."""
        return [v for _, v in self.machine.memory.entries(value, self.machine.here)]

    def parameters(self, value: Value | None) -> tuple[Parameters, ...]:
        """The parameter snapshots inside ``value`` (lists, groups, filters, chains); generators are read now."""
        found: dict[Parameters, None] = {}
        self._parameters(value, found, 0)
        return tuple(found)

    def _parameters(self, value: Value | None, found: dict[Parameters, None], depth: int) -> None:
        if value is None or depth > MAX_DEPTH:
            return
        if isinstance(value, Parameters):
            found[value if value.taken is not None else self.machine.take(value)] = None
        elif isinstance(value, Part):
            if not keeps_parameters(value):
                return
            self._parameters(value.owner, found, depth + 1)
            for operand in value.key if isinstance(value.key, tuple) else ():
                if isinstance(operand, Value):  # list(a.parameters()) + list(b.parameters())
                    self._parameters(operand, found, depth + 1)
        elif isinstance(value, Either):
            for _, one in value.options:
                self._parameters(one, found, depth + 1)
        elif isinstance(value, Container):
            for one in self.items(value):
                self._parameters(one, found, depth + 1)

    def states(self, value: Value | None) -> tuple[StateDict, ...]:
        """The state dicts inside ``value``: itself, entries of containers, parts of state dicts."""
        found: dict[StateDict, None] = {}
        self._states(value, found, 0)
        return tuple(found)

    def _states(self, value: Value | None, found: dict[StateDict, None], depth: int) -> None:
        if value is None or depth > MAX_DEPTH:
            return
        if isinstance(value, StateDict):
            found[value] = None
        elif isinstance(value, Either):
            for _, one in value.options:
                self._states(one, found, depth + 1)
        elif isinstance(value, Part) and isinstance(state := _taken_from(value), StateDict):
            found[state] = None
        elif isinstance(value, Container):
            for one in self.items(value):
                self._states(one, found, depth + 1)


def _taken_from(part: Part) -> Value:
    """What a part is of, or an entry of, where a loop walks that: ``for key, value in state.items()``."""
    while isinstance(part.owner, Part) and (
        isinstance(part.key, Round) or str(part.key).startswith("[")
    ):
        part = part.owner
    return part.owner


_KEEPING = frozenset({"+", "|", "[:]", "[]", "next", ".detach()"})


def keeps_parameters(part: Part) -> bool:
    """Whether a part of parameters is still them: an element or a slice, not a copy, a number or a name."""
    if isinstance(part.key, tuple):
        return part.key[0] in _KEEPING
    return part.key != ".name"
