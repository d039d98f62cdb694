"""FSDP1's optimizer states are taken by `get_optimizer_state_dict`.

## What it does

Rewrites `FSDP.optim_state_dict`, `FSDP.full_optim_state_dict` and `FSDP.sharded_optim_state_dict`. The kind that
`state_dict_type` or `set_state_dict_type` asks for becomes `StateDictOptions` of the call. Where a state is taken
before the first step, `step` is set back: `get_optimizer_state_dict` makes the state of a fresh optimizer by a step
with learning rate 0, which would count. What FSDP1 brought to the CPU of every rank, its default, a small function
gathers there, one tensor after the other.

## Why

The static methods work on the flat parameters of FSDP1. `get_optimizer_state_dict` gives the same dictionary, by
parameter names, for sharded modules.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
+from torch.distributed.checkpoint.state_dict import (
+    StateDictOptions,
+    get_optimizer_state_dict,
+)
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 model = FSDP(nn.Linear(8, 8))
 optimizer = torch.optim.AdamW(model.parameters())
-state = FSDP.full_optim_state_dict(model, optimizer)
+state = get_optimizer_state_dict(
+    model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
+)
 if dist.get_rank() == 0:
     torch.save(state, "optimizer.pt")
```

## What it leaves

`LOCAL_STATE_DICT`, which has no counterpart; a state that is given as the third argument; a function that
is asked for different kinds by different callers. A helper object that holds the optimizer hands it
over where its methods show which attribute it is.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`get_optimizer_state_dict`)
- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`optim_state_dict`, `full_optim_state_dict`)
- `torch/distributed/checkpoint/state_dict.py` (`_init_optim_state`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Account,
    Edit,
    Inner,
    InsertBefore,
    Layout,
    Left,
    Program,
    Rewrite,
    Source,
    StateDictTaken,
    Step,
    Stepped,
    Trace,
    argument,
    codemod,
    name_for,
)

from ._common.loop_text import text_of
from ._common.states_asked import FSDP1, FULL, SHARDED, Asked, asked
from ._common.states_assumed import assumed
from ._common.states_holders import TODO as HOLDER_TODO
from ._common.states_holders import field_of, held_in, why_not
from ._common.states_kinds import Kind, agreed
from ._common.states_text import HOME, fitted, is_path, options_for, starred, unimports
from ._common.states_uses import for_first_rank_only, fsdp1_models_of, in_groups
from ._common.states_whole import WHY as ON_CPU
from ._common.states_whole import Wholes

_GETTERS = {
    f"{FSDP1}.optim_state_dict": "",
    f"{FSDP1}.full_optim_state_dict": FULL,
    f"{FSDP1}.sharded_optim_state_dict": SHARDED,
}
_KINDS = {
    FULL: "the whole state",
    SHARDED: "the sharded state",
    "": "the kind that the run asks for",
}

Events = Sequence[tuple[Trace, StateDictTaken]]


@codemod()
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Optimizer states that FSDP1 takes."""
    wholes = Wholes()
    taken = (e for e in program.sites(StateDictTaken) if e[0][1].state.via in _GETTERS)
    yield from wholes.together(_step(program, events, wholes) for events in taken)


