"""`to_empty` allocates the whole model on each rank, before it is sharded.

## What it does

Finds `to_empty` of a model on the meta device that is sharded only afterwards, and `to_empty` whose device is
given by position.

## Why is this bad

A model is built on the meta device so that no rank has to hold it whole. `to_empty` before `fully_shard`
allocates all of it on each rank, and `fully_shard` then throws the most of it away: what did not fit before
does not fit now. After `fully_shard` it allocates the shards only. The device is a keyword: by position it is
a TypeError.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 with torch.device("meta"):
     model = nn.Linear(8, 8)
+fully_shard(model)
 model.to_empty(device="cpu")
-fully_shard(model)
 model.reset_parameters()
```

## Forms

- Found: a helper function that builds and allocates.
- Found: each layer just before its own sharding.
- Found: a language model of Transformers.
- Not found: memory that is given by a function of the script.

## Fix safety

Unsafe: the statement moves below the last `fully_shard` when all are in one block and nothing between uses
the model's values. A device by position becomes a keyword; that fix is safe.

## Known limits

Silent when the model is initialised or loaded between the two: then it is whole on purpose (all ranks draw
the same values, or a plain state dict is loaded). Allocation of a part of a model is left alone, and
so is `recurse=False`, which gives memory to the parameters of one module and not to those of its parts.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html (`to_empty`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Finding,
    Fix,
    Forward,
    Moved,
    Replace,
    Restored,
    Trace,
    dotted,
    rule,
    unwrapped,
)

from .._common.fixes import call_of
from .._common.fixes_moving import moved_below
from .._common.meta import built_on_meta, given_memory, ways_without_values
from .._common.shared import Shard, line_of, shards_after, together


@rule(code="FSDP216", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Allocations that are too large, or none."""
    for moved in trace.of(Moved):
        if moved.how != "to_empty":
            continue
        if _by_position(moved):
            yield Finding(
                at=moved,
                message="`to_empty` takes its device as the keyword `device`: by position it raises TypeError",
                fix=_keyword(moved),
            )
            continue
        if _own_only(moved):
            continue
        module = unwrapped(moved.module)
        later = _shards_it(trace, moved)
        if not later or built_on_meta(trace, moved, module) is None:
            continue
        if given_memory(trace, moved, module) or _whole_on_purpose(trace, moved, later):
            continue
        yield Finding(
            at=moved,
            message=f"`to_empty` allocates the whole `{module.words()}` on each rank, and "
            f"`fully_shard` on {line_of(later[-1].event, moved)} keeps a shard of it: call it after that",
            because=((later[-1].event, "sharded here, later"),),
            fix=_later(moved, later),
        )


def _by_position(moved: Moved) -> bool:
    call = call_of(moved.at)
    return (
        call is not None
        and bool(call.args)
        and call.args[0].keyword is None
        and not call.args[0].star
    )


def _own_only(moved: Moved) -> bool:
    """Whether a module's own parameters alone get memory, and not those of its parts."""
    call = call_of(moved.at)
    args = call.args if call is not None else ()
    given = {arg.keyword.value: arg.value for arg in args if arg.keyword is not None}
    return "recurse" in given and dotted(given["recurse"]) == "False"


def _keyword(moved: Moved) -> Fix | None:
    """The device as a keyword."""
    call = call_of(moved.at)
    if call is None or len(call.args) != 1:
        return None
    source = moved.at.source
    text = f"{source.code(call.func)}(device={source.code(call.args[0].value)})"
    return Fix("name the device", (Replace(source, call, text),), "safe")


def _shards_it(trace: Trace, moved: Moved) -> list[Shard]:
    """The later shardings of the module itself and of what is in it, when it is sharded as a whole."""
    module = unwrapped(moved.module)
    later = [s for s in shards_after(trace, moved) if together(s.guards, moved.guards)]
    if not any(s.module is module for s in later):
        return []
    return [s for s in later if trace.inside(s.module, module)]


def _whole_on_purpose(trace: Trace, moved: Moved, later: list[Shard]) -> bool:
    """Whether the module gets values, or computes, before it is sharded."""
    module, last = unwrapped(moved.module), later[-1].event
    if not ways_without_values(trace, moved, last, module, moved.guards):
        return True
    between = [*trace.before(last, Forward), *trace.before(last, Restored)]
    return any(e.order > moved.order for e in between)


def _later(moved: Moved, later: list[Shard]) -> Fix | None:
    """The statement below the last sharding."""
    return moved_below(
        moved,
        [s.event for s in later],
        "allocate after the model is sharded",
        "look at what was meant to happen between the two",
    )
