"""Asynchronous saves: a gloo group of their own, and stagers that copy as a CPU can.

On GPUs training talks over NCCL and the save over gloo, with ``cpu:gloo,cuda:nccl``; here both would meet on
one gloo group, where two threads that issue collectives deadlock. And ``DefaultStager`` refuses copies that do
not block where there is no accelerator (``torch/distributed/checkpoint/staging.py``).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint  # noqa: F401  where else the function has a name
from torch.distributed.checkpoint import staging, state_dict_saver

from fsdp2lint.rehearse.standin import groups
from fsdp2lint.rehearse.standin.replace import Counted, Function, wrap, wrap_everywhere

_groups: list[Any] = []


def install(counted: Counted) -> None:
    """Give ``async_save`` a group when the script trains on NCCL and names none; let stagers copy and wait."""

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
    if hasattr(staging, "DefaultStager"):  # from torch 2.9
        wrap(staging.DefaultStager, "__init__", lambda made: _waiting(made, counted))


def _waiting(made: Function, counted: Counted) -> Function:
    def built(stager: Any, config: Any = None) -> None:
        asked = staging.StagingOptions() if config is None else config
        if asked.use_non_blocking_copy:
            counted.note("copies of DefaultStager that do not block")
            asked = dataclasses.replace(asked, use_non_blocking_copy=False)
        made(stager, asked)

    return built
