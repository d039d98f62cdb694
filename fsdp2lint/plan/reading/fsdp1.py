"""The units of ``FullyShardedDataParallel``, read off its flat parameters.

Facts from ``torch/distributed/fsdp``: a unit is one ``FlatParameter`` cut into equal shards, aligned and
padded (``_flat_param.py``, ``FlatParamHandle``); ``FULL_SHARD`` frees it after forward except at the root
(``_runtime_utils.py``, ``_post_forward``); gradients are reduced as one tensor in the reduce dtype and
kept in the parameters' own (``_reduce_grad``); without shards they are averaged whole. What is recomputed
in backward finds the unit gathered, but for reentrant checkpointing around it, which runs forward a second
time on its own (measured over gloo, torch 2.13); calls of ``torch.utils.checkpoint`` cannot be seen here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from fsdp2lint.plan import names
from fsdp2lint.plan.data import Tensor, Traffic, Transfer, Unit

_FREED = (ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD)
_HYBRID = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)


def units(model: nn.Module) -> Iterator[tuple[Unit, dict[int, list[str]]]]:
    """Each unit, and the names of the tensors that an optimizer may hold of it, by ``id``."""
    root = next((m for m in model.modules() if isinstance(m, FullyShardedDataParallel)), None)
    again = {id(inner) for wrapper in _reentrant(model) for inner in wrapper.modules()}
    for name, module in names.modules_of(model):
        if isinstance(module, FullyShardedDataParallel) and module._handle is not None:
            yield _unit(name, module, module is root, id(module) in again), _held(name, module)


def _reentrant(model: nn.Module) -> Iterator[nn.Module]:
    """The wrappers whose forward runs without gradients first, and again in backward."""
    for module in model.modules():
        if isinstance(module, CheckpointWrapper):
            if module.checkpoint_impl is CheckpointImpl.REENTRANT:
                yield module


def _unit(name: str, module: FullyShardedDataParallel, root: bool, again: bool) -> Unit:
    handle: Any = module._handle
    flat = handle.flat_param
    sharded = handle.uses_sharded_strategy
    shards = handle.world_size if sharded else 1
    strategy = module.sharding_strategy
    replicas = 1 if sharded else handle.world_size
    if strategy in _HYBRID:
        replicas = module._inter_node_pg.size()
    reshard = strategy in _FREED and not root
    full = flat.numel() * shards
    real = sum(flat._numels)
    own, computed, reduced = (
        dtype.itemsize for dtype in (flat.dtype, handle._fwd_bwd_param_dtype, handle._reduce_dtype)
    )
    gathers = 0 if shards == 1 else 1 + reshard + (reshard and again)
    trained = bool(flat.requires_grad)
    averages = trained and replicas > 1
    return Unit(
        name,
        tuple(_tensors(name, flat)),
        "fsdp1",
        shards,
        replicas,
        reshard,
        names.dtype(handle._fwd_bwd_param_dtype),
        names.dtype(handle._reduce_dtype),
        flat.numel() * own,
        max(flat.numel() - -(-real // shards), 0) * own,
        full * computed,
        flat.numel() * own if trained else 0,
        Traffic(
            Transfer(gathers, gathers * full * computed),
            Transfer(1, full * reduced) if trained and shards > 1 else Transfer(),
            Transfer(1, flat.numel() * reduced) if averages else Transfer(),
        ),
    )


def _tensors(name: str, flat: Any) -> Iterator[Tensor]:
    dtype = names.dtype(flat.dtype)
    originals = flat._params or [None] * len(flat._fqns)
    for fqn, shape, original in zip(flat._fqns, flat._shapes, originals, strict=True):
        trained = flat.requires_grad if original is None else original.requires_grad
        yield Tensor(_full(name, fqn), tuple(shape), dtype, bool(trained))


def _held(name: str, module: FullyShardedDataParallel) -> dict[int, list[str]]:
    flat: Any = module._handle.flat_param  # type: ignore[union-attr]
    fqns = [_full(name, fqn) for fqn in flat._fqns]
    held = {id(flat): fqns}
    for original, fqn in zip(flat._params or (), fqns, strict=False):
        held[id(original)] = [fqn]
    return held


def _full(unit: str, fqn: str) -> str:
    cleaned = names.clean(fqn, torch.nn.Module())
    return f"{unit}.{cleaned}" if unit else cleaned
