"""Which function evaluates or runs which kind of node; the files of this package fill the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import libcst as cst

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine

Handler = TypeVar("Handler", bound=Callable[["Machine", Any], Any])
HANDLERS: dict[type[cst.CSTNode], Callable[[Machine, Any], Any]] = {}
"""Handlers of expressions return a value, those of statements nothing."""


def handles(*kinds: type[cst.CSTNode]) -> Callable[[Handler], Handler]:
    """Register the handler of kinds of nodes."""

    def register(handler: Handler) -> Handler:
        for kind in kinds:
            HANDLERS[kind] = handler
        return handler

    return register
