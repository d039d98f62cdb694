"""Every rank gathers the whole model on its device, and only the first writes it.

## What it does

Finds `get_model_state_dict`, `get_optimizer_state_dict` and `get_state_dict` of a sharded model with
`full_state_dict=True` and without `cpu_offload=True`, where only the first rank does anything with the result: it
saves it.

## Why is this bad

Without `cpu_offload` each rank keeps a full copy of every tensor on its own device: a model that was sharded
because it does not fit is put together on each GPU, beside the shards. With it each tensor goes to the CPU of the
first rank as it is gathered, and the other ranks hold nothing: on two CPU ranks the second one gets all tensors
without the switch and an empty dictionary with it.

## Example

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
options = StateDictOptions(full_state_dict=True)
weights = get_model_state_dict(model, options=options)
if dist.get_rank() == 0:
    torch.save(weights, "model.pt")
```

## Use instead

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
options = StateDictOptions(full_state_dict=True, cpu_offload=True)
weights = get_model_state_dict(model, options=options)
if dist.get_rank() == 0:
    torch.save(weights, "model.pt")
```

## Fix safety

Safe: the tensors in the file are on the CPU, and the ranks that get an empty dictionary do not use it. Options
that a setter shares, and those that are not written in a call, are left alone.

## Known limits

Silent where another rank looks into the dictionary (but for its length), where it is handed to code that cannot
be followed, and where no save of it is in sight.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`StateDictOptions.cpu_offload`)
- `torch/distributed/checkpoint/state_dict.py` (`_maybe_full_or_cpu_state_dict`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Saved, StateDictTaken, Trace, rule

from ._fixes_offloading import GETTERS, offloaded, on_first, used_elsewhere
from ._shared import state_shard

_ONE_FILE = ("torch.save", "pickle.dump", "joblib.dump", "safetensors.torch.save_file")


@rule(code="FSDP309", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Gathers whose result one rank writes and no other needs."""
    for taken in trace.of(StateDictTaken):
        state = taken.state
        if not state.full or state.offloaded is not False or state.via not in GETTERS:
            continue
        written = _written_by_first(trace, taken)
        shard = None if written is None else state_shard(trace, taken, state)
        if written is None or shard is None or used_elsewhere(trace, taken):
            continue
        yield Finding(
            at=taken,
            message=f"every rank gathers the full state of `{state.of.words()}` on its own device, and only "
            "the first writes it; with `cpu_offload=True` the others hold nothing",
            because=((shard.event, "it is sharded here"), (written, "the first rank writes it")),
            fix=offloaded(trace, taken),
        )


def _written_by_first(trace: Trace, taken: StateDictTaken) -> Saved | None:
    for saved in trace.after(taken, Saved):
        if taken.state in saved.states and saved.via in _ONE_FILE and on_first(saved):
            return saved
    return None
