"""Data loaders without pinned memory."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from fsdp2lint.rehearse.standin.replace import Counted, Function, wrap


def install(counted: Counted) -> None:
    """Drop ``pin_memory`` and its device."""

    def build(init: Function) -> Function:
        def unpinned(self: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.pop("pin_memory", False):
                counted.note("DataLoader(pin_memory=True)")
            kwargs.pop("pin_memory_device", None)
            init(self, *args, **kwargs)

        return unpinned

    wrap(DataLoader, "__init__", build)
