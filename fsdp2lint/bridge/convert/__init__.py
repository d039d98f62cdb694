"""Checkpoints as files and as folders: one file of ``torch.save``, or a folder of ``torch.distributed.checkpoint``.

A safetensors file holds named tensors only, and so does a folder of Hugging Face, safetensors files with an index: both are
made of a model's weights, and what else there is is named.

All hold nested dictionaries under the same keys, so one can be made of the other in a single process, tensor by tensor.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fsdp2lint.bridge.convert.reading import METADATA, index_of, safetensors_library, states_of
from fsdp2lint.bridge.convert.writing import (
    write_file,
    write_folder,
    write_safetensors,
    write_shards,
)
from fsdp2lint.bridge.stored import CannotConvert, Stored, exchanged, leaves
from fsdp2lint.system.journal import NotWritten, Switch

Kind = Literal["file", "folder", "huggingface"]

SUFFIXES = frozenset({".pt", ".pth", ".bin", ".ckpt", ".tar", ".pkl"})
"""What the name of a single file ends with."""

WEIGHTS_ONLY = ".safetensors"
_MODELS = ("model", "state_dict", "model_state_dict", "module", "weights")
"""Under which keys a checkpoint holds its model."""


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
    old: Path,
    new: Path,
    *,
    force: bool = False,
    trust: bool = False,
    kind: Kind | None = None,
    progress: Callable[[int, int], None] = lambda done, size: None,
) -> Converted:
    """Make ``new`` of ``old``: a folder of a file, a file of a folder.

    ``kind`` says what ``new`` is to be; without it a file becomes a folder unless the new name ends like a file's, and a
    folder becomes a file. What is there is replaced with ``force`` only, and only when the new one is complete. With ``trust``
    pickled objects are loaded, which can run any code. ``progress`` gets how many bytes of tensors are written, of how many.

    Raises:
        CannotConvert: the old one cannot be read, the new one exists, there is no PyTorch.
    """
    _check(old, new, force)
    from_folder, in_files = old.is_dir(), index_of(old) is not None
    named = new.suffix in SUFFIXES or new.suffix == WEIGHTS_ONLY
    kind = kind or ("file" if named or (from_folder and not in_files) else "folder")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        states = states_of(old, trust=trust)
        left_out: tuple[str, ...] = ()
        if kind == "huggingface" or (kind == "file" and new.suffix == WEIGHTS_ONLY):
            states, left_out = _weights(old, states)
        states, separated = _own(states)
        sizes = [size for _, value in leaves(states) if (size := _size(value)) is not None]
        found = Converted(
            "folder" if from_folder else "file",
            "file" if kind == "file" else "folder",
            len(sizes),
            sum(sizes),
            sum(1 for _, value in leaves(states) if _size(value) is None),
            separated,
            left_out,
            _numbered(states),
        )
        _write(states, new, kind, lambda done: progress(done, found.size))
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
    if old.is_dir() and not (old / METADATA).is_file() and index_of(old) is None:
        raise CannotConvert(
            f"{old}: no checkpoint of torch.distributed.checkpoint, there is no {METADATA} in it"
            " (it is written last: was the save complete?)"
        )
    if new.exists() and not force:
        raise CannotConvert(f"{new}: exists already; --force replaces it")
    if old.resolve() in (new.resolve(), *new.resolve().parents):
        raise CannotConvert(f"{new}: is inside the checkpoint that it is converted from")
    if new.resolve() in old.resolve().parents:
        raise CannotConvert(f"{new}: contains the checkpoint that it is converted from")


def _weights(old: Path, states: dict[Any, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The weights in a checkpoint by their names, and the entries beside them."""
    safetensors_library()
    if states and _are_tensors(states):
        return states, ()
    held = [key for key in _MODELS if isinstance(states.get(key), dict)]
    weights = states[held[0]] if len(held) == 1 else {}
    if not weights or not _are_tensors(weights):
        entries = ", ".join(f"`{key}`" for key in states)
        raise CannotConvert(
            f"{old}: a safetensors file holds the weights of one model, and none of {entries} is known to be"
            " them: save them under `model`, or name a file of torch.save (.pt)"
        )
    return weights, tuple(str(key) for key in states if key != held[0])


def _are_tensors(weights: dict[Any, Any]) -> bool:
    return all(isinstance(value, Stored) for value in weights.values())


def _size(value: Any) -> int | None:
    """The bytes of a tensor; None for other values."""
    import torch

    if isinstance(value, Stored):
        return value.size
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else None


def _own(states: dict[Any, Any]) -> tuple[dict[Any, Any], int]:
    """The states, and how many tensors get memory of their own: a flat optimizer state of FSDP1 shares its ``step``."""
    known: set[Any] = set()
    separated = 0

    def own(stored: Stored) -> Stored:
        nonlocal separated
        place = (stored.lies.path, stored.lies.start) if stored.lies else stored.address
        if place is None or not stored.size or place not in known:
            known.add(place)
            return stored
        separated += 1
        if stored.lies is not None:
            return stored  # read once more
        return replace(stored, read=lambda: stored.read().clone(), fresh=True, address=None)

    return exchanged(states, Stored, own), separated


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


def _write(states: dict[Any, Any], new: Path, kind: Kind, progress: Callable[[int], None]) -> None:
    """Write beside the place, then put it there in one step."""
    done = 0

    def wrote(size: int) -> None:
        nonlocal done
        done += size
        progress(done)

    try:
        with Switch() as switch:
            switch.make_folders(new.parent)
            part = Path(switch.add(new.parent.resolve() / new.name, shown=str(new)))
            if kind == "huggingface":
                write_shards(states, part, wrote)
            elif kind == "folder":
                write_folder(states, part, wrote)
            elif new.suffix == WEIGHTS_ONLY:
                write_safetensors(states, part, wrote)
            else:
                write_file(states, part, wrote)
    except OSError as problem:
        raise CannotConvert(f"{new}: cannot be written: {problem.strerror or problem}") from problem
    except NotWritten as problem:
        raise CannotConvert(str(problem)) from problem
