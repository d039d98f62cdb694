"""What every check is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fsdp2lint.rehearse.outcome import Spot, Violation

if TYPE_CHECKING:
    from fsdp2lint.rehearse.contract.watch import Watch

Say = Callable[[Violation], None]


class Check:
    """One promise of the contract; a subclass overrides what it needs."""

    def __init__(self, watch: Watch, say: Say) -> None:
        self.watch = watch
        self.say = say

    def install(self) -> None:
        """Begin to listen, before the script runs."""

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """An optimizer is about to step, called from ``at``."""

    def after_step(self, optimizer: Any, at: Spot | None) -> None:
        """It has stepped."""

    def at_end(self, how: str) -> None:
        """The script is over; ``how`` is that of the rank's report."""

    def facts(self) -> Any:
        """What to compare with other ranks; None for nothing."""

    @staticmethod
    def across(ranks: list[Any]) -> Iterator[Violation]:
        """What the facts of all ranks show together, in order of rank."""
        yield from ()

    @staticmethod
    def doubts(ranks: list[Any]) -> Iterator[Violation]:
        """What the facts of all ranks show that may be meant so, and is worth a look."""
        yield from ()
