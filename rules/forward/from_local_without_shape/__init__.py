"""Shards of different sizes are made a distributed tensor without the shape of the whole.

## What it does

Finds `DTensor.from_local(local, mesh, [Shard(dim)])` without `shape=` and `stride=` where the ranks give pieces
of different sizes: tensors whose size depends on the rank, shards of parameters, and the pieces of `chunk`, `tensor_split`, `split` and
of slices when they do not come out even.

## Why is this bad

Without a shape each rank takes the others' pieces to be as large as its own and multiplies: of five rows on two
ranks the first makes a tensor of six, the second one of four. They do not agree on where anything is. What
gathers or reshards it sends messages of sizes that do not fit, which hangs or ends the process; a `mean()` is
silently that of other rows; a checkpoint of it is refused or holds overlapping pieces. With the shape and the
stride of the whole given, pieces that are cut as `torch.chunk` cuts them are fine; others are not
(pytorch#144109), and `distribute_tensor` cuts them right.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch.distributed.device_mesh import init_device_mesh
 from torch.distributed.fsdp import fully_shard
 from torch.distributed.tensor import DTensor, Shard

 dist.init_process_group("gloo")
 mesh = init_device_mesh("cpu", (2,))
 whole = torch.randn(5, 4)
 local = whole.chunk(2)[dist.get_rank()]
-averages = DTensor.from_local(local, mesh, [Shard(0)])
+averages = DTensor.from_local(
+    local, mesh, [Shard(0)], shape=whole.shape, stride=whole.stride()
+)
```

## Forms

- Found: a helper function that cuts by the mesh.
- Found: shards of parameters that are made distributed again.
- Not found: pieces whose size the data decide.
- Not found: a number of ranks that is not written down, where some numbers divide evenly.

## Fix safety

Safe: `shape=p.shape, stride=p.stride()` is added where the shard of `p` itself is made a distributed tensor again.
Other pieces get no fix.

## Known limits

The own shard of a parameter (`DTensor.from_local(p.to_local(), p.device_mesh, p.placements)`) counts when a layer of
the model has an odd number of rows, which no usual number of ranks divides. Otherwise only pieces whose sizes can be computed for each rank: from constants, the rank and the number of ranks, for
tensors that the project makes. Where the number of ranks is not written down, the pieces must be uneven for two,
four and eight of them (for those that the script does not refuse): seven rows are reported, ten are not. Only
meshes of one dimension over all ranks. Given shapes are not compared with the pieces. Scripts without any word of
FSDP or of distributed checkpoints are not read.

## References

- https://docs.pytorch.org/docs/stable/distributed.tensor.html (`DTensor.from_local`)
- https://github.com/pytorch/pytorch/issues/110762 (the wrong shape, as it was found)
- `torch/distributed/tensor/_api.py` (`_FromTorchTensor.forward`), `_utils.py` (`compute_global_tensor_info`)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    Arguments,
    Called,
    External,
    Finding,
    Fix,
    Guard,
    Guards,
    Literal,
    Logic,
    Mesh,
    Not,
    Part,
    Trace,
    Value,
    computed_from,
    is_choice,
    of_world_size,
    options,
    rank_dependent,
    rule,
    tests_in,
    unwrapped,
)

from ..._common.fixes import call_of
from ..._common.meshes import INIT
from ..._common.parts import below, model_of
from ..._common.shared import is_none, sharded, together
from .counting import counted
from .numbers import Fails, results
from .shapes import Shapes

_ROWS = {
    "torch.nn.Linear": (1, "out_features"),
    "torch.nn.Embedding": (0, "num_embeddings"),
    "torch.nn.LayerNorm": (0, "normalized_shape"),
    "torch.nn.RMSNorm": (0, "normalized_shape"),
}
_SAME_SHAPE = frozenset(
    f".{n}()" for n in "clone contiguous cpu cuda detach float to zero_".split()
)
_OTHERWISE = {"shard_placement_fn", "ignored_params"}
_SHARD = ("torch.distributed.tensor.Shard", "torch.distributed.tensor.placement_types.Shard")
_USUAL = (2, 4, 8)
"""The numbers of ranks that are tried where the script does not say how many there are."""
_LARGEST = 64
"""Meshes of more ranks are not tried rank by rank."""
_ASKING = ("==", "!=", "is", "is not", "in", "not in", "isinstance", "hasattr", "int")
"""The operations of tests of a configuration; others may find out about sizes."""


@dataclass(frozen=True, slots=True)
class Uneven:
    """The sizes in one dimension on two ranks."""

    dim: int
    world: int
    base: int
    first: int
    rank: int
    other: int


@rule(code="FSDP243", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Pieces of different sizes."""
    for called in trace.calls("torch.distributed.tensor.DTensor.from_local"):
        if called.open or not all(is_none(called.keywords.get(k)) for k in ("shape", "stride")):
            continue
        local = called.argument(0, "local_tensor")
        again = None if local is None else _own_shard(trace, called, local)
        if again is not None:
            layer, rows = again
            yield Finding(
                at=called,
                message=f"`{layer}.weight` has {rows} rows, so some ranks hold fewer than others: without `shape=` and "
                "`stride=` each rank assumes the others' shards have its own size, and ranks disagree on the whole",
                fix=_as_whole(called),
            )
            continue
        uneven = None if local is None else _uneven(trace, called, local)
        if local is not None and uneven is not None:
            pieces = f"`{local.label}`" if local.label else "the piece"
            yield Finding(
                at=called,
                message=f"on {uneven.world} ranks {pieces} has {uneven.first} entries in dimension {uneven.dim} "
                f"on rank {uneven.base} and {uneven.other} on rank {uneven.rank}: without `shape=` and `stride=` each rank "
                "takes the others' for as large as its own, and they disagree on the whole",
            )


