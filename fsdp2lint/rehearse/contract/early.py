"""What a process does before it calls ``guard``: noted from the import of ``guard`` on.

When ``guard`` is called, sharding is done, the optimizer is built and memory of a meta model may be filled;
who did that in which order the model does not show any more.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

from fsdp2lint.rehearse.contract.watch import Watch

WATCH = Watch()
"""Follows the process, if that was asked for."""

_older: dict[int, weakref.ref[Any]] = {}
"""The modules that there were before, by ``id``."""


def begin() -> None:
    """Follow ``fully_shard``, ``Module.to_empty``, loads and the building of optimizers, if nobody has said so yet."""
    if WATCH.installed:
        return
    from torch import nn

    WATCH.install()
    for found in gc.get_objects():
        if issubclass(type(found), nn.Module):
            _older[id(found)] = weakref.ref(found)


def missed(model: Any) -> bool:
    """Whether a model, or a part of it, was there before anybody followed."""
    if not WATCH.installed:
        return True
    return any((ref := _older.get(id(m))) is not None and ref() is m for m in model.modules())
