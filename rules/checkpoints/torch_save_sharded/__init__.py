"""`torch.save` writes the state dict of a sharded model: a file of one rank's shards.

## What it does

Finds `torch.save` of the `state_dict()` of a sharded model or of its optimizer, directly, inside a
dictionary, or in a helper. Also safetensors' `save_file` and `save_model`, and the `save_pretrained` of models of
Transformers and diffusers, which write the same state dict.

## Why is this bad

The state dict of a sharded model holds `DTensor`s, and pickling one writes only what this rank holds. Rank 0's
file has 1/N of the weights; it loads with other weights or not at all in another world. FSDP1's
`state_dict()` gathered the whole by default.

Safetensors asks each tensor for its storage, and a `DTensor` has none: it raises "Attempted to access the data
pointer on an invalid python storage". `save_pretrained` does so too, on whatever ranks call it, unless Transformers
itself has distributed the model or gets the gathered state as `state_dict=`.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
+from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-torch.save(model.state_dict(), f"model_{dist.get_rank()}.pt")
+options = StateDictOptions(full_state_dict=True, cpu_offload=True)
+state = get_model_state_dict(model, options=options)
+if dist.get_rank() == 0:
+    torch.save(state, "model.pt")
```

## Forms

- Found: a state dict inside a checkpoint, taken by a helper function.
- Found: the state of an optimizer.
- Found: a model of Transformers that writes its own state dict.
- Not found: a state dict that code outside of the project may have gathered.

## Fix safety

Unsafe: states that are taken in the function that saves become full, offloaded gathers. Every rank must reach
them, so they come above an `if rank == 0:` that holds the statements, and where there is none the write gets one.
The gathered model must fit into the memory of rank 0's host.

## Known limits

Silent when the dictionary is changed entry by entry or handed to code that cannot be followed before it
is saved: tensors may have been gathered there.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
- https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Container,
    Either,
    External,
    Finding,
    Module,
    Part,
    Saved,
    StateDict,
    Trace,
    Value,
    lineage,
    options,
    parts_along,
    rule,
    unwrapped,
)

from ..._common.shared import Shard, changed, of_shards, sharded, state_shard, wrapped_by
from .gathering import gathered

_PICKLES = ("torch.save", "pickle.dump", "joblib.dump")
_SAFETENSORS = (
    "safetensors.torch.save_file",
    "safetensors.torch.save_model",
    ".save_pretrained",
)
"""They ask each tensor for its storage, which a ``DTensor`` does not have (safetensors/torch.py, ``storage_ptr``)."""

_GATHERING = ("distributed_config", "tp_plan", "device_mesh")
"""Models that Transformers itself distributes are gathered by ``save_pretrained`` (transformers/distributed/mixin.py)."""


@rule(code="FSDP301", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Files of shards."""
    for saved in trace.of(Saved):
        if saved.via in _SAFETENSORS:
            yield from _by_safetensors(trace, saved)
        if not saved.via.startswith(_PICKLES):
            continue
        states = sorted(_inside(trace, saved), key=lambda state: state.taken)
        for state in states:
            shard = _local(trace, saved, state)
            if shard is None:
                continue
            owner = state.of.words()
            yield Finding(
                at=saved,
                message=f"`{saved.via}` writes the state dict of `{owner}`, which holds only this rank's "
                "shards; save with DCP, or gather the full state dict first",
                because=(shard.reason,),
                fix=gathered(
                    trace, saved, [s for s in states if _local(trace, saved, s) is not None]
                ),
            )
            break


def _by_safetensors(trace: Trace, saved: Saved) -> Iterator[Finding]:
    """Safetensors refuses shards: of a state dict that was taken before, or of one that the save takes itself."""
    found: tuple[Shard, Value] | None = None
    for state in sorted(_inside(trace, saved), key=lambda state: state.taken):
        shard = _local(trace, saved, state)
        if shard is not None:
            found = shard, state.of
            break
    if found is None and _takes_state_itself(trace, saved):
        found = sharded(trace, saved, saved.what)
    if found is None:
        return
    given = "`state_dict=`" if saved.via == ".save_pretrained" else "the call"
    yield Finding(
        at=saved,
        message=f"`{saved.via.lstrip('.')}` raises on the state dict of `{found[1].words()}`: safetensors cannot write "
        f"`DTensor`s; gather the full state dict on every rank, and hand it to {given} on the first",
        because=(found[0].reason,),
    )


def _takes_state_itself(trace: Trace, saved: Saved) -> bool:
    """Whether a model is saved whose class is known to write its own ``state_dict()`` as it is."""
    if saved.via == "safetensors.torch.save_model":
        return True
    if saved.via != ".save_pretrained" or wrapped_by(saved.what, "peft"):
        return False
    model = unwrapped(saved.what)
    if not isinstance(model, Module):
        return False
    libraries = ("transformers.", "diffusers.")
    known = [c for c in lineage(model.cls) if isinstance(c, External)]
    return any(c.name.startswith(libraries) for c in known) and not any(
        name in call.keywords for call in trace.giving(model) for name in _GATHERING
    )


_KEEPING = (".detach", ".cpu", ".clone", ".to", ".contiguous", ".half", ".float", ".bfloat16")


def _inside(trace: Trace, saved: Saved) -> Iterator[StateDict]:
    """The state dicts whose tensors are in what was saved, shards as they are."""
    todo, seen = [saved.what], {saved.what}
    while todo:
        one = todo.pop()
        inner = list(options(one)) if isinstance(one, Either) else []
        if any(map(_is_gathered, inner)):
            continue
        if isinstance(one, StateDict):
            yield one
        elif isinstance(one, Container):
            inner = [entry for _, entry in trace.memory.entries(one, saved.guards)]
        elif (kept := _receiver(trace, one)) is not None:
            inner = [kept]
        elif isinstance(one, Part) and _keeps(one):
            inner = [one.owner]
        todo += [v for v in inner if v not in seen]
        seen.update(inner)


def _receiver(trace: Trace, value: Value) -> Value | None:
    """The value with the same shards of which a call made this one: ``state.cpu()``."""
    made = [call for call in trace.giving(value) if call.name in _KEEPING]
    return made[-1].receiver if made and made[-1].receiver is not value else None


def _is_gathered(value: Value) -> bool:
    """Whether a tensor is made of one that is no shard any more: ``entry.full_tensor().detach()``."""
    return not all(map(_keeps, parts_along(value)))


def _keeps(value: Part) -> bool:
    """Whether a part of a state dict still is a sharded tensor; local ones are another matter (FSDP311)."""
    words = ("full_tensor", "redistribute", "local", "param_groups", "step")
    return not any(word in str(value.key) for word in words)


def _local(trace: Trace, saved: Saved, state: StateDict) -> Shard | None:
    """The sharding that makes a state dict one of shards."""
    if not of_shards(state) or changed(trace, state, saved):
        return None
    return state_shard(trace, saved, state)
