"""Models on the meta device: where they are built, and what gives them memory and values."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Assigned,
    Called,
    Event,
    External,
    Forward,
    Guards,
    Instance,
    Literal,
    Loaded,
    Moved,
    Optimizer,
    Parameters,
    Part,
    Restored,
    Trace,
    Value,
    options,
    unwrapped,
)

from ._shared import cases, class_name, has_parameters, overlap, sharded, together

_PLAIN = (
    "contextlib.",
    "torch.amp.",
    "torch.cuda.amp.",
    "torch.device",
    "torch.enable_grad",
    "torch.inference_mode",
    "torch.no_grad",
    "torch.profiler.",
    "torch.set_grad_enabled",
)


def plain(context: Value) -> bool:
    """Whether tensors are ordinary ones in a context: not so under ``FakeTensorMode``."""
    return all(class_name(one).startswith(_PLAIN) for one in options(context))


def born_on_meta(trace: Trace) -> list[tuple[Called, Guards]]:
    """The calls that build layers with parameters on the meta device, and under which guards they do."""
    return [(called, guards) for called in trace.of(Called) for guards in _on_meta(trace, called)]


def _on_meta(trace: Trace, called: Called) -> Iterator[Guards]:
    device = called.keywords.get("device")
    if device is None and not called.within:
        return  # nearly all
    if not has_parameters(trace, called.result, 0):
        return
    devices = [device] if device is not None else list(called.within)
    for one in devices:
        for guards, value in cases(called, one):
            if is_meta(value):
                yield guards


def is_meta(value: Value) -> bool:
    """``"meta"`` or ``torch.device("meta")``."""
    if isinstance(value, Instance) and class_name(value) == "torch.device":
        value = value.part(".argument0")
    return isinstance(value, Literal) and value.value == "meta"


def built_on_meta(trace: Trace, event: Event, module: Value) -> Called | None:
    """The call that built a layer of ``module`` on the meta device, on a path that leads to ``event``."""
    for called, guards in born_on_meta(trace):
        if called.order < event.order and trace.inside(called.result, module):
            if together(guards, event.guards):
                return called
    return None


def given_memory(trace: Trace, event: Event, module: Value) -> bool:
    """Whether anything before an event may have given the module's parameters memory."""
    if out_of_sight(trace, event, module):
        return True
    touched = [e.module for e in trace.before(event, Moved)]
    touched += [e.into for e in trace.before(event, Restored)]
    touched += [e.owner for e in trace.before(event, Assigned)]
    touched += [s.of for e in trace.before(event, Loaded) for s in e.states]
    return any(_overlap(trace, one, module) for value in touched for one in options(value)) or any(
        ".data" in written for written in trace.memory.fields.values()
    )


def first_forward(trace: Trace, moved: Moved) -> Forward | None:
    """The first forward after memory was given to a model, when it is an ordinary one of the sharded model."""
    module = unwrapped(moved.module)
    for forward in trace.after(moved, Forward):
        if not _overlap(trace, forward.module, module):
            continue
        found = sharded(trace, forward, forward.module)
        ordinary = forward.how == "call" and all(map(plain, (*forward.within, *moved.within)))
        if found is None or not ordinary or not together(moved.guards, forward.guards):
            return None
        return forward
    return None


def out_of_sight(trace: Trace, event: Event, module: Value) -> bool:
    """Whether code that cannot be followed may have had its hands on a module before ``event``."""
    if any(e.order < event.order for e in trace.escapes(module)):
        return True
    return any(holder in trace.memory.foreign for holder in trace.memory.holders(module))


def _overlap(trace: Trace, one: Value, module: Value) -> bool:
    return overlap(trace, unwrapped(one), module) is not None


_NO_VALUES = frozenset(
    ".parameters .named_parameters .modules .named_modules .children .named_children .buffers .named_buffers "
    ".register_buffer .register_parameter .train .eval .to .cuda .cpu .half .bfloat16 .float .to_empty .numel "
    ".size .nelement .dim .element_size .zero_grad .requires_grad_ .backward .step .item .state_dict .compile "
    ".load_state_dict .set_requires_gradient_sync .set_reshard_after_backward .unshard .reshard "
    "builtins.print builtins.len builtins.list builtins.sum builtins.id builtins.type builtins.isinstance "
    "builtins.hasattr builtins.repr builtins.str torch.compile torch.nn.utils.clip_grad_norm_ "
    ".detach .clone .full_tensor .to_local .sum .mean .norm .std .max .min .square .tolist .register_hook "
    "torch.equal torch.allclose builtins.float builtins.dict builtins.zip builtins.enumerate".split()
)
"""Calls that give parameters no values, or values that were somewhere before."""

_NO_VALUES_BELOW = (
    "torch.distributed.barrier",
    "torch.distributed.checkpoint.",
    "torch.distributed.device_mesh.",
    "torch.distributed.fsdp.",
    "torch.distributed.get_",
    "torch.distributed.is_",
    "torch.optim.",
    "torch.nn.functional.",
    "torch.utils.data.",
    "transformers.get_",
)


def valued(trace: Trace, start: Event, end: Event, module: Value, *, by_loads: bool = True) -> bool:
    """Whether anything between two events may give the module's parameters and buffers values.

    Without ``by_loads`` the loading of a state dict does not count: it holds what is persistent only.
    """
    if out_of_sight(trace, end, module):
        return True
    for called in trace.of(Called):
        if start.order < called.order < end.order and not _gives_none(called):
            given = (called.receiver, *called.arguments, *called.keywords.values())
            if any(touches(trace, one, module) for one in given):
                return True
    touched = [e.owner for e in trace.after(start, Assigned)]
    if by_loads:
        touched += [e.into for e in trace.after(start, Restored)]
        touched += [s.of for e in trace.after(start, Loaded) for s in e.states]
    if any(_overlap(trace, one, module) for value in touched for one in options(value)):
        return True
    return any(".data" in written for written in trace.memory.fields.values())


def _gives_none(called: Called) -> bool:
    if called.name.startswith("torch.nn.") and called.name.count(".") == 2:
        return True  # a layer or a list is made of others
    return called.name in _NO_VALUES or called.name.startswith(_NO_VALUES_BELOW)


def touches(trace: Trace, value: Value | None, module: Value) -> bool:
    """Whether a value is in or around a module, or made of it: a parameter, a buffer, an element of its parts."""
    for one in () if value is None else options(value):
        if isinstance(one, Literal | External):
            continue  # a number that the module holds too
        seen: Value | None = one
        while seen is not None:
            if isinstance(seen, Parameters):
                return _overlap(trace, seen.of, module)
            if isinstance(seen, Optimizer):
                break
            if overlap(trace, unwrapped(seen), module) is not None:
                return True
            holders = trace.memory.held_by.get(seen, ())
            if any(overlap(trace, unwrapped(h), module) is not None for h in holders):
                return True
            seen = seen.owner if isinstance(seen, Part) else None
    return False
