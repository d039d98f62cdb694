"""State dicts that a script keeps while it trains on become copies.

## What it does

Puts clones into a `model.state_dict()` that outlives optimizer steps: the best weights so far that go back into the
model at the end, or that an attribute holds.

## Why

FSDP1's state dict was a copy. That of FSDP2 holds the parameters themselves: it follows every step, and putting it
back does nothing.

## Example

```diff
 import torch
 from torch import nn
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 model = FSDP(nn.Linear(8, 8))
 optimizer = torch.optim.AdamW(model.parameters())
-best = model.state_dict()
+best = {k: v.clone() for k, v in model.state_dict().items()}
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
 model.load_state_dict(best)
```

## What it leaves

State dicts that are saved: they are gathered, which copies them.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html (`state_dict`)
- `torch/distributed/fsdp/_state_dict_utils.py` (`_full_post_state_dict_hook` clones)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Account,
    External,
    Instance,
    Layout,
    Left,
    Program,
    Restored,
    Rewrite,
    Saved,
    Source,
    StateDictTaken,
    Step,
    Stepped,
    Trace,
    codemod,
    options,
    wrapper,
)

from ._common.loop_models import FSDP1

WHY = "FSDP1 gave a copy; FSDP2's state dict follows the parameters, so that clones are kept"


@codemod(after=("state-dicts", "wrapped-module"))
def rewrite(program: Program) -> Iterator[Step | Left]:
    """State dicts that were copies."""
    for events in program.sites(StateDictTaken):
        site = events[0][1].at
        call = site.node
        if isinstance(call, cst.Call) and any(_is_kept(t, e, call) for t, e in events):
            edit = Rewrite(
                site.source, call, lambda new: f"{{k: v.clone() for k, v in {new.text}.items()}}"
            )
            yield Step((edit,), (Account(site.source, call, "changed", WHY),))


def _is_kept(trace: Trace, taken: StateDictTaken, call: cst.Call) -> bool:
    """Whether a state dict of an FSDP1 model is used after a step that changes the model."""
    state = taken.state
    if state.kind != "model" or state.via != ".state_dict":
        return False
    if not any(wrapper(one) == "fsdp1" for one in options(state.of)):
        return False
    if any(state in saved.states for saved in trace.of(Saved)) or _within_asked_kind(taken):
        return False
    steps = list(trace.after(taken, Stepped))
    if _is_stored(taken.at.source, call):
        return bool(steps)
    return any(
        state in options(restored.state) and step.order < restored.order
        for restored in trace.after(taken, Restored)
        for step in steps
    )


def _within_asked_kind(taken: StateDictTaken) -> bool:
    """Whether ``state_dict_type`` asks for a kind of state dict here."""
    classes = (one.cls for one in taken.within if isinstance(one, Instance))
    return any(isinstance(c, External) and c.name == f"{FSDP1}.state_dict_type" for c in classes)


def _is_stored(source: Source, call: cst.Call) -> bool:
    """Whether an attribute or an entry of a container gets the state dict itself."""
    statement = Layout.of(source).parents[call]
    return isinstance(statement, cst.Assign) and any(
        isinstance(target.target, cst.Attribute | cst.Subscript) for target in statement.targets
    )
