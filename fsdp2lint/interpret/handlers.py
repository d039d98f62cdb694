"""Which function evaluates which kind of expression; the files of this package fill the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import libcst as cst

from fsdp2lint.model.values import Value

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine

Handler = Callable[["Machine", Any], Value]
HANDLERS: dict[type[cst.CSTNode], Handler] = {}


def handles(*kinds: type[cst.CSTNode]) -> Callable[[Handler], Handler]:
    """Register the handler of expression kinds."""

    def register(handler: Handler) -> Handler:
        for kind in kinds:
            HANDLERS[kind] = handler
        return handler

    return register
