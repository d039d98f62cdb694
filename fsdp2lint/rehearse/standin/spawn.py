"""``torch.multiprocessing.spawn``: torchrun's ranks are the processes, each calls the function itself."""

from __future__ import annotations

import sys
from multiprocessing import context as _context
from typing import Any

import torch.multiprocessing as mp

from fsdp2lint.rehearse.standin.replace import Counted, Function, local_rank, local_world

context: Any = _context
multiprocessing: Any = mp
_SAVER = "torch.distributed.checkpoint._async_process_executor"
"""What ``async_save`` starts in a process of its own, which imports the script anew and needs no stand-in."""


class WrongNumber(RuntimeError):
    """The script spawns another number of processes than there are ranks."""


class Joined:
    """What ``spawn(join=False)`` returns, when the function has run already."""

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """All are over (``torch.multiprocessing.spawn``, ``ProcessContext.join``)."""
        return True

    def pids(self) -> list[int]:
        """None: there are no processes of its own."""
        return []


def install(counted: Counted) -> None:
    """Replace ``spawn`` and ``start_processes``, and fork all other processes.

    A process that begins anew would lack all stand-ins; programs want that for CUDA's sake.
    """
    forking = context._concrete_contexts.get("fork")
    beginning_anew = context._concrete_contexts.get("spawn")

    def get_context(method: str | None = None) -> Any:
        if method == "spawn" and sys._getframe(1).f_globals.get("__name__") == _SAVER:
            return beginning_anew
        return context._default_context.get_context(method)

    if forking is not None:
        context._concrete_contexts.update(spawn=forking, forkserver=forking)
        multiprocessing.get_context = get_context
    call_on_each_rank(counted)


def call_on_each_rank(counted: Counted) -> None:
    """Replace ``spawn`` and ``start_processes``: what is before and after it in the script runs on every rank."""

    def spawned(
        fn: Function, args: Any = (), nprocs: int = 1, join: bool = True, *_: object, **__: object
    ) -> Joined | None:
        if nprocs != local_world():
            raise WrongNumber(
                f"the script spawns {nprocs} processes: rehearse it with `--nproc {nprocs}`"
            )
        counted.note("mp.spawn")
        fn(local_rank(), *args)
        return None if join else Joined()

    # the package's name `spawn` is the function, which hides the module of that name
    modules: Any = (mp, sys.modules["torch.multiprocessing.spawn"])
    for module in modules:
        module.spawn = module.start_processes = spawned
