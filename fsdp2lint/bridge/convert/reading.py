"""Checkpoints read: one file of ``torch.save`` or safetensors, a folder of Hugging Face or of ``torch.distributed.checkpoint``.

What is read is the nested dictionary with a `Stored` for each tensor. A folder that FSDP1 wrote (``SHARDED_STATE_DICT``) is
read as any other; flat parameters (``LOCAL_STATE_DICT``) are not.

Sources: torch/serialization.py, torch/distributed/checkpoint/{default_planner,filesystem,format_utils}.py (``.metadata`` is a
pickle), safetensors' README (the format).
"""

from __future__ import annotations

import importlib
import io
import json
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdp2lint.bridge.stored import (
    CannotConvert,
    Cut,
    Stored,
    exchanged,
    in_memory,
    leaves,
    stored_in,
)
from fsdp2lint.system.files import read

if TYPE_CHECKING:
    import torch

METADATA = ".metadata"
_INDEX = "*.index.json"
"""The file of a folder of Hugging Face that says which of its files holds which tensor."""
_FLAT = "_flat_param"
_HARMLESS = {
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "device"},
    "pathlib": {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path"},
    "collections": {"OrderedDict"},
    "builtins": {"set"},
}


def states_of(path: Path, *, trust: bool) -> dict[Any, Any]:
    """The nested dictionary that a checkpoint holds, with a `Stored` for each tensor.

    With ``trust`` pickled objects are loaded, which can run any code.

    Raises:
        CannotConvert: it cannot be read.
    """
    index = index_of(path)
    if index is not None:
        states = _of_index(path, index, trust)
    elif path.is_dir():
        states = _of_folder(path, trust)
    else:
        states = _of_file(path, trust)
    _refuse_flat(path, states)
    return states


# -- files --------------------------------------------------------------------------------------------------


def _of_file(path: Path, trust: bool) -> dict[Any, Any]:
    if _is_safetensors(path):
        return _of_safetensors(path)
    states = _loaded(path, trust)
    if not isinstance(states, dict):
        raise CannotConvert(f"{path}: holds no dictionary but a {type(states).__name__}")
    return states


def _loaded(path: Path, trust: bool) -> Any:
    """What ``torch.save`` wrote; mapped into memory where its tensors cannot be read one by one."""
    import torch

    try:
        mapped = zipfile.is_zipfile(path)  # what torch < 1.6 wrote cannot be mapped
        if mapped:
            _check_archive(path)
        if mapped and not trust:
            with path.open("rb") as stream:
                states = stored_in(stream, path)
            if states is not None:
                return states
        whole = torch.load(path, map_location="cpu", weights_only=not trust, mmap=mapped)
        return exchanged(whole, torch.Tensor, in_memory)
    except CannotConvert:
        raise
    except pickle.UnpicklingError as problem:
        if "operand" in str(problem) or "load key" in str(problem):
            raise CannotConvert(f"{path}: cannot be read: no checkpoint of torch.save") from problem
        raise CannotConvert(_refused(str(path), problem)) from problem
    except Exception as problem:  # whatever a broken file makes the reader raise
        raise CannotConvert(f"{path}: cannot be read: {_line(problem)}") from problem


def _check_archive(path: Path) -> None:
    """torch.save compresses nothing: what unpacks to more than it is was made to fill the memory."""
    with zipfile.ZipFile(path) as archive:
        packed = [one.filename for one in archive.infolist() if one.compress_type]
    if packed:
        raise CannotConvert(f"{path}: cannot be read: `{packed[0]}` in it is compressed")


def index_of(path: Path) -> Path | None:
    """The index of a folder of Hugging Face; None where there is none, or the folder is another checkpoint."""
    if not path.is_dir() or (path / METADATA).is_file():
        return None
    return next(iter(sorted(path.glob(_INDEX))), None)


