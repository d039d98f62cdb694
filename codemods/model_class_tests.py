"""Tests of a wrapped model for its own class are left for manual migration.

## What it does

Points out where a script asks whether a model that FSDP1 wraps is of the class that it was built from, or of one that
this class derives from: by `isinstance`.

## Why

FSDP1's wrapper was none of them, so that the test was false. `fully_shard` gives the model a class that derives from
`FSDPModule` and from its own: the same test is true, and the other branch is taken.

## Example

```diff
 from torch import nn
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


 class Encoder(nn.Module):
     pass


 def save(model: nn.Module) -> None:
     if isinstance(model, Encoder):
         print("a plain model")


 save(FSDP(Encoder()))
```

## What it leaves

All of it: whether the branch is for what is not sharded or for what the class can do, the script does not say. Tests
for `nn.Module`, tests that ask for FSDP1's class too, and those of the modules inside a model come out as before.

## References

- `torch/distributed/fsdp/_fully_shard/_fully_shard.py` (`fully_shard`: the class it makes)
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Container,
    Left,
    Module,
    Program,
    Source,
    Step,
    Trace,
    Value,
    codemod,
    lineage,
    options,
    unwrapped,
    wrapper,
)

from ._common.loop_classes import class_test, is_one_of_many

WHY = "FSDP1's wrapper is not of this class, a model that fully_shard has sharded is: it comes out true"
TODO = "this is true of a sharded model now: check which branch it should take"
_OF_BOTH = ("torch.nn.Module", "builtins.object")


@codemod()
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Tests for the class of a model inside FSDP1's wrapper."""
    for events in program.sites(Called):
        called = events[0][1]
        node = called.at.node
        if called.name != "builtins.isinstance" or not isinstance(node, cst.Call):
            continue
        if any(_changes(trace, event) for trace, event in events):
            if _asks_one(program, called.at.source, node):
                yield Left(called.at.source, node, WHY, TODO)


def _asks_one(program: Program, source: Source, node: cst.Call) -> bool:
    """Whether the test is of one model, and not for FSDP1's class too."""
    if len(node.args) != 2 or class_test(program, source, node) is not None:
        return False
    return not is_one_of_many(source, node, node.args[0].value)


def _changes(trace: Trace, called: Called) -> bool:
    """Whether a model of FSDP1 is asked for a class of what is inside."""
    if len(called.arguments) != 2:
        return False
    model, asked = called.arguments
    classes = [one for value in options(asked) for one in _listed(trace, value)]
    wanted = {one for one in classes if getattr(one, "name", "") not in _OF_BOTH}
    return any(
        wrapper(one) == "fsdp1"
        and isinstance(inside := unwrapped(one), Module)
        and not wanted.isdisjoint(lineage(inside.cls))
        for one in options(model)
    )


def _listed(trace: Trace, asked: Value) -> Iterator[Value]:
    """The classes in a tuple of them, or the one that it is."""
    if not isinstance(asked, Container):
        yield asked
        return
    for _, entry in trace.memory.entries(asked):
        for one in options(entry):
            yield from _listed(trace, one)
