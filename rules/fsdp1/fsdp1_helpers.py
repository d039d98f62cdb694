"""Another name of FSDP1 is used.

## What it does

Finds `ShardingStrategy`, `BackwardPrefetch`, `CPUOffload`, `FlatParameter` and the wrapper as a type.

## Why is this bad

They mean nothing to `fully_shard`: the strategy is `reshard_after_forward` and the mesh, prefetching is always on, offloading is a
`CPUOffloadPolicy`. Given to it, some are refused and some are silently ignored.

## Example

```diff
-from torch.distributed.fsdp import ShardingStrategy
-
-STRATEGIES = {"full": ShardingStrategy.FULL_SHARD, "gradients": ShardingStrategy.SHARD_GRAD_OP}
+RESHARD_AFTER_FORWARD = {"full": True, "gradients": False}
```

## Forms

- Found: the wrapper as a type.
- Found: an older module of the same name.
- Not found: a name that an option gives.

## Known limits

None known.

## References

- `torch/distributed/fsdp/api.py`
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from ._common.fsdp1 import used


@rule(code="FSDP113", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """Another name of FSDP1 is used."""
    yield from used(trace, "FSDP113")
