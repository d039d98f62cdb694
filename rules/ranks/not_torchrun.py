"""A script that torchrun starts chooses the port of the rendezvous itself.

## What it does

Finds `os.environ["MASTER_PORT"] = "12355"` before `init_process_group()` in scripts that take `LOCAL_RANK`, and
the ranks themselves, from the environment that torchrun sets.

## Why is this bad

torchrun tells every rank where its own store listens (`MASTER_ADDR`, `MASTER_PORT`) and the ranks connect to it;
none of them starts one. With another port they try to connect where nothing listens, until the process group times out
ten minutes later. The line is a rest of `mp.spawn`, where the script had to choose. On several hosts
`MASTER_ADDR = "localhost"` does the same to all but the first.

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

Found: a helper function that sets both.

```python
def setup():
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo")


local_rank = int(os.environ["LOCAL_RANK"])
setup()
fully_shard(nn.Linear(8, 8))
```

Not found: several variables at once.

```python
local_rank = int(os.environ["LOCAL_RANK"])
os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="12355")
dist.init_process_group("gloo")
fully_shard(nn.Linear(8, 8))
```

Not found: a port that each rank finds for itself.

```python
import socket


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


local_rank = int(os.environ["LOCAL_RANK"])
os.environ["MASTER_PORT"] = str(free_port())
dist.init_process_group("gloo")
fully_shard(nn.Linear(8, 8))
```

## Fix safety

Unsafe: `os.environ.setdefault("MASTER_PORT", …)` leaves torchrun's port alone and still serves a start by hand.

## Known limits

Only constant ports other than torchrun's own default, 29500. Scripts that set `RANK` or `WORLD_SIZE` themselves,
or give them to `init_process_group`, are started in another way and are left alone, also where that needs one
process to start the others (`mp.spawn`) and knows no restart. Whoever starts each rank by hand and
sets `LOCAL_RANK` for it may choose the port here.

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
    Part,
    Replace,
    Sharded,
    Trace,
    Value,
    rule,
)

from ._common.launch import from_environment, from_torchrun, text

_SET = "os.environ.__setitem__"
_INIT = "torch.distributed.init_process_group"
_ENVIRONMENT = ("os.environ", "os.getenv", "torch.distributed.is_")


@rule(code="FSDP406", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Rendezvous ports at which nothing listens."""
    if not trace.of(Sharded) or not from_torchrun(trace):
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


def _asks(written: Called) -> bool:
    """Whether the environment was asked before."""
    for clause in written.guards.clauses:
        for guard in clause:
            todo: list[Value] = [guard.test]
            while todo:
                one = todo.pop()
                if isinstance(one, External) and one.name.startswith(_ENVIRONMENT):
                    return True
                if isinstance(one, Part):
                    key = one.key if isinstance(one.key, tuple) else ()
                    todo += [one.owner, *(o for o in key if isinstance(o, Value))]
                todo += [v for v in (getattr(one, "test", None),) if isinstance(v, Value)]
    return False


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
