"""BatchNorm is sharded with a low-precision `param_dtype`.

## What it does

Finds `BatchNorm` layers (and `SyncBatchNorm`) whose group is sharded with a `MixedPrecisionPolicy` whose
`param_dtype` is `torch.bfloat16` or `torch.float16`.

## Why is this bad

The layer's weight and bias are gathered in low precision, its running statistics stay in float32: on CPUs the
forward raises RuntimeError (mixed dtypes); where the kernels of a device take both, the norm works on rounded
values. FSDP1 left BatchNorm out of mixed precision by default. A group of its own without a policy keeps it
as it was.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

 dist.init_process_group("gloo")
 model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
+for norm in model.modules():
+    if isinstance(norm, nn.BatchNorm1d):
+        fully_shard(norm)
 fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: blocks with a norm inside, in a loop.
- Found: a policy behind a switch of the program.
- Not found: a model of a library.
- Not found: a class that is derived from the norm.

## Fix safety

Unsafe: above the call, `fully_shard` gives each norm inside the module a group of its own, with the other
arguments of the call and without its policy. There is no fix where the call shards the norm itself (a loop over
all layers), or where other modules inside were sharded before and a norm has no name of its own.

## Known limits

Only layers that the script builds itself, and policies that can be resolved: dtypes that are written there, or chosen
from a table or by tests of a name, not one that only the command line names. The output of a BatchNorm in a group of its
own is of the dtype of its input: give it `output_dtype` where the next layer is strict.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`MixedPrecisionPolicy`)
- `torch/distributed/fsdp/_wrap_utils.py` (FSDP1: `_module_classes_to_ignore`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Called, Finding, Forward, Guards, Literal, Part, Trace, Value, rule

from ..._common.meta import on_paths
from ..._common.policies import low_of, policy_of
from ..._common.shared import Shard, class_name, sharded, shards
from ..._common.walks import walk_of
from .batchnorm import grouped_apart

_NORMS = tuple(
    f"torch.nn.{name}" for name in "BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm".split()
)


def _chooses(trace: Trace, shard: Shard, norm: Value) -> bool:
    """Whether it is a loop over modules that shards what it finds to be a batch norm, this one perhaps."""
    asks = any(
        isinstance(guard.test, Part)
        and guard.test.operation == "isinstance"
        and guard.taken
        and any("BatchNorm" in getattr(cls, "name", "") for cls in guard.test.operands)
        for guard in shard.guards
    )
    walk = walk_of(trace, shard) if asks else None
    return asks and (walk is None or trace.inside(norm, walk.root))


@rule(code="FSDP240", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Norms in low precision."""
    if not trace.of(Forward):
        return
    found = list(_lowered(trace))
    for built, shard, lower, way in found:
        calls = [other for other, s, *_ in found if s.event.at.node is shard.event.at.node]
        yield Finding(
            at=shard.event,
            message=f"`{built.result.words()}` is in a group whose parameters are gathered in `{lower}`"
            f"{on_paths(shard.event, (way,))}, unlike its running statistics: give it a group of its own without `param_dtype`",
            because=((built, "the norm is built here"),),
            fix=grouped_apart(trace, shard, [other.result for other in calls]),
        )


def _lowered(trace: Trace) -> Iterator[tuple[Called, Shard, str, Guards]]:
    """The norms that are gathered in low precision, each with its group, the dtype, and what holds where it is that."""
    last = trace.events[-1]
    for built in trace.calls(*_NORMS):
        affine = built.argument(3, "affine")
        if class_name(built.result) not in _NORMS or (
            isinstance(affine, Literal) and affine.value is False
        ):
            continue
        found = sharded(trace, last, built.result)
        if found is None or found[0].guards.excludes(built.guards):
            continue
        if any(_chooses(trace, shard, built.result) for shard in shards(trace)):
            continue
        low = low_of(policy_of(found[0]), "param_dtype", found[0].guards.and_(built.guards))
        if low is not None:
            yield built, found[0], low[0], low[1]
