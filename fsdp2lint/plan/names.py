"""Modules and parameters by the names that the script's author gave them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from fsdp2lint.plan.data import Tensor

_WRAPPERS = frozenset({"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"})
"""Attributes under which FSDP1, checkpoint wrappers and ``torch.compile`` keep what they wrap."""


def whole_models() -> list[nn.Module]:
    """The modules that hold sharded ones and are held by none."""
    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    inner = {id(child) for module in modules for child in module._modules.values()}
    tops = [module for module in modules if id(module) not in inner]
    sharded = {id(top): {id(m) for m in top.modules() if is_parallel(m)} for top in tops}
    models = [top for top in tops if sharded[id(top)]]
    # a list of some of a model's blocks, as a slice makes it, is no model
    parts = [one for one in models if any(sharded[id(one)] < sharded[id(top)] for top in models)]
    return sorted((one for one in models if one not in parts), key=_rank)


def _rank(model: nn.Module) -> tuple[str, int, bool]:
    """An order that does not depend on how a model is sharded; the one that trains comes first."""
    frozen = not any(parameter.requires_grad for parameter in model.parameters())
    return kind(model), sum(1 for _ in model.modules()), frozen


def is_parallel(module: nn.Module) -> bool:
    """Whether a module is one that FSDP or DDP wraps; one whose constructor failed is none."""
    if isinstance(module, FullyShardedDataParallel | DistributedDataParallel):
        return bool(module._modules)
    return isinstance(module, FSDPModule)


def kind(model: nn.Module) -> str:
    """The class of a model as the script wrote it."""
    if isinstance(model, FullyShardedDataParallel | DistributedDataParallel):
        return kind(model.module)
    if isinstance(model, FSDPModule):
        return type(model).__mro__[2].__name__  # FSDPBlock, FSDPModule, Block
    return type(model).__name__


def clean(name: str, model: nn.Module) -> str:
    """A dotted name below a model without the parts that wrappers add."""
    parts = [part for part in name.split(".") if part and part not in _WRAPPERS]
    if isinstance(model, DistributedDataParallel) and parts[:1] == ["module"]:
        del parts[0]
    return ".".join(parts)


def modules_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules with their clean names, each once."""
    for name, module in model.named_modules():
        yield clean(name, model), module


def tensor(name: str, parameter: Any, shape: Any = None) -> Tensor:
    """A parameter as data."""
    size = parameter.shape if shape is None else shape
    return Tensor(name, tuple(size), dtype(parameter.dtype), parameter.requires_grad)


def dtype(of: object) -> str:
    """``bfloat16`` for ``torch.bfloat16``."""
    return str(of).removeprefix("torch.")
