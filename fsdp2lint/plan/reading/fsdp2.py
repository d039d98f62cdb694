"""The groups of ``fully_shard``, read off its state.

Facts from ``torch/distributed/fsdp/_fully_shard``: every parameter is cut and padded along one dimension
by itself (``_fsdp_param.py``, ``_init_sharded_param``); a group is gathered in its parameters' computing
dtypes and reduced in one dtype, only what has a gradient (``_fsdp_collectives.py``, ``foreach_all_gather``
and ``foreach_reduce``); the root is not freed after forward unless that was asked for (``_fsdp_state.py``,
``_lazy_init``); a group over one shard is not gathered (``_fsdp_param_group.py``, ``unshard``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from fsdp2lint.plan import names
from fsdp2lint.plan.data import Tensor, Traffic, Transfer, Unit


def units(model: nn.Module) -> Iterator[tuple[Unit, dict[int, list[str]]]]:
    """Each group, and the names of the tensors that an optimizer may hold of it, by ``id``."""
    by_module = {id(module): name for name, module in names.modules_of(model)}
    seen: set[int] = set()
    root: Any = None
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        state: Any = module._get_fsdp_state()
        root = root or state
        if id(state) in seen:
            continue
        seen.add(id(state))
        for group in groups_of(state):
            fqns = [_fqn(param, by_module) for param in group.fsdp_params]
            # torch 2.7 keeps every root after its forward; later releases when nothing is said
            kept = state is root and bool(getattr(state, "_auto_reshard_after_forward", True))
            title = ", ".join(by_module[id(owner)] for owner in group.modules)
            yield _unit(title, group, fqns, kept), _held(group, fqns)


def groups_of(state: Any) -> list[Any]:
    """The groups of one call; before PyTorch 2.13 there is at most one."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group else []


def _held(group: Any, fqns: list[str]) -> dict[int, list[str]]:
    """Both the tensor that was made by sharding and the one that is in the module now."""
    held = {}
    for param, fqn in zip(group.fsdp_params, fqns, strict=True):
        info = param._module_info
        for tensor in (param.sharded_param, getattr(info.module, info.param_name)):
            held[id(tensor)] = [fqn]
    return held


def _fqn(param: Any, by_module: dict[int, str]) -> str:
    owner = by_module[id(param._module_info.module)]
    own: str = param._module_info.param_name
    return f"{owner}.{own}" if owner else own


def _unit(title: str, group: Any, fqns: list[str], kept: bool) -> Unit:
    shards = getattr(group.mesh_info, "shard_mesh_size", 1)
    replicas = getattr(group.mesh_info, "replicate_mesh_size", 1)
    after = None if kept else group.post_forward_mesh_info
    params = [_Parameter(param, group.mp_policy, shards) for param in group.fsdp_params]
    trained = [param for param in params if param.trained]
    full = sum(param.full for param in params)
    # freed to a smaller mesh, the same padded parameters are gathered from fewer, larger parts
    gathers = 0 if shards == 1 else 1 if after is None or after.shard_mesh_size == 1 else 2
    reduced = sum(param.reduced for param in trained)
    return Unit(
        title,
        tuple(param.tensor(fqn) for param, fqn in zip(params, fqns, strict=True)),
        "fsdp2",
        shards,
        replicas,
        after is not None,
        _all(param.param_dtype for param in params),
        _all(param.reduce_dtype for param in params),
        sum(param.stored for param in params),
        sum(param.padding for param in params),
        full,
        sum(param.stored for param in trained),
        Traffic(
            Transfer(gathers, gathers * full),
            Transfer(1, reduced) if trained and shards > 1 else Transfer(),
            Transfer(1, reduced // shards) if trained and replicas > 1 else Transfer(),
        ),
    )


def _all(dtypes: Iterable[str]) -> str:
    return ", ".join(sorted(set(dtypes)))


class _Parameter:
    """The sizes of one parameter of a group on this rank, in bytes."""

    def __init__(self, param: Any, policy: Any, shards: int) -> None:
        self._sharded = param.sharded_param
        own = self._sharded.dtype
        computed = policy.param_dtype or own
        reduced = policy.reduce_dtype or computed
        numel = param.padded_sharded_param_size.numel()
        self.param_dtype, self.reduce_dtype = names.dtype(computed), names.dtype(reduced)
        self.trained = self._sharded.requires_grad
        self.stored = numel * own.itemsize
        self.padding = (numel - -(-param._orig_size.numel() // shards)) * own.itemsize
        self.full = numel * shards * computed.itemsize
        self.reduced = numel * shards * reduced.itemsize

    def tensor(self, fqn: str) -> Tensor:
        """The whole parameter."""
        return names.tensor(fqn, self._sharded)
