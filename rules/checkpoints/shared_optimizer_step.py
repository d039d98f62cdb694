"""A full optimizer state of FSDP1 shares one `step` among parameters, and FSDP2's optimizer keeps sharing it.

## What it does

Finds the full optimizer state of an FSDP1 model without `use_orig_params=True` that is given, unchanged, to
`set_optimizer_state_dict` or `set_state_dict` for an Adam-like optimizer: straight, or through a file that the
script itself has written.

## Why is this bad

FSDP1 has one `step` for a flat parameter and hands that one tensor out for each of the parameters inside. Pickling
keeps it one tensor, and so does the setter: every parameter of the new optimizer that lay in one flat parameter
counts its step on the same tensor. With four of them two steps count as eight, and the bias corrections of Adam
are wrong, without an error.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
 from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

 dist.init_process_group("gloo")
 old = FullyShardedDataParallel(nn.Linear(8, 8), device_id=torch.device("cpu"))
 optimizer = torch.optim.AdamW(old.parameters())
 old(torch.randn(4, 8)).sum().backward()
 optimizer.step()
 state = FullyShardedDataParallel.optim_state_dict(old, optimizer)
+for values in state["state"].values():
+    values.update({k: v.clone() for k, v in values.items() if torch.is_tensor(v)})
 model = nn.Linear(8, 8)
 fully_shard(model)
 optimizer = torch.optim.AdamW(model.parameters())
 whole = StateDictOptions(full_state_dict=True)
 set_optimizer_state_dict(model, optimizer, state, options=whole)
```

## Forms

- Found: a file that the script itself has written.
- Found: helper functions that export and restore.
- Not found: a file of another program.
- Not found: states that go into another dictionary under other names.

## Fix safety

Unsafe: the tensors of the state are copied, which takes its size once more for a moment.

## Known limits

A file that another program wrote does not say that it comes from FSDP1: where only a path is known the rule is
silent. `fsdp2lint migrate` writes the clones into every load that it moves over.

## References

- https://docs.pytorch.org/docs/stable/fsdp.html (`optim_state_dict`)
- `torch/distributed/fsdp/_optim_utils.py` (`_unflatten_optim_state`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Finding,
    Fix,
    InsertBefore,
    Literal,
    Optimizer,
    Restored,
    StateDict,
    Trace,
    Wrapping,
    argument,
    name_for,
    options,
    rule,
    wrappers_around,
)

from .._common.fixes import call_of, path_text, stands_alone
from .._common.shared import DCP, changed
from ._common.checkpoints import counts_steps, origins

_SETTERS = (f"{DCP}state_dict.set_optimizer_state_dict", f"{DCP}state_dict.set_state_dict")
_FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
_FULL = (f"{_FSDP1}.optim_state_dict", f"{_FSDP1}.full_optim_state_dict")


@rule(code="FSDP313", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Flat states that come into an optimizer as they are."""
    for restored in trace.of(Restored):
        if restored.kind != "optimizer" or restored.via not in _SETTERS:
            continue
        if not any(map(counts_steps, options(restored.into))) or _copied(trace, restored):
            continue
        for state in origins(trace, restored.state):
            flat = _flat(trace, state)
            if flat is None or changed(trace, state, restored):
                continue
            yield Finding(
                at=restored,
                message=f"the state of `{state.of.words()}` has one `step` for all parameters of a flat "
                "parameter, and they go on to share it: each step counts several times; clone its tensors",
                because=((flat, "FSDP1 makes flat parameters here"),),
                fix=_cloned(restored),
            )
            break


def _flat(trace: Trace, state: StateDict) -> Wrapping | None:
    """The wrapping into flat parameters of the model whose full optimizer state this is."""
    if state.via not in _FULL or not state.full or not isinstance(state.of, Optimizer):
        return None
    models = [over.of for over in state.of.over]
    for wrapping in trace.of(Wrapping):
        around = (one for model in models for one in wrappers_around(model))
        if wrapping.by != "fsdp1" or all(one is not wrapping.result for one in around):
            continue
        kept = wrapping.options.get("use_orig_params")
        unknown = any(c.open for c in trace.calls(_FSDP1) if c.at.node is wrapping.at.node)
        if kept is None and not unknown:
            return wrapping
        return wrapping if isinstance(kept, Literal) and kept.value is False else None
    return None


def _copied(trace: Trace, restored: Restored) -> bool:
    """Whether tensors are cloned between the first load or gather and the setter."""
    return any(called.order < restored.order for called in trace.calls(".clone", "torch.clone"))


def _cloned(restored: Restored) -> Fix | None:
    """Clones of the tensors above the setter."""
    call = call_of(restored.at)
    if call is None or stands_alone(restored.at) is None:
        return None
    text = path_text(restored.at, _state(call, restored.via))
    if not text:
        return None
    source = restored.at.source
    torch = name_for(source, call, "torch", module=True)
    lines = (
        f"for values in {text}.get('state', {{}}).values():\n"
        f"    values.update({{k: v.clone() for k, v in values.items() if {torch.text}.is_tensor(v)}})"
    )
    note = "the tensors are held twice for a moment"
    return Fix(
        "clone the tensors", (InsertBefore(source, call, lines), *torch.edits), "unsafe", note
    )


def _state(call: cst.Call, via: str) -> cst.BaseExpression | None:
    """The state that a setter is given."""
    given = argument(call, 2 if via == _SETTERS[0] else -1, "optim_state_dict")
    return None if given is None else given.value
