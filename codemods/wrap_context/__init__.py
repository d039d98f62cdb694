"""`enable_wrap` goes, and `wrap` inside it becomes `fully_shard`.

## What it does

Rewrites `with enable_wrap(wrapper_cls=FSDP, …):` and the calls of `wrap` in its block: each shards its module with
what the context asks for. Where a model that the context wraps calls `wrap` while it is built, in another function
or file, those calls go, and its parts are sharded before the model. `default_auto_wrap_policy`, the name that a policy
had in torch 1.11, becomes `size_based_auto_wrap_policy`.

## Why

`fully_shard` shards a module in place and returns it; there is no wrapper to enable. A name that torch has no more
cannot be imported.

## Example

```diff
 from torch import nn
-from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
-from torch.distributed.fsdp import ShardingStrategy
-from torch.distributed.fsdp.wrap import enable_wrap, wrap
+from torch.distributed.fsdp import fully_shard


 class Net(nn.Module):
     def __init__(self):
         super().__init__()
-        with enable_wrap(wrapper_cls=FSDP, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP):
-            self.first = wrap(nn.Linear(8, 8))
-            self.second = wrap(nn.Linear(8, 8))
+        self.first = fully_shard(nn.Linear(8, 8), reshard_after_forward=False)
+        self.second = fully_shard(nn.Linear(8, 8), reshard_after_forward=False)
```

## What it leaves

Calls of `wrap` that have arguments of their own; and those whose context is in another function, where the context
does not wrap the model itself, or where no attribute of the model leads to the part, or not in every run.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/wrap.py` (`enable_wrap`, `wrap`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    EVERY_OTHER,
    Account,
    Left,
    Program,
    Replace,
    Step,
    codemod,
    name_for,
)

from .._common.shared import unimports
from .contexts import contexts

_WRAP = "torch.distributed.fsdp.wrap."
_RENAMED = {f"{_WRAP}default_auto_wrap_policy": f"{_WRAP}size_based_auto_wrap_policy"}


@codemod(after=(EVERY_OTHER,))
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Every context of FSDP1's ``wrap``, and names that torch has no more."""
    yield from contexts(program)
    for old, new in _RENAMED.items():
        for reference in program.references(old):
            source, node = reference.source, reference.node
            name = name_for(source, node, new)
            edits = (
                Replace(source, node, name.text),
                *name.edits,
                *unimports(program, source, old),
            )
            why = "the name that it has since torch 1.12"
            yield Step(edits, (Account(source, node, "changed", why),))
