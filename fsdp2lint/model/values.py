"""What names stand for during a run.

Values never change; what happens to them is in the trace. They are compared by identity, and their
parts are interned: ``cfg.part(".fsdp")`` is the same object wherever the script writes ``cfg.fsdp``.
That makes equal tests correlate and lets ``model.layers`` in one function meet ``self.model.layers``
in another. Attributes that the script assigns live in the machine's memory, not here.

A part whose owner is unknown is as good a subject as any: ``fully_shard(model)`` says something about
``model`` although nobody knows its class.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import libcst as cst

    from fsdp2lint.model.guards import Guards
    from fsdp2lint.source import Site


class Value:
    """Anything a name can stand for.

    ``owner`` and ``key`` say of what it is a part; ``label`` is what the script calls it; ``seat`` the
    object that holds it and under which name, when it was stored before anybody called it anything.
    """

    __slots__ = ("_parts", "key", "label", "owner", "seat")

    nameless = False
    """Whether it is called nothing until the script binds or stores it."""

    owner: Value | None
    key: Hashable
    label: str
    seat: tuple[Value, str] | None

    def __init__(self, label: str = "") -> None:
        self.owner = None
        self.key = None
        self.label = label
        self.seat = None
        self._parts: dict[Hashable, Value] | None = None

    def part(self, key: Hashable) -> Value:
        """The part called ``key`` (``".layers"``, ``"[0]"``): always the same object for the same key."""
        if self._parts is None:
            self._parts = {}
        known = self._parts.get(key)
        if known is None:
            known = self._parts[key] = Part(self, key)
        return known

    def keep(self, key: Hashable, value: Value) -> Value:
        """Intern ``value`` as the part called ``key``, or return the one that is there."""
        if self._parts is None:
            self._parts = {}
        return self._parts.setdefault(key, value)

    def words(self) -> str:
        """What the script would call it."""
        if self.label:
            return self.label
        if self.seat is not None:
            holder, suffix = self.seat
            return holder.words() + suffix
        return self.describe()

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


class Part(Value):
    """An attribute, an element or the result of an operation of something not known more closely."""

    __slots__ = ()

    owner: Value

    def __init__(self, owner: Value, key: Hashable) -> None:
        super().__init__()
        self.owner = owner
        self.key = key

    @property
    def name(self) -> str | None:
        """The attribute's name, when this is an attribute."""
        return self.key[1:] if isinstance(self.key, str) and self.key.startswith(".") else None

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
    """Something whose origin is not seen: a parameter of an entry, the result of unseen code."""

    __slots__ = ()
    nameless = True


class Literal(Value):
    """A constant: number, string, bool, None, bytes or Ellipsis."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value

    def describe(self) -> str:
        return repr(self.value)


class External(Value):
    """A name that lives outside the project: ``torch.distributed.fsdp.fully_shard``."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def describe(self) -> str:
        return self.name


class Function(Value):
    """A function or lambda of the project, with the scope it was made in."""

    __slots__ = ("decorators", "defaults", "home", "kind", "name", "node", "scope", "setter")

    def __init__(
        self,
        name: str,
        node: cst.FunctionDef | cst.Lambda,
        scope: Any,
        defaults: dict[str, Value],
        kind: str = "",
    ) -> None:
        super().__init__(name)
        self.name = name
        self.node = node
        self.scope = scope
        self.defaults = defaults
        self.kind = kind  # "", "property", "staticmethod", "classmethod", "contextmanager"
        self.decorators: tuple[Value, ...] = ()
        self.home: Class | None = None  # the class whose body defines it
        self.setter: Function | None = None  # of a property

    def describe(self) -> str:
        return self.name


class Bound(Value):
    """A function of the project bound to its first argument."""

    __slots__ = ("function", "receiver")

    def __init__(self, function: Function, receiver: Value) -> None:
        super().__init__()
        self.function = function
        self.receiver = receiver

    def describe(self) -> str:
        return f"{self.receiver.words()}.{self.function.name}"


class Partial(Value):
    """``functools.partial(call, …)``."""

    __slots__ = ("args", "call", "keywords", "open")

    def __init__(
        self, call: Value, args: tuple[Value, ...], keywords: dict[str, Value], open_: bool
    ) -> None:
        super().__init__()
        self.call = call
        self.args = args
        self.keywords = keywords
        self.open = open_

    def describe(self) -> str:
        return f"partial({self.call.words()})"


class Class(Value):
    """A class of the project."""

    __slots__ = ("bases", "name", "node", "scope")

    def __init__(self, name: str, node: cst.ClassDef, bases: tuple[Value, ...], scope: Any) -> None:
        super().__init__(name)
        self.name = name
        self.node = node
        self.bases = bases
        self.scope = scope  # the class body's names

    def describe(self) -> str:
        return self.name


class Super(Value):
    """``super()``: looks names up above ``cls`` for ``receiver``."""

    __slots__ = ("cls", "receiver")

    def __init__(self, cls: Class, receiver: Value) -> None:
        super().__init__("super()")
        self.cls = cls
        self.receiver = receiver


class Instance(Value):
    """An object: of a class of the project, or of one outside it."""

    __slots__ = ("born", "cls")
    nameless = True

    def __init__(self, cls: Value, born: Site | None = None) -> None:
        super().__init__()
        self.cls = cls
        self.born = born

    def describe(self) -> str:
        return f"{self.cls.words()}(…)"


