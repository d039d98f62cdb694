"""Proof by running: training scripts on CPU ranks, watched as they go.

``guard(model, optimizer)`` watches a real run with the same checks that ``fsdp2lint rehearse`` uses.
PyTorch is imported when a function here is called, never by importing this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsdp2lint.verify.contract.guarding import Guard

__all__ = ["guard"]


def guard(model: Any, optimizer: Any, *, every: int = 100) -> Guard:
    """Watch a training run from here on; what breaks the contract becomes a ``ContractWarning``.

    It hears optimizer parameters that are not the model's, hooks that are bypassed, gradients that are
    never reduced, partial values that are read, shards that are pickled, step counters that are shared,
    asynchronous saves that are dropped, loaded learning rates that reach nobody, and values that ranks
    should share and do not.

    Call it on every rank, after ``fully_shard`` and after the optimizer is built. ``every`` is the
    number of steps between two comparisons of the values that all ranks should share; a comparison is
    a collective, ``0`` leaves it out.
    """
    from fsdp2lint.verify.contract.guarding import Guard

    return Guard(model, optimizer, every)
