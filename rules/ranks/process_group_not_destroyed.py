"""The process group is never destroyed.

## What it does

Finds scripts that shard a model and start the process group, by `init_process_group` or with their first device mesh, and
in none of whose files `destroy_process_group` is called or handed on.

## Why is this bad

At the end of the program NCCL's communicators are torn down in an order of chance while other ranks may still be
talking: PyTorch warns that "destroy_process_group() was not called before program exit, which can leak resources",
and now and then a rank hangs or aborts at its exit after all the work was done.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("nccl")
 model = nn.Linear(8, 8)
 fully_shard(model)
+dist.destroy_process_group()
```

## Forms

- Found: a main function.
- Found: a trainer with a backend for each device.
- Found: a group that `init_device_mesh` starts.
- Found: a function that would destroy the group, and that nothing calls.
- Not found: a method that would destroy the group, and that nothing calls.

## Fix safety

Safe: the call comes below the last statement of the main program, where all that could need the group is done. A
program that starts its processes itself, or ends by `sys.exit`, is left for you.

## Known limits

Only main programs whose calls can all be followed. Scripts whose groups are gloo's alone get no warning and are
left alone, and so are those that one of the frameworks starts. A CPU shows nothing of it; on one H100 (torch 2.11)
three of the bad examples end without the warning.

## References

- https://docs.pytorch.org/docs/stable/distributed.html (`destroy_process_group`, shutdown)
- `torch/distributed/distributed_c10d.py`
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import libcst as cst

from fsdp2lint.api import (
    Escaped,
    Event,
    Finding,
    Fix,
    GroupEnded,
    GroupStarted,
    InsertAfter,
    Sharded,
    Trace,
    name_for,
    rule,
)

from .._common.loops import only_cpu
from .._common.meshes import INIT

_DESTROY = "destroy_process_group"
_USED = re.compile(rf"^[^#\n]*(\.{_DESTROY}\b|\b{_DESTROY}\s*[()])", re.MULTILINE)
"""A call of it, also in code that the trace does not reach, or itself as an argument; no comment, no import."""
_OUTERMOST = re.compile(r"^[^\s#)\]}][^\n]*", re.MULTILINE)
"""The first lines of the statements of a module, and those of multi-line texts."""
_DEFINED = re.compile(r"(?:async def|def|class) (\w+)")
_IMPORT = re.compile(r"^[ \t]*(?:from[^\n(]+)?import (?:\([^)]*\)|[^\n]*)", re.MULTILINE)
_SPAWNING = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes", ".start")
_FRAMEWORKS = ("accelerate.", "composer.", "deepspeed.", "lightning.", "pytorch_lightning.", "ray.")


@rule(code="FSDP408", group="pedantic")
def check(trace: Trace) -> Iterator[Finding]:
    """Groups that are left to the exit."""
    if trace.entry != "__main__" or not trace.of(Sharded) or not trace.never(GroupEnded):
        return
    if only_cpu(trace) or _may_be_used(trace):
        return
    if any(e.to.startswith(_FRAMEWORKS) for e in _escaped(trace)):
        return
    begun: list[Event] = [*trace.of(GroupStarted), *trace.calls(INIT)]
    for started in begun[:1]:  # a mesh starts the group where nothing has done so
        if _is_of_a_framework(started):
            continue
        yield Finding(
            at=started,
            message="this process group is never destroyed: NCCL warns of it at the end of the program, and a "
            "rank may hang there",
            fix=_at_the_end(trace),
        )


def _may_be_used(trace: Trace) -> bool:
    """Whether any code destroys a group, but in a function or class that nothing mentions."""
    texts = [one.said for one in trace.sources]
    for text in texts:
        for used in _USED.finditer(text):
            around = [one.group() for one in _OUTERMOST.finditer(text, 0, used.end())]
            defined = _DEFINED.match(around[-1]) if around else None
            if defined is None or _mentions(defined.group(1), texts):
                return True
    return False


def _mentions(name: str, texts: list[str]) -> bool:
    """Whether any text has the name of a function beside where it is defined and imported."""
    word = re.compile(rf"(?<!def )(?<!class )\b{name}\b")
    return any(word.search(_IMPORT.sub("", text)) for text in texts)


def _escaped(trace: Trace) -> list[Escaped]:
    return trace.of(Escaped)


def _is_of_a_framework(started: Event) -> bool:
    """Whether the code of a framework starts the group, which is checked together with a program that uses it."""
    folders = Path(started.at.source.path).parts[:-1]
    return any(name.rstrip(".") in folders for name in _FRAMEWORKS)


def _at_the_end(trace: Trace) -> Fix | None:
    """The call below the last statement of the main program."""
    source = trace.source
    body = source.tree.body
    if not body or any(trace.calls(*_SPAWNING)):
        return None
    last: cst.CSTNode = body[-1]
    if (
        isinstance(last, cst.If)
        and isinstance(last.body, cst.IndentedBlock)
        and last.orelse is None
    ):
        if "__name__" not in source.code(last.test):
            return None
        last = last.body.body[-1]
    if not isinstance(last, cst.SimpleStatementLine) or "exit(" in source.code(last):
        return None
    name = name_for(source, last, f"torch.distributed.{_DESTROY}")
    edit = InsertAfter(source, last, f"{name.text}()")
    return Fix("destroy the group at the end", (*name.edits, edit), "safe")
