"""A model is sharded, or a mesh is made, before the process group is started.

## What it does

Finds `fully_shard` without a mesh, and `init_device_mesh`, with `dist.init_process_group` behind them on the
same path and none before.

## Why is this bad

Both need the default process group and start it themselves where there is none, from the environment that
torchrun sets. The `init_process_group` call of the script then raises "trying to initialize the default process group
twice!" on every rank, and its backend and timeout were not used. Without torchrun's environment the sharding
itself raises.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

+dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-dist.init_process_group("gloo")
```

## Forms

- Found: a trainer that starts the group after it has sharded.
- Found: a mesh that is made first.
- Not found: a mesh that is made by `DeviceMesh`.
- Not found: unresolved code that starts the group.

## Known limits

Scripts that never start the group themselves are fine under torchrun and are left alone. Silent where the group
is started under a test of `dist.is_initialized()`, where a mesh or another call that cannot be followed may have
started the group before, and where it is destroyed in between. There is no fix: what chooses the device often
has to move as well.

## References

- https://docs.pytorch.org/docs/stable/distributed.html (`init_process_group`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_init.py` (`_init_default_mesh`)
- `torch/distributed/device_mesh.py` (`_setup_world_group_and_device`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    Event,
    Finding,
    GroupEnded,
    GroupStarted,
    Sharded,
    Trace,
    root,
    rule,
)

from .._common.meshes import INIT
from .._common.shared import is_none, together


@rule(code="FSDP407", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Starts of the process group that come second."""
    for started in trace.of(GroupStarted):
        first = _started_by_itself(trace, started)
        if first is None or _asks(started):
            continue
        yield Finding(
            at=started,
            message="the process group is started here for the second time: an earlier call has started it "
            "already, so this raises on every rank",
            because=((first, "this needs the group and starts it"),),
        )


def _started_by_itself(trace: Trace, started: GroupStarted) -> Event | None:
    """The first thing before a start that surely has started the group itself."""
    if any(e.order < started.order for kind in (GroupStarted, GroupEnded) for e in trace.of(kind)):
        return None
    needing: list[Event] = [s for s in trace.before(started, Sharded) if _has_no_mesh(s)]
    needing += [c for c in trace.before(started, Called) if c.name == INIT]
    sure = [e for e in needing if together(e.guards, started.guards)]
    return min(sure, key=lambda e: e.order, default=None)


def _has_no_mesh(sharded: Sharded) -> bool:
    return not sharded.open and is_none(sharded.options.get("mesh"))


def _asks(started: GroupStarted) -> bool:
    """Whether a start depends on whether the group is there."""
    asked = (root(guard.test) for clause in started.guards.clauses for guard in clause)
    return any(getattr(one, "name", "").startswith("torch.distributed.is_") for one in asked)
