"""A program that starts its ranks with `mp.spawn` becomes one for torchrun, with `--launch torchrun`.

## What it does

Calls the spawned function in place of `mp.spawn`, with the rank that torchrun gives; takes the world size from
torchrun; removes addresses, ports, ranks and world sizes that the program set for itself. Without
`--launch torchrun` all of that stays: FSDP2 runs under `mp.spawn` too.

## Why

torchrun restarts failed ranks, spans nodes, chooses a free port and passes a rank's error on. What it starts also
runs under `fsdp2lint rehearse` and `verify`. The semantics stay: `mp.spawn(fn, args)` calls `fn(rank, *args)`.

## Example

```diff
 # options: --launch torchrun
 import os

 import torch
 import torch.distributed as dist
-import torch.multiprocessing as mp
 from torch import nn
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


 def main(rank, world_size):
-    os.environ["MASTER_ADDR"] = "localhost"
-    os.environ["MASTER_PORT"] = "12355"
-    dist.init_process_group("nccl", rank=rank, world_size=world_size)
+    dist.init_process_group("nccl")
     torch.cuda.set_device(rank)
     model = FSDP(nn.Linear(8, 8).to(rank))
     print(model)


 if __name__ == "__main__":
-    world_size = torch.cuda.device_count()
-    mp.spawn(main, args=(world_size,), nprocs=world_size, join=True)
+    world_size = int(os.environ["WORLD_SIZE"])
+    main(int(os.environ["LOCAL_RANK"]), world_size)
```

## What it leaves

`mp.spawn` whose result is used or that does not join, or whose ranks hand results back through a queue or a
dictionary of a manager; processes that are started one by one; programs whose
spawned function does not shard a model; ranks that join their process group in a function that programs started in
another way use too; tests, which start their ranks themselves.

## References

- https://docs.pytorch.org/docs/stable/elastic/run.html
- `torch/multiprocessing/spawn.py` (`spawn`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Edit,
    GroupStarted,
    Inner,
    Layout,
    Left,
    Names,
    Program,
    Remove,
    Replace,
    Rewrite,
    Source,
    Step,
    Trace,
    Unimport,
    Wrapping,
    codemod,
    name_for,
)

from ._common.launch import environment_writes, is_shared, without_rendezvous
from ._common.names import named_once

SPAWN = "torch.multiprocessing.spawn"
OF_TESTS = "kept: a test starts its own ranks, because torchrun does not start the test runner"
KEPT = "kept: FSDP2 runs under `mp.spawn` too; `--launch torchrun` converts it"
TODO = "start the ranks with torchrun instead of `mp.spawn`"


_TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py")


@codemod(after=("checkpoint-folders", "clip-grad-norm", "kept-state-dicts", "summon-full-params"))
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Spawning a function that shards a model."""
    going: dict[cst.CSTNode, tuple[Trace, Source, cst.Call]] = {}
    for trace, source, call in _spawns(program):
        if program.options.launch == "keep":
            yield Step((), (Account(source, call, "preserved", KEPT),))
        elif _is_test(source):
            yield Step((), (Account(source, call, "preserved", OF_TESTS),))
        elif (why := _obstacle(program, source, call)) is not None:
            yield Left(source, call, why, TODO)
        else:
            going[call] = trace, source, call
    while shared := [one for one in going if _joins_others(program, one, set(going))]:
        for one in shared:
            _, source, call = going.pop(one)
            why = "programs that are started in another way join their process group in the same place"
            yield Left(source, call, why, TODO)
    for trace, source, call in going.values():
        yield _step(program, trace, source, call)


def _is_test(source: Source) -> bool:
    """Whether pytest or unittest runs what is in a file: by its name, as they find it, or by its imports."""
    name = source.path.replace("\\", "/").rpartition("/")[2]
    roots = {one.loads.partition(".")[0] for one in Names.of(source).imports}
    return bool(_TEST_FILE.fullmatch(name)) or not roots.isdisjoint({"pytest", "unittest"})


