"""Looks at the checkpoints that a run left behind, from a process without a process group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor

from .results import Left

_FILES = (".pt", ".pth", ".bin", ".ckpt")


def look(folder: Path) -> list[Left]:
    """Every pickled file and DCP directory under a folder, in order of name."""
    found: list[Left] = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and path.suffix in _FILES:
            found.append(_look_at_file(path, name))
        elif path.is_dir() and any(path.glob("*.distcp")):
            found.append(_look_at_checkpoint(path, name))
    return found


def _look_at_file(path: Path, name: str) -> Left:
    try:
        content = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        return Left(name, "file", Fraction(0), (), f"{type(error).__name__}: {error}")
    held = whole = 0
    for tensor in _tensors(content):
        whole += tensor.numel()
        held += tensor._local_tensor.numel() if isinstance(tensor, DTensor) else tensor.numel()
    keys = tuple(str(key) for key in content) if isinstance(content, Mapping) else ()
    return Left(name, "file", _share(held, whole), keys, "")


def _look_at_checkpoint(path: Path, name: str) -> Left:
    try:
        entries = FileSystemReader(path).read_metadata().state_dict_metadata
    except Exception as error:
        return Left(name, "checkpoint", Fraction(0), (), f"{type(error).__name__}: {error}")
    held = whole = 0
    for entry in entries.values():
        if isinstance(entry, TensorStorageMetadata):
            whole += entry.size.numel()
            held += sum(chunk.sizes.numel() for chunk in entry.chunks)
    written = (path / ".metadata").stat().st_mtime_ns
    mixed = any(shard.stat().st_mtime_ns > written for shard in path.glob("*.distcp"))
    return Left(name, "checkpoint", _share(held, whole), tuple(entries), "", mixed)


def _share(held: int, whole: int) -> Fraction:
    return Fraction(held, whole) if whole else Fraction(1)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
