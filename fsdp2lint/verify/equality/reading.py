"""Checkpoints in one process, whatever their format: a file of ``torch.save`` or a folder of DCP.

Both come to the same tree of dictionaries. Tensors of a DCP folder are read when they are asked for, those
of a file are mapped into memory, so a large checkpoint is never held as a whole.
"""

from __future__ import annotations

import os
import pickle
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_in_place


class Unreadable(Exception):
    """A checkpoint that one process alone cannot read; the text says why."""


class Later:
    """A tensor that is still in its file."""

    def __init__(self, read: Callable[[], torch.Tensor]) -> None:
        self.read = read


def read(path: str) -> Any:
    """The tree of a checkpoint.

    Raises:
        Unreadable: the format is unknown or needs the ranks that wrote it.
    """
    if os.path.isdir(path):
        if not (Path(path) / ".metadata").exists():
            raise Unreadable("the folder has no `.metadata`: the save was never completed")
        return _dcp(path)
    return _pickled(path)


def _pickled(path: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _load(path, mmap=True)
        except (RuntimeError, ValueError, pickle.UnpicklingError) as error:
            said = _line(error)
            if "mmap" not in said:  # the old format of `torch.save` cannot be mapped
                raise Unreadable(said) from error
        try:
            return _load(path, mmap=False)
        except (RuntimeError, ValueError, pickle.UnpicklingError) as error:
            raise Unreadable(_line(error)) from error


def _load(path: str, *, mmap: bool) -> Any:
    # the file was written a moment ago by a script that the user asked to run
    return torch.load(path, "cpu", pickle_module=_lenient, weights_only=False, mmap=mmap)


class _Unknown:
    """Stands for an object whose class this process does not have."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __setstate__(self, state: object) -> None: ...


class _Lenient(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The class, or one that takes anything: classes of a script are not here."""
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return type(name, (_Unknown,), {})


_lenient: Any = types.ModuleType("lenient")
_lenient.__dict__.update(vars(pickle), Unpickler=_Lenient)


def _dcp(path: str) -> dict[Any, Any]:
    metadata = FileSystemReader(path).read_metadata()
    ways: dict[str, tuple[Any, ...]] = getattr(metadata, "planner_data", None) or {}
    tree: dict[Any, Any] = {}
    for name, stored in metadata.state_dict_metadata.items():
        node = tree
        *parents, last = ways.get(name, (name,))
        for parent in parents:
            node = node.setdefault(parent, {})
        if isinstance(stored, TensorStorageMetadata):
            size, dtype = stored.size, stored.properties.dtype
            node[last] = Later(lambda n=name, s=size, d=dtype: _tensor(path, n, s, d))  # type: ignore[misc]
        else:
            node[last] = _entry(path, name, None)
    return tree


def _tensor(path: str, name: str, size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    tensor: torch.Tensor = _entry(path, name, torch.empty(size, dtype=dtype))
    return tensor


def _entry(path: str, name: str, empty: Any) -> Any:
    found = {name: empty}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load_in_place(found, checkpoint_id=path)
    return found[name]


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
