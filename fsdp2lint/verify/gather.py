"""The final values of a run, gathered to full tensors and written down by rank 0.

FSDP1's flat shards and FSDP2's DTensors come to the same full tensors under the same clean names. One
unit or one parameter is gathered at a time and files are written as they fill, so memory stays bounded
by the largest of them. Models are held from the first step on: a script's own names are gone at its end.

Beside each parameter goes the largest gradient that each of its elements ever had: Adam makes full steps
of rounding noise, and only that tells such elements from others.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fsdp2lint.verify.contract.bytes import local
from fsdp2lint.verify.contract.watch import parameters_of
from fsdp2lint.verify.equality.results import BUILD, Build

CHUNK = 64 * 1024 * 1024
"""Bytes of values that are written as one file."""

KINDS = ("parameters", "buffers", "peaks")

_PREFIXES = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "_flat_param")
_save = torch.save
_SHARDED = (FSDPModule, FullyShardedDataParallel, DistributedDataParallel)


class Models:
    """The models that a run trains or shards."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self.roots: list[nn.Module] = []

    def look(self, optimizer: Any) -> None:
        """Note the models when an optimizer steps for the first time."""
        if id(optimizer) in self._seen:
            return
        self._seen.add(id(optimizer))
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        for root in _roots():
            if all(root is not known for known in self.roots) and _concerned(root, held):
                self.roots.append(root)


def _roots() -> list[nn.Module]:
    """The modules inside no other, in an order that all ranks share."""
    gc.collect()  # a model given up on one rank may be gone on another
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    inner = {id(child) for module in modules for child in module._modules.values()}
    roots = [module for module in modules if id(module) not in inner]
    return sorted(roots, key=lambda root: type(root).__qualname__)


def _concerned(root: nn.Module, held: set[int]) -> bool:
    if any(isinstance(module, _SHARDED) for module in root.modules()):
        return True
    return any(id(parameter) in held for parameter in nn.Module.parameters(root))


class Peaks:
    """The largest absolute gradient of every element of this rank's part of each parameter."""

    def __init__(self) -> None:
        self._peaks: dict[int, tuple[Any, torch.Tensor]] = {}

    def look(self, optimizer: Any) -> None:
        """Take in the gradients that an optimizer is about to step with."""
        for parameter in parameters_of(optimizer):
            if parameter.grad is None or parameter.grad.is_sparse:
                continue
            now = local(parameter.grad).abs().to(local(parameter).dtype)
            known = self._peaks.get(id(parameter))
            peak = now.clone() if known is None else torch.maximum(known[1], now)
            self._peaks[id(parameter)] = (parameter, peak)

    @contextmanager
    def in_place(self, root: nn.Module) -> Iterator[None]:
        """Put the peaks where the parameters are, so that they are gathered as those are."""
        parts = [(id(p), local(p)) for p in nn.Module.parameters(root)]
        values = [part.clone() for _, part in parts]
        try:
            for key, part in parts:
                known = self._peaks.get(key)
                part.zero_() if known is None else part.copy_(known[1])
            yield
        finally:
            for (_, part), value in zip(parts, values, strict=True):
                part.copy_(value)


class Writer:
    """Collects named values of one model on rank 0 and writes them in files of bounded size."""

    def __init__(self, folder: Path, model: int) -> None:
        self._folder, self._model = folder, model
        self._files = 0
        self._held: dict[str, dict[str, torch.Tensor]] = {kind: {} for kind in KINDS}
        self._bytes = 0

    def add(self, kind: str, name: str, value: torch.Tensor) -> None:
        """Keep a copy of a value; ``kind`` is one of :data:`KINDS`."""
        copy = value.detach().cpu().clone()
        self._held[kind][name] = copy
        self._bytes += copy.numel() * copy.element_size()
        if self._bytes >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        name = f"{self._model:02}-{self._files:04}.pt"
        _save(self._held, self._folder / name)
        self._files += 1
        self._held = {kind: {} for kind in KINDS}
        self._bytes = 0


def write(models: Models, peaks: Peaks, folder: Path) -> None:
    """Gather every model on all ranks; rank 0 writes. A collective where models are sharded."""
    first = os.environ.get("RANK", "0") == "0"  # also where the script has no process group
    folder.mkdir(parents=True, exist_ok=True)
    for number, root in enumerate(models.roots):
        writer = Writer(folder, number)
        add: Callable[[str, str, torch.Tensor], None] = writer.add if first else _forget
        with torch.no_grad():
            for name, value in full_parameters(root):
                add("parameters", name, value)
            for name, value in nn.Module.named_buffers(root, remove_duplicate=False):
                add("buffers", clean(root, name), value)
            with peaks.in_place(root):
                for name, value in full_parameters(root):
                    add("peaks", name, value)
        if first:
            writer.flush()
    if first:
        build = Build([_order(root) for root in models.roots], dict(_layouts(models.roots)))
        (folder / BUILD).write_bytes(msgspec.json.encode(build))


def _order(root: nn.Module) -> list[str]:
    return [clean(root, name) for name, _ in nn.Module.named_parameters(root)]


def _layouts(roots: Iterable[nn.Module]) -> Iterator[tuple[str, list[tuple[str, Any, int]]]]:
    """For each FSDP1 unit by its clean name: its parameters and paddings in their order.

    Each has its name in the unit, its shape and its length; a padding has no name (``_flat_param.py``).
    """
    for root in roots:
        for name, module in root.named_modules():
            handle = getattr(module, "_handle", None)
            if not isinstance(module, FullyShardedDataParallel) or handle is None:
                continue
            flat = handle.flat_param
            inner = module._fsdp_wrapped_module
            own = (clean(inner, fqn) for fqn in flat._fqns)
            named = zip(own, map(tuple, flat._shapes), strict=True)
            made = [
                ("", (), length) if padding else (*next(named), length)
                for padding, length in zip(
                    flat._is_padding_mask, flat._numels_with_padding, strict=True
                )
            ]
            yield clean(root, name) if name else "", made


def _forget(kind: str, name: str, value: torch.Tensor) -> None:
    """Other ranks only take part."""


def full_parameters(root: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter by its clean name, gathered one by one; shared ones under each name."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # after an evaluation the root is left gathered
    units = {
        name: module
        for name, module in root.named_modules(remove_duplicate=False)
        if isinstance(module, FullyShardedDataParallel)
    }
    for place, unit in units.items():
        with FullyShardedDataParallel.summon_full_params(unit, recurse=False, writeback=False):
            for name, parameter in _named(unit, place):
                if _owner(name, units) == place:
                    yield clean(root, name), parameter
    for name, parameter in _named(root, ""):
        if _owner(name, units) is None:
            value = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            yield clean(root, name), value


def _named(module: nn.Module, prefix: str) -> list[tuple[str, torch.Tensor]]:
    # not the method of FSDP1, which edits names while parameters are gathered
    return list(nn.Module.named_parameters(module, prefix=prefix, remove_duplicate=False))


def _owner(name: str, units: Iterable[str]) -> str | None:
    """The innermost FSDP1 unit that a parameter is in."""
    around = [unit for unit in units if not unit or name.startswith(f"{unit}.")]
    return max(around, key=len, default=None)


def clean(root: nn.Module, name: str) -> str:
    """A parameter's name without the wrappers on its way: FSDP1, DDP, checkpointing, compile."""
    parts: list[str] = []
    at: Any = root
    for part in name.split("."):
        if part not in _PREFIXES and not (
            part == "module" and isinstance(at, DistributedDataParallel)
        ):
            parts.append(part)
        at = getattr(at, part, None)
    return ".".join(parts)