def _of_index(folder: Path, index: Path, trust: bool) -> dict[Any, Any]:
    """The tensors of several files."""
    try:
        places = json.loads(read(str(index)))["weight_map"]
        names = sorted(set(places.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise CannotConvert(f"{index}: cannot be read: it has no `weight_map`") from problem
    states: dict[Any, Any] = {}
    for name in names:
        file = folder / str(name)
        if file.parent != folder or not file.is_file():
            raise CannotConvert(f"{index}: there is no file `{name}` beside it")
        held = _of_file(file, trust)
        states |= {key: value for key, value in held.items() if places.get(key) == name}
    if lost := sorted(places.keys() - states.keys()):
        raise CannotConvert(f"{folder}: no file holds `{lost[0]}`, which {index.name} names")
    return states


def _is_safetensors(path: Path) -> bool:
    """Whether a file begins with a length of eight bytes and the JSON object of that length."""
    with path.open("rb") as file:
        start = file.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < path.stat().st_size


def _of_safetensors(path: Path) -> dict[Any, Any]:
    """The tensors that the head of a safetensors file names; the library has found it in order first."""
    safetensors = safetensors_library()
    try:
        with safetensors.safe_open(path, framework="pt"):
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            head = json.loads(file.read(length))
    except Exception as problem:  # its own errors, and those of files
        raise CannotConvert(f"{path}: cannot be read: {_line(problem)}") from problem
    head.pop("__metadata__", None)
    types = safetensors_types()
    states: dict[Any, Any] = {}
    for name, entry in head.items():
        if entry["dtype"] not in types:
            raise CannotConvert(
                f"{path}: `{name}` has the type {entry['dtype']}, which is not known"
            )
        shape = tuple(entry["shape"])
        start = 8 + length + entry["data_offsets"][0]
        states[name] = Cut.rows(path, start, shape, types[entry["dtype"]]).stored()
    return states


def safetensors_library() -> Any:
    """The package, which is an extra.

    Raises:
        CannotConvert: it is not installed.
    """
    try:
        return importlib.import_module("safetensors")
    except ImportError as problem:
        raise CannotConvert(
            "safetensors is not installed: pip install 'fsdp2lint[verify]'"
        ) from problem


def safetensors_types() -> Mapping[str, torch.dtype]:
    """The names that safetensors gives to types, as far as this release of PyTorch has them."""
    import torch

    names = {
        "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
        "U16": "uint16", "I16": "int16", "F16": "float16", "BF16": "bfloat16", "U32": "uint32", "I32": "int32",
        "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64",
    }  # fmt: skip
    return {said: getattr(torch, name) for said, name in names.items() if hasattr(torch, name)}


# -- folders ------------------------------------------------------------------------------------------------


def _of_folder(path: Path, trust: bool) -> dict[Any, Any]:
    """What a folder holds under the keys with which it was saved."""
    from torch.distributed.checkpoint._traverse import set_element

    metadata = _metadata(path / METADATA, trust)
    places = metadata.planner_data or {}
    states: dict[Any, Any] = {}
    try:
        for name, entry in metadata.state_dict_metadata.items():
            value = _entry(path, metadata.storage_data, name, entry, trust)
            set_element(states, places.get(name, (name,)), value)
    except CannotConvert:
        raise
    except Exception as problem:  # whatever damaged files make the reader raise
        raise CannotConvert(f"{path}: cannot be read: {_line(problem)}") from problem
    return states


def _entry(folder: Path, places: Mapping[Any, Any], name: str, entry: Any, trust: bool) -> Any:
    """A tensor of a folder, in as many parts as ranks saved of it, or another value."""
    from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

    if not isinstance(entry, TensorStorageMetadata):
        stream = _Slice.of(folder, places[MetadataIndex(name)]).whole()
        try:
            return _load(stream, trust)
        except pickle.UnpicklingError as problem:
            raise CannotConvert(_refused(f"{folder}: `{name}`", problem)) from problem
    shape, dtype = tuple(entry.size), entry.properties.dtype
    parts = []
    for chunk in entry.chunks:
        part = _Slice.of(folder, places[MetadataIndex(name, chunk.offsets)])
        parts.append((tuple(chunk.offsets), tuple(chunk.sizes), part))
    if sum(prod(sizes) for _, sizes, _ in parts) != prod(shape):
        raise CannotConvert(f"{folder}: cannot be read: parts of `{name}` are missing")
    return Stored(shape, dtype, lambda: _joined(shape, dtype, parts))


def _joined(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    parts: Sequence[tuple[tuple[int, ...], tuple[int, ...], _Slice]],
) -> torch.Tensor:
    """A tensor of its parts, each read into its place."""
    import torch

    whole = torch.empty(shape, dtype=dtype)
    for offsets, sizes, part in parts:
        target = whole
        for dimension, (first, length) in enumerate(zip(offsets, sizes, strict=True)):
            target = target.narrow(dimension, first, length)
        part.fill(target)
    return whole


@dataclass(frozen=True, slots=True)
class _Slice:
    """What ``torch.save`` wrote into the file of a rank, from some byte on."""

    folder: Path
    path: Path
    start: int
    length: int
    transforms: Sequence[str]
    """How it was packed, by the names of extensions."""

    @classmethod
    def of(cls, folder: Path, info: Any) -> _Slice:
        """The slice of a file of the folder.

        Raises:
            CannotConvert: the file ends before.
        """
        path = folder / info.relative_path
        if info.offset < 0 or info.offset + info.length > path.stat().st_size:
            raise CannotConvert(f"{path}: cannot be read: it ends too early")
        transforms = getattr(info, "transform_descriptors", None) or ()
        return cls(folder, path, info.offset, info.length, transforms)

    def whole(self) -> io.BytesIO:
        """Its bytes, unpacked."""
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        with self.path.open("rb") as file:
            file.seek(self.start)
            raw = io.BytesIO(file.read(self.length))
        if not self.transforms:
            return raw
        transforms: Any = FileSystemReader(self.folder).transforms
        return io.BytesIO(transforms.transform_load_stream(None, self.transforms, raw).read(-1))

    def fill(self, target: torch.Tensor) -> None:
        """Read the tensor that it holds into another.

        Raises:
            CannotConvert: it holds something else.
        """
        from torch.distributed.checkpoint.utils import _create_file_view

        try:
            held = None
            if not self.transforms:
                with self.path.open("rb") as file:
                    view: Any = _create_file_view(file, self.start, self.length)
                    held = stored_in(view, self.path, self.start)
            if isinstance(held, Stored) and held.lies is not None:
                if held.shape != tuple(target.shape) or held.dtype != target.dtype:
                    raise CannotConvert(f"{self.path}: cannot be read: a tensor has another form")
                held.lies.fill(target)
            else:
                target.copy_(_load(self.whole(), trust=False))
        except CannotConvert:
            raise
        except Exception as problem:  # whatever a damaged file makes the reader raise
            raise CannotConvert(f"{self.path}: cannot be read: {_line(problem)}") from problem


def _load(stream: io.BytesIO, trust: bool) -> Any:
    """What a stream holds."""
    import torch

    return torch.load(stream, map_location="cpu", weights_only=not trust)


class _Metadata(pickle.Unpickler):
    """Reads what ``.metadata`` is made of and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        import torch

        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name in _HARMLESS.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _metadata(path: Path, trust: bool) -> Any:
    """What ``.metadata`` says, of files beside it."""
    try:
        with path.open("rb") as file:
            metadata = (pickle.Unpickler if trust else _Metadata)(file).load()
        for part in (metadata.storage_data or {}).values():
            _check_part(path.parent, part.relative_path)
    except CannotConvert:
        raise
    except pickle.UnpicklingError as problem:
        raise CannotConvert(_refused(str(path), problem)) from problem
    except Exception as problem:  # a pickle that is cut off or no pickle raises almost anything
        raise CannotConvert(f"{path}: cannot be read: {_line(problem)}") from problem
    return metadata


def _check_part(folder: Path, name: str) -> None:
    """A checkpoint is read from files of its own folder: the metadata could name any on this machine."""
    file = folder / name
    if Path(name).name != name or not file.is_file():
        raise CannotConvert(
            f"{folder}: cannot be read: there is no file `{name}` in it, which {METADATA} names"
        )


def _refused(where: str, problem: BaseException) -> str:
    return (
        f"{where}: holds more than tensors and plain values ({_line(problem)});"
        " --trust loads it, which can run any code: only for checkpoints of your own"
    )


def _line(problem: BaseException) -> str:
    """The sentence of an error that says what it is about."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    said = next((line for line in lines if "GLOBAL" in line or "Unsupported" in line), "")
    return (said or "".join(lines[:1]) or type(problem).__name__)[:200]


def _refuse_flat(path: Path, states: dict[Any, Any]) -> None:
    for keys, _ in leaves(states):
        if any(isinstance(key, str) and key.rpartition(".")[2] == _FLAT for key in keys):
            raise CannotConvert(
                f"{path}: holds flat parameters (LOCAL_STATE_DICT): only FSDP1 with as many ranks can"
                " read them; load it there and save it with SHARDED_STATE_DICT or FULL_STATE_DICT"
            )
