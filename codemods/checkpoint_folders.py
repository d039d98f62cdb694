"""Checkpoints become folders of `torch.distributed.checkpoint`; files that FSDP1 wrote are loaded too.

## What it does

Turns `torch.save` of gathered states by the first rank into `dcp.save` of the shards by all ranks, into a folder of
the same name without the suffix. Where the program loads the file again, it loads the folder if there is one, else the
file. Off with `--checkpoints full`.

## Why

Nothing is gathered: each rank writes its shards, and any number of ranks can read them.

## Before

```python
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model, epoch):
    weights = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if dist.get_rank() == 0:
        torch.save({"model": weights, "epoch": epoch}, "last.pt")


def load(model):
    checkpoint = torch.load("last.pt")
    set_model_state_dict(
        model, checkpoint["model"], options=StateDictOptions(full_state_dict=True)
    )
    return checkpoint["epoch"]


model = FSDP(nn.Linear(8, 8))
save(model, load(model) + 1)
```

## After

```python
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model, epoch):
    weights = get_model_state_dict(model)
    dcp.save({"model": weights, "epoch": epoch}, checkpoint_id="last")


def load(model):
    folder = "last"
    # an old checkpoint is one file, as the program wrote it with FSDP1
    old = not os.path.isfile(os.path.join(folder, ".metadata"))
    if old:
        checkpoint = torch.load("last.pt")
    else:
        checkpoint = {
            "model": get_model_state_dict(model),
            "epoch": None,
        }
        dcp.load(checkpoint, checkpoint_id=folder)
    set_model_state_dict(
        model, checkpoint["model"], options=StateDictOptions(full_state_dict=old)
    )
    return checkpoint["epoch"]


model = FSDP(nn.Linear(8, 8))
save(model, load(model) + 1)
```

## What it leaves

A file that holds no optimizer state and that the program does not load into the sharded model is meant for others:
it stays a file. So do all files of a program that does more with them than saving and loading: that removes or searches
them, loads them before the model is wrapped, or saves other things by the same function.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
- https://docs.pytorch.org/tutorials/recipes/distributed_checkpoint_recipe.html
- `torch/distributed/checkpoint/filesystem.py` (`.metadata` is written last)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    Edit,
    Loaded,
    Program,
    Restored,
    StateDict,
    Step,
    Value,
    codemod,
    options,
)

from ._folders_loads import SETTERS, Load, loads, nested, widened
from ._folders_paths import asked_for, is_a_file_elsewhere
from ._folders_saves import Save, saved_by_all, saves
from ._states_flattening import FLATTENERS
from ._states_text import function_of


@codemod(after=("state-dict-types",))
def rewrite(program: Program) -> Iterator[Step]:
    """All checkpoints of the program, or none."""
    if program.options.checkpoints != "dcp" or "fsdp1" not in program.wrappers:
        return
    read = loads(program)
    written = [save for save in saves(program) if _is_checkpoint(save, read)]
    read = [load for load in read if any(_match(save, load) for save in written)]
    if not written or not _all_understood(program, written, read):
        return
    paths = _paths(written, read)
    edits: list[Edit] = []
    edits += saved_by_all(written)
    for number, load in enumerate(read):
        edits += widened(load, sum(_together(load, other) for other in read[:number]))
    edits += asked_for(program, paths)
    yield Step(tuple(edits), ())


def _together(load: Load, other: Load) -> bool:
    """Whether two loads stand in one function."""
    same = load.source is other.source
    return same and function_of(load.source, load.call) is function_of(other.source, other.call)


def _is_checkpoint(save: Save, read: list[Load]) -> bool:
    """Whether the program itself goes on from what is saved."""
    if any(state.kind == "optimizer" for state in save.states):
        return True
    return any(_match(save, load) for load in read)


def _match(save: Save, load: Load) -> bool:
    """Whether a load reads what a save writes: by the keys, or the whole file by what it goes into."""
    if "" in load.setters:
        return not save.entries and {load.kinds[""]} == {state.kind for state in save.states}
    return set(load.setters) <= set(save.entries)


def _all_understood(program: Program, written: list[Save], read: list[Load]) -> bool:
    problems = [save.problem for save in written] + [load.problem for load in read]
    if any(problems) or _loaded_before_wrapping(program, written):
        return False
    if _loaded_in_another_way(program, written, read):
        return False
    if any(
        not _has_template(save, load) for save in written for load in read if _match(save, load)
    ):
        return False
    return not is_a_file_elsewhere(program, _paths(written, read))


def _paths(written: list[Save], read: list[Load]) -> set[Value]:
    """The values that the paths of all these can be."""
    return {path for save in written for path in save.paths} | {
        path for load in read for path in load.paths
    }


def _loaded_before_wrapping(program: Program, written: list[Save]) -> bool:
    """Whether a plain model is given what a file holds, from which it cannot take shards."""
    saved = {path for save in written for path in save.paths}
    for trace, restored in program.of(Restored):
        if restored.via != ".load_state_dict" or restored.kind != "model":
            continue
        for loaded in trace.of(Loaded):
            if any(one is loaded.result for one in options(restored.state)):
                if loaded.path in saved or any(_is_a_model(save) for save in written):
                    return True
    return False


def _is_a_model(save: Save) -> bool:
    """Whether a file holds nothing but the weights."""
    return not save.entries and any(state.kind == "model" for state in save.states)


def _loaded_in_another_way(program: Program, written: list[Save], read: list[Load]) -> bool:
    """Whether a sharded model or an optimizer gets a state of a kind that is saved from somewhere else."""
    if any(called.name in FLATTENERS for _, called in program.of(Called)):
        return True
    kinds = {state.kind for save in written for state in save.states}
    known = {setter for load in read for setter in load.setters.values()}
    return any(
        restored.kind in kinds and restored.at.node not in known
        for _, restored in program.of(Restored)
        if restored.via in SETTERS or restored.kind == "optimizer"
        if not all(isinstance(one, StateDict) for one in options(restored.state))
    )


def _has_template(save: Save, load: Load) -> bool:
    """Whether every entry that is read can be filled: states of others are known by who gets them."""
    for key in load.read:
        node = save.entries.get(key)
        if node is None:
            return False
        takes = save.source.code(node).endswith(".state_dict()")
        if key not in load.setters and takes != bool(nested(load, key)):
            return False
    return True
