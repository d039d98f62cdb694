"""FSDP1's state dicts of models are taken and put back by `get_model_state_dict` and `set_model_state_dict`.

## What it does

Rewrites `model.state_dict()` and `model.load_state_dict(state)` of models that FSDP1 wraps. The kind that
`state_dict_type` or `set_state_dict_type` asks for becomes `StateDictOptions` of the call; without either it is
the full state dict. A gather below a test of the rank moves above it. What FSDP1 brought to the CPU of
every rank, a small function gathers there, one tensor after the other. A strict load of a model that is sharded
over all ranks gets `broadcast_from_rank0`, by which missing keys raise as they did.

## Why

`state_dict()` of a sharded model holds the shards of one rank, as aliases of the parameters; saved with
`torch.save` by one rank, most of the model is lost. `load_state_dict()` of one takes no plain tensors.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
+from torch.distributed.checkpoint.state_dict import (
+    StateDictOptions,
+    get_model_state_dict,
+    set_model_state_dict,
+)
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 model = FSDP(nn.Linear(8, 8))
-model.load_state_dict(torch.load("old.pt"))
-weights = model.state_dict()
+set_model_state_dict(
+    model,
+    torch.load("old.pt"),
+    options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
+)
+weights = get_model_state_dict(
+    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
+)
 if dist.get_rank() == 0:
     torch.save(weights, "new.pt")
```

## What it leaves

State dicts of which nothing reads a tensor: they are asked for names alone, or go back into the same model as they
are; those that `torch.distributed.checkpoint` saves, which takes shards; `LOCAL_STATE_DICT`, but for folders of DCP
and for files that each rank writes and reads for itself, which hold shards of whole parameters then; a kind, or
whether all ranks get it, that is known only at run time and cannot be said at the call. Where DDP wraps the model in
some runs, the code asks at run time.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`get_model_state_dict`, `StateDictOptions`)
- `torch/distributed/fsdp/_state_dict_utils.py`, `torch/distributed/checkpoint/state_dict.py`
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Left, Program, Restored, Saved, StateDictTaken, Step, codemod

from ._common.states_putting import put
from ._common.states_taking import handed_out, take
from ._common.states_whole import Wholes


@codemod(after=("optim-state-dicts", "raw-optimizer-states", "wrapped-module"))
def rewrite(program: Program) -> Iterator[Step | Left]:
    """State dicts of models that FSDP1 wraps."""
    wholes = Wholes()
    yield from wholes.together(_steps(program, wholes))


def _steps(program: Program, wholes: Wholes) -> Iterator[Step | Left]:
    for taken in program.sites(StateDictTaken):
        if taken[0][1].state.via == ".state_dict" and taken[0][1].state.kind == "model":
            yield from take(program, taken, wholes)
    for saved in program.sites(Saved):
        if saved[0][1].via == ".save_pretrained":
            yield from handed_out(saved, wholes)
    for restored in program.sites(Restored):
        if restored[0][1].via == ".load_state_dict" and restored[0][1].kind == "model":
            yield from put(program, restored)
