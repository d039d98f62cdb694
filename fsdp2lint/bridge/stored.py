"""Tensors that lie in a checkpoint: what each is, and how to read it alone, so that no two have to be in memory."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import torch


class CannotConvert(Exception):
    """The checkpoint cannot be read or written; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A tensor of a checkpoint, which is read when it is asked for."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], torch.Tensor]
    """The tensor, contiguous; memory of its own if ``fresh``."""
    fresh: bool = True
    trained: bool | None = None
    """``requires_grad`` of a parameter; None for a plain tensor."""
    lies: Cut | None = None
    """Where it lies, if it is one piece of a file."""
    address: int | None = None
    """Where it lies in memory, if it is there."""

    @property
    def size(self) -> int:
        """Its bytes."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the numbers of a tensor lie: in a file from this byte on, by their strides."""

    path: Path
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def rows(cls, path: Path, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Cut:
        """A contiguous tensor."""
        stride = tuple(prod(shape[dimension + 1 :]) for dimension in range(len(shape)))
        return cls(path, start, shape, stride, dtype)

    def stored(self, trained: bool | None = None) -> Stored:
        """The tensor that lies there."""
        return Stored(self.shape, self.dtype, self.read, trained=trained, lies=self)

    def read(self) -> torch.Tensor:
        """The tensor in memory of its own.

        Raises:
            CannotConvert: the file ends before.
        """
        import torch

        if self._is_contiguous:
            whole = torch.empty(self.shape, dtype=self.dtype)
            self.fill(whole)
            return whole
        reach = 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        flat = torch.empty(reach, dtype=self.dtype)
        fill(flat, self.path, self.start)
        return flat.as_strided(self.shape, self.stride).contiguous()

    def fill(self, target: torch.Tensor) -> None:
        """Put the numbers into a tensor of this shape.

        Raises:
            CannotConvert: the file ends before.
        """
        if self._is_contiguous and target.is_contiguous():
            fill(target, self.path, self.start)
        else:
            target.copy_(self.read())

    @property
    def _is_contiguous(self) -> bool:
        expected = 1
        for length, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if length != 1 and step != expected:
                return 0 in self.shape
            expected *= length
        return True


def fill(target: torch.Tensor, path: Path, start: int) -> None:
    """Read the memory of a contiguous tensor from a file.

    Raises:
        CannotConvert: the file ends before.
    """
    memory = memory_of(target)
    with path.open("rb") as file:
        file.seek(start)
        if file.readinto(memory) != len(memory):
            raise CannotConvert(f"{path}: cannot be read: it ends too early")


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor; they live as long as it does."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def stored_in(stream: BinaryIO, path: Path, base: int = 0) -> Any:
    """What ``torch.save`` wrote into a stream, which is the file from byte ``base`` on, with a `Stored` for each tensor.

    None where this release of PyTorch does not say where tensors lie or one of them is not plain: then it has to be
    loaded whole. Raises what `torch.load` raises.
    """
    import torch

    outline = torch.load(stream, map_location="meta", weights_only=True)
    states = exchanged(outline, torch.Tensor, lambda tensor: _in_file(tensor, path, base))
    return states if is_known(states) else None


def _in_file(tensor: torch.Tensor, path: Path, base: int) -> Stored | torch.Tensor:
    start = None
    if _is_plain(tensor, "meta"):
        start = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
    if start is None:
        return tensor
    start += base + tensor.storage_offset() * tensor.element_size()
    lies = Cut(path, start, tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return lies.stored(_trained(tensor))


def in_memory(tensor: torch.Tensor) -> Stored | torch.Tensor:
    """A tensor that is there, or mapped from its file, as one that is stored; one that is not plain stays."""
    if not _is_plain(tensor, "cpu"):
        return tensor
    plain = tensor.detach()
    return Stored(
        tuple(plain.shape),
        plain.dtype,
        plain.contiguous,
        fresh=False,
        trained=_trained(tensor),
        address=plain.data_ptr(),
    )


def _trained(tensor: torch.Tensor) -> bool | None:
    """``requires_grad`` of a parameter; None for a plain tensor."""
    import torch

    return tensor.requires_grad if isinstance(tensor, torch.nn.Parameter) else None


def _is_plain(tensor: torch.Tensor, device: str) -> bool:
    """Whether a tensor on the device is its numbers and nothing else."""
    import torch

    return (
        tensor.layout == torch.strided
        and tensor.device.type == device
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)
    )


def exchanged(
    value: Any, kind: type[Any] | tuple[type[Any], ...], change: Callable[[Any], Any]
) -> Any:
    """The same dictionaries and lists, with something else for each value of a kind."""
    if isinstance(value, kind):
        return change(value)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, exchanged(inner, kind, change)) for key, inner in value.items())
    if type(value) in (list, tuple):
        return type(value)(exchanged(inner, kind, change) for inner in value)
    return value


def is_known(value: Any) -> bool:
    """Whether there is nothing but `Stored` and plain values, in which no tensor can hide."""
    if type(value) in (dict, OrderedDict):
        return all(map(is_known, value)) and all(map(is_known, value.values()))
    if type(value) in (list, tuple):
        return all(map(is_known, value))
    plain = (Stored, bool, int, float, complex, str, bytes, type(None))
    torchs = ("dtype", "device", "Size", "layout")
    kind = type(value)
    return kind in plain or (kind.__module__ == "torch" and kind.__name__ in torchs)


def leaves(value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The values of nested dictionaries and lists in their order, each with its keys."""
    todo: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while todo:
        keys, one = todo.pop()
        inner: Iterable[tuple[Any, Any]]
        if isinstance(one, dict):
            inner = one.items()
        elif isinstance(one, list | tuple):
            inner = enumerate(one)
        else:
            yield keys, one
            continue
        todo += reversed([((*keys, key), value) for key, value in inner])
