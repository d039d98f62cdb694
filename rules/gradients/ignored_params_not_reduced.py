"""Parameters that `ignored_params` leaves out are trained, and nothing reduces their gradients.

## What it does

Finds `fully_shard(model, ignored_params=…)` with the parameters of a module or a parameter of the model where the
model is trained with an optimizer over all of its parameters, and nothing else shards, wraps or reduces them.

## Why is this bad

Ignored parameters stay plain tensors, each rank has its own. FSDP does not reduce their gradients, so each rank trains
them on its own data: the copies drift apart, no error says so, and the checkpoint holds those of one rank. Beside
shards in one list they make `clip_grad_norm_`, and optimizers with `fused=True` or `foreach=True`, raise "mixed
torch.Tensor and DTensor".

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
 head = set(model[1].parameters())
 fully_shard(model, ignored_params=head)
 optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
 model(torch.randn(4, 8)).sum().backward()
+for parameter in head:
+    dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
 optimizer.step()
```

## Forms

- Found: a parameter of the model's own, in a class that trains.
- Found: several modules, put together.
- Not found: parameters that a test chooses.
- Not found: the gradients are reduced for something else.

## Known limits

The argument exists since torch 2.7. Silent when parameters are frozen, when gradients or parameters are (or may be)
reduced by hand, and when the ignored module is sharded or wrapped by itself, as experts are.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`ignored_params`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_init.py` (`_get_managed_states`)
- https://github.com/pytorch/pytorch/issues/183207
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    Container,
    Finding,
    Forward,
    Module,
    OptimizerBuilt,
    Parameters,
    Part,
    Sharded,
    Trace,
    Value,
    Wrapping,
    options,
    rule,
    unwrapped,
)

from .._common.parts import below, sure
from .._common.shared import class_name, shards, together
from .._common.training import kept_in_step_by_groups, may_be_frozen

_PARALLELIZE = "torch.distributed.tensor.parallel.parallelize_module"


@rule(code="FSDP264", group="correctness", preview=True)
def check(trace: Trace) -> Iterator[Finding]:
    """Ignored parameters that are trained on each rank alone."""
    for sharded in trace.of(Sharded):
        for value in sure(sharded, sharded.options.get("ignored_params")):
            left_out = [one for one in _owners(trace, value) if not _cared_for(trace, one)]
            found = next(
                ((one, f) for one in left_out for f in _trained(trace, sharded, one)), None
            )
            if found is None:
                continue
            layer, (forward, built) = found
            yield Finding(
                at=sharded,
                message=f"`{layer.words()}` is among `ignored_params`: nothing reduces its gradients, and the ranks "
                "drift apart",
                because=(
                    (built, "the optimizer trains it too"),
                    (forward, "the model runs forward here"),
                ),
            )
            break


def _owners(trace: Trace, value: Value) -> Iterator[Value]:
    """The modules whose parameters a set surely holds, and the single parameters in it."""
    if isinstance(value, Parameters):
        yield from (one for one in options(value.of) if isinstance(one, Module))
    elif isinstance(value, Part) and value.operation == "|":
        for one in value.made_of:
            yield from _owners(trace, one)
    elif isinstance(value, Container) and not value.open and value.kind != "dict":
        held = [one for _, entry in trace.memory.entries(value) for one in options(entry)]
        yield from (one for one in held if class_name(one) == "torch.nn.Parameter")


def _cared_for(trace: Trace, layer: Value) -> bool:
    """Whether something may freeze, shard, split or wrap what is left out."""
    inside = below(trace, layer)
    others = [unwrapped(s.module) for s in shards(trace)]
    others += [
        unwrapped(w.module) for w in trace.of(Wrapping) if w.by in ("ddp", "fsdp1", "replicate")
    ]
    others += [m for c in trace.calls(_PARALLELIZE) for m in _given(c)]
    return may_be_frozen(trace, layer) or any(one in inside for one in others)


def _given(called: Called) -> Iterator[Value]:
    given = called.argument(0, "module")
    if given is not None:
        yield from map(unwrapped, options(given))


def _trained(
    trace: Trace, sharded: Sharded, layer: Value
) -> Iterator[tuple[Forward, OptimizerBuilt]]:
    """Where a model that holds the layer runs forward, and the optimizer that takes all of its parameters."""
    root = unwrapped(sharded.module)
    if not trace.inside(layer, root) or layer is root or not trace.known(root):
        return
    for built in trace.of(OptimizerBuilt):
        if not together(built.guards, sharded.guards):
            continue
        if not any(unwrapped(over.of) in (root, layer) for over in built.over):
            continue
        for forward in trace.after(sharded, Forward):
            if unwrapped(forward.module) is root and forward.how == "call":
                if kept_in_step_by_groups(trace, forward, root, [sharded.guards]):
                    yield forward, built
