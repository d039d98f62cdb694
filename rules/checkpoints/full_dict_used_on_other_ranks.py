"""A gathered state dict that only rank 0 holds is used on all ranks.

## What it does

Finds state dicts taken with `full_state_dict=True, cpu_offload=True` that all ranks load into a model, call a method
of an entry of, or take an entry out of.

## Why is this bad

With both switches on, the gathered tensors stay on rank 0 and the other ranks get an empty dictionary. There
`load_state_dict` misses every key, reading an entry raises `KeyError`, and while they fail rank 0 may wait
for them.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 options = StateDictOptions(full_state_dict=True, cpu_offload=True)
 weights = get_model_state_dict(model, options=options)
-plain = nn.Linear(8, 8)
-plain.load_state_dict(weights)
+if dist.get_rank() == 0:
+    plain = nn.Linear(8, 8)
+    plain.load_state_dict(weights)
```

## Forms

- Found: weights that a trainer returns, for an evaluation on all ranks.
- Found: the state of the optimizer.
- Found: an entry that is taken out.
- Not found: an entry that is only looked up.

## Known limits

Entries that are only looked up, or computed with by an operator, are not seen. To have the weights on all ranks, leave
`cpu_offload` out; to put them into a sharded model, set `broadcast_from_rank0=True`.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`StateDictOptions.cpu_offload`)
- `torch/distributed/checkpoint/state_dict.py` (`_maybe_full_or_cpu_state_dict`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    Event,
    Finding,
    Literal,
    Part,
    Restored,
    StateDict,
    Trace,
    Value,
    rule,
)

from ._common.checkpoints import all_come, gathering, switch


@rule(code="FSDP316", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Uses of what the other ranks do not have."""
    for event, state in (*_restored(trace), *_read(trace)):
        gathered = gathering(trace, state)
        if gathered is None or not state.offloaded or not all_come(gathered, event):
            continue
        yield Finding(
            at=event,
            message=f"`{state.words()}` is empty on all ranks but the first: it was gathered with "
            "`cpu_offload=True`",
            because=((gathered, "the full state dict goes to rank 0 here"),),
        )


def _restored(trace: Trace) -> Iterator[tuple[Event, StateDict]]:
    """Loads into models without a broadcast."""
    for restored in trace.of(Restored):
        if isinstance(restored.state, StateDict) and not _spread(trace, restored):
            yield restored, restored.state


def _spread(trace: Trace, restored: Restored) -> bool:
    """Whether the load may send what rank 0 has to the other ranks."""
    if restored.via == ".load_state_dict":
        return False
    for called in trace.of(Called):
        if called.at.node is restored.at.node:
            options = called.keywords.get("options", None if called.open else Literal(None))
            return options is None or switch(trace, options, "broadcast_from_rank0") is not False
    return True


def _read(trace: Trace) -> Iterator[tuple[Event, StateDict]]:
    """Methods of entries, and entries that are taken out."""
    for called in trace.of(Called):
        state = None if called.receiver is None else _owner(called.receiver)
        if state is not None:
            yield called, state
    for popped in trace.calls(".pop"):
        if isinstance(popped.receiver, StateDict) and len(popped.arguments) == 1:
            yield popped, popped.receiver


def _owner(entry: Value) -> StateDict | None:
    """The state dict that an entry is looked up in."""
    if not isinstance(entry, Part) or not isinstance(entry.owner, StateDict):
        return None
    return entry.owner if isinstance(entry.key, str) and entry.key.startswith("[") else None
