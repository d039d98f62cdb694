"""What names stand for during a run.

Values never change; what happens to them is in the trace. They are compared by identity, and their
parts are interned: ``cfg.part(".fsdp")`` is the same object wherever the script writes ``cfg.fsdp``.
That makes equal tests correlate and lets ``model.layers`` in one function meet ``self.model.layers``
in another. Attributes that the script assigns live in the machine's memory, not here.

A part whose owner is unknown is as good a subject as any: ``fully_shard(model)`` says something about
``model`` although nobody knows its class.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fsdp2lint.model.code import Function
    from fsdp2lint.model.guards import Clause, Guards
    from fsdp2lint.source.source import Site


MAX_DEPTH = 5
"""Operations nested deeper than this are neither spelled out nor taken apart."""


def deeper(*values: Value) -> int:
    """The depth of an operation on these."""
    return 1 + max((v.depth for v in values), default=0)


class Value:
    """Anything a name can stand for.

    ``owner`` and ``key`` say of what it is a part; ``label`` is what the script calls it; ``seat`` the
    object that holds it and under which name, when it was stored before anybody called it anything.
    """

    __slots__ = ("_parts", "asked", "depth", "key", "label", "owner", "ranked", "seat")

    nameless = False
    """Whether it is called nothing until the script binds or stores it."""

    nesting = 0
    """How many tests are nested in it that have to be taken apart to say what holds where it is true."""

    owner: Value | None
    key: Hashable
    label: str
    seat: tuple[Value, str] | None
    depth: int
    """How many operations are nested in it: ``x = x + x`` in a loop must not be followed to its leaves."""

    def __init__(self, label: str = "") -> None:
        self.depth = 0
        self.owner = None
        self.key = None
        self.label = label
        self.seat = None
        self.ranked: bool | None = None  # whether it differs from rank to rank, once somebody asked
        self._parts: dict[Hashable, Value] | None = None
        self.asked: dict[tuple[bool, int], frozenset[Clause]] | None = (
            None  # kept by `guards.asked`
        )

    @property
    def operation(self) -> str:
        """The name of the operation whose result this is (``"+"``, ``"call"``); empty for an attribute or an element."""
        return str(self.key[0]) if isinstance(self.key, tuple) else ""

    @property
    def operands(self) -> tuple[Any, ...]:
        """What the operation gets besides its owner: values, and what it is."""
        return self.key[1:] if isinstance(self.key, tuple) else ()

    @property
    def made_of(self) -> tuple[Value, ...]:
        """The values that this is a part or the result of, and the sides of a test."""
        return ()

    def part(self, key: Hashable) -> Value:
        """The part called ``key`` (``".layers"``, ``"[0]"``): always the same object for the same key."""
        if self._parts is None:
            self._parts = {}
            note(self)
        known = self._parts.get(key)
        if known is None:
            known = self._parts[key] = Part(self, key)
        return known

    def keep(self, key: Hashable, value: Value) -> Value:
        """Intern ``value`` as the part called ``key``, or return the one that is there."""
        if self._parts is None:
            self._parts = {}
            note(self)
        return self._parts.setdefault(key, value)

    def forget(self) -> None:
        """Let go of what knows this value and is known by it."""
        self._parts = None

    def forget_guards(self) -> None:
        """Let go of the guards about it."""
        self.asked = None

    def parts(self) -> tuple[Value, ...]:
        """The parts of it that the script has asked for so far."""
        return tuple((self._parts or {}).values())

    def words(self) -> str:
        """What the script would call it."""
        if self.label:
            return self.label
        if self.seat is not None:
            holder, suffix = self.seat
            return holder.words() + suffix
        return self.describe() if self.depth <= MAX_DEPTH else "…"

    def describe(self) -> str:
        """What it is, when the script has no name for it."""
        return type(self).__name__.lower()

    def sit(self, holder: Value, suffix: str) -> None:
        """Remember where it is stored, unless it has a name or a place already."""
        if not self.nameless or self.label or self.seat is not None:
            return
        above: Value | None = holder
        while above is not None:
            if above is self:
                return
            above = above.seat[0] if above.seat is not None else above.owner
        self.seat = (holder, suffix)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.words()})"


class Circular(Protocol):
    """Something that knows others which know it."""

    def forget(self) -> None:
        """Let go of them."""


_circular: list[Circular] = []


def note(one: Circular) -> None:
    """Remember that this came to know others which know it."""
    _circular.append(one)


def noted() -> int:
    """How many were noted and are not forgotten."""
    return len(_circular)


def taken(since: int) -> list[Circular]:
    """What was noted since then, for whoever forgets it in its time."""
    made = _circular[since:]
    spare(since)
    return made


def forget(since: int) -> None:
    """The run is over that began when so many were noted: what it made goes, which it would not by itself."""
    for one in taken(since):
        one.forget()


def spare(since: int) -> None:
    """What was noted since then goes when nobody has it any more and the collector comes by."""
    del _circular[since:]


class GuardKeeper(Protocol):
    """Something that keeps guards which it could make again."""

    def forget_guards(self) -> None:
        """Let go of them."""


_keepers: list[GuardKeeper] = []


def keeps_guards(one: GuardKeeper) -> None:
    """Remember that this keeps guards."""
    _keepers.append(one)


def forget_guards() -> None:
    """Let go of the guards that are kept."""
    for one in _keepers:
        one.forget_guards()
    _keepers.clear()


class Part(Value):
    """An attribute, an element or the result of an operation of something not known more closely."""

    __slots__ = ()

    owner: Value

    def __init__(self, owner: Value, key: Hashable) -> None:
        self.owner = owner
        self.key = key
        self.label = ""
        self.seat = None
        self.ranked = None
        self._parts = None
        self.asked = None
        depth = owner.depth
        if isinstance(key, tuple):
            for operand in key:
                if isinstance(operand, Value) and operand.depth > depth:
                    depth = operand.depth
            depth += 1
        self.depth = depth

    @property
    def name(self) -> str | None:
        """The attribute's name, when this is an attribute."""
        return self.key[1:] if isinstance(self.key, str) and self.key.startswith(".") else None

    @property
    def made_of(self) -> tuple[Value, ...]:
        return (self.owner, *(one for one in self.operands if isinstance(one, Value)))

    @property
    def nameless(self) -> bool:  # type: ignore[override]
        """Only the result of one particular call has no name of its own."""
        return (
            isinstance(self.key, tuple) and self.key[0] == "call" and isinstance(self.key[-1], int)
        )

    def describe(self) -> str:
        owner = self.owner.words()
        if isinstance(self.key, str):
            return f"{owner}{self.key}"
        if isinstance(self.key, Round):
            return f"{owner}[*]"
        if isinstance(self.key, tuple):
            return _operation_words(owner, self.key)
        return f"{owner}[{self.key}]"


