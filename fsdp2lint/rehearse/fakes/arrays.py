"""Files of tokens that are not there: ``numpy.memmap`` and ``numpy.load`` give noise in their place."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

from fsdp2lint.rehearse.standin.replace import Counted, Function, wrap

TOKENS = (1 << 18) + 1
"""One more than a number of blocks: the last block has a token after it, which is to be learned."""


def install(counted: Counted) -> None:
    """Replace both, where NumPy is."""
    if importlib.util.find_spec("numpy") is None:
        return
    import numpy

    original: Any = numpy.memmap

    class Memmap(original):  # type: ignore[misc]
        """A mapped file, or noise where there is no file to read."""

        def __new__(
            cls, filename: Any, dtype: Any = numpy.uint8, mode: str = "r+", *args: Any, **how: Any
        ) -> Any:
            if isinstance(filename, str | os.PathLike) and mode.startswith("r"):
                if not os.path.exists(filename):
                    counted.note(f"made up: {os.fspath(filename)}")
                    return noise(dtype, how.get("shape"))
            return original(filename, dtype, mode, *args, **how)

    numpy.memmap = Memmap  # type: ignore[misc]
    wrap(numpy, "load", lambda load: _loading(load, counted))


def noise(dtype: Any, shape: Any = None) -> Any:
    """Random tokens, each as small as a byte."""
    import numpy

    numbers = numpy.random.default_rng(0).integers(0, 256, shape or TOKENS)
    return numbers.astype(dtype)


def _loading(load: Function, counted: Counted) -> Function:
    def loaded(file: Any, *args: Any, **how: Any) -> Any:
        if isinstance(file, str | os.PathLike) and not os.path.exists(file):
            counted.note(f"made up: {os.fspath(file)}")
            return noise("int64")
        return load(file, *args, **how)

    return loaded
