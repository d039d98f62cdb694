"""Where scripts imported ``guard`` from before it moved to :mod:`fsdp2lint.rehearse`; it still works."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """``guard`` and its warning."""
    from fsdp2lint import rehearse

    if name not in rehearse.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(rehearse, name)
