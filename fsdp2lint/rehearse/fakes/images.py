"""What scripts call of ``torchvision``: pictures of noise, as large as the transforms make them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import Dataset

from fsdp2lint.rehearse.fakes.nothing import Nothing

ROWS = 256
_SHAPES = {
    "MNIST": (1, 28, 10),
    "FashionMNIST": (1, 28, 10),
    "KMNIST": (1, 28, 10),
    "CIFAR10": (3, 32, 10),
    "CIFAR100": (3, 32, 100),
    "SVHN": (3, 32, 10),
    "STL10": (3, 96, 10),
    "ImageNet": (3, 224, 1000),
    "ImageFolder": (3, 224, 1000),
    "FakeData": (3, 224, 1000),
}
"""Channels, width and classes by the name of a data set."""


class Transform(Nothing):
    """A transform of which only the size counts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        sizes = [_size(one) for one in (*args, kwargs.get("size"))]
        self.width = next((size for size in reversed(sizes) if size), 0)

    def __call__(self, picture: Any, *_: object) -> Any:
        return picture


class _Sized(Transform):
    """One whose argument is a size."""

    def __init__(self, size: Any = 0, *_: object, **__: object) -> None:
        super().__init__(size=size)


def _size(argument: Any) -> int:
    """The width of an argument: a number that may be one, a pair, a transform, or a list of those."""
    if isinstance(argument, Transform):
        return argument.width
    if isinstance(argument, list | tuple):
        return next((size for one in reversed(argument) if (size := _size(one))), 0)
    return argument if isinstance(argument, int) and argument > 4 else 0


class Pictures(Dataset[Any]):
    """A data set of a name, made of noise."""

    name = "CIFAR10"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        channels, width, classes = _SHAPES[self.name]
        given = (*args, kwargs.get("transform"))
        transform = next((one for one in given if isinstance(one, Transform)), None)
        self._width = _size(transform) or width
        self._channels, self.classes = channels, [str(n) for n in range(classes)]
        self.targets = [n % classes for n in range(ROWS)]
        self.transform = transform

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(number)
        size = self._channels, self._width, self._width
        return torch.randn(size, generator=generator), self.targets[number]


_SIZES = ("Resize", "RandomCrop", "CenterCrop", "RandomResizedCrop")
datasets = SimpleNamespace(**{n: type(n, (Pictures,), {"name": n}) for n in _SHAPES})


class _Transforms:
    InterpolationMode = Nothing()

    def __getattr__(self, name: str) -> Any:
        return type(name, (_Sized if name in _SIZES else Transform,), {})


transforms = _Transforms()
transforms.v2 = transforms  # type: ignore[attr-defined]
