"""Checkpoints as files and as folders: one file of ``torch.save``, or a folder of ``torch.distributed.checkpoint``.

A safetensors file holds named tensors only: it is made of a model's weights, and what else there is is named.

Both hold nested dictionaries under the same keys, so one can be made of the other in a single process. A folder that
FSDP1 wrote (``SHARDED_STATE_DICT``) is read as any other; flat parameters (``LOCAL_STATE_DICT``) are not.

Sources: torch/distributed/checkpoint/format_utils.py, default_planner.py, filesystem.py (``.metadata`` is a pickle).
"""

from __future__ import annotations

import importlib
import json
import pickle
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdp2lint.system.files import read
from fsdp2lint.system.journal import NotWritten, Switch

if TYPE_CHECKING:
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

SUFFIXES = frozenset({".pt", ".pth", ".bin", ".ckpt", ".tar", ".pkl"})
"""What the name of a single file ends with."""

WEIGHTS_ONLY = ".safetensors"
_MODELS = ("model", "state_dict", "model_state_dict", "module", "weights")
"""Under which keys a checkpoint holds its model."""

_METADATA = ".metadata"
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


class CannotConvert(Exception):
    """The checkpoint cannot be read or written; the message says why."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What a conversion did: ``separated`` tensors shared their memory with another one before."""

    source: str
    target: str
    tensors: int
    size: int
    others: int
    separated: int
    left_out: tuple[str, ...]
    """The entries that a safetensors file cannot hold."""
    numbered: bool
    """Whether there is an optimizer state by numbers, which FSDP2 cannot load."""


def convert(
    old: Path, new: Path, *, force: bool = False, trust: bool = False, kind: str = ""
) -> Converted:
    """Make ``new`` of ``old``: a folder of a file, a file of a folder.

    ``kind`` (``file``, ``folder``) says what ``new`` is to be; without it a file becomes a folder unless the new name
    ends like a file's, and a folder becomes a file. What is there is replaced with ``force`` only, and only when the
    new one is complete. With ``trust`` pickled objects are loaded, which can run any code.

    Raises:
        CannotConvert: the old one cannot be read, the new one exists, there is no PyTorch.
    """
    _check(old, new, force)
    from_folder = old.is_dir()
    named = new.suffix in SUFFIXES or new.suffix == WEIGHTS_ONLY
    in_files = _index(old)
    kind = kind or ("file" if named or (from_folder and in_files is None) else "folder")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if in_files is not None:
            states = _read_indexed(old, in_files, trust)
        else:
            states = _read_folder(old, trust) if from_folder else _read_file(old, trust)
        left_out: tuple[str, ...] = ()
        if kind == "file" and new.suffix == WEIGHTS_ONLY:
            states, left_out = _weights(old, states)
        tensors, separated = _own_tensors(states)
        found = Converted(
            "folder" if from_folder else "file",
            kind,
            len(tensors),
            sum(t.numel() * t.element_size() for t in tensors),
            sum(1 for _, value in _leaves(states) if not _is_tensor(value)),
            separated,
            left_out,
            _numbered(states),
        )
        _write(states, new, kind)
    return found


def _check(old: Path, new: Path, force: bool) -> None:
    try:
        import torch  # noqa: F401
    except ImportError as problem:
        raise CannotConvert(
            "PyTorch is not installed: pip install 'fsdp2lint[verify]'"
        ) from problem
    if not old.exists():
        raise CannotConvert(f"{old}: there is no such file or folder")
    if not (old.is_file() or old.is_dir()):
        raise CannotConvert(f"{old}: neither a file nor a folder")
    if old.is_dir() and not (old / _METADATA).is_file() and _index(old) is None:
        raise CannotConvert(
            f"{old}: no checkpoint of torch.distributed.checkpoint, there is no {_METADATA} in it"
            " (it is written last: was the save complete?)"
        )
    if new.exists() and not force:
        raise CannotConvert(f"{new}: exists already; --force replaces it")
    if old.resolve() in (new.resolve(), *new.resolve().parents):
        raise CannotConvert(f"{new}: is inside the checkpoint that it is converted from")
    if new.resolve() in old.resolve().parents:
        raise CannotConvert(f"{new}: contains the checkpoint that it is converted from")


# -- reading ------------------------------------------------------------------------------------------------


