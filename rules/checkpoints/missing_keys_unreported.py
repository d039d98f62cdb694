"""A load of full weights says nothing of the keys that they lack.

## What it does

Finds `set_model_state_dict` and `set_state_dict` with `full_state_dict=True` that report no missing keys: where the
script reads `missing_keys`, or prints the result, without a load that is strict and broadcasts; and where weights
from a file are to be loaded strictly and `broadcast_from_rank0` is off.

## Why is this bad

PyTorch puts the model's own values in the place of the keys that a full state dict lacks, before it loads. Nothing is
missing then: `missing_keys` is empty, the result says "All keys matched successfully", and `strict=True` does not
raise. A layer that is not in the file keeps its random weights, and training goes on. Only a broadcast with
`strict=True` takes those values out again, and raises.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 state = torch.load("model.pt", map_location="cpu", mmap=True)
-options = StateDictOptions(full_state_dict=True)
+options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
 set_model_state_dict(model, state, options=options)
```

## Forms

- Found: keys that a caller asks for.
- Found: an entry of a checkpoint that a trainer resumes from.
- Not found: weights whose names the script itself looks at.
- Not found: a result that is kept in an attribute.

## Fix safety

Unsafe: with `broadcast_from_rank0` the weights of rank 0 go to all ranks, which must all take part. There is no fix for a
model that is sharded with a `mesh` or an `offload_policy`, nor for a compiled one: there the other ranks must load an empty
dictionary, since the names of weights of their own are unexpected. A result that the script reads gets none either:
compare the names with those of `model.state_dict()` before the load.

## Known limits

Measured on torch 2.13. Weights that come from no file in the script are left alone unless the result is read.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`StateDictOptions`)
- `torch/distributed/checkpoint/state_dict.py` (`_load_model_state_dict`)
- `torch/distributed/_state_dict_utils.py` (`_broadcast_state_dict`)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from fsdp2lint.api import (
    Called,
    Event,
    Finding,
    Fix,
    Layout,
    Loaded,
    Part,
    Restored,
    Site,
    Trace,
    Value,
    options,
    rank_dependent,
    rule,
    walk,
)

from .._common.shared import DCP, sharded, wrapped_by
from ._common.checkpoints import switch, switched_on

_SETTERS = (f"{DCP}state_dict.set_model_state_dict", f"{DCP}state_dict.set_state_dict")


@rule(code="FSDP330", group="suspicious", preview=True)
def check(trace: Trace) -> Iterator[Finding]:
    """Loads of full weights whose missing keys are not reported."""
    for restored in trace.of(Restored):
        called = _call(trace, restored)
        given = called.keywords.get("options") if called is not None else None
        if called is None or given is None or restored.kind != "model":
            continue
        strict, broadcast = (switch(trace, given, n) for n in ("strict", "broadcast_from_rank0"))
        if switch(trace, given, "full_state_dict") is not True:
            continue
        if strict is not False and broadcast is not False:
            continue
        read = _read(restored)
        if read is not None:
            yield Finding(
                at=read,
                message="this never names a missing key: a full state dict is filled up with the model's own values "
                "before it is loaded; compare the names with those of `model.state_dict()`",
                because=((restored, "the weights are loaded here"),),
            )
            continue
        file = _file(trace, restored)
        if strict and file is not None and not _looked_at(restored.at) and not _by_rank(file):
            yield Finding(
                at=restored,
                message="keys that the file lacks do not raise: the model keeps its own values for them; set "
                "`broadcast_from_rank0=True`, with which a strict load raises",
                because=((file, "the file is read here"),),
                fix=_broadcast(trace, restored, given),
            )


def _broadcast(trace: Trace, restored: Restored, given: Value) -> Fix | None:
    """The switch, where the model is sharded over all ranks, on their own devices, and not compiled."""
    here = sharded(trace, restored, restored.into)
    if (
        here is None
        or here[0].event.open
        or {"mesh", "offload_policy"} & set(here[0].event.options)
    ):
        return None
    if any(wrapped_by(one, "compile") for one in options(restored.into)):
        return None
    fix = switched_on(trace, given, "broadcast_from_rank0", _SETTERS)
    return (
        None
        if fix is None
        else replace(fix, safety="unsafe", note="all ranks get what rank 0 read")
    )


def _call(trace: Trace, restored: Restored) -> Called | None:
    if restored.via not in _SETTERS:
        return None
    return next((c for c in trace.calls(restored.via) if c.at.node is restored.at.node), None)


def _file(trace: Trace, restored: Restored) -> Loaded | None:
    """Where the weights, or the checkpoint that they are an entry of, are read from a file."""
    read = {loaded.result: loaded for loaded in trace.of(Loaded)}
    for one in options(restored.state):
        value: Value | None = one
        while value is not None:
            if value in read:
                return read[value]
            value = value.owner if isinstance(value, Part) and isinstance(value.key, str) else None
    return None


def _by_rank(event: Event) -> bool:
    """Whether only some ranks read the file: without a broadcast the load fails in another way."""
    return any(rank_dependent(guard.test) for clause in event.guards.clauses for guard in clause)


def _looked_at(site: Site) -> bool:
    """Whether the function uses its weights for more than the load: it may compare the names."""
    call = site.node
    given = call.args[1].value if isinstance(call, cst.Call) and len(call.args) > 1 else None
    while isinstance(given, cst.Subscript | cst.Attribute):
        given = given.value
    if not isinstance(given, cst.Name):
        return False
    layout = Layout.of(site.source)
    uses = [use for use in _names(site, given.value) if not _inside(layout, use, call)]
    return any(
        not isinstance(layout.parents[use], cst.AssignTarget | cst.Subscript | cst.Del | cst.Param)
        for use in uses
    )


def _read(restored: Restored) -> Site | None:
    """Where the missing keys of a load are read, in its function or in a caller that gets the result."""
    for site in (restored.at, *reversed(restored.calls)):
        found = _use(site)
        if not isinstance(found, cst.Return):
            return (
                None
                if found is None
                else Site(site.source, found, Layout.of(site.source).statement(found))
            )
    return None


def _use(site: Site) -> cst.CSTNode | None:
    """What reads the missing keys of a result; a return that hands it on."""
    parents = Layout.of(site.source).parents
    around = parents.get(site.node)
    if isinstance(around, cst.Return):
        return around
    if isinstance(around, cst.Attribute | cst.Arg):
        return _reading(site, site.node)
    if not isinstance(around, cst.Assign) or len(around.targets) != 1:
        return None
    target = around.targets[0].target
    apart = isinstance(target, cst.Tuple)
    named: cst.CSTNode = target
    if isinstance(target, cst.Tuple):
        named = target.elements[0].value
    if not isinstance(named, cst.Name) or named.value.startswith("_"):
        return None
    uses = [use for use in _names(site, named.value) if use is not named]
    if any(isinstance(parents[use], cst.AssignTarget | cst.Param) for use in uses):
        return None
    if apart:
        return uses[0] if uses else None
    return next((found for use in uses if (found := _reading(site, use)) is not None), None)


def _reading(site: Site, result: cst.CSTNode) -> cst.CSTNode | None:
    """What reads more of a result than the keys that were not expected."""
    around = Layout.of(site.source).parents[result]
    if isinstance(around, cst.Attribute):
        return around if around.attr.value == "missing_keys" else None
    if isinstance(around, cst.Subscript):
        return around if site.source.code(around).endswith("[0]") else None
    return around if isinstance(around, cst.Return) else result


def _names(site: Site, name: str) -> list[cst.Name]:
    """Where the function around a site uses a name."""
    scope = Layout.of(site.source).function(site.node) or site.source.tree
    return [n for n in walk(scope) if isinstance(n, cst.Name) and n.value == name]


def _inside(layout: Layout, node: cst.CSTNode, whole: cst.CSTNode) -> bool:
    return any(a is whole for a in layout.ancestors(node))
