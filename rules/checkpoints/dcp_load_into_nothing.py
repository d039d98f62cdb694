"""`dcp.load` is given an empty dictionary and loads nothing.

## What it does

Finds `dcp.load` into a dictionary that the script has made and put nothing into, or in which the dictionary for
a model or an optimizer is such a one, at any depth: `{"model": {}, "step": 0}`; or in which there are only such ones.

## Why is this bad

`dcp.load` reads only what it is asked for: the keys of the dictionary say what to read, its tensors where to
put it. An empty dictionary asks for nothing. The call succeeds, the dictionary stays empty, and the model
goes on with the weights it had.

## Example

```diff
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
-from torch.distributed.checkpoint.state_dict import set_model_state_dict
+from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-state = {}
+state = get_model_state_dict(model)
 dcp.load(state, checkpoint_id="step_1")
 set_model_state_dict(model, state)
```

## Forms

- Found: a reader and a helper function that returns the dictionary.
- Found: an empty dictionary for the model, beside a step.
- Found: a dictionary that is empty where a switch is off.
- Found: empty dictionaries that nothing is put into a model from.
- Not found: a filter that leaves nothing.

## Known limits

A dictionary that the script fills anywhere, or hands to code that cannot be followed before the load, is left
alone. So is a load with a planner of the script. PyTorch's
`_EmptyStateDictLoadPlanner` does not help: `dcp.load` gives it a copy of the dictionary.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`load`)
- `torch/distributed/checkpoint/default_planner.py` (`create_default_local_load_plan`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Container, Finding, Loaded, Restored, Trace, Value, options, rule

from .._common.shared import DCP, cases, class_name, together
from ._common.checkpoints import surely_empty

_PLANNERS = ("DefaultLoadPlanner", "_EmptyStateDictLoadPlanner")


@rule(code="FSDP305", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Loads that ask for nothing."""
    for loaded in trace.of(Loaded):
        if loaded.via not in (f"{DCP}load", f"{DCP}load_state_dict") or loaded.into is None:
            continue
        empty = _empty(trace, loaded, loaded.into)
        if empty and not _planned(trace, loaded):
            yield Finding(
                at=loaded,
                message=f"{empty}: `dcp.load` fills the keys that it finds in it, "
                "so nothing is loaded",
            )


def _empty(trace: Trace, loaded: Loaded, into: Value) -> str:
    """What is empty, in words: the dictionary, all in it, or one in it that is put into a model or an optimizer later."""
    for guards, one in cases(loaded, into):
        if surely_empty(trace, one, loaded) and together(guards, loaded.guards):
            return f"`{into.words()}` is empty"
    if not isinstance(into, Container) or into.kind != "dict":
        return ""
    if _holds_nothing(trace, loaded, into):
        return f"`{into.words()}` holds nothing but empty dictionaries"
    for path, entry in _nested(trace, loaded, into):
        applied = (r for r in trace.after(loaded, Restored) if entry in options(r.state))
        if surely_empty(trace, entry, loaded) and any(applied):
            return f"`{into.words()}{path}` is empty"
    return ""


def _holds_nothing(trace: Trace, loaded: Loaded, into: Value, depth: int = 4) -> bool:
    """Whether there are only empty dictionaries in a dictionary: they ask for nothing either."""
    if not isinstance(into, Container) or into.kind != "dict" or into.open:
        return False
    held = [entry for _, entry in trace.memory.entries(into, loaded.guards)]
    return (
        bool(depth and held)
        and not any(e.order < loaded.order for e in trace.escapes(into))
        and all(
            surely_empty(trace, one, loaded) or _holds_nothing(trace, loaded, one, depth - 1)
            for one in held
        )
    )


def _nested(
    trace: Trace, loaded: Loaded, into: Value, depth: int = 4
) -> Iterator[tuple[str, Value]]:
    """The entries of a dictionary and of those inside it, each with its keys."""
    for key, entry in trace.memory.entries(into, loaded.guards):
        yield f"{key}", entry
        if depth and isinstance(entry, Container) and entry.kind == "dict":
            for path, inner in _nested(trace, loaded, entry, depth - 1):
                yield f"{key}{path}", inner


def _planned(trace: Trace, loaded: Loaded) -> bool:
    """Whether a planner of the script may do something with the checkpoint.

    Not those of PyTorch: `load` gives the planner a copy of the dictionary and takes back the keys that were
    there, so that what `_EmptyStateDictLoadPlanner` puts into it is lost.
    """
    for called in trace.calls(loaded.via):
        if called.at.node is loaded.at.node:
            planner = called.keywords.get("planner")
            ours = planner is None or class_name(planner).rpartition(".")[2] in _PLANNERS
            return called.open or not ours
    return True
