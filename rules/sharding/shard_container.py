"""`fully_shard` is applied to a container of modules that has no forward.

## What it does

Finds `fully_shard` calls on a `ModuleList` or `ModuleDict`.

## Why is this bad

The hooks of a sharded module run around its forward. A `ModuleList` and a `ModuleDict` are never called,
so `fully_shard` refuses them: `ValueError: fully_shard does not support containers that do not implement
forward`.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
-fully_shard(layers)
+for layer in layers:
+    fully_shard(layer)
```

## Forms

- Found: the list of blocks of a language model of Transformers.
- Found: a dictionary of modules, in a helper function.
- Not found: a list of a model whose class is not resolved.

## Fix safety

Safe: what could not run becomes one call for each child, with the same arguments. Where a child is such a
container too, there is no fix.

## Known limits

Only containers whose class can be resolved, and `model.model.layers` and its like of a language model of Transformers;
`model.layers` of another model from elsewhere is not judged by its name.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_init.py` (`_validate_module`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Class,
    External,
    Finding,
    Fix,
    Instance,
    Module,
    Part,
    Remove,
    Sharded,
    Trace,
    Value,
    lineage,
    options,
    rule,
)

from .._common.fixes import call_of, first_argument, loop_before, once, path_text, stands_alone
from .._common.shared import Shard, is_list_of_blocks, parts_of, shards


@rule(code="FSDP208", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Containers handed to ``fully_shard``."""
    for shard in shards(trace):
        name = _container(shard.module)
        if not name or _lacks_something(trace, shard):
            continue
        said = shard.module.words()
        yield Finding(
            at=shard.event,
            message=f"`{said}` is a `{name}`, which has no forward: "
            "`fully_shard` raises ValueError; shard its children",
            fix=_loop(trace, shard, name),
        )


def _lacks_something(trace: Trace, shard: Shard) -> bool:
    """Whether what holds the container is a module whose class has no attribute that the function has sharded before:
    with one of that class it has raised there.
    """
    holders = trace.memory.held_by.get(shard.module, ())
    return any(
        isinstance(part, Part)
        and isinstance(part.key, str)
        and part.key.startswith(".")
        and isinstance(part.owner, Module)
        and part.owner in holders
        for earlier in trace.before(shard.event, Sharded)
        if earlier.calls == shard.event.calls
        for part in options(earlier.module)
    )


def _container(value: Value) -> str:
    """The name of the container class that ``value`` is an instance of, or nothing."""
    if is_list_of_blocks(value):
        return "ModuleList"
    if not isinstance(value, Instance):
        return ""
    for cls in lineage(value.cls):
        if isinstance(cls, Class) and cls.scope.names.get("forward") is not None:
            return ""
        if isinstance(cls, External) and cls.name in ("torch.nn.ModuleList", "torch.nn.ModuleDict"):
            return cls.name.rpartition(".")[2]
    return ""


def _loop(trace: Trace, shard: Shard, name: str) -> Fix | None:
    """One call for each child."""
    site = shard.event.at
    call = call_of(site)
    items = "" if call is None else path_text(site, first_argument(call))
    if call is None or not items or stands_alone(site) is None or not once(trace, shard):
        return None
    if any(_container(part) for part in parts_of(trace, shard.module)):
        return None  # those cannot be sharded either
    items += ".values()" if name == "ModuleDict" else ""
    edits = (loop_before(site, call, items), Remove(site.source, site.node))
    return Fix("shard each child", edits, "safe")
