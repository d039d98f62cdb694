"""Every rank of a sharded model trains on the same batches.

## What it does

Finds a `DataLoader` without a sampler over data that is the same on all ranks, which a loop with a backward walks
in a script that shards its model.

## Why is this bad

Each rank has the whole data and, as PyTorch's generators begin with the same seed in every process, walks it in
the same order, shuffled or not. All ranks then compute the same gradient; their mean is that of one. The run costs
as much as one on all of the data times the number of ranks, and learns what a single process would.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard
-from torch.utils.data import DataLoader, TensorDataset
+from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 data = TensorDataset(torch.randn(32, 8))
-loader = DataLoader(data, batch_size=4, shuffle=True)
+sampler = DistributedSampler(data, shuffle=True)
+loader = DataLoader(data, batch_size=4, sampler=sampler)
 for (x,) in loader:
     model(x).square().mean().backward()
```

## Known limits

Only `TensorDataset`, the data sets of torchvision and classes of the project that never speak of a rank or a
world. With two dimensions for `fully_shard`, a sampler that gets the size of one of them is found. Otherwise silent where a seed, the data or what the model is given depends on the rank, where the loader is handed to
code that cannot be followed (accelerate's `prepare`), and where other parallelism than FSDP's is in the script:
ranks of one tensor-parallel group must see the same. There is no fix: the number of steps of an epoch changes,
and `set_epoch` has to be called.

## References

- https://docs.pytorch.org/docs/stable/data.html (`DistributedSampler`)
- `torch/utils/data/sampler.py` (`RandomSampler`: its seed comes from the default generator)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    Class,
    External,
    Finding,
    Instance,
    Mesh,
    Part,
    Returned,
    Sharded,
    Trace,
    Value,
    lineage,
    options,
    rank_dependent,
    rule,
)

from ._common.data import LOADERS, SAMPLERS, out_of_sight, trains, walks
from ._common.meshes import INIT, dimensions, given_meshes
from ._common.shared import class_name, is_none, together

_SAME = ("torch.utils.data.TensorDataset", "torchvision.datasets.")
_OTHERS = (
    "torch.distributed.tensor.parallel.parallelize_module",
    "torch.distributed.tensor.experimental.context_parallel",
    "torch.distributed.pipelining.pipeline",
    "torch.distributed.pipelining.PipelineStage",
)
_SEEDS = ("torch.manual_seed", "random.seed", "numpy.random.seed", "torch.cuda.manual_seed")


@rule(code="FSDP409", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Loaders that give all ranks the same."""
    if trace.truncated or not trace.of(Sharded):
        return
    if any(rank_dependent(v) for c in trace.calls(*_SEEDS) for v in c.arguments):
        return
    yield from _same_for_replicas(trace)
    if not _only_data_parallel(trace):
        return
    for loader in trace.calls(*LOADERS):
        data = loader.argument(0, "dataset")
        if data is None or not _walks_all(loader) or out_of_sight(trace, loader.result):
            continue
        if not all(_same_everywhere(trace, one) for one in options(data)):
            continue
        if _is_for_one_process(trace, loader):
            continue
        walk = next((w for w in walks(trace, loader.result) if trains(trace, w)), None)
        if walk is not None and not _split_later(trace):
            yield Finding(
                at=loader,
                message="every rank walks all of the data in the same order and trains on the same batches: give "
                "the loader a `DistributedSampler`",
                because=((walk, "it is walked here, and the model trained"),),
            )


def _same_for_replicas(trace: Trace) -> Iterator[Finding]:
    """Samplers that split the data over one of the two dimensions that `fully_shard` is given."""
    given = [(s, m) for s in trace.of(Sharded) for m in given_meshes(s) if isinstance(m, Mesh)]
    for sampler in trace.calls(*SAMPLERS) if given else ():
        part: Value | None = sampler.argument(1, "num_replicas")
        while isinstance(part, Part):
            part = part.owner
        if not isinstance(part, Mesh) or len(part.names or ()) != 1 or _split_later(trace):
            continue
        for sharded, mesh in given:
            others = [name for name in mesh.names or () if name not in (part.names or ())]
            if len(mesh.names or ()) != 2 or len(others) != 1 or _root(mesh) is not _root(part):
                continue
            if not together(sharded.guards, sampler.guards):
                continue
            yield Finding(
                at=sampler,
                message=f"the data is split over `{', '.join(part.names or ())}` only: the ranks along "
                f"`{others[0]}` train on the same batches; split it over both dimensions of the mesh",
                because=((sharded, "`fully_shard` replicates and shards over both here"),),
            )
            break


def _root(mesh: Mesh) -> Mesh:
    """The mesh that a slice was taken of."""
    return _root(mesh.owner) if isinstance(mesh.owner, Mesh) else mesh


def _only_data_parallel(trace: Trace) -> bool:
    """Whether the ranks surely differ in their data and in nothing else."""
    if any(trace.calls(*_OTHERS)):
        return False
    meshes = [mesh for s in trace.of(Sharded) for mesh in given_meshes(s)]
    made = [c.result for c in trace.calls(INIT)]
    known = [mesh for mesh in (*meshes, *made) if isinstance(mesh, Mesh)]
    return all(
        dimensions(trace, mesh) == 1 or (mesh in meshes and _is_hybrid(mesh)) for mesh in known
    )


def _is_hybrid(mesh: Mesh) -> bool:
    """Whether `fully_shard`, given the whole mesh, replicates over one dimension and shards over the other."""
    names = mesh.names or ()
    return len(names) == 2 and any("repl" in name.lower() for name in names)


def _is_for_one_process(trace: Trace, loader: Called) -> bool:
    """Whether another loader, one with a sampler, takes its place in other runs: with several ranks."""
    return any(
        other.guards.excludes(loader.guards) and not _walks_all(other)
        for other in trace.calls(*LOADERS)
    )


def _walks_all(loader: Called) -> bool:
    """Whether a loader surely has no sampler of its own."""
    return not loader.open and all(
        is_none(loader.argument(position, name))
        for position, name in ((3, "sampler"), (4, "batch_sampler"))
    )


def _same_everywhere(trace: Trace, data: Value) -> bool:
    """Whether a data set surely is the same on all ranks."""
    made = next((c for c in trace.of(Called) if c.result is data), None)
    if class_name(data).startswith(_SAME):
        given = (*made.arguments, *made.keywords.values()) if made is not None else ()
        return made is not None and not made.open and not any(rank_dependent(v) for v in given)
    if not isinstance(data, Instance) or not isinstance(data.cls, Class):
        return False
    held = [value for _, value in trace.memory.entries(data)]
    return all(_is_plain(cls, trace) for cls in lineage(data.cls)) and not any(
        rank_dependent(one) for value in held for one in options(value)
    )


def _is_plain(cls: Value, trace: Trace) -> bool:
    """Whether a class knows nothing of ranks."""
    if isinstance(cls, External):
        return cls.name in ("torch.utils.data.Dataset", "builtins.object", "typing.Generic")
    if not isinstance(cls, Class):
        return False
    text = cls.scope.source.code(cls.node).lower()
    return not any(word in text for word in ("rank", "world", "iter__", "process"))


def _split_later(trace: Trace) -> bool:
    """Whether a model is given a part of what a loader gave, chosen by the rank."""
    return any(rank_dependent(v) for r in trace.of(Returned) for v in r.given)
