"""Memory and values for a sharded model that has none."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import (
    Called,
    Event,
    Fix,
    GroupStarted,
    InsertAfter,
    Literal,
    Trace,
    Value,
)

from ..._common.fixes import call_of, first_argument, own_statement, path_text
from ..._common.meta import born_on_meta
from ..._common.shared import (
    Shard,
    class_name,
    has_parameters,
    is_none,
    shards,
    shards_before,
    together,
)
from .._common.fixes_values import values_for

_OF_GROUP = {"gloo": "cpu", "nccl": "cuda", "cpu:gloo,cuda:nccl": "cuda", "cuda:nccl": "cuda"}
_MESH = "torch.distributed.device_mesh.init_device_mesh"


def materialized(trace: Trace, forward: Event, module: Value) -> Fix | None:
    """``to_empty`` and an initialisation below the ``fully_shard`` of the outermost model around a module.

    None unless all that the model holds is surely on the meta device there, and the device is known.
    """
    around = [
        s
        for s in shards_before(trace, forward)
        if trace.inside(module, s.module) and together(s.guards, forward.guards)
    ]
    if not around:
        return None
    shard = max(around, key=lambda s: s.order)
    name, device = _name(shard), _device(trace, shard)
    if not name or not device or not _all_on_meta(trace, shard):
        return None
    others = (s for s in shards(trace) if s.event.at.node is shard.event.at.node)
    if any(s.module is not shard.module for s in others):
        return None
    site = shard.event.at
    values = values_for(trace, shard.event, shard.module, name)
    if not values:
        return None
    text = f'{name}.to_empty(device="{device}")\n{values}'
    return Fix(
        "give the shards memory and initialise them",
        (InsertAfter(site.source, site.node, text),),
        "unsafe",
        "each layer gets the values that torch gives it by default: look at what the model wants beside",
    )


def _name(shard: Shard) -> str:
    """How the model is called below the statement that shards it."""
    site = shard.event.at
    call, statement = call_of(site), own_statement(site)
    if call is None or statement is None or len(shard.event.modules) > 1:
        return ""
    if isinstance(statement, cst.Assign):
        return path_text(site, statement.targets[0].target)
    return path_text(site, first_argument(call)) if isinstance(statement, cst.Expr) else ""


def _all_on_meta(trace: Trace, shard: Shard) -> bool:
    """Whether every layer with parameters is built without memory whenever it is built."""
    born = {c.result for c, guards in born_on_meta(trace) if c.guards.implies(guards)}
    layers = (
        c.result
        for c in trace.of(Called)
        if trace.inside(c.result, shard.module) and has_parameters(trace, c.result, 0)
    )
    return all(layer in born for layer in layers)


def _device(trace: Trace, shard: Shard) -> str:
    """Where the shards belong; nothing when that is not resolved."""
    offload = shard.event.options.get("offload_policy")
    if shard.event.open:
        return ""
    if not is_none(offload):
        return "cpu" if class_name(offload).endswith(".CPUOffloadPolicy") else ""  # type: ignore[arg-type]
    if not is_none(shard.event.options.get("mesh")):
        types = [called.argument(0, "device_type") for called in trace.calls(_MESH)]
        said = {one.value if isinstance(one, Literal) else None for one in types}
        return str(said.pop()) if len(said) == 1 and said <= {"cpu", "cuda"} else ""
    backends = {started.backend for started in trace.of(GroupStarted)}
    return _OF_GROUP.get(str(backends.pop()), "") if len(backends) == 1 else ""
