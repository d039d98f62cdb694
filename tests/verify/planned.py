"""Plans scripts in forks of one process that has imported PyTorch: seconds less for each.

``python -m tests.verify.planned`` reads ``FOLDER WORLD SCRIPT`` as a list of JSON from each line of its input, plans
the script for so many ranks, leaves ``FOLDER/answer.json`` and answers with a line.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fsdp2lint.plan.errand import Errand, environment
from fsdp2lint.rehearse.forked import EARLY
from fsdp2lint.rehearse.holders import look_ahead
from fsdp2lint.rehearse.outcome import Request


def serve(answer: Callable[..., None]) -> None:
    """Import PyTorch, then answer each line of the input, a list of arguments, until it ends."""
    for name in (*EARLY, "torch.distributed._tools.fake_collectives"):
        with contextlib.suppress(ImportError):  # not each release has all
            importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what scripts print is no answer
    look_ahead()
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        given: list[Any] = json.loads(line)
        answer(*given)
        print("over", file=answers, flush=True)


def plan(folder: str, world: int, script: str) -> None:
    """Plan one script."""
    fork_plan(Path(folder), world, Request(script, ""))


def fork_plan(scratch: Path, world: int, request: Request, per_node: int = 8) -> None:
    """Plan in a process of its own, as ``plan`` does, and wait for it."""
    scratch.mkdir()
    errand = scratch / "errand.json"
    errand.write_bytes(msgspec.json.encode(Errand(request, world, hollow=True)))
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        os.environ.update(environment(world, per_node))
        os.chdir(scratch)
        sys.argv = ["rank", str(errand)]
        from fsdp2lint.plan.rank import __main__ as rank

        rank.main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


if __name__ == "__main__":
    serve(plan)
