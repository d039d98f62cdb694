"""A number is taken out of the loss in every step, and the host waits for the GPU each time.

## What it does

Finds `.item()`, `.tolist()`, `float(…)` and `int(…)` of the loss, or of the norm that clipping returned, that
happen in every step of the loop that trains a sharded model.

## Why is this bad

The CPU runs ahead of the GPU: it starts the gathers and kernels of the next layers while earlier ones still
compute, and that is how `fully_shard` hides its communication. To read a number it must wait until everything
before it has been computed; the next forward then begins with an empty queue, its first all-gather in the open.
Keep the tensor (`total += loss.detach()`) and read it every so many steps.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("nccl")
 model = nn.Linear(8, 8)
 fully_shard(model)
 optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
-total = 0.0
+total = torch.zeros((), device="cuda")
 for step in range(1000):
     loss = model(torch.randn(4, 8, device="cuda")).square().mean()
     loss.backward()
     optimizer.step()
     optimizer.zero_grad()
-    total += loss.item()
+    total += loss.detach()
+    if step % 100 == 0:
+        print(total.item())
```

## Forms

- Found: a helper function that prints the loss.
- Found: a step that returns numbers.
- Found: a loss that two branches make.
- Not found: a loss in a format.
- Not found: a number of right answers.

## Known limits

Scripts whose process groups are gloo's alone are left alone: on CPUs nothing runs ahead. So are numbers that
decide something (`if math.isnan(loss.item())`, `assert loss.item() < 10`), those under a condition that counts, and those of a loop that
calls `torch.cuda.synchronize()` in each step anyway. `print(loss)` and formats read numbers too and are not seen. A CPU shows how often a number is read; what that costs a GPU it does
not. There is no fix: only the author knows how often the number is needed.

## References

- https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html (avoid unnecessary synchronization)
- https://docs.pytorch.org/docs/stable/notes/cuda.html (asynchronous execution)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Backward,
    Called,
    Clipped,
    Finding,
    Forward,
    Guard,
    Layout,
    Optimizer,
    Part,
    Sharded,
    Stepped,
    Trace,
    Value,
    computed_from,
    once,
    options,
    rank_dependent,
    rule,
    walk,
)

from .._common.fixes import call_of, first_argument, receiver_of
from .._common.loops import Loop, each_step, only_cpu, step_loop
from .._common.parts import holding_shards
from .._common.shared import sharded

_READERS = (".item", ".tolist", "builtins.float", "builtins.int")
_WAITS = ("torch.accelerator.synchronize", "torch.cuda.synchronize", "torch.xpu.synchronize")
_ARITHMETIC = ("/", "*", "+", "-", "**")


@rule(code="FSDP504", group="perf")
def check(trace: Trace) -> Iterator[Finding]:
    """Numbers that are read in each step."""
    if not trace.of(Sharded) or only_cpu(trace):
        return
    read: dict[tuple[Value, Loop], Called] = {}
    for called in trace.calls(*_READERS):
        value = called.receiver or (called.arguments[0] if called.arguments else None)
        stepped = each_step(trace, called)
        loop = step_loop(trace, called)
        if (
            value is None
            or stepped is None
            or loop is None
            or not _every_time(trace, called, stepped)
        ):
            continue
        if not _trains_shards(trace, stepped, loop):
            continue
        if not any(_made_of(one, _known(trace)) for one in options(value)):
            continue
        if read.setdefault((value, loop), called).at.node is not called.at.node:
            continue  # the host has waited for it already
        if not _decides(trace, called) and not _waits_anyway(trace, stepped):
            yield Finding(
                at=called,
                message=f"`{_said(called)}` is read in every step: the host waits until the GPU has computed "
                "all before it, and the next forward begins with an empty queue",
                because=((stepped, "the optimizer makes its step here, in the same loop"),),
            )


def _trains_shards(trace: Trace, stepped: Stepped, loop: Loop) -> bool:
    """Whether a loop trains a sharded model: its optimizer holds one, or one computes in it."""
    return trace.derived(_is_trained, stepped, loop)


def _is_trained(trace: Trace, stepped: Stepped, loop: Loop) -> bool:
    for optimizer in options(stepped.optimizer):
        for parameters in optimizer.over if isinstance(optimizer, Optimizer) else ():
            if holding_shards(trace, stepped, parameters.of) is not None:
                return True
    return any(
        step_loop(trace, forward) is loop and sharded(trace, forward, forward.module) is not None
        for forward in trace.of(Forward)
    )


@once
def _known(trace: Trace) -> frozenset[Value]:
    """The losses, with what they were scaled from, and the norms that clipping returned."""
    found: set[Value] = set()
    for backward in trace.of(Backward):
        for loss in options(backward.of):
            found.update(_scaled(loss))
    clipped = {event.at.node for event in trace.of(Clipped)}
    found.update(one for c in trace.of(Called) if c.at.node in clipped for one in options(c.result))
    return frozenset(found)


def _scaled(loss: Value) -> Iterator[Value]:
    yield loss
    while isinstance(loss, Part) and loss.operation in _ARITHMETIC:
        loss = loss.owner
        yield loss


def _made_of(value: Value, known: frozenset[Value]) -> bool:
    """Whether a value is one of those, or computed from it by methods and operators."""
    while value not in known:
        if not isinstance(value, Part) or not (value.operation or _method(value.key)):
            return False
        value = value.owner
    return True


def _method(key: object) -> bool:
    return isinstance(key, str) and key.endswith("()")


def _said(called: Called) -> str:
    """What is read, as the script writes it."""
    call = call_of(called.at)
    read = receiver_of(called.at) if called.receiver is not None else call and first_argument(call)
    return called.at.source.code(read) if read is not None else "a tensor"


@once
def _sides(trace: Trace) -> dict[cst.CSTNode, set[Guard]]:
    """The tests under which each call reads: of a value that two branches make it reads one on each side."""
    found: dict[cst.CSTNode, set[Guard]] = {}
    for called in trace.calls(*_READERS):
        found.setdefault(called.at.node, set()).update(*called.guards.clauses)
    return found


def _every_time(trace: Trace, read: Called, stepped: Stepped) -> bool:
    """Whether nothing but tests of the rank, and what the step itself is asked for, keeps a read from happening."""
    asked = stepped.guards.units
    sides = _sides(trace)[read.at.node]
    return all(
        rank_dependent(guard.test) or ~guard in sides
        for clause in read.guards.since(stepped.guards)
        if not any(asked.get(guard.test) == guard for guard in clause)
        for guard in clause
    )


def _waits_anyway(trace: Trace, stepped: Stepped) -> bool:
    """Whether the host waits for the GPU in each step as it is: a script that measures its steps."""
    return any(
        each_step(trace, called) is not None and _each_time_on_gpus(called, stepped)
        for called in trace.calls(*_WAITS)
    )


def _each_time_on_gpus(called: Called, stepped: Stepped) -> bool:
    """Whether a call is made in every step, if only where there is a GPU."""
    added = called.guards.since(stepped.guards)
    return all(rank_dependent(g.test) or _asks_for_gpu(g.test) for clause in added for g in clause)


def _asks_for_gpu(test: Value) -> bool:
    return any(word in test.words() for word in ("is_available", "cuda", "cpu"))


def _decides(trace: Trace, called: Called) -> bool:
    """Whether the script asks something about the number."""
    return _asserted(called) or any(
        called.result in computed_from(guard.test)
        for event in trace.events
        if event.order > called.order
        for clause in event.guards.clauses
        for guard in clause
    )


def _asserted(called: Called) -> bool:
    """Whether a number is asserted to be as it should: where it is read, or by the name that it gets."""
    layout = Layout.of(called.at.source)
    names: set[str] = set()
    for around in layout.ancestors(called.at.node):
        if isinstance(around, cst.Assert):
            return True
        if isinstance(around, cst.Assign):
            names |= {t.target.value for t in around.targets if isinstance(t.target, cst.Name)}
        if isinstance(around, cst.FunctionDef | cst.Module):
            return any(
                isinstance(one, cst.Name) and one.value in names
                for statement in walk(around, into=False)
                if names and isinstance(statement, cst.Assert)
                for one in walk(statement.test)
            )
    return False
