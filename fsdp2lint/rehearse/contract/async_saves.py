"""An asynchronous save has a CPU backend (FSDP308) and is awaited before the script ends (FSDP307).

The background thread that finds no process group any more writes one rank's part as if it were all
(``torch/distributed/checkpoint/state_dict_saver.py``).
"""

from __future__ import annotations

import functools
from typing import Any

from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.watch import replace_everywhere
from fsdp2lint.rehearse.outcome import Spot, Violation
from fsdp2lint.rehearse.stacks import here

_AWAITING = ("result", "exception")


class AsyncSaves(Check):
    """Keeps every future of ``async_save`` until it was asked for its result."""

    def install(self) -> None:
        """Listen to ``async_save`` and to ``concurrent.futures.wait`` and ``as_completed``."""
        import concurrent.futures as futures

        from torch.distributed.checkpoint.state_dict_saver import async_save

        self._open: dict[int, tuple[Any, Spot | None]] = {}
        replace_everywhere(async_save, self._saving)
        module: Any = futures
        for name in ("wait", "as_completed"):
            setattr(module, name, self._waiting(getattr(futures, name)))

    def at_end(self, how: str) -> None:
        """Say which were dropped, unless the script was stopped before it could ask."""
        if how == "ended":
            for _, at in self._open.values():
                message = (
                    "nothing waits for this save before the script ends: call `.result()` on "
                    "what `async_save` returns"
                )
                self.say(Violation("FSDP307", message, at))

    def _saving(self, original: Any) -> Any:
        @functools.wraps(original)
        def async_save(*args: Any, **kwargs: Any) -> Any:
            self._look_at_the_backend(kwargs)
            response = original(*args, **kwargs)
            future = getattr(response, "upload_completion", response)
            self._open[id(future)] = (future, here())
            for name in _AWAITING:
                setattr(future, name, self._asking(future, getattr(future, name)))
            future.done = self._polling(future, future.done)
            return response

        return async_save

    def _look_at_the_backend(self, kwargs: dict[str, Any]) -> None:
        """The stand-in makes gloo of NCCL, so what a GPU would refuse is said here."""
        from fsdp2lint.rehearse.standin.groups import requested

        backend = (requested[-1] or "") if requested else ""
        only_nccl = "nccl" in backend and "cpu" not in backend and "gloo" not in backend
        if kwargs.get("process_group") is None and only_nccl:
            message = (
                "`async_save` needs a CPU backend beside NCCL: initialise the process group with "
                '"cpu:gloo,cuda:nccl" or pass a gloo group as `process_group`'
            )
            self.say(Violation("FSDP308", message, here()))

    def _asking(self, future: Any, original: Any) -> Any:
        @functools.wraps(original)
        def ask(*args: Any, **kwargs: Any) -> Any:
            if here() is not None:
                self._open.pop(id(future), None)
            return original(*args, **kwargs)

        return ask

    def _polling(self, future: Any, original: Any) -> Any:
        @functools.wraps(original)
        def done() -> bool:
            finished = bool(original())
            if finished and here() is not None:
                self._open.pop(id(future), None)
            return finished

        return done

    def _waiting(self, original: Any) -> Any:
        @functools.wraps(original)
        def wait(fs: Any, *args: Any, **kwargs: Any) -> Any:
            awaited = list(fs)
            for future in awaited:
                self._open.pop(id(future), None)
            return original(awaited, *args, **kwargs)

        return wait
