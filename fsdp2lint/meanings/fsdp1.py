"""``FullyShardedDataParallel`` and what belongs to it.

Sources: torch/distributed/fsdp/fully_sharded_data_parallel.py, torch/distributed/fsdp/wrap.py,
torch/distributed/fsdp/api.py (2.13; unchanged since 2.4).
"""

from __future__ import annotations

import libcst as cst

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.families import family, is_class_name, last
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import (
    choices,
    context,
    fresh,
    instance,
    made_by,
    name_of,
    nothing,
    setting,
)
from fsdp2lint.model.events import Clipped, Wrapping
from fsdp2lint.model.values import External, Instance, Partial, Unknown, Value, Wrapped

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"

POSITIONS = (
    "module",
    "process_group",
    "sharding_strategy",
    "cpu_offload",
    "auto_wrap_policy",
    "backward_prefetch",
    "mixed_precision",
    "ignored_modules",
    "param_init_fn",
    "device_id",
    "sync_module_states",
    "forward_prefetch",
    "limit_all_gathers",
    "use_orig_params",
    "ignored_states",
    "device_mesh",
)
"""The parameters of ``FullyShardedDataParallel.__init__``, in order."""

OLD_NAMES = {
    "fsdp_auto_wrap_policy": "auto_wrap_policy",
    "ignored_parameters": "ignored_states",
}
"""Names that arguments had in torch 1.11, and in 2.0."""

FLATTENERS = frozenset(
    f"{FSDP1}.{name}"
    for name in (
        "optim_state_dict_to_load",
        "shard_full_optim_state_dict",
        "scatter_full_optim_state_dict",
        "flatten_sharded_optim_state_dict",
    )
)
"""The functions that prepare the state of an optimizer for flat parameters."""


@calls(FSDP1)
def wrap_fsdp1(call: Call) -> Value | None:
    """``FSDP(module, …)``: a new module around the old one."""
    module = call.get(0, "module")
    if module is None:
        return None
    options = dict(zip(POSITIONS[1:], call.args[1:], strict=False))
    options |= {OLD_NAMES.get(k, k): v for k, v in call.keywords.items() if k != "module"}
    return _wrapped(call, module, options)


def _wrapped(call: Call, module: Value, options: dict[str, Value]) -> Value:
    def wrap(one: Value) -> Value:
        call.use_as_module(one)
        made = Wrapped(one, "fsdp1")
        call.emit(Wrapping, module=one, by="fsdp1", result=made, options=options, open=call.open)
        return made

    return call.machine.spread(module, wrap)


@calls("torch.distributed.fsdp.wrap.enable_wrap")
def enable_wrap(call: Call) -> Value | None:
    """A context in which ``wrap(module)`` wraps with ``wrapper_cls`` and the other keywords."""
    made = instance(call)
    if call.args:
        made.keep(".wrapper_cls", call.args[0])
    for value in call.keywords.values():
        call.machine.memory.hold(made, value)
    made.keep(".kwargs", call.machine.container("dict", call.keywords, call.open))
    return made


@calls("torch.distributed.fsdp.wrap.wrap")
def wrap(call: Call) -> Value | None:
    """Wraps inside ``enable_wrap(wrapper_cls=FSDP)``; elsewhere it gives its argument back."""
    module = call.get(0, "module")
    if module is None:
        return None
    for manager in reversed(call.machine.within):
        if made_by(manager, "torch.distributed.fsdp.wrap.enable_wrap"):
            wrapper = setting(call, manager, "wrapper_cls")
            if isinstance(wrapper, Partial):
                wrapper = wrapper.call
            if isinstance(wrapper, External) and wrapper.name == FSDP1:
                return _wrapped(call, module, {**_keywords(call, manager), **call.keywords})
            return None
    return module


def _keywords(call: Call, manager: Value) -> dict[str, Value]:
    """What ``enable_wrap`` was given for the wrapper."""
    entries = call.machine.memory.entries(manager.part(".kwargs"), call.machine.here)
    named = {str(key)[2:-2]: value for key, value in entries}
    return {name: value for name, value in named.items() if name in POSITIONS}


@family("torch.distributed.fsdp.")
def config(call: Call) -> Value | None:
    """``MixedPrecision``, ``CPUOffload``, ``FullStateDictConfig``, policies …: plain data."""
    if call.name.startswith(f"{FSDP1}."):
        return None
    return instance(call) if is_class_name(call.name) else None


@calls("torch.distributed.fsdp.FullStateDictConfig")
def full_state_dict_config(call: Call) -> Value | None:
    """Both options are off by default (torch/distributed/fsdp/api.py)."""
    return _positional(call, ("offload_to_cpu", "rank0_only"), False)


@calls("torch.distributed.fsdp.FullOptimStateDictConfig")
def full_optim_state_dict_config(call: Call) -> Value | None:
    """Offloading is on by default for optimizer states, ``rank0_only`` is off."""
    return _positional(call, ("offload_to_cpu", "rank0_only"), True)


def _positional(call: Call, names: tuple[str, str], offload: bool) -> Value:
    made = instance(call)
    for name, value in zip(names, call.args, strict=False):
        made.keep(f".{name}", value)
    if not call.open:
        for name, constant in zip(names, (offload, False), strict=True):
            made.keep(f".{name}", call.machine.literal(constant))
    return made


