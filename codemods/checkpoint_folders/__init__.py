"""Checkpoints become folders of `torch.distributed.checkpoint`; files that FSDP1 wrote are loaded too.

## What it does

Turns `torch.save` of gathered states by the first rank into `dcp.save` of the shards by all ranks, into a folder of
the same name without the suffix. Where the program loads the file again, it loads the folder if there is one, else the
file. Off with `--checkpoints full`.

## Why

Nothing is gathered: each rank writes its shards, and any number of ranks can read them.

## Example

```diff
 import os

 import torch
 import torch.distributed as dist
+import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.checkpoint.state_dict import (
     StateDictOptions,
     get_model_state_dict,
     set_model_state_dict,
 )
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


 def save(model, epoch):
-    weights = get_model_state_dict(
-        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
-    )
-    if dist.get_rank() == 0:
-        torch.save({"model": weights, "epoch": epoch}, "last.pt")
+    weights = get_model_state_dict(model)
+    dcp.save({"model": weights, "epoch": epoch}, checkpoint_id="last")


 def load(model):
-    checkpoint = torch.load("last.pt")
+    folder = "last"
+    # an old checkpoint is one file, as the program wrote it with FSDP1
+    old = not os.path.isfile(os.path.join(folder, ".metadata"))
+    if old:
+        checkpoint = torch.load("last.pt")
+    else:
+        checkpoint = {
+            "model": get_model_state_dict(model),
+            "epoch": None,
+        }
+        dcp.load(checkpoint, checkpoint_id=folder)
     set_model_state_dict(
-        model, checkpoint["model"], options=StateDictOptions(full_state_dict=True)
+        model, checkpoint["model"], options=StateDictOptions(full_state_dict=old)
     )
     return checkpoint["epoch"]


 model = FSDP(nn.Linear(8, 8))
 save(model, load(model) + 1)
```

## What it leaves

A file that holds no optimizer state and that the program does not load into the sharded model is meant for others:
it stays a file. So do all files of a program that does more with them than saving and loading: that removes or searches
them, loads them before the model is wrapped, or saves other things by the same function. The ledger says the reason at
each of them, and where it shows.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
- https://docs.pytorch.org/tutorials/recipes/distributed_checkpoint_recipe.html
- `torch/distributed/checkpoint/filesystem.py` (`.metadata` is written last)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    FLATTENERS,
    Called,
    Edit,
    Kept,
    Loaded,
    Program,
    Restored,
    Source,
    StateDict,
    Step,
    Value,
    codemod,
    options,
)

from .._common.states_text import function_of
from .loads import SETTERS, Load, loads, nested, widened
from .paths import asked_for, is_searched, used_as_files
from .saves import Save, is_taken_apart, saved_by_all, saves

_FOR_OTHERS = (
    "stays one file: it holds no optimizer state, and no code here loads it into the sharded model"
)
_OWN = "stays one file: {why}"
_AS_ALL = "stays one file, as all checkpoints of the program do: {why}"


@dataclass(frozen=True)
class Obstacle:
    """Why the checkpoints of the program stay files, and where that shows."""

    source: Source
    node: cst.CSTNode
    why: str


@codemod(after=("state-dict-types", "compiled-names"))
def rewrite(program: Program) -> Iterator[Step | Kept]:
    """All checkpoints of the program, or none."""
    if program.options.checkpoints != "dcp" or "fsdp1" not in program.wrappers:
        return
    every, read = list(saves(program)), loads(program)
    written = [save for save in every if _is_checkpoint(save, read)]
    for save in every:
        if save not in written:
            yield Kept(save.source, save.call, _FOR_OTHERS)
    read = [load for load in read if any(_match(save, load) for save in written)]
    if not written:
        return
    if obstacles := list(_obstacles(program, written, read)):
        for one in _both(written, read):
            yield _stays(one, obstacles)
        return
    edits: list[Edit] = []
    edits += saved_by_all(written)
    for number, load in enumerate(read):
        edits += widened(load, sum(_together(load, other) for other in read[:number]))
    edits += asked_for(program, _paths(written, read))
    yield Step(tuple(edits), ())


def _both(written: list[Save], read: list[Load]) -> Iterator[Save | Load]:
    yield from written
    yield from read


def _stays(one: Save | Load, obstacles: list[Obstacle]) -> Kept:
    """What the ledger says of a file that stays one."""
    own = next((o for o in obstacles if o.node is one.call), None)
    if own is not None:
        return Kept(one.source, one.call, _OWN.format(why=own.why))
    first = obstacles[0]
    why = _AS_ALL.format(why=first.why)
    return Kept(one.source, one.call, why, (first.source, first.node))


def _together(load: Load, other: Load) -> bool:
    """Whether two loads are in one function."""
    same = load.source is other.source
    return same and function_of(load.source, load.call) is function_of(other.source, other.call)


def _is_checkpoint(save: Save, read: list[Load]) -> bool:
    """Whether the program itself goes on from what is saved."""
    return "optimizer" in save.kinds or any(_match(save, load) for load in read)


def _match(save: Save, load: Load) -> bool:
    """Whether a load reads what a save writes: by the keys, or the whole file by what it goes into.

    What is put together elsewhere may have any keys.
    """
    if save.unclear:
        return not save.kinds.isdisjoint(load.kinds.values())
    if "" in load.setters:
        return not save.entries and {load.kinds[""]} == {state.kind for state in save.states}
    return set(load.setters) <= set(save.entries)


def _obstacles(program: Program, written: list[Save], read: list[Load]) -> Iterator[Obstacle]:
    """All that keeps the checkpoints of the program from becoming folders."""
    for one in _both(written, read):
        if one.problem:
            yield Obstacle(one.source, one.call, one.problem)
    yield from _loaded_before_wrapping(program, written)
    yield from _loaded_in_another_way(program, written, read)
    for save in (one for one in written if not one.unclear):
        for load in read:
            if not _match(save, load):
                continue
            if key := _without_template(save, load):
                why = f"the contents of the entry `{key}` that it reads are unknown"
                yield Obstacle(load.source, load.call, why)
            for key in load.read.keys() - load.setters.keys():
                if not nested(load, key) and is_taken_apart(program, save, key):
                    why = f"a folder takes the entry `{key}` apart, and gives it back only into one that holds the same"
                    yield Obstacle(load.source, load.call, why)
    for one in _both(written, read):
        if any(is_searched(path) for path in one.paths):
            yield Obstacle(one.source, one.call, "its path is found by searching for files")
    for called in used_as_files(program, _paths(written, read)):
        why = f"`{called.name.lstrip('.')}` takes its path for that of a file"
        yield Obstacle(called.at.source, called.at.node, why)


def _paths(written: list[Save], read: list[Load]) -> set[Value]:
    """The values that the paths of all these can be."""
    return {path for save in written for path in save.paths} | {
        path for load in read for path in load.paths
    }


def _loaded_before_wrapping(program: Program, written: list[Save]) -> Iterator[Obstacle]:
    """Where a plain model is given what a file holds, from which it cannot take shards."""
    saved = {path for save in written for path in save.paths}
    whole = any(_is_a_model(save) for save in written)
    why = "a model that is not sharded yet is given what a file holds"
    for trace, restored in program.of(Restored):
        if restored.via == ".load_state_dict" and restored.kind == "model":
            for loaded in trace.of(Loaded):
                if any(one is loaded.result for one in options(restored.state)):
                    if loaded.path in saved or whole:
                        yield Obstacle(restored.at.source, restored.at.node, why)


def _is_a_model(save: Save) -> bool:
    """Whether a file holds nothing but the weights."""
    return not save.entries and any(state.kind == "model" for state in save.states)


def _loaded_in_another_way(
    program: Program, written: list[Save], read: list[Load]
) -> Iterator[Obstacle]:
    """Where a sharded model or an optimizer gets a state of a kind that is saved from somewhere else."""
    for _, called in program.of(Called):
        if called.name in FLATTENERS:
            why = "a state for flat parameters is left for manual migration"
            yield Obstacle(called.at.source, called.at.node, why)
    kinds = {state.kind for save in written for state in save.states}
    known = {setter for load in read for setter in load.setters.values()}
    for _, restored in program.of(Restored):
        if restored.kind not in kinds or restored.at.node in known:
            continue
        if restored.via in SETTERS or restored.kind == "optimizer":
            if not all(isinstance(one, StateDict) for one in options(restored.state)):
                what = "an optimizer" if restored.kind == "optimizer" else "a sharded model"
                why = f"{what} gets a state that does not come straight from a file that is saved"
                yield Obstacle(restored.at.source, restored.at.node, why)


def _without_template(save: Save, load: Load) -> str:
    """The entry that is read and cannot be filled: states of others are known by who gets them."""
    for key in load.read:
        node = save.entries.get(key)
        if node is None:
            return key
        takes = save.source.code(node).endswith(".state_dict()")
        if key not in load.setters and takes != bool(nested(load, key)):
            return key
    return ""
