"""Notes, not violations: trainable parameters that no step changed although an optimizer holds them.

A parameter may rightly be left out of a batch's computation, so this alone breaks no contract.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsdp2lint.verify.contract.bytes import local
from fsdp2lint.verify.contract.check import Check
from fsdp2lint.verify.contract.watch import parameters_of
from fsdp2lint.verify.outcome import Spot

_SAMPLE = 1 << 16
"""How many elements of a parameter are compared."""


class Training(Check):
    """Compares parameters before the first step and after each."""

    def install(self) -> None:
        """Start with nothing seen."""
        self._first: dict[str, Any] = {}
        self._seen: dict[str, list[bool]] = {}
        self._names: dict[int, str] = {}

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """Keep the first values, note who has a gradient."""
        models = self.watch.models()
        self._names = {
            id(parameter): f"{models.index(model)}:{name}"
            for model, name, parameter in self.watch.trainable()
        }
        for parameter in parameters_of(optimizer):
            name = self._names.get(id(parameter))
            if name is None:
                continue
            self._first.setdefault(name, _sample(parameter))
            seen = self._seen.setdefault(name, [False, False])
            seen[0] = seen[0] or parameter.grad is not None

    def after_step(self, optimizer: Any, at: Spot | None) -> None:
        """Note who has changed."""
        for parameter in parameters_of(optimizer):
            name = self._names.get(id(parameter))
            if name in self._first and not self._seen[name][1]:
                self._seen[name][1] = not self._first[name].equal(_sample(parameter))

    def facts(self) -> Any:
        """By name: whether it ever had a gradient, and whether it ever changed."""
        return self._seen

    @staticmethod
    def remarks(ranks: list[Any]) -> Iterator[str]:
        """What no rank trained."""
        still = [n for n in ranks[0] if not any(rank.get(n, [False, False])[1] for rank in ranks)]
        bare = [n for n in still if not any(rank.get(n, [False, False])[0] for rank in ranks)]
        for names, what in (
            (bare, "got no gradient in any step"),
            ([n for n in still if n not in bare], "had gradients and never changed"),
        ):
            if names:
                shown = ", ".join(name.partition(":")[2] for name in names[:3])
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                yield f"{len(names)} of {len(ranks[0])} trainable tensors {what}: {shown}{more}"


def _sample(parameter: Any) -> Any:
    return local(parameter).flatten()[:_SAMPLE].clone()
