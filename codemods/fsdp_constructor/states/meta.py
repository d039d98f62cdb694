"""Modules on the meta device: FSDP1 gives them memory and initial values, ``fully_shard`` does not.

Facts (torch/distributed/fsdp/_init_utils.py, ``_materialize_meta_module``, torch 2.13): without
``param_init_fn`` each module of a unit with meta parameters that has parameters or buffers of its own gets
``to_empty`` and ``reset_parameters()``, under ``no_grad``, before the unit is sharded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Function,
    Instance,
    Literal,
    Moved,
    Trace,
    Value,
    Wrapping,
    dotted,
    options,
    walk,
)

from ..._common.names import class_of, is_none
from ..._common.shared import Helpers, Naming
from ..devices import device_of
from ..helpers import FSDP, inside, taken
from ..pieces import Pieces
from ..site import Argument, Construction


def initialise(site: Construction, pieces: Pieces, helpers: Helpers) -> bool:
    """``param_init_fn``; whether units may have to be materialised."""
    argument = site.arguments.get("param_init_fn")
    if argument is None or (argument.values and all(is_none(v) for v in argument.values)):
        return _by_default(site, pieces, helpers)
    text = site.text(argument.value)
    if not re.fullmatch(r"[\w.]+", text):
        name = site.free("param_init_fn", "init_fn")
        pieces.before.append(f"{name} = {site.flat(argument.value)}")
        text = name
    pieces.prepare.append(
        f"{helpers.add('materialize_unit', materialize_helper)}({{module}}, {text})"
    )
    pieces.draws = not _only_memory(argument)
    why = (
        "it is called on the modules of each unit that is on the meta device, before it is sharded"
    )
    site.account(argument.node, "changed", why)
    return True


def _only_memory(argument: Argument) -> bool:
    """Whether a function gives modules memory and no values: it calls ``to_empty`` and names a device."""
    given = [one for one in argument.values if not is_none(one)]
    functions = [one.node for one in given if isinstance(one, Function)]
    if len(functions) < len(given):
        return False
    called = {
        node.func.attr.value if isinstance(node.func, cst.Attribute) else dotted(node.func)
        for function in functions
        for node in walk(function)
        if isinstance(node, cst.Call)
    }
    return "to_empty" in called and called <= {"to_empty", "device", "current_device"}


def materialize_helper(name: str, named: Naming) -> str:
    """The function that gives a unit on the meta device its parameters, as FSDP1 does."""
    return f'''def {name}(unit, init_fn):
    """Initialise a module that is on the meta device, but for the parts that are sharded already."""
    if init_fn is None or not any(p.is_meta for p in unit.parameters()):
        return
    modules = [unit]
    for module in modules:
        init_fn(module)
        modules += [m for m in module.children() if not isinstance(m, {named(f"{FSDP}FSDPModule")})]'''


def _may_be_meta(site: Construction) -> bool:
    """Whether a part of the module may have been built without memory, and not got any since."""
    return any(
        not _has_memory(trace, event)
        and (
            any(_is_inside(trace, event, called) for called in _born_on_meta(trace))
            or _sent_to_meta(trace, event)
        )
        for trace, event in site.events
    )


def _born_on_meta(trace: Trace) -> Iterator[Called]:
    """The calls that name the meta device, or are in a block that does; a constant that one gives has no memory."""
    for called in trace.of(Called):
        if isinstance(called.result, Literal):
            continue
        device = called.keywords.get("device")
        devices = called.within if device is None else (device,)
        if any(_is_meta(one) for value in devices for one in options(value)):
            yield called


def _sent_to_meta(trace: Trace, event: Wrapping) -> bool:
    """Whether the module may have lost its memory before: ``model.to_empty(device="meta")``."""
    return any(
        _is_to_meta(moved)
        and trace.concerns(moved, event.module)
        and not moved.guards.excludes(event.guards)
        for moved in trace.before(event, Moved)
    )


def _is_to_meta(moved: Moved) -> bool:
    return any(_is_meta(one) for value in moved.to for one in options(value))


def _is_meta(value: Value) -> bool:
    if isinstance(value, Instance) and class_of(value) == "torch.device":
        return any(map(_is_meta, options(value.part(".argument0"))))
    return isinstance(value, Literal) and value.value == "meta"


def _is_inside(trace: Trace, event: Wrapping, called: Called) -> bool:
    return (
        called.order < event.order
        and not called.guards.excludes(event.guards)
        and any(trace.inside(called.result, module) for module in options(event.module))
    )


def _has_memory(trace: Trace, event: Wrapping) -> bool:
    """Whether ``to_empty`` comes before in every run."""
    return any(
        moved.how == "to_empty"
        and not _is_to_meta(moved)
        and event.guards.implies(moved.guards)
        and trace.concerns(moved, event.module)
        for moved in trace.before(event, Moved)
    )


def _by_default(site: Construction, pieces: Pieces, helpers: Helpers) -> bool:
    """Plan what FSDP1 does where no function is given."""
    argument, on_meta, device = (
        site.arguments.get("param_init_fn"),
        _may_be_meta(site),
        device_of(site).text,
    )

    def helper(name: str, named: Naming) -> str:
        return _helper(name, named, device)

    if on_meta:
        given = "" if device.startswith('"') else f", {device}"
        pieces.prepare.append(f"{helpers.add('materialize_unit', helper)}({{module}}{given})")
        pieces.draws = True
    if argument is not None:
        why = (
            "without it FSDP1 calls `reset_parameters` on the meta device: so does a small function"
        )
        why = why if on_meta else "there is nothing to initialise"
        site.account(argument.node, "changed" if on_meta else "dropped", why)
    return on_meta


def _helper(name: str, named: Naming, device: str) -> str:
    return f'''@{named("torch.no_grad")}()
def {name}(unit{taken(device)}):
    """Give a unit that is on the meta device, but for what is sharded already, its initial values."""
    if not any(p.is_meta for p in unit.parameters()):
        return
    modules = [unit]
    for module in modules:
        if [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            module.to_empty(device={inside(device)}, recurse=False)
            module.reset_parameters()
        modules += [m for m in module.children() if not isinstance(m, {named(f"{FSDP}FSDPModule")})]'''
