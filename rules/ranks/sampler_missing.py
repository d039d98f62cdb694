"""Every rank of a sharded model trains on the same batches.

## What it does

Finds a `DataLoader` without a sampler over data that is the same on all ranks, which a loop with a backward walks
in a script that shards its model, also through a generator of the project (`yield from loader`) or `next`; and a
`DistributedSampler`, a share of `datasets` or a loader of the project whose rank is a constant. Beside tensor parallelism it is the other way round: found is data that
is split over all ranks, those of one tensor-parallel group too.

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

## Forms

- Found: a generator of the project that goes on with the loader.
- Found: a data set of Hugging Face's `datasets`.
- Found: a sampler that is made for the data and given to no loader, whatever the data are.
- Found: a sampler whose rank is a constant.
- Found: a loader of the project whose defaults say that there is one process.
- Found: a sampler that knows nothing of ranks.
- Found: a share for each rank, where those of a tensor-parallel group must see the same.
- Not found: batches that every rank draws by itself with one seed.

## Known limits

Where no sampler was made for the data and forgotten, only `TensorDataset`, the data sets of torchvision, those that
`load_dataset` of Hugging Face's `datasets` gives whole, and classes of the project whose methods read nothing of a
rank, a world or a node; not iterable ones that draw at random. With two dimensions for `fully_shard`, a sampler that
gets the size of one of them is found. Otherwise silent where a seed, the data or what the model is given depends on
the rank, where the loader is handed to code that cannot be followed (accelerate's `prepare`), and where other
parallelism than FSDP's is in the script: ranks of one tensor-parallel group must see the same. Beside tensor
parallelism it is found where the model is sharded over a slice of the mesh that is named for data (`mesh["dp"]`).
There is no fix: the number of steps of an epoch changes, and `set_epoch` has to be called.

## References

- https://docs.pytorch.org/docs/stable/data.html (`DistributedSampler`)
- `torch/utils/data/sampler.py` (`RandomSampler`: its seed comes from the default generator)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fsdp2lint.api import (
    Called,
    Class,
    Container,
    Event,
    External,
    Finding,
    Function,
    Guards,
    Instance,
    Literal,
    Mesh,
    Part,
    Placed,
    Rank,
    Returned,
    Sharded,
    Trace,
    Value,
    Wrapping,
    lineage,
    of_world_size,
    options,
    rank_dependent,
    root,
    rule,
)

from .._common.meshes import INIT, dimensions, distributes, given_meshes
from .._common.origins import SAMPLERS
from .._common.shared import class_name, is_none, is_sharded_again, together
from ._common.data import LOADERS, out_of_sight, trains, walks

_SAME = ("torch.utils.data.TensorDataset", "torchvision.datasets.")
_OTHERS = (
    "torch.distributed.tensor.parallel.parallelize_module",
    "torch.distributed.tensor.experimental.context_parallel",
    "torch.distributed.pipelining.pipeline",
    "torch.distributed.pipelining.PipelineStage",
)
_SEEDING = re.compile(r"(.*\.)?(manual_seed(_all)?|seed_everything|set_seed|enable_determinism)")
_SEEDING_OTHERS = ("random.seed", "numpy.random.seed", "numpy.random.default_rng")
"""Seeds that a data set of the project may draw by; the order of a loader comes from torch's."""
_LOADED = re.compile(r"datasets\.(load\.)?(load_dataset|load_from_disk)")
_TRANSFORMED = frozenset(
    ".map .filter .select .shuffle .train_test_split .with_format .with_transform .rename_column .rename_columns "
    ".remove_columns .cast .cast_column .flatten .sort .select_columns .class_encode_column .add_column".split()
)
"""Methods of a data set of Hugging Face's `datasets` that give another one, the same on all ranks."""


