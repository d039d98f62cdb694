"""What one rank records of a training run: losses, gradient norms, steps, and what the checks say.

When the run is to be compared with another, also its final values and its checkpoints. Final values are
taken before the process group is destroyed: afterwards no rank could gather them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakIdKeyDictionary

from fsdp2lint.plan.reading import read
from fsdp2lint.rehearse.contract import CHECKS
from fsdp2lint.rehearse.contract.errors import explain
from fsdp2lint.rehearse.contract.watch import (
    Watch,
    makes_state_only,
    parameters_of,
    replace_everywhere,
)
from fsdp2lint.rehearse.gather import Models, Peaks, write
from fsdp2lint.rehearse.outcome import (
    Clip,
    RankReport,
    Request,
    Spot,
    Step,
    Violation,
)
from fsdp2lint.rehearse.recording.calls import Calls, finite
from fsdp2lint.rehearse.recording.companions import Companions, numerics
from fsdp2lint.rehearse.recording.exchanges import Exchanges
from fsdp2lint.rehearse.recording.gradients import STEPS, Gradients, round_otherwise
from fsdp2lint.rehearse.recording.saves import Saves
from fsdp2lint.rehearse.results import UNITS
from fsdp2lint.rehearse.stacks import here

SAVING = 1.0
"""Seconds between two writes of a report that only grew by steps."""
MANY = 100_000
"""Steps of which the losses are kept."""

_UNSCALED = "_fsdp2lint_unscaled"


class Recording:
    """Listens from its creation on; ``enough`` is raised in the script after the wanted steps."""

    def __init__(
        self,
        report: RankReport,
        write: Callable[[], None],
        request: Request,
        enough: type[BaseException],
    ) -> None:
        self._report, self._write, self._enough = report, write, enough
        self._limit, self._request = request.steps, request
        self._written = time.monotonic()
        self._losses: list[float | None] = []
        self._counts: dict[int, int] = {}
        self._weights: MutableMapping[Any, float] = WeakIdKeyDictionary()
        self._step: Step | None = None
        self._calls, self._exchanges = Calls(), Exchanges()
        self._clips: list[Clip] = []
        self._gradients: dict[str, float] = {}
        self._lines: dict[str, Spot] = {}
        self._by_name = Gradients(self._weight)
        self._companions = Companions()
        self._ours = self._in_backward = self._in_clip = False
        self._watch = Watch(Path(request.scratch, f"rank{report.rank}.meetings"))
        self._watch.install()
        self._checks = [check(self._watch, self._say) for check in CHECKS]
        for check in self._checks:
            check.install()
        _wrap(torch.Tensor, "backward", self._backward)
        for scaler in (GradScaler, ShardedGradScaler):  # each has its own `scale`
            _wrap(scaler, "scale", _scale)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        self._models: Models | None = None
        if request.gather or request.folder:  # what is written from C++ must not go through links
            Saves(report.saved, lambda: len(report.steps), request.folder).install()
        if request.gather:
            self._models, self._peaks = Models(), Peaks()
            if request.device == "cpu":  # on a GPU TorchDynamo would trace through it
                _wrap(nn.Module, "__call__", self._calls.heard)
            self._exchanges.install()
            replace_everywhere(dist.destroy_process_group, self._destroying)
        replace_everywhere(torch.manual_seed, self._seeding)
        _wrap(FullyShardedDataParallel, "clip_grad_norm_", self._clipping)
        for name in ("clip_grad_norm_", "clip_grads_with_norm_", "clip_grad_value_"):
            if (function := getattr(torch.nn.utils, name, None)) is not None:
                replace_everywhere(function, self._clipping)
        _wrap(FullyShardedDataParallel, "__init__", self._wrapping)

    def gather(self) -> None:
        """Write down the final values, once and if that is wanted; all ranks come here."""
        models, self._models = self._models, None
        if models is not None:
            self._report.companions = self._companions.read()
            self._write()  # should a rank not come, what it reported shows why
            write(models, self._peaks, Path(self._request.scratch) / "final")

    def explain(self, error: BaseException) -> None:
        """Note the rule that an error breaks, if it is one of the contract's."""
        if (violation := explain(error)) is not None:
            self._say(violation)

    def end(self) -> None:
        """The script is over: let the checks conclude, and keep what they noted."""
        self._report.rest = Step(
            self._losses, calls=self._calls.taken(), exchanges=self._exchanges.taken()
        )
        if self._request.gather:
            self._report.companions = self._companions.read()
        for check in self._checks:
            check.at_end(self._report.how)
            self._report.facts[type(check).__name__] = check.facts()

    def _destroying(self, destroy: Any) -> Any:
        @functools.wraps(destroy)
        def destroyed(group: Any = None) -> None:
            if group in (None, dist.group.WORLD):
                self.gather()
            destroy(group)

        return destroyed

    def _seeding(self, seed: Any) -> Any:
        @functools.wraps(seed)
        def seeded(*args: Any, **kwargs: Any) -> Any:
            self._report.seeded = self._report.seeded or here() is not None
            return seed(*args, **kwargs)

        return seeded

    def _clipping(self, clip: Any) -> Any:
        @functools.wraps(clip)
        def clipped(*args: Any, **kwargs: Any) -> Any:
            by_value = clip.__name__ == "clip_grad_value_"
            self._report.clipped = self._report.clipped or not by_value
            if self._request.gather and not self._in_clip:
                args, kwargs = self._note_clip(args, kwargs, by_value)
            self._in_clip, outer = True, self._in_clip
            try:
                return clip(*args, **kwargs)
            finally:
                self._in_clip = outer

        return clipped

    def _wrapping(self, init: Any) -> Any:
        @functools.wraps(init)
        def wrapped(*args: Any, **kwargs: Any) -> None:
            init(*args, **kwargs)
            synced = bool(kwargs.get("sync_module_states"))
            self._report.synced = synced and self._report.synced is not False

        return wrapped

    def _note_clip(self, args: Any, kwargs: Any, by_value: bool) -> tuple[Any, Any]:
        """Note a call of FSDP1's method or of PyTorch's function; the arguments with parameters that can be read twice."""
        first, *rest = args or (kwargs.pop("parameters"),)
        limit = rest[0] if rest else kwargs.get("clip_value" if by_value else "max_norm")
        order = rest[1] if len(rest) > 1 else kwargs.get("norm_type", 2.0)
        parameters: list[Any]
        if isinstance(first, FullyShardedDataParallel):
            parameters = list(first.parameters())
        elif isinstance(first, torch.Tensor):
            parameters = [first]
        else:
            parameters = first = list(first)
        number = float(limit) if isinstance(limit, int | float) else None
        norm = "value" if by_value else f"{order:g}" if isinstance(order, int | float) else ""
        self._clips.append(Clip(here(), number, finite(self._squares(parameters)), norm))
        self._note_gradients(parameters)
        return (first, *rest), kwargs

    def _note_gradients(self, parameters: Iterable[Any]) -> None:
        """By name, each once a step: before it is clipped where it is."""
        if len(self._report.steps) < STEPS:
            squares = self._by_name.squares(parameters)
            finite = {name: square for name, square in squares.items() if math.isfinite(square)}
            self._gradients = finite | self._gradients

    def _note_units(self) -> None:
        """How parameters are grouped, sharded and computed, beside what explains a difference."""
        if self._report.rank == 0:
            with contextlib.suppress(Exception):  # of a model in a form of its own nothing is noted
                models = read(self._request.target, self._request.nproc, []).models
                Path(self._request.scratch, UNITS).write_bytes(msgspec.json.encode(models))

    def _say(self, violation: Violation) -> None:
        said = self._report.violations
        if all((v.code, v.at) != (violation.code, violation.at) for v in said):
            said.append(violation)
            self._write()

    def _backward(self, original: Any) -> Any:
        @functools.wraps(original)
        def backward(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if self._in_backward:  # a function mode calls the method once more
                return original(tensor, *args, **kwargs)
            if not self._report.steps and not self._losses:
                self._report.began = _printed()
                self._report.numerics = numerics()
            loss = getattr(tensor, _UNSCALED, tensor).detach()
            if loss.numel() == 1 and not isinstance(loss, DTensor):
                self._losses.append(finite(float(loss)))
                if (at := here()) is not None:
                    self._lines.setdefault("loss", at)
            self._in_backward = True
            try:
                return original(tensor, *args, **kwargs)
            finally:
                self._in_backward = False

        return backward

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        self._ours = not makes_state_only()
        if not self._ours:
            return
        at = here()
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        squares = finite(self._squares(parameters_of(optimizer)))
        if self._models is not None:
            self._note_gradients(parameters_of(optimizer))
        if at is not None:
            self._lines["step"] = at
        calls, clips = self._calls.taken(), self._clips
        # fmt: off
        self._step = Step(
            self._losses, squares, rates, calls, clips, self._gradients, self._lines, _printed(),
            self._exchanges.taken(),
        )
        # fmt: on
        self._losses, self._clips, self._gradients, self._lines = [], [], {}, {}
        if self._models is not None:
            if self._models.look(optimizer):
                self._companions.look()
                self._note_units()
            self._peaks.look(optimizer)
        if self._request.rounded:
            round_otherwise(parameters_of(optimizer), len(self._report.steps))
        for check in self._checks:
            check.before_step(optimizer, at)

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        if not self._ours:
            return
        at = here()
        for check in self._checks:
            check.after_step(optimizer, at)
        if self._step is not None and len(self._report.steps) < MANY:
            self._report.steps.append(self._step)
        self._step = None
        self._counts[id(optimizer)] = self._counts.get(id(optimizer), 0) + 1
        self._pass_on(at)
        if self._limit is not None and self._counts[id(optimizer)] >= self._limit:
            self.gather()
            raise self._enough

    def _pass_on(self, at: Spot | None) -> None:
        if time.monotonic() - self._written > SAVING:
            self._written = time.monotonic()
            self._write()

    def _squares(self, parameters: Iterable[Any]) -> float:
        """This rank's part of the squared norm: a value that several ranks hold counts in part."""
        total = 0.0
        for parameter in parameters:
            if parameter.grad is not None and not parameter.grad.is_sparse:
                gradient = parameter.grad
                local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                square = float(local.detach().double().square().sum())
                total += square * self._weight(parameter)
        return total

    def _weight(self, parameter: Any) -> float:
        if isinstance(parameter, DTensor):
            copies = 1
            for size, placement in zip(
                parameter.device_mesh.shape, parameter.placements, strict=True
            ):
                copies *= size if placement.is_replicate() else 1
            return 1 / copies
        if parameter not in self._weights:  # of a model that has been built since
            self._weights.update(_fsdp1_weights())
        world = dist.get_world_size() if dist.is_initialized() else 1
        return self._weights.setdefault(parameter, 1 / world)


def _printed() -> tuple[int, int]:
    """How much was written to standard output and standard error, where those are files."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        return os.lseek(1, 0, os.SEEK_CUR), os.lseek(2, 0, os.SEEK_CUR)
    except OSError:
        return 0, 0


def _fsdp1_weights() -> Iterator[tuple[Any, float]]:
    """The parameters of FSDP1 models: 1 where each rank holds another part of the gradient."""
    import gc

    modules = [m for m in gc.get_objects() if issubclass(type(m), FullyShardedDataParallel)]
    for module in modules:
        handle = getattr(module, "_handle", None)
        if handle is None:
            continue
        copies = 1
        if module.sharding_strategy.name == "NO_SHARD":
            copies = module.world_size
        elif "HYBRID" in module.sharding_strategy.name:
            copies = dist.get_world_size() // module.world_size
        flat = handle.flat_param
        for parameter in (flat, *(getattr(flat, "_params", None) or ())):
            yield parameter, 1 / copies


def _scale(original: Any) -> Any:
    """A scaled loss remembers the loss."""

    @functools.wraps(original)
    def scale(scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        if isinstance(outputs, torch.Tensor) and scaled is not outputs:
            setattr(scaled, _UNSCALED, outputs.detach())
        return scaled

    return scale


def _wrap(owner: Any, name: str, build: Callable[[Any], Any]) -> None:
    setattr(owner, name, build(getattr(owner, name)))