# -- which kind of state dict -----------------------------------------------------------------------------

_TYPE_ARGUMENTS = ("module", "state_dict_type", "state_dict_config", "optim_state_dict_config")
_SET = f"{FSDP1}.set_state_dict_type"


def _type_context(call: Call, name: str) -> Value:
    for one in call.each(call.get(0, "module")):
        call.use_as_module(one)
    made = instance(call, name)
    for keyword, value in zip(_TYPE_ARGUMENTS, call.args, strict=False):
        made.keep(f".{keyword}", value)
    if not call.open:
        for keyword in _TYPE_ARGUMENTS:
            made.keep(f".{keyword}", call.machine.literal(None))
    return made


@calls(f"{FSDP1}.state_dict_type")
def state_dict_type(call: Call) -> Value | None:
    """A context in which ``state_dict()`` of the module gives the asked kind."""
    return _type_context(call, f"{FSDP1}.state_dict_type")


@calls(_SET)
def set_state_dict_type(call: Call) -> Value | None:
    """The same for good: kept with the machine until the next call."""
    made = _type_context(call, f"{FSDP1}.state_dict_type")
    kept = call.machine.external(_SET)
    call.machine.memory.write(kept, "kind", call.machine.here, made)
    return fresh(call)


def kind_of_state_dict(call: Call, optimizer: bool = False) -> tuple[bool | None, bool | None]:
    """Whether a state dict taken now from an FSDP1 module is full, and whether only rank 0 has it (on the CPU)."""
    asked = next(
        (c for c in reversed(call.machine.within) if made_by(c, f"{FSDP1}.state_dict_type")), None
    )
    if asked is None:
        external = call.machine.external(_SET)
        asked = call.machine.memory.read(external, "kind", call.machine.here)
    if asked is None:
        return True, False
    kind = last(name_of(setting(call, asked, "state_dict_type")))
    full = {"FULL_STATE_DICT": True, "SHARDED_STATE_DICT": False, "LOCAL_STATE_DICT": False}.get(
        kind
    )
    config = setting(call, asked, f"{'optim_' if optimizer else ''}state_dict_config")
    return full, _first_rank_only(call, config) if full else False


def _first_rank_only(call: Call, config: Value | None) -> bool | None:
    if config is None:
        return None
    known = getattr(config, "value", ...)
    if known is None:
        return False
    sides = [
        getattr(setting(call, config, n), "value", None) for n in ("offload_to_cpu", "rank0_only")
    ]
    return None if None in sides else all(sides)


def in_state_dict_type(call: Call) -> bool:
    """Whether FSDP1's ``state_dict_type`` context is open."""
    return any(made_by(c, f"{FSDP1}.state_dict_type") for c in call.machine.within)


def is_of_the_context(call: Call) -> bool:
    """Whether a method is called on what an open ``state_dict_type`` says in the same words, of unknown origin."""
    asked = call.site.node
    if not isinstance(call.receiver, Unknown) or not isinstance(asked, cst.Call):
        return False
    for manager in call.machine.within:
        made = manager.born if isinstance(manager, Instance) else None
        if made is None or not made_by(manager, f"{FSDP1}.state_dict_type"):
            continue
        given = made.node.args[:1] if isinstance(made.node, cst.Call) else ()
        named = asked.func.value if isinstance(asked.func, cst.Attribute) else None
        if named is not None and any(named.deep_equals(arg.value) for arg in given):
            return True
    return False


# -- the other methods ----------------------------------------------------------------------------------------


@calls(f"{FSDP1}.summon_full_params")
def summon_full_params(call: Call) -> Value | None:
    """A context in which parameters are gathered."""
    return context(call)


@calls(f"{FSDP1}.fsdp_modules")
def fsdp_modules(call: Call) -> Value | None:
    """The FSDP1 modules below a module."""
    module = call.get(0, "module")
    return None if module is None else module.part(".fsdp_modules()")


@calls(f"{FSDP1}.clip_grad_norm_")
def clip_unbound(call: Call) -> Value | None:
    """``FSDP.clip_grad_norm_(model, …)``."""
    for one in call.each(call.get(0, "self")):
        call.emit(Clipped, parameters=(), module=one)
    return fresh(call)


@family(f"{FSDP1}.")
def other_method(call: Call) -> Value | None:
    """Static methods that the state-dict meanings do not know: they keep nothing of what they are given."""
    return fresh(call)


@method(
    "state_dict_type",
    "set_state_dict_type",
    "summon_full_params",
    "fsdp_modules",
    "optim_state_dict",
    "optim_state_dict_to_load",
    "full_optim_state_dict",
    "sharded_optim_state_dict",
    "check_is_root",
    "register_comm_hook",
)
def through_the_model(call: Call) -> Value | None:
    """Static methods called on the wrapped model: ``model.state_dict_type(model, …)``."""
    if not any(call.is_module(one) for one in choices(call.receiver)):
        return None
    if call.name == ".register_comm_hook":
        return nothing(call)
    target = call.machine.external(f"{FSDP1}{call.name}")
    return call.machine.call(target, call.args, call.keywords, call.site, call.open)