@rule(code="FSDP409", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Loaders that give all ranks the same."""
    if trace.truncated or all(map(is_sharded_again, trace.of(Sharded))):
        return
    yield from _same_share(trace)
    told = list(_same_place(trace))
    yield from told
    if _seeded_by_rank(trace.calls_named(lambda name: bool(_SEEDING.fullmatch(name)))):
        return
    yield from _same_for_replicas(trace)
    yield from _another_in_each_group(trace)
    for loader in trace.calls(*LOADERS):
        data = loader.argument(0, "dataset")
        if data is None or not _walks_all(trace, loader):
            continue
        forgotten = _forgotten(trace, loader, data)
        if forgotten is None and not all(_same_everywhere(trace, one) for one in options(data)):
            continue
        if _is_for_one_process(trace, loader) or any(_is_about(one, loader) for one in told):
            continue
        walk = next((w for w in walks(trace, loader.result) if trains(trace, w)), None)
        if walk is None or _split_later(trace):
            continue
        if any(
            (_only_data_parallel(trace, way) or _beside_tensor_parallel(trace, way))
            and not out_of_sight(trace, loader.result, way)
            for way in _ways(trace, loader)
        ):
            yield Finding(
                at=loader,
                message="every rank walks all of the data in the same order and trains on the same batches: give "
                "the loader a `DistributedSampler`",
                because=(
                    (walk, "it is walked here, and the model trained"),
                    *(((forgotten, "this sampler is given to no loader"),) if forgotten else ()),
                ),
            )


def _forgotten(trace: Trace, loader: Called, data: Value) -> Called | None:
    """A sampler for the data of a loader that nobody is given: the data are the same, or it would not be there."""
    return next(
        (
            sampler
            for sampler in trace.calls(*SAMPLERS)
            if sampler.argument(0, "dataset") is data
            and together(sampler.guards, loader.guards)
            and not _used(trace, sampler.result)
        ),
        None,
    )


def _used(trace: Trace, sampler: Value) -> bool:
    """Whether anything may walk a sampler; that a tuple of several results holds it too does not count."""
    holders = trace.memory.held_by.get(sampler, ())
    if any(not isinstance(one, Container) or one.kind != "tuple" for one in holders):
        return True
    held = {sampler, *holders}
    if any(any(trace.escapes(one)) or any(walks(trace, one)) for one in held):
        return True
    return any(
        not held.isdisjoint(options(one))
        for called in trace.of(Called)
        for one in (*called.arguments, *called.keywords.values())
    )


def _seeded_by_rank(seeds: Iterable[Called]) -> bool:
    return any(rank_dependent(v) for c in seeds for v in (*c.arguments, *c.keywords.values()))


def _same_share(trace: Trace) -> Iterator[Finding]:
    """Samplers that give each rank the same share: their rank is a constant."""
    for sampler in trace.calls(*SAMPLERS):
        number, size = sampler.argument(2, "rank"), sampler.argument(1, "num_replicas")
        if not isinstance(number, Literal) or type(number.value) is not int or sampler.open:
            continue
        loaders = [
            c
            for c in trace.calls(*LOADERS)
            if any(sampler.result in options(v) for v in (*c.arguments, *c.keywords.values()))
        ]
        walk = next((w for c in loaders for w in walks(trace, c.result) if trains(trace, w)), None)
        if walk is None or _split_later(trace):
            continue
        if not any(_only_data_parallel(trace, way) for way in _ways(trace, sampler)):
            continue
        if any(_is_for_one_process(trace, c) or _is_for_one(c) for c in loaders):
            continue
        alone = isinstance(size, Literal) and size.value == 1
        taken = "all of the data" if alone else f"the share of rank {number.value}"
        yield Finding(
            at=sampler,
            message=f"every rank takes {taken}: give the sampler the rank and the number of ranks of the process, "
            "or leave both out",
            because=((walk, "it is walked here, and the model trained"),),
        )


def _same_place(trace: Trace) -> Iterator[Finding]:
    """Loaders and data sets of the project, and shares of `datasets`, that are given the same place on each rank."""
    said: set[object] = set()
    places = list(_places(trace))
    told = {place.event.at.node for place in places}
    for place in places:
        if place.event.at.node in said or _is_for_one(place.event):
            continue
        at = place.event.at.node
        if any(call.node in told and call.node is not at for call in place.event.moment.calls):
            continue  # whoever got it hands it on
        walk = next((w for w in _walks_of(trace, place) if trains(trace, w)), None)
        if walk is None or _split_later(trace):
            continue
        if not any(_sharded_for_data(trace, way) for way in _ways(trace, place.event)):
            continue
        said.add(place.event.at.node)
        alone = isinstance(place.size, Literal) and place.size.value == 1
        share = "all of the data" if alone else f"the share of rank {place.number}"
        yield Finding(
            at=place.event,
            message=f"every rank takes {share}: `{place.words}` gets rank {place.number} of "
            f"{place.size.words()}; give it the rank and the number of ranks of the process",
            because=((walk, "it is walked here, and the model trained"),),
        )


def _is_about(finding: Finding, loader: Called) -> bool:
    """Whether a finding about a place says the same of a loader: one that is made there, or that walks what is."""
    placed = finding.at
    if not isinstance(placed, Placed):
        return False
    made_there = any(call.node is placed.at.node for call in loader.moment.calls)
    data = loader.argument(0, "dataset")
    subjects = () if placed.subject is None else options(placed.subject)
    return made_there or (data is not None and any(one in subjects for one in options(data)))


@dataclass(frozen=True, slots=True)
class _Place:
    """What was given by constants which of how many processes it is for: ``value`` has the data, of a generator the event."""

    event: Event
    value: Value | None
    words: str
    number: int
    size: Value


def _places(trace: Trace) -> Iterator[_Place]:
    for placed in trace.of(Placed):
        if isinstance(placed.rank, Literal) and isinstance(placed.rank.value, int):
            home = placed.function.home if placed.function.name == "__init__" else None
            words = home.name if isinstance(home, Class) else placed.function.name
            yield _Place(placed, placed.subject, words, placed.rank.value, placed.size)
    for called in trace.calls(*_SHARES):
        first, second = _SHARES[called.name]
        number, size = called.argument(*first), called.argument(*second)
        if isinstance(number, Literal) and type(number.value) is int and size is not None:
            yield _Place(called, called.result, called.name.rpartition(".")[2], number.value, size)


_SHARES = {
    "datasets.distributed.split_dataset_by_node": ((1, "rank"), (2, "world_size")),
    ".shard": ((1, "index"), (0, "num_shards")),
}
"""What gives a part of a data set of Hugging Face's `datasets`, and where it is given which of how many."""


def _walks_of(trace: Trace, place: _Place) -> Iterator[Event]:
    """Where what was given its place is walked, or asked for the next batch; of a generator where it runs."""
    if place.value is None:
        yield place.event
        return
    for value in (made for one in options(place.value) for made in _made_of(trace, one)):
        yield from walks(trace, value)
        for called in trace.of(Called):
            asked = called.receiver is value and _GIVING.search(called.name)
            if asked or (called.name == "builtins.next" and value in called.arguments):
                yield called


_GIVING = re.compile(r"next|batch|sample|get_data|fetch")
"""How the methods of loaders are called that give the next batch."""


def _made_of(trace: Trace, data: Value) -> list[Value]:
    """Data, the data sets that are made of it, and the loaders that walk one of them."""
    found = [data]
    for one in found:
        for called in trace.of(Called):
            given = (called.receiver, *called.arguments, *called.keywords.values())
            if (called.name in LOADERS or called.name in _TRANSFORMED) and any(
                value is not None and one in options(value) for value in given
            ):
                found.append(called.result)
        found += [
            holder
            for holder in trace.memory.held_by.get(one, ())
            if isinstance(holder, Instance) and _is_data(holder) and holder not in found
        ]
    return found


def _is_for_one(event: Event) -> bool:
    """Whether something happens only on a path that the script takes by how many processes there are."""
    chosen = event.guards.clauses - event.guards.survived
    return any("world_size" in guard.words() for clause in chosen for guard in clause)


def _same_for_replicas(trace: Trace) -> Iterator[Finding]:
    """Samplers that split the data over one of the two dimensions that `fully_shard` is given."""
    given = [(s, m) for s in trace.of(Sharded) for m in given_meshes(s) if isinstance(m, Mesh)]
    for sampler in trace.calls(*SAMPLERS) if given else ():
        split = sampler.argument(1, "num_replicas")
        part = root(split) if split is not None else None
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


def _another_in_each_group(trace: Trace) -> Iterator[Finding]:
    """Loaders that split the data over all ranks, where those of a tensor-parallel group must see the same."""
    split = next((w for w in trace.of(Wrapping) if w.by == "tp" and distributes(trace, w)), None)
    if split is None or not _beside_tensor_parallel(trace, Guards()) or any(trace.calls(*_SENDING)):
        return
    for loader in trace.calls(*LOADERS):
        given = [one for v in (*loader.arguments, *loader.keywords.values()) for one in options(v)]
        sampler = next((c for c in trace.calls(*SAMPLERS) if c.result in given), None)
        data = loader.argument(0, "dataset")
        if sampler is None and not (isinstance(data, Instance) and _knows_all(trace, data)):
            continue
        if sampler is not None and not _splits_over_all(sampler):
            continue
        walk = next((w for w in walks(trace, loader.result) if trains(trace, w)), None)
        if walk is None or not together(loader.guards, split.guards) or _split_later(trace):
            continue
        yield Finding(
            at=sampler or loader,
            message="the data is split over all ranks, and those of one tensor-parallel group compute one forward "
            "together: they get different batches; split it by the rank and the size of the data dimension",
            because=(
                (split, "split over ranks here"),
                (walk, "walked here, and the model trained"),
            ),
        )


def _splits_over_all(sampler: Called) -> bool:
    """Whether a sampler gives each rank of all a share of its own."""
    size, number = sampler.argument(1, "num_replicas"), sampler.argument(2, "rank")
    if sampler.open or not (is_none(size) or _is_whole_world(size)):
        return False
    return is_none(number) or (isinstance(number, Rank) and number.scope == "global")


def _knows_all(trace: Trace, data: Instance) -> bool:
    """Whether a data set of the project holds the rank among all and their number, and no other rank."""
    held = [one for _, value in trace.memory.entries(data) for one in options(value)]
    ranks = [one for one in held if rank_dependent(one)]
    return (
        bool(ranks)
        and all(isinstance(one, Rank) and one.scope == "global" for one in ranks)
        and any(map(_is_whole_world, held))
    )


_SENDING = (
    "torch.distributed.broadcast",
    "torch.distributed.broadcast_object_list",
    "torch.distributed.scatter",
    "torch.distributed.scatter_object_list",
    "torch.distributed.all_gather",
    "torch.distributed.all_gather_into_tensor",
)
"""Collectives by which the ranks of a group can get the batch of one of them."""


def _is_whole_world(size: Value | None) -> bool:
    """Whether a number is that of all ranks, not one that is computed with it."""
    while isinstance(size, Part) and size.key == ("int",):
        size = size.owner
    if not isinstance(size, Part):
        return False
    if size.operation:
        asked = isinstance(size.owner, External) and size.operation == "call"
        plain = all(isinstance(one, Literal) for one in size.operands)
        return asked and of_world_size(size) and plain
    return size.key == "['WORLD_SIZE']"


def _root(mesh: Mesh) -> Mesh:
    """The mesh that a slice was taken of."""
    return _root(mesh.owner) if isinstance(mesh.owner, Mesh) else mesh


def _ways(trace: Trace, event: Event) -> set[Guards]:
    """The paths on which something happens in a run that shards a model."""
    return {
        event.guards.and_(s.guards) for s in trace.of(Sharded) if together(s.guards, event.guards)
    }


def _only_data_parallel(trace: Trace, way: Guards) -> bool:
    """Whether the ranks surely differ in their data and in nothing else on a path."""
    if _happens(trace.calls(*_OTHERS), way):
        return False
    meshes = _given(trace, way)
    made = [c.result for c in trace.calls(INIT) if not c.guards.excludes(way)]
    known = [mesh for mesh in (*meshes, *made) if isinstance(mesh, Mesh)]
    return all(
        dimensions(trace, mesh) == 1 or (mesh in meshes and _is_hybrid(mesh)) for mesh in known
    )


def _happens(calls: Iterable[Called], way: Guards) -> bool:
    """Whether one of several calls may be on a path."""
    return any(not called.guards.excludes(way) for called in calls)


def _given(trace: Trace, way: Guards) -> list[Value]:
    """The meshes that `fully_shard` is given on a path."""
    on_it = (s for s in trace.of(Sharded) if not s.guards.excludes(way))
    return [mesh for s in on_it for mesh in given_meshes(s)]


def _sharded_for_data(trace: Trace, way: Guards) -> bool:
    """Whether ranks among which the model is sharded surely differ in their data: over all, or dimensions named so."""
    if _only_data_parallel(trace, way):
        return True
    return not _happens(trace.calls(*_OTHERS[1:]), way) and all(
        isinstance(mesh, Mesh)
        and bool(mesh.names)
        and not any(_OF_OTHERS.search(name.lower()) for name in mesh.names or ())
        for mesh in _given(trace, way)
    )


def _beside_tensor_parallel(trace: Trace, way: Guards) -> bool:
    """Whether the model is sharded over the data dimension of a mesh, and tensor parallelism has another one.

    Where all ranks walk the same, those of that dimension do too.
    """
    if _happens(trace.calls(*_OTHERS[1:]), way):
        return False
    meshes = _given(trace, way)
    return bool(meshes) and all(
        isinstance(mesh, Mesh)
        and isinstance(mesh.owner, Mesh)
        and len(mesh.names or ()) == 1
        and _OF_DATA.fullmatch((mesh.names or ("",))[0].lower())
        for mesh in meshes
    )


_OF_DATA = re.compile(r"dp|ddp|fsdp|data|data_?parallel|dp_shard")


def _is_hybrid(mesh: Mesh) -> bool:
    """Whether `fully_shard`, given the whole mesh, replicates over one dimension and shards over the other."""
    names = mesh.names or ()
    return len(names) == 2 and not any(_OF_OTHERS.search(name.lower()) for name in names)


_OF_OTHERS = re.compile(
    r"(^|_)(tp|tensor\w*|cp|context\w*|sp|seq\w*|pp|pipe\w*|stages?|ep|experts?|mp|model\w*)(_|$)"
)
"""What dimensions are called over which something else than the data is split, whatever they are given to."""


def _is_for_one_process(trace: Trace, loader: Called) -> bool:
    """Whether another loader, one with a sampler, takes its place in other runs: with several ranks."""
    return any(
        other.guards.excludes(loader.guards) and not _walks_all(trace, other)
        for other in trace.calls(*LOADERS)
    )


def _walks_all(trace: Trace, loader: Called) -> bool:
    """Whether a loader surely has no sampler of its own, or one that is the same on all ranks."""
    return not loader.open and all(
        is_none(sampler) or _is_of_one_process(trace, sampler)
        for position, name in ((3, "sampler"), (4, "batch_sampler"))
        if (sampler := loader.argument(position, name)) is not None
    )


def _is_of_one_process(trace: Trace, sampler: Value) -> bool:
    """Whether a sampler is one of torch's that know nothing of ranks, and was given nothing of one."""
    made = _made(trace, sampler)
    return made is not None and bool(_OF_ONE.fullmatch(made.name)) and _is_given_the_same(made)


_OF_ONE = re.compile(r"torch\.utils\.data\.(sampler\.)?(Random|Sequential|WeightedRandom)Sampler")


def _same_everywhere(trace: Trace, data: Value) -> bool:
    """Whether a data set surely is the same on all ranks."""
    made = _made(trace, data)
    if class_name(data).startswith(_SAME):
        return made is not None and _is_given_the_same(made)
    if made is not None and not isinstance(data, Instance):
        return _is_loaded_the_same(trace, made)
    if not isinstance(data, Instance) or not isinstance(data.cls, Class):
        return False
    if _seeded_by_rank(trace.calls(*_SEEDING_OTHERS)):
        return False
    return _all_plain(trace, data)


def _all_plain(trace: Trace, data: Instance, depth: int = 4) -> bool:
    """Whether a data set, and those of the project that it is made of, do the same on all ranks."""
    inner = (one for _, v in trace.memory.entries(data) for one in options(v))
    return all(_is_plain(cls, trace, data) for cls in lineage(data.cls)) and all(
        depth > 0 and _all_plain(trace, one, depth - 1)
        for one in inner
        if isinstance(one, Instance) and isinstance(one.cls, Class) and _is_data(one)
    )


def _is_data(value: Instance) -> bool:
    """Whether an object is a data set of the project."""
    return any(isinstance(c, External) and c.name in _DATA for c in lineage(value.cls))


_DATA = ("torch.utils.data.Dataset", "torch.utils.data.IterableDataset")


def _made(trace: Trace, value: Value) -> Called | None:
    """The call that gave a value, or that of which it is an entry: ``load_dataset(…)["train"]``."""
    while isinstance(value, Part) and isinstance(value.key, str) and value.key.startswith("["):
        value = value.owner
    return next(iter(trace.giving(value)), None)


def _is_given_the_same(made: Called) -> bool:
    given = (*made.arguments, *made.keywords.values())
    return not made.open and not any(rank_dependent(one) for v in given for one in options(v))


def _is_loaded_the_same(trace: Trace, made: Called) -> bool:
    """Whether a data set of Hugging Face's `datasets` is loaded, and changed, alike on all ranks."""
    for _ in range(12):
        if not _is_given_the_same(made):
            return False
        if _LOADED.fullmatch(made.name):
            streamed = made.keywords.get("streaming")
            return streamed is None or (isinstance(streamed, Literal) and not streamed.value)
        before = (
            None
            if made.name not in _TRANSFORMED or made.receiver is None
            else _made(trace, made.receiver)
        )
        if before is None or before is made:
            return False
        made = before
    return False


_OF_RANKS = re.compile(
    r"\w*(rank|world|replica|shard|distributed|environ|getenv|process_|_process|num_proc|node|hvd|xm)\w*|dist"
)
_DRAWING = re.compile(r"rand|shuffle|sample|choice|time\b|queue|socket")
_NAMES = re.compile(r"(self\.)?([A-Za-z_]\w*)")


def _is_plain(cls: Value, trace: Trace, data: Instance) -> bool:
    """Whether what a class does is the same on all ranks: its methods name none, and no attribute that they read holds one."""
    if isinstance(cls, External):
        return cls.name in (*_DATA, "builtins.object", "typing.Generic")
    if not isinstance(cls, Class):
        return False
    texts = [
        cls.scope.source.code(method.node)
        for variable in cls.scope.names.values()
        for _, method in variable.bindings
        if isinstance(method, Function) and method.name != "__init__"
    ]
    if any("__iter__" in text for text in texts) and any(map(_DRAWING.search, texts)):
        return False  # which elements come may be each process's own choice
    return all(_reads_the_same(trace, data, text) for text in texts) and not any(
        _is_of_rank(trace, one)
        for key, value in trace.memory.entries(data)
        for one in options(value)
        if any(re.search(rf"\{key}\b", text) for text in texts)
    )


def _is_of_rank(trace: Trace, value: Value) -> bool:
    """Whether a value depends on the rank, or a call on the way to it was given the rank: ``data.shard(size, rank)``."""
    for _ in range(12):
        made = _made(trace, value)
        if rank_dependent(value) or (made is not None and not _is_given_the_same(made)):
            return True
        if made is None or made.receiver is None:
            return False
        value = made.receiver
    return True


def _reads_the_same(trace: Trace, data: Instance, text: str) -> bool:
    """Whether a text names no rank but in attributes of the object that hold constants."""
    for own, name in _NAMES.findall(text):
        if _OF_RANKS.fullmatch(name.lower()):
            held = trace.memory.read(data, f".{name}", Guards()) if own else None
            if held is None or not all(isinstance(one, Literal) for one in options(held)):
                return False
    return True


def _split_later(trace: Trace) -> bool:
    """Whether a model is given a part of what a loader gave, chosen by the rank."""
    return any(rank_dependent(v) for r in trace.of(Returned) for v in r.given)
