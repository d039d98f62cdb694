"""`async_save` under a process group that has no backend for the CPU.

## What it does

Finds `dcp.async_save` without a `process_group` where the default group was started on `nccl` alone, also when
that is so only on machines with GPUs; and `dcp.async_save` with a `process_group` that `dist.new_group` makes on `nccl`.

## Why is this bad

The copy that is written in the background lies on the CPU, and the ranks coordinate its write there. A group on
NCCL alone cannot carry that: `async_save` raises "A CPU backend must be enabled for async save" on every
rank, usually after the first hours of training.

## Example

```diff
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.fsdp import fully_shard

-dist.init_process_group("nccl")
+dist.init_process_group("cpu:gloo,cuda:nccl")
 model = nn.Linear(8, 8)
 fully_shard(model)
 saving = dcp.async_save({"model": model.state_dict()}, checkpoint_id="step_1")
 saving.result()
```

## Forms

- Found: a backend of a configuration class.
- Found: a group for the saves that is on NCCL too.
- Not found: a backend that an argument of the program names: it may be given another one.

## Fix safety

Safe: NCCL goes on to carry what is on GPUs, gloo is added for the CPU.

## Known limits

A backend that comes from outside (a config) is taken to be right. A group without a named backend has both.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`async_save`)
- `torch/distributed/checkpoint/state_dict_saver.py`
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    External,
    Finding,
    GroupEnded,
    Guards,
    Literal,
    Saved,
    Trace,
    Value,
    rule,
)

from .._common.fixes import BOTH_BACKENDS, with_both_backends
from .._common.shared import cases, together
from ._common.checkpoints import has_own_group

_INIT = "torch.distributed.init_process_group"
_NEW = "torch.distributed.new_group"


@rule(code="FSDP308", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Background saves that the group cannot carry."""
    for saved in trace.of(Saved):
        if saved.future is None:
            continue
        made = _own_group(trace, saved)
        if made is not None:
            yield Finding(
                at=saved,
                message="`async_save` needs a backend for the CPU, and its process group has only NCCL: make the "
                "group on gloo",
                because=((made, "the group is made here"),),
            )
        if has_own_group(trace, saved):
            continue
        for started, guards in _starts(trace, saved):
            if together(guards, saved.guards):
                yield Finding(
                    at=saved,
                    message="`async_save` needs a backend for the CPU, and the process group has only NCCL: "
                    f'start it with "{BOTH_BACKENDS}"',
                    because=((started, "the group is started here"),),
                    fix=with_both_backends(started.at, "start the group with gloo for the CPU"),
                )
                break


def _own_group(trace: Trace, saved: Saved) -> Called | None:
    """The call that made the group of a save on NCCL alone."""
    call = next((c for c in trace.calls(saved.via) if c.at.node is saved.at.node), None)
    group = None if call is None else call.keywords.get("process_group")
    made = next((c for c in trace.calls(_NEW) if c.result is group), None)
    backend = None if made is None else made.argument(2, "backend")
    return made if backend is not None and _gpus_only(backend) else None


def _starts(trace: Trace, saved: Saved) -> Iterator[tuple[Called, Guards]]:
    """The starts of the default group on NCCL alone before a save, with what must hold then."""
    ended = max((e.order for e in trace.before(saved, GroupEnded)), default=-1)
    for called in trace.calls(_INIT):
        backend = called.argument(0, "backend")
        if backend is None or not trace.precedes(called, saved) or called.order < ended:
            continue
        for guards, one in cases(called, backend):
            if _gpus_only(one):
                yield called, guards


def _gpus_only(backend: Value) -> bool:
    if isinstance(backend, External):
        return backend.name == "torch.distributed.Backend.NCCL"
    return isinstance(backend, Literal) and str(backend.value).lower() in ("nccl", "cuda:nccl")
