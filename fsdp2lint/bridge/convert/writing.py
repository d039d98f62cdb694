"""Checkpoints written tensor by tensor: a file of ``torch.save`` or safetensors, a folder of either kind.

Sources: torch/serialization.py (``skip_data``), torch/distributed/checkpoint/{default_planner,filesystem}.py, safetensors'
README (the format), huggingface_hub's ``split_torch_state_dict_into_shards`` (names and sizes of files).
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fsdp2lint.bridge.convert.reading import safetensors_types
from fsdp2lint.bridge.stored import (
    CannotConvert,
    Stored,
    exchanged,
    is_known,
    leaves,
    memory_of,
    stored_in,
)

if TYPE_CHECKING:
    import torch

Progress = Callable[[int], None]
"""Gets the bytes of each tensor that was written."""

LARGEST_FILE = 5_000_000_000
"""Bytes of a file of a folder of Hugging Face, unless one tensor is larger: as their own tools split it."""


def write_folder(states: dict[Any, Any], folder: Path, progress: Progress) -> None:
    """Make a folder of ``torch.distributed.checkpoint``, in which one rank saved everything."""
    import torch
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    held: dict[int, Stored] = {}

    class Planner(DefaultSavePlanner):
        """Plans with tensors that have no memory, and reads each when it is written."""

        last: torch.Tensor | None = None

        def transform_object(self, write_item: Any, object: Any) -> Any:  # noqa: A002
            stored = held.get(id(object))
            if stored is None:
                return super().transform_object(write_item, object)
            if self.last is not None:  # it is written by now, and its writer still holds it
                self.last.untyped_storage().resize_(0)
            tensor = stored.read()
            self.last = tensor if stored.fresh else None
            progress(stored.size)
            return tensor

    def without_memory(stored: Stored) -> torch.Tensor:
        empty = torch.empty(stored.shape, dtype=stored.dtype, device="meta")
        held[id(empty)] = stored
        return empty

    # nothing is read ahead: the last tensor is let go of before the next one is read
    writer = FileSystemWriter(folder, per_thread_copy_ahead=0)
    save(exchanged(states, Stored, without_memory), storage_writer=writer, planner=Planner())


def write_file(states: dict[Any, Any], file: Path, progress: Progress) -> None:
    """Make a file of ``torch.save``: first everything but the numbers, which leaves room for them, then these."""
    import torch

    if not is_known(states):
        _write_whole(states, file, progress)
        return
    with torch.serialization.skip_data():
        torch.save(exchanged(states, Stored, _room), file)
    with file.open("rb") as stream:
        rooms = stored_in(stream, file)
    if rooms is None:
        _write_whole(states, file, progress)
    else:
        _fill(file, [(held, room.lies.start) for held, room in _pairs(states, rooms)], progress)


def _room(stored: Stored) -> torch.Tensor:
    """A tensor of the same form. Nothing touches its memory, so the system gives it none."""
    import torch

    return _as(stored, torch.empty(stored.shape, dtype=stored.dtype))


def _as(stored: Stored, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, as a parameter where it was one."""
    import torch

    if stored.trained is None:
        return tensor
    return torch.nn.Parameter(tensor, requires_grad=stored.trained)


def _write_whole(states: dict[Any, Any], file: Path, progress: Progress) -> None:
    """Write what may hide tensors, or what this release of PyTorch cannot write piece by piece."""
    import torch

    def read(stored: Stored) -> torch.Tensor:
        progress(stored.size)
        return _as(stored, stored.read())

    torch.save(exchanged(states, Stored, read), file)


def _pairs(states: Any, rooms: Any) -> Iterator[tuple[Stored, Any]]:
    """Each tensor that is not empty with the room for it."""
    for (keys, held), (others, room) in zip(leaves(states), leaves(rooms), strict=True):
        assert keys == others, (keys, others)
        if isinstance(held, Stored) and held.size:
            yield held, room


def _fill(file: Path, rooms: list[tuple[Stored, int]], progress: Progress) -> None:
    """Put the numbers into an archive, each at its place, with the checksum behind them."""
    with zipfile.ZipFile(file) as archive:
        directory = archive.start_dir
    sums: dict[int, int] = {}
    with file.open("r+b") as stream:
        for stored, start in rooms:
            memory = memory_of(tensor := stored.read())
            sums[start] = zlib.crc32(memory)
            stream.seek(start)
            stream.write(memory)
            stream.write(b"PK\x07\x08" + sums[start].to_bytes(4, "little"))
            del memory, tensor
            progress(stored.size)
        _correct(stream, directory, sums)


def _correct(stream: BinaryIO, directory: int, sums: Mapping[int, int]) -> None:
    """Write the checksums into the directory at the end of an archive, by where the numbers begin."""
    with zipfile.ZipFile(stream) as archive:
        entries = archive.infolist()
    for entry in entries:
        stream.seek(entry.header_offset + 26)
        name, extra = (int.from_bytes(stream.read(2), "little") for _ in range(2))
        start = entry.header_offset + 30 + name + extra
        stream.seek(directory)
        head = stream.read(46)
        name, extra, comment = (int.from_bytes(head[n : n + 2], "little") for n in (28, 30, 32))
        if start in sums:
            stream.seek(directory + 16)
            stream.write(sums[start].to_bytes(4, "little"))
        directory += 46 + name + extra + comment


def write_safetensors(weights: Mapping[str, Stored], file: Path, progress: Progress) -> None:
    """Make a safetensors file: its head, then the numbers, those of large types first as the library does."""
    names = {dtype: said for said, dtype in safetensors_types().items()}
    order = sorted(weights, key=lambda name: (-weights[name].dtype.itemsize, name))
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        stored = weights[name]
        if stored.dtype not in names:
            raise CannotConvert(
                f"{file}: a safetensors file has no name for {stored.dtype} of `{name}`"
            )
        start, end = end, end + stored.size
        head[name] = {
            "dtype": names[stored.dtype],
            "shape": stored.shape,
            "data_offsets": (start, end),
        }
    said = json.dumps(head, separators=(",", ":")).encode()
    said += b" " * (-len(said) % 8)
    with file.open("wb") as stream:
        stream.write(len(said).to_bytes(8, "little") + said)
        for name in order:
            memory = memory_of(tensor := weights[name].read())
            stream.write(memory)
            del memory, tensor
            progress(weights[name].size)


def write_shards(
    weights: Mapping[str, Stored], folder: Path, progress: Progress, largest: int = LARGEST_FILE
) -> None:
    """Make a folder of safetensors files of at most so many bytes, with the index that Hugging Face's tools read."""
    shards: list[dict[str, Stored]] = [{}]
    size = 0
    for name, stored in weights.items():
        if shards[-1] and size + stored.size > largest:
            shards.append({})
            size = 0
        shards[-1][name] = stored
        size += stored.size
    folder.mkdir()
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        called = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_safetensors(shard, folder / called, progress)
        places |= dict.fromkeys(shard, called)
    total = sum(stored.size for stored in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps(index, indent=2) + "\n", "utf-8"
    )
