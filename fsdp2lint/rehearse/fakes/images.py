"""What scripts call of ``torchvision``: pictures of noise, as large as the transforms make them.

Where it is installed, its own classes are filled with pictures when their files are neither there nor to be had.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import struct
import zlib
from functools import partial
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch.utils.data import Dataset

from fsdp2lint.rehearse.fakes.nothing import Nothing
from fsdp2lint.rehearse.standin.replace import Counted, Function, wrap

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
    "ImageFolder": (3, 224, 2),
    "FakeData": (3, 224, 1000),
}
"""Channels, width and classes by the name of a data set; a folder of pictures may have as few as two."""


_MAKES_TENSORS = ("ToTensor", "PILToTensor", "ToImage")


class Transform(Nothing):
    """A transform of which only the size counts, and functions of the program among others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        sizes = [_size(one) for one in (*args, kwargs.get("size"))]
        self.width = next((size for size in reversed(sizes) if size), 0)
        self.steps = [step for one in args for step in _steps(one)]

    def __call__(self, picture: Any, *_: object) -> Any:
        for step in self.steps:
            picture = step(picture)
        return picture


def _steps(argument: Any) -> list[Any]:
    """The functions in an argument (``Lambda(…)``), in a list those behind ``ToTensor()``: before, they get pictures of PIL."""
    if isinstance(argument, Transform):
        return argument.steps
    if isinstance(argument, list | tuple):
        made = [at for at, one in enumerate(argument) if type(one).__name__ in _MAKES_TENSORS]
        return [step for one in argument[made[-1] :] for step in _steps(one)] if made else []
    return [argument] if isinstance(argument, FunctionType) else []


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
        width = _size(transform) or width
        asked = tuple(
            kwargs.get("image_size", ())
        )  # of `FakeData`; of two numbers PIL makes one channel
        self._shape = (1, *asked)[-3:] if asked else (channels, width, width)
        classes = kwargs.get("num_classes", classes)
        self.classes = [str(n) for n in range(classes)]
        self.targets = [n % classes for n in range(ROWS)]
        self.transform = transform

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        number = int(number) % ROWS  # a program may know how many there really are
        generator = torch.Generator().manual_seed(number)
        if self.transform is not None and self.transform.steps:  # they expect numbers from 0 to 1
            picture = self.transform(torch.rand(self._shape, generator=generator))
        else:
            picture = torch.randn(self._shape, generator=generator)
        return picture, self.targets[number]


_SIZES = ("Resize", "RandomCrop", "CenterCrop", "RandomResizedCrop")
datasets = SimpleNamespace(**{n: type(n, (Pictures,), {"name": n}) for n in _SHAPES})


class _Transforms:
    InterpolationMode = Nothing()

    def __getattr__(self, name: str) -> Any:
        return type(name, (_Sized if name in _SIZES else Transform,), {})


transforms = _Transforms()
transforms.v2 = transforms  # type: ignore[attr-defined]


# -- where it is installed -------------------------------------------------------------------------------------------


def allow_import(counted: Counted) -> None:
    """Declare the operators without which a ``torchvision`` that was built for another PyTorch cannot be imported.

    Its module ``_meta_registrations`` (0.28) says how those two behave on ``meta``, which they must exist for.
    """
    spec = importlib.util.find_spec("torchvision")
    places = spec.submodule_search_locations if spec else None
    built = next((so for place in places or () for so in Path(place).glob("_C*.so")), None)
    try:
        if built is not None:
            ops: Any = torch.ops
            ops.load_library(str(built))  # what torchvision does as well, and no harm twice
            return
    except OSError:
        counted.note("made up: operators of torchvision")
    for name in ("nms", "qnms"):
        if hasattr(torch.ops.torchvision, name):
            continue
        said = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", said)


def install(counted: Counted) -> None:
    """The data sets of an installed ``torchvision`` whose files are missing get pictures of noise."""
    package: Any = importlib.import_module("torchvision.datasets")
    bases = (package.MNIST, package.CIFAR10, package.SVHN, package.STL10, package.DatasetFolder)
    for name, cls in vars(package).items():
        if inspect.isclass(cls) and issubclass(cls, bases) and "__init__" in vars(cls):
            wrap(cls, "__init__", partial(_or_noise, name, counted))
    for cls in bases:
        wrap(cls, "__getitem__", _any_row)


