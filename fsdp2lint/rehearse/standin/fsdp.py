"""What FSDP itself cannot do on CPU: FSDP1's device, offloading and broadcast; pinned offloading.

Everything else of FSDP1 runs as it is. What is replaced here it either refuses on CPU or gets wrong there:
copies "to the CPU" are no copies, so an offloaded full state dict holds storage that is freed, and the
optimizer's moments share one buffer (``torch/distributed/fsdp/_optim_utils.py``, torch 2.13).
"""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, _init_utils, api
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

from fsdp2lint.rehearse.standin.replace import Counted, Function, local_world, wrap


def install(counted: Counted) -> None:
    """Replace arguments that FSDP refuses, or damages tensors with, on CPU (torch 2.13)."""
    wrap(FullyShardedDataParallel, "__init__", lambda init: _fsdp1(init, counted))
    wrap(FullyShardedDataParallel, "summon_full_params", _summon)
    wrap(FullyShardedDataParallel, "_optim_state_dict_impl", _optimizer_state)
    for config in (api.StateDictConfig, api.OptimStateDictConfig):
        wrap(config, "__setattr__", lambda put: _state_config(put, counted))
    wrap(CPUOffloadPolicy, "__init__", lambda init: _offload_policy(init, counted))
    # the broadcast itself works over gloo: only this check refuses tensors that are on the CPU
    wrap(_init_utils, "_check_module_states_for_sync_module_states", lambda _: lambda states: None)
    if hasattr(_fsdp_collectives, "_get_gradient_divide_factors"):
        wrap(_fsdp_collectives, "_get_gradient_divide_factors", _divided)
    wrap(_init_utils, "_sync_params_and_buffers", _same_states)
    wrap(_init_utils, "_init_intra_and_inter_node_groups", _node_groups)


def _same_states(sync: Function) -> Function:
    """Refuse to broadcast what is of another size or dtype on some rank: gloo kills the process, NCCL waits or fills it with anything."""

    def synced(process_group: Any, states: list[torch.Tensor], *args: Any, **how: Any) -> None:
        own = [f"{str(one.dtype)[6:]} {tuple(one.shape)} on {one.device.type}" for one in states]
        held: list[Any] = [None] * torch.distributed.get_world_size(process_group)
        torch.distributed.all_gather_object(held, own, group=process_group)
        for rank, others in enumerate(held):
            if others == held[0]:
                continue
            pairs = itertools.zip_longest(held[0], others, fillvalue="nothing")
            number, (first, other) = next(
                (n, two) for n, two in enumerate(pairs) if two[0] != two[1]
            )
            raise ValueError(
                f"sync_module_states=True: tensor {number} of {max(len(held[0]), len(others))} of a module that "
                f"FSDP wraps is {first} on rank 0 and {other} on rank {rank} of its group"
            )
        sync(process_group, states, *args, **how)

    return synced


def _divided(factors: Function) -> Function:
    """``PREMUL_SUM`` is of NCCL alone: what is added up is divided afterwards."""
    said = inspect.signature(factors)

    def chosen(*args: Any, **how: Any) -> Any:
        found = factors(*args, **how)
        if len(found) != 4:  # before PyTorch 2.8 there is no factor to choose
            return found
        before, after, scatter, reduce = found
        factor = said.bind(*args, **how).arguments.get("factor")
        kinds = torch.distributed.ReduceOp
        if factor is None or before or after or scatter in (kinds.AVG, kinds.SUM):
            return before, after, scatter, reduce
        return None, factor, kinds.SUM, kinds.SUM

    return chosen


def _fsdp1(init: Function, counted: Counted) -> Function:
    def initialised(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        counted.note("FSDP(device_id=…)")
        kwargs["device_id"] = torch.device("cpu")
        if kwargs.pop("cpu_offload", None) is not None:
            counted.note("FSDP(cpu_offload=…)")
        init(self, module, *args, **kwargs)

    return initialised


def _node_groups(make: Function) -> Function:
    """A host has as many devices as ranks; asked for itself, FSDP counts one CPU."""

    def made(group: Any, num_devices_per_node: int) -> Any:
        return make(group, local_world())

    return made


def _summon(summon: Function) -> Function:
    def summoned(module: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["offload_to_cpu"] = False
        return summon(module, *args, **kwargs)

    return summoned


def _optimizer_state(take: Function) -> Function:
    def taken(*args: Any, **kwargs: Any) -> Any:
        kwargs["cpu_offload"] = False
        return take(*args, **kwargs)

    return taken


def _state_config(put: Function, counted: Counted) -> Function:
    """Frameworks set it on a configuration that is there, not only when they make one; FSDP itself makes some by default."""

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if name == "offload_to_cpu" and value:
            if value != type(self).__dataclass_fields__[name].default:
                counted.note("offload_to_cpu=True")
            value = False
        put(self, name, value)

    return set_attribute


def _offload_policy(init: Function, counted: Counted) -> Function:
    def initialised(self: Any, pin_memory: bool = True) -> None:
        if pin_memory:
            counted.note("CPUOffloadPolicy(pin_memory=True)")
        init(self, pin_memory=False)

    return initialised
