"""The life of the one rank that plans: it runs the script up to its first backward.

Training begins at the first forward of a sharded model, under gradients, when there is an optimizer; at
the latest at a ``backward`` or an optimizer's step. What the models and optimizers are by then is the
plan, also when the script failed a moment earlier: values that nobody computed may be to blame. It is written down then: how
much the step that follows allocates may not be found out.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from fsdp2lint.plan.data import Activations, Plan
from fsdp2lint.plan.errand import Answer, Errand
from fsdp2lint.rehearse import script
from fsdp2lint.rehearse.holders import remembering
from fsdp2lint.rehearse.outcome import Request
from fsdp2lint.rehearse.stacks import raised_at

if TYPE_CHECKING:
    from fsdp2lint.plan.rank.activations import Trace


class TrainingBegins(BaseException):
    """Raised in the script when the plan is complete."""


class NeedsValues(BaseException):
    """Raised in the script when it computes with parameters before there is an optimizer."""

    def __str__(self) -> str:
        return "a sharded model computes before any optimizer is built"


def main() -> NoReturn:
    """Plan for the errand that the command line names; the answer goes to ``answer.json`` beside it."""
    path = Path(sys.argv[1])
    errand = msgspec.json.decode(path.read_bytes(), type=Errand)
    script.die_with_parent()
    script.hide_ourselves()
    from fsdp2lint.plan.rank import hollow, world
    from fsdp2lint.rehearse import fakes
    from fsdp2lint.rehearse.standin import install

    made_up: dict[str, int] = {}
    with remembering():
        install({})
        world.install()
        if errand.hollow:
            hollow.install()
        fakes.make_up(errand.request.made_up, made_up, str(path.parent))
    stage = _Stage(errand, path.with_name("answer.json"), made_up)
    stage.leave(_rehearsed(errand.request, stage))


def _rehearsed(request: Request, stage: _Stage) -> Answer:
    script.add_folder(request)
    try:
        for patch in request.patches:
            script.call(patch)
        script.run(request)
    except TrainingBegins:
        pass
    except BaseException as raised:
        # read while the traceback still holds what the script's functions had
        if stage.answer is not None:
            return stage.ended(raised)
        if not isinstance(raised, SystemExit) or raised.code:
            traceback.print_exc()
            error = "".join(traceback.format_exception_only(raised)).strip()
            return Answer(stage.read(), error, tuple(raised_at(raised.__traceback__)))
        return Answer(stage.read())
    return stage.answer or Answer(stage.read())


class _Stage:
    """Knows every optimizer, and stops the script where training begins."""

    def __init__(self, errand: Errand, target: Path, made_up: dict[str, int]) -> None:
        import torch
        from torch import nn
        from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

        from fsdp2lint.rehearse.standin.replace import wrap

        self.answer: Answer | None = None
        """The plan as it was where training began."""
        self._errand, self._target, self._made_up = errand, target, made_up
        self._reading = False
        self._trace: Trace | None = None
        self._optimizers: list[weakref.ref[Any]] = []
        original: Any = Optimizer.__init__

        def built(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._optimizers.append(weakref.ref(optimizer))

        owner: Any = Optimizer
        owner.__init__ = built
        wrap(torch.Tensor, "backward", self._computing)
        register_optimizer_step_pre_hook(self._begin)
        wrap(nn.Module, "__call__", self._calling)

    def _begin(self, *_: object, **__: object) -> None:
        from fsdp2lint.rehearse.contract.watch import makes_state_only

        if self._reading or makes_state_only():
            return
        if self.answer is not None and self._trace is None:  # the script caught what was to stop it
            self.leave(self.answer)
        if self.answer is None:
            self.answer = Answer(self.read())
        if self._trace is not None:
            self._add(self._trace.end())
            self._trace = None
        raise TrainingBegins

    def _computing(self, original: Any) -> Any:
        """A backward pass, of which nothing but its allocations counts."""

        @functools.wraps(original)
        def backward(loss: Any, *args: Any, **kwargs: Any) -> None:
            if self._trace is not None:
                self._trace.at_backward()
                original(loss, *args, **kwargs)
            self._begin()

        return backward

    def _calling(self, original: Any) -> Any:
        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            self._forward(module)
            return original(module, *args, **kwargs)

        return call

    def _forward(self, module: Any) -> None:
        import torch

        from fsdp2lint.plan.names import is_parallel

        if self._reading or self.answer is not None or not is_parallel(module):
            return
        if not any(ref() is not None for ref in self._optimizers):
            if self._errand.hollow:
                raise NeedsValues
        elif self._errand.hollow or torch.is_grad_enabled():
            self._follow()

    def _follow(self) -> None:
        """Keep the plan, and let the script compute its step on a whole model without values."""
        from fsdp2lint.plan.names import whole_models
        from fsdp2lint.plan.rank.activations import CannotTrace, Trace

        self.answer = Answer(self.read())
        self._write(self.answer)
        try:
            self._trace = Trace(whole_models())
        except CannotTrace as problem:
            self._doubt(str(problem))
            raise TrainingBegins from problem

    def ended(self, raised: BaseException) -> Answer:
        """The answer when the script was left while its step was followed."""
        assert self.answer is not None
        if self._trace is not None and not isinstance(raised, TrainingBegins):
            self._doubt("".join(traceback.format_exception_only(raised)).strip().splitlines()[0])
        return self.answer

    def _add(self, activations: Activations) -> None:
        assert self.answer is not None
        plan = msgspec.structs.replace(self.answer.plan, activations=activations)
        self.answer = Answer(plan)

    def _doubt(self, why: str) -> None:
        assert self.answer is not None
        note = f"how much a step computes beside parameters could not be followed: {why}"
        plan = self.answer.plan
        self.answer = Answer(msgspec.structs.replace(plan, notes=(*plan.notes, note)))

    def read(self) -> Plan:
        """The plan as it is."""
        from fsdp2lint.plan.reading import read

        alive = [optimizer for ref in self._optimizers if (optimizer := ref()) is not None]
        self._reading = True
        try:
            plan = read(self._errand.request.target, self._errand.world, alive)
            return msgspec.structs.replace(plan, notes=(*plan.notes, *self._notes()))
        finally:
            self._reading = False

    def _notes(self) -> Iterator[str]:
        yield from self._made_up
        full_size = self._errand.request.made_up.full_size
        if not full_size and any("from_pretrained" in one for one in self._made_up):
            yield "models that `from_pretrained` makes up are small: `--full-size` plans what their configurations say"

    def leave(self, answer: Answer) -> NoReturn:
        """Write the answer and end the process."""
        self._write(answer)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _write(self, answer: Answer) -> None:
        passing = self._target.with_suffix(".tmp")
        passing.write_bytes(msgspec.json.encode(answer))
        passing.replace(self._target)


if __name__ == "__main__":
    main()
