"""Asynchronous saves get a gloo group of their own, as ``cpu:gloo,cuda:nccl`` gives them on GPUs.

There training talks over NCCL and the save over gloo; here both would meet on one gloo group, where
two threads that issue collectives deadlock.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint  # noqa: F401  where else the function has a name
from torch.distributed.checkpoint import state_dict_saver

from fsdp2lint.verify.standin import groups
from fsdp2lint.verify.standin.replace import Counted, Function, wrap_everywhere

_groups: list[Any] = []


def install(counted: Counted) -> None:
    """Give ``async_save`` a group when the script trains on NCCL and names none."""

    def build(save: Function) -> Function:
        def saved(state_dict: Any, **kwargs: Any) -> Any:
            trains_on_nccl = groups.requested and "nccl" in (groups.requested[-1] or "nccl")
            if trains_on_nccl and kwargs.get("process_group") is None and dist.is_initialized():
                if not _groups:
                    _groups.append(dist.new_group(backend="gloo"))
                counted.note("async_save on a group of its own")
                kwargs["process_group"] = _groups[0]
            return save(state_dict, **kwargs)

        return saved

    wrap_everywhere(state_dict_saver, "async_save", build)
