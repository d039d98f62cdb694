"""A slow storage: background saves start late, the first of a process much later than others.

What an unawaited `async_save` does is decided by a race. On a big model the save always loses it;
on a tiny one it has to be held back to show the same.
"""

from __future__ import annotations

import importlib
import time
from itertools import count
from typing import Any

try:
    _SAVING, _SAVE = "torch.distributed.checkpoint._async_thread_executor", "save_wrapper"
    executor: Any = importlib.import_module(_SAVING)
except ImportError:  # before PyTorch 2.7
    _SAVE = "save"
    executor = importlib.import_module("torch.distributed.checkpoint.state_dict_saver")

_FIRST, _LATER, _BY_RANK = 1.5, 0.2, 0.3


def slow_down_saves(rank: int) -> None:
    """Hold back every save that runs in a background thread of this process."""
    save = getattr(executor, _SAVE)
    numbers = count()

    def save_late(*args: Any, **kwargs: Any) -> Any:
        delay = _LATER if next(numbers) else _FIRST
        time.sleep(delay + _BY_RANK * rank)
        return save(*args, **kwargs)

    setattr(executor, _SAVE, save_late)
