"""Plans of a script beside what the same script does on forked ranks over gloo.

``python -m tests.verify.measured`` reads ``FOLDER WORLD CASE`` as a list of JSON from each line of its input and leaves
``<case>.plan/answer.json`` and, as counted on rank 0 in the last step, ``<case>.real.json``.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fsdp2lint.plan.errand import environment
from fsdp2lint.rehearse.outcome import Request
from tests.verify.forked import store
from tests.verify.planned import fork_plan, serve

SCRIPT = Path(__file__).parent / "scripts" / "shards.py"


def measure(folder: str, world: int, case: str) -> None:
    """Run and plan a case in processes of its own."""
    with store() as port:
        agent = {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        for rank in range(world):
            told = environment(world, world) | agent | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            _fork(partial(_run, Path(folder, f"{case}.real.json"), case), told)
        for _ in range(world):
            os.wait()
    request = Request(str(SCRIPT), "", arguments=(case,))
    fork_plan(Path(folder, f"{case}.plan"), world, request, per_node=world)


def _fork(live: Callable[[], None], told: dict[str, str]) -> None:
    if os.fork():
        return
    try:
        os.environ.update(told)
        live()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


def _run(out: Path, case: str) -> None:
    import torch

    sys.argv = [str(SCRIPT), case]
    counts = _counting()
    model, trainer = runpy.run_path(str(SCRIPT), run_name="__main__")["kept"]
    if os.environ["RANK"] != "0":
        return
    states = [value for state in trainer.state.values() for value in state.values()]
    kept = list(_kept(model))
    real = counts() | {
        "parameters": sum(map(_local, kept)),
        "gradients": sum(_local(p.grad) for p in kept if p.grad is not None),
        "optimizer": sum(_local(value) for value in states if isinstance(value, torch.Tensor)),
    }
    out.write_text(json.dumps(real))


def _kept(model: Any) -> Iterator[Any]:
    """What the rank keeps: parameters, of FSDP1 the flat ones with their padding."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if not isinstance(model, FullyShardedDataParallel):
        yield from model.parameters()
        return
    for module in FullyShardedDataParallel.fsdp_modules(model):
        if module._handle is not None:
            yield module._handle.flat_param


def _local(tensor: Any) -> int:
    from torch.distributed.tensor import DTensor

    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return int(local.numel() * local.element_size())


def _counting() -> Callable[[], dict[str, Any]]:
    """Count collectives under the dispatcher, anew in each optimizer step."""
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils._python_dispatch import TorchDispatchMode

    kinds = {
        "allgather_": ("gathered", 0),
        "_allgather_base_": ("gathered", 0),
        "reduce_scatter_": ("scattered", 1),
        "_reduce_scatter_base_": ("scattered", 1),
        "allreduce_": ("reduced", 0),
    }
    now: dict[str, list[int]] = {}
    last: dict[str, list[int]] = {}

    class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            space, _, name = func.name().partition("::")
            if space == "c10d" and name in kinds:
                kind, place = kinds[name]
                count = now.setdefault(kind, [0, 0])
                count[0] += 1
                count[1] += _bytes(args[place])
            return func(*args, **(kwargs or {}))

    def stepped(*_: object) -> None:
        last.clear()
        last.update({kind: list(count) for kind, count in now.items()})
        now.clear()

    build: Any = Counter
    mode = build()
    mode.__enter__()
    register_optimizer_step_post_hook(stepped)
    return lambda: dict(last)


def _bytes(given: Any) -> int:
    if isinstance(given, list | tuple):
        return sum(map(_bytes, given))
    return int(given.numel() * given.element_size())


if __name__ == "__main__":
    serve(measure)