def _own_shard(trace: Trace, called: Called, local: Value) -> tuple[str, int] | None:
    """The layer, and its odd number of rows, whose own shard is made a distributed tensor again.

    An odd number of rows is uneven on 2, 4 and 8 ranks alike.
    """
    while isinstance(local, Part) and local.key not in (".to_local()", "._local_tensor"):
        if local.operation not in _SAME_SHAPE:
            return None
        local = local.owner
    if not isinstance(local, Part) or any(_asks_about(g.test, local.owner) for g in _tests(called)):
        return None
    placements = called.argument(2, "placements")
    if not isinstance(placements, Part) or placements.owner is not local.owner:
        return None
    model = model_of(local.owner)
    found = None if placements.key != ".placements" else sharded(trace, called, model)
    if found is None or model is None or set(found[0].event.options) & _OTHERWISE:
        return None
    layers = below(trace, unwrapped(model))
    for built in trace.calls(*_ROWS):
        position, keyword = _ROWS[built.name]
        rows = built.argument(position, keyword)
        if built.result in layers and isinstance(rows, Literal) and isinstance(rows.value, int):
            if rows.value % 2 and together(built.guards, called.guards):
                return built.result.words(), rows.value
    return None


def _tests(called: Called) -> Iterator[Guard]:
    return (guard for clause in called.guards.clauses for guard in clause)


def _asks_about(test: Value, tensor: Value) -> bool:
    """Whether a test is about a tensor, or about the pair of its name and it."""
    about = {tensor, tensor.owner} if isinstance(tensor, Part) else {tensor}
    return any(one in about for one in computed_from(test))


def _as_whole(called: Called) -> Fix | None:
    """The shape and the stride of the tensor that the shard is of."""
    call = call_of(called.at)
    mesh = None if call is None or len(call.args) < 2 else call.args[1].value
    if call is None or not isinstance(mesh, cst.Attribute) or mesh.attr.value != "device_mesh":
        return None
    whole = called.at.source.code(mesh.value)
    arguments = Arguments(called.at.source, call)
    edits = (arguments.set("shape", f"{whole}.shape"), arguments.set("stride", f"{whole}.stride()"))
    return Fix("give the shape of the whole", edits, "safe")


def _uneven(trace: Trace, called: Called, local: Value) -> Uneven | None:
    """Two ranks whose pieces differ, when they do for each number of ranks that the script may run on."""
    mesh = _whole_mesh(called.argument(1, "device_mesh"))
    dim = None if mesh is None else _dimension(trace, called)
    found: Uneven | None = None
    if mesh is None or dim is None:
        return None
    for world in _worlds(trace, mesh):
        sizes = _sizes(trace, called, local, mesh, dim, world)
        if sizes is None or len(set(sizes.values())) == 1:
            return None
        if sizes and found is None:
            base, first = next(iter(sizes.items()))
            rank, other = next((r, size) for r, size in sizes.items() if size != first)
            found = Uneven(dim, world, base, first, rank, other)
    return found


