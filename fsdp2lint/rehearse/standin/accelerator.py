"""``torch.accelerator`` (from 2.6): the CUDA device of each rank, as scripts ask for it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from fsdp2lint.rehearse.standin.replace import Counted, for_scripts, local_rank, local_world


def install(counted: Counted) -> None:
    """Replace the questions that scripts ask; PyTorch itself still hears that there is none."""
    accelerator: Any = getattr(torch, "accelerator", None)
    if accelerator is None:
        return

    def current(*_: object, **__: object) -> torch.device:
        counted.note("torch.accelerator.current_accelerator()")
        return torch.device("cuda")

    accelerator.device_index = lambda *_: contextlib.nullcontext()
    for_scripts(accelerator, "current_accelerator", current)
    for_scripts(accelerator, "is_available", lambda: True)
    for_scripts(accelerator, "device_count", local_world)
    for name in ("current_device_index", "current_device_idx"):
        for_scripts(accelerator, name, local_rank)
    for name in ("set_device_index", "set_device_idx", "synchronize", "empty_cache"):
        for_scripts(accelerator, name, lambda *_, **__: None)
    for name in ("reset_peak_memory_stats", "reset_accumulated_memory_stats"):
        for_scripts(accelerator, name, lambda *_, **__: None)
    for name in ("memory_allocated", "max_memory_allocated", "max_memory_reserved"):
        for_scripts(accelerator, name, lambda *_, **__: 0)
