"""`BroadcastingTorchSaveReader` reads into a sharded model and never returns.

## What it does

Finds `dcp.load` with a `BroadcastingTorchSaveReader` where the state is that of a sharded model or of its optimizer.

## Why is this bad

The reader loads the file on one rank and broadcasts each tensor. The other ranks make the tensor that receives it
after the one in the state: for a sharded model that is a `DTensor`, whose broadcast is another collective
than the plain one of the first rank. From two ranks on, all of them wait for each other until the process group's
timeout. With one rank it works, so that a try on one GPU shows nothing.

## Example

```diff
+import torch
 import torch.distributed as dist
-import torch.distributed.checkpoint as dcp
 from torch import nn
-from torch.distributed.checkpoint.format_utils import BroadcastingTorchSaveReader
-from torch.distributed.checkpoint.format_utils import DynamicMetaLoadPlanner
+from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-state = model.state_dict()
-reader = BroadcastingTorchSaveReader("model.pt")
-dcp.load(state, storage_reader=reader, planner=DynamicMetaLoadPlanner())
+state = torch.load("model.pt") if dist.get_rank() == 0 else {}
+options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
+set_model_state_dict(model, state, options=options)
```

## Forms

- Found: a trainer, whose reader comes from a dictionary.
- Found: the state of the optimizer.
- Not found: a class of the project that is derived from the reader.
- Not found: a dictionary of the parameters that is no state dict.

## Fix safety

Unsafe: the file is mapped into the memory of every rank, which needs the format that `torch.save` has since 1.6,
and the state dict that was to be filled is not filled, only the model. There is a fix where the state is the
model's own and was taken in the same function.

## Known limits

A reader that is made where the code cannot be followed is not seen.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`BroadcastingTorchSaveReader`)
- `torch/distributed/checkpoint/format_utils.py` (`BroadcastingTorchSaveReader.read_data`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Finding,
    Fix,
    Loaded,
    Names,
    Replace,
    StateDict,
    StateDictTaken,
    Trace,
    Unimport,
    argument,
    name_for,
    options,
    rule,
)

from .._common.fixes import call_of, path_text, receiver_of, stands_alone
from .._common.shared import DCP, class_name, state_shard

_FORMATS = f"{DCP}format_utils."
_READER = f"{_FORMATS}BroadcastingTorchSaveReader"
_HELPERS = f"{DCP}state_dict."


@rule(code="FSDP327", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Loads by the reader that broadcasts."""
    for loaded in trace.of(Loaded):
        if loaded.via != f"{DCP}load" or not _broadcasts(trace, loaded):
            continue
        for state in loaded.states:
            shard = state_shard(trace, loaded, state)
            if shard is None:
                continue
            yield Finding(
                at=loaded,
                message=f"`BroadcastingTorchSaveReader` cannot read into the shards of `{state.of.words()}`: "
                "from two ranks on all wait for ever; read on rank 0 and use `set_model_state_dict` with "
                "`broadcast_from_rank0=True`",
                because=(shard.reason,),
                fix=_distributed(trace, loaded, state),
            )
            break


def _broadcasts(trace: Trace, loaded: Loaded) -> bool:
    for called in trace.calls(loaded.via):
        reader = called.keywords.get("storage_reader")
        if called.at.node is loaded.at.node and reader is not None:
            return any(class_name(one) == _READER for one in options(reader))
    return False


def _distributed(trace: Trace, loaded: Loaded, state: StateDict) -> Fix | None:
    """``set_model_state_dict`` with the mapped file."""
    call, source = stands_alone(loaded.at) and call_of(loaded.at), loaded.at.source
    taken = next((t for t in trace.of(StateDictTaken) if t.state is state), None)
    if call is None or taken is None or loaded.into is not state or taken.calls != loaded.calls:
        return None
    model, path = _model(taken), _path(trace, loaded)
    if not model or not path:
        return None
    put = name_for(source, call, f"{_HELPERS}set_model_state_dict")
    chosen = name_for(source, call, f"{_HELPERS}StateDictOptions")
    torch = name_for(source, call, "torch", module=True)
    switches = "full_state_dict=True, broadcast_from_rank0=True"
    text = f"{put.text}({model}, {torch.text}.load({path}, mmap=True), options={chosen.text}({switches}))"
    edits = (*put.edits, *chosen.edits, *torch.edits)
    unused = [i.loads for i in Names.of(source).imports if i.loads.startswith(_FORMATS)]
    return Fix(
        "distribute the file from rank 0",
        (Replace(source, call, text), *edits, *(Unimport(source, one) for one in unused)),
        "unsafe",
        "only the model is filled, not the state dict",
    )


def _model(taken: StateDictTaken) -> str:
    """What the script calls the model whose state was taken."""
    call = call_of(taken.at)
    if call is not None and taken.state.via == f"{_HELPERS}get_model_state_dict":
        return path_text(taken.at, call.args[0].value) if call.args else ""
    return path_text(taken.at, receiver_of(taken.at))


def _path(trace: Trace, loaded: Loaded) -> str:
    """The path as it is written in the load, or where the reader is made in the same function."""
    calls = [
        loaded,
        *(c for c in trace.of(Called) if c.name == _READER and c.calls == loaded.calls),
    ]
    for event in calls:
        given = argument(call_of(event.at), -1 if event is loaded else 0, "checkpoint_id")
        if given is not None:
            is_text = isinstance(given.value, cst.SimpleString)
            code = event.at.source.code(given.value)
            return code if is_text else path_text(event.at, given.value)
    return ""
