"""A buffer that no state dict holds is left as `to_empty` made it.

## What it does

Finds models that are built on the meta device with a buffer registered with `persistent=False`, get memory by
`to_empty`, and are called with nothing between but the loading of a state dict.

## Why is this bad

`to_empty` writes nothing into buffers either, and a state dict does not hold those that are not persistent:
after the load, rotary frequencies, masks and position numbers are still what was in that memory. Nothing
raises. `torch.use_deterministic_algorithms(True)` fills such memory with NaN and so makes the mistake
visible.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
 from torch.distributed.fsdp import fully_shard


 class Scaled(nn.Module):
     def __init__(self):
         super().__init__()
         self.linear = nn.Linear(8, 8)
         self.register_buffer("scale", torch.arange(8.0), persistent=False)

     def forward(self, x):
         return self.linear(x) * self.scale


 dist.init_process_group("gloo")
 with torch.device("meta"):
     model = Scaled()
 fully_shard(model)
 model.to_empty(device="cpu")
 state = torch.load("model.pt", mmap=True)
 options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
 set_model_state_dict(model, state, options=options)
+model.scale = torch.arange(8.0)
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: the table of a rotary embedding inside the model.
- Found: a checkpoint of shards.
- Not found: a device that is an argument of each layer.
- Not found: a function that `apply` gives every module, and that initialises linear layers only.

## Known limits

Any other call that is handed the model or a part of it counts as an initialisation of its buffers, and so
does any statement that sets an attribute of the module. Buffers of libraries are not seen.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html (`register_buffer`, `to_empty`)
- https://docs.pytorch.org/docs/stable/deterministic.html (`fill_uninitialized_memory`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    Finding,
    Literal,
    Moved,
    Trace,
    options,
    rule,
    unwrapped,
)

from .._common.meta import (
    first_forward,
    meta_cases,
    on_paths,
    values_given,
    ways_without_values,
    writes_parameters,
)
from .._common.shared import together


@rule(code="FSDP217", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Buffers that a load leaves as they are."""
    for registered in trace.calls(".register_buffer"):
        name = registered.argument(0, "name")
        kept = registered.argument(2, "persistent")
        if not isinstance(kept, Literal) or kept.value is not False or registered.receiver is None:
            continue
        for owner in options(registered.receiver):
            ways = ((moved, first_forward(trace, moved)) for moved in _emptied(trace, registered))
            moved, forward = next((way for way in ways if way[1] is not None), (None, None))
            if moved is None or forward is None:
                continue
            built, holder = registered.guards.and_(moved.guards), unwrapped(owner)
            giving = [
                one
                for one in values_given(trace, moved, forward, holder, by_loads=False, itself=True)
                if not writes_parameters(one)
            ]
            paths = ways_without_values(
                trace, moved, forward, holder, built, by_loads=False, itself=True, giving=giving
            )
            if not paths:
                continue
            said = f"`{name.value}`" if isinstance(name, Literal) else "it"
            yield Finding(
                at=registered,
                message=f"{said} is in no state dict, and `to_empty` leaves it unwritten: after the load it holds "
                f"garbage{on_paths(forward, paths)}; compute it anew",
                because=((moved, "memory without values is given here"),),
            )
            break


def _emptied(trace: Trace, registered: Called) -> Iterator[Moved]:
    """The `to_empty` of the model that the buffer was registered in, on the meta device."""
    value = registered.argument(1, "tensor")
    owner = registered.receiver
    if value is None or owner is None or (isinstance(value, Literal) and value.value is None):
        return
    on_meta = any(
        together(guards, registered.guards)
        for context in registered.within
        for guards in meta_cases(registered, context)
    )
    for moved in trace.after(registered, Moved) if on_meta else ():
        if moved.how == "to_empty" and trace.inside(unwrapped(owner), unwrapped(moved.module)):
            if together(moved.guards, registered.guards):
                yield moved
