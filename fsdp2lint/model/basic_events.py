"""An event of a run, and those that any program has: calls, assignments, departures.

Nobody changes an event. Its class is not ``frozen`` all the same: to make one would take six times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

if TYPE_CHECKING:
    from fsdp2lint.model.guards import Guards
    from fsdp2lint.model.values import Function, Value
    from fsdp2lint.source.source import Site


@dataclass(slots=True, eq=False)
class Moment:
    """When and where: what all events share."""

    at: Site
    order: int
    guards: Guards
    calls: tuple[Site, ...]
    within: tuple[Value, ...]
    inside: tuple[Function, ...] = ()
    """The project functions that are running, outermost first."""
    stage: int = 0
    """Which of several methods that no resolved code calls is running (0: an order that is certain).
    Between two different stages the order is not known."""


@dataclass(slots=True, eq=False)
class Event:
    """Something that happened at a :class:`Moment`."""

    moment: Moment

    @property
    def at(self) -> Site:
        """Where."""
        return self.moment.at

    @property
    def order(self) -> int:
        """When: larger is later."""
        return self.moment.order

    @property
    def guards(self) -> Guards:
        """Under which conditions."""
        return self.moment.guards

    @property
    def calls(self) -> tuple[Site, ...]:
        """The calls of the script that led here, outermost first."""
        return tuple(c for c in self.moment.calls if isinstance(c.node, cst.Call))

    @property
    def within(self) -> tuple[Value, ...]:
        """The context managers that are open, outermost first."""
        return self.moment.within

    def words(self) -> str:
        """What happened, in plain words."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Called(Event):
    """A call whose target is known: ``name`` is its canonical dotted name, ``.method`` for a method."""

    name: str
    receiver: Value | None
    arguments: tuple[Value, ...]
    keywords: dict[str, Value]
    open: bool
    """Whether ``*args`` or ``**kwargs`` of unknown content were passed too."""
    result: Value

    def argument(self, position: int, keyword: str) -> Value | None:
        """The argument given at ``position`` or as ``keyword``."""
        if keyword in self.keywords:
            return self.keywords[keyword]
        return self.arguments[position] if position < len(self.arguments) else None

    def words(self) -> str:
        said = [a.words() for a in self.arguments]
        said += [f"{k}={v.words()}" for k, v in self.keywords.items()]
        name = self.name if self.receiver is None else f"{self.receiver.words()}{self.name}"
        return f"called {name}({', '.join(said)})"


@dataclass(slots=True, eq=False)
class Assigned(Event):
    """An attribute of a module was set: a part replaced, a weight tied."""

    owner: Value
    name: str
    value: Value

    def words(self) -> str:
        return f"assigned {self.owner.words()}.{self.name}"


@dataclass(slots=True, eq=False)
class Read(Event):
    """An attribute was read: one of a module that nothing resolved defines, or a tag of a parameter."""

    owner: Value
    name: str

    def words(self) -> str:
        return f"read {self.owner.words()}.{self.name}"


@dataclass(slots=True, eq=False)
class Operated(Event):
    """An operator was applied and one side is a parameter or the number of ranks, or made of one of them:
    ``p * mask``, ``x @ w.t()``, ``norm / dist.get_world_size()``.
    """

    left: Value
    symbol: str
    right: Value

    def words(self) -> str:
        return f"computed {self.left.words()} {self.symbol} {self.right.words()}"


@dataclass(slots=True, eq=False)
class Augmented(Event):
    """A name was bound anew by ``x += y`` or its like; a tensor is changed in place by it."""

    value: Value
    symbol: str

    def words(self) -> str:
        return f"changed {self.value.words()} by {self.symbol}="


@dataclass(slots=True, eq=False)
class Returned(Event):
    """A module that was called has computed: what it was ``given`` and what came out."""

    module: Value
    given: tuple[Value, ...]
    result: Value

    def words(self) -> str:
        return f"{self.module.words()} returned {self.result.words()}"


@dataclass(slots=True, eq=False)
class Iterated(Event):
    """A loop begins to walk an object of a class outside the project (a loader, a sampler), a set, or an object that was
    :class:`Placed`.
    """

    over: Value

    def words(self) -> str:
        return f"walked {self.over.words()}"


@dataclass(slots=True, eq=False)
class Placed(Event):
    """A function of the project was given by constants, or by its defaults, which of how many processes it is for:
    ``Loader(files, rank=0, world_size=1)``; ``subject`` is the object that is made, or what the function gives; None of
    a generator, which runs then.
    """

    function: Function
    subject: Value | None
    rank: Value
    size: Value

    def words(self) -> str:
        return f"gave {self.function.name} the place {self.rank.words()} of {self.size.words()}"


@dataclass(slots=True, eq=False)
class Written(Event):
    """An attribute of a parameter was set: ``p.data = value``, ``p.requires_grad = False``, ``p.lr_scale = 0.1``."""

    owner: Value
    name: str
    value: Value

    def words(self) -> str:
        return f"wrote {self.owner.words()}.{self.name}"


@dataclass(slots=True, eq=False)
class Filled(Event):
    """Entries of a tensor were set that is a buffer or a parameter, made of one or made like one: ``weight.data[row] = value``."""

    owner: Value
    value: Value

    def words(self) -> str:
        return f"set entries of {self.owner.words()}"


@dataclass(slots=True, eq=False)
class Escaped(Event):
    """A value was handed to code that cannot be followed; ``to`` says to what."""

    value: Value
    to: str

    def words(self) -> str:
        return f"{self.value.words()} escaped to {self.to}"


@dataclass(slots=True, eq=False)
class Exited(Event):
    """The path left its function, its loop or the program: ``how`` is the keyword or the call."""

    how: str
    rank: Guards
    """The guards under which it left."""

    def words(self) -> str:
        return f"left by {self.how}"
