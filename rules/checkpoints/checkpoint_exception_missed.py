"""`except Exception` does not catch what a failed `dcp.load` raises.

## What it does

Finds `dcp.load`, `dcp.save` and the `result()` of a `dcp.async_save` in a `try` that goes on after
`except Exception` (or `OSError`, `FileNotFoundError`, `RuntimeError`), where no handler names `CheckpointException`.

## Why is this bad

When a checkpoint is missing, damaged or of another model, all ranks raise `CheckpointException`, whatever
went wrong below. It is derived from `BaseException`, so `except Exception` lets it pass: the run that was
meant to start fresh ends.

## Example

```diff
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 try:
     dcp.load({"model": model.state_dict()}, checkpoint_id="latest")
-except Exception:
+except (Exception, dcp.CheckpointException):
     print("starting fresh")
```

## Forms

- Found: a trainer whose loading is a method of its own.
- Found: a decorator that tries again.
- Found: the result of a save in the background.
- Not found: `contextlib.suppress`.
- Not found: a load that is two calls away from the handler.

## Fix safety

Safe: the handler gets what it was written for. Where a missing checkpoint is expected, asking whether its
`.metadata` exists is clearer than catching.

## Known limits

A handler that raises is left alone, and so is a `try` that is more than one call away from the load.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
- `torch/distributed/checkpoint/api.py` (`class CheckpointException(BaseException)`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Awaited,
    Event,
    Finding,
    Fix,
    Layout,
    Loaded,
    Rewrite,
    Saved,
    Site,
    Source,
    Trace,
    name_for,
    rule,
    walk,
)

from .._common.shared import DCP

_CATCHING = ("BaseException", "CheckpointException")
_NARROW = ("OSError", "IOError", "FileNotFoundError", "RuntimeError")


@rule(code="FSDP320", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Handlers around loads and saves that their exception passes by."""
    saves = {e.future for e in trace.of(Saved) if e.via == f"{DCP}async_save"}
    events: list[Event] = [e for e in trace.of(Loaded) if e.via == f"{DCP}load"]
    events += [e for e in trace.of(Saved) if e.via == f"{DCP}save"]
    events += [e for e in trace.of(Awaited) if e.future in saves]
    for event in events:
        found = _passed_by(event)
        if found is None:
            continue
        source, caught = found
        what = "load" if isinstance(event, Loaded) else "save"
        how = "async_save" if isinstance(event, Awaited) else what
        yield Finding(
            at=Site(source, caught, Layout.of(source).statement(caught)),
            message=f"a `dcp.{how}` that fails raises `CheckpointException`, which is derived from "
            f"`BaseException`: `except {source.code(caught)}` does not catch it",
            because=((event, f"the {what}"),),
            fix=_catching(source, caught),
        )


def _passed_by(event: Event) -> tuple[Source, cst.BaseExpression] | None:
    """The types that a handler catches in vain, in the function of a load or in its caller."""
    for site in ((*event.calls, event.at)[::-1])[:2]:
        for around in _tries(site):
            types = [h.type for h in around.handlers]
            names = [_names(t) for t in types if t is not None]
            if None in types or any(n in _CATCHING for each in names for n in each):
                return None
            for handler in around.handlers:
                if handler.type is not None and _meant(site, around, handler):
                    return site.source, handler.type
    return None


def _tries(site: Site) -> Iterator[cst.Try]:
    """The `try` statements in whose body a site is, innermost first."""
    below = site.node
    for around in Layout.of(site.source).ancestors(site.node):
        if isinstance(around, cst.FunctionDef | cst.Lambda):
            return
        if isinstance(around, cst.Try) and around.body is below:
            yield around
        below = around


def _names(caught: cst.BaseExpression) -> list[str]:
    """The last names of the types in a handler."""
    if isinstance(caught, cst.Tuple):
        return [name for element in caught.elements for name in _names(element.value)]
    if isinstance(caught, cst.Attribute):
        return [caught.attr.value]
    return [caught.value] if isinstance(caught, cst.Name) else []


def _meant(site: Site, around: cst.Try, handler: cst.ExceptHandler) -> bool:
    """Whether a handler is there for what is at the site, and the script goes on after it."""
    if handler.type is None or any(isinstance(node, cst.Raise) for node in walk(handler.body)):
        return False
    names = _names(handler.type)
    if "Exception" in names:
        return True
    first = around.body.body[0]
    return any(n in _NARROW for n in names) and any(node is site.node for node in walk(first))


def _catching(source: Source, caught: cst.BaseExpression) -> Fix:
    """The handler for `CheckpointException` too."""
    name = name_for(source, caught, "torch.distributed.checkpoint.CheckpointException")

    if isinstance(caught, cst.Tuple):
        last = caught.elements[-1].value
        edit = Rewrite(source, last, lambda new: f"{new.text}, {name.text}")
    else:
        edit = Rewrite(source, caught, lambda new: f"({new.text}, {name.text})")
    return Fix("catch `CheckpointException` too", (edit, *name.edits), "safe")
