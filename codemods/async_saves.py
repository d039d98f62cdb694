"""Checkpoints are written while training goes on (`--async-save`).

## What it does

Turns `dcp.save(…)` into `dcp.async_save(…)` on a group of its own with a CPU backend. One save is on its way at a time: the
next one, and `destroy_process_group()`, wait for it.

## Why

`dcp.save` holds up training until everything is on disk. `async_save` copies the shards and returns. On the group that
trains, its collectives would meet those of training; and a save that is not over when the group goes writes a
checkpoint that loads as something else, without an error.

## Example

```diff
 # options: --async-save
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

+pending_save = None
+save_group = None
+
+
+def save_in_background(state_dict, **options):
+    \"\"\"Write a checkpoint while training goes on, when the one before is written.\"\"\"
+    global pending_save, save_group
+    finish_saving()
+    if save_group is None:
+        # a group of its own: on the one that trains, two threads would meet
+        save_group = dist.new_group(backend="gloo")
+    pending_save = dcp.async_save(state_dict, process_group=save_group, **options)
+
+
+def finish_saving():
+    \"\"\"Wait until the last checkpoint is written.\"\"\"
+    global pending_save
+    if pending_save is not None:
+        pending_save.result()
+        pending_save = None
+
+
 dist.init_process_group("nccl")
 model = FSDP(nn.Linear(8, 8))
-dcp.save({"model": model.state_dict()}, checkpoint_id="last")
+save_in_background({"model": model.state_dict()}, checkpoint_id="last")
+finish_saving()
 dist.destroy_process_group()
```

## What it leaves

Saves whose result is used or that name a group; all of them when a file that ends the process group does not
import the one that saves. Without `destroy_process_group()` Python itself waits for the save at its end.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`async_save`)
- https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html
- `torch/distributed/checkpoint/state_dict_saver.py` (`async_save`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Edit,
    GroupEnded,
    InsertBefore,
    Layout,
    Names,
    Program,
    Replace,
    Saved,
    Source,
    Step,
    Unimport,
    codemod,
    dotted,
    imported_module,
    name_for,
)

DCP = "torch.distributed.checkpoint"
SAVE, FINISH = "save_in_background", "finish_saving"

_HELPERS = '''\
pending_save = None
save_group = None


def {save}(state_dict, **options):
    """Write a checkpoint while training goes on, when the one before is written."""
    global pending_save, save_group
    {finish}()
    if save_group is None:
        # a group of its own: on the one that trains, two threads would meet
        save_group = {dist}.new_group(backend="gloo")
    pending_save = {dcp}.async_save(state_dict, process_group=save_group, **options)


def {finish}():
    """Wait until the last checkpoint is written."""
    global pending_save
    if pending_save is not None:
        pending_save.result()
        pending_save = None


'''


@codemod(after=("checkpoint-folders", "checkpoint-functions"))
def rewrite(program: Program) -> Iterator[Step]:
    """All saves of the program, when each end of the process group can wait for them."""
    if not program.options.async_save or "fsdp1" not in program.wrappers:
        return
    calls = list(_saves(program))
    sources = {source for source, _ in calls}
    if len(sources) != 1:
        return  # what is written at a time must be known in one place
    home = sources.pop()
    waits = list(_waits(program, home))
    if any(not edits for edits in waits):
        return
    edits = [edit for one in waits for edit in one]
    for source, call in calls:
        edits.append(Replace(source, call.func, SAVE))
    yield Step((*_helpers(home), *edits, Unimport(home, f"{DCP}.save")), ())


def _saves(program: Program) -> Iterator[tuple[Source, cst.Call]]:
    """The saves of shards that nothing is asked about."""
    for events in program.sites(Saved):
        saved = events[0][1]
        source, call = saved.at.source, saved.at.node
        if saved.via != f"{DCP}.save" or not isinstance(call, cst.Call):
            continue
        names = {arg.keyword.value for arg in call.args if arg.keyword is not None}
        alone = isinstance(Layout.of(source).parents.get(call), cst.Expr)
        if alone and not names & {"process_group", "no_dist"}:
            yield source, call


def _helpers(source: Source) -> Iterator[Edit]:
    """The two functions above the first definition of the file that saves."""
    first = next(line for line in source.tree.body if not _is_head(line))
    dist = name_for(source, first, "torch.distributed", alias="dist", module=True)
    dcp = name_for(source, first, DCP, alias="dcp", module=True)
    text = _HELPERS.format(save=SAVE, finish=FINISH, dist=dist.text, dcp=dcp.text)
    yield InsertBefore(source, first, text)
    yield from (*dist.edits, *dcp.edits)


def _is_head(line: cst.CSTNode) -> bool:
    """Whether a statement is a docstring or an import."""
    if not isinstance(line, cst.SimpleStatementLine):
        return isinstance(line, cst.Try) and all(map(_is_head, line.body.body))
    return all(
        isinstance(small, cst.Import | cst.ImportFrom)
        or (isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString))
        for small in line.body
    )


def _waits(program: Program, home: Source) -> Iterator[list[Edit]]:
    """For each end of the process group the wait before it; nothing where it cannot be named."""
    for events in program.sites(GroupEnded):
        source, call = events[0][1].at.source, events[0][1].at.node
        if source is home:
            yield [InsertBefore(source, call, f"{FINISH}()")]
            continue
        module = _imported_as(program, source, home)
        if not module:
            yield []
            continue
        finish = name_for(source, call, f"{module}.{FINISH}")
        yield [InsertBefore(source, call, f"{finish.text}()"), *finish.edits]


def _imported_as(program: Program, source: Source, home: Source) -> str:
    """The module by which a file imports names from the one that saves."""
    for one in Names.of(source).imports:
        if isinstance(one.statement, cst.ImportFrom):
            module, level = dotted(one.statement.module), len(one.statement.relative)
            if program.project.module_named(module, level, source) is home:
                return imported_module(one.statement)
    return ""
