"""What a run costs beside its result: operations of a step, numbers read, elements held, writes waited for.

All of it is counted, none is timed, so that two runs give the same numbers. `Costs.counted` hands it out.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp._fully_shard._fsdp_param_group as param_group
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import foreach_reduce
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

try:
    from torch.distributed.checkpoint._state_dict_stager import StateDictStager
except ImportError:  # torch < 2.9
    StateDictStager = None  # type: ignore[assignment, misc]

_READING = ("item", "tolist", "__float__", "__int__", "__bool__")
_REDUCED = tuple(inspect.signature(foreach_reduce).parameters)[2:]
"""What a reduction is given besides parameters and gradients: another torch has it in another order."""
_OWN = str(Path(torch.__file__).parent)


class Costs:
    """Counts what one rank pays for its training; `folder` is where the script's own files are."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._steps = 0
        self._operations = 0
        self._reads = 0
        self._whole = 0
        self._held: dict[int, int] = {}
        self._peak = 0
        self._writes: list[int] = []
        self._staged = 0
        self._ahead = 0
        self._dtypes: set[str] = set()
        self._mode: _Counting | None = None

    def install(self) -> None:
        """Start to count; call once per process, before the script runs."""
        for name in _READING:
            self._before(torch.Tensor, name, self._note_read)
        self._before(DTensor, "redistribute", self._note_whole)
        self._before(FileSystemWriter, "write_data", self._note_write)
        self._before(torch, "save", self._note_file)
        if StateDictStager is not None:
            self._before(StateDictStager, "_stage_untyped_storage", self._note_staged)
        self._before(param_group, "foreach_reduce", self._note_dtype)
        group = param_group.FSDPParamGroup
        self._note_order(group)
        self._before(group, "_to_unsharded", self._note_held)
        self._before(group, "_to_sharded", self._note_freed)
        self._before(group, "_to_sharded_post_forward", self._note_freed)

    def before_step(self) -> None:
        """An optimizer begins its step."""
        self._mode = _Counting()
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def after_step(self) -> None:
        """It has ended; steps that fail do not come here."""
        self._steps += 1
        if self._mode is not None:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._operations += self._mode.seen
            self._mode = None

    def counted(self) -> dict[str, Any]:
        """Everything counted so far, ready for JSON."""
        return {
            "operations": self._operations,
            "reads": self._reads,
            "whole": self._whole,
            "held": self._peak,
            "waits": sum(0 < steps < self._steps for steps in self._writes),
            "staged": self._staged,
            "ahead": self._ahead,
            "reduced_in": sorted(self._dtypes),
        }

    def _before(self, home: Any, name: str, note: Callable[..., None]) -> None:
        original = getattr(home, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return original(*args, **kwargs)

        setattr(home, name, noted)

    def _note_read(self, *_: object, **__: object) -> None:
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(f"{_OWN}/_tensor"):
            frame = frame.f_back
        self._reads += frame.f_code.co_filename.startswith(self._folder)

    def _note_whole(self, tensor: DTensor, *_: object, **__: object) -> None:
        self._whole += any(placement.is_shard() for placement in tensor.placements)

    def _note_write(self, *_: object, **__: object) -> None:
        if threading.current_thread() is threading.main_thread():
            self._writes.append(self._steps)

    def _note_file(self, obj: object, f: object, *_: object, **__: object) -> None:
        if isinstance(f, str | os.PathLike):
            self._note_write()

    def _note_staged(self, stager: Any, storage: Any, *_: object, **__: object) -> None:
        self._staged += storage not in stager._cached_storage_mapping

    def _note_dtype(self, _: Any, gradients: list[torch.Tensor], *rest: Any, **named: Any) -> None:
        asked = {**dict(zip(_REDUCED, rest, strict=False)), **named}["reduce_dtype"]
        dtype = gradients[0].dtype if asked is None and gradients else asked
        self._dtypes.add(str(dtype).removeprefix("torch."))

    def _note_order(self, kind: Any) -> None:
        """Count the units that a forward gathers before their own forward has begun."""
        unshard, pre_forward = kind.unshard, kind.pre_forward
        begun: list[Any] = []

        def noted(group: Any, *args: Any, **kwargs: Any) -> None:
            in_forward = group._training_state == TrainingState.FORWARD
            waiting = group._all_gather_result is not None or group.is_unsharded
            unshard(group, *args, **kwargs)
            asked = not waiting and group._all_gather_result is not None
            self._ahead += in_forward and asked and group not in begun

        def entered(group: Any, *args: Any, **kwargs: Any) -> Any:
            begun.append(group)
            result = pre_forward(group, *args, **kwargs)
            begun.pop()
            return result

        kind.unshard, kind.pre_forward = noted, entered

    def _note_held(self, group: Any) -> None:
        sizes = (held._orig_size.numel() for held in group.fsdp_params)
        self._held[id(group)] = sum(sizes)
        self._peak = max(self._peak, sum(self._held.values()))

    def _note_freed(self, group: Any) -> None:
        self._held.pop(id(group), None)


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of PyTorch that are asked for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


def takes_closure(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a step was given a closure, which runs the model."""
    return kwargs.get("closure") is not None or any(
        one is not None for one in args if one is not optimizer
    )
