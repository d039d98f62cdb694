"""Checkpoints in one process, whatever their format: of ``torch.save``, DCP or safetensors.

All come to the same tree of dictionaries. Tensors of a DCP folder and of a safetensors file are read when
they are asked for, those of a pickled file are mapped into memory, so a large checkpoint is never held as a
whole.
"""

from __future__ import annotations

import os
import pickle
import types
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_in_place

from fsdp2lint.prove.equality.shards import Part, parted, rebuild


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
    if _is_safetensors(path):
        return _safetensors(path)
    return _parts(_pickled(path))


def _parts(tree: Any) -> Any:
    """A tree in which distributed tensors are the parts that their rank had, objects what they hold."""
    if isinstance(tree, Mapping):
        return {key: _parts(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_parts(value) for value in tree]
    if isinstance(tree, torch.Tensor | Part | type) or callable(tree):
        return parted(tree)
    held = getattr(
        tree, "__dict__", None
    )  # settings: a dictionary in one program, an object in another
    return {key: _parts(value) for key, value in held.items()} if held else parted(tree)


def _is_safetensors(path: str) -> bool:
    """A length of eight bytes and the JSON object of that length (safetensors, "Format")."""
    with open(path, "rb") as file:
        start = file.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < os.path.getsize(path)


def _safetensors(path: str) -> dict[str, Later]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as missing:
        raise Unreadable("the package `safetensors` is not installed") from missing

    opened: Any

    def reader(name: str) -> Callable[[], torch.Tensor]:
        return lambda: opened.get_tensor(name)

    try:
        opened = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise Unreadable(_line(error)) from error
    return {name: Later(reader(name)) for name in opened.keys()}  # noqa: SIM118  no mapping


def _pickled(path: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _load(path, mmap=True)
        except Exception as error:  # whatever a file that is cut off, or no checkpoint, raises
            said = _line(error)
            if "mmap" not in said:  # the old format of `torch.save` cannot be mapped
                raise Unreadable(said) from error
        try:
            return _load(path, mmap=False)
        except Exception as error:
            raise Unreadable(_line(error)) from error


def _load(path: str, *, mmap: bool) -> Any:
    # the file was written a moment ago by a script that the user asked to run
    return torch.load(path, "cpu", pickle_module=_lenient, weights_only=False, mmap=mmap)


class _Unknown:
    """Stands for an object whose class this process does not have."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        for part in state if isinstance(state, tuple) else (state,):  # of slots and of a dictionary
            if isinstance(part, dict):
                self.__dict__.update(part)


class _Lenient(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The class, or one that takes anything: classes of a script are not here."""
        if name == "_rebuild_from_type_v2":
            return rebuild
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return type(name, (_Unknown,), {})


_lenient: Any = types.ModuleType("lenient")
_lenient.__dict__.update(vars(pickle), Unpickler=_Lenient)


def _dcp(path: str) -> dict[Any, Any]:
    try:
        metadata = FileSystemReader(path).read_metadata()
    except Exception as error:  # the metadata is a pickle
        raise Unreadable(_line(error)) from error
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
            node[last] = _parts(_entry(path, name, None))
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
