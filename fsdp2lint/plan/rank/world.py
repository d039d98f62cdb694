"""A process group of any size in one process: it communicates nothing (``FakeProcessGroup`` of PyTorch)."""

from __future__ import annotations

import contextlib
import importlib
import os
from functools import partial
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from fsdp2lint.rehearse.standin.replace import Function, wrap, wrap_everywhere


def install() -> None:
    """Make every process group one that only pretends; after the device stand-in."""
    world = int(os.environ["WORLD_SIZE"])
    with contextlib.suppress(ImportError):  # collectives over tensors without values
        importlib.import_module("torch.distributed._tools.fake_collectives")
    wrap_everywhere(distributed_c10d, "init_process_group", lambda init: _init(init, world))
    wrap_everywhere(distributed_c10d, "new_group", _new_group)
    for name, answer in _OBJECTS.items():
        wrap_everywhere(distributed_c10d, name, partial(_instead, answer))
    groups: Any = distributed_c10d.ProcessGroup
    groups.monitored_barrier = _nothing  # which Fabric calls on the group itself
    wrap(DistributedDataParallel, "__init__", _ddp)
    # FSDP1 takes the devices of a node for the shard group of a hybrid strategy
    torch.cpu.device_count = lambda: int(os.environ["LOCAL_WORLD_SIZE"])
    spawning: Any = mp
    spawning.spawn = _spawn


def _instead(answer: Function, _: Function) -> Function:
    return answer


def _init(init: Function, world: int) -> Function:
    def initialised(*_: object, **__: object) -> Any:
        return init("fake", store=FakeStore(), rank=0, world_size=world)

    return initialised


def _new_group(new: Function) -> Function:
    def made(ranks: Any = None, *_: object, **__: object) -> Any:
        return new(ranks, backend="fake")

    return made


def _ddp(init: Function) -> Function:
    def initialised(self: Any, module: Any, *_: object, **kwargs: Any) -> None:
        """Without devices, and without comparing values with the ranks that are not there."""
        for device in ("device_ids", "output_device"):
            kwargs.pop(device, None)
        init(self, module, **kwargs, init_sync=False)

    return initialised


def _spawn(fn: Function, args: Any = (), *_: object, **__: object) -> None:
    fn(0, *args)


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [obj] * len(object_list)


def _gather_object(obj: Any, object_gather_list: Any = None, *_: object, **__: object) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def _scatter_object_list(received: list[Any], given: Any = None, *_: Any, **__: Any) -> None:
    if given:
        received[0] = given[0]


def _nothing(*_: object, **__: object) -> None:
    """Rank 0 keeps what it has."""


_OBJECTS: dict[str, Function] = {
    "all_gather_object": _all_gather_object,
    "gather_object": _gather_object,
    "scatter_object_list": _scatter_object_list,
    "broadcast_object_list": _nothing,
    "monitored_barrier": _nothing,
    "barrier": _nothing,
}
"""Every rank is taken to say what rank 0 says."""