class OneOf(Part):
    """A part that is one of a few constants: an option of the command line with ``choices``."""

    __slots__ = ("constants",)

    def __init__(self, owner: Value, key: str, constants: tuple[object, ...]) -> None:
        super().__init__(owner, key)
        self.constants = constants
        """Those; none once the program may have given it another."""

    @staticmethod
    def loosen(owner: Value) -> None:
        """The attributes of ``owner`` may be set to anything, under names that are not known."""
        for part in owner.parts():
            if isinstance(part, OneOf):
                part.constants = ()


class Round:
    """The key of "the element that the n-th round of a loop sees"."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Round) and other.number == self.number

    def __hash__(self) -> int:
        return hash((Round, self.number))


def _operation_words(owner: str, key: tuple[Any, ...]) -> str:
    operator, *operands = key
    said = [o.words() if isinstance(o, Value) else str(o) for o in operands]
    if operator == WHOLE:
        return owner
    if operator == "call" and operands and isinstance(operands[-1], int):
        return f"{owner.rpartition('.')[2]}(…)"
    if operator == "call":
        return f"{owner}({', '.join(said)})"
    if isinstance(operator, str) and operator.startswith("."):
        return owner + operator
    if operator == "format":
        return f"f{operands[0]!r}"
    if operator.isidentifier() and operator not in ("in", "is"):
        return f"{operator}({', '.join([owner, *said])})"
    if operator.startswith("["):
        return f"{owner}[{', '.join(said)}]"
    return " ".join([owner, str(operator), *said])


class Unknown(Value):
    """Something whose origin is not seen: a parameter of an entry, the result of unseen code.

    ``born`` is the place of the code that gave it, ``given_by`` the name of what was called there where that
    has one, ``inside`` the project's function that was running.
    """

    __slots__ = ("born", "given_by", "inside")
    nameless = True

    def __init__(
        self,
        label: str = "",
        born: Site | None = None,
        given_by: str = "",
        inside: Function | None = None,
    ) -> None:
        super().__init__(label)
        self.born = born
        self.given_by = given_by
        self.inside = inside


class Literal(Value):
    """A constant: number, string, bool, None, bytes or Ellipsis."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value

    def describe(self) -> str:
        return repr(self.value)


