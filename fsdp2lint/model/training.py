"""Values of a training script: wrapped modules, parameters, optimizers, state dicts, meshes, ranks."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.model.basic_values import (
    MAX_DEPTH,
    External,
    Part,
    Value,
    is_whole,
)
from fsdp2lint.model.code import Instance, Module


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


def rank_dependent(test: Value) -> bool:
    """Whether ``test`` can come out differently on different ranks for certain reasons of rank."""
    if test.ranked is None:
        test.ranked = _asks_for_a_rank(test)
    return test.ranked


def _asks_for_a_rank(test: Value) -> bool:
    todo, seen = [test], {test}
    while todo:
        one = todo.pop()
        if one.ranked or isinstance(one, Rank | MainRank):
            return True
        if one.ranked is False:
            continue
        if isinstance(one, Part) and (not one.operation or is_whole(one)):
            continue
        inside = one.made_of
        todo += [v for v in inside if v not in seen]
        seen.update(inside)
    return False


def of_world_size(value: Value | None) -> bool:
    """Whether a value is the number of ranks, or computed with it."""
    todo, seen = [value], 0
    while todo and seen < MAX_DEPTH**2:
        one = todo.pop()
        seen += 1
        if isinstance(one, External) and one.name == "torch.distributed.get_world_size":
            return True
        if isinstance(one, Part):
            if one.key == "['WORLD_SIZE']":
                return True
            todo += one.made_of
    return False


def unwrapped(value: Value) -> Value:
    """The module inside wrappers that keep its identity (compile, checkpoint, DDP, FSDP1)."""
    while isinstance(value, Wrapped):
        value = value.of
    return value


def root(value: Value) -> Value:
    """The object that a value is a part of, or of whose parts it is one; else the value."""
    while isinstance(value, Part):
        value = value.owner
    return value


def parts_along(value: Value | None) -> Iterator[Part]:
    """A part, the part that it is a part of, and so on: ``a.b.c`` and ``a.b``; nothing for a whole."""
    while isinstance(value, Part):
        yield value
        value = value.owner


def wrappers_around(value: object) -> Iterator[Wrapped]:
    """The wrappers around a module, the outermost first."""
    while isinstance(value, Wrapped):
        yield value
        value = value.of


def of_model(value: Value) -> bool:
    """Whether a value is a model, an optimizer, parameters or a state, or something inside one."""
    return isinstance(root(value), Module | Wrapped | Optimizer | Parameters | StateDict)


def made_like_another(value: Value) -> bool:
    """Whether a tensor was made by ``torch.zeros_like`` or its like."""
    made = value.owner if isinstance(value, Part) and value.operation else None
    name = made.name if isinstance(made, External) else ""
    return name.startswith("torch.") and name.endswith("_like")


def of_buffers(value: Value | None) -> bool:
    """Whether a value is a buffer that a walk over those of a module gives."""
    return any(one.key in (".buffers()", ".named_buffers()") for one in parts_along(value))


def of_parameters(value: Value | None) -> bool:
    """Whether a value is made of parameters: of those of a module, or of what torch's layers call theirs."""
    while isinstance(value, Part):
        if value.key in (".weight", ".bias"):
            return True
        value = value.owner
    return isinstance(value, Parameters) or (
        isinstance(value, Instance)
        and isinstance(value.cls, External)
        and value.cls.name == "torch.nn.Parameter"
    )
