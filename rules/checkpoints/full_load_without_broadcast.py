"""Only rank 0 has the full state dict, and `broadcast_from_rank0` is not set for the others.

## What it does

Finds three uses of `set_model_state_dict`, `set_optimizer_state_dict` and `set_state_dict`: the state is None, an empty
dictionary, or one of meta tensors, on all ranks but the first and `broadcast_from_rank0` is off; or
`broadcast_from_rank0` is on and `full_state_dict` is off; or it is on and `set_state_dict` gets an empty model state on
all ranks but the first.

## Why is this bad

Without the broadcast every rank loads what it has itself. The ranks with nothing, the empty dictionary or the meta
tensors raise, or skip the load when `cpu_offload` is on, while rank 0 waits for them in a collective. And the broadcast
works with full state dicts only: without `full_state_dict=True` all ranks raise a `ValueError`. To `set_state_dict` an empty model state means
"only the optimizer": a rank that passes one skips the broadcast of the model, in which rank 0 then waits.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 state = torch.load("model.pt") if dist.get_rank() == 0 else {}
-options = StateDictOptions(full_state_dict=True)
+options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
 set_model_state_dict(model, state, options=options)
```

## Forms

- Found: a trainer whose first rank reads the file.
- Found: None on the other ranks, or tensors on the meta device.
- Found: a broadcast without the full state.
- Not found: a dictionary that only the first rank fills.
- Not found: options that are changed after they were made.

## Fix safety

Safe: the load could not succeed before. `set_state_dict` of a model state that only rank 0 has gets no fix: it
becomes `set_model_state_dict` and `set_optimizer_state_dict`.

## Known limits

Options that are made where the code cannot be followed are taken to be right.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`StateDictOptions`)
- `torch/distributed/checkpoint/state_dict.py` (`_verify_options`, `set_state_dict`, `_load_model_state_dict`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    Finding,
    Guards,
    Literal,
    MainRank,
    StateDict,
    StateDictTaken,
    Trace,
    Value,
    rule,
    unwrapped,
)

from .._common.meta import built_on_meta, given_memory, is_meta
from .._common.shared import DCP, cases, changed, is_none, together
from ._common.checkpoints import surely_empty, switch, switched_on

_SETTERS = tuple(f"{DCP}state_dict.set_{what}state_dict" for what in ("model_", "optimizer_", ""))
_STATES = ("model_state_dict", "optim_state_dict")


@rule(code="FSDP325", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Loads of full states that cannot reach all ranks."""
    for called in trace.calls(*_SETTERS):
        given = called.keywords.get("options")
        if called.open and given is None:
            continue
        options = Literal(None) if given is None else given
        broadcast = switch(trace, options, "broadcast_from_rank0")
        full = switch(trace, options, "full_state_dict")
        skips = _skips_the_model(trace, called)
        if broadcast and full is False:
            fix = switched_on(trace, options, "full_state_dict", _SETTERS)
            yield Finding(
                at=called,
                message="`broadcast_from_rank0` works with full state dicts only: set "
                "`full_state_dict=True` too",
                fix=None if skips else fix,
            )
        elif broadcast is False and any(_on_first_only(trace, called, s) for s in _states(called)):
            fix = switched_on(trace, options, "broadcast_from_rank0", _SETTERS)
            yield Finding(
                at=called,
                message="all ranks but the first pass nothing, an empty dictionary or meta tensors, and "
                "`broadcast_from_rank0` is off: they never get the state and rank 0 waits for them",
                fix=fix if full and not skips else None,
            )
        elif broadcast and skips:
            yield Finding(
                at=called,
                message="all ranks but the first pass an empty model state, by which `set_state_dict` "
                "loads the optimizer only: they skip the model's broadcast and rank 0 waits for them; "
                "use `set_model_state_dict` and `set_optimizer_state_dict`",
            )


def _skips_the_model(trace: Trace, called: Called) -> bool:
    """Whether some ranks pass ``set_state_dict`` no model state, and so load the optimizer only."""
    state = called.keywords.get("model_state_dict")
    return (
        state is not None
        and called.name.endswith(".set_state_dict")
        and _on_first_only(trace, called, state)
    )


def _states(called: Called) -> Iterator[Value]:
    yield from (called.keywords[name] for name in _STATES if name in called.keywords)
    position = 2 if "optimizer" in called.name else 1
    if not called.name.endswith("set_state_dict") and position < len(called.arguments):
        yield called.arguments[position]


def _on_first_only(trace: Trace, called: Called, state: Value) -> bool:
    """Whether a state is something on rank 0 and an empty dictionary on the others."""
    empty = [(guards, _holds_nothing(trace, called, one)) for guards, one in cases(called, state)]
    empty += [(guards, True) for guards in _mapped_to_meta(trace, called, state)]
    return any(e and _elsewhere(g) for g, e in empty) and not all(e for _, e in empty)


def _holds_nothing(trace: Trace, called: Called, state: Value) -> bool:
    """Whether a state is None, an empty dictionary, or that of a model on the meta device."""
    if is_none(state) or surely_empty(trace, state, called):
        return True
    if not isinstance(state, StateDict) or state.full or changed(trace, state, called):
        return False
    taken = next((e for e in trace.of(StateDictTaken) if e.state is state), None)
    if taken is None or built_on_meta(trace, taken, unwrapped(state.of)) is None:
        return False
    return not given_memory(trace, taken, unwrapped(state.of))


def _mapped_to_meta(trace: Trace, called: Called, state: Value) -> Iterator[Guards]:
    """When `torch.load` gives meta tensors: its `map_location` is a choice."""
    for loaded in trace.calls("torch.load"):
        place = loaded.argument(1, "map_location")
        if loaded.result is state and place is not None:
            for guards, one in cases(loaded, place):
                if is_meta(one) and together(guards, called.guards):
                    yield guards


def _elsewhere(guards: Guards) -> bool:
    """Whether guards hold on all ranks but the first."""
    return any(
        isinstance(g.test, MainRank) and g.test.scope == "global" and not g.taken for g in guards
    )
