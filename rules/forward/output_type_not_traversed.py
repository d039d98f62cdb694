"""A sharded module returns an object of a class of its own, in which FSDP does not find the tensors.

## What it does

Finds modules that `fully_shard` was applied to whose forward returns an instance of a plain class of the
project, in a script that trains.

## Why is this bad

FSDP hangs the hooks that prepare the backward on the tensors that come out of a forward. It looks for them in
tuples, lists, dictionaries, named tuples and dataclasses; an object of another class is passed on as it is. (Older
releases flatten outputs as pytrees: they look into dataclasses that are registered as such only.) In an inner module the parameters are then not gathered again for the backward: "setStorage … out of bounds for
storage of size 0". At the root the whole backward runs outside of FSDP: no gradient is reduced, the optimizer
finds none, and nothing trains, without any error.

## Example

```diff
+from dataclasses import dataclass
+
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard


+@dataclass
 class Output:
-    def __init__(self, logits):
-        self.logits = logits
+    logits: torch.Tensor


 class Model(nn.Module):
     def __init__(self):
         super().__init__()
         self.head = nn.Linear(8, 8)

     def forward(self, x):
         return Output(self.head(x))


 dist.init_process_group("gloo")
 model = Model()
 fully_shard(model)
 model(torch.randn(4, 8)).logits.sum().backward()
```

## Forms

- Found: blocks whose output the model takes apart.
- Found: a helper function that makes the object.
- Not found: an object inside a tuple.
- Not found: an object of the standard library.

## Known limits

Only classes of the project that are derived from nothing and have no decorator; those that may be registered as
pytrees somewhere are left alone. One inner module alone is saved by the prefetch of its neighbour, and a root by
the hooks of the modules inside; only two inner ones, or a root without any, are reported. There is no fix:
attributes that are set later are no fields of a dataclass.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_register_pre_backward_hook`)
- `torch/distributed/utils.py` (`_apply_to_tensors`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Class, External, Finding, Instance, Module, Trace, Value, rule

from ._common.outputs import outputs, unprepared

_REGISTERED = ("register_pytree_node", "_register_pytree_node", "register_dataclass")


@rule(code="FSDP258", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Outputs into which FSDP does not look."""
    if any(c.name.rpartition(".")[2] in _REGISTERED for c in trace.calls(*_names())):
        return
    found = [one for one in outputs(trace) if _is_opaque(one[2])]
    harmed = unprepared(trace, (shard for _, shard, _ in found))
    said: set[object] = set()
    for returned, shard, value in found:
        if shard.module not in harmed or shard.event.at.node in said:
            continue
        said.add(shard.event.at.node)
        module, cls = shard.module.words(), value.cls.words() if isinstance(value, Instance) else ""
        yield Finding(
            at=shard.event,
            message=f"`{module}` returns an object of the class `{cls}`, in which FSDP does not look for tensors: "
            "its backward runs without FSDP's hooks; return a dataclass, a dictionary or a tuple",
            because=((returned, "it computes here"),),
        )


def _names() -> Iterator[str]:
    for home in ("torch.utils._pytree", "torch.export", "optree"):
        yield from (f"{home}.{name}" for name in _REGISTERED)


def _is_opaque(value: Value) -> bool:
    """Whether a value is an object of a plain class of the project."""
    if not isinstance(value, Instance) or isinstance(value, Module):
        return False
    cls = value.cls
    return (
        isinstance(cls, Class)
        and not cls.node.decorators
        and all(isinstance(b, External) and b.name == "builtins.object" for b in cls.bases)
    )
