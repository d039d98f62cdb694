"""Python's cyclic garbage collector, kept out of the way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collector() -> Iterator[None]:
    """Without cyclic garbage collection: trees and traces are large, live long, and make it quadratic.

    What knows itself and is let go inside stays until somebody collects it.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
