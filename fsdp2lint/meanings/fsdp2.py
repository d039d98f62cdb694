"""``fully_shard`` and the methods that it gives to a module.

Sources: torch/distributed/fsdp/_fully_shard/_fully_shard.py (2.6 to 2.13) and its documentation
https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html.
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import choices, context, flag, fresh, instance, nothing, text
from fsdp2lint.model.events import (
    Registered,
    Resharded,
    Sharded,
    SyncPaused,
    SyncSwitched,
    Unsharded,
)
from fsdp2lint.model.values import Container, Instance, Literal, Module, Super, Value


@calls("torch.distributed.fsdp.fully_shard")
def fully_shard(call: Call) -> Value | None:
    """``fully_shard(module, …)`` changes a module, or each of a list as one group, in place and returns it."""
    target = call.get(0, "module")
    if target is None:
        return None
    options = {k: v for k, v in call.keywords.items() if k != "module"}
    for one in call.each(target):
        modules = _group(call, one)
        for module in modules:
            call.use_as_module(module)
        if modules:
            call.emit(Sharded, modules=modules, options=options, open=call.open)
    return target


def _group(call: Call, value: Value) -> tuple[Value, ...]:
    """The modules that one call shards: several when it is given a list."""
    if isinstance(value, Literal):
        return ()
    if not isinstance(value, Container):
        return (value,)
    entries = [one for entry in call.items(value) for one in choices(entry)]
    return tuple(e for e in entries if not isinstance(e, Literal | Container))


@calls(
    "torch.distributed.fsdp.MixedPrecisionPolicy",
    "torch.distributed.fsdp.OffloadPolicy",
    "torch.distributed.fsdp.CPUOffloadPolicy",
    "torch.distributed.fsdp.DataParallelMeshDims",
)
def policy(call: Call) -> Value | None:
    """Frozen dataclasses (torch/distributed/fsdp/_fully_shard/_fsdp_api.py)."""
    made = instance(call)
    if call.name.endswith(".MixedPrecisionPolicy"):
        for name, value in zip(_PRECISION, call.args, strict=False):
            made.keep(f".{name}", value)
    return made


_PRECISION = ("param_dtype", "reduce_dtype", "output_dtype", "cast_forward_inputs")
"""The fields of ``MixedPrecisionPolicy``, in order."""


@calls("torch.distributed.fsdp.register_fsdp_forward_method")
def register_forward_method(call: Call) -> Value | None:
    """Makes ``module.<name>()`` run FSDP's hooks; does nothing to a module that is not sharded (yet)."""
    name = text(call.get(1, "method_name"))
    for one in call.each(call.get(0, "module")):
        call.use_as_module(one)
        call.emit(Registered, module=one, method=name)
    return nothing(call)


@calls("torch.distributed.fsdp.share_comm_ctx")
def share_context(call: Call) -> Value | None:
    """Lets modules share streams; changes nothing else."""
    return nothing(call)


# -- methods of FSDPModule ------------------------------------------------------------------------------


@method("set_requires_gradient_sync")
def set_requires_gradient_sync(call: Call) -> Value | None:
    """Switches the reduction of gradients (and with it their sharding) on or off."""
    on = flag(call.get(0, "requires_gradient_sync"))
    for one in call.each(call.receiver):
        call.use_as_module(one)
        call.emit(SyncSwitched, module=one, on=on)
    return nothing(call)


@method(
    "set_is_last_backward",
    "set_requires_all_reduce",
    "set_reshard_after_forward",
    "set_reshard_after_backward",
    "set_modules_to_forward_prefetch",
    "set_modules_to_backward_prefetch",
    "set_post_optim_event",
    "set_all_reduce_hook",
    "set_gradient_divide_factor",
    "set_reduce_scatter_divide_factor",
    "set_force_sum_reduction_for_comms",
    "set_allocate_memory_from_process_group_for_comm",
    "set_custom_all_gather",
    "set_custom_reduce_scatter",
    "set_unshard_in_backward",
    "set_symm_mem_for_comm",
    "set_reduce_scatter_unused_params",
    "set_reduce_scatter_max_input_buffers",
    "set_separate_reduce_scatter_group",
    "reset_iter_state",
)
def setter(call: Call) -> Value | None:
    """Switches of ``FSDPModule``; nothing else has methods of these names."""
    for one in choices(call.receiver):
        call.use_as_module(one)
    return nothing(call)


@method("unshard", "reshard")
def unshard(call: Call) -> Value | None:
    """Gather or free the parameters of the module's own group; ``unshard`` returns a handle or None."""
    if not _may_be_sharded(call.receiver):
        return None
    kind = Unsharded if call.name == ".unshard" else Resharded
    for one in call.each(call.receiver):
        call.emit(kind, module=one)
    return fresh(call) if kind is Unsharded else nothing(call)


def _may_be_sharded(value: Value | None) -> bool:
    return not any(
        isinstance(one, Literal | Container | Super)
        or (isinstance(one, Instance) and not isinstance(one, Module))
        for one in choices(value)
    )


@method("no_sync")
def no_sync(call: Call) -> Value | None:
    """A context manager of FSDP1 and DDP modules; modules that ``fully_shard`` changed have none."""
    if not _may_be_sharded(call.receiver):
        return context(call) if isinstance(call.receiver, Instance) else None
    for one in call.each(call.receiver):
        if not call.args:  # an engine is told the model
            call.use_as_module(one)
        call.emit(SyncPaused, module=one)
    return context(call)
