"""What one forward and backward keep beside parameters: the step is computed without values, on the whole model.

Sharding is taken away first: each parameter becomes whole, in the precision in which it is computed, and has no values
(``FakeTensor``), so that the script's own forward, loss and backward run on as they are and take no memory. What they allocate is
added up as it comes and goes, by storages, as ``torch/distributed/_tools/mem_tracker.py`` does. Inputs keep their values, so
what the script decides by them stays decided. Gradients of parameters are let go of at once: what is left of them after the
reduction is a row of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _python_dispatch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from fsdp2lint.plan.data import Activations
from fsdp2lint.plan.reading.fsdp2 import groups_of

_SHARDING = ("torch.distributed.fsdp", "torch.distributed._composable")


class CannotTrace(Exception):
    """The model is in a form that cannot be made whole; the text says which."""


class Trace:
    """The allocations of a script from here on."""

    def __init__(self, models: list[nn.Module]) -> None:
        torch.compiler.set_stance("force_eager")
        self._whole = FakeTensorMode(allow_non_fake_inputs=True)
        self._mode: Any = _Allocations()
        self._kept: int | None = None
        for model in models:
            self._prepare(model)
        self._mode.__enter__()

    def at_backward(self) -> None:
        """The forward is over: what is allocated now is kept for backward."""
        if self._kept is None:
            self._kept = self._mode.live

    def end(self) -> Activations:
        """Stop; what there was."""
        self._mode.__exit__(None, None, None)
        kept = self._mode.live if self._kept is None else self._kept
        return Activations(kept, self._mode.peak)

    def _prepare(self, model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, FullyShardedDataParallel):
                self._make_whole_fsdp1(module)
            elif isinstance(module, DistributedDataParallel):
                _forward_to(module, module.module)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                self._make_whole_fsdp2(module)
        for module in model.modules():
            for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
                if _module_of(hook).startswith("torch.distributed."):
                    raise CannotTrace("tensors are distributed by more than the sharding")
            for held in (module._parameters, module._buffers, vars(module)):
                for name, value in list(held.items()):
                    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
                        self._empty(held, name, value)

    def _empty(self, held: dict[str, Any], name: str, value: torch.Tensor) -> None:
        """Give a tensor that is no part of the sharding no values; buffers that have some keep them."""
        if isinstance(value, nn.Parameter):
            held[name] = self._parameter(value.shape, value.dtype, value.requires_grad)
        elif value.is_meta:
            held[name] = self._tensor(value.shape, value.dtype)
            self._mode.leave_out(held[name])

    def _tensor(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        with self._whole:
            return torch.empty(tuple(shape), dtype=dtype)

    def _parameter(self, shape: Any, dtype: torch.dtype, trained: bool) -> Any:
        parameter: Any = nn.Parameter(self._tensor(shape, dtype), requires_grad=trained)
        self._mode.leave_out(parameter)
        if trained:
            parameter.register_post_accumulate_grad_hook(_let_go)
        return parameter

    def _make_whole_fsdp2(self, module: FSDPModule) -> None:
        state: Any = module._get_fsdp_state()
        owner: Any = module
        for hooks in (owner._forward_pre_hooks, owner._forward_hooks):
            for key in [k for k, hook in hooks.items() if _module_of(hook).startswith(_SHARDING)]:
                del hooks[key]
        policy = state._mp_policy
        if policy.param_dtype is not None and policy.cast_forward_inputs:
            _cast_inputs(owner, policy.param_dtype)
        if policy.output_dtype is not None:
            owner.register_forward_hook(
                lambda _, __, made: _cast(made, policy.output_dtype), prepend=True
            )
        for group in groups_of(state):
            for param in group.fsdp_params:
                info = param._module_info
                held = self._parameter(
                    param._orig_size,
                    policy.param_dtype or param.sharded_param.dtype,
                    param.sharded_param.requires_grad,
                )
                info.module._parameters[info.param_name] = held
                for shared, name in zip(info.shared_modules, info.shared_param_names, strict=True):
                    shared._parameters[name] = held

    def _make_whole_fsdp1(self, module: FullyShardedDataParallel) -> None:
        _forward_to(module, module.module)
        handle: Any = module._handle
        if handle is None:
            return
        flat, dtype = handle.flat_param, handle._fwd_bwd_param_dtype
        if module.mixed_precision.param_dtype is not None:
            if module.mixed_precision.cast_forward_inputs or module._is_root is not False:
                _cast_inputs(module, dtype)
        originals = flat._params or [flat] * len(flat._shapes)
        made: dict[tuple[int, str], nn.Parameter] = {}
        for info, shape, original in zip(flat._param_infos, flat._shapes, originals, strict=True):
            held = self._parameter(shape, dtype, original.requires_grad)
            made[id(info.module), info.param_name] = held
            _put(info.module, info.param_name, held)
        for shared in flat._shared_param_infos:
            held = made[id(shared.prim_module), shared.prim_param_name]
            _put(shared.module, shared.param_name, held)
        module._parameters.pop("_flat_param", None)
        module.module._parameters.pop("_flat_param", None)


def _put(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    vars(module).pop(name, None)  # FSDP1 puts a view in its place
    module._parameters[name] = parameter


def _let_go(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _forward_to(wrapper: Any, inner: nn.Module) -> None:
    wrapper.forward = lambda *args, **kwargs: inner(*args, **kwargs)


def _cast_inputs(module: nn.Module, dtype: torch.dtype) -> None:
    def cast(_: Any, args: Any, kwargs: Any) -> Any:
        return _cast(args, dtype), _cast(kwargs, dtype)

    module.register_forward_pre_hook(cast, prepend=True, with_kwargs=True)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    def changed(one: Any) -> Any:
        floats = isinstance(one, torch.Tensor) and one.is_floating_point()
        return one.to(dtype) if floats else one

    return tree_map(changed, value)


def _module_of(hook: Callable[..., Any]) -> str:
    """Where a hook is defined."""
    function: Any = getattr(hook, "func", hook)  # a partial
    return str(getattr(function, "__module__", "") or "")


_OF_MANY = {"any": False, "all": True}
"""What is taken for the answer about values that are not there."""

_Mode: Any = _python_dispatch.TorchDispatchMode


class _Allocations(_Mode):  # type: ignore[misc]
    """Adds up the storages that operations make, until they are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: Any = WeakIdKeyDictionary()
        self._scalars: Any = WeakIdKeyDictionary()

    def leave_out(self, tensor: torch.Tensor) -> None:
        """Do not count a tensor that was there before."""
        self._known[tensor.untyped_storage()] = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return self._scalar(args[0]).item()
        made = func(*args, **(kwargs or {}))
        self._guess(func, args, kwargs or {}, made)
        given = {id(storage) for storage in _storages((args, kwargs))}
        for storage in _storages(made):
            if id(storage) not in given and storage not in self._known:
                self._count(storage)
        return made

    def _guess(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Compute single numbers on as if the first were 1, so that `if not torch.isfinite(loss)` is decided as in a good run."""
        if not isinstance(made, FakeTensor) or made.dim():
            return
        name = func.overloadpacket.__name__
        if name in _OF_MANY:
            self._scalars[made] = torch.tensor(_OF_MANY[name])
            return
        fakes = [one for one in tree_leaves((args, kwargs)) if isinstance(one, FakeTensor)]
        if fakes and not any(one.dim() for one in fakes):
            real = tree_map(
                lambda one: self._scalar(one) if isinstance(one, FakeTensor) else one,
                (args, kwargs),
            )
            with _python_dispatch._disable_current_modes():
                self._scalars[made] = func(*real[0], **real[1])

    def _scalar(self, tensor: torch.Tensor) -> torch.Tensor:
        known: torch.Tensor | None = self._scalars.get(tensor)
        if known is None:
            with _python_dispatch._disable_current_modes():
                known = torch.ones((), dtype=tensor.dtype)
        return known

    def _count(self, storage: Any) -> None:
        size = storage.nbytes()
        self._known[storage] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.live -= size


def _storages(value: Any) -> Iterator[Any]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            yield leaf.untyped_storage()