def install_timm(counted: Counted) -> None:
    """Models of ``timm`` whose weights cannot be had keep their random ones."""
    for name in ("timm", "timm.models"):
        wrap(importlib.import_module(name), "create_model", lambda make: _built(make, counted))


def _built(make: Function, counted: Counted) -> Function:
    def built(model_name: str, pretrained: bool = False, *args: Any, **how: Any) -> Any:
        try:
            return make(model_name, pretrained, *args, **how)
        except (OSError, RuntimeError, ValueError):
            if not pretrained:
                raise
            counted.note(f"made up: the weights of {model_name}")
            return make(model_name, False, *args, **how)

    return built


def _or_noise(name: str, counted: Counted, init: Function) -> Function:
    said = inspect.signature(init)

    def initialised(self: Any, *args: Any, **how: Any) -> None:
        if vars(self).get("_filling"):  # called by the class below
            init(self, *args, **how)
            return
        self._filling = True
        try:
            init(self, *args, **how)
        except (OSError, RuntimeError):
            counted.note(f"made up: the files of {name}")
            _fill(self, name, said.bind(self, *args, **how).arguments)
        finally:
            self._filling = False

    return initialised


def _any_row(get: Function) -> Function:
    """A program may know how many pictures there really are, and draw from all of their numbers."""

    def row(self: Any, index: Any) -> Any:
        made_up = vars(self).get("_made_up") and isinstance(index, int | torch.Tensor)
        return get(self, int(index) % ROWS if made_up else index)

    return row


def _fill(data_set: Any, name: str, given: dict[str, Any]) -> None:
    """Set what the methods of the class read."""
    data_set._made_up = True
    package: Any = importlib.import_module("torchvision.datasets")
    given = {**given, **given.get("kwargs", {})}
    transforms = {key: given.get(key) for key in ("transform", "target_transform")}
    package.VisionDataset.__init__(data_set, given.get("root", ""), **transforms)
    channels, width, number = _SHAPES.get(name, (3, 224, 10))
    classes = [str(one) for one in range(number)]
    targets = [row % number for row in range(ROWS)]
    for key, value in (
        ("classes", classes),
        ("class_to_idx", dict(zip(classes, range(number), strict=False))),
    ):
        if not hasattr(type(data_set), key):
            setattr(data_set, key, value)
    if isinstance(data_set, package.DatasetFolder):
        data_set.samples = data_set.imgs = [
            (f"{row}.png", target) for row, target in enumerate(targets)
        ]
        data_set.targets = targets
        data_set.extensions = None
        data_set.loader = noise
        return
    shape = (ROWS, width, width) if channels == 1 else (ROWS, channels, width, width)
    pixels = torch.randint(
        0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    data_set.train, data_set.split = given.get("train", True), given.get("split", "train")
    if isinstance(data_set, package.MNIST):
        data_set.data, data_set.targets = pixels, torch.tensor(targets)
        return
    data_set.data = pixels.numpy()
    data_set.targets = targets
    data_set.labels = torch.tensor(targets).numpy()
    if name.startswith("CIFAR"):
        data_set.data = data_set.data.transpose(0, 2, 3, 1)


def noise(path: str, width: int = 224) -> Any:
    """A picture of noise, the same for the same path."""
    image: Any = importlib.import_module("PIL.Image")
    return image.fromarray(_pixels(path, width).numpy())


def encoded(path: str, width: int = 224) -> bytes:
    """The same as a file holds it (PNG), for programs that read the bytes themselves."""
    rows = b"".join(b"\0" + bytes(row) for row in _pixels(path, width).flatten(1).numpy())
    parts = {
        b"IHDR": struct.pack(">2I5B", width, width, 8, 2, 0, 0, 0),
        b"IDAT": zlib.compress(rows, 0),
        b"IEND": b"",
    }
    chunks = (
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
        for kind, part in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _pixels(path: str, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(path.encode()))
    return torch.randint(0, 256, (width, width, 3), dtype=torch.uint8, generator=generator)


def width_of(source: str) -> int:
    """How wide the pictures of a data set are, where its name says that."""
    said = source.lower().replace("-", "").replace("_", "")
    return next((width for name, (_, width, _) in _SHAPES.items() if name.lower() in said), 224)
