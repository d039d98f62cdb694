"""The constructor of FSDP1 becomes `fully_shard` on the submodules that its policy chose, then on the model.

## What it does

Rewrites `FullyShardedDataParallel(model, …)` wherever it is called, with all of its arguments: wrap policies become
loops, strategies become meshes and `reshard_after_forward`, mixed precision becomes two policies, and what FSDP1 did
to the module beside (broadcasting, materialising, casting buffers) is written out. Keywords that are the fields of a
dataclass (`**settings.__dict__`) are read from the object.

## Why

FSDP2 has no wrapper: `fully_shard` shards a module in place, and groups are what it is called on.

## Example

```diff
-import functools
+from dataclasses import replace

 import torch
 from torch import nn
-from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
-from torch.distributed.fsdp import MixedPrecision
-from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
+from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

-policy = functools.partial(
-    transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer}
-)
 model = nn.Transformer()
-model = FSDP(
-    model,
-    auto_wrap_policy=policy,
-    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
-    use_orig_params=True,
-)
+mp_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
+inner_policy = replace(mp_policy, cast_forward_inputs=False)
+for module in reversed(list(model.modules())):
+    if isinstance(module, nn.TransformerEncoderLayer) and module is not model:
+        fully_shard(module, mp_policy=inner_policy)
+fully_shard(model, mp_policy=mp_policy)
```

## What it leaves

Arguments that come in a tuple, in a dictionary that is written to after it was made, or as `**kwargs` of a function
that looks into them or is called from several places; gradients that are kept in low precision; a name for FSDP1 or
another wrapper that is used for more than calls with the model; what classes derived from FSDP1 add to it, but for an
`__init__` that only decides what FSDP1 is given: that becomes a function of the same name.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/fully_sharded_data_parallel.py`, `wrap.py`, `_wrap_utils.py`, `_init_utils.py`
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import EVERY_OTHER, Kept, Left, Program, Step, codemod

from .._common.together import together
from .leavings import in_annotations
from .steps import steps


@codemod(after=(EVERY_OTHER, "wrap-context"))
def rewrite(program: Program) -> Iterator[Step | Left | Kept]:
    """Every call that wraps a module by FSDP1."""
    made = list(steps(program))
    yield from made
    if not any(isinstance(one, Step) and one.edits for one in made):
        yield from together(program)
        yield from in_annotations(program)
