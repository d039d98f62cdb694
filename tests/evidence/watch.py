"""Watchers that run beside a script inside a rank and never change what it does.

They use PyTorch's global optimizer hooks and wrap `torch.save`, `torch.load` and three private functions of FSDP2's
parameter groups (gather, reduce, "now unsharded"); everything they know is handed out by `Watch.seen`.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp._fully_shard._fsdp_param_group as param_group
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .costs import Costs, takes_closure
from .results import Seen, TensorSeen

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


class Watch:
    """Observes training steps and sharded units of one rank; `folder` is where the script's files are."""

    def __init__(self, folder: Path) -> None:
        self._costs = Costs(folder)
        self._models: list[nn.Module] = []
        self._first: dict[str, torch.Tensor] = {}
        self._tensors: dict[str, TensorSeen] = {}
        self._flat: set[str] = set()
        self._steps = 0
        self._units: set[int] = set()
        self._counts: Counter[str] = Counter()
        self._stacked: dict[str, int] = {}
        self._written: list[str] = []
        self._read: list[str] = []

    def install(self) -> None:
        """Start to observe; call once per process, before the script runs."""
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        self._count_calls("foreach_all_gather", "gathers")
        self._count_calls("foreach_reduce", "reductions")
        self._note_files()
        self._costs.install()
        unsharded = param_group.FSDPParamGroup._to_unsharded

        def note_unit(group: Any) -> None:
            self._note_unit(group)
            unsharded(group)  # type: ignore[no-untyped-call]

        param_group.FSDPParamGroup._to_unsharded = note_unit  # type: ignore[method-assign]

    def seen(self) -> dict[str, Any]:
        """Everything observed so far, ready for JSON."""
        return asdict(
            Seen(
                steps=self._steps,
                tensors=self._tensors,
                units=len(self._units),
                gathers=self._counts["gathers"],
                reductions=self._counts["reductions"],
                stacked=self._stacked,
                written=self._written,
                read=self._read,
                **self._costs.counted(),
            )
        )

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if _rehearses(optimizer):
            return
        self._models += _roots(known=self._models)
        for name, parameter in self._trainable():
            self._first.setdefault(name, _local(parameter))
        if not takes_closure(optimizer, args, kwargs):
            self._costs.before_step()

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        if _rehearses(optimizer):
            return
        self._steps += 1
        self._costs.after_step()
        for name, parameter in self._trainable():
            now, first = _local(parameter), self._first[name]
            before = self._tensors.get(name)
            trained = now.shape == first.shape and not torch.equal(now, first)
            self._tensors[name] = TensorSeen(
                trained=trained or (before is not None and before.trained),
                sharded=isinstance(parameter, DTensor) or name in self._flat,
                digest=hashlib.sha1(now.double().numpy().tobytes()).hexdigest(),
            )

    def _trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        for number, model in enumerate(self._models):
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    if _is_fsdp1(model):
                        self._flat.add(f"{number}:{name}")
                    yield f"{number}:{name}", parameter

    def _count_calls(self, function: str, word: str) -> None:
        original: Callable[..., Any] = getattr(param_group, function)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._counts[word] += 1
            return original(*args, **kwargs)

        setattr(param_group, function, counted)

    def _note_files(self) -> None:
        save = torch.save

        def noted(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(f, str | os.PathLike):
                self._written.append(os.path.relpath(f))
            save(obj, f, *args, **kwargs)

        torch.save = noted
        load = torch.load

        def noted_load(f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, str | os.PathLike) and not kwargs.get("mmap"):
                self._read.append(os.path.relpath(f))
            return load(f, *args, **kwargs)

        torch.load = noted_load

    def _note_unit(self, group: Any) -> None:
        if id(group) in self._units:
            return
        self._units.add(id(group))
        own = {id(held._module_info.module) for held in group.fsdp_params}
        for module in group.modules:
            for container in module.modules():
                if isinstance(container, _CONTAINERS):
                    self._note_blocks(container, own)

    def _note_blocks(self, container: nn.Module, own: set[int]) -> None:
        blocks = Counter(
            type(child).__name__
            for child in container.children()
            if any(child.children()) and any(id(part) in own for part in child.modules())
        )
        for name, count in blocks.items():
            if count > 1:
                self._stacked[name] = max(count, self._stacked.get(name, 0))


def _rehearses(optimizer: Optimizer) -> bool:
    """Whether this is the zero-lr step by which the state-dict getters create Adam's state."""
    return all(group["lr"] == 0.0 for group in optimizer.param_groups)


def _is_fsdp1(model: nn.Module) -> bool:
    """Whether FSDP1 alone shards a model: its parameters are shards without being DTensors."""
    kinds = {
        kind
        for m in model.modules()
        for kind in (FullyShardedDataParallel, FSDPModule)
        if isinstance(m, kind)
    }
    return kinds == {FullyShardedDataParallel}


def _roots(known: list[nn.Module]) -> list[nn.Module]:
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    inner = {id(child) for module in modules for child in module._modules.values()}
    skip = inner | {id(module) for module in known}
    return [module for module in modules if id(module) not in skip]


def _local(parameter: torch.Tensor) -> torch.Tensor:
    tensor = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return tensor.detach().clone()
