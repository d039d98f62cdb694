"""Weights are loaded with `strict=False` under names that the model does not have.

## What it does

Finds `load_state_dict(…, strict=False)` and the setters of `torch.distributed.checkpoint.state_dict` with
`strict=False` where one side has the names of a wrapper (`module.` of DDP, `_orig_mod.` of a compiled module) and
the other has not. The weights are followed through variables, helpers and a file that the script itself has written.

## Why is this bad

`state_dict()` of a wrapped module puts the wrapper's prefix before every name, `get_model_state_dict` never does,
and the setters expect names without it. When none of the names fits, `strict=False` takes all of them for
unexpected: nothing is loaded and nothing is reported. Training goes on from the initial weights.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
 from torch.distributed.fsdp import fully_shard
 from torch.nn.parallel import DistributedDataParallel

 dist.init_process_group("gloo")
 warm = DistributedDataParallel(nn.Linear(8, 8))
-weights = warm.state_dict()
+weights = warm.module.state_dict()
 model = nn.Linear(8, 8)
 fully_shard(model)
-options = StateDictOptions(full_state_dict=True, strict=False)
+options = StateDictOptions(full_state_dict=True)
 set_model_state_dict(model, weights, options=options)
```

## Forms

- Found: a file that the script itself has written.
- Found: weights without a prefix for a compiled model, through a helper function.
- Not found: a file of another program.
- Not found: names that the script itself changes.

## Known limits

The names in a file that another program wrote are not known. Weights whose names the script changes, and wrappers
around parts of a model, are left alone.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`StateDictOptions.strict`)
- `torch/distributed/checkpoint/state_dict.py` (`_get_fqns`)
- `torch/_dynamo/eval_frame.py` (`OptimizedModule`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Finding,
    Literal,
    Restored,
    StateDict,
    StateDictTaken,
    Trace,
    Value,
    Wrapped,
    options,
    rule,
)

from .._common.shared import DCP, changed
from ._common.checkpoints import origins, switch

_SETTERS = (f"{DCP}state_dict.set_model_state_dict", f"{DCP}state_dict.set_state_dict")
_GETTERS = (f"{DCP}state_dict.get_model_state_dict", f"{DCP}state_dict.get_state_dict")
_PREFIXES = {"ddp": "module.", "compile": "_orig_mod.", "fsdp1": "", "checkpoint": ""}


@rule(code="FSDP326", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Loads in which no name fits."""
    for restored in trace.of(Restored):
        if restored.kind != "model" or not _not_strict(trace, restored):
            continue
        wanted = _expected(restored)
        for state in origins(trace, restored.state) if wanted is not None else ():
            given = _given(state)
            taken = next((t for t in trace.of(StateDictTaken) if t.state is state), None)
            if given is None or given == wanted or taken is None:
                continue
            if changed(trace, state, restored):
                continue
            yield Finding(
                at=restored,
                message=f"the names of these weights begin with {_said(given)}, those of the model with "
                f"{_said(wanted or '')}: with `strict=False` nothing is loaded and nothing is raised",
                because=((taken, "the weights are taken here"),),
            )
            break


def _said(prefix: str) -> str:
    return f"`{prefix}`" if prefix else "no prefix"


def _not_strict(trace: Trace, restored: Restored) -> bool:
    """Whether a load surely passes over names that do not fit."""
    for called in trace.calls(restored.via):
        if called.at.node is not restored.at.node:
            continue
        if restored.via in _SETTERS:
            given = called.keywords.get("options")
            return given is not None and switch(trace, given, "strict") is False
        strict = called.argument(1, "strict")
        return isinstance(strict, Literal) and strict.value is False
    return False


def _expected(restored: Restored) -> str | None:
    """The prefix of the names that a load looks for."""
    if restored.via in _SETTERS:
        return ""
    return _prefix(restored.into) if restored.via == ".load_state_dict" else None


def _given(state: StateDict) -> str | None:
    """The prefix of the names in a state dict."""
    if state.via in _GETTERS:
        return ""
    return _prefix(state.of) if state.via == ".state_dict" and state.kind == "model" else None


def _prefix(model: Value) -> str | None:
    """What the wrappers around a model put before its names; None when that is not known."""
    found = {_of_one(one) for one in options(model)}
    return found.pop() if len(found) == 1 else None


def _of_one(module: Value) -> str | None:
    prefix = ""
    while isinstance(module, Wrapped):
        if module.by not in _PREFIXES:
            return None
        prefix += _PREFIXES[module.by]
        module = module.of
    return prefix
