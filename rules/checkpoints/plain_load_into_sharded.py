"""A plain state dict is loaded into a sharded model.

## What it does

Finds `load_state_dict` of what `torch.load` or a full gather returned, or of the `state_dict()` of another model that is
not sharded, on a model that is sharded already.

## Why is this bad

The model's parameters are `DTensor`s, the file's are plain tensors: "aten.copy_: got mixed torch.Tensor and
DTensor". `set_model_state_dict` with `full_state_dict=True` distributes a full state dict.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
+from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-model.load_state_dict(torch.load("model.pt"))
+options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
+set_model_state_dict(model, torch.load("model.pt", mmap=True), options=options)
```

## Forms

- Found: an entry of a checkpoint, in a method.
- Found: the state dict of a model that is not sharded.
- Found: a model of which a part alone is sharded.
- Not found: a file that a function outside of the project reads.
- Not found: a file of each rank's own, wherever a helper has put it.

## Fix safety

Unsafe: the call becomes `set_model_state_dict` with a broadcast from rank 0, which every rank must reach.
Rank 0's file is the one that counts.

## Known limits

Silent when the path differs from rank to rank, or when the script itself saves state dicts of shards: such
files hold `DTensor`s. The other model must be one whose construction the analysis follows.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`set_model_state_dict`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Arguments,
    Finding,
    Fix,
    Literal,
    Loaded,
    Part,
    Replace,
    Restored,
    Saved,
    StateDict,
    Trace,
    Value,
    name_for,
    options,
    rank_dependent,
    rule,
)

from .._common.fixes import call_of, first_argument, path_text, receiver_of, stands_alone
from .._common.parts import holding_shards
from .._common.shared import (
    DCP,
    changed,
    differs_by_rank,
    line_of,
    state_shard,
    wrapped_before,
)
from .._common.tensors import never_sharded
from ._common.fixes_loading import apart, mapped

_LOADS = ("torch.load", "safetensors.torch.load", "safetensors.torch.load_file")


@rule(code="FSDP303", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Plain tensors for sharded parameters."""
    for restored in trace.of(Restored):
        if restored.kind != "model" or not restored.via.endswith("load_state_dict"):
            continue
        found = holding_shards(trace, restored, restored.into)
        if found is None or wrapped_before(trace, restored, found[1], "ddp", "fsdp1"):
            continue
        loaded, origin = _plain(trace, restored)
        if not origin or (loaded is not None and _saves_shards(trace, loaded)):
            continue
        shard, module = found
        yield Finding(
            at=restored,
            message=f"`{module.words()}.load_state_dict` gets plain tensors ({origin}) for the DTensors of "
            "a sharded model and raises; use `set_model_state_dict` with `full_state_dict=True`",
            because=(shard.reason,),
            fix=_distribute(trace, restored, loaded),
        )


def _plain(trace: Trace, restored: Restored) -> tuple[Loaded | None, str]:
    """Where the plain tensors come from; empty when they may be something else."""
    for value in options(restored.state):
        if isinstance(value, StateDict):
            if value.full:
                return None, "a full state dict"
            if _of_plain_model(trace, restored, value):
                return None, f"the state dict of the unsharded `{value.of.words()}`"
            continue
        root: Value = value
        while isinstance(root, Part) and not _results(trace, root):
            root = root.owner
        for loaded in _results(trace, root):
            if not any(map(differs_by_rank, options(loaded.path) if loaded.path else ())):
                return loaded, f"`{loaded.via}` on {line_of(loaded, restored)}"
    return None, ""


def _of_plain_model(trace: Trace, restored: Restored, state: StateDict) -> bool:
    """Whether a state dict was taken by `state_dict()` of a model that was not sharded then."""
    return (
        state.kind == "model"
        and state.via == ".state_dict"
        and not changed(trace, state, restored)
        and never_sharded(trace, state.of, state.taken)
    )


def _results(trace: Trace, value: Value) -> list[Loaded]:
    return [e for e in trace.of(Loaded) if e.result is value and e.via in _LOADS]


def _saves_shards(trace: Trace, loaded: Loaded) -> bool:
    """Whether the script itself may have written this file, with shards of a model in it.

    Where the run was cut short, who writes a file of an unresolved name was perhaps not followed.
    """
    if trace.cut is not None and not isinstance(loaded.path, Literal):
        return True
    for saved in trace.of(Saved):
        if apart(saved.path, loaded.path) or saved.via.startswith(DCP):
            continue  # what `dcp.save` writes is a folder, which none of these loads
        for state in saved.states:
            if state.kind != "model" or state.full is True:
                continue  # a file of the optimizer's is another, or holds whole parameters beside it
            if state_shard(trace, saved, state) is not None:
                return True
    return False


def _distribute(trace: Trace, restored: Restored, loaded: Loaded | None) -> Fix | None:
    """``set_model_state_dict`` with the same state, where every rank comes to it.

    The file is mapped where that can be and nothing writes it later: every rank opens it, and rank 0 alone reads it.
    """
    call = call_of(restored.at)
    model = path_text(restored.at, receiver_of(restored.at))
    if call is None or not model or len(call.args) != 1 or first_argument(call) is None:
        return None
    if any(rank_dependent(g.test) for g in restored.guards) or stands_alone(restored.at) is None:
        return None
    source, home = restored.at.source, "torch.distributed.checkpoint.state_dict"
    put = name_for(source, call, f"{home}.set_model_state_dict")
    chosen = name_for(source, call, f"{home}.StateDictOptions")
    options_text = f"{chosen.text}(full_state_dict=True, broadcast_from_rank0=True)"
    mapping = None if loaded is None else mapped(trace, loaded)
    edits = (
        Replace(source, call.func, put.text),
        Arguments(source, call).first(model).add("options", options_text),
        *put.edits,
        *chosen.edits,
        *(() if mapping is None else (mapping,)),
    )
    return Fix(
        "distribute the full state dict", edits, "unsafe", "rank 0's file is the one that counts"
    )
