"""What a script would do on any number of ranks, planned in one process without a GPU.

The script runs unmodified as rank 0 of a process group that communicates nothing, over parameters that
have no values, up to the first forward of its sharded model. Then its units, optimizers and meshes are
read off. PyTorch is imported in the child process only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from fsdp2lint.plan.compare import Difference, compare_plans
from fsdp2lint.plan.data import Amounts, Plan, amounts
from fsdp2lint.plan.errand import Answer, Errand, environment
from fsdp2lint.rehearse.outcome import Frame, Request

__all__ = [
    "Amounts",
    "CannotPlan",
    "Difference",
    "Plan",
    "amounts",
    "compare_plans",
    "plan",
]

PER_NODE = 8
"""GPUs of a node, as most machines for training have."""


class CannotPlan(Exception):
    """There is no plan for a script; the text says why, ``frames`` are the script's own."""

    def __init__(self, why: str, frames: tuple[Frame, ...] = ()) -> None:
        super().__init__(why)
        self.frames = frames


def plan(request: Request, world: int, per_node: int = PER_NODE) -> Plan:
    """What the script of a request shards and trains on ``world`` ranks, ``per_node`` to a machine.

    A script that needs the values of its parameters before training begins is run a second time with
    them, which takes the memory of the whole model.

    Raises:
        CannotPlan: the script failed, or its time was over, before it had sharded a model.
    """
    answer = _asked(request, world, per_node, hollow=True)
    if not answer.complete:
        second = _asked(request, world, per_node, hollow=False)
        answer = second if second.plan.models or not answer.plan.models else answer
    if not answer.plan.models:
        why = answer.error or "it shards no model"
        raise CannotPlan(f"{request.target}: {why}", answer.frames)
    if answer.complete or not answer.error:
        return answer.plan
    note = f"the script failed before it built an optimizer: {answer.error}"
    return msgspec.structs.replace(answer.plan, notes=(*answer.plan.notes, note))


def _asked(request: Request, world: int, per_node: int, *, hollow: bool) -> Answer:
    from fsdp2lint.rehearse import launch

    with tempfile.TemporaryDirectory(prefix="fsdp2lint-") as scratch:
        folder = Path(scratch)
        (folder / "errand.json").write_bytes(msgspec.json.encode(Errand(request, world, hollow)))
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "fsdp2lint.plan.rank", str(folder / "errand.json")],
                env=launch.environment(request) | environment(world, per_node),
                cwd=request.folder or None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            answer = folder / "answer.json"
            _wait(process, request, answer)
        if not answer.exists():
            last = (folder / "output").read_text("utf-8", "replace").strip().splitlines()[-1:]
            raise CannotPlan(f"{request.target}: {' '.join(last) or 'the process died'}")
        return msgspec.json.decode(answer.read_bytes(), type=Answer)


def _wait(process: subprocess.Popen[bytes], request: Request, answer: Path) -> None:
    """Wait as long as the request allows; nothing of the process is left behind."""
    try:
        process.wait(request.timeout)
    except subprocess.TimeoutExpired:
        if answer.exists():  # the plan is made, and what follows takes too long
            return
        raise CannotPlan(f"{request.target}: the time was over") from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
