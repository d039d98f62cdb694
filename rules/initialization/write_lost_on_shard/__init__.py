"""What is written into a sharded parameter is lost.

## What it does

Finds `p.data = tensor` and writes into rows of a parameter, of its gradient or of a tensor like it
(`w[i].zero_()`, `nn.init.zeros_(w[i])`, `mask[i] = torch.ones_like(mask[i])`) after its model was sharded.

## Why is this bad

FSDP2 keeps the shard in a tensor of its own. `p.data = …` puts another tensor into the outer `DTensor`, which
neither the next forward nor `p` itself looks at, be it a `DTensor` too: averaged weights that are swapped in for an evaluation
are not used, limited weights are not limited. `w[i]` of a tensor that is sharded along its rows is gathered into a new
tensor, and what is written into that is thrown away. Neither raises. Write before `fully_shard`.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
-fully_shard(model)
 with torch.no_grad():
     model.weight[0].zero_()
+fully_shard(model)
```

## Forms

- Found: each parameter by its name.
- Found: a method that clears a row.
- Found: a mask like a gradient, which is sharded as the gradient is.
- Found: a gathered tensor in the place of the shard.
- Found: averaged weights in the place of the trained ones.
- Found: weights that are to stay in a range.
- Found: master weights that are kept on the parameters.
- Not found: what is put back into `.data` as it was taken from there.
- Not found: tensors from a file of safetensors, which are always plain.

## Fix safety

Unsafe: the statement with the write moves above the `fully_shard` calls of its model when all are in one block,
it does nothing but write into tensors (also in the functions that it calls), and nothing between uses the model
otherwise. Random values are then drawn by each rank for itself: the ranks need one seed. Tensors that are sharded
like the parameter are copied into it instead (`p.data.copy_(…)`), and what the function keeps of it is cloned first.

## Known limits

Writes into columns (`w[:, i]`) reach the shard and are fine. Silent while parameters may be gathered, with
`shard_placement_fn`, and for tensors of unknown origin. `w[i] = 0` raises NotImplementedError and is seen
without a linter.

## References

- https://docs.pytorch.org/docs/stable/distributed.tensor.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`_sharded_param_data`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Event,
    Finding,
    Part,
    RowWrite,
    Trace,
    Value,
    Written,
    like,
    row_writes,
    rule,
)

from ..._common.shared import Shard
from ..._common.tensors import asks_for_kind, shard_of, tensor_of
from .replaced import copied, is_another
from .writing import written_before


@rule(code="FSDP249", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Writes that reach no shard."""
    lost = list(_lost(trace))
    nodes = {event.at.node for event, *_ in lost}
    for event, tensor, shard, message in lost:
        yield Finding(
            at=event,
            message=message,
            because=(shard.reason,),
            fix=(copied(trace, event) if isinstance(event, Written) else None)
            or written_before(trace, event, tensor, nodes),
        )


def _lost(trace: Trace) -> Iterator[tuple[Event, Value, Shard, str]]:
    """Each lost write: its event, the tensor, the sharding, and what to say of it."""
    for written in trace.of(Written):
        tensor = written.owner
        shard = shard_of(trace, written, tensor)
        if written.name != "data" or shard is None or asks_for_kind(written):
            continue
        if is_another(trace, written):
            found = tensor_of(trace, tensor)
            reader = (
                "the optimizer reads"
                if found is not None and found.gradient
                else "the next forward gathers"
            )
            message = (
                f"`{tensor.words()}` is sharded: the tensor that is put into its `.data` is not the shard that "
                f"{reader}, so the write is lost"
            )
            yield written, tensor, shard, message
    for row in row_writes(trace):
        owner = like(trace, row.tensor)
        shard = None if asks_for_kind(row.event) else shard_of(trace, row.event, owner)
        if shard is None or "shard_placement_fn" in shard.event.options:
            continue
        if row.value is not None and not _is_distributed(trace, row):
            continue  # a plain tensor or a number raises
        message = f"`{row.words}` is a copy of rows that lie on some of the ranks: what is written into it is lost"
        yield row.event, row.tensor, shard, message


def _is_distributed(trace: Trace, row: RowWrite) -> bool:
    """Whether what is assigned to rows is surely made of a shard too."""
    value = like(trace, row.value) if row.value is not None else None
    while isinstance(value, Part):
        if shard_of(trace, row.event, value) is not None:
            return True
        value = like(trace, value.owner)
    return False
