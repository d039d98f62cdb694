"""The folder of a checkpoint is given to DCP as its second argument, where a writer or reader belongs.

## What it does

Finds `dcp.save(state, path)`, `dcp.load(state, path)` and `dcp.async_save(state, path)`, and a path that is given as
`storage_writer` or `storage_reader`.

## Why is this bad

Everything behind the state dict is keyword-only. For old scripts `save` and `load` take a second argument
as the storage writer or reader: the path is asked for `storage_meta` and the save fails on all ranks.
`async_save` raises a `TypeError`. The path is `checkpoint_id`.

## Example

```diff
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-dcp.save({"model": model.state_dict()}, "step_1")
+dcp.save({"model": model.state_dict()}, checkpoint_id="step_1")
```

## Forms

- Found: a class that keeps the folder.
- Found: a path from the arguments of the program, by the name of the writer.
- Found: `functools.partial`.
- Not found: a path of a settings file, whose kind is not known.

## Fix safety

Safe: the call could not succeed before. The argument gets the name that its value asks for.

## Known limits

A second argument of `save` or `load` that the script does not show to be a path is left alone: a writer or
reader there works with a warning.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`save`, `load`, `async_save`)
- `torch/distributed/checkpoint/utils.py` (`_api_bc_check`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Arguments, Called, Finding, Fix, Trace, Value, options, rule

from .._common.fixes import call_of
from .._common.shared import DCP, class_name
from ._common.checkpoints import is_path


@rule(code="FSDP321", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Second arguments of calls that take only one, and paths by the name of something else."""
    yield from _in_its_place(trace)
    for called in trace.calls(f"{DCP}save", f"{DCP}load", f"{DCP}async_save"):
        if len(called.arguments) != 2:
            continue
        name, second = called.name.rpartition(".")[2], called.arguments[1]
        path = all(map(is_path, options(second)))
        if not path and name != "async_save":
            continue
        role = "reader" if name == "load" else "writer"
        does = "takes no second argument"
        if name != "async_save":
            does = f"takes a second argument for its storage {role}"
        what = "`checkpoint_id`" if path else "`checkpoint_id` or `storage_writer`"
        yield Finding(
            at=called,
            message=f"`{name}` {does}: name it {what}",
            fix=_named(called, second, path),
        )


def _in_its_place(trace: Trace) -> Iterator[Finding]:
    """Paths that are named as the writer or the reader."""
    for called in trace.calls(f"{DCP}save", f"{DCP}load", f"{DCP}async_save"):
        for keyword in ("storage_writer", "storage_reader"):
            given = called.keywords.get(keyword)
            if given is None or not all(map(is_path, options(given))):
                continue
            yield Finding(
                at=called,
                message=f"`{keyword}` takes a {keyword.rpartition('_')[2]}, not a path: name it `checkpoint_id`",
                fix=_renamed(called, keyword),
            )


def _renamed(called: Called, keyword: str) -> Fix | None:
    """The path by the name that belongs to it."""
    call = call_of(called.at)
    arguments = None if call is None else Arguments(called.at.source, call)
    if arguments is None or not arguments.has(keyword) or arguments.has("checkpoint_id"):
        return None
    return Fix("give it as `checkpoint_id`", (arguments.rename(keyword, "checkpoint_id"),), "safe")


def _named(called: Called, second: Value, path: bool) -> Fix | None:
    """The argument by the name that belongs to it."""
    call = call_of(called.at)
    keyword = "checkpoint_id" if path else ""
    if class_name(second).endswith("Writer"):
        keyword = "storage_writer"
    if call is None or not keyword or any(a.star for a in call.args[:2]):
        return None
    edit = Arguments(called.at.source, call).name(1, keyword)
    return Fix(f"give it as `{keyword}`", (edit,), "safe")
