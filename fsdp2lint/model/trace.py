"""The record of one run, and the questions that rules ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, wraps
from heapq import merge
from typing import TYPE_CHECKING, TypeVar

from fsdp2lint.model.events import Called, Escaped, Event
from fsdp2lint.model.values import Either, Parameters, Part, StateDict, Value, unwrapped
from fsdp2lint.system.derived import Derives

if TYPE_CHECKING:
    from libcst import CSTNode

    from fsdp2lint.frameworks.asked import Asked, Launch
    from fsdp2lint.frameworks.options import AskingCommand
    from fsdp2lint.model.hints import Limits
    from fsdp2lint.model.memory import Memory
    from fsdp2lint.source.source import Site, Source
    from fsdp2lint.system.files import Files
    from fsdp2lint.torch_api import Release

E = TypeVar("E", bound=Event)
T = TypeVar("T")


class Trace(Derives):
    """What happened on one way through the project, from one entry.

    ``truncated`` is true when the walk ran out of budget: then nothing is ever certain not to happen.
    ``files`` are the files as the run sees them. ``target`` is the oldest torch release that the code is
    for; None when nobody named it.
    """

    def __init__(
        self,
        entry: str,
        source: Source,
        memory: Memory,
        files: Files,
        target: Release | None = None,
    ) -> None:
        self.entry = entry
        self.source = source
        self.memory = memory
        self.files = files
        self.target = target
        self.limits: Limits = ()
        """The newest releases of frameworks that the project allows, as its dependencies say."""
        self.settings: Asked | None = None
        """How the settings file asks for FSDP that this trace is about; nothing happens in it."""
        self.commands: tuple[AskingCommand, ...] = ()
        """The commands that ask for FSDP in the file that this trace is about; nothing happens in it."""
        self.launches: tuple[Launch, ...] = ()
        """How this script is launched with FSDP; of a settings file, the launches of scripts that use it."""
        self.truncated = False
        self.cut: tuple[str, Site] | None = None
        """The limit that the run met first, in words, and where; None where it met none."""
        self.unread: dict[str, tuple[str, Site]] = {}
        """The imported files that a limit leaves unread: which limit, in words, and who imports them."""
        self.visited: set[CSTNode] = set()
        self.events: list[Event] = []
        self._by_kind: dict[type[Event], list[Event]] = {}
        self._places: dict[str, list[int]] = {}
        self._indexed = 0
        self._giving: dict[Value, list[Called]] = {}
        self._asked_of = 0

    def cut_short(self, limit: str, at: Site) -> None:
        """A limit ends the walk early (the interpreter says so)."""
        self.truncated = True
        if self.cut is None:
            self.cut = limit, at

    def add(self, event: Event) -> None:
        """Write an event down (the interpreter does)."""
        self.events.append(event)
        self._by_kind.setdefault(type(event), []).append(event)

    def aim(self, target: Release | None) -> None:
        """Be asked for another torch release: what was answered for the last one does not count."""
        self.target = target
        self.forget_derived()

    def begun(self, entry: str) -> Trace:
        """The trace of another entry, before which the same has happened."""
        other = Trace(entry, self.source, self.memory, self.files, self.target)
        other.launches = self.launches
        other.truncated, other.cut = self.truncated, self.cut
        other.events = self.events.copy()
        other._by_kind = {kind: events.copy() for kind, events in self._by_kind.items()}
        return other

    def forget(self) -> None:
        """Let go of all that happened: answers know the trace that knows them, so nothing goes by itself."""
        self.events = []
        self.visited = set()
        self._indexed = 0
        self._asked_of = 0
        self.forget_derived()
        for known in (self._by_kind, self._places, self._giving):
            known.clear()

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The files in which something happens, the one where the run begins first."""
        found = {self.source: None}
        for event in self.events:
            found[event.moment.at.source] = None
        return tuple(found)

    def of(self, kind: type[E]) -> list[E]:
        """All events of a kind, in order."""
        return self._by_kind.get(kind, [])  # type: ignore[return-value]

    def calls(self, *names: str) -> Iterator[Called]:
        """All calls of the functions with these canonical names (``.method`` for methods)."""
        places = self._indexed_calls()
        asked = [places[name] for name in dict.fromkeys(names) if name in places]
        return map(self.of(Called).__getitem__, merge(*asked))

    def calls_named(self, wanted: Callable[[str], bool]) -> Iterator[Called]:
        """All calls of the functions whose canonical names are ``wanted``."""
        return self.calls(*filter(wanted, self._indexed_calls()))

    def _indexed_calls(self) -> dict[str, list[int]]:
        """Where among the calls those of each name are."""
        called = self.of(Called)
        for place in range(self._indexed, len(called)):
            self._places.setdefault(called[place].name, []).append(place)
        self._indexed = len(called)
        return self._places

    def giving(self, value: Value | None) -> Sequence[Called]:
        """The calls that gave ``value``, in order."""
        called = self.of(Called)
        for place in range(self._asked_of, len(called)):
            self._giving.setdefault(called[place].result, []).append(called[place])
        self._asked_of = len(called)
        return () if value is None else self._giving.get(value, ())

    def before(self, event: Event, kind: type[E]) -> Iterator[E]:
        """Events of a kind that surely precede ``event`` on a path they share, latest first."""
        return (e for e in reversed(self.of(kind)) if self.precedes(e, event))

    def after(self, event: Event, kind: type[E]) -> Iterator[E]:
        """Events of a kind that surely follow ``event`` on a path they share."""
        return (e for e in self.of(kind) if self.precedes(event, e))

    def beside(self, event: Event, kind: type[E]) -> Iterator[E]:
        """Events of a kind on a path shared with ``event`` whose order to it is not known."""
        return (
            e
            for e in self.of(kind)
            if unordered(e, event)
            and not (self._led_to(e, event) or self._led_to(event, e))
            and not e.guards.excludes(event.guards)
        )

    def precedes(self, one: Event, other: Event) -> bool:
        """Whether ``one`` surely comes before ``other``, on a path that they share."""
        then, now = one.moment, other.moment
        if then.order >= now.order or (unordered(one, other) and not self._led_to(one, other)):
            return False
        return not then.guards.excludes(now.guards)

    def _led_to(self, one: Event, other: Event) -> bool:
        """Whether ``other`` is about an object that was made in the method in which ``one`` is: that has run before.

        So it has where such an object was used on the way to ``other``, as the model is before a backward.
        """
        made = one.moment.stage
        if not self.memory.begun:
            return False
        if _is_about(self, other, made):
            return True
        return any(
            used.order < other.order and other.guards.implies(used.guards)
            for used in self.derived(_uses, made, other.moment.stage)
        )

    def never(self, kinds: type[Event] | tuple[type[Event], ...], *about: Value) -> bool:
        """Whether no event of these kinds concerns any of the values ``about``, for certain.

        False when the run was truncated or when one of the values was handed to unseen code, came
        from there, or can be reached from there.
        """
        if self.truncated or not all(self.known(v) for v in about):
            return False
        wanted = kinds if isinstance(kinds, tuple) else (kinds,)
        return not any(self.concerns(e, v) for kind in wanted for e in self.of(kind) for v in about)

    def known(self, value: Value) -> bool:
        """Whether all that happens to ``value`` is in this trace: born here, never escaped."""
        return not self.truncated and self.memory.owned(value)

    def kept(self, value: Value) -> bool:
        """Whether no unseen code ever held ``value`` itself: its parameters or its state it may have had.

        Then nobody else can have sharded it, or have switched how its ranks communicate.
        """
        return not self.truncated and self.memory.owned(value, lent=True)

    def escapes(self, value: Value) -> Iterator[Escaped]:
        """Where ``value`` or something that holds it escaped."""
        return iter(self.derived(_escapes, value))

    def holders(self, value: Value) -> frozenset[Value]:
        """``value`` and everything through which it can be reached."""
        return self.derived(_holders, value)

    def written(self, key: str) -> tuple[Value, ...]:
        """The objects of which the script has set an attribute or an entry ``key`` (``.data``)."""
        return self.derived(_written, key)

    def inside(self, part: Value, whole: Value) -> bool:
        """Whether ``part`` is ``whole`` or one of its submodules, as far as the script shows."""
        return unwrapped(whole) in self.around(part)

    def around(self, part: Value) -> frozenset[Value]:
        """A module and all that it hangs below, as far as the script shows."""
        return self.derived(_around, unwrapped(part))

    def concerns(self, event: Event, value: Value) -> bool:
        """Whether an event's own subject is ``value`` (or one of its options)."""
        subjects = {same for s in subjects_of(event) for same in options(s)}
        return any(unwrapped(v) in subjects or v in subjects for v in options(value))

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)


