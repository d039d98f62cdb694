"""Optimizer states that FSDP1 flattens before they are loaded are put back by `set_optimizer_state_dict`.

## What it does

Rewrites `FSDP.optim_state_dict_to_load`, `scatter_full_optim_state_dict`, `shard_full_optim_state_dict` and
`flatten_sharded_optim_state_dict`, each together with the `optimizer.load_state_dict` that gets its result. Where the state
comes from a file, each parameter first gets tensors of its own.

## Why

There are no flat parameters to prepare the state for. And in a full state that FSDP1 has written with
`use_orig_params=False`, all parameters of a unit share one `step` tensor, which `torch.save` keeps: loaded as it is,
each step of the optimizer would count it up once for each of them.

## Example

```diff
 import torch
 from torch import nn
+from torch.distributed.checkpoint.state_dict import (
+    StateDictOptions,
+    set_optimizer_state_dict,
+)
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 model = FSDP(nn.Linear(8, 8))
 optimizer = torch.optim.AdamW(model.parameters())
 state = torch.load("optimizer.pt")
-flat = FSDP.optim_state_dict_to_load(model, optimizer, state)
-optimizer.load_state_dict(flat)
+# files of FSDP1 may share one `step` among several parameters: give each its own
+for values in state["state"].values():
+    values.update({k: v.clone() for k, v in values.items() if torch.is_tensor(v)})
+set_optimizer_state_dict(
+    model, optimizer, state, options=StateDictOptions(full_state_dict=True)
+)
```

## What it leaves

Results that no optimizer loads, and `rekey_optim_state_dict`: a state by numbers has to be loaded into the
unsharded model first.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`set_optimizer_state_dict`)
- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`optim_state_dict_to_load`)
- `torch/distributed/fsdp/_optim_utils.py` (`_unflatten_optim_state`: one `step` for a flat parameter)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Called, Left, Program, Step, codemod

from .._common.states_asked import FSDP1
from .loading import loads


@codemod(after=("optim-state-dicts", "sharded-optim-state-dict-loads"))
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Each call that prepares a state for flat parameters."""
    yield from loads(program)
    for events in program.sites(Called):
        other = [c for _, c in events if c.name == f"{FSDP1}.rekey_optim_state_dict"]
        if other:
            why = "it turns names into numbers, by which FSDP2 cannot find the parameters"
            todo = "load a state by numbers into the unsharded model, or keep the names"
            yield Left(other[0].at.source, other[0].at.node, why, todo)
