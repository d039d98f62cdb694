"""The fork server: imports PyTorch once, then forks a supervisor for every scenario asked for.

Requests and answers are lines of JSON on stdin and stdout. It never starts a process group, a
thread or a random generator of its own, so that each fork begins like a fresh interpreter.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from fsdp2lint.rehearse.standin import older
from fsdp2lint.rehearse.standin.replace import Counted

from .rank import Job
from .supervise import supervise

_EARLY = (
    "numpy",
    "torch._dynamo",
    "torch.distributed._composable.fsdp",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
    "torch.distributed.checkpoint._fsspec_filesystem",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.checkpoint.stateful",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.optim.lr_scheduler",
    "torch.optim.swa_utils",
    "torch.utils.data.distributed",
)
FRAMEWORKS = (
    "accelerate.utils",
    "lightning.pytorch.strategies",
    "peft",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
    "trl.trainer.sft_trainer",
)
"""What scripts of frameworks wait for, 5 s a rank; one that is not installed fails in the script."""
_MARGIN = 120.0
"""Seconds beyond a job's own limit after which even its supervisor is killed."""


def main() -> None:
    """Serve until stdin closes."""
    torch.set_num_threads(1)
    for name in _EARLY:
        importlib.import_module(name)
    for name in FRAMEWORKS if sys.argv[1:] == ["frameworks"] else ():
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    older.install(Counted({}))  # without it nothing trains there
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        _serve(
            Job(
                script=Path(request["script"]),
                scratch=Path(request["scratch"]),
                nproc=request["nproc"],
                timeout=request["timeout"],
                arguments=tuple(request["arguments"]),
                slow_saves=request["slow_saves"],
                full_storage=request["full_storage"],
            )
        )
        print("{}", flush=True)


def _serve(job: Job) -> None:
    child = os.fork()
    if child == 0:
        try:
            supervise(job)
        finally:
            os._exit(70)
    deadline = time.monotonic() + job.timeout + _MARGIN
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
