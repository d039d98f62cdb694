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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.fsdp._runtime_utils import _reshard as reshard_unit
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from fsdp2lint.plan.names import kind
from fsdp2lint.rehearse.contract.bytes import local
from fsdp2lint.rehearse.contract.watch import parameters_of
from fsdp2lint.rehearse.gather.copies import Copies
from fsdp2lint.rehearse.results import BUILD, COPY, Build

Settings = dict[str, dict[str, float]]
"""By parameter: the settings of its group, the group's number, steps made."""

CHUNK = 64 * 1024 * 1024
"""Bytes of values that are written as one file."""

KINDS = ("parameters", "buffers", "peaks", "states")

_PREFIXES = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "_flat_param")
_save = torch.save
_SHARDED = (FSDPModule, FullyShardedDataParallel, DistributedDataParallel)


class Models:
    """The models that a run trains or shards."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self.roots: list[nn.Module] = []
        self.others: list[nn.Module] = []
        """Modules of the same classes that nothing shards or trains, as averages are."""
        self.copies = Copies()
        self.optimizers: list[Any] = []
        self.began: list[Settings] = []
        """Of each optimizer, the settings with which it first stepped."""

    def look(self, optimizer: Any) -> bool:
        """Note the models when an optimizer steps for the first time; whether this is that time."""
        if id(optimizer) in self._seen:
            return False
        self._seen.add(id(optimizer))
        self.optimizers.append(optimizer)
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        for root in models_of(held):
            if all(root is not known for known in self.roots):
                self.roots.append(root)
        kinds = set(map(kind, self.roots))
        known = {id(root) for root in (*self.roots, *self.others)}
        self.others += [
            root
            for root in _roots()
            if id(root) not in known and kind(root) in kinds and _has_values(root)
        ]
        self.copies.look(self.roots)
        self.began.append(dict(_settings(optimizer, self.roots)))
        return True


def _roots() -> list[nn.Module]:
    """The modules inside no other, in an order that all ranks share."""
    gc.collect()  # a model given up on one rank may be gone on another
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    inner = {id(child) for module in modules for child in module._modules.values()}
    roots = [module for module in modules if id(module) not in inner]
    return sorted(roots, key=lambda root: type(root).__qualname__)


def models_of(held: set[int]) -> list[nn.Module]:
    """The models that are sharded, or have one of these parameters, named by ``id``."""
    return [root for root in _roots() if _concerned(root, held)]


def _has_values(root: nn.Module) -> bool:
    parameters = list(nn.Module.parameters(root))
    return bool(parameters) and all(p.device.type != "meta" for p in parameters)


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

    def of(self, parameter: Any) -> torch.Tensor | None:
        """Those of one parameter; None where it never had a gradient."""
        known = self._peaks.get(id(parameter))
        return None if known is None else known[1]


@contextmanager
def in_place(root: nn.Module, values: Callable[[Any], torch.Tensor | None]) -> Iterator[None]:
    """Put other values where this rank's parts of the parameters are, so that they are gathered as those are."""
    parts = [(p, local(p)) for p in nn.Module.parameters(root)]
    kept = [part.clone() for _, part in parts]
    try:
        for parameter, part in parts:
            value = values(parameter)
            part.zero_() if value is None else part.copy_(value)
        yield
    finally:
        for (_, part), value in zip(parts, kept, strict=True):
            part.copy_(value)


class Writer:
    """Collects named values of one model on rank 0 and writes them in files of bounded size."""

    def __init__(self, folder: Path, model: str) -> None:
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
        name = f"{self._model}-{self._files:04}.pt"
        _save(self._held, self._folder / name)
        self._files += 1
        self._held = {kind: {} for kind in KINDS}
        self._bytes = 0


def write(models: Models, peaks: Peaks, folder: Path) -> None:
    """Gather every model on all ranks; rank 0 writes. A collective where models are sharded."""
    rank = os.environ.get("RANK", "0")  # also where the script has no process group
    first = rank == "0"
    folder.mkdir(parents=True, exist_ok=True)
    for number, root in enumerate(models.roots):
        _reshard(root)
        writer = Writer(folder, f"{number:02}" if first else f"{number:02}-rank{rank}")
        add: Callable[[str, str, torch.Tensor], None] = writer.add if first else _forget
        on = "" if first else f" on rank {rank}"
        with torch.no_grad():
            for name, value in nn.Module.named_buffers(root, remove_duplicate=False):
                writer.add("buffers", clean(root, name) + on, value)
            for name, value in full_parameters(root):
                add("parameters", name, value)
            with in_place(root, peaks.of):
                for name, value in full_parameters(root):
                    add("peaks", name, value)
            for slot, values in _slots(models.optimizers, root):
                with in_place(root, values):
                    for name, value in full_parameters(root):
                        add("states", f"{name}: {slot}", value)
        writer.flush()
        with torch.no_grad():
            shapes = _write_parts(models.copies, root, folder / f"{COPY}-{number:02}", first)
            if first:
                _write_whole(models.copies, root, shapes, folder / f"{COPY}-{number:02}-whole")
    if first:
        for number, root in enumerate(models.others):
            held = {clean(root, n): p.detach() for n, p in _named(root, "")}
            _save((True, held), folder / f"{COPY}-module-{number:02}.pt")
        settings = [dict(_settings(one, models.roots)) for one in models.optimizers]
        layouts = dict(_layouts(models.roots))
        build = Build([_order(root) for root in models.roots], layouts, settings, models.began)
        (folder / BUILD).write_bytes(msgspec.json.encode(build))


