"""A sharded model is asked for a method that it does not have.

## What it does

Finds attributes of a sharded module that `FSDPModule` does not have and whose names are close to one that it has
(`set_requires_grad_sync`), and methods of `FSDPModule` that are called on a model of which only parts are sharded.

## Why is this bad

Both raise `AttributeError`, often only after the job has started on all hosts. `fully_shard` changes the class of the
very modules that it is given: where only the blocks were sharded, the model around them has none of the methods.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-model.set_requires_grad_sync(False)
+model.set_requires_gradient_sync(False)
 model(torch.randn(4, 8)).sum().backward()
-model.set_requires_grad_sync(True)
+model.set_requires_gradient_sync(True)
```

## Forms

- Found: a model of Transformers of which only the blocks are sharded.
- Found: the method is kept in a name before it is called.
- Found: a module that is asked for its kind first.
- Not found: a name that `getattr` is given.
- Not found: a name that is like none that exists.

## Fix safety

Safe: the name becomes the one that exists; the call could not succeed before. A model that is not sharded itself gets
no fix.

## Known limits

Only names that are close to one of `FSDPModule`; those of FSDP1 are FSDP210, FSDP219 and FSDP229. Silent where the script
asks first for the method or for another class (`hasattr`, `isinstance`), and, unless it asks for `FSDPModule`, for models
that unresolved code may have sharded.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`FSDPModule`)
- `torch/distributed/fsdp/_fully_shard/_fully_shard.py` (`fully_shard`: `cls = type(f"FSDP{…}", (FSDPModule, …))`)
- https://github.com/verl-project/verl/pull/7095 (only the layers are sharded, the model is asked)
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache

import libcst as cst

from fsdp2lint.api import (
    Called,
    Event,
    Finding,
    Fix,
    Module,
    Part,
    Read,
    Replace,
    Trace,
    exported,
    rule,
    unwrapped,
)

from .._common.shared import (
    Shard,
    is_block_of,
    is_transformer,
    known_sharded,
    known_unsharded,
    sharded,
    shards,
    shards_before,
    together,
    wrapped_before,
    wrapped_by,
)
from .._common.tensors import asks_for_kind

_METHODS = exported("torch.distributed.fsdp.FSDPModule", (99, 0))
_CLOSE = 0.8
"""How alike two names are, as `difflib` counts: `set_requires_grad_sync` is 0.92 like the right one."""


@rule(code="FSDP262", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Methods that raise AttributeError."""
    for read in trace.of(Read):
        close = _close(read.name)
        node = read.at.node
        attribute = node.func if isinstance(node, cst.Call) else node
        if not close or read.name in _METHODS or not isinstance(attribute, cst.Attribute):
            continue
        because = _sharded(trace, read)
        if because is None or attribute.attr.value != read.name:
            continue
        yield Finding(
            at=read,
            message=f"a sharded module has no `{read.name}`, this raises AttributeError; the method is `{close[0]}`",
            because=because,
            fix=_renamed(read, attribute, close[0]),
        )
    for called in trace.calls(*(f".{name}" for name in _METHODS)):
        part = _part(trace, called)
        if part is not None and called.receiver is not None:
            said = unwrapped(called.receiver).words()
            yield Finding(
                at=called,
                message=f"`{said}` is not sharded itself, only parts of it are, so it has no `{called.name[1:]}`: this "
                f"raises AttributeError; shard `{said}` too",
                because=(part.reason,),
            )


def _sharded(trace: Trace, read: Read) -> tuple[tuple[Event, str], ...] | None:
    """Why a module surely is a sharded one where an attribute of it is read; None if it is not sure."""
    if known_sharded(read.guards, read.owner):
        return None if _may_be_own(trace, read) else ()
    found = sharded(trace, read, read.owner, itself=True)
    if (
        found is None
        or asks_for_kind(read)
        or wrapped_before(trace, read, found[1], "ddp", "fsdp1")
    ):
        return None
    return ((found[0].event, f"`{found[1].words()}` is sharded here"),)


def _may_be_own(trace: Trace, read: Read) -> bool:
    """Whether a class of the project may give a module that is not resolved the method."""
    defined = f"def {read.name}("
    return not isinstance(unwrapped(read.owner), Module) and any(
        defined in source.said for source in trace.sources
    )


@cache
def _close(name: str) -> list[str]:
    """The method that is most like a name, if one is."""
    return get_close_matches(name, _METHODS, 1, _CLOSE)


def _renamed(read: Read, attribute: cst.Attribute, name: str) -> Fix:
    edit = Replace(read.at.source, attribute.attr, name)
    return Fix(f"call `{name}`", (edit,), "safe")


def _part(trace: Trace, called: Called) -> Shard | None:
    """A part of the receiver that is sharded, when the receiver itself surely is not."""
    model = called.receiver
    if model is None or wrapped_by(model, "ddp", "fsdp1") or asks_for_kind(called):
        return None
    whole = unwrapped(model)
    if (
        not isinstance(whole, Module)
        or not trace.known(whole)
        or known_unsharded(called.guards, whole)
    ):
        return None
    for shard in shards(trace):
        of_library = is_transformer(whole) and is_block_of(shard.module, whole)
        if shard.module is whole or (isinstance(shard.module, Part) and not of_library):
            return None
    for shard in shards_before(trace, called):
        if trace.inside(shard.module, whole) and together(shard.guards, called.guards):
            return shard
    return None
