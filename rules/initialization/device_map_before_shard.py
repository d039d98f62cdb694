"""A model is loaded with `device_map` and sharded by `fully_shard`.

## What it does

Finds `from_pretrained(…, device_map="auto")` (or `"balanced"`, `"sequential"`, …) whose result is given to
`fully_shard`.

## Why is this bad

`device_map` lets accelerate spread one copy of the model over all GPUs that the process sees, and put hooks
around its layers that move activations between them. Every rank does so at once: they all load into the same
GPUs, the hooks stay and move inputs away from the shards. `transformers` refuses to train such a model in any
distributed mode. Load on the CPU or on the meta device and shard then.

## Example

```diff
 import torch.distributed as dist
 from torch.distributed.fsdp import fully_shard
 from transformers import AutoModelForCausalLM

 dist.init_process_group("nccl")
-model = AutoModelForCausalLM.from_pretrained("gpt2", device_map="auto")
+model = AutoModelForCausalLM.from_pretrained("gpt2")
 for block in model.transformer.h:
     fully_shard(block)
 fully_shard(model)
```

## Forms

- Found: the default of a helper function.
- Found: a map that an option switches on.
- Not found: a map that is written out and names several devices.
- Not found: accelerate's own function.

## Fix safety

Unsafe: the argument goes. The host's memory must hold the model on each rank then. None where it is a choice
(`"auto" if args.int8 else None`), which may be for runs that shard nothing.

## Known limits

A map that names one device (`{"": local_rank}`, `"cpu"`, `"cuda:0"`, `"meta"`) puts everything there and is
fine. It was not run here: the damage needs several GPUs.

## References

- https://huggingface.co/docs/accelerate/concept_guides/big_model_inference
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Arguments,
    Called,
    Finding,
    Fix,
    Guards,
    Literal,
    Trace,
    argument,
    rule,
)

from .._common.fixes import call_of
from .._common.shared import Shard, cases, shards_after, together

_SPREADING = ("auto", "balanced", "balanced_low_0", "sequential")


@rule(code="FSDP242", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Models that are spread twice."""
    for loaded in trace.calls_named(lambda name: name.endswith(".from_pretrained")):
        given = loaded.keywords.get("device_map")
        if given is None:
            continue
        for guards, value in cases(loaded, given):
            spreads = isinstance(value, Literal) and value.value in _SPREADING
            shard = _shard(trace, loaded, guards) if spreads else None
            if shard is None or not isinstance(value, Literal):
                continue
            yield Finding(
                at=loaded,
                message=f'`device_map="{value.value}"` spreads the model over all GPUs in every rank, and '
                f"`fully_shard({shard.module.words()})` shards what is spread: leave the map out",
                because=(shard.reason,),
                fix=_without(loaded),
            )
            break


def _shard(trace: Trace, loaded: Called, guards: Guards) -> Shard | None:
    """The sharding of what was loaded, or of a part of it."""
    for shard in shards_after(trace, loaded):
        if trace.inside(shard.module, loaded.result) and together(shard.guards, guards):
            return shard
    return None


def _without(loaded: Called) -> Fix | None:
    """The call without the map."""
    call = call_of(loaded.at)
    written = argument(call, -1, "device_map") if call is not None else None
    if call is None or written is None or isinstance(written.value, cst.IfExp):
        return None  # a choice may be for runs that shard nothing
    edit = Arguments(loaded.at.source, call).remove("device_map")
    return Fix("leave `device_map` out", (edit,), "unsafe", "each rank loads the model on its host")
