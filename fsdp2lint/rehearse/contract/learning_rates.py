"""A loaded learning rate is the one that the optimizer steps with (FSDP306).

``dcp.load`` fills tensors in place; numbers are replaced in the dictionary only, so without a
``set_optimizer_state_dict`` or ``load_state_dict`` they reach nobody. That a schedule starts anew beside a
loaded optimizer may be wanted: it is a doubt.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.watch import replace_everywhere, wrap_method
from fsdp2lint.rehearse.outcome import Spot, Violation
from fsdp2lint.rehearse.stacks import here


@dataclass
class _Applied:
    """A state that an optimizer took."""

    order: int
    before: list[float]
    loaded: list[float]


@dataclass
class _Schedule:
    """A scheduler, when and where it was built."""

    order: int
    at: Spot | None
    ref: weakref.ref[Any]


class LearningRates(Check):
    """Compares what was loaded with the first step after it."""

    def install(self) -> None:
        """Listen to loading, and to the building of schedules."""
        from torch.distributed.checkpoint.state_dict_loader import load
        from torch.optim import Optimizer
        from torch.optim.lr_scheduler import LRScheduler

        self._order = count()
        self._read: tuple[set[float], Spot | None] | None = None
        self._applied: dict[int, _Applied] = {}
        self._schedules: dict[int, list[_Schedule]] = {}
        self._doubts: list[tuple[str, tuple[str, int] | None]] = []
        replace_everywhere(load, self._loading)
        wrap_method(Optimizer, "load_state_dict", self._applying)
        wrap_method(LRScheduler, "__init__", self._scheduling)

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """The first step after a load."""
        rates = _rates(optimizer.param_groups)
        if self._read is not None and rates:
            read, where = self._read
            self._read = None
            if not read & set(rates):
                message = (
                    f"the loaded learning rate {min(read):g} reaches no optimizer: "
                    f"`{type(optimizer).__name__}` steps with {rates[0]:g}"
                )
                because = () if at is None else ((at, "the first step after it"),)
                self.say(Violation("FSDP306", message, where, because))
        applied = self._applied.pop(id(optimizer), None)
        if applied is not None:
            self._look_at_schedules(optimizer, applied, rates)

    def facts(self) -> Any:
        """The schedules that start anew, and where they were built."""
        return self._doubts

    @staticmethod
    def doubts(ranks: list[Any]) -> Iterator[Violation]:
        """Those of the first rank: all do the same."""
        for message, at in ranks[0]:
            yield Violation("FSDP306", message, Spot(*at) if at else None)

    def _look_at_schedules(self, optimizer: Any, applied: _Applied, rates: list[float]) -> None:
        for schedule in self._schedules.get(id(optimizer), ()):
            scheduler = schedule.ref()
            if scheduler is None or getattr(scheduler, "last_epoch", None) != 0:
                continue  # it was loaded, or told where to go on
            kind = type(scheduler).__name__
            if schedule.order > applied.order and rates != applied.loaded:
                text = (
                    f"`{kind}`, built after the optimizer's state was loaded, puts the learning "
                    f"rate {rates[0]:g} in place of the loaded {applied.loaded[0]:g}"
                )
            elif schedule.order < applied.order and applied.loaded != applied.before:
                text = (
                    f"`{kind}` starts anew beside a loaded optimizer: its next step puts "
                    f"its own learning rate in place of the loaded {applied.loaded[0]:g}"
                )
            else:
                continue
            at = schedule.at
            self._doubts.append((text, (at.file, at.line) if at else None))

    def _loading(self, original: Any) -> Any:
        @functools.wraps(original)
        def load(state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            # a Stateful applies its part inside of the call
            began = next(self._order)
            result = original(state_dict, *args, **kwargs)
            read = set(_in(state_dict))
            if read and all(applied.order < began for applied in self._applied.values()):
                self._read = (read, here())
            return result

        return load

    def _applying(self, original: Any) -> Any:
        @functools.wraps(original)
        def load_state_dict(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = _rates(optimizer.param_groups)
            result = original(optimizer, *args, **kwargs)
            loaded = _rates(optimizer.param_groups)
            self._read = None
            if loaded:
                self._applied[id(optimizer)] = _Applied(next(self._order), before, loaded)
            return result

        return load_state_dict

    def _scheduling(self, original: Any) -> Any:
        @functools.wraps(original)
        def build(scheduler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(scheduler, optimizer, *args, **kwargs)
            made = _Schedule(next(self._order), here(), weakref.ref(scheduler))
            self._schedules.setdefault(id(optimizer), []).append(made)

        return build


def _rates(groups: Any) -> list[float]:
    return [float(group["lr"]) for group in groups if "lr" in group]


def _in(tree: Any) -> Iterator[float]:
    """The learning rates in an optimizer's state dict, nested or flattened by ``StateDictOptions``."""
    if not isinstance(tree, Mapping):
        return
    for key, value in tree.items():
        if key == "param_groups" and isinstance(value, list | tuple):
            yield from _rates(group for group in value if isinstance(group, Mapping))
        elif isinstance(key, str) and key.startswith("param_groups.") and key.endswith(".lr"):
            if isinstance(value, int | float):
                yield float(value)
        else:
            yield from _in(value)
