"""The script reads a file that the type of state dicts in its settings never writes.

## What it does

Reports a `pytorch_model_fsdp.bin` that is read in a program whose settings say SHARDED_STATE_DICT, and a folder `pytorch_model_fsdp_0` that is read
by `dcp.load`, or merged by `merge_fsdp_weights`, in one whose settings say FULL_STATE_DICT: where `Accelerator.save_state` or the Trainer writes
the checkpoints.

## Why is this bad

accelerate writes the model's part of a checkpoint as one file of full tensors, or as a folder of shards, by the settings. Version 2 writes shards unless
they say something else: with the change of the version alone, a script that reads the file finds it no more. The training is over then, or begins from
an old file that is still there.

## Example

```diff
 import torch
 from accelerate import Accelerator, FullyShardedDataParallelPlugin
 from torch import nn

-plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
+plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="FULL_STATE_DICT")
 accelerator = Accelerator(fsdp_plugin=plugin)
 model = nn.Linear(8, 8)
 model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
 accelerator.save_state("checkpoint")
 weights = torch.load("checkpoint/pytorch_model_fsdp.bin")
```

## Forms

- Found: a path that a helper function puts together.
- Found: shards that are to be merged, where one file is written.
- Not found: files that are found by listing the folder.

## Known limits

The file may come from another run, with other settings: that is why this is a warning. Only the names are compared that accelerate itself gives. Silent in
scripts that call `set_state_dict_type` of the plugin.

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/fsdp_utils.py (`save_fsdp_model`, `merge_fsdp_weights`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp2lint.api import Called, CheckpointTyped, Event, Finding, Loaded, Trace, Value, rule

_WHOLE = re.compile(r"pytorch_model_fsdp(_\d+)?\.bin\W*")
_SHARDS = re.compile(r"pytorch_model_fsdp_\d+\W*")
_SETTING = ".set_state_dict_type"
"""By this a script changes the type later."""
_MERGES = ("accelerate.utils.merge_fsdp_weights", "accelerate.utils.fsdp_utils.merge_fsdp_weights")


@rule(code="FSDP615", group="suspicious", preview=True)
def check(trace: Trace) -> Iterator[Finding]:
    """Files of the other type."""
    saved = list(trace.of(CheckpointTyped))
    kinds = {one.kind for one in saved}
    if len(kinds) != 1 or any(call.name.endswith(_SETTING) for call in trace.of(Called)):
        return
    kind = kinds.pop()
    for event, what, wanted in _read(trace):
        if kind in ("FULL_STATE_DICT", "SHARDED_STATE_DICT") and kind != wanted:
            yield Finding(
                at=event,
                message=f"{what} is of {wanted}, and the settings of this training write checkpoints of {kind}",
                because=((saved[0], "the checkpoint is written here"),),
            )


def _read(trace: Trace) -> Iterator[tuple[Event, str, str]]:
    """What is read by accelerate's own names, and the type that it is of."""
    for loaded in trace.of(Loaded):
        name = _last(loaded.path)
        if loaded.via == "torch.load" and _WHOLE.fullmatch(name):
            yield loaded, "`pytorch_model_fsdp.bin`", "FULL_STATE_DICT"
        elif "checkpoint" in loaded.via and _SHARDS.fullmatch(name):
            yield loaded, "this folder of shards", "SHARDED_STATE_DICT"
    for call in trace.of(Called):
        if call.name in _MERGES:
            yield call, "what `merge_fsdp_weights` reads", "SHARDED_STATE_DICT"


def _last(path: Value | None) -> str:
    """The last part of a path as it is written, in whatever way it is put together."""
    return "" if path is None else re.split(r"[/'\" ]", path.words().rstrip("'\") "))[-1]
