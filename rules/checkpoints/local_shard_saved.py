"""The local tensors of a sharded model are saved as if they were the whole.

## What it does

Finds `torch.save`, `dcp.save` and their like of tensors that `to_local()` or `_local_tensor` took from the
parameters or the state dict of a sharded model.

## Why is this bad

A local tensor is this rank's part of the parameter and no longer knows it. In a file that one rank writes, the
parts of the others are missing; in a DCP checkpoint, plain tensors of one name count as copies of each other
and one rank's are kept. Loading it fails on the sizes, or gives every rank the same part.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-weights = {name: weight.to_local() for name, weight in model.state_dict().items()}
+weights = {name: weight.full_tensor().cpu() for name, weight in model.state_dict().items()}
 if dist.get_rank() == 0:
     torch.save(weights, "model.pt")
```

## Forms

- Found: a helper function that takes the local tensors.
- Found: safetensors, and one weight.
- Not found: a plain model that is filled with the local tensors.
- Not found: a state dict whose entries are replaced one by one.

## Known limits

Files whose path contains the rank are left alone: each rank then keeps its own part. So are tensors that were
redistributed before.

## References

- https://docs.pytorch.org/docs/stable/distributed.tensor.html (`DTensor.to_local`, `full_tensor`)
- `torch/distributed/checkpoint/planner_helpers.py`
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Event,
    Finding,
    Parameters,
    Part,
    Saved,
    StateDict,
    Trace,
    Value,
    rule,
)

from .._common.parts import layer_with_parameters
from .._common.ranks import decides
from .._common.shared import changed, of_shards, sharded, state_shard
from ._common.checkpoints import is_entry, same_everywhere, written

_KEPT = {
    f".{name}()" for name in "detach cpu clone contiguous half float bfloat16 to numpy".split()
} | {".data"}
_LOCAL = (".to_local()", "._local_tensor")


@rule(code="FSDP311", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Saves of parts."""
    for saved in trace.of(Saved):
        if not (same_everywhere(saved.path) or _by_some_ranks(trace, saved)):
            continue
        for tensor in written(trace, saved):
            source = _origin(tensor)
            shard = None if source is None else _sharding(trace, saved, source)
            if source is None or shard is None:
                continue
            yield Finding(
                at=saved,
                message=f"the local tensors of `{source.of.words()}` are this rank's shards: what is saved "
                "lacks those of the other ranks; gather them with `full_tensor()` on all ranks",
                because=((shard, "it is sharded here"),),
            )
            break


def _by_some_ranks(trace: Trace, saved: Saved) -> bool:
    """Whether only some ranks write, wherever they do, and the others nothing in their place."""
    return any(
        decides(guard.test) and not any(~guard in other.guards for other in trace.of(Saved))
        for guard in saved.guards
    )


def _origin(tensor: Part) -> StateDict | Parameters | None:
    """The state dict or the parameters of which a tensor is the local part of an entry."""
    seen: Value | None = tensor
    local = False
    while isinstance(seen, Part):
        layer = seen.owner if seen.key in (".weight", ".bias") else None
        if local and layer is not None and layer_with_parameters(layer):
            return Parameters(layer, None)
        key = seen.operation or seen.key
        if key in _LOCAL:
            local = True
        elif key not in _KEPT and not is_entry(key):
            return None
        seen = seen.owner
    return seen if local and isinstance(seen, StateDict | Parameters) else None


def _sharding(trace: Trace, saved: Saved, source: StateDict | Parameters) -> Event | None:
    """Where the model was sharded that the tensors are of."""
    if isinstance(source, StateDict):
        other = not of_shards(source) or changed(trace, source, saved)
        shard = None if other else state_shard(trace, saved, source)
        return None if shard is None else shard.event
    found = sharded(trace, saved, source.of)
    return None if found is None else found[0].event
