"""Sharded modules are called, not their ``forward`` (FSDP203).

The hooks of ``fully_shard`` gather parameters and reduce gradients; a ``forward`` that is called by itself
runs none of them. Where the parameters are gathered already it raises nothing, and the gradients of that
call stay on each rank (``torch/distributed/fsdp/_fully_shard/_fsdp_state.py``, ``_pre_forward``).
"""

from __future__ import annotations

import functools
from typing import Any

from fsdp2lint.rehearse.contract.check import Check, Say
from fsdp2lint.rehearse.contract.watch import Replaced, Shard
from fsdp2lint.rehearse.outcome import Violation
from fsdp2lint.rehearse.stacks import here

_WATCHERS = "_fsdp2lint_watchers"


class DirectCalls(Check):
    """Stands before the ``forward`` of each class that ``fully_shard`` made."""

    def install(self) -> None:
        """Listen to sharding; what is sharded already is watched at once."""
        from torch.distributed.fsdp import FSDPModule

        self.watch.listeners.append(self._sharded)
        for model in self.watch.already():
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    self._stand_before(type(module))

    def _sharded(self, shard: Shard, _: list[Replaced]) -> None:
        for module in shard.modules:
            self._stand_before(type(module))

    def _stand_before(self, kind: Any) -> None:
        watchers: list[Say] | None = vars(kind).get(_WATCHERS)
        if watchers is None:  # one class serves all models of it
            watchers = []
            setattr(kind, _WATCHERS, watchers)
            kind.forward = _watched(kind.forward, watchers)
        if self.say not in watchers:
            watchers.append(self.say)


def _watched(original: Any, watchers: list[Say]) -> Any:
    import torch

    @functools.wraps(original)
    def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and torch.is_grad_enabled() and _bypassed(module):
            kind = type(module).__name__.removeprefix("FSDP")
            message = (
                f"`{kind}.forward` is called directly, so no hook gathers its parameters "
                "or reduces their gradients: call the module"
            )
            for say in watchers:
                say(Violation("FSDP203", message, here()))
        return original(module, *args, **kwargs)

    return forward


def _bypassed(module: Any) -> bool:
    """Whether nothing of a module's state says that it is in a forward or in its recomputation."""
    state = module._get_fsdp_state()
    return state._training_state.name == "IDLE" and any(
        parameter.requires_grad for parameter in module.parameters()
    )
