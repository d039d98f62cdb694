"""A model gets memory by `to_empty` and is trained without values.

## What it does

Finds models that are built on the meta device, get memory by `to_empty`, and compute and train with nothing
between that gives them values: neither an initialisation nor a load.

## Why is this bad

`to_empty` allocates and writes nothing: the parameters are what was in that memory. On a fresh process this
is often zero, later it is NaN or the remains of other tensors, and other ones on each rank. Nothing raises.
`torch.use_deterministic_algorithms(True)` fills such memory with NaN and so makes the mistake visible.

## Example

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
with torch.device("meta"):
    model = nn.Linear(8, 8)
fully_shard(model)
model.to_empty(device="cpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
```

## Use instead

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
with torch.device("meta"):
    model = nn.Linear(8, 8)
fully_shard(model)
model.to_empty(device="cpu")
model.reset_parameters()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
```

## Fix safety

Unsafe: below the statement each layer's `reset_parameters` is called, and then what the constructor applies to
itself (`self.apply(self.initialise)`), if it does. There is no fix unless all layers of the model are in sight
and have that method, own no parameters or buffers beside it, share no weights, and get no values in another way.

## Known limits

Any call between that is handed the model, a part of it or one of its parameters counts as an initialisation,
unless it is known to give no values. Silent when the model is never trained (measurements of memory do that
on purpose), and when a load fills it.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html (`to_empty`)
- https://docs.pytorch.org/docs/stable/deterministic.html (`fill_uninitialized_memory`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Finding, Fix, InsertAfter, Moved, Stepped, Trace, rule, unwrapped

from ._fixes import own_statement, path_text, receiver_of
from ._fixes_values import values_for
from ._meta import built_on_meta, first_forward, valued


@rule(code="FSDP251", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Memory that nobody has written to."""
    for moved in trace.of(Moved):
        if moved.how != "to_empty":
            continue
        module = unwrapped(moved.module)
        built = built_on_meta(trace, moved, module)
        forward = first_forward(trace, moved)
        if built is None or forward is None or valued(trace, moved, forward, module):
            continue
        if next(trace.after(forward, Stepped), None) is None:
            continue
        yield Finding(
            at=moved,
            message=f"`to_empty` gives `{module.words()}` memory without values, and nothing initialises or "
            "loads them before it is trained: it begins with garbage",
            because=(
                (built, "built on the meta device here"),
                (forward, "it computes here for the first time"),
            ),
            fix=_initialised(trace, moved),
        )


def _initialised(trace: Trace, moved: Moved) -> Fix | None:
    """The statements that give the parameters values, below the one that gives them memory."""
    site = moved.at
    statement = own_statement(site)
    name = path_text(site, receiver_of(site))
    if not name or statement is None:
        return None
    if isinstance(statement, cst.Assign) and not all(
        site.source.code(one.target) == name for one in statement.targets
    ):
        return None
    emptied = [one for one in trace.of(Moved) if one.at.node is site.node]
    texts = {values_for(trace, one, one.module, name) for one in emptied}
    if len(texts) != 1 or "" in texts:
        return None
    edit = InsertAfter(site.source, site.node, texts.pop())
    return Fix(
        "initialise the parameters",
        (edit,),
        "unsafe",
        "each layer gets the values that torch gives it by default: look at what the model wants beside",
    )
