"""What a script shards and how, as data that travels through JSON: sizes in bytes on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

Api = Literal["fsdp1", "fsdp2", "ddp"]
Option = bool | int | float | str | None | tuple[float, ...]


class Tensor(msgspec.Struct, frozen=True):
    """A parameter as the model defines it, before anything is sharded."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True


class Transfer(msgspec.Struct, frozen=True):
    """Collectives of one kind: how many, and the bytes of their full buffers.

    The full buffer is what an all-gather gives each rank, what a rank puts into a reduce-scatter, and
    what an all-reduce averages; a ring moves ``(n - 1) / n`` of the first two over a rank's link and
    twice that of the last.
    """

    calls: int = 0
    size: int = 0

    def __add__(self, other: Transfer) -> Transfer:
        return Transfer(self.calls + other.calls, self.size + other.size)


class Traffic(msgspec.Struct, frozen=True):
    """What is communicated in one forward and backward."""

    gathered: Transfer = Transfer()
    scattered: Transfer = Transfer()
    reduced: Transfer = Transfer()

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.gathered + other.gathered,
            self.scattered + other.scattered,
            self.reduced + other.reduced,
        )


class Unit(msgspec.Struct, frozen=True):
    """Parameters that are gathered and reduced together."""

    name: str
    """The module that was wrapped or sharded; empty for the model itself."""
    tensors: tuple[Tensor, ...]
    api: Api
    shards: int
    replicas: int
    reshard: bool
    """Whether the parameters are freed between forward and backward."""
    param_dtype: str
    reduce_dtype: str
    stored: int
    """What the rank keeps, padding included."""
    padding: int
    full: int
    """The unit's parameters while they are gathered."""
    gradients: int
    traffic: Traffic

    @property
    def title(self) -> str:
        """The name, or ``(root)``."""
        return self.name or "(root)"


class Model(msgspec.Struct, frozen=True):
    """A module tree with sharded parts."""

    kind: str
    units: tuple[Unit, ...]
    loose: tuple[Tensor, ...] = ()
    """Parameters that no unit has: every rank keeps them whole."""
    loose_bytes: int = 0
    buffer_bytes: int = 0


class Group(msgspec.Struct, frozen=True):
    """A parameter group of an optimizer."""

    options: dict[str, Option]
    names: tuple[str, ...]
    """The parameters by their names in the model; those of a flat parameter one by one."""
    strangers: int = 0
    """Tensors that are no model's parameters."""


class Optimizer(msgspec.Struct, frozen=True):
    """An optimizer and the bytes of state that it will keep; None when it could not be tried."""

    kind: str
    groups: tuple[Group, ...]
    state: int | None


class Activations(msgspec.Struct, frozen=True):
    """What a step computes beside parameters and their gradients."""

    kept: int
    """When the backward pass begins."""
    peak: int
    """The most at one time in forward and backward."""


class Plan(msgspec.Struct, frozen=True):
    """What a script would do on so many ranks, seen from rank 0."""

    script: str
    world: int
    models: tuple[Model, ...]
    optimizers: tuple[Optimizer, ...]
    notes: tuple[str, ...] = ()
    activations: Activations | None = None
    """None where the script's step could not be followed."""

    @property
    def units(self) -> Iterator[Unit]:
        """Those of all models."""
        return (unit for model in self.models for unit in model.units)


class Amounts(msgspec.Struct, frozen=True):
    """The sums over a plan, for one rank."""

    parameters: int
    padding: int
    replicated: int
    """Parameters outside units, and buffers."""
    gradients: int
    optimizer: int | None
    kept: int
    """Gathered parameters that stay from forward to backward."""
    largest: int
    """The largest unit among the others, gathered."""
    pair: int
    """The two largest: one is computed while the next one comes."""
    traffic: Traffic
    activations: Activations | None = None

    @property
    def together(self) -> int | None:
        """What a step needs at most."""
        if self.optimizer is None or self.activations is None:
            return None
        held = self.parameters + self.replicated + self.gradients + self.optimizer
        return held + self.kept + self.pair + self.activations.peak


def amounts(plan: Plan) -> Amounts:
    """What a plan adds up to."""
    units = list(plan.units)
    states = [optimizer.state for optimizer in plan.optimizers]
    freed = [unit for unit in units if unit.reshard]
    held = [unit for unit in units if not unit.reshard and unit.shards > 1]
    return Amounts(
        sum(unit.stored for unit in units),
        sum(unit.padding for unit in units),
        sum(model.loose_bytes + model.buffer_bytes for model in plan.models),
        sum(unit.gradients for unit in units),
        None if None in states else sum(state or 0 for state in states),
        sum(unit.full for unit in held),
        max((unit.full for unit in freed), default=0),
        sum(sorted(unit.full for unit in freed)[-2:]),
        sum((unit.traffic for unit in units), Traffic()),
        plan.activations,
    )
