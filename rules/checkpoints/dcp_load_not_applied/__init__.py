"""A state is saved or loaded and never given back to its optimizer, scheduler, scaler or loader.

## What it does

Finds `dcp.load` into the dictionary of `get_optimizer_state_dict` or `get_state_dict` (or into a gathered copy
of the model's) that no `set_…_state_dict` or `load_state_dict` takes afterwards.

Finds also schedulers of learning rates, gradient scalers and stateful loaders whose `state_dict()` goes into the
checkpoint, in programs that resume: the optimizer gets its state back, they never do.

## Why is this bad

`dcp.load` fills tensors in place, which reaches the model's parameters because its sharded state dict shares
them, and the optimizer's moments and step counters (measured with 2.13). Learning rates, betas and weight decay are
numbers: without `set_optimizer_state_dict` they silently stay what the script began with.

A scheduler that does not get its state back counts from 0: it sets the learning rate of the first steps (a warmup, the
top of a cosine) in the middle of training. A loader hands out again what the model has seen.

## Example

```diff
 import torch
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
-from torch.distributed.checkpoint.state_dict import get_state_dict
+from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
 model_state, optimizer_state = get_state_dict(model, optimizer)
 dcp.load({"model": model_state, "optim": optimizer_state}, checkpoint_id="step_1")
+set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

## Forms

- Found: a resume in a helper function that sets the model only.
- Found: a scheduler that is saved with the rest, and forgotten on the way back.
- Not found: a resume by `torch.load` that leaves the optimizer's state in the file.

## Fix safety

Unsafe: `set_optimizer_state_dict` comes below the load, with the model and the optimizer that the state was taken
of. The optimizer then goes on with the learning rate of the checkpoint.

## Known limits

There is no fix where the state, the model or the optimizer has no name at the load, or several optimizers share
one state.

Of schedulers, scalers and loaders only those of PyTorch, of Transformers and of torchdata are known, and what inherits
their state. Silent where one of them is wound forward by its own steps, its attributes or its arguments, or where something
that is not known is asked to `load_state_dict`.

Silent when the loaded dictionary, or the model of a gathered copy, goes where the code cannot be followed. A sharded
state dict of the model alone is filled in place and is fine.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`set_optimizer_state_dict`)
- https://docs.pytorch.org/tutorials/recipes/distributed_checkpoint_recipe.html
- `torch/optim/lr_scheduler.py` (`LRScheduler.__init__`: `last_epoch=-1`, and `state_dict`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Loaded, Restored, StateDict, Trace, rule

from ..._common.shared import DCP
from .keepers import forgotten
from .states import set_below

_SETTERS = ("torch.distributed.checkpoint.state_dict.set_", ".load_state_dict")


@rule(code="FSDP306", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Loads that end in a dictionary."""
    for loaded in trace.of(Loaded):
        if loaded.via != f"{DCP}load":
            continue
        lost = [s for s in loaded.states if _is_lost(trace, loaded, s)]
        if lost:
            said = lost[0].of.words()
            kept = (
                "what it had"
                if lost[0].kind == "model"
                else "the learning rate and options that it had"
            )
            yield Finding(
                at=loaded,
                message=f"the state of `{said}` is loaded into a dictionary and never set: "
                f"`{said}` goes on with {kept}",
                fix=set_below(trace, loaded, lost),
            )
    for loaded, forgot in forgotten(trace).items():
        does = [f"`{one.keeper.words()}` {one.does}" for one in forgot]
        yield Finding(
            at=loaded,
            message=f"a resumed run never gives back what is saved of them: {', '.join(does)}"
            if len(does) > 1
            else f"the state of `{forgot[0].keeper.words()}` is saved, and a run that is resumed never gives it back: "
            f"it {forgot[0].does}",
            because=((forgot[0].saved, "its state is saved here"),),
        )


def _is_lost(trace: Trace, loaded: Loaded, state: StateDict) -> bool:
    """Whether all that is loaded into a state dict surely stays there."""
    if not _is_copy(state) or not trace.known(state):
        return False
    if state.kind == "model" and not trace.known(state.of):
        return False
    return not _applied(trace, loaded, state)


def _is_copy(state: StateDict) -> bool:
    """Whether filling a state dict leaves its owner as it is."""
    if state.kind in ("optimizer", "both"):
        return state.via not in ("state_dict", ".state_dict")
    return bool(state.full and state.offloaded)


def _applied(trace: Trace, loaded: Loaded, state: StateDict) -> bool:
    """Whether a state of that kind is restored after the load, or at a time that is not known."""
    after = (*trace.after(loaded, Restored), *trace.beside(loaded, Restored))
    if any(e.kind in (state.kind, "both") for e in after):
        return True
    return any(  # with arguments that torch does not know the call raises: that is another mistake
        called.order > loaded.order and state in (*called.arguments, *called.keywords.values())
        for called in trace.calls_named(lambda name: name.startswith(_SETTERS))
    )