def _step(program: Program, events: Events, wholes: Wholes) -> Step | Left:
    _, taken = events[0]
    source, call = taken.at.source, taken.at.node
    found = [(_asked(t, e), for_first_rank_only(t, e.state)) for t, e in events]
    kind = agreed(source, call, found)
    problem = "" if isinstance(kind, Kind) else kind
    if not isinstance(call, cst.Call) or starred(call):
        problem = "its arguments are handed on from elsewhere"
    elif taken.state.via == f"{FSDP1}.optim_state_dict" and _is_of_another(call):
        problem = "it is given a state of its own to gather"
    if problem or not isinstance(kind, Kind) or not isinstance(call, cst.Call):
        return Left(source, call, problem, _TODO)
    models = [
        (t, one)
        for t, e in events
        for o in held_in(t, e, e.state.of)
        for one in fsdp1_models_of(t, o, e)
    ]
    if not all(first for _, first in found) and any(in_groups(*one) for one in models):
        kind = kind.in_groups()
    model, optimizer = argument(call, 0, "model"), argument(call, 1, "optim")
    if model is None or optimizer is None:
        return Left(source, call, "it is not given a model and an optimizer", _TODO)
    given = [(t, e, e.state.of) for t, e in events]
    field = field_of(given)
    if field is None:
        return Left(source, call, why_not(given), HOLDER_TODO)
    getter = name_for(source, call, f"{HOME}.get_optimizer_state_dict")
    # DCP brings shards to the CPU itself: unless the script says it, only what is gathered needs the option
    explicit = kind.name != SHARDED or all(one.explicit for one, _ in found)
    switches = kind.switches if explicit else ()
    options, more = options_for(source, call, switches)
    first, second = model.value, optimizer.value
    around = wholes.name(source, call) if kind.on_cpu else ""

    def text(inner: Inner) -> str:
        parts = [inner(first), inner(second) + field, *([options] if options else [])]
        return fitted(source, call, getter.text, parts, around=around)

    imports = (*getter.edits, *more, *kind.imports)
    edits = (Rewrite(source, call, text), *imports, *unimports(program, source))
    why = f"{_KINDS[kind.name]} by parameter names, as before; FSDP2 has no flat parameters"
    why += f"; {ON_CPU}" if kind.on_cpu else ""
    why += assumed(program, events) if kind.name == FULL else ""
    if any(_before_the_first_step(t, e) for t, e in events) and is_path(source, second):
        said = (text_of(source, first), text_of(source, second) + field)
        edits += tuple(_without_a_count(source, call, getter.text, *said))
        why += "; what torch makes of it before the first step counts none"
        why += _LOADED_INTO if kind.name == SHARDED else ""
    return Step(edits, (Account(source, call, "changed", why),))


_LOADED_INTO = (
    "; FSDP1 has no state before the first step, so that `dcp.load` into it read nothing: "
    "a resumed run goes on with the optimizer's state now"
)
"""Measured with torch 2.13 on two CPU ranks."""


def _is_of_another(call: cst.Call) -> bool:
    """Whether ``FSDP.optim_state_dict`` gathers a state that may not be what the optimizer itself gives."""
    given, optimizer = argument(call, 2, "optim_state_dict"), argument(call, 1, "optim")
    if given is None or optimizer is None or getattr(given.value, "value", "") == "None":
        return False
    asked = given.value
    if isinstance(asked, cst.Call) and isinstance(asked.func, cst.Attribute) and not asked.args:
        same = asked.func.value.deep_equals(optimizer.value)
        return not same or asked.func.attr.value != "state_dict"
    return True


def _before_the_first_step(trace: Trace, taken: StateDictTaken) -> bool:
    """Whether a run takes the state of an optimizer that has not stepped, and then steps with it."""
    mine = held_in(trace, taken, taken.state.of)
    if any(stepped.optimizer in mine for stepped in trace.before(taken, Stepped)):
        return False
    return any(stepped.optimizer in mine for stepped in trace.after(taken, Stepped))


def _without_a_count(
    source: Source, call: cst.Call, getter: str, model: str, optimizer: str
) -> Iterator[Edit]:
    """The state of a fresh optimizer is made first, and its steps are set to none."""
    torch = name_for(source, call, "torch", module=True)
    unit = Layout.of(source).unit
    lines = [
        "# torch makes the state of a fresh optimizer by a step of its own, which must not count",
        f"if not {optimizer}.state:",
        f"{unit}{getter}({model}, {optimizer})",
        f"{unit}for values in {optimizer}.state.values():",
        f'{unit * 2}if {torch.text}.is_tensor(values.get("step")):',
        f'{unit * 3}values["step"].zero_()',
    ]
    yield InsertBefore(source, call, "\n".join(lines))
    yield from torch.edits


_TODO = "use get_optimizer_state_dict(model, optimizer, options=StateDictOptions(...))"


def _asked(trace: Trace, taken: StateDictTaken) -> Asked:
    kind = _GETTERS[taken.state.via]
    if kind == FULL:  # rank0_only is on by default, and it is always on the CPU
        return Asked(FULL, bool(taken.state.offloaded), True)
    return Asked(kind, False, True) if kind else asked(trace, taken, optimizer=True)
