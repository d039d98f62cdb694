"""FSDP1's `state_dict_type` contexts and settings go, once nothing asks for them.

## What it does

Takes `with FSDP.state_dict_type(…):` from around its statements, removes `FSDP.set_state_dict_type(…)`, and what
was made for them only: configurations such as `FullStateDictConfig(…)`, imports. `StateDictType` members that
the program keeps as a setting become strings of the same name.

## Why

Each call of `torch.distributed.checkpoint.state_dict` says itself which kind it wants. On a sharded model the
context raises `KeyError: None` when it ends.

## Example

```diff
 import torch
 from torch import nn
 from torch.distributed.checkpoint.state_dict import get_model_state_dict
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
-from torch.distributed.fsdp import ShardedStateDictConfig, StateDictType

-config = ShardedStateDictConfig(offload_to_cpu=True)
 model = FSDP(nn.Linear(8, 8))
-with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, config):
-    weights = get_model_state_dict(model)
+weights = get_model_state_dict(model)
```

## What it leaves

A context in which something still takes a state dict of FSDP1 or hands the model to code that cannot be followed,
one that is put together at run time, a setting whose kind is decided at run time and that the project never uses,
and `get_state_dict_type`.

## References

- https://docs.pytorch.org/docs/stable/fsdp.html (`state_dict_type`)
- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`set_state_dict_type`, `state_dict_type`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Left, Program, Step, codemod

from .contexts import contexts
from .names import kinds
from .settings import settings, unused


@codemod(after=("optim-state-dict-loads", "optim-state-dicts", "state-dicts"))
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Contexts, settings, what was made for them, and the names of kinds."""
    yield from contexts(program)
    yield from settings(program)
    yield from unused(program)
    yield from kinds(program)
