"""The checks for a real run: ``guard(model, optimizer)``."""

from __future__ import annotations

import warnings
from typing import Any

from fsdp2lint.verify.contract.check import Check
from fsdp2lint.verify.contract.gradient_sync import GradientSync
from fsdp2lint.verify.contract.partial_values import PartialValues
from fsdp2lint.verify.contract.replicas import Replicas
from fsdp2lint.verify.contract.sharded_pickles import ShardedPickles
from fsdp2lint.verify.contract.shared_steps import SharedSteps
from fsdp2lint.verify.contract.watch import Watch, is_dtensor, makes_state_only, parameters_of
from fsdp2lint.verify.outcome import Violation
from fsdp2lint.verify.stacks import here

_LISTENING: tuple[type[Check], ...] = (GradientSync, PartialValues, ShardedPickles, SharedSteps)


class ContractWarning(UserWarning):
    """Something in a training run breaks the contract of ``fully_shard``."""


class _OneModel(Watch):
    """Knows the model that it was told, instead of looking for it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        self.left_alone = {id(p) for p in model.parameters() if not is_dtensor(p)}

    def models(self) -> list[Any]:
        """The guarded model."""
        return [self._model]


class Guard:
    """Watches one model and its optimizer; see :func:`fsdp2lint.verify.guard`.

    ``violations`` holds what was found so far, on this rank.
    """

    def __init__(self, model: Any, optimizer: Any, every: int) -> None:
        self.violations: list[Violation] = []
        self._every, self._steps = every, 0
        self._model, self._optimizer = model, optimizer
        watch = _OneModel(model)
        self._checks = [check(watch, self._say) for check in _LISTENING]
        self._replicas = Replicas(watch, self._say)
        for check in (*self._checks, self._replicas):
            check.install()
        self._look_at_the_optimizer()
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def close(self) -> None:
        """Stop to watch the steps, and say what only the whole run shows."""
        for hook in self._hooks:
            hook.remove()
        for check in self._checks:
            check.at_end("ended")

    def compare(self) -> None:
        """Compare what all ranks should share; a collective."""
        import torch.distributed as dist

        self._replicas.at_end("ended")
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, self._replicas.facts())
        for violation in Replicas.across(ranks):
            self._say(violation)

    def _look_at_the_optimizer(self) -> None:
        mine = {id(parameter) for parameter in self._model.parameters()}
        held = parameters_of(self._optimizer)
        strange = [parameter for parameter in held if id(parameter) not in mine]
        if strange and any(map(is_dtensor, self._model.parameters())):
            message = (
                f"{len(strange)} of {len(held)} parameters of `{type(self._optimizer).__name__}` "
                "are not the model's: it was built before `fully_shard`, or while a forward had "
                "left the model gathered"
            )
            self._say(Violation("FSDP201", message, here()))

    def _before(self, optimizer: Any, *_: object) -> None:
        if not makes_state_only():
            for check in (*self._checks, self._replicas):
                check.before_step(optimizer, here())

    def _after(self, optimizer: Any, *_: object) -> None:
        if makes_state_only():
            return
        self._steps += 1
        for check in (*self._checks, self._replicas):
            check.after_step(optimizer, here())
        if self._every and self._steps % self._every == 0:
            self.compare()

    def _say(self, violation: Violation) -> None:
        if all((v.code, v.at) != (violation.code, violation.at) for v in self.violations):
            self.violations.append(violation)
            at = f" ({violation.at.file}:{violation.at.line})" if violation.at else ""
            text = f"{violation.code}: {violation.message}{at}"
            warnings.warn(text, ContractWarning, stacklevel=2)
