"""A state dict is kept as a copy of the weights, and it is none.

## What it does

Finds state dicts of sharded models that are taken before further optimizer steps and put back into the same
model after them; also those that only the best evaluation takes and that are saved after further steps.

## Why is this bad

`state_dict()` of a sharded model holds the model's own shards. Each step changes them in place, so what was kept
as the best weights follows the live ones: putting it back does nothing, saving it saves the latest. FSDP1's
full state dicts were copies.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 optimizer = torch.optim.AdamW(model.parameters())
-kept = model.state_dict()
+kept = {k: v.clone() for k, v in model.state_dict().items()}
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
 model.load_state_dict(kept)
```

## Forms

- Found: a trainer that keeps its best weights.
- Found: the getter and the setter of DCP.
- Not found: a new dictionary of the same tensors.
- Not found: several state dicts that are averaged.
- Not found: live weights that a setting has saved.

## Fix safety

Unsafe: the clone holds the shards twice on each rank, and entries that are no tensors (`get_extra_state`) have
no `clone`.

## Known limits

A state dict that is filled by `dcp.load` before it is put back, or changed entry by entry, is left alone.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html (`state_dict`)
- `torch/distributed/checkpoint/state_dict.py` (`_get_model_state_dict`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    Event,
    Finding,
    Fix,
    Loaded,
    Optimizer,
    Part,
    Restored,
    Rewrite,
    Saved,
    StateDict,
    StateDictTaken,
    Stepped,
    Trace,
    Value,
    options,
    root,
    rule,
    unwrapped,
)

from .._common.fixes import call_of
from .._common.shared import changed, of_shards, overlap, state_shard

_ALIASES = (".state_dict", "torch.distributed.checkpoint.state_dict.get_model_state_dict")
_FILLING = (".update", ".setdefault", ".pop", ".popitem", ".clear", ".copy_")


@rule(code="FSDP319", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """State dicts that outlive the weights they were to keep."""
    for taken in trace.of(StateDictTaken):
        state = taken.state
        if state.kind != "model" or not of_shards(state) or state.via not in _ALIASES:
            continue
        for used, does in (*_put_back(trace, taken), *_saved_late(trace, taken)):
            stepped = _step_between(trace, taken, used)
            shard = None if stepped is None else state_shard(trace, taken, state)
            if stepped is None or shard is None or changed(trace, state, used):
                continue
            yield Finding(
                at=taken,
                message=f"`{state.words()}` shares the weights of `{state.of.words()}` and follows every "
                f"step: {does}; keep clones",
                because=((stepped, "this step changes it"), (used, "it is used as a copy here")),
                fix=_cloned(taken),
            )
            break


def _put_back(trace: Trace, taken: StateDictTaken) -> Iterator[tuple[Event, str]]:
    """Loads of the state dict into the model that it is of."""
    for restored in trace.after(taken, Restored):
        if taken.state not in options(restored.state) or _filled(trace, taken, restored):
            continue
        if any(unwrapped(m) is unwrapped(taken.state.of) for m in options(restored.into)):
            yield restored, "putting it back does nothing"


def _filled(trace: Trace, taken: StateDictTaken, used: Event) -> bool:
    """Whether something else has been put into the state dict, or into its tensors, before it is used."""
    loads = [loaded for loaded in trace.of(Loaded) if loaded.order < used.order]
    if any(taken.state in loaded.states for loaded in loads):
        return True
    return any(
        called.receiver is not None
        and root(called.receiver) is taken.state
        and called.name in _FILLING
        for called in trace.of(Called)
        if taken.order < called.order < used.order
    )


def _saved_late(trace: Trace, taken: StateDictTaken) -> Iterator[tuple[Event, str]]:
    """Saves of a state dict that was taken because some number was better than before."""
    chosen = [g for g in taken.guards if _compares(g.test)]
    for saved in trace.after(taken, Saved) if chosen else ():
        if taken.state in saved.states and not any(g in list(saved.guards) for g in chosen):
            yield saved, "what is saved are the latest weights"


def _compares(test: Value) -> bool:
    """Whether a test compares two measures, and not a count with a limit (``interval > 0``, ``step < steps``)."""
    is_order = isinstance(test, Part) and test.operation in ("<", ">")
    return is_order and not _COUNTED.search(test.words())


_COUNTED = re.compile(
    r"\b(?:\w+_)?(?:epoch|interval|iter|iteration|rank|step|token)s?\b(?![\w\[.(\"'])"
)


def _step_between(trace: Trace, taken: StateDictTaken, used: Event) -> Stepped | None:
    """A step over the model's parameters between two events."""
    for stepped in trace.after(taken, Stepped):
        if stepped.order < used.order and not stepped.guards.excludes(used.guards):
            for optimizer in options(stepped.optimizer):
                over = optimizer.over if isinstance(optimizer, Optimizer) else ()
                if any(_shares(trace, p.of, taken.state) for p in over):
                    return stepped
    return None


def _shares(trace: Trace, model: Value, state: StateDict) -> bool:
    return any(overlap(trace, unwrapped(model), unwrapped(one)) for one in options(state.of))


def _cloned(taken: StateDictTaken) -> Fix | None:
    """Clones of the entries."""
    call = call_of(taken.at)
    if call is None:
        return None
    edit = Rewrite(
        taken.at.source, call, lambda new: f"{{k: v.clone() for k, v in {new.text}.items()}}"
    )
    return Fix("keep clones of the weights", (edit,), "unsafe", "the shards are then held twice")
