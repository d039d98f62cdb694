"""Each rank saves its part of one DCP checkpoint into a folder of its own.

## What it does

Finds `dcp.save` and `dcp.async_save` whose `checkpoint_id` (or the path of whose writer) contains the rank, or a name
that each process makes up for itself.

## Why is this bad

A DCP checkpoint is one folder that all ranks write into; the metadata that holds it together is written once,
by the first rank. With one folder per rank the first has metadata and lacks the shards of the others, and
the others have shards that nothing describes. None of them can be loaded.

## Example

```diff
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-dcp.save({"model": model.state_dict()}, checkpoint_id=f"step_1/rank_{dist.get_rank()}")
+dcp.save({"model": model.state_dict()}, checkpoint_id="step_1")
```

## Forms

- Found: a rank that a trainer keeps.
- Found: the environment, and the path of a writer.
- Found: a name that each process makes up for itself.
- Not found: the time, which is often the same on all ranks.
- Not found: a load from a folder of its own.

## Known limits

Saves with `no_dist=True` or a process group of their own are left alone: there each rank, or each group,
writes a checkpoint of its own.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
- `torch/distributed/checkpoint/filesystem.py` (`FileSystemWriter.finish`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Collective,
    Either,
    Finding,
    GroupStarted,
    Logic,
    Part,
    Saved,
    Sharded,
    Trace,
    Value,
    rank_dependent,
    rule,
)

from .._common.origins import origins
from .._common.shared import DCP, cases, differs_by_rank

_MAKING_UP = (
    "secrets.token_hex",
    "secrets.token_urlsafe",
    "tempfile.mkdtemp",
    "tempfile.mktemp",
    "uuid.uuid1",
    "uuid.uuid4",
)
"""Functions that give each process another name."""


@rule(code="FSDP315", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Saves of all ranks that go to different folders."""
    together = {collective.at.node for collective in trace.of(Collective)}
    for saved in trace.of(Saved):
        if not saved.via.startswith(DCP) or saved.path is None or saved.at.node not in together:
            continue
        paths = [path for _, path in cases(saved, saved.path)]
        if any(differs_by_rank(path) or _made_up(trace, saved, path) for path in paths):
            yield Finding(
                at=saved,
                message=f"each rank saves into a folder of its own (`{saved.path.words()}`): only the first "
                "gets the metadata, without the shards of the others; save into one folder on all ranks",
            )


def _made_up(trace: Trace, saved: Saved, path: Value) -> bool:
    """Whether a path has a name in it that each of several processes made up, and that nobody has sent to the others."""
    if next(trace.before(saved, GroupStarted), next(trace.before(saved, Sharded), None)) is None:
        return False
    return any(
        called.name in _MAKING_UP
        and not any(rank_dependent(guard.test) for guard in called.guards)
        and next(origins(trace, called.result, saved.order), None) is not None
        for one in _pieces(path)
        for called in trace.giving(one)
    )


def _pieces(path: Value) -> Iterator[Value]:
    """What a path is put together of: by operators, in an f-string, by `os.path.join`."""
    yield path
    below: list[Value | None] = []
    if isinstance(path, Part):
        below = list(path.made_of)
    elif isinstance(path, Either):
        below = [one for _, one in path.options]
    elif isinstance(path, Logic):
        below = list(path.operands)
    for one in below:
        if one is not None:
            yield from _pieces(one)