def _whole_mesh(given: Value | None) -> Mesh | None:
    """The mesh of one dimension that is meant; a slice of one that has no other dimension is all of it."""
    if isinstance(given, Mesh) and isinstance(given.owner, Mesh):
        if given.owner.names is not None and given.owner.names == given.names:
            return given.owner
    return given if isinstance(given, Mesh) else None


def _dimension(trace: Trace, called: Called) -> int | None:
    """The dimension of the only placement, when that surely is a `Shard`."""
    given = called.argument(2, "placements")
    entries = [] if given is None else [e for _, e in trace.memory.entries(given)]
    placed = results(trace).get(entries[0]) if len(entries) == 1 else None
    if placed is None or placed.name not in _SHARD or placed.open:
        return None
    dim = placed.argument(0, "dim")
    return dim.value if isinstance(dim, Literal) and isinstance(dim.value, int) else None


def _worlds(trace: Trace, mesh: Mesh) -> tuple[int, ...]:
    """The numbers of ranks on which the mesh holds all of them; nothing when that is not known."""
    built = results(trace).get(mesh)
    if built is None or built.open:
        return ()
    initialized = built.name == INIT
    given = built.argument(1, "mesh_shape" if initialized else "mesh")
    if not initialized and not built.name.endswith("DeviceMesh"):
        return ()

    def size(world: int) -> int | None:
        shapes = Shapes(trace, mesh, 0, world)
        entries = shapes.numbers.entries(given)
        if initialized:
            return shapes.numbers.whole(entries[0]) if entries and len(entries) == 1 else None
        if entries is not None:
            return len(entries)
        shape = shapes.of(given)
        return shape[0] if shape is not None and len(shape) == 1 else None

    sizes = [size(world) for world in _USUAL]
    if len(set(sizes)) == 1 and sizes[0] is not None:
        return (sizes[0],) if sizes[0] <= _LARGEST else ()
    return _USUAL if sizes == list(_USUAL) else ()


def _sizes(
    trace: Trace, called: Called, local: Value, mesh: Mesh, dim: int, world: int
) -> dict[int, int] | None:
    """The length of each rank's piece; None when one is not known, nothing when the script refuses to run so."""
    found: dict[int, int] = {}
    for rank in range(world):
        shapes = Shapes(trace, mesh, rank, world)
        try:
            reached = _reached(shapes, called.guards)
            shape = shapes.of(local) if reached else None
        except Fails:
            return {}
        if reached is False:
            continue
        if shape is None or not -len(shape) <= dim < len(shape):
            return None
        if any(counted(site) for one in (called, *shapes.used) for site in (one.at, *one.calls)):
            return None
        found[rank] = shape[dim]
    return found


def _reached(shapes: Shapes, guards: Guards) -> bool | None:
    """Whether a rank comes here; what else the conditions ask for is left open when it is not about sizes."""
    unknown = False
    for clause in guards.clauses:
        held = shapes.numbers.holds(Guards(frozenset([clause])))
        if held is False:
            return False
        tests = [test for g in clause for test in tests_in(g.test)]
        unknown |= held is None and not all(_of_no_size(shapes.trace, test) for test in tests)
    return None if unknown else True


def _of_no_size(trace: Trace, test: Value) -> bool:
    """Whether a test is about other things than ranks, sizes and what functions find out about them."""
    if is_choice(test):
        return True
    if rank_dependent(test) or of_world_size(test):
        return False
    todo: list[Value] = [test]
    while todo:
        one = todo.pop()
        operands: list[Value] = []
        for option in options(one):
            if isinstance(option, Not):
                operands.append(option.test)
            elif isinstance(option, Logic):
                operands += option.operands
            elif isinstance(option, Part) and isinstance(option.owner, External):
                asked = results(trace).get(option)
                if asked is not None and not all(isinstance(v, Literal) for v in asked.arguments):
                    return False
            elif isinstance(option, Part):
                key = option.key
                if key == ".shape" or (isinstance(key, tuple) and key[0] not in _ASKING):
                    return False
                operands.append(option.owner)
        todo += operands
    return True
