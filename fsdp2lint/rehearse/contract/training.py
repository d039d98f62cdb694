"""Trainable parameters that no step changed although an optimizer holds them (FSDP260).

Where the contract is why, another check says so with its rule: a stale optimizer (FSDP201, FSDP202, FSDP252),
synchronisation left off (FSDP211), hooks that were passed by (FSDP203). A parameter may also rightly be left out
of what these steps compute, or wait for a warm-up, so this alone is a doubt, reported at the line where the optimizer
was built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from fsdp2lint.rehearse.contract.bytes import local
from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.watch import parameters_of
from fsdp2lint.rehearse.outcome import Spot, Violation

_NONE = (False, False)
_Holder = tuple[str, tuple[str, int] | None]
"""The kind of optimizer that holds a parameter, and a file and line of it."""
_SHORT = 2
"""Bytes of a number."""
_SAMPLE = 1 << 16
"""How many elements of a parameter are compared."""


class Training(Check):
    """Compares parameters before the first step and after each, until each has had a gradient and changed.

    A real run is not held up for it: there the rest is compared after the first step, the second, the fourth and so on,
    and in the end, always by one number for all parameters of a device.
    """

    def install(self) -> None:
        """Start with nothing seen."""
        self._first: dict[str, Any] = {}
        self._seen: dict[str, list[bool]] = {}
        self._names: dict[int, str] = {}
        self._settled: set[int] = set()
        """Parameters of which all is known, by ``id``: only where models stay as they are."""
        self._holders: dict[str, _Holder] = {}
        self._short: dict[str, str] = {}
        """The type of numbers of parameters that have 16 bits."""
        self._steps: Counter[int] = Counter()

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """Keep the first values, note who has a gradient."""
        held = self._unsettled(optimizer)
        if not held:
            return
        if self.watch.thorough or not self._names:
            self._names = self._named()
        holder = self._holder(optimizer, at)
        moves = any(group.get("lr") for group in optimizer.param_groups)
        for parameter in held:
            name = self._names.get(id(parameter))
            if name is None or not local(parameter).numel():  # others hold all of it
                self._settle(parameter)
                continue
            self._holders[name] = holder
            if parameter.dtype.itemsize == _SHORT and moves:
                self._short[name] = str(parameter.dtype)
            if name not in self._first:
                self._first[name] = _sample(parameter).clone()
            seen = self._seen.setdefault(name, [False, False])
            seen[0] = seen[0] or parameter.grad is not None

    def after_step(self, optimizer: Any, at: Spot | None) -> None:
        """Note who has changed."""
        self._steps[id(optimizer)] += 1
        steps = self._steps[id(optimizer)]
        if self.watch.thorough or not steps & (steps - 1):
            self._look(self._unsettled(optimizer))

    def at_end(self, how: str) -> None:
        """Note who has changed since the last look."""
        if not self.watch.thorough:
            self._names = self._named()
            self._look([p for _, _, p in self.watch.trainable() if id(p) not in self._settled])

    def _named(self) -> dict[int, str]:
        models = self.watch.models()
        return {
            id(parameter): f"{models.index(model)}:{name}"
            for model, name, parameter in self.watch.trainable()
        }

    def _unsettled(self, optimizer: Any) -> list[Any]:
        return [p for p in parameters_of(optimizer) if id(p) not in self._settled]

    def _look(self, parameters: list[Any]) -> None:
        import torch

        still: dict[Any, list[tuple[str, Any]]] = {}
        for parameter in parameters:
            name = self._names.get(id(parameter), "")
            if name in self._first and not self._seen[name][1]:
                now = _sample(parameter)
                if now.shape != self._first[name].shape:
                    self._seen[name][1] = True
                    continue
                still.setdefault(now.device, []).append((name, (self._first[name] != now).any()))
        for looked in still.values():
            changed = torch.stack([one for _, one in looked]).tolist()
            for (name, _), one in zip(looked, changed, strict=True):
                self._seen[name][1] = one
        for parameter in parameters:
            if all(self._seen.get(self._names.get(id(parameter), ""), _NONE)):
                self._settle(parameter)

    def _settle(self, parameter: Any) -> None:
        if not self.watch.thorough:
            self._settled.add(id(parameter))

    def facts(self) -> Any:
        """By name: whether it ever had a gradient, whether it ever changed, who steps it, and its type if it is short."""
        return {
            name: [*seen, self._holders[name], self._short.get(name, "")]
            for name, seen in self._seen.items()
        }

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
                if all(ranks[0][name][0] and ranks[0][name][3] for name in own):
                    message += f"; {ranks[0][own[0]][3]} rounds small updates away, float32 weights keep them (FSDP222)"
                yield Violation("FSDP260", message, Spot(*at) if at else None)


def _held_by(fact: Any) -> _Holder:
    """The holder in a fact; JSON makes lists of tuples."""
    kind, at = fact[2]
    return kind, tuple(at) if at else None


def _sample(parameter: Any) -> Any:
    return local(parameter).flatten()[:_SAMPLE]
