"""A parameter without dimensions is in a module that is sharded.

## What it does

Finds `nn.Parameter` of a tensor with no dimension (`torch.tensor(1.0)`, `torch.zeros(())`, `torch.ones([])`)
in a module that `fully_shard` is applied to, or in a part of one.

## Why is this bad

There is no dimension along which it could be sharded: `fully_shard` raises ValueError ("doesn't support
scalar parameters"). FSDP1 flattened it with the others. Temperatures, gates and scales of logits are usually
written so.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard


 class Scaled(nn.Module):
     def __init__(self):
         super().__init__()
         self.linear = nn.Linear(8, 8)
-        self.scale = nn.Parameter(torch.tensor(1.0))
+        self.scale = nn.Parameter(torch.tensor([1.0]))

     def forward(self, x):
         return self.linear(x) * self.scale


 dist.init_process_group("gloo")
 model = Scaled()
 fully_shard(model)
```

## Forms

- Found: the temperature of CLIP, by a number of numpy.
- Found: a value that is given to the constructor.
- Not found: a tensor that a reduction leaves without dimensions.
- Not found: parameters in a `ParameterList`.

## Fix safety

Unsafe: the tensor gets one dimension of size one. Values broadcast as before, but a checkpoint with the
scalar does not load any more, and what is computed from the parameter alone has one dimension too.

## Known limits

Silent with `ignored_params` or unknown keyword arguments, and where the shape comes from somewhere else.
Parameters of libraries are not seen.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_init.py` (`_verify_managed_param`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Assigned,
    Called,
    Container,
    External,
    Finding,
    Fix,
    Layout,
    Literal,
    Module,
    Part,
    Replace,
    Trace,
    Value,
    options,
    rule,
)

from .._common.fixes import call_of
from .._common.shared import Shard, shards_after, together

_SHAPED = tuple(f"torch.{name}" for name in "empty full ones rand randn zeros".split())
_FROM_DATA = ("torch.tensor", "torch.as_tensor", "torch.scalar_tensor")
_NUMBERS = ("math.", "builtins.float", "builtins.int", "builtins.abs", "builtins.round")
_OF_NUMPY = tuple(f"numpy.{name}" for name in "exp log log10 log2 sqrt".split())
_SAME_SHAPE = {
    f".{name}()" for name in "clone cuda detach double exp float log neg sqrt to".split()
}


@rule(code="FSDP235", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Parameters that cannot be sharded."""
    made = {c.result: c for c in trace.of(Called) if c.name in (*_SHAPED, *_FROM_DATA)}
    for called in trace.calls("torch.nn.Parameter"):
        value = called.argument(0, "data")
        tensor = None if value is None else _scalar(trace, made, value)
        shard = None if tensor is None else _shard(trace, called)
        if tensor is None or shard is None:
            continue
        yield Finding(
            at=called,
            message="a parameter without dimensions cannot be sharded: "
            f"`fully_shard({shard.module.words()})` raises ValueError; make it one element long",
            because=(shard.reason,),
            fix=_longer(tensor),
        )


def _scalar(trace: Trace, made: dict[Value, Called], value: Value) -> Called | None:
    """The call that makes the tensor without dimensions that a value surely is, or is computed from."""
    while isinstance(value, Part) and value not in made:
        operation, operands = value.operation, value.operands
        if operation in ("*", "/", "+", "-") and len(operands) == 1:
            if isinstance(value.owner, Literal) and isinstance(operands[0], Value):
                value = operands[0]
                continue
            if not _is_number(operands[0]) and not _is_numpy_number(trace, operands[0]):
                return None
        elif operation not in _SAME_SHAPE:
            return None
        value = value.owner
    called = made.get(value)
    if called is None or called.open:
        return None
    if called.name in _FROM_DATA:
        data = called.argument(0, "data")
        return called if data is not None and _is_number(data) else None
    alone = len(called.arguments) == 1 or called.name == "torch.full"
    sizes = called.arguments[0] if alone and called.arguments else called.keywords.get("size")
    if not isinstance(sizes, Container) or sizes.open or sizes.kind not in ("list", "tuple"):
        return None
    return None if any(True for _ in trace.memory.entries(sizes)) else called


def _is_number(value: object) -> bool:
    """Whether a value surely is a Python number."""
    if not isinstance(value, Value):
        return False
    for one in options(value):
        if isinstance(one, Literal) and isinstance(one.value, int | float):
            continue
        if not isinstance(one, Part):
            return False
        made = one.operation == "call" and isinstance(one.owner, External)
        known = isinstance(one.owner, External) and one.owner.name.startswith(_NUMBERS)
        if one.operation not in ("float", "int") and not (made and known):
            return False
    return True


def _is_numpy_number(trace: Trace, value: object) -> bool:
    """Whether a value is what a function of numpy gives for a number: ``np.log(1 / 0.07)``."""
    return any(
        bool(made.arguments) and all(map(_is_number, made.arguments)) and not made.keywords
        for made in trace.calls(*_OF_NUMPY)
        if made.result is value
    )


def _shard(trace: Trace, called: Called) -> Shard | None:
    """The sharding that takes a parameter in."""
    owners = [h for h in trace.memory.held_by.get(called.result, ()) if isinstance(h, Module)]
    for shard in shards_after(trace, called) if len(owners) == 1 else ():
        if shard.event.open or "ignored_params" in shard.event.options:
            return None
        if trace.inside(owners[0], shard.module) and together(shard.guards, called.guards):
            return None if _another_by_then(trace, called.result, owners[0], shard) else shard
    return None


def _another_by_then(trace: Trace, made: Value, owner: Value, shard: Shard) -> bool:
    """Whether its module may hold another parameter in its place, or this one have a shape, when it is sharded.

    That is how scripts make scalars fit: ``setattr(module, name, nn.Parameter(p.data[None]))`` in a loop.
    """
    fields = trace.memory.fields
    if any(".data" in written for written in fields.values()):
        return True
    bound = (value for one in fields.get(owner, {}).values() for _, value in one.bindings)
    if all(value is not made for value in bound):
        return True
    return any(assigned.name == "…" for assigned in trace.before(shard.event, Assigned))


def _longer(tensor: Called) -> Fix | None:
    """One dimension of size one, where the tensor is made."""
    call = call_of(tensor.at)
    if call is None or not call.args or call.args[0].star:
        return None
    source, first = tensor.at.source, call.args[0].value
    if tensor.name in _SHAPED:
        text = "(1,)" if tensor.name == "torch.full" else "1"
    elif tensor.name == "torch.scalar_tensor":
        return None
    else:
        text = f"[{source.code(first)}]"
    if Layout.of(source).parents.get(first) is not call.args[0]:
        return None
    note = "a checkpoint with the scalar does not load any more"
    return Fix("give it one dimension", (Replace(source, first, text),), "unsafe", note)
