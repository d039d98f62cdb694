"""`torch.save` writes the state dict of a sharded model: a file of one rank's shards.

## What it does

Finds `torch.save` of the `state_dict()` of a sharded model or of its optimizer, directly, inside a
dictionary, or in a helper.

## Why is this bad

The state dict of a sharded model holds `DTensor`s, and pickling one writes only what this rank holds. Rank 0's
file has 1/N of the weights; it loads with other weights or not at all in another world. FSDP1's
`state_dict()` gathered the whole by default.

## Example

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
torch.save(model.state_dict(), f"model_{dist.get_rank()}.pt")
```

## Use instead

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
options = StateDictOptions(full_state_dict=True, cpu_offload=True)
state = get_model_state_dict(model, options=options)
if dist.get_rank() == 0:
    torch.save(state, "model.pt")
```

## Fix safety

Unsafe: in a statement `torch.save(model.state_dict(), …)` the state becomes a full, offloaded gather. Every rank must
reach it, so it comes above an `if rank == 0:` that holds the statement, and where there is none the write gets one.
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

import libcst as cst

from fsdp2lint.api import (
    Called,
    Container,
    Edit,
    Either,
    Finding,
    Fix,
    Guard,
    InsertBefore,
    Layout,
    MainRank,
    Part,
    Replace,
    Saved,
    StateDict,
    Trace,
    Wrap,
    name_for,
    options,
    rank_dependent,
    rule,
)

from ._fixes import call_of, first_argument, free_name, path_text, stands_alone
from ._shared import Shard, changed, state_shard

_PICKLES = ("torch.save", "pickle.dump", "joblib.dump")


@rule(code="FSDP301", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Files of shards."""
    for saved in trace.of(Saved):
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
                because=((shard.event, f"`{shard.module.words()}` is sharded here"),),
                fix=_gather(trace, saved, state),
            )
            break


_KEEPING = (".detach", ".cpu", ".clone", ".to", ".contiguous", ".half", ".float", ".bfloat16")


def _inside(trace: Trace, saved: Saved) -> Iterator[StateDict]:
    """The state dicts whose tensors are in what was saved, shards as they are."""
    results = {c.result: c for c in trace.of(Called) if c.name in _KEEPING}
    todo, seen = [saved.what], {saved.what}
    while todo:
        one = todo.pop()
        inner = list(options(one)) if isinstance(one, Either) else []
        if any(isinstance(v, Part) and not _keeps(v) for v in inner):
            continue
        if isinstance(one, StateDict):
            yield one
        elif isinstance(one, Container):
            inner = [entry for _, entry in trace.memory.entries(one, saved.guards)]
        elif one in results and results[one].receiver is not one:
            inner = [v for v in (results[one].receiver,) if v is not None]
        elif isinstance(one, Part) and _keeps(one):
            inner = [one.owner]
        todo += [v for v in inner if v not in seen]
        seen.update(inner)


def _keeps(value: Part) -> bool:
    """Whether a part of a state dict still is a sharded tensor; local ones are another matter (FSDP311)."""
    words = ("full_tensor", "redistribute", "local", "param_groups", "step")
    return not any(word in str(value.key) for word in words)


def _local(trace: Trace, saved: Saved, state: StateDict) -> Shard | None:
    """The sharding that makes a state dict one of shards."""
    if state.full is True or changed(trace, state, saved):
        return None
    if state.full is None and not state.via.endswith("state_dict"):
        return None
    return state_shard(trace, saved, state)


def _gather(trace: Trace, saved: Saved, state: StateDict) -> Fix | None:
    """Gather on every rank, write on the first: for ``torch.save(model.state_dict(), path)`` as a statement."""
    call, statement = call_of(saved.at), stands_alone(saved.at)
    guards = [g for clause in saved.guards.clauses for g in clause if rank_dependent(g.test)]
    around = _rank_test(saved) if guards else None
    if call is None or statement is None or any(not _asked_by(around, g) for g in guards):
        return None
    asked = first_argument(call)
    if not isinstance(asked, cst.Call) or asked.args or state.kind != "model":
        return None
    if not isinstance(asked.func, cst.Attribute) or asked.func.attr.value != "state_dict":
        return None
    source, node = saved.at.source, saved.at.node
    model = path_text(saved.at, asked.func.value)
    if not model:
        return None
    home = "torch.distributed.checkpoint.state_dict"
    get = name_for(source, node, f"{home}.get_model_state_dict")
    chosen = name_for(source, node, f"{home}.StateDictOptions")
    rank = name_for(source, node, "torch.distributed.get_rank")
    name = free_name(saved.at, "state", "full_state", "full_state_dict")
    gathered = f"{chosen.text}(full_state_dict=True, cpu_offload=True)"
    edits: tuple[Edit, ...] = (
        InsertBefore(source, around or node, f"{name} = {get.text}({model}, options={gathered})"),
        Replace(source, asked, name),
        *get.edits,
        *chosen.edits,
    )
    if around is None:
        edits = (*edits, Wrap(source, node, f"if {rank.text}() == 0:"), *rank.edits)
    return Fix(
        "gather the full state dict on every rank and write it on the first",
        edits,
        "unsafe",
        "every rank must reach this, and rank 0's host must hold the whole model",
    )


def _rank_test(saved: Saved) -> cst.If | None:
    """The ``if`` whose body holds the statement directly, when it has no other branch."""
    layout = Layout.of(saved.at.source)
    block = layout.block(layout.statement(saved.at.node))
    around = layout.parents.get(block)
    if not isinstance(around, cst.If) or around.body is not block or around.orelse is not None:
        return None
    return around if layout.statement(around) is around else None


def _asked_by(around: cst.If | None, guard: Guard) -> bool:
    """Whether a guard is the whole test of an ``if`` for the first rank."""
    on_first = isinstance(guard.test, MainRank) and guard.test.scope == "global" and guard.taken
    return (
        on_first
        and around is not None
        and guard.site is not None
        and guard.site.node is around.test
    )
