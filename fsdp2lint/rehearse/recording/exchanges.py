"""The collectives that a script calls itself: which, over which ranks, of what."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import torch
import torch.distributed as dist

from fsdp2lint.rehearse.contract.watch import replace_everywhere
from fsdp2lint.rehearse.outcome import Exchange
from fsdp2lint.rehearse.stacks import here, own

_CALLS = (
    *("all_reduce", "reduce", "broadcast", "scatter", "gather"),
    *("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"),
    *("all_to_all", "all_to_all_single"),
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
)
MANY = 1000
"""So many of a step are noted."""


class Exchanges:
    """Those of one rank: not what PyTorch's own modules and optimizers send."""

    def __init__(self) -> None:
        self._found: list[Exchange] = []

    def install(self) -> None:
        """Begin to listen."""
        for name in _CALLS:
            replace_everywhere(getattr(dist, name), self._listening)

    def taken(self) -> list[Exchange]:
        """Those since the last time."""
        found, self._found = self._found, []
        return found

    def _listening(self, original: Any) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def exchanged(*args: Any, **kwargs: Any) -> Any:
            if len(self._found) < MANY and own(sys._getframe(1).f_code.co_filename):
                given = signature.bind_partial(*args, **kwargs).arguments
                self._found.append(_exchange(original.__name__, given))
            return original(*args, **kwargs)

        return exchanged


def _exchange(call: str, given: dict[str, Any]) -> Exchange:
    given = given | given.get("kwargs", {})
    tensor = next((one for one in given.values() if isinstance(one, torch.Tensor)), None)
    what = ""
    if tensor is not None:
        what = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    reduces = ""
    if "reduce" in call:
        reduces = str(given.get("op", dist.ReduceOp.SUM)).rpartition(".")[2]
    return Exchange(call, reduces, what, _ranks(given.get("group")), here())


def _ranks(group: Any) -> tuple[int, ...]:
    if not dist.is_initialized():
        return ()
    try:
        return tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
    except (KeyError, ValueError, TypeError):  # a group that this rank is not in
        return ()
