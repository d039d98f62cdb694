"""Every rank gathers the whole model on its device, and only the first writes it.

## What it does

Finds `get_model_state_dict`, `get_optimizer_state_dict` and `get_state_dict` of a sharded model with
`full_state_dict=True` and without `cpu_offload=True`, and loops that put each `full_tensor()` into a dictionary or a
list, where only the first rank does anything with the result: it saves it.

## Why is this bad

Without `cpu_offload` each rank keeps a full copy of every tensor on its own device: a model that was sharded
because it does not fit is put together on each GPU, beside the shards. With it each tensor goes to the CPU of the
first rank as it is gathered, and the other ranks hold nothing: on two CPU ranks the second one gets all tensors
without the switch and an empty dictionary with it.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-options = StateDictOptions(full_state_dict=True)
+options = StateDictOptions(full_state_dict=True, cpu_offload=True)
 weights = get_model_state_dict(model, options=options)
 if dist.get_rank() == 0:
     torch.save(weights, "model.pt")
```

## Forms

- Found: a trainer whose first rank writes.
- Found: each `full_tensor()` in a dictionary, gathered by a helper function.
- Not found: tensors that all ranks copy to the CPU after the gather.
- Not found: a gather by `redistribute`.

## Fix safety

Safe: the tensors in the file are on the CPU, and the ranks that get an empty dictionary do not use it. Options
that a setter shares, and those that are not written in a call, are left alone.

## Known limits

Silent where another rank looks into the dictionary (but for its length), where it is handed to code that cannot
be followed, and where no save of it is found.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`StateDictOptions.cpu_offload`)
- `torch/distributed/checkpoint/state_dict.py` (`_maybe_full_or_cpu_state_dict`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    Container,
    Finding,
    Part,
    Saved,
    StateDictTaken,
    Trace,
    Value,
    options,
    rank_dependent,
    rule,
)

from .._common.parts import model_of
from .._common.shared import sharded, state_shard
from ._common.fixes_offloading import GETTERS, HARMLESS, offloaded, on_first, used_elsewhere

_ONE_FILE = (
    "torch.save",
    "pickle.dump",
    "joblib.dump",
    "safetensors.torch.save_file",
    ".save_pretrained",
)
_KEEPING = (".detach", ".clone", ".contiguous")
_STAYING = (".data", *((f"{name}()",) for name in _KEEPING))


@rule(code="FSDP309", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Gathers whose result one rank writes and no other needs."""
    for taken in trace.of(StateDictTaken):
        state = taken.state
        if not state.full or state.offloaded is not False or state.via not in GETTERS:
            continue
        written = _written_by_first(trace, taken)
        shard = None if written is None else state_shard(trace, taken, state)
        if written is None or shard is None or used_elsewhere(trace, taken):
            continue
        yield Finding(
            at=taken,
            message=f"every rank gathers the full state of `{state.of.words()}` on its own device, and only "
            "the first writes it; with `cpu_offload=True` the others hold nothing",
            because=((shard.event, "it is sharded here"), (written, "the first rank writes it")),
            fix=offloaded(trace, taken),
        )

    yield from _gathered_by_hand(trace)


def _gathered_by_hand(trace: Trace) -> Iterator[Finding]:
    """Loops that put each `full_tensor()` into a dictionary, which the first rank writes."""
    gathers = {called.result: called for called in trace.calls(".full_tensor")}
    for moved in trace.calls(".cpu", ".to", ".numpy"):
        if moved.receiver is not None:
            gathers.pop(_in_place(moved.receiver), None)
    for saved in trace.of(Saved) if gathers else ():
        if saved.via not in _ONE_FILE or not on_first(saved):
            continue
        for held, tensor in _kept_on_all_ranks(trace, saved):
            called = gathers.get(_in_place(tensor))
            model = None if called is None or called.receiver is None else model_of(called.receiver)
            found = None if called is None else sharded(trace, called, model)
            if called is None or found is None or on_first(called) or _needed(trace, held, saved):
                continue
            if _computed_with(trace, called):
                continue
            yield Finding(
                at=called,
                message=f"every rank keeps the whole `{found[1].words()}` on its own device, and only the first writes "
                "it; move each tensor to the CPU on the first rank as it is gathered, and drop it on the others",
                because=(
                    (found[0].event, "it is sharded here"),
                    (saved, "the first rank writes it"),
                ),
            )
            break


def _kept_on_all_ranks(trace: Trace, saved: Saved) -> Iterator[tuple[Container, Value]]:
    """The entries of dictionaries that are saved, each with its dictionary, that no test of the rank keeps out."""
    todo, seen = [saved.what], set[Value]()
    while todo:
        one = todo.pop()
        if one in seen or not isinstance(one, Container):
            continue
        seen.add(one)
        for stored in trace.memory.fields.get(one, {}).values():
            for guards, value in stored.bindings:
                todo += options(value)
                if not any(rank_dependent(g.test) for clause in guards.clauses for g in clause):
                    yield from ((one, tensor) for tensor in options(value))


def _in_place(tensor: Value) -> Value:
    """Without what leaves a tensor on its device."""
    while isinstance(tensor, Part) and tensor.key in _STAYING:
        tensor = tensor.owner
    return tensor


def _computed_with(trace: Trace, gathered: Called) -> bool:
    """Whether other ranks do something with a whole tensor than to keep it."""
    return any(
        gathered.result in map(_in_place, options(value))
        for called in trace.of(Called)
        if called.order > gathered.order and not on_first(called)
        if called.name not in (*HARMLESS, *_KEEPING, ".append")
        for value in (called.receiver, *called.arguments, *called.keywords.values())
        if value is not None
    )


def _needed(trace: Trace, held: Container, saved: Saved) -> bool:
    """Whether other ranks use a dictionary too, or unresolved code may."""
    if any(not on_first(escaped) for escaped in trace.escapes(held)):
        return True
    given = (c for c in trace.of(Called) if c.at.node is not saved.at.node and not on_first(c))
    return any(
        held in options(value) and called.name not in HARMLESS and called.receiver is not held
        for called in given
        for value in (*called.arguments, *called.keywords.values())
    )


def _written_by_first(trace: Trace, taken: StateDictTaken) -> Saved | None:
    for saved in trace.after(taken, Saved):
        if taken.state in saved.states and saved.via in _ONE_FILE and on_first(saved):
            return saved
    return None
