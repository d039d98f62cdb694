"""Things that do nothing, whatever is done with them."""

from __future__ import annotations

import abc
import dis
import sys
import types
from collections.abc import Iterator
from typing import Any


class _Anything(abc.ABCMeta):
    """Of classes that have whatever is asked of them (``Client.errors``, ``Client.from_url()``), beside abstract ones too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Nothing()


class Nothing(metaclass=_Anything):
    """An object, a function, a class, a context and a decorator that does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.__dict__.update(kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if _is_special(name):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decorates = len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType | type)
        return args[0] if decorates else Nothing()

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter([Nothing() for _ in range(_unpacked(sys._getframe(1)))])

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __getitem__(self, key: Any) -> Any:
        return Nothing()

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __str__(self) -> str:
        return "nothing"

    def __format__(self, how: str) -> str:
        return format(0.0, how) if how else "nothing"

    def __mro_entries__(self, _: object) -> tuple[type]:
        return (Nothing,)

    def __float__(self) -> float:
        return 0.0

    def __index__(self) -> int:
        return 0

    def __add__(self, other: Any) -> Nothing:
        return Nothing()

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__
    __floordiv__ = __mod__ = __pow__ = __or__ = __ror__ = __and__ = __rand__ = __add__

    def __lt__(self, other: Any) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__


def _is_special(name: str) -> bool:
    """Whether Python itself asks for a name (``__len__``), which a library's own never is (``__api__log__``)."""
    return name.startswith("__") and name.endswith("__") and "__" not in name[2:-2]


def _unpacked(frame: types.FrameType) -> int:
    """How many values the caller unpacks, as `figure, axes = plt.subplots()` does; 0 where it loops."""
    code, at = frame.f_code.co_code, frame.f_lasti
    return code[at + 1] if dis.opname[code[at]] == "UNPACK_SEQUENCE" else 0


class Hollow(types.ModuleType):
    """A module that has the names of another, and else names of things that do nothing."""

    def __init__(self, name: str, names_of: object = None) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__version__ = "99.0"
        self._names_of = names_of

    def __getattr__(self, name: str) -> Any:
        if _is_special(name):
            raise AttributeError(name)
        found = getattr(self._names_of, name, None)
        if found is None:
            found = type(name, (Nothing,), {}) if name[:1].isupper() else Nothing()
        setattr(self, name, found)
        return found
