"""Tensors of which every rank wrote its own part, put together again without any rank.

A pickled ``ShardedTensor`` asks for the process group that it was saved under
(``torch/distributed/_shard/sharded_tensor/api.py``, ``__setstate__``); here only its state is read: the
parts that the rank had and where in the whole they belong. A pickled ``DTensor`` knows its place in the mesh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

FLAT = "_flat_param"
"""What FSDP1 calls the parameters of a unit that it keeps as one (``_flat_param.py``)."""

Layout = list[tuple[str, tuple[int, ...], int]]
"""Of one flat parameter, piece after piece: the parameter's name, empty for padding, its shape and length."""


@dataclass
class Part:
    """What one rank, or several, have of a tensor."""

    shape: torch.Size
    dtype: torch.dtype
    pieces: list[tuple[tuple[int, ...], torch.Tensor]] = field(default_factory=list)
    """Where each begins, and its values."""

    def whole(self) -> torch.Tensor | None:
        """The tensor itself; None where a part of it is missing."""
        tensor = torch.empty(self.shape, dtype=self.dtype)
        held = torch.zeros(self.shape, dtype=torch.bool)
        for offsets, piece in self.pieces:
            place = tuple(
                slice(at, at + size) for at, size in zip(offsets, piece.shape, strict=True)
            )
            tensor[place] = piece
            held[place] = True
        return tensor if bool(held.all()) else None


@dataclass
class Each:
    """What every rank wrote under one name: rows of one tensor, or what is not the same on all."""

    values: list[Any]

    def whole(self, shape: torch.Size) -> torch.Tensor | None:
        """The tensor of this shape that the ranks wrote, in rows or each of them; None when they did not.

        FSDP1 with ``use_orig_params=True`` leaves every rank a row of each parameter, in the order of
        ranks (``torch/distributed/fsdp/_flat_param.py``).
        """
        return next(
            (
                row.reshape(shape)
                for row in map(torch.cat, self.turns())
                if row.numel() == shape.numel()
            ),
            None,
        )

    def turns(self) -> Iterator[list[torch.Tensor]]:
        """The rows that may be all there are: where a model has replicas, the ranks hold them in turns."""
        rows = [row for row in self.values if isinstance(row, torch.Tensor) and row.dim() == 1]
        if len(rows) < len(self.values):
            return
        for turn in range(1, len(rows) + 1):
            if len(rows) % turn == 0 and all(map(_same, rows, rows[turn:])):
                yield rows[:turn]


def rebuild(build: Any, kind: Any, args: Any, state: Any) -> Any:
    """``torch._tensor._rebuild_from_type_v2``, to which a sharded tensor is what its state says."""
    if not issubclass(kind, ShardedTensor):
        return torch._tensor._rebuild_from_type_v2(build, kind, args, state)  # type: ignore[no-untyped-call]
    shards, metadata, *_ = state
    pieces = [(tuple(shard.metadata.shard_offsets), shard.tensor) for shard in shards]
    return Part(metadata.size, metadata.tensor_properties.dtype, pieces)


def parted(leaf: Any) -> Any:
    """A distributed tensor as the part that its rank had; anything else as it is."""
    if not isinstance(leaf, DTensor):
        return leaf
    local = leaf.to_local()
    if local.shape == leaf.shape:
        return local
    if leaf.device_mesh.get_coordinate() is None or not _simple(leaf):
        return leaf
    _, offsets = compute_local_shape_and_global_offset(
        leaf.shape, leaf.device_mesh, leaf.placements
    )
    return Part(leaf.shape, leaf.dtype, [(tuple(offsets), local)])


def _simple(tensor: DTensor) -> bool:
    """Whether its part is one block of it: not so where two meshes cut one dimension in turns."""
    return all(type(p) is Shard or p.is_replicate() for p in tensor.placements)


def merged(trees: Sequence[Any]) -> Any:
    """One tree of those that the ranks wrote: parts together, what is the same once, the rest by rank.

    One dimension alone may be a row of something larger, also where it is the same.
    """
    first = trees[0]
    if all(isinstance(tree, Mapping) for tree in trees):
        keys = dict.fromkeys(key for tree in trees for key in tree)
        return {key: merged([tree[key] for tree in trees if key in tree]) for key in keys}
    if all(isinstance(tree, list | tuple) and len(tree) == len(first) for tree in trees):
        return [merged(list(each)) for each in zip(*trees, strict=True)]
    if all(isinstance(tree, Part) for tree in trees):
        return Part(first.shape, first.dtype, [piece for tree in trees for piece in tree.pieces])
    if all(isinstance(tree, torch.Tensor) for tree in trees):
        same = first.dim() != 1 and all(_same(first, tree) for tree in trees[1:])
        return first if same else Each(list(trees))
    plain = all(isinstance(tree, bool | int | float) for tree in trees)
    return Each(list(trees)) if plain and len(set(trees)) > 1 else first


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def unflattened(tensors: Mapping[str, Any], layouts: Mapping[str, Layout]) -> dict[str, Any]:
    """Named tensors with each known flat parameter in place of it as the parameters that it holds."""
    found: dict[str, Any] = {}
    for name, leaf in tensors.items():
        unit, _, last = name.rpartition(".")
        whole = leaf.whole() if isinstance(leaf, Part) else leaf
        if last == FLAT and unit in layouts and isinstance(whole, torch.Tensor):
            found |= cut(whole, unit, layouts[unit])
        else:
            found[name] = leaf
    return found


def cut(whole: torch.Tensor, unit: str, layout: Layout) -> dict[str, torch.Tensor]:
    """The parameters of a unit by their whole names, cut out of the flat one."""
    found: dict[str, torch.Tensor] = {}
    start = 0
    for own, shape, length in layout:
        if own:
            piece = whole[start : start + length]
            found[f"{unit}.{own}" if unit else own] = piece.reshape(tuple(shape))
        start += length
    return found


def flat(leaf: Any, layout: Layout) -> torch.Tensor | None:
    """The flat tensor of which ranks hold the rows; None when it is none of this layout.

    The last row is filled up to the length of the others (``torch/distributed/fsdp/_flat_param.py``,
    ``_get_shard``).
    """
    length = sum(piece for _, _, piece in layout)
    for rows in (leaf if isinstance(leaf, Each) else Each([leaf])).turns():
        if 0 <= sum(map(len, rows)) - length < len(rows):
            return torch.cat(rows)
    return None
