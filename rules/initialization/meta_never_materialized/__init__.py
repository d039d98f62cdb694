"""A sharded model computes while its parameters are still on the meta device.

## What it does

Finds models whose layers are built under `torch.device("meta")` (or with `device="meta"`), that are sharded and
called, with nothing between that gives them memory: neither `to_empty` nor the loading of a state.

## Why is this bad

Tensors on the meta device have a shape and no data. `fully_shard` shards them as they are, and the first forward
raises RuntimeError with the names of the parameters.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 with torch.device("meta"):
     model = nn.Linear(8, 8)
 fully_shard(model)
+model.to_empty(device="cpu")
+model.reset_parameters()
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: a load that happens on the resume branch only.
- Found: accelerate's context.
- Found: a language model of Transformers.
- Not found: the default device.
- Not found: memory for a part of the blocks.

## Fix safety

Unsafe: below the `fully_shard` of the whole model come `to_empty`, on the device of the mesh or of the process
group, each layer's `reset_parameters`, and what the constructor applies to itself (`self.apply(self.initialise)`),
if it does. There is no fix when the device is not resolved, when the model is built on the meta device only under a
condition or in parts, and unless all its layers are resolved and have that method, own no parameters or buffers
beside it, share no weights, and get no values in another way.

## Known limits

Silent as soon as the model was handed to code that cannot be followed, and for layers of libraries other than
torch; whole models of Transformers that `from_config` builds are known.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py` ("materialized from meta device")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fsdp2lint.api import Finding, Forward, Trace, Value, rule

from ..._common.meta import born_on_meta, on_paths, plain, ways_without_memory
from ..._common.shared import sharded, together
from .memory import materialized

_MOST_FORWARDS = 3
"""So many forwards of a model are looked at: the first may be one that a flag asks for, in a profiler."""


@rule(code="FSDP215", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """First forwards of models without memory."""
    born = born_on_meta(trace)
    said: set[Value] = set()
    tried: Counter[Value] = Counter()
    for forward in trace.of(Forward) if born else []:
        found = sharded(trace, forward, forward.module)
        if forward.how != "call" or found is None or not all(map(plain, forward.within)):
            continue
        shard, module = found
        empty = [
            (called, guards)
            for called, guards in born
            if trace.inside(called.result, module) and together(guards, forward.guards)
        ]
        if not empty or any(called.result in said for called, _ in empty):
            continue
        tried[module] += 1
        if tried[module] > _MOST_FORWARDS:
            continue
        each = (
            (called, ways_without_memory(trace, forward, module, guards, called.result))
            for called, guards in empty
            if together(guards, shard.guards)
        )
        called, ways = next((one for one in each if one[1]), (empty[0][0], ()))
        if ways:
            said.update(called.result for called, _ in empty)
            yield Finding(
                at=forward,
                message=f"`{module.words()}` computes while its parameters are on the meta device"
                f"{on_paths(forward, ways)}: RuntimeError; call `to_empty` and initialise them, or load a state, before",
                because=(
                    (called, "built without memory here"),
                    shard.reason,
                ),
                fix=materialized(trace, forward, module),
            )
