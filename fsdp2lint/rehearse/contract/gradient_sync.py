"""Gradients are reduced before the optimizer steps (FSDP211).

While ``set_requires_gradient_sync(False)`` holds, backward adds up unsharded gradients and the sharded
parameters get none (PyTorch docs, ``FSDPModule.set_requires_gradient_sync``).
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.watch import parameters_of
from fsdp2lint.rehearse.outcome import Spot, Violation


class GradientSync(Check):
    """Notes the steps that found no gradient while the synchronisation was off."""

    def install(self) -> None:
        """Start with nothing seen."""
        self._empty: list[bool] = []
        self._at: Spot | None = None

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """Whether there is anything to step over."""
        self._empty.append(False)
        models = [model for model in self.watch.models() if model in self.watch.off]
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        for model in models:
            mine = [p for p in model.parameters() if id(p) in held]
            if mine and all(parameter.grad is None for parameter in mine):
                self._empty[-1] = True
                self._at = self.watch.off[model]

    def at_end(self, how: str) -> None:
        """Say it when no step had a gradient, or none any more.

        A loop that also steps between its micro-batches leaves some out, again and again: no more in the end than before.
        """
        steps = len(self._empty)
        runs = [len(list(same)) if empty else 0 for empty, same in groupby(self._empty)]
        last = runs.pop() if runs else 0
        if last == steps > 0 or last > max(1, *runs, 0):
            which = "none of the" if last == steps else f"none of the last {last} of"
            message = (
                f"gradient synchronisation is off here and stays off: {which} "
                f"{steps} optimizer steps found a gradient"
            )
            self.say(Violation("FSDP211", message, self._at))
