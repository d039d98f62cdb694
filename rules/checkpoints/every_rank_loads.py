"""Every rank reads the whole file to keep its shards of it.

## What it does

Finds `torch.load` of a full state that is then given to `set_model_state_dict`, `set_optimizer_state_dict` or
`set_state_dict` with `full_state_dict=True`, or tensor by tensor to `distribute_tensor`, where all ranks call it and none maps the file.

## Why is this bad

Each process holds all tensors of the file in its memory until they are distributed: a host with eight ranks reads
it eight times and needs eight times its size. A model that trains well when it is sharded ends there by the
kernel's out-of-memory killer, when a run is resumed. With `broadcast_from_rank0` the copies of all ranks
but the first are not even looked at.

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
-state = torch.load("model.pt", map_location="cpu")
+state = torch.load("model.pt", map_location="cpu", mmap=True)
 options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
 set_model_state_dict(model, state, options=options)
```

## Forms

- Found: an entry of a checkpoint that a trainer resumes from.
- Found: tensors that are distributed one by one.
- Not found: names that are changed on the way.
- Not found: several files that make one state.

## Fix safety

Unsafe: `mmap=True` needs the format that `torch.save` has since 1.6, a path (no open file), and the file to stay
while it is in use: whoever writes over it ends the processes that read it by a bus error. There is no fix where the script
calls `torch.save` later on, unless both paths are written out and differ. The ranks of a host then share its pages. Reading on rank 0 only, with `broadcast_from_rank0`,
is the other way.

## Known limits

Loads before the model is sharded, when each rank holds a whole model anyway, are left alone, and so are safetensors
and files whose path differs by rank.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.load.html (`mmap`)
- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`StateDictOptions.broadcast_from_rank0`)
- `torch/distributed/checkpoint/state_dict.py` (`_load_model_state_dict`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    Event,
    Finding,
    Fix,
    Loaded,
    Optimizer,
    Part,
    Restored,
    Trace,
    Value,
    options,
    rank_dependent,
    rule,
)

from .._common.meta import is_meta
from .._common.parts import holding_shards
from .._common.shared import DCP, Shard, differs_by_rank, shards_before
from ._common.checkpoints import switch
from ._common.fixes_loading import mapped

_DISTRIBUTE = "torch.distributed.tensor.distribute_tensor"
_SETTERS = tuple(f"{DCP}state_dict.set_{what}state_dict" for what in ("model_", "optimizer_", ""))


@rule(code="FSDP314", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Full reads on all ranks."""
    for loaded in trace.of(Loaded):
        called = _call(trace, loaded) if loaded.via == "torch.load" else None
        if called is None or not _whole_on_all_ranks(called, loaded):
            continue
        for restored, shard in _distributions(trace, loaded):
            if _by_rank(restored):
                continue
            yield Finding(
                at=loaded,
                message="every rank reads the whole file into its memory to keep its shards of it: map it by "
                "`mmap=True`, or read it on rank 0 and set `broadcast_from_rank0=True`",
                because=(
                    shard.reason,
                    (restored, "the tensors are distributed here"),
                ),
                fix=_mapped(trace, loaded),
            )
            break


def _distributions(trace: Trace, loaded: Loaded) -> Iterator[tuple[Event, Shard]]:
    """Where what was loaded is given out to the ranks, and the sharding of the model that it is for."""
    for restored in trace.after(loaded, Restored):
        shard = _sharding(trace, restored) if _distributes(trace, restored, loaded) else None
        if shard is not None:
            yield restored, shard
    for called in trace.calls(_DISTRIBUTE):
        whole = called.argument(0, "tensor")
        if whole is None or not trace.precedes(loaded, called):
            continue
        if _root(whole, loaded.result) is loaded.result:
            yield from ((called, s) for s in shards_before(trace, called) if s.order < loaded.order)


def _call(trace: Trace, loaded: Loaded) -> Called | None:
    return next((c for c in trace.calls(loaded.via) if c.result is loaded.result), None)


def _whole_on_all_ranks(called: Called, loaded: Loaded) -> bool:
    """Whether all ranks surely read all of one file."""
    if called.open or "mmap" in called.keywords or _by_rank(loaded):
        return False
    place = called.argument(1, "map_location")
    if place is not None and any(is_meta(one) for one in options(place)):
        return False
    return loaded.path is not None and not differs_by_rank(loaded.path)


def _by_rank(event: Event) -> bool:
    return any(rank_dependent(guard.test) for clause in event.guards.clauses for guard in clause)


def _distributes(trace: Trace, restored: Restored, loaded: Loaded) -> bool:
    """Whether a setter is given what was loaded, or a part of it, as a full state."""
    if restored.via not in _SETTERS:
        return False
    if not any(_root(one, loaded.result) is loaded.result for one in options(restored.state)):
        return False
    for called in trace.calls(restored.via):
        if called.at.node is restored.at.node and "options" in called.keywords:
            return bool(switch(trace, called.keywords["options"], "full_state_dict"))
    return False


def _root(value: Value, until: Value) -> Value:
    while isinstance(value, Part) and value is not until:
        value = value.owner
    return value


def _sharding(trace: Trace, restored: Restored) -> Shard | None:
    """The sharding of the model that gets the state, or of the optimizer's model."""
    models = [restored.into]
    if isinstance(restored.into, Optimizer):
        models = [over.of for over in restored.into.over]
    found = (holding_shards(trace, restored, model) for model in models)
    return next((one[0] for one in found if one is not None), None)


def _mapped(trace: Trace, loaded: Loaded) -> Fix | None:
    """The file mapped, where a path surely is given."""
    edit = mapped(trace, loaded)
    if edit is None:
        return None
    return Fix(
        "map the file", (edit,), "unsafe", "nothing may write over the file while it is in use"
    )
