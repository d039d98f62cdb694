"""Reads a plan off the models and optimizers that a process has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from fsdp2lint.plan import names
from fsdp2lint.plan.data import Model, Plan, Unit
from fsdp2lint.plan.reading import ddp, fsdp1, fsdp2, optimizers


def read(script: str, world: int, built: list[Optimizer]) -> Plan:
    """All sharded models, and the optimizers in the order in which they were built."""
    held: dict[int, list[str]] = {}
    models = tuple(_model(model, held) for model in names.whole_models())
    trainers = tuple(optimizers.read(optimizer, held) for optimizer in built)
    return Plan(script, world, models, trainers, tuple(_notes(models, trainers)))


def _model(model: nn.Module, held: dict[int, list[str]]) -> Model:
    units: list[Unit] = []
    covered: set[int] = set()
    for reader in (fsdp1, fsdp2, ddp):
        for unit, tensors in reader.units(model):
            units.append(unit)
            covered.update(tensors)
            held |= tensors
    loose = []
    size = 0
    for name, parameter in _parameters(model):
        if id(parameter) in covered:
            continue
        held[id(parameter)] = [name]
        loose.append(names.tensor(name, parameter))
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        size += local.numel() * local.element_size()
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    return Model(names.kind(model), tuple(units), tuple(loose), size, buffers)


def _parameters(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, parameter in model.named_parameters():
        yield names.clean(name, model), parameter


def _notes(models: tuple[Model, ...], trainers: tuple[Any, ...]) -> Iterator[str]:
    if not models:
        yield "no model was sharded"
    if not trainers:
        yield "no optimizer was built"
    for trainer in trainers:
        if trainer.state is None:
            yield f"how much state `{trainer.kind}` keeps could not be tried"
        strangers = sum(group.strangers for group in trainer.groups)
        if strangers:
            yield f"`{trainer.kind}` holds {strangers} tensors that are no parameters of a sharded model"
