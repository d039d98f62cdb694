"""State dicts: who makes them, of which kind, and where they are put back.

Sources: torch/distributed/checkpoint/state_dict.py (``get_*``/``set_*``, ``StateDictOptions``),
torch/nn/modules/module.py, torch/optim/optimizer.py; FSDP1's kinds are in ``fsdp1``.

A full state dict is gathered from all ranks, so taking one is a collective; with ``cpu_offload`` only rank 0
gets it, the others get ``{}``.
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.fsdp1 import (
    FLATTENERS,
    FSDP1,
    in_state_dict_type,
    is_of_the_context,
    kind_of_state_dict,
)
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import choices, flag, fresh, instance, nothing, setting
from fsdp2lint.model.events import Collective, Restored, StateDictTaken
from fsdp2lint.model.values import (
    Container,
    External,
    Instance,
    Literal,
    Module,
    Optimizer,
    Part,
    StateDict,
    Super,
    Value,
    Wrapped,
    wrappers_around,
)

_HELPERS = "torch.distributed.checkpoint.state_dict."


def take(call: Call, of: Value, kind: str, full: bool | None, offloaded: bool | None) -> StateDict:
    """A new state dict, written down; a collective when it is full."""
    made = StateDict(of, kind, full=full, offloaded=offloaded, via=call.name, taken=call.now)
    if full:
        call.emit(Collective, name=call.name, about=of)
    call.emit(StateDictTaken, state=made)
    return made


# -- the methods ------------------------------------------------------------------------------------------


@method("state_dict")
def state_dict(call: Call) -> Value | None:
    """``state_dict()`` of modules and optimizers; of an FSDP1 module it is full unless asked otherwise."""
    receiver = call.receiver
    if receiver is not None and is_of_the_context(call):
        call.use_as_module(receiver)
    if receiver is None or not any(_has_state(call, one) for one in choices(receiver)):
        return None

    def one(of: Value) -> Value:
        if isinstance(of, Optimizer):
            return take(call, of, "optimizer", None, None)
        if not call.is_module(of):
            return fresh(call)
        if _fsdp1_inside(of) or in_state_dict_type(call):
            return take(call, of, "model", *kind_of_state_dict(call))
        return take(call, of, "model", None, None)

    return call.machine.spread(receiver, one)


def _has_state(call: Call, value: Value) -> bool:
    return isinstance(value, Optimizer) or (call.is_module(value) and not isinstance(value, Super))


def _fsdp1_inside(value: Value) -> bool:
    return any(one.by == "fsdp1" for one in wrappers_around(value))


@method("load_state_dict")
def load_state_dict(call: Call) -> Value | None:
    """``load_state_dict(state)`` of modules and optimizers.

    What FSDP1 has prepared for its flat parameters only an optimizer takes, wherever that comes from.
    """
    state = call.get(0, "state_dict")
    receiver = call.receiver
    if state is None:
        return None
    if receiver is not None and is_of_the_context(call):
        call.use_as_module(receiver)
    flat = any(_is_flat(one) for one in choices(state))
    found = False
    for one in call.each(receiver):
        if flat or _has_state(call, one):
            kind = "optimizer" if flat or isinstance(one, Optimizer) else "model"
            call.emit(Restored, into=one, state=state, via=call.name, kind=kind)
            found = True
    return fresh(call) if found else None


def _is_flat(state: Value) -> bool:
    """Whether a state is the result of one of FSDP1's functions that prepare it for flat parameters."""
    made_by = state.owner if isinstance(state, Part) else None
    return isinstance(made_by, External) and made_by.name in FLATTENERS


# -- torch.distributed.checkpoint.state_dict ------------------------------------------------------------------


@calls(f"{_HELPERS}StateDictOptions")
def options(call: Call) -> Value | None:
    """A dataclass; ``strict`` is on by default, the other switches are off."""
    return instance(
        call,
        full_state_dict=False,
        cpu_offload=False,
        ignore_frozen_params=False,
        keep_submodule_prefixes=True,
        strict=True,
        broadcast_from_rank0=False,
        flatten_optimizer_state_dict=False,
    )


def _option(call: Call, name: str) -> bool | None:
    """A switch of the call's ``options``; off when none were given."""
    given = call.keywords.get("options")
    if given is None:
        return None if call.open else False
    if isinstance(given, Literal):
        return False if given.value is None else None
    sides = {flag(setting(call, one, name)) for one in choices(given)}
    return sides.pop() if len(sides) == 1 else None


def _kind(call: Call) -> tuple[bool | None, bool | None]:
    """Full; and offloaded to rank 0 only, which takes both switches."""
    full, offload = _option(call, "full_state_dict"), _option(call, "cpu_offload")
    if full is False or offload is False:
        return full, False
    return full, True if full and offload else None