def _write_parts(
    copies: Copies, root: nn.Module, target: Path, first: bool
) -> dict[str, torch.Size]:
    """Gather and write what containers hold of a model's parts; the shapes of its whole parameters."""
    for number, (moved, held) in enumerate(_on_all_ranks(root, copies.in_parts(root))):
        with in_place(root, lambda parameter, held=held: held.get(id(parameter))):  # type: ignore[misc]
            full = {name: value.detach().clone() for name, value in full_parameters(root)}
        if first:
            _save((moved, full), target.with_name(f"{target.name}-{number:02}.pt"))
    return {name: value.shape for name, value in full_parameters(root)}


def _write_whole(
    copies: Copies, root: nn.Module, shapes: Mapping[str, torch.Size], target: Path
) -> None:
    held = copies.whole(shapes, lambda name: clean(root, name))
    for number, copy in enumerate(held):
        _save(copy, target.with_name(f"{target.name}-{number:02}.pt"))


def _on_all_ranks(
    root: nn.Module, found: list[tuple[bool, dict[int, torch.Tensor]]]
) -> Iterator[tuple[bool, dict[int, torch.Tensor]]]:
    """The containers that every rank has, in one order: gathering is a collective.

    They are sorted by the parameters that they hold a value for. A rank can have one more, a list that nothing has let go
    of yet: where the ranks have not as many of a kind, none of these is taken.
    """
    places = {id(p): place for place, p in enumerate(nn.Module.parameters(root))}
    kinds: dict[tuple[int, ...], list[tuple[bool, dict[int, torch.Tensor]]]] = {}
    for one in found:
        kinds.setdefault(tuple(sorted(places[key] for key in one[1])), []).append(one)
    counts = {kind: len(ones) for kind, ones in kinds.items()}
    every: list[dict[tuple[int, ...], int]] = [counts]
    if dist.is_initialized():
        every = [counts] * dist.get_world_size()
        dist.all_gather_object(every, counts)
    for which in sorted(counts):
        if all(theirs.get(which) == counts[which] for theirs in every):
            yield from kinds[which]


def _reshard(root: nn.Module) -> None:
    """Leave every rank its own part of the parameters, and free what was gathered.

    After an evaluation the root is left gathered, and `SHARD_GRAD_OP` keeps the memory of what it gathered.
    """
    for module in root.modules():
        handle = getattr(module, "_handle", None)
        if isinstance(module, FSDPModule):
            module.reshard()
        elif isinstance(module, FullyShardedDataParallel) and handle is not None:
            if handle.uses_sharded_strategy:
                reshard_unit(module, handle, True)


def _slots(
    optimizers: Iterable[Any], root: nn.Module
) -> Iterator[tuple[str, Callable[[Any], torch.Tensor | None]]]:
    """What optimizers keep of each parameter, by the name of it: what is as large as this rank's part of it.

    All ranks have the same names, whether or not they hold a part: gathering is a collective.
    """
    held = {id(parameter): local(parameter).shape for parameter in nn.Module.parameters(root)}
    found: dict[str, dict[int, torch.Tensor]] = {}
    for optimizer in optimizers:
        for parameter, slots in optimizer.state.items():
            for slot, value in slots.items() if isinstance(slots, dict) else ():
                if isinstance(value, torch.Tensor) and id(parameter) in held:
                    part = local(value)
                    if part.dim() and part.shape == held[id(parameter)]:
                        found.setdefault(str(slot), {})[id(parameter)] = part
    for slot in _agreed(sorted(found)):
        parts = found.get(slot, {})
        yield slot, lambda parameter, parts=parts: parts.get(id(parameter))  # type: ignore[misc]


def _agreed(names: list[str]) -> list[str]:
    """The names that any rank has, the same on all."""
    if not dist.is_initialized():
        return names
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, names)
    return sorted({name for held in every for name in held})


def _settings(optimizer: Any, roots: Sequence[nn.Module]) -> Iterator[tuple[str, dict[str, float]]]:
    """For each trained parameter its optimizer's settings, the number of its group, and its count of steps."""
    names = dict(_names(roots))
    for number, group in enumerate(optimizer.param_groups):
        numbers = dict(_numbers(group))
        for parameter in group["params"]:
            held = optimizer.state.get(parameter, {})
            steps = dict(_numbers({"step": held.get("step")})) if isinstance(held, dict) else {}
            for name in names.get(id(parameter), ()) if parameter.requires_grad else ():
                yield name, {"group": float(number), **numbers, **steps}


def _numbers(group: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in group.items():
        if isinstance(value, bool | int | float) or (
            isinstance(value, torch.Tensor) and value.numel() == 1
        ):
            yield key, float(value)
        elif isinstance(value, list | tuple) and key != "params":
            yield from _numbers({f"{key}[{place}]": one for place, one in enumerate(value)})


def _names(roots: Sequence[nn.Module]) -> Iterator[tuple[int, list[str]]]:
    """For each parameter its clean name; for a flat one those of what it holds."""
    layouts = dict(_layouts(roots))
    for root in roots:
        for name, parameter in nn.Module.named_parameters(root):
            own = clean(root, name)
            layout = layouts.get(own) if name.endswith("_flat_param") else None
            prefix = f"{own}." if own else ""
            yield id(parameter), [prefix + n for n, *_ in layout if n] if layout else [own]


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
