"""What is written into a sharded parameter is lost.

## What it does

Finds `p.data = plain_tensor` and in-place writes into one row of a parameter (`w[i].zero_()`,
`nn.init.zeros_(w[i])`) after its model was sharded.

## Why is this bad

FSDP2 keeps the shard in a tensor of its own. `p.data = …` puts another tensor into the outer `DTensor`, which
the next forward does not look at. `w[i]` of a tensor that is sharded along its rows is gathered into a new
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

Found: each parameter by its name.

```python
dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
state = {"weight": torch.eye(8), "bias": torch.zeros(8)}
for name, parameter in model.named_parameters():
    parameter.data = state[name]
```

Found: a method that clears a row.

```python
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(16, 8)

    def forget(self, index):
        nn.init.zeros_(self.words.weight[index])


dist.init_process_group("gloo")
model = Net()
fully_shard(model)
with torch.no_grad():
    model.forget(0)
```

Not found: a gathered tensor in the place of the shard.

```python
dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
for parameter in model.parameters():
    parameter.data = parameter.full_tensor()
```

Not found: tensors from a file of safetensors, which are always plain.

```python
from safetensors.torch import load_file

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
state = load_file("model.safetensors")
for name, parameter in model.named_parameters():
    parameter.data = state[name]
```

## Fix safety

Unsafe: the statement with the write moves above the `fully_shard` calls of its model when all are in one block,
it does nothing but write into tensors (also in the functions that it calls), and nothing between uses the model
otherwise. Random values are then drawn by each rank for itself: the ranks need one seed.

## Known limits

Writes into columns (`w[:, i]`) reach the shard and are fine. Silent while parameters may be gathered, with
`shard_placement_fn`, and for tensors of unknown origin. `w[i] = 0` raises NotImplementedError and is seen
without a linter.

## References

- https://docs.pytorch.org/docs/stable/distributed.tensor.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`_sharded_param_data`)
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator

from fsdp2lint.api import Called, Container, Event, Finding, Part, Trace, Value, Written, rule

from ..._common.shared import Shard
from ..._common.tensors import asks_for_kind, is_plain, shard_of
from .writing import written_before

_WRITING = tuple(
    f".{name}" for name in "add_ clamp_ copy_ div_ fill_ mul_ normal_ sub_ uniform_ zero_".split()
)
_INIT = "torch.nn.init."
_INDEX = re.compile(r"\[-?\d+\]\Z")


@rule(code="FSDP249", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Writes that reach no shard."""
    lost = list(_lost(trace))
    nodes = {event.at.node for event, *_ in lost}
    for event, tensor, shard, message in lost:
        yield Finding(
            at=event,
            message=message,
            because=((shard.event, f"`{shard.module.words()}` is sharded here"),),
            fix=written_before(trace, event, tensor, nodes),
        )


def _lost(trace: Trace) -> Iterator[tuple[Event, Value, Shard, str]]:
    """Each lost write: its event, the tensor, the sharding, and what to say of it."""
    for written in trace.of(Written):
        tensor = written.owner
        shard = shard_of(trace, written, tensor)
        if written.name != "data" or shard is None or asks_for_kind(written):
            continue
        if is_plain(trace, written, written.value):
            message = (
                f"`{tensor.words()}` is sharded: the tensor that is put into its `.data` is not the shard that "
                "the next forward gathers, so the write is lost"
            )
            yield written, tensor, shard, message
    for called in trace.calls_named(_writes):
        row = _row(called)
        shard = None if row is None or asks_for_kind(called) else shard_of(trace, called, row.owner)
        if row is None or shard is None or "shard_placement_fn" in shard.event.options:
            continue
        message = f"`{row.words()}` is a copy of a row that lies on one of the ranks: what is written into it is lost"
        yield called, row.owner, shard, message


def _writes(name: str) -> bool:
    return name in _WRITING or (name.startswith(_INIT) and name.endswith("_"))


def _row(called: Called) -> Part | None:
    """The row of a tensor that a call writes into."""
    written: Value | None = None
    if called.name in _WRITING:
        written = called.receiver
    elif _writes(called.name):
        written = called.argument(0, "tensor")
    return written if isinstance(written, Part) and _is_index(written.key) else None


def _is_index(key: Hashable) -> bool:
    """Whether a key is one index along the rows: a number, or a value that is no tuple and no slice."""
    if isinstance(key, tuple):
        index = key[1] if key[0] == "[]" else None
        return isinstance(index, Value) and not isinstance(index, Container)
    return isinstance(key, str) and bool(_INDEX.match(key))
