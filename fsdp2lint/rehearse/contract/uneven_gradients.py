"""All ranks reduce gradients of the same parameters (FSDP412).

``FSDPParamGroup.post_backward`` reduces those that have a gradient. Where a rank never used a parameter, as an expert that none
of its tokens reached, its tensor is shorter: gloo ends the process, NCCL waits, and tensors that are as long by chance
add up gradients of different parameters. FSDP1 reduced all of a unit, and so does ``set_reduce_scatter_unused_params``
(PyTorch 2.13).
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.outcome import Violation
from fsdp2lint.rehearse.stacks import here

PATIENCE = timedelta(seconds=3)
"""How long a rank waits for what the others reduce: they are on their way to the same reduction."""


class UnevenGradients(Check):
    """Every rank writes down which parameters it leaves out of a reduction; one that leaves some out looks at the others."""

    def install(self) -> None:
        """Listen, where a run may be slowed down."""
        self._made: Counter[int] = Counter()
        if not self.watch.thorough:
            return
        with contextlib.suppress(ImportError):
            from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

            group: Any = FSDPParamGroup
            group.post_backward = self._listening(group.post_backward)

    def _listening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def post_backward(group: Any, *args: Any, **kwargs: Any) -> Any:
            if group.reduce_grads and not getattr(group, "reduce_scatter_unused_params", False):
                self._compare(group)
            return original(group, *args, **kwargs)

        return post_backward

    def _compare(self, group: Any) -> None:
        import torch.distributed as dist

        trained = [p for p in group.fsdp_params if p.sharded_param.requires_grad]
        bare = [_name(p) for p in trained if not _has_gradient(p)]
        process_group = getattr(group.mesh_info, "shard_process_group", None) if trained else None
        if process_group is None:
            return
        self._made[id(group)] += 1
        unit = f"{len(trained)}:{_name(trained[0])}:{self._made[id(group)]}"
        store: Any = dist.distributed_c10d._get_default_store()
        ranks = dist.get_process_group_ranks(process_group)
        me = dist.get_rank()
        store.set(_key(unit, me), json.dumps(bare))
        for other in ranks if bare else ():
            with contextlib.suppress(RuntimeError):  # it does not come: others say why
                store.wait([_key(unit, other)], PATIENCE)
                theirs = json.loads(store.get(_key(unit, other)))
                lacking = [name for name in bare if name not in theirs]
                if lacking:
                    self._say_of(lacking, me, other)
                    return

    def _say_of(self, lacking: list[str], me: int, other: int) -> None:
        more = f" and {len(lacking) - 2} more" if len(lacking) > 2 else ""
        message = (
            f"rank {me} has no gradient of {', '.join(lacking[:2])}{more}, which rank {other} has: they reduce different "
            "tensors, so the run hangs or ends, or gradients of different parameters are added up; use each parameter on "
            "every rank, or call `set_reduce_scatter_unused_params(True)` (PyTorch 2.13)"
        )
        self.say(Violation("FSDP412", message, here()))


def _has_gradient(parameter: Any) -> bool:
    if parameter.unsharded_accumulated_grad is not None:
        return True
    return hasattr(parameter, "_unsharded_param") and parameter.unsharded_param.grad is not None


def _name(parameter: Any) -> str:
    return str(parameter._param_fqn or parameter._module_info.param_name)


def _key(unit: str, rank: int) -> str:
    return f"fsdp2lint/reduced/{unit}/{rank}"
