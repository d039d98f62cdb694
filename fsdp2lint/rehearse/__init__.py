"""Proof by running: training scripts on CPU ranks, watched as they go.

``guard(model, optimizer)`` watches a real run with the same checks that ``fsdp2lint rehearse`` uses.
PyTorch is imported with ``guard`` and by the functions here, never by importing this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsdp2lint.rehearse.contract.guarding import ContractWarning, guard

__all__ = ["ContractWarning", "guard"]


def __getattr__(name: str) -> Any:
    """``guard``, which notes from here on what shows only before it is called; and its warning."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fsdp2lint.rehearse.contract import early, guarding

    if name == "guard":
        early.begin()
    return getattr(guarding, name)
