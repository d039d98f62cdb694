"""How functions of PyTorch are replaced, and what counts as a CUDA device."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from fsdp2lint.rehearse import holders

Function = Callable[..., Any]


class Counted:
    """Counts what was replaced, by what it was."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def note(self, what: str) -> None:
        """One more use of ``what``."""
        self._counts[what] = self._counts.get(what, 0) + 1


def is_cuda(device: object) -> bool:
    """Whether something given as a device means CUDA; a bare number does."""
    if isinstance(device, bool):
        return False
    if isinstance(device, int):
        return True
    if isinstance(device, str):
        return device.split(":")[0] == "cuda"
    return isinstance(device, torch.device) and device.type == "cuda"


def on_cpu(device: Any) -> Any:
    """The CPU in place of CUDA; anything else as it is."""
    return torch.device("cpu") if is_cuda(device) else device


def local_rank() -> int:
    """This process's number on its host, as torchrun says."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def local_world() -> int:
    """How many processes torchrun started on this host."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def wrap(owner: Any, name: str, build: Callable[[Function], Function]) -> None:
    """Replace a function or method of a class or module by one built around it."""
    original = getattr(owner, name)
    wrapped = functools.wraps(original)(build(original))
    static = isinstance(vars(owner).get(name), staticmethod)
    setattr(owner, name, staticmethod(wrapped) if static else wrapped)


def wrap_everywhere(owner: Any, name: str, build: Callable[[Function], Function]) -> None:
    """As :func:`wrap`, also under every name by which PyTorch's modules already imported it."""
    original = getattr(owner, name)
    wrapped = functools.wraps(original)(build(original))
    holders.replace(original, wrapped, lambda title: title == "torch" or title.startswith("torch."))


def for_scripts(owner: Any, name: str, answer: Function) -> None:
    """Answer callers outside PyTorch differently; PyTorch itself still hears the truth.

    Each call makes a function of its own: TorchDynamo tells PyTorch's functions apart by identity.
    """
    original = getattr(owner, name, None)

    def answered(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if original is not None and (caller == "torch" or caller.startswith("torch.")):
            return original(*args, **kwargs)
        return answer(*args, **kwargs)

    setattr(owner, name, answered)
