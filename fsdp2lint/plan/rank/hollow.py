"""Parameters without values: models of any size are built and sharded in little memory.

Each parameter moves to the meta device as its module registers it, so that only one at a time ever has
memory; initialisation, moves to a device and loading then do nothing. Buffers and data stay real.
"""

from __future__ import annotations

import weakref
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict, state_dict_loader
from torch.distributed.fsdp import FSDPModule, UnshardHandle, _init_utils
from torch.nn.modules.module import _IncompatibleKeys
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from fsdp2lint.rehearse.standin.replace import Function, wrap, wrap_everywhere


def install() -> None:
    """Hollow out every parameter that a module gets from here on."""
    hollowed: dict[int, tuple[weakref.ref[Any], nn.Parameter]] = {}

    def register(original: Function) -> Function:
        def registered(self: nn.Module, name: str, param: Any) -> None:
            if isinstance(param, nn.Parameter) and not param.is_meta and not is_lazy(param):
                param = _hollow(param, hollowed)
            original(self, name, param)

        return registered

    wrap(nn.Module, "register_parameter", register)
    wrap(nn.Module, "to_empty", lambda _: lambda self, **__: self)
    # assigned in place of tensors without values, loaded ones would undo what is tied
    wrap(nn.Module, "load_state_dict", lambda _: lambda *__, **___: _IncompatibleKeys([], []))
    for name in ("set_model_state_dict", "set_optimizer_state_dict", "set_state_dict"):
        wrap_everywhere(state_dict, name, lambda _: lambda *__, **___: _IncompatibleKeys([], []))
    wrap_everywhere(state_dict_loader, "load", lambda _: lambda *__, **___: None)
    for name in ("unshard", "reshard"):  # nothing is there to gather
        wrap(FSDPModule, name, lambda _: lambda *__, **___: _Gathered())
    mode: Any = _StaysMeta()
    mode.__enter__()
    # FSDP1 would give memory to a meta module, and takes no meta tensors for those of its device
    utils: Any = _init_utils
    utils._need_to_materialize_module = lambda *_: (False, False)
    utils._get_compute_device = lambda *_: torch.device("cpu")


_ADDRESSES = count(1)


def _hollow(
    param: nn.Parameter, hollowed: dict[int, tuple[weakref.ref[Any], nn.Parameter]]
) -> nn.Parameter:
    """The same parameter without values; tied ones stay one."""
    known = hollowed.get(id(param))
    if known is not None and known[0]() is param:
        return known[1]
    empty = torch.empty_strided(param.size(), param.stride(), dtype=param.dtype, device="meta")
    hollow = nn.Parameter(empty, requires_grad=param.requires_grad)
    vars(hollow).update(vars(param))
    address = next(_ADDRESSES)  # by which accelerate finds an optimizer's parameters again
    hollow.data_ptr = lambda: address  # type: ignore[method-assign]
    hollowed[id(param)] = (weakref.ref(param), hollow)
    return hollow


class _Gathered(UnshardHandle):
    """What an asynchronous ``unshard`` returns."""

    def wait(self) -> None:
        """Nothing comes."""


class _StaysMeta(TorchFunctionMode):
    """Moving a tensor without values changes its dtype at most."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("to", "cpu") and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            given = [*args[1:], *kwargs.values()]
            dtypes = [part for part in given if isinstance(part, torch.dtype)]
            dtypes += [part.dtype for part in given if isinstance(part, torch.Tensor)]
            return func(args[0], dtypes[0]) if dtypes and name == "to" else args[0]
        return func(*args, **kwargs)
