"""`ignored_params` is given something else than a set of parameters.

## What it does

Finds `fully_shard(…, ignored_params=…)` with a list or tuple, with modules, or with names.

## Why is this bad

`fully_shard` asks for each parameter whether it is in `ignored_params`. In a list that compares tensors and raises
RuntimeError. A set of modules or of names holds no parameter, so that nothing is ignored: what was to stay plain is
sharded, silently. So it is with a `Sequential`, a `ModuleList` and a `ModuleDict`, in which modules or names are searched;
any other module cannot be searched: TypeError.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
-fully_shard(model, ignored_params=list(model[0].parameters()))
+fully_shard(model, ignored_params=set(model[0].parameters()))
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: a list that a helper function collects.
- Found: the names of the parameters.
- Not found: a dictionary from names to parameters, in which no parameter is found either.
- Not found: the `id` of each parameter: its number equals the parameter's hash, so torch compares the two and raises.

## Fix safety

Safe: `set(…)` is put around a list that is written in the call, which could not run.

## Known limits

The argument exists since torch 2.7. Only what the script puts in is judged, not what an unresolved helper returns.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_init.py` (`_get_managed_states`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Container,
    Finding,
    Fix,
    Literal,
    Module,
    Parameters,
    Part,
    Replace,
    Sharded,
    Trace,
    Value,
    argument,
    options,
    rule,
)

from .._common.fixes import call_of
from .._common.parts import parameter_of, sure
from .._common.shared import class_name

_LISTS = ("builtins.list", "builtins.tuple")
_SETS = ("builtins.set", "builtins.frozenset")
_SEARCHED = ("torch.nn.ModuleDict", "torch.nn.ModuleList", "torch.nn.Sequential")
_RAISES = "`fully_shard` compares tensors in it and raises RuntimeError; make it a set"
_IGNORED = "no parameter is among them, so that nothing is ignored; pass a set of parameters"


@rule(code="FSDP254", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Collections in which no parameter is found."""
    for sharded in trace.of(Sharded):
        for value in sure(sharded, sharded.options.get("ignored_params")):
            said = _wrong(trace, value)
            if said:
                listed = _RAISES in said
                yield Finding(
                    at=sharded,
                    message=f"`ignored_params` is {said}",
                    fix=_set_of(sharded) if listed else None,
                )
                break


def _wrong(trace: Trace, value: Value) -> str:
    """What is wrong with the value, or nothing."""
    if isinstance(value, Module):
        if class_name(value) in _SEARCHED:
            return f"a `{class_name(value).removeprefix('torch.nn.')}`: {_IGNORED}"
        return (
            "a module: `fully_shard` searches it and raises TypeError; pass a set of its parameters"
        )
    if isinstance(value, Parameters):
        made = [c.name for c in trace.calls(*_LISTS, *_SETS) if c.result is value]
        listed = made and not any(name in _SETS for name in made)
        return f"a {made[0].removeprefix('builtins.')}: {_RAISES}" if listed else ""
    if not isinstance(value, Container) or value.kind == "dict":
        return ""
    entries = [one for _, entry in trace.memory.entries(value) for one in options(entry)]
    if entries and all(isinstance(one, Module) for one in entries):
        return f"a {value.kind} of modules: {_IGNORED}"
    if entries and all(_is_name(one) for one in entries):
        return f"a {value.kind} of names: {_IGNORED}"
    if value.kind in ("list", "tuple") and any(parameter_of(one) is not None for one in entries):
        return f"a {value.kind}: {_RAISES}"
    return ""


def _is_name(value: Value) -> bool:
    """Whether this is a string, or the name that goes with a parameter."""
    if isinstance(value, Literal):
        return isinstance(value.value, str)
    if not isinstance(value, Part) or value.key != ".name":
        return False
    return isinstance(value.owner.owner, Parameters) and value.owner.owner.named


def _set_of(sharded: Sharded) -> Fix | None:
    """A set made of the list that is written in the call."""
    given = argument(call_of(sharded.at), -1, "ignored_params")
    if given is None:
        return None
    source, value = sharded.at.source, given.value
    edit = Replace(source, value, f"set({source.code(value)})")
    if isinstance(value, cst.Call) and source.code(value.func) in ("list", "tuple"):
        edit = Replace(source, value.func, "set")
    return Fix("make it a set", (edit,), "safe")
