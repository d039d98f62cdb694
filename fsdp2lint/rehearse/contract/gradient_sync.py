"""Gradients are reduced before the optimizer steps (FSDP211).

While ``set_requires_gradient_sync(False)`` holds, backward adds up unsharded gradients and the sharded
parameters get none (PyTorch docs, ``FSDPModule.set_requires_gradient_sync``).
"""

from __future__ import annotations

from typing import Any

from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.watch import parameters_of
from fsdp2lint.rehearse.outcome import Spot, Violation


class GradientSync(Check):
    """Counts the steps that found no gradient while the synchronisation was off."""

    def install(self) -> None:
        """Start with nothing seen."""
        self._empty = self._steps = 0
        self._at: Spot | None = None

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """Whether there is anything to step over."""
        self._steps += 1
        models = [model for model in self.watch.models() if model in self.watch.off]
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        for model in models:
            mine = [p for p in model.parameters() if id(p) in held]
            if mine and all(parameter.grad is None for parameter in mine):
                self._empty += 1
                self._at = self.watch.off[model]

    def at_end(self, how: str) -> None:
        """Say it when no step had a gradient."""
        if self._empty and self._empty == self._steps:
            message = (
                "gradient synchronisation is off here and stays off: none of the "
                f"{self._steps} optimizer steps found a gradient"
            )
            self.say(Violation("FSDP211", message, self._at))
