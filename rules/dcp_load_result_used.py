"""The value of `dcp.load` is used, and it is None.

## What it does

Finds `dcp.load(…)` whose value is assigned, passed on, or asked for an entry.

## Why is this bad

`dcp.load` fills the dictionary that it is given and returns None. What is assigned from it is None: the first
entry asked of it raises, or a `load_state_dict(None)` follows.

## Example

```python
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
state = get_model_state_dict(model)
state = dcp.load(state, checkpoint_id="step_1")
```

## Use instead

```python
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
state = get_model_state_dict(model)
dcp.load(state, checkpoint_id="step_1")
```

## Fix safety

Safe: the call stands alone, and another name than that of its dictionary is bound to the dictionary.

## Known limits

`return dcp.load(…)` counts when the caller, in sight, does something with the value.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`load`)
- `torch/distributed/checkpoint/state_dict_loader.py`
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Edit, Finding, Fix, InsertAfter, Loaded, Rewrite, Trace, rule

from ._fixes import call_of, first_argument, own_statement, path_text
from ._shared import DCP, use_of


@rule(code="FSDP304", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Uses of what ``dcp.load`` returns."""
    for loaded in trace.of(Loaded):
        if loaded.via not in (f"{DCP}load", f"{DCP}load_state_dict"):
            continue
        use = use_of(loaded.at)
        if use == "Return" and loaded.calls:
            use = use_of(loaded.calls[-1])
        if use not in _USES:
            continue
        yield Finding(
            at=loaded,
            message="`dcp.load` returns None: it fills the dictionary that it is given",
            fix=_alone(loaded),
        )


_USES = ("Assign", "AnnAssign", "Arg", "Attribute", "Subscript", "NamedExpr", "For", "CompFor")


def _alone(loaded: Loaded) -> Fix | None:
    """The call as a statement of its own; another name is bound to its dictionary."""
    call, statement = call_of(loaded.at), own_statement(loaded.at)
    if call is None or not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return None
    source = loaded.at.source
    target = source.code(statement.targets[0].target)
    filled = path_text(loaded.at, first_argument(call))
    if not filled or not target.isidentifier():
        return None
    edits: tuple[Edit, ...] = (Rewrite(source, statement, lambda new: new(call)),)
    if target != filled:
        edits = (*edits, InsertAfter(source, statement, f"{target} = {filled}"))
    return Fix("use the dictionary that is filled", edits, "safe")
