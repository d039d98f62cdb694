"""Tells when a module is called for the next time, by a hook that is gone afterwards."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Tell = Callable[[Any], None]

_WAITING: dict[int, tuple[weakref.ref[nn.Module], Any, list[Tell]]] = {}
"""By ``id``: the module, the handle of its hook, and who is told."""


def at_next_call(module: nn.Module, tell: Tell) -> None:
    """Call ``tell(module)`` after the next ``forward`` that is not compiled."""
    known = _WAITING.get(id(module))
    if known is None or known[0]() is not module:
        # a function of a module: copied and pickled with its module, it does nothing there
        known = (weakref.ref(module), module.register_forward_hook(_called), [])
        _WAITING[id(module)] = known
    known[2].append(tell)


def _called(module: nn.Module, *_: object) -> None:
    if torch.compiler.is_compiling():
        return
    waiting = _WAITING.pop(id(module), None)
    if waiting is not None and waiting[0]() is module:
        waiting[1].remove()
        for tell in waiting[2]:
            tell(module)
