"""The checks for a real run: ``guard(model, optimizer)``."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

from fsdp2lint.rehearse.contract.async_saves import AsyncSaves
from fsdp2lint.rehearse.contract.buffers import Buffers
from fsdp2lint.rehearse.contract.bytes import is_dtensor
from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.direct_calls import DirectCalls
from fsdp2lint.rehearse.contract.early import WATCH, missed
from fsdp2lint.rehearse.contract.empty_memory import EmptyMemory
from fsdp2lint.rehearse.contract.gradient_sync import GradientSync
from fsdp2lint.rehearse.contract.guarding.patience import Patience
from fsdp2lint.rehearse.contract.initial_values import InitialValues
from fsdp2lint.rehearse.contract.learning_rates import LearningRates
from fsdp2lint.rehearse.contract.meetings import Meetings
from fsdp2lint.rehearse.contract.optimizer_parameters import OptimizerParameters
from fsdp2lint.rehearse.contract.partial_values import PartialValues
from fsdp2lint.rehearse.contract.replicas import Replicas
from fsdp2lint.rehearse.contract.sharded_pickles import ShardedPickles
from fsdp2lint.rehearse.contract.shared_steps import SharedSteps
from fsdp2lint.rehearse.contract.training import Training
from fsdp2lint.rehearse.contract.watch import Watch, makes_state_only, parameters_of
from fsdp2lint.rehearse.outcome import Violation
from fsdp2lint.rehearse.stacks import here

_LISTENING: tuple[type[Check], ...] = (
    OptimizerParameters,
    EmptyMemory,
    DirectCalls,
    GradientSync,
    PartialValues,
    ShardedPickles,
    SharedSteps,
    AsyncSaves,
    LearningRates,
    Training,
)
_TOO_LATE = (
    "the model was built before `guard` was imported: memory of `to_empty` (FSDP217, FSDP251), clipped lists "
    "from before `fully_shard` (FSDP220) and initial values (FSDP232) are watched from the import on"
)
_COMPARING: tuple[type[Check], ...] = (Replicas, Buffers, InitialValues, Meetings)


class ContractWarning(UserWarning):
    """Something in a training run breaks the contract of ``fully_shard``."""


class _OneModel(Watch):
    """Knows the model that it was given, instead of looking for it, and what happened to it so far."""

    thorough = False

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        self.left_alone = {id(p) for p in model.parameters() if not is_dtensor(p)}
        self.shards, self.replaced, self.built = WATCH.shards, WATCH.replaced, WATCH.built
        self.off = WATCH.off
        inside = set(map(id, model.modules()))
        self.whole = [whole for whole in WATCH.whole if id(whole.module()) in inside]
        self.emptied = [mark for mark in WATCH.emptied if id(mark.owner()) in inside]

    def models(self) -> list[Any]:
        """The guarded model."""
        return [self._model]

    def loaded(self) -> bool:
        """Whether anything was loaded, for whatever model."""
        return WATCH.loaded()

    def already(self) -> list[Any]:
        """It was sharded before."""
        return [self._model]


class Guard:
    """Watches one model and its optimizer; see :func:`fsdp2lint.rehearse.guard`.

    ``violations`` holds what was found so far on this rank, ``doubts`` what may be meant so and is worth a
    look: parameters that were never trained, statistics that differ, schedules that start anew. ``notes``
    says what could not be watched.
    """

    def __init__(self, model: Any, optimizer: Any, every: int, patience: float) -> None:
        self.violations: list[Violation] = []
        self.doubts: list[Violation] = []
        self.notes: list[str] = []
        self._every, self._steps = every, 0
        self._model, self._optimizer = model, optimizer
        watch = _OneModel(model)
        self._listening = [check(watch, self._say) for check in _LISTENING]
        self._comparing = [check(watch, self._say) for check in _COMPARING]
        self._checks = [*self._listening, *self._comparing]
        for check in self._checks:
            check.install()
        self._look_at_the_optimizer()
        if missed(model):
            self.notes.append(_TOO_LATE)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]
        self._patience = Patience(patience, self._meetings, self._hang) if patience else None

    def close(self) -> None:
        """Stop to watch the steps, and say what only the whole run shows."""
        if self._patience:
            self._patience.close()
        for hook in self._hooks:
            hook.remove()
        for check in self._listening:
            check.at_end("ended")
            if (facts := check.facts()) is not None:
                self._doubt(check.doubts([facts]))

    def compare(self) -> None:
        """Compare what all ranks should share; a collective."""
        import torch.distributed as dist

        for check in self._comparing:
            check.at_end("ended")
            ranks: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(ranks, check.facts())
            for violation in check.across(ranks):
                self._say(violation)
            self._doubt(check.doubts(ranks))

    def _doubt(self, doubts: Iterator[Violation]) -> None:
        self.doubts += [doubt for doubt in doubts if doubt not in self.doubts]

    def _look_at_the_optimizer(self) -> None:
        """Say at once what would show at the first step; also where the optimizer is older than the watch."""
        parameters = list(self._model.parameters())
        mine, held = set(map(id, parameters)), parameters_of(self._optimizer)
        strange = [parameter for parameter in held if id(parameter) not in mine]
        if not strange or not any(map(is_dtensor, parameters)):
            return
        for check in self._listening:
            if isinstance(check, OptimizerParameters):
                check.look(self._optimizer, None)
        if not self.violations and _in_place_of(strange, held, parameters):
            message = (
                f"{len(strange)} of {len(held)} parameters of `{type(self._optimizer).__name__}` "
                "are not the model's: it was built before `fully_shard`, or while a forward had "
                "left the model gathered"
            )
            self._say(Violation("FSDP201", message, here()))

    def _before(self, optimizer: Any, *_: object) -> None:
        if not makes_state_only():
            for check in self._checks:
                check.before_step(optimizer, here())

    def _after(self, optimizer: Any, *_: object) -> None:
        if makes_state_only():
            return
        self._steps += 1
        if self._patience:
            self._patience.step()
        for check in self._checks:
            check.after_step(optimizer, here())
        if self._every and (self._steps == 1 or self._steps % self._every == 0):
            self.compare()

    def _meetings(self) -> Any:
        """What this rank reduced so far."""
        return next(one.facts() for one in self._comparing if isinstance(one, Meetings))

    def _hang(self, places: str, violation: Violation | None) -> None:
        """Where the ranks are that make no step."""
        warnings.warn(places, ContractWarning, stacklevel=2)
        if violation is not None:
            self._say(violation)

    def _say(self, violation: Violation) -> None:
        if all((v.code, v.at) != (violation.code, violation.at) for v in self.violations):
            self.violations.append(violation)
            at = f" ({violation.at.file}:{violation.at.line})" if violation.at else ""
            text = f"{violation.code}: {violation.message}{at}"
            warnings.warn(text, ContractWarning, stacklevel=2)


def _in_place_of(strange: list[Any], held: list[Any], parameters: list[Any]) -> bool:
    """Whether each strange parameter is as large as one of the model's that should be there instead.

    An optimizer may hold the parameters of several models.
    """
    known = set(map(id, held))
    missing = Counter(p.shape for p in parameters if p.requires_grad and id(p) not in known)
    return Counter(parameter.shape for parameter in strange) <= missing


def guard(model: Any, optimizer: Any, *, every: int = 100, patience: float = 0.0) -> Guard:
    """Watch a training run from here on; what breaks the contract becomes a ``ContractWarning``.

    It hears optimizer parameters that are not the model's, hooks that are bypassed, gradients that are
    never reduced, memory of ``to_empty`` that nobody filled, partial values that are read, shards that are
    pickled, step counters that are shared, asynchronous saves that are dropped, loaded learning rates that
    reach nobody, and values that ranks should share and do not, from the first ones on.

    Call it on every rank, after ``fully_shard`` and after the optimizer is built. What all ranks should
    share is compared after the first step and then every ``every`` steps; a comparison is a collective,
    ``0`` leaves it out. ``patience`` is the number of seconds without a step after which
    every rank writes the stacks of its threads to standard error and says where each rank waits and which rule
    that breaks (the one timer of ``faulthandler`` is used); ``0`` leaves it out.

    What can only be seen before the call is noted from the import of ``guard`` on: where modules are sharded
    (with a sum over each parameter's bits), where optimizers are built, and the memory that ``to_empty`` makes, which is filled with numbers that are
    for nothing (it may hold anything). A model that is older than the import gets a note that says so.
    """
    return Guard(model, optimizer, every, patience)
