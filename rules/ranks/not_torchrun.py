"""The ranks choose the port of the rendezvous themselves, and do not meet there.

## What it does

Finds `os.environ["MASTER_PORT"] = "12355"` before `init_process_group()` in scripts that take `LOCAL_RANK`, and
the ranks themselves, from the environment that torchrun sets. Finds ports that each rank draws or looks for on its own
(`random.randint`, a socket bound to port 0), also in a function that `mp.spawn` runs and in `init_method="tcp://…"`.

## Why is this bad

torchrun tells every rank where its own store listens (`MASTER_ADDR`, `MASTER_PORT`) and the ranks connect to it;
none of them starts one. With another port they try to connect where nothing listens, until the process group times out
ten minutes later. The line is a rest of `mp.spawn`, where the script had to choose. On several hosts
`MASTER_ADDR = "localhost"` does the same to all but the first. A port that each rank finds for itself is another one on
each: with `mp.spawn` too, the first rank listens at its own and the others try theirs.

## Example

```diff
 import os

 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 local_rank = int(os.environ["LOCAL_RANK"])
-os.environ["MASTER_PORT"] = "12355"
 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
```

## Forms

- Found: a helper function that sets both.
- Not found: several variables at once.
- Found: a port that each spawned rank finds for itself.
- Not found: a port that a command prints.

## Fix safety

Unsafe: `os.environ.setdefault("MASTER_PORT", …)` leaves torchrun's port alone and still serves a start by hand. There
is none for a port that each rank finds for itself: the process that starts them has to find it.

## Known limits

Of constant ports only others than torchrun's own default, 29500, in scripts that take their ranks from the environment.
Scripts that set `RANK` or `WORLD_SIZE` themselves, or give them to `init_process_group`, are started in another way and
may choose a constant port. Whoever starts each rank by hand and sets `LOCAL_RANK` for it may choose the port here. A
port that the process with `mp.spawn` finds is the same for all ranks, and so is a drawn one where the script seeds
Python's random numbers.

## References

- https://docs.pytorch.org/docs/stable/elastic/run.html (environment variables)
- `torch/distributed/rendezvous.py` (`_create_c10d_store`: `TORCHELASTIC_USE_AGENT_STORE`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    External,
    Finding,
    Fix,
    Layout,
    Replace,
    Sharded,
    Trace,
    computed_from,
    rank_dependent,
    rule,
)

from .._common.origins import differing, origins
from ._common.launch import SPAWNING, from_environment, from_torchrun, text

_SET = "os.environ.__setitem__"
_INIT = "torch.distributed.init_process_group"
_FINDING = (".getsockname", "random.", "numpy.random.")
_ENVIRONMENT = ("os.environ", "os.getenv", "torch.distributed.is_")


@rule(code="FSDP406", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Rendezvous ports at which nothing listens."""
    if not trace.of(Sharded):
        return
    yield from _found_alone(trace)
    if not from_torchrun(trace):
        return
    for written in trace.calls(_SET):
        port = written.arguments[1]
        if text(written.arguments[0]) != "MASTER_PORT" or text(port) in (None, "29500"):
            continue
        started = next((c for c in trace.after(written, Called) if c.name == _INIT), None)
        if started is None or _asks(written) or not from_environment(started):
            continue
        yield Finding(
            at=written,
            message="torchrun's store listens at the port that it has set: with another one every rank waits "
            "for the others until the timeout",
            because=((started, "the process group is started here, from the environment"),),
            fix=_left_alone(written),
        )


def _found_alone(trace: Trace) -> Iterator[Finding]:
    """Ports that each rank finds for itself, other ones on each."""
    spawns = [called.at.node for called in trace.calls(*SPAWNING)]
    if not spawns and not from_torchrun(trace):
        return
    looked_for = {
        called.result
        for called in trace.calls_named(lambda name: name.startswith(_FINDING))
        if _on_each_rank(called, spawns)
    }
    for called in trace.calls(_SET, _INIT) if looked_for else ():
        port = called.argument(1, "init_method")
        if called.name == _SET and text(called.arguments[0]) != "MASTER_PORT":
            continue
        if port is None or _asks(called) or not _on_each_rank(called, spawns):
            continue
        made_of = looked_for.intersection(origins(trace, port, called.order))
        if any(differing(trace, one, called.order, "chance", "port") for one in made_of):
            yield Finding(
                at=called,
                message="each rank finds a port of its own here: the first one listens at its port, and the others "
                "wait at theirs until the timeout; find it once, before the ranks are started",
            )


def _on_each_rank(called: Called, spawns: list[cst.CSTNode]) -> bool:
    """Whether every rank makes a call: where a process starts the others, inside what it starts."""
    if any(rank_dependent(guard.test) for guard in called.guards):
        return False
    return not spawns or any(site.node in spawns for site in called.moment.calls)


def _asks(written: Called) -> bool:
    """Whether the environment was asked before."""
    return any(
        isinstance(one, External) and one.name.startswith(_ENVIRONMENT)
        for clause in written.guards.clauses
        for guard in clause
        for one in computed_from(guard.test)
    )


def _left_alone(written: Called) -> Fix | None:
    source, target = written.at.source, written.at.node
    above = Layout.of(source).parents.get(target)
    statement = None if above is None else Layout.of(source).parents.get(above)
    if not isinstance(target, cst.Subscript) or not isinstance(statement, cst.Assign):
        return None
    if len(statement.targets) != 1 or len(target.slice) != 1:
        return None
    environ, value = source.code(target.value), source.code(statement.value)
    text = f"{environ}.setdefault({source.code(target.slice[0].slice)}, {value})"
    note = "a start by hand that relied on this port over another one would use the other"
    return Fix("leave torchrun's port alone", (Replace(source, statement, text),), "unsafe", note)
