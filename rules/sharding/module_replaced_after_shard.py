"""A layer of a sharded model is replaced, or its weight taken over, behind FSDP's back.

## What it does

Finds two things that happen to a part of a model after `fully_shard` was applied to it: calls that put another
computation in the place of a parameter (`parametrize.register_parametrization`, `weight_norm`, `spectral_norm`,
`orthogonal`, `prune`, `SyncBatchNorm.convert_sync_batchnorm`), and new layers that take the parameters of old ones over
(`new.weight = old.weight`) and are put into their places.

## Why is this bad

A group remembers in which module each of its parameters is and puts the gathered weight there before the forward. A
layer that took the parameter over never gets it: it computes with the shard, which raises "mixed torch.Tensor and
DTensor". Parametrizations and pruning move the parameter to another name, with the same end, or fail at once: their
in-place operations have no rule for shards.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard
 from torch.nn.utils import parametrizations

 dist.init_process_group("gloo")
 model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
+parametrizations.weight_norm(model[0])
 fully_shard(model)
-parametrizations.weight_norm(model[0])
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: each linear layer of a walk over the modules.
- Found: layers of the project that take the old weights over.
- Not found: pruning of a list of layers at once.

## Known limits

Layers with parameters of their own that are put into a sharded model are FSDP212. Functions of other libraries (torchao,
bitsandbytes) that replace layers are not judged. There is no fix: what else happens between the two has to move too.
`SyncBatchNorm` needs GPUs, so that its case was not run here.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`ParamModuleInfo`, `_setattr_on_modules`)
- `torch/nn/utils/parametrize.py`, `torch/nn/modules/batchnorm.py` (`convert_sync_batchnorm`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Assigned,
    Called,
    Event,
    Finding,
    Forward,
    Module,
    Part,
    Trace,
    Value,
    options,
    rule,
    unwrapped,
)

from .._common.shared import (
    Shard,
    cases,
    innermost,
    line_of,
    overlap,
    sharded,
    shards_before,
    together,
)

_UTILS = "torch.nn.utils."
_REPLACING = (
    *(f"{_UTILS}parametrizations.{n}" for n in ("weight_norm", "spectral_norm", "orthogonal")),
    f"{_UTILS}parametrize.register_parametrization",
    f"{_UTILS}weight_norm",
    f"{_UTILS}spectral_norm",
    *(f"{_UTILS}prune.{n}" for n in ("l1_unstructured", "random_unstructured", "ln_structured")),
    *(f"{_UTILS}prune.{n}" for n in ("random_structured", "identity", "custom_from_mask")),
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
)


@rule(code="FSDP263", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Layers that FSDP no longer finds."""
    for called in trace.calls(*_REPLACING):
        module = called.argument(0, "module")
        found = sharded(trace, called, module)
        if found is None or not _managed(found[0]) or not _computes(trace, called, found[1]):
            continue
        shard, layer = found
        yield Finding(
            at=called,
            message=f"`{_said(called)}` changes `{layer.words()}` after `fully_shard({shard.module.words()})` on "
            f"{line_of(shard.event, called)} took its parameters: the next forward fails; do it before",
            because=(shard.reason,),
        )
    for assigned in trace.of(Assigned):
        taken = _taken_over(trace, assigned)
        if taken is not None:
            new, weight, shard = taken
            yield Finding(
                at=assigned,
                message=f"`{new.words()}` takes `{weight.words()}` over, which the group of "
                f"`{shard.module.words()}` gathers for the old layer: the new one computes with the shard and raises; "
                "replace layers before `fully_shard`",
                because=(shard.reason,),
            )


def _said(called: Called) -> str:
    return called.name.rpartition(".")[2]


def _managed(shard: Shard) -> bool:
    return "ignored_params" not in shard.event.options and not shard.event.open


def _computes(trace: Trace, event: Event, layer: Value) -> bool:
    """Whether a forward of a module in or around a layer follows."""
    return any(
        overlap(trace, unwrapped(module), layer) is not None
        for forward in trace.after(event, Forward)
        for module in options(forward.module)
    )


def _taken_over(trace: Trace, assigned: Assigned) -> tuple[Value, Value, Shard] | None:
    """A layer that comes into a sharded model, the weight of a sharded one that it holds, and the sharding."""
    if sharded(trace, assigned, assigned.owner) is None:
        return None
    for guards, new in cases(assigned, assigned.value):
        if not isinstance(new, Module) or not _computes(trace, assigned, unwrapped(assigned.owner)):
            continue
        for _, weight in trace.memory.entries(new, guards):
            if not isinstance(weight, Part) or weight.key not in (".weight", ".bias"):
                continue
            old = unwrapped(weight.owner)
            near = [s for s in shards_before(trace, assigned) if trace.inside(old, s.module)]
            near = [s for s in near if together(s.guards, guards)]
            if near and all(map(_managed, near)) and not trace.inside(old, new):
                return new, weight, innermost(trace, near)
    return None
