"""Trainable parameters that no step changed although an optimizer holds them (FSDP260).

Where the contract is why, another check says so with its rule: a stale optimizer (FSDP201, FSDP202, FSDP252),
synchronisation left off (FSDP211), hooks that were passed by (FSDP203). A parameter may also rightly be left out
of what these steps compute, or wait for a warm-up, so this alone is a doubt, told at the line where the optimizer
was built.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsdp2lint.rehearse.contract.bytes import local
from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.watch import parameters_of
from fsdp2lint.rehearse.outcome import Spot, Violation

_NONE = (False, False)
_Holder = tuple[str, tuple[str, int] | None]
"""The kind of optimizer that holds a parameter, and a file and line of it."""
_SAMPLE = 1 << 16
"""How many elements of a parameter are compared."""


class Training(Check):
    """Compares parameters before the first step and after each."""

    def install(self) -> None:
        """Start with nothing seen."""
        self._first: dict[str, Any] = {}
        self._seen: dict[str, list[bool]] = {}
        self._names: dict[int, str] = {}
        self._holders: dict[str, _Holder] = {}

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """Keep the first values, note who has a gradient."""
        models = self.watch.models()
        self._names = {
            id(parameter): f"{models.index(model)}:{name}"
            for model, name, parameter in self.watch.trainable()
        }
        holder = self._holder(optimizer, at)
        for parameter in parameters_of(optimizer):
            name = self._names.get(id(parameter))
            if name is None or not local(parameter).numel():  # others hold all of it
                continue
            self._holders[name] = holder
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
        """By name: whether it ever had a gradient, whether it ever changed, and who steps it."""
        return {name: [*seen, self._holders[name]] for name, seen in self._seen.items()}

    def _holder(self, optimizer: Any, stepped: Spot | None) -> _Holder:
        """Told at the line where it was built; where it steps, when nobody saw it built."""
        built = self.watch.built.get(id(optimizer))
        at = stepped if built is None or built.at is None else built.at
        return type(optimizer).__name__, (at.file, at.line) if at else None

    @staticmethod
    def doubts(ranks: list[Any]) -> Iterator[Violation]:
        """What no rank trained."""
        still = [n for n in ranks[0] if not any(rank.get(n, _NONE)[1] for rank in ranks)]
        bare = [n for n in still if not any(rank.get(n, _NONE)[0] for rank in ranks)]
        for names, what in (
            (bare, "got no gradient in any step"),
            ([n for n in still if n not in bare], "had gradients and never changed"),
        ):
            for holder in dict.fromkeys(_held_by(ranks[0][name]) for name in names):
                own = [name for name in names if _held_by(ranks[0][name]) == holder]
                every = sum(1 for fact in ranks[0].values() if _held_by(fact) == holder)
                shown = ", ".join(name.partition(":")[2] for name in own[:3])
                more = f" and {len(own) - 3} more" if len(own) > 3 else ""
                kind, at = holder
                message = (
                    f"{len(own)} of {every} trainable tensors in `{kind}` {what}: {shown}{more}"
                )
                yield Violation("FSDP260", message, Spot(*at) if at else None)


def _held_by(fact: Any) -> _Holder:
    """The holder in a fact; JSON makes lists of tuples."""
    kind, at = fact[2]
    return kind, tuple(at) if at else None


def _sample(parameter: Any) -> Any:
    return local(parameter).flatten()[:_SAMPLE].clone()
