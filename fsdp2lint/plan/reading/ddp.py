"""``DistributedDataParallel`` as one unit that is nowhere sharded.

Its gradients are averaged in buckets whose number is known only after the first backward
(``torch/nn/parallel/distributed.py``); the bytes do not depend on it, so they count as one call.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fsdp2lint.plan import names
from fsdp2lint.plan.data import Traffic, Transfer, Unit


def units(model: nn.Module) -> Iterator[tuple[Unit, dict[int, list[str]]]]:
    """Each module under DDP, and the names of its parameters by ``id``."""
    for name, module in names.modules_of(model):
        if isinstance(module, DistributedDataParallel) and names.is_parallel(module):
            yield _unit(name, module)


def _unit(name: str, module: DistributedDataParallel) -> tuple[Unit, dict[int, list[str]]]:
    held, tensors, stored, trained = {}, [], 0, 0
    dtypes = set()
    for own, parameter in module.module.named_parameters():
        full = ".".join(part for part in (name, names.clean(own, module.module)) if part)
        held[id(parameter)] = [full]
        tensors.append(names.tensor(full, parameter))
        size = parameter.numel() * parameter.element_size()
        stored += size
        trained += size if parameter.requires_grad else 0
        dtypes.add(names.dtype(parameter.dtype))
    dtype = ", ".join(sorted(dtypes))
    traffic = Traffic(reduced=Transfer(1, trained) if trained else Transfer())
    unit = Unit(
        name,
        tuple(tensors),
        "ddp",
        shards=1,
        replicas=module.process_group.size(),
        reshard=False,
        param_dtype=dtype,
        reduce_dtype=dtype,
        stored=stored,
        padding=0,
        full=stored,
        gradients=trained,
        traffic=traffic,
    )
    return unit, held