def _spawns(program: Program) -> Iterator[tuple[Trace, Source, cst.Call]]:
    """The calls that spawn a function that shards a model."""
    for events in program.sites(Called):
        trace, called = events[0]
        call = called.at.node
        if called.name == SPAWN and isinstance(call, cst.Call):
            if any(_shards(one, call) for one, _ in events):
                yield trace, called.at.source, call


def _joins_others(program: Program, spawn: cst.CSTNode, going: set[cst.CSTNode]) -> bool:
    """Whether a group that is joined below a spawn is joined from where no spawn is rewritten too."""
    paths = [(e.at.node, {s.node for s in e.moment.calls}) for _, e in program.of(GroupStarted)]
    mine = {node for node, calls in paths if spawn in calls}
    return any(node in mine and not calls & going for node, calls in paths)


def _shards(trace: Trace, spawn: cst.Call) -> bool:
    """Whether a model is wrapped in what a spawned function runs."""
    wrapped = (event for event in trace.of(Wrapping) if event.by == "fsdp1")
    return any(site.node is spawn for event in wrapped for site in event.moment.calls)


def _obstacle(program: Program, source: Source, call: cst.Call) -> str | None:
    given = _arguments(call)
    if not isinstance(Layout.of(source).parents.get(call), cst.Expr):
        return "what `mp.spawn` returns is used"
    if given is None or "fn" not in given:
        return "its arguments cannot be resolved"
    join = given.get("join")
    if join is not None and getattr(join.value, "value", "") != "True":
        return "the program goes on while the ranks run"
    handed = given["args"].value if "args" in given else None
    for element in getattr(handed, "elements", ()):
        if is_shared(program, source, element.value):
            said = source.code(element.value)
            return f"the ranks hand results back through `{said}`, which the program reads"
    return None


def _arguments(call: cst.Call) -> dict[str, cst.Arg] | None:
    """The arguments of ``spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn")``."""
    names = ("fn", "args", "nprocs", "join", "daemon", "start_method")
    found: dict[str, cst.Arg] = {}
    for position, arg in enumerate(call.args):
        if arg.star:
            return None
        found[arg.keyword.value if arg.keyword is not None else names[position]] = arg
    return found


def _step(program: Program, trace: Trace, source: Source, call: cst.Call) -> Step:
    given = _arguments(call) or {}
    os_module = name_for(source, call, "os", module=True)
    edits: list[Edit] = [*os_module.edits, Unimport(source, "torch.multiprocessing")]
    nprocs = given["nprocs"].value if "nprocs" in given else None
    world = f'int({os_module.text}.environ["WORLD_SIZE"])'
    count = "" if nprocs is None else source.code(nprocs)
    bound = None if nprocs is None else named_once(source, nprocs)
    if bound is not None:
        edits.append(Replace(source, bound, world))

    def called(inner: Inner) -> str:
        words = [f'int({os_module.text}.environ["LOCAL_RANK"])']
        words += _handed_on(given.get("args"), inner, count if bound is None else "", world)
        return f"{inner(given['fn'].value)}({', '.join(words)})"

    edits.append(Rewrite(source, call, called))
    for started in trace.of(GroupStarted):
        if any(site.node is call for site in started.moment.calls):
            edits += without_rendezvous(started.at)
    edits += (Remove(s, statement) for s, statement in environment_writes(program, trace, call))
    each = "gpu" if (count or "").endswith("cuda.device_count()") else count or "1"
    why = f"torchrun starts the ranks: torchrun --nproc-per-node={each}"
    return Step(tuple(edits), (Account(source, call, "changed", why),))


def _handed_on(args: cst.Arg | None, inner: Inner, count: str, world: str) -> Iterator[str]:
    """The texts of what comes after the rank; the world size is torchrun's."""
    if args is None:
        return
    if not isinstance(args.value, cst.Tuple | cst.List):
        yield f"*{inner(args.value)}"
        return
    for element in args.value.elements:
        text = inner(element.value)
        star = "*" if isinstance(element, cst.StarredElement) else ""
        yield world if count and text == count else star + text
