"""Only the root is sharded: the whole model is one group.

## What it does

Finds models with repeated blocks whose root gets the only `fully_shard` call.

## Why is this bad

One call makes one group. The whole model is gathered at once before the forward and again before the
backward, nothing overlaps, and the peak of memory is that of the unsharded model.

## Example

```python
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])


dist.init_process_group("gloo")
model = Net()
fully_shard(model)
```

## Use instead

```python
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])


dist.init_process_group("gloo")
model = Net()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
```

## Fix safety

Unsafe: a loop over the blocks with the same arguments goes above the call. Blocks that share weights
belong in one group.

## Known limits

Only models whose class is in sight and that never leave it: code that cannot be followed may shard the
blocks.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp2lint.api import Class, Finding, Fix, Instance, Module, Trace, Value, rule

from ._fixes import call_of, first_argument, loop_before, once, own_statement, path_text
from ._shared import Shard, class_name, parts_of, shards

_ATTRIBUTES = re.compile(r"(\.\w+)+\Z")
_LISTS = ("torch.nn.ModuleList", "torch.nn.Sequential", "torch.nn.ModuleDict")
_STACKS = ("torch.nn.TransformerEncoder", "torch.nn.TransformerDecoder", "torch.nn.Transformer")


@rule(code="FSDP205", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Roots that are sharded alone."""
    for shard in shards(trace):
        blocks = _repeated(trace, shard.module)
        if blocks is None or not trace.kept(shard.module) or not _alone(trace, shard):
            continue
        said = shard.module.words()
        yield Finding(
            at=shard.event,
            message=f"`{said}` is sharded as one group, none of the blocks in `{blocks.words()}` is: "
            "the whole model is gathered at once and nothing overlaps",
            fix=_loop(trace, shard, blocks),
        )


def _alone(trace: Trace, shard: Shard) -> bool:
    """Whether nothing inside or around the module, or of unknown origin, is sharded in the run."""
    return (
        not any(
            other.module is not shard.module
            and (
                trace.inside(other.module, shard.module)
                or trace.inside(shard.module, other.module)
                or not trace.kept(other.module)
            )
            for other in shards(trace)
        )
        and len(shard.event.modules) == 1
    )


def _repeated(trace: Trace, module: Value, depth: int = 4) -> Module | None:
    """The list below a module that holds several blocks of one class."""
    if not isinstance(module, Module) or depth == 0:
        return None
    if class_name(module) in _STACKS:
        return module
    children = parts_of(trace, module)
    if class_name(module) in _LISTS:
        classes = [c.cls for c in children if isinstance(c, Instance)]
        if any(isinstance(c, Class) and classes.count(c) > 1 for c in classes):
            return module
    for child in children:
        found = _repeated(trace, child, depth - 1)
        if found is not None:
            return found
    return None


def _loop(trace: Trace, shard: Shard, blocks: Module) -> Fix | None:
    """A loop over the blocks above the call for the root."""
    site = shard.event.at
    call = call_of(site)
    name = "" if call is None else path_text(site, first_argument(call))
    root, said = shard.module.words(), blocks.words()
    path = said.removeprefix(root)
    if class_name(blocks) == _LISTS[2]:
        return None
    if call is None or not name or not said.startswith(root) or not _ATTRIBUTES.match(path):
        return None
    if own_statement(site) is None or not once(trace, shard) or class_name(blocks) in _STACKS:
        return None
    return Fix(
        f"shard each block in `{name}{path}`",
        (loop_before(site, call, f"{name}{path}"),),
        "unsafe",
        "blocks that share weights belong in one group",
    )
