"""A module with parameters is put into a model after `fully_shard`.

## What it does

Finds new layers that are assigned to a model (or to a part of it, or appended to a list in it) after
`fully_shard` was applied to it, that are not sharded themselves, when the model is trained afterwards. So are the
adapters that PEFT puts into a sharded model (`get_peft_model`, `inject_adapter_in_model`, `add_adapter`).

## Why is this bad

`fully_shard` manages the parameters that it finds when it is called. What comes later belongs to no group: its
gradients are never reduced, nothing raises, and each rank trains a copy of its own that drifts away.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
+model.append(nn.Linear(8, 2))
 fully_shard(model)
-model.append(nn.Linear(8, 2))
 optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

## Forms

- Found: a layer that is exchanged by its index.
- Found: a method of the model that adds a head.
- Found: adapters of PEFT.
- Not found: a parameter of the model's own, not a module.
- Not found: an embedding that Transformers makes anew.

## Known limits

Silent when the new module is frozen, when its class cannot be resolved, for adapters that are only read
(`inference_mode`, `PeftModel.from_pretrained` without `is_trainable`), and for other libraries that add modules
(`resize_token_embeddings`). There is no fix: what else happens between the two has to move too.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_init.py` (`_get_managed_states`)
- https://github.com/huggingface/peft (`get_peft_model` changes the model in place)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Assigned,
    Backward,
    Called,
    Finding,
    Instance,
    Literal,
    Trace,
    Value,
    Wrapping,
    rule,
    unwrapped,
)

from .._common.parts import loose, reduced_by_hand, shard_within
from .._common.shared import (
    cases,
    line_of,
    overlap,
    sharded,
    shards_after,
    together,
    wrapped_by,
)


@rule(code="FSDP212", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """New modules that no group holds."""
    yield from _adapters(trace)
    for assigned in trace.of(Assigned):
        found = sharded(trace, assigned, assigned.owner)
        if found is None or next(trace.after(assigned, Backward), None) is None:
            continue
        shard, _ = found
        for guards, added in cases(assigned, assigned.value):
            if not together(shard.guards, guards) or wrapped_by(added, "ddp", "fsdp1"):
                continue
            if not loose(trace, added, shard) or _sharded_anew(trace, assigned):
                continue
            yield Finding(
                at=assigned,
                message=f"`{added.words()}` comes into the model after `fully_shard({shard.module.words()})` "
                f"on {line_of(shard.event, assigned)}: no group holds it, its gradients are not reduced and "
                "each rank trains its own copy",
                because=(shard.reason,),
            )
            break


def _sharded_anew(trace: Trace, assigned: Assigned) -> bool:
    """Whether the file that exchanges a module shards something afterwards: it may be what was exchanged."""
    return any(s.event.at.source is assigned.at.source for s in shards_after(trace, assigned))


def _adapters(trace: Trace) -> Iterator[Finding]:
    """What PEFT puts into a model that is sharded already."""
    for wrapping in trace.of(Wrapping):
        if wrapping.by != "peft" or next(trace.after(wrapping, Backward), None) is None:
            continue
        for guards, model in cases(wrapping, wrapping.module):
            found = sharded(trace, wrapping, model)
            shard = found[0] if found else shard_within(trace, wrapping, model, guards)
            if shard is None or not together(shard.guards, guards):
                continue
            if wrapped_by(model, "ddp", "fsdp1") or not _trained(trace, wrapping):
                continue
            said = unwrapped(model).words()
            yield Finding(
                at=wrapping,
                message=f"the adapters come into `{said}` after `fully_shard({shard.module.words()})` on "
                f"{line_of(shard.event, wrapping)}: no group holds them, their gradients are not reduced and "
                "each rank trains its own copy",
                because=(shard.reason,),
            )
            break


def _trained(trace: Trace, wrapping: Wrapping) -> bool:
    """Whether the adapters are trained as they are: not only read, not sharded or reduced later on."""
    model = unwrapped(wrapping.module)
    later = shards_after(trace, wrapping)
    if any(overlap(trace, again.module, model) is not None for again in later):
        return False
    called = next((c for c in trace.of(Called) if c.at.node is wrapping.at.node), None)
    return called is not None and not _only_read(called) and not reduced_by_hand(trace, model)


def _only_read(called: Called) -> bool:
    """Whether the call asks for adapters that are not trained."""
    if called.name.endswith(".from_pretrained"):
        asked = called.keywords.get("is_trainable")
        return not (isinstance(asked, Literal) and asked.value is True)
    configs = [v for v in (*called.arguments, *called.keywords.values()) if isinstance(v, Instance)]
    return called.open or any(_asks_to_read(config) for config in configs)


def _asks_to_read(config: Value) -> bool:
    asked = config.part(".inference_mode")
    return isinstance(asked, Literal) and asked.value is True