def _read_file(path: Path, trust: bool) -> dict[Any, Any]:
    import torch

    if _is_safetensors(path):
        return dict(_safetensors().load_file(path))
    try:
        mapped = zipfile.is_zipfile(path)  # what torch < 1.6 wrote cannot be mapped
        if mapped:
            _check_size(path)
        states = torch.load(path, map_location="cpu", weights_only=not trust, mmap=mapped)
    except CannotConvert:
        raise
    except pickle.UnpicklingError as problem:
        if "operand" in str(problem) or "load key" in str(problem):
            raise CannotConvert(f"{path}: cannot be read: no checkpoint of torch.save") from problem
        raise CannotConvert(_refused(str(path), problem)) from problem
    except Exception as problem:  # whatever a broken file makes the reader raise
        raise CannotConvert(f"{path}: cannot be read: {_line(problem)}") from problem
    if not isinstance(states, dict):
        raise CannotConvert(f"{path}: holds no dictionary but a {type(states).__name__}")
    _refuse_flat(path, states)
    return states


def _index(path: Path) -> Path | None:
    """The index of a folder of Hugging Face; None where there is none, or the folder is another checkpoint."""
    if not path.is_dir() or (path / _METADATA).is_file():
        return None
    return next(iter(sorted(path.glob(_INDEX))), None)


def _read_indexed(folder: Path, index: Path, trust: bool) -> dict[Any, Any]:
    """The tensors of several files, each mapped into memory."""
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
        held = _read_file(file, trust)
        states |= {key: value for key, value in held.items() if places.get(key) == name}
    if lost := sorted(places.keys() - states.keys()):
        raise CannotConvert(f"{folder}: no file holds `{lost[0]}`, which {index.name} names")
    return states


def _is_safetensors(path: Path) -> bool:
    """Whether a file begins with a length of eight bytes and the JSON object of that length."""
    with path.open("rb") as file:
        start = file.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < path.stat().st_size


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError as problem:
        raise CannotConvert(
            "safetensors is not installed: pip install 'fsdp2lint[verify]'"
        ) from problem


def _read_folder(path: Path, trust: bool) -> dict[Any, Any]:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    if not trust:
        _check_metadata(path / _METADATA)
    states: dict[Any, Any] = {}
    try:
        _load_state_dict(
            states,
            storage_reader=FileSystemReader(path),
            planner=_planner(path, trust),
            no_dist=True,
        )
    except CheckpointException as problem:
        cause = next((failure[0] for failure in problem.failures.values()), problem)
        if isinstance(cause, CannotConvert):
            raise cause from None
        raise CannotConvert(f"{path}: cannot be read: {_line(cause)}") from problem
    except (OSError, pickle.UnpicklingError, EOFError, ValueError) as problem:
        raise CannotConvert(f"{path}: cannot be read: {_line(problem)}") from problem
    _refuse_flat(path, states)
    return states


def _planner(path: Path, trust: bool) -> DefaultLoadPlanner:
    """A planner that makes the whole state of what the metadata says."""
    import torch
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner

    class Planner(_EmptyStateDictLoadPlanner):
        def load_bytes(self, read_item: Any, value: Any) -> None:
            if not trust:
                try:
                    torch.load(value, weights_only=True)
                except pickle.UnpicklingError as problem:
                    where = f"{path}: `{read_item.dest_index.fqn}`"
                    raise CannotConvert(_refused(where, problem)) from problem
                value.seek(0)
            super().load_bytes(read_item, value)

    return Planner()  # type: ignore[no-untyped-call]