class Module(Instance):
    """An ``nn.Module`` that the script has built."""

    __slots__ = ()


class Wrapped(Value):
    """What a wrapper returned: ``by`` is ``fsdp1``, ``ddp``, ``compile`` or ``checkpoint``."""

    __slots__ = ("by", "of")
    nameless = True

    def __init__(self, of: Value, by: str) -> None:
        super().__init__()
        self.of = of
        self.by = by

    def describe(self) -> str:
        return f"{self.by}({self.of.words()})"


class Container(Value):
    """A list, tuple, set or dict of the script; its entries live in the machine's memory."""

    __slots__ = ("kind", "open")
    nameless = True

    def __init__(self, kind: str, open_: bool = False) -> None:
        super().__init__()
        self.kind = kind
        self.open = open_  # it may hold more than the entries that are known

    def describe(self) -> str:
        return f"a {self.kind}"


class Parameters(Value):
    """The parameters of a module.

    ``taken`` is the order at which they were read into memory. A generator that nobody has consumed
    yet is not taken: ``model.parameters()`` reads the model when it is iterated.
    """

    __slots__ = ("named", "of", "taken")

    def __init__(self, of: Value, taken: int | None, named: bool = False) -> None:
        super().__init__()
        self.of = of
        self.taken = taken
        self.named = named

    def describe(self) -> str:
        return f"{self.of.words()}.{'named_' if self.named else ''}parameters()"


class Optimizer(Value):
    """An optimizer; ``over`` are the parameter snapshots that it was given."""

    __slots__ = ("cls", "over")
    nameless = True

    def __init__(self, cls: Value, over: tuple[Parameters, ...]) -> None:
        super().__init__()
        self.cls = cls
        self.over = over

    def describe(self) -> str:
        return f"{self.cls.words()}(…)"


class StateDict(Value):
    """A state dict.

    ``kind`` is ``model``, ``optimizer`` or ``both``; ``full`` tells whether it holds whole tensors
    (None: not known); ``offloaded`` whether it lives on the CPU of rank 0 only; ``via`` the call that
    made it; ``taken`` its order.
    """

    __slots__ = ("full", "kind", "of", "offloaded", "taken", "via")
    nameless = True

    def __init__(
        self,
        of: Value,
        kind: str,
        *,
        full: bool | None,
        offloaded: bool | None,
        via: str,
        taken: int,
    ) -> None:
        super().__init__()
        self.of = of
        self.kind = kind
        self.full = full
        self.offloaded = offloaded
        self.via = via
        self.taken = taken

    def describe(self) -> str:
        return f"{self.of.words()}.state_dict()"


class Future(Value):
    """What ``async_save`` returned."""

    __slots__ = ("call",)
    nameless = True

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call

    def describe(self) -> str:
        return f"the future of {self.call}"


class Mesh(Value):
    """A device mesh; ``names`` are its dimension names when they are known."""

    __slots__ = ("names",)
    nameless = True

    def __init__(self, names: tuple[str, ...] | None) -> None:
        super().__init__()
        self.names = names

    def describe(self) -> str:
        return "a device mesh"


class Rank(Value):
    """A number that differs from rank to rank; ``scope`` is ``global``, ``local`` or a dimension."""

    __slots__ = ("scope",)

    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope

    def describe(self) -> str:
        return "rank" if self.scope == "global" else f"{self.scope} rank"


class MainRank(Value):
    """The test "this is the first rank" of a scope."""

    __slots__ = ("scope",)

    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope

    def describe(self) -> str:
        return "rank == 0" if self.scope == "global" else f"{self.scope} rank == 0"


class Not(Value):
    """``not test``."""

    __slots__ = ("test",)

    def __init__(self, test: Value) -> None:
        super().__init__()
        self.test = test

    def describe(self) -> str:
        return f"not {self.test.words()}"


class Logic(Value):
    """``a and b``, ``a or b`` of tests."""

    __slots__ = ("operands", "operator")

    def __init__(self, operator: str, operands: tuple[Value, ...]) -> None:
        super().__init__()
        self.operator = operator
        self.operands = operands

    def describe(self) -> str:
        return f" {self.operator} ".join(o.words() for o in self.operands)


class Either(Value):
    """One of several values, each with the guards under which it is the one."""

    __slots__ = ("options",)

    def __init__(self, options: tuple[tuple[Guards, Value], ...]) -> None:
        super().__init__()
        self.options = options

    def describe(self) -> str:
        return " or ".join(dict.fromkeys(v.words() for _, v in self.options))


def rank_dependent(test: Value) -> bool:
    """Whether ``test`` can come out differently on different ranks for certain reasons of rank."""
    seen: Value | None = test
    while seen is not None:
        if isinstance(seen, Rank | MainRank):
            return True
        if isinstance(seen, Not):
            seen = seen.test
            continue
        if isinstance(seen, Logic):
            return any(rank_dependent(o) for o in seen.operands)
        if isinstance(seen, Part) and isinstance(seen.key, tuple):
            if any(isinstance(o, Value) and rank_dependent(o) for o in seen.key[1:]):
                return True
            seen = seen.owner
            continue
        return False
    return False


def unwrapped(value: Value) -> Value:
    """The module inside wrappers that keep its identity (compile, checkpoint, DDP, FSDP1)."""
    while isinstance(value, Wrapped):
        value = value.of
    return value
