"""Every rank writes the full state dict to the same file.

## What it does

Finds `torch.save` (pickle, safetensors) of a gathered state dict that all ranks reach with the same path.

## Why is this bad

All ranks open one file and write it at the same time. With `cpu_offload=True` it is worse: the gathered
tensors are on rank 0 only, the other ranks hold an empty dictionary, and if one of them is last the file is
an empty checkpoint.

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
 options = StateDictOptions(full_state_dict=True, cpu_offload=True)
 state = get_model_state_dict(model, options=options)
-torch.save(state, "model.pt")
+if dist.get_rank() == 0:
+    torch.save(state, "model.pt")
```

## Forms

- Found: a trainer that saves behind a switch of the program.
- Found: an open file.
- Not found: weights that are gathered one by one.

## Fix safety

Unsafe: where the hosts share no disk, each may need its own file. Only the write is put under the guard; the
gather stays with all ranks, with `cpu_offload=True` where nothing but the write needs what it returns. Where the
same run reads the file afterwards, the ranks wait for it.

## Known limits

Silent when the path or a condition before the write is not known to be the same on all ranks. A switch of the
program (`args.export`) is, unless its name speaks of a rank, a node or the main process.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`StateDictOptions.cpu_offload`)
- https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Collective,
    Edit,
    Finding,
    Fix,
    InsertAfter,
    Loaded,
    Saved,
    StateDictTaken,
    Trace,
    Wrap,
    name_for,
    rule,
    walk,
)

from .._common.fixes import stands_alone
from ._common.checkpoints import all_come, gathering, same_everywhere
from ._common.fixes_offloading import GETTERS, offloaded, used_elsewhere

_ONE_FILE = ("torch.save", "pickle.dump", "joblib.dump", "safetensors.torch.save_file")


@rule(code="FSDP310", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Writes that all ranks make."""
    for saved in trace.of(Saved):
        if saved.via not in _ONE_FILE or not same_everywhere(saved.path):
            continue
        for state in saved.states:
            gathered = gathering(trace, state)
            if gathered is None or not all_come(gathered, saved):
                continue
            empty = ", and all but rank 0 write an empty dictionary" if state.offloaded else ""
            yield Finding(
                at=saved,
                message=f"every rank writes the full state of `{state.of.words()}` to one file{empty}",
                because=((gathered, "all ranks take part in the gather"),),
                fix=_guarded(trace, saved),
            )
            break


def _guarded(trace: Trace, saved: Saved) -> Fix | None:
    """The write on the first rank only; where nothing else needs the states, the others hold none."""
    source, node = saved.at.source, saved.at.node
    if stands_alone(saved.at) is None or _gathers(trace, saved):
        return None
    rank = name_for(source, node, "torch.distributed.get_rank")
    edits: list[Edit] = [Wrap(source, node, f"if {rank.text}() == 0:"), *rank.edits]
    if _is_read_again(trace, saved):
        barrier = name_for(source, node, "torch.distributed.barrier")
        edits += [InsertAfter(source, node, f"{barrier.text}()"), *barrier.edits]
    return Fix(
        "write it on the first rank",
        (*edits, *_offloads(trace, saved)),
        "unsafe",
        "hosts that share no disk each need a file of their own",
    )


def _is_read_again(trace: Trace, saved: Saved) -> bool:
    """Whether the same run reads the file afterwards: then the other ranks must not be there before it is written."""
    path = saved.path
    return path is not None and any(
        loaded.path is not None and loaded.path.words() == path.words()
        for loaded in trace.after(saved, Loaded)
    )


def _gathers(trace: Trace, saved: Saved) -> bool:
    """Whether a function that the write calls computes on all ranks what it writes: ``torch.save(whole(model), path)``.

    What the write itself gathers is taken out of the guard (FSDP302).
    """
    written = set(walk(saved.at.node))
    return any(
        site.node in written
        for collective in trace.of(Collective)
        for site in collective.moment.calls
    )


def _offloads(trace: Trace, saved: Saved) -> Iterator[Edit]:
    """``cpu_offload`` for the gathers of the states that are written, each once."""
    takes = {
        taken.at.node: taken
        for taken in trace.of(StateDictTaken)
        if taken.state in saved.states and taken.state.offloaded is False
    }
    for taken in takes.values():
        if taken.state.via in GETTERS and not used_elsewhere(trace, taken, [saved]):
            fix = offloaded(trace, taken)
            yield from () if fix is None else fix.edits