class _Metadata(pickle.Unpickler):
    """Reads what ``.metadata`` is made of and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        import torch

        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name in _HARMLESS.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _check_metadata(path: Path) -> None:
    try:
        with path.open("rb") as file:
            metadata = _Metadata(file).load()
        for part in (metadata.storage_data or {}).values():
            _check_part(path.parent, part.relative_path)
    except CannotConvert:
        raise
    except pickle.UnpicklingError as problem:
        raise CannotConvert(_refused(str(path), problem)) from problem
    except Exception as problem:  # a pickle that is cut off or no pickle raises almost anything
        raise CannotConvert(f"{path}: cannot be read: {_line(problem)}") from problem


def _check_part(folder: Path, name: str) -> None:
    """A checkpoint is read from files of its own folder: the metadata could name any on this machine."""
    file = folder / name
    if Path(name).name != name or not file.is_file():
        raise CannotConvert(
            f"{folder}: cannot be read: there is no file `{name}` in it, which {_METADATA} names"
        )


def _check_size(path: Path) -> None:
    """torch.save compresses nothing: what unpacks to more than it is was made to fill the memory."""
    with zipfile.ZipFile(path) as archive:
        packed = [one.filename for one in archive.infolist() if one.compress_type]
    if packed:
        raise CannotConvert(f"{path}: cannot be read: `{packed[0]}` in it is compressed")


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
    for keys, _ in _leaves(states):
        if any(isinstance(key, str) and key.rpartition(".")[2] == _FLAT for key in keys):
            raise CannotConvert(
                f"{path}: holds flat parameters (LOCAL_STATE_DICT): only FSDP1 with as many ranks can"
                " read them; load it there and save it with SHARDED_STATE_DICT or FULL_STATE_DICT"
            )


# -- what is inside -------------------------------------------------------------------------------------------


def _leaves(value: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """The values of nested dictionaries and lists, each with its keys."""
    found: list[tuple[tuple[Any, ...], Any]] = []
    todo: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while todo:
        keys, one = todo.pop()
        if isinstance(one, dict):
            todo += [((*keys, key), inner) for key, inner in one.items()]
        elif isinstance(one, list | tuple):
            todo += [((*keys, index), inner) for index, inner in enumerate(one)]
        else:
            found.append((keys, one))
    return found


def _weights(old: Path, states: dict[Any, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The weights in a checkpoint by their names, and the entries beside them."""
    _safetensors()
    if states and all(map(_is_tensor, states.values())):
        return states, ()
    held = [key for key in _MODELS if isinstance(states.get(key), dict)]
    weights = states[held[0]] if len(held) == 1 else {}
    if not weights or not all(map(_is_tensor, weights.values())):
        entries = ", ".join(f"`{key}`" for key in states)
        raise CannotConvert(
            f"{old}: a safetensors file holds the weights of one model, and none of {entries} is known to be"
            " them: save them under `model`, or name a file of torch.save (.pt)"
        )
    return weights, tuple(str(key) for key in states if key != held[0])


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _own_tensors(states: dict[Any, Any]) -> tuple[list[Any], int]:
    """All tensors, and how many got memory of their own: a flat optimizer state of FSDP1 shares its ``step``."""
    tensors: list[Any] = []
    known: set[tuple[int, int]] = set()
    separated = 0
    todo: list[Any] = [states]
    while todo:
        one = todo.pop()
        if not isinstance(one, dict | list):
            continue
        for key, value in one.items() if isinstance(one, dict) else enumerate(one):
            if _is_tensor(value):
                place = (value.untyped_storage().data_ptr(), value.storage_offset())
                if place in known and value.numel():
                    one[key] = value.clone()
                    separated += 1
                known.add(place)
                tensors.append(one[key])
            else:
                todo.append(value)
    return tensors, separated


def _numbered(states: dict[Any, Any]) -> bool:
    """Whether an optimizer state has numbers for parameters."""
    todo: list[Any] = [states]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            held = one.get("state")
            if "param_groups" in one and isinstance(held, dict):
                if any(isinstance(key, int) for key in held):
                    return True
            todo += one.values()
    return False


# -- writing --------------------------------------------------------------------------------------------------


def _write(states: dict[Any, Any], new: Path, kind: str) -> None:
    """Write beside the place, then put it there in one step."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        with Switch() as switch:
            switch.make_folders(new.parent)
            part = switch.add(new.parent.resolve() / new.name, shown=str(new))
            if kind == "file" and new.suffix == WEIGHTS_ONLY:
                _safetensors().save_file(_compact(states), part, metadata={"format": "pt"})
            elif kind == "file":
                torch.save(states, part)
            else:
                save(states, storage_writer=FileSystemWriter(part))
    except OSError as problem:
        raise CannotConvert(f"{new}: cannot be written: {problem.strerror or problem}") from problem
    except NotWritten as problem:
        raise CannotConvert(str(problem)) from problem


def _compact(weights: dict[str, Any]) -> dict[str, Any]:
    """Tensors that are all of their memory, as safetensors wants them."""
    found = {}
    for name, tensor in weights.items():
        whole = tensor.detach().contiguous()
        size = whole.numel() * whole.element_size()
        found[name] = whole if whole.untyped_storage().nbytes() == size else whole.clone()
    return found