class Default(Literal):
    """What a setting holds where nobody chooses: None, an empty text or 0; a test of it may come out either way."""

    __slots__ = ("setting",)

    def __init__(self, value: object, setting: Value) -> None:
        super().__init__(value)
        self.setting = setting
        """What holds it, whatever it is."""


class External(Value):
    """A name that lives outside the project: ``torch.distributed.fsdp.fully_shard``."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def describe(self) -> str:
        return self.name.removeprefix("builtins.")


class Not(Value):
    """``not test``."""

    __slots__ = ("test",)

    def __init__(self, test: Value) -> None:
        super().__init__()
        self.test = test
        self.depth = test.depth

    @property
    def nesting(self) -> int:  # type: ignore[override]
        return self.test.nesting

    @property
    def made_of(self) -> tuple[Value, ...]:
        return (self.test,)

    def describe(self) -> str:
        return f"not {self.test.words()}"


class Logic(Value):
    """``a and b``, ``a or b`` of tests."""

    __slots__ = ("nesting", "operands", "operator")

    def __init__(self, operator: str, operands: tuple[Value, ...]) -> None:
        super().__init__()
        self.operator = operator
        self.operands = operands  # type: ignore[misc]
        self.depth = deeper(*operands)
        self.nesting = 1 + max((one.nesting for one in operands), default=0)

    @property
    def made_of(self) -> tuple[Value, ...]:
        return self.operands

    def describe(self) -> str:
        return f" {self.operator} ".join(o.words() for o in self.operands)


def computed_from(value: Value) -> Iterator[Value]:
    """``value`` and all that it is made of, each once."""
    todo, seen = [value], {value}
    while todo:
        one = todo.pop()
        yield one
        inside = [part for part in one.made_of if part not in seen]
        todo += inside
        seen.update(inside)


CHOICE = "is option"
"""The operation of tests that tell the options of an :class:`Either` apart; no script asks them."""

WHOLE = "as a whole"
"""The operation of tests that stand for a long one, of whose sides not all can be said."""


def is_choice(test: Value) -> bool:
    """Whether a test only tells the options of an :class:`Either` apart."""
    return isinstance(test.key, tuple) and test.key[0] == CHOICE


def is_whole(test: Value) -> bool:
    """Whether a test stands for a long one."""
    return isinstance(test.key, tuple) and test.key[0] == WHOLE


def tests_in(test: Value) -> tuple[Value, ...]:
    """What is tested: of a test that stands for a long one, each test that that one is made of."""
    whole = test.owner
    if whole is None or not is_whole(test):
        return (test,)
    each = whole.operands if isinstance(whole, Logic) else (whole,)
    if isinstance(whole, Either):
        each = tuple(value for _, value in whole.options)
    return tuple(one.test if isinstance(one, Not) else one for one in each)


class Either(Value):
    """One of several values, each with the guards under which it is the one."""

    __slots__ = ("_apart", "nesting", "options")

    def __init__(self, options: tuple[tuple[Guards, Value], ...]) -> None:
        super().__init__()
        self.options = options
        self._apart: tuple[tuple[Guards, Value], ...] | None = None
        self.depth = deeper(*(value for _, value in options))
        self.nesting = 1 + max((value.nesting for _, value in options), default=0)

    def apart(self) -> tuple[tuple[Guards, Value], ...]:
        """The options under guards that exclude each other: in one run it is one of them, not two."""
        if self._apart is None:
            self._apart = self._exclusive()
            keeps_guards(self)
        return self._apart

    def _exclusive(self) -> tuple[tuple[Guards, Value], ...]:
        guards = [g for g, _ in self.options]
        if all(a.excludes(b) for i, a in enumerate(guards) for b in guards[:i]):
            return self.options
        refused: frozenset[Clause] = frozenset()
        found = []
        last = len(self.options) - 1
        for number, (guard, value) in enumerate(self.options):
            test = self.part((CHOICE, number))
            chosen, refused = guard.chosen(test, refused, last=number == last)
            found.append((chosen, value))
        return tuple(found)

    def forget_guards(self) -> None:
        super().forget_guards()
        self._apart = None

    def describe(self) -> str:
        return " or ".join(dict.fromkeys(v.words() for _, v in self.options))
