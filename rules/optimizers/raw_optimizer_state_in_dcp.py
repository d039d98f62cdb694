"""`optimizer.state_dict()` is handed to DCP as it is.

## What it does

Finds `dcp.save`, `dcp.async_save` and `dcp.load` of the optimizer's own `state_dict()` for a sharded model.

## Why is this bad

DCP matches entries by name. A raw optimizer state is keyed by numbers, so whoever loads by parameter names
(`get_optimizer_state_dict`, other layouts, other tools) misses its keys; and it is empty before the first step:
`dcp.load` into the state of a fresh optimizer fills nothing, and the run continues with fresh moments.
`get_optimizer_state_dict` uses parameter names and creates the state before a load.

## Example

```diff
 import torch
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
+from torch.distributed.checkpoint.state_dict import get_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
-dcp.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, checkpoint_id="step_1")
+model_state, optimizer_state = get_state_dict(model, optimizer)
+dcp.save({"model": model_state, "optim": optimizer_state}, checkpoint_id="step_1")
```

## Forms

- Found: a class with `state_dict`, of which DCP asks the state.
- Found: several optimizers, or the optimizer itself.
- Found: a resume in a helper function.
- Not found: a copy of the state.

## Fix safety

Unsafe: the same state under parameter names, when the model has a name in the same function; what is loaded goes
back through `set_optimizer_state_dict`. Checkpoints that were written before have the old keys.

## Known limits

Silent when the optimizer's model is not known to be sharded, and when the state is loaded only after a step of the
same optimizer: then it has entries under the same numbers, and a raw save and such a load fit together.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`get_optimizer_state_dict`)
- https://docs.pytorch.org/tutorials/recipes/distributed_checkpoint_recipe.html
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Edit,
    Event,
    Finding,
    Fix,
    Loaded,
    OptimizerBuilt,
    Replace,
    Restored,
    Rewrite,
    Saved,
    StateDict,
    StateDictTaken,
    Stepped,
    Trace,
    name_for,
    options,
    rule,
)

from .._common.fixes import call_of, first_argument, path_text, receiver_of
from .._common.shared import DCP, Shard, changed, state_shard

_HOME = "torch.distributed.checkpoint.state_dict"


@rule(code="FSDP302", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Raw optimizer states that go through DCP."""
    found = list(_raw(trace))
    fixes = [_by_name(trace, event, state) for event, _, state, _ in found]
    for (event, via, state, shard), fix in zip(found, fixes, strict=True):
        said = state.of.words()
        empty = "" if _stepped(trace, event, state) else " and which is empty before the first step"
        yield Finding(
            at=event,
            message=f"`{via.rpartition('.')[2]}` gets `{said}.state_dict()`, whose keys are numbers"
            f"{empty}; use `get_optimizer_state_dict`",
            because=(shard.reason,),
            fix=fix if all(fixes) else None,
        )


def _raw(trace: Trace) -> Iterator[tuple[Event, str, StateDict, Shard]]:
    """The first raw state of a sharded model's optimizer in each save and load."""
    if _fits(trace):
        return
    for event, via, states in _through_dcp(trace):
        for state in states:
            if isinstance(event, Loaded) and _stepped(trace, event, state):
                continue
            raw = state.kind == "optimizer" and state.via in ("state_dict", ".state_dict")
            shard = state_shard(trace, event, state) if raw else None
            if shard is not None and not changed(trace, state, event):
                yield event, via, state, shard
                break


def _fits(trace: Trace) -> bool:
    """Whether raw states are loaded, and each of them into an optimizer that has made its step: what was saved fits."""
    loads = [
        _stepped(trace, event, state)
        for event, _, states in _through_dcp(trace)
        if isinstance(event, Loaded)
        for state in states
        if state.kind == "optimizer" and state.via in ("state_dict", ".state_dict")
    ]
    return bool(loads) and all(loads)


def _stepped(trace: Trace, event: Event, state: StateDict) -> bool:
    """Whether the optimizer made a step, and so has a state, before its state dict was taken for ``event``.

    ``_init_optim_state`` of ``torch.distributed.checkpoint.state_dict`` makes one with gradients of zero.
    """
    taken = next((e for e in trace.of(StateDictTaken) if e.state is state), event)
    return any(
        state.of in options(stepped.optimizer) and trace.precedes(stepped, taken)
        for stepped in trace.of(Stepped)
    ) or any(
        any(state.of in options(given) for given in called.arguments)
        and trace.precedes(called, taken)
        for called in trace.calls_named(lambda name: name.endswith("._init_optim_state"))
    )


def _through_dcp(trace: Trace) -> Iterator[tuple[Event, str, tuple[StateDict, ...]]]:
    for saved in trace.of(Saved):
        if saved.via.startswith(DCP):
            yield saved, saved.via, saved.states
    for loaded in trace.of(Loaded):
        if loaded.via.startswith(DCP):
            yield loaded, loaded.via, loaded.states


def _by_name(trace: Trace, event: Event, state: StateDict) -> Fix | None:
    """``get_optimizer_state_dict(model, optimizer)``, where the model has a name in the same function."""
    taken = next((e for e in trace.of(StateDictTaken) if e.state is state), None)
    built = next((e for e in trace.of(OptimizerBuilt) if e.optimizer is state.of), None)
    if taken is None or built is None or taken.calls != built.calls or len(built.over) != 1:
        return None
    call = call_of(taken.at)
    optimizer = path_text(taken.at, receiver_of(taken.at))
    model = _model_name(built)
    if call is None or not optimizer or not model:
        return None
    get = name_for(taken.at.source, call, f"{_HOME}.get_optimizer_state_dict")
    edits: list[Edit] = [
        Replace(taken.at.source, call, f"{get.text}({model}, {optimizer})"),
        *get.edits,
    ]
    if isinstance(event, Loaded):
        for restored in trace.after(event, Restored):
            if restored.into is state.of and restored.via.endswith("load_state_dict"):
                back = _put_back(restored, model) if restored.calls == built.calls else None
                if back is None:
                    return None
                edits += back
    note = "checkpoints that were written before have the old keys"
    return Fix("take the state under parameter names", tuple(edits), "unsafe", note)


def _put_back(restored: Restored, model: str) -> tuple[Edit, ...] | None:
    """``set_optimizer_state_dict(model, optimizer, state)`` for ``optimizer.load_state_dict(state)``."""
    call, source = call_of(restored.at), restored.at.source
    optimizer = path_text(restored.at, receiver_of(restored.at))
    given = None if call is None else first_argument(call)
    if call is None or given is None or not optimizer or len(call.args) != 1:
        return None
    put = name_for(source, call, f"{_HOME}.set_optimizer_state_dict")
    arguments = f"({model}, {optimizer}, "
    new = Rewrite(source, call, lambda inner: f"{put.text}{arguments}{inner(given)})")
    return new, *put.edits


def _model_name(built: OptimizerBuilt) -> str:
    """What the script calls the model in ``SGD(model.parameters(), …)``."""
    call = call_of(built.at)
    given = None if call is None else first_argument(call)
    if not isinstance(given, cst.Call) or not isinstance(given.func, cst.Attribute):
        return ""
    return path_text(built.at, given.func.value)
