"""Adam or AdamW updates a sharded model in many small operations instead of one.

## What it does

Finds `torch.optim.Adam` and `AdamW` over the parameters of a sharded model without `fused=True`.

## Why is this bad

An update by AdamW is about ten operations for each tensor. Without a choice PyTorch takes the multi-tensor form
on GPUs, which starts each of them once for all tensors and reads and writes all memory each time, and the plain
loop on CPUs (with `CPUOffloadPolicy` that is where the optimizer runs). Every one of those operations passes
through the dispatch of `DTensor` besides, so that steps of small models wait for the CPU. `fused=True` makes the
whole update in one operation.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
+optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

## Forms

- Found: groups of parameters.
- Found: an optimizer from a dictionary.
- Not found: keywords that are read from a file.
- Not found: an optimizer that an option names.
- Not found: an optimizer that never steps.

## Fix safety

Unsafe: `fused=True` is added. Its results differ in the last bits, and it refuses parameters that are not
floating-point numbers.

## Known limits

Silent where `fused`, `foreach`, `capturable` or `differentiable` is given, where a program surely never steps the optimizer, where keywords come from a dictionary
that is not known, and where some parameters are ignored by `fully_shard`: plain and sharded tensors cannot be
updated in one operation. `SGD` and `Adagrad` are left alone: torch 2.13 has no fused form of them for `DTensor`
("aten._fused_sgd_.default does not have a sharding strategy registered"). What is saved on a GPU a CPU cannot
show; the number of operations it can: 46 for four tensors, and 8 with `fused=True`.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html (`fused`)
- https://github.com/pytorch/pytorch/issues/134191
- `torch/optim/adam.py` (`_fused_adam`, `_default_to_fused_or_foreach`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Arguments, Called, Finding, Fix, OptimizerBuilt, Stepped, Trace, rule

from .._common.fixes import call_of
from .._common.shared import Shard, sharded, shards

_NAMES = tuple(f"torch.optim.{name}" for name in ("Adam", "AdamW"))
_CHOICES = ("fused", "foreach", "capturable", "differentiable")


@rule(code="FSDP510", group="perf")
def check(trace: Trace) -> Iterator[Finding]:
    """Optimizers that work tensor by tensor."""
    if any("ignored_params" in s.event.options or s.event.open for s in shards(trace)):
        return
    for called in trace.calls(*_NAMES):
        if called.open or any(choice in called.keywords for choice in _CHOICES):
            continue
        shard = _shard_of(trace, called)
        if shard is not None:
            yield Finding(
                at=called,
                message=f"`{called.name}` updates the shards of `{shard.module.words()}` in several operations "
                "for each tensor; `fused=True` makes it one for all",
                because=(shard.reason,),
                fix=_fused(called),
            )


def _shard_of(trace: Trace, called: Called) -> Shard | None:
    """The sharding of a module whose parameters an optimizer takes."""
    for built in trace.of(OptimizerBuilt):
        if built.optimizer is called.result and not _never_steps(trace, built):
            for parameters in built.over:
                found = sharded(trace, built, parameters.of)
                if found is not None:
                    return found[0]
    return None


def _never_steps(trace: Trace, built: OptimizerBuilt) -> bool:
    """Whether a program makes an optimizer only to load its state, or to look at it."""
    return trace.entry == "__main__" and trace.never(Stepped, built.optimizer)


def _fused(called: Called) -> Fix | None:
    call = call_of(called.at)
    if call is None:
        return None
    arguments = Arguments(called.at.source, call)
    if arguments.open:
        return None
    note = "results differ in their last bits"
    return Fix(
        "make the update in one operation", (arguments.add("fused", "True"),), "unsafe", note
    )
