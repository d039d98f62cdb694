"""Devices in calls on tensors: ``.to``, ``.cuda``, factories, ``with torch.device``, ``torch.load``."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from fsdp2lint.rehearse.standin.replace import Counted, Function, is_cuda, on_cpu, wrap

_SELF = frozenset({"cuda", "pin_memory"})
"""Methods that give the tensor itself back when it is where it should be."""


class OnCpu(TorchFunctionMode):
    """Sees every call that takes tensors or a ``device``, and puts the CPU in place of CUDA."""

    def __init__(self, counted: Counted) -> None:
        super().__init__()
        self._counted = counted

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` with its devices replaced."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _SELF and args and isinstance(args[0], torch.Tensor):
            self._counted.note(f".{name}()")
            return args[0]
        if name == "record_stream":
            return None
        if is_cuda(kwargs.get("device")):
            self._counted.note(f'{name}(device="cuda")')
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if kwargs.get("pin_memory"):
            self._counted.note("pin_memory")
            kwargs = {**kwargs, "pin_memory": False}
        if name == "to" and len(args) > 1 and is_cuda(args[1]):
            self._counted.note('.to("cuda")')
            args = (args[0], torch.device("cpu"), *args[2:])
        first = args[0] if args else kwargs.get("query")
        if name == "scaled_dot_product_attention" and isinstance(first, DTensor):
            self._counted.note("fused attention over DTensors")  # the CPU's has no rule for them
            return _attention(func, *args, **kwargs)
        return func(*args, **kwargs)


def _attention(
    attend: Function,
    query: DTensor,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Attention of each rank's own batches and heads, where that is how all three are cut.

    Each batch and head is by itself in it, so the parts are exact. PyTorch's way by single operations, for what is cut
    otherwise, makes its causal mask as a plain tensor and refuses that beside DTensors.
    """
    parts = (query, key, value)
    apart = (Replicate(), Shard(0), Shard(1))
    same = all(isinstance(p, DTensor) and p.placements == query.placements for p in parts)
    if not same or attn_mask is not None or any(p not in apart for p in query.placements):
        with sdpa_kernel(SDPBackend.MATH):
            return attend(query, key, value, attn_mask, *args, **kwargs)
    made = attend(*(part.to_local() for part in parts), None, *args, **kwargs)
    return DTensor.from_local(
        made,
        query.device_mesh,
        query.placements,
        run_check=False,
        shape=query.shape[:-1] + value.shape[-1:],
        stride=_strides(query.shape[:-1] + value.shape[-1:]),
    )


def _strides(shape: torch.Size) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def install(counted: Counted) -> None:
    """Replace devices from here on, on this thread and in functions that take a device themselves."""
    mode: Any = OnCpu(counted)
    mode.__enter__()
    wrap(nn.Module, "to", lambda to: _module_to(to, counted))
    wrap(nn.Module, "cuda", lambda _: _module_cuda(counted))
    wrap(nn.Module, "to_empty", _to_empty)
    wrap(_device.DeviceContext, "__init__", lambda init: _device_context(init, counted))
    wrap(torch, "set_default_device", lambda set_: lambda device: set_(on_cpu(device)))
    wrap(torch, "load", lambda load: _load(load, counted))


def _module_to(to: Function, counted: Counted) -> Function:
    def moved(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if any(map(is_cuda, (*args[:1], kwargs.get("device")))):
            counted.note('.to("cuda")')
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        return to(self, *map(on_cpu, args[:1]), *args[1:], **kwargs)

    return moved


def _module_cuda(counted: Counted) -> Function:
    def stay(self: nn.Module, device: object = None) -> nn.Module:
        counted.note(".cuda()")
        return self

    return stay


def _to_empty(to_empty: Function) -> Function:
    def emptied(self: nn.Module, *, device: Any, recurse: bool = True) -> Any:
        return to_empty(self, device=on_cpu(device), recurse=recurse)

    return emptied


def _device_context(init: Function, counted: Counted) -> Function:
    def entered(self: Any, device: Any) -> None:
        if is_cuda(device):
            counted.note('with torch.device("cuda")')
        init(self, on_cpu(device))

    return entered


def _load(load: Function, counted: Counted) -> Function:
    def loaded(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if is_cuda(map_location):
            counted.note('torch.load(map_location="cuda")')
        if isinstance(map_location, dict):
            map_location = {key: on_cpu(value) for key, value in map_location.items()}
        return load(f, on_cpu(map_location), *args, **kwargs)

    return loaded