@calls(f"{_HELPERS}get_model_state_dict")
def get_model_state_dict(call: Call) -> Value | None:
    """The model's state dict with clean names."""
    model = call.get(0, "model")
    if model is None:
        return None
    call.use_as_module(model)
    return call.machine.spread(model, lambda one: take(call, one, "model", *_kind(call)))


@calls(f"{_HELPERS}get_optimizer_state_dict")
def get_optimizer_state_dict(call: Call) -> Value | None:
    """The optimizers' state by parameter names."""
    optimizers = call.get(1, "optimizers")
    if optimizers is None:
        return None
    return take(call, _one_optimizer(call, optimizers), "optimizer", *_kind(call))


@calls(f"{_HELPERS}get_state_dict")
def get_state_dict(call: Call) -> Value | None:
    """Both, as a pair."""
    model, optimizers = call.get(0, "model"), call.get(1, "optimizers")
    if model is None or optimizers is None:
        return None
    call.use_as_module(model)
    pair = [
        take(call, model, "model", *_kind(call)),
        take(call, _one_optimizer(call, optimizers), "optimizer", *_kind(call)),
    ]
    return call.machine.container("tuple", pair)


def _one_optimizer(call: Call, value: Value) -> Value:
    """The optimizer inside a list of one."""
    if isinstance(value, Container):
        entries = call.items(value)
        return entries[0] if len(entries) == 1 else value
    return value


@calls(f"{_HELPERS}set_model_state_dict")
def set_model_state_dict(call: Call) -> Value | None:
    """Puts a state dict into a model."""
    return _restore(call, ("model", 0, "model", 1, "model_state_dict"))


@calls(f"{_HELPERS}set_optimizer_state_dict")
def set_optimizer_state_dict(call: Call) -> Value | None:
    """Puts a state into optimizers."""
    return _restore(call, ("optimizer", 1, "optimizers", 2, "optim_state_dict"))


@calls(f"{_HELPERS}set_state_dict")
def set_state_dict(call: Call) -> Value | None:
    """Both; the states are keywords."""
    return _restore(
        call,
        ("model", 0, "model", -1, "model_state_dict"),
        ("optimizer", 1, "optimizers", -1, "optim_state_dict"),
    )


def _restore(call: Call, *what: tuple[str, int, str, int, str]) -> Value:
    """With ``broadcast_from_rank0`` the values come from rank 0, so all ranks must take part."""
    for kind, into_at, into_name, state_at, state_name in what:
        into, state = call.get(into_at, into_name), call.get(state_at, state_name)
        if into is None or state is None:
            continue
        if kind == "optimizer":
            into = _one_optimizer(call, into)
        for one in call.each(into):
            if kind == "model":
                call.use_as_module(one)
            if _option(call, "broadcast_from_rank0"):
                call.emit(Collective, name=call.name, about=one)
            call.emit(Restored, into=one, state=state, via=call.name, kind=kind)
    return fresh(call) if len(what) == 1 else nothing(call)


# -- FSDP1's optimizer states -----------------------------------------------------------------------------------


@calls(f"{FSDP1}.optim_state_dict")
def fsdp1_optim_state_dict(call: Call) -> Value | None:
    """The kind is the one that ``state_dict_type`` asks for."""
    return _fsdp1_optimizer_state(call, 1, *kind_of_state_dict(call, optimizer=True))


@calls(f"{FSDP1}.full_optim_state_dict")
def fsdp1_full_optim_state_dict(call: Call) -> Value | None:
    """Full; ``rank0_only`` is on by default and the result is on the CPU."""
    only = flag(call.get(3, "rank0_only")) if call.get(3, "rank0_only") is not None else True
    return _fsdp1_optimizer_state(call, 1, True, only)


@calls(f"{FSDP1}.sharded_optim_state_dict")
def fsdp1_sharded_optim_state_dict(call: Call) -> Value | None:
    """Sharded."""
    return _fsdp1_optimizer_state(call, 1, False, False)


def _fsdp1_optimizer_state(
    call: Call, position: int, full: bool | None, offloaded: bool | None
) -> Value | None:
    optimizer = call.get(position, "optim")
    if optimizer is None:
        return None
    return call.machine.spread(optimizer, lambda one: take(call, one, "optimizer", full, offloaded))


def is_stateful(call: Call, value: Value) -> bool:
    """Whether ``state_dict()`` of ``value`` has a meaning here or in the project."""
    if isinstance(value, Module | Wrapped | Optimizer) or call.is_module(value):
        return True
    return isinstance(value, Instance) and call.machine.method(value, "state_dict") is not None
