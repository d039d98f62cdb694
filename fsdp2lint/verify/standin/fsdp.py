"""What FSDP itself cannot do on CPU: FSDP1's device, offloading and broadcast; pinned offloading."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, api

from fsdp2lint.verify.standin.replace import Counted, Function, wrap

_STATE_CONFIGS = (
    "FullStateDictConfig",
    "ShardedStateDictConfig",
    "LocalStateDictConfig",
    "FullOptimStateDictConfig",
    "ShardedOptimStateDictConfig",
    "LocalOptimStateDictConfig",
)


def install(counted: Counted) -> None:
    """Replace arguments that FSDP refuses, or damages tensors with, on CPU (torch 2.13)."""
    wrap(FullyShardedDataParallel, "__init__", lambda init: _fsdp1(init, counted))
    wrap(FullyShardedDataParallel, "summon_full_params", _summon)
    for name in _STATE_CONFIGS:
        wrap(getattr(api, name), "__init__", lambda init: _state_config(init, counted))
    wrap(CPUOffloadPolicy, "__init__", lambda init: _offload_policy(init, counted))


def _fsdp1(init: Function, counted: Counted) -> Function:
    def initialised(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        counted.note("FSDP(device_id=…)")
        kwargs["device_id"] = torch.device("cpu")
        if kwargs.pop("cpu_offload", None) is not None:
            counted.note("FSDP(cpu_offload=…)")
        if kwargs.pop("sync_module_states", False):
            counted.note("FSDP(sync_module_states=True)")
            _broadcast(module, kwargs.get("process_group"))
        init(self, module, *args, **kwargs)

    return initialised


def _broadcast(module: nn.Module, group: Any) -> None:
    """What ``sync_module_states`` does: the first rank's values for all."""
    group = group if isinstance(group, dist.ProcessGroup) else None
    first = 0 if group is None else dist.get_global_rank(group, 0)
    for tensor in (*module.parameters(), *module.buffers()):
        if not tensor.is_meta:
            dist.broadcast(tensor.detach(), first, group=group)


def _summon(summon: Function) -> Function:
    def summoned(module: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["offload_to_cpu"] = False
        return summon(module, *args, **kwargs)

    return summoned


def _state_config(init: Function, counted: Counted) -> Function:
    def initialised(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("offload_to_cpu"):
            counted.note("offload_to_cpu=True")
        init(self, *args, **kwargs)
        object.__setattr__(self, "offload_to_cpu", False)

    return initialised


def _offload_policy(init: Function, counted: Counted) -> Function:
    def initialised(self: Any, pin_memory: bool = True) -> None:
        if pin_memory:
            counted.note("CPUOffloadPolicy(pin_memory=True)")
        init(self, pin_memory=False)

    return initialised