def once(question: Callable[[Trace], T]) -> Callable[[Trace], T]:
    """Mark a question about a trace: it is answered once, and forgotten with the trace."""
    return wraps(question)(lambda trace: trace.derived(question))


def _holders(trace: Trace, value: Value) -> frozenset[Value]:
    return frozenset(trace.memory.holders(value))


def _escapes(trace: Trace, value: Value) -> tuple[Escaped, ...]:
    holders = trace.holders(value)
    every = trace.of(Escaped)
    return tuple(e for e in every if e.value in holders or unwrapped(e.value) in holders)


def _around(trace: Trace, part: Value) -> frozenset[Value]:
    return frozenset(trace.memory.around(part))


def _written(trace: Trace, key: str) -> tuple[Value, ...]:
    return tuple(owner for owner, held in trace.memory.fields.items() if key in held)


def _made(value: Value) -> Value:
    """The object that a value is, or that it is a part of."""
    while isinstance(value, Part | Parameters | StateDict):
        value = unwrapped(value.owner if isinstance(value, Part) else value.of)
    return value


def _is_about(trace: Trace, event: Event, stage: int) -> bool:
    """Whether an event is about an object that was made in a stage."""
    begun = trace.memory.begun
    return any(begun.get(_made(value)) == stage for value in subjects_of(event))


_MOST_USES = 8
"""So many uses of an object are looked at: most of the others happen under more conditions than these."""


def _uses(trace: Trace, made: int, stage: int) -> tuple[Event, ...]:
    """The first events of a stage that are about what was made in another one, none that says less than one before it."""
    found: list[Event] = []
    for event in trace.events:
        if event.moment.stage != stage or len(found) == _MOST_USES:
            continue
        if _is_about(trace, event, made) and not any(event.guards.implies(u.guards) for u in found):
            found.append(event)
    return tuple(found)


def unordered(one: Event, other: Event) -> bool:
    """Whether the two are in different methods that only unseen code calls, in an unknown order."""
    first, second = one.moment.stage, other.moment.stage
    return bool(first and second) and first != second


def options(value: Value) -> tuple[Value, ...]:
    """The values that ``value`` can be."""
    if isinstance(value, Either):
        return tuple(v for _, v in value.options)
    return (value,)


def same(one: Value, other: Value) -> bool:
    """Whether two values are one object, or one of the same objects."""
    return one is other or options(one) == options(other)


def subjects_of(event: Event) -> Iterable[Value]:
    """The values that an event is about: whatever values its own fields hold."""
    for name in type(event).__dataclass_fields__:
        if name == "moment":
            continue
        held = getattr(event, name)
        for value in held if isinstance(held, tuple) else (held,):
            if isinstance(value, Value):
                yield unwrapped(value)
                if value is not unwrapped(value):
                    yield value
