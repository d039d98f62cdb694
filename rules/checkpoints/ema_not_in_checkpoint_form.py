"""Averaged weights of a sharded model are pickled: the file holds one rank's shards.

## What it does

Finds `torch.save` (pickle, joblib) of tensors computed from a sharded model's parameters or gradients: moving
averages, kept weights, accumulated gradients, alone or inside lists, dictionaries and objects.

## Why is this bad

A clone, an average or a sum of sharded parameters is a `DTensor` as they are. `torch.save` writes the part of it
that lies on this rank: the file lacks the shards of all other ranks, and it loads without an error where the
world is as large as before: every rank then gets the shard of the rank that wrote.

## Example

```diff
 import torch
 import torch.distributed as dist
+import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 ema = {name: weight.detach().clone() for name, weight in model.named_parameters()}
-if dist.get_rank() == 0:
-    torch.save(ema, "ema.pt")
+dcp.save({"ema": ema}, checkpoint_id="ema")
```

## Forms

- Found: a class that keeps a moving average and says its state.
- Found: gradients.
- Not found: tensors that are only made like the parameters.
- Not found: the object that holds the tensors.

## Known limits

State dicts are another matter (FSDP301), and so are hand-made local tensors (FSDP311). A file of its own for each
rank is left alone. What a function makes of a parameter that is not known to keep it sharded is left alone, and so is
a model of which parts are unsharded by hand or replaced under computed names.

## References

- https://docs.pytorch.org/docs/stable/distributed.tensor.html
- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
- `torch/distributed/tensor/_api.py` (`DTensor.__tensor_flatten__`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Assigned,
    Finding,
    Literal,
    Parameters,
    Part,
    Saved,
    Trace,
    Unsharded,
    Value,
    rule,
)

from .._common.shared import Shard, differs_by_rank, sharded
from ._common.checkpoints import is_entry, written

_PICKLES = ("torch.save", "pickle.dump", "joblib.dump")
_KEEPING = frozenset(
    f".{name}()"
    for name in "detach clone cpu cuda to contiguous half float bfloat16 double".split()
) | {".data", ".grad"}
_ARITHMETIC = ("+", "-", "*", "/")


@rule(code="FSDP317", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Pickled tensors that are shards."""
    for saved in trace.of(Saved):
        if saved.via not in _PICKLES or (saved.path and differs_by_rank(saved.path)):
            continue
        for tensor in written(trace, saved):
            of = _parameters(tensor)
            shard = None if of is None else _sharding(trace, saved, of)
            if of is None or shard is None:
                continue
            yield Finding(
                at=saved,
                message=f"`{saved.via}` writes tensors made of the parameters of `{of.of.words()}`, of which "
                "each rank has only its shards; save them with DCP, or gather them by `full_tensor()` on all ranks",
                because=(shard.reason,),
            )
            break


def _parameters(tensor: Value) -> Parameters | None:
    """The parameters of which a tensor is made in ways that keep it sharded."""
    seen: Value | None = tensor
    while isinstance(seen, Part):
        key = seen.operation or seen.key
        if key in _ARITHMETIC and isinstance(seen.owner, Literal) and seen.operation:
            seen = seen.operands[0]  # 0.1 * weight
            continue
        if key not in _KEEPING and key not in _ARITHMETIC and not is_entry(key):
            return None
        seen = seen.owner
    return seen if isinstance(seen, Parameters) else None


def _sharding(trace: Trace, saved: Saved, of: Parameters) -> Shard | None:
    """The sharding before which the parameters were not read."""
    found = sharded(trace, saved, of.of)
    if found is None or of.taken is None or of.taken < found[0].order:
        return None
    gathered = any(trace.before(saved, Unsharded)) or any(
        assigned.name == "…" and trace.inside(assigned.owner, of.of)  # whole ones in their place
        for assigned in trace.before(saved, Assigned)
    )
    return None if gathered else found[0]
