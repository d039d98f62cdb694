"""Only the root is sharded: the whole model is one group.

## What it does

Finds models with three or more repeated blocks (or a number that is not known) whose root gets the only
`fully_shard` call; a language model of Transformers (`AutoModelForCausalLM`, `…ForCausalLM`) is one.

## Why is this bad

One call makes one group. The root's group is gathered once, before the forward, and stays whole until the backward
has passed it (measured: one all-gather a step). So every rank holds all parameters of the model throughout the step,
and no block can compute while the next one is gathered. That is legal, and for a model whose parameters fit into
each GPU it may be meant: gradients and optimizer states are sharded all the same.

## Example

```diff
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
+for block in model.blocks:
+    fully_shard(block)
 fully_shard(model)
```

## Forms

- Found: a language model of Transformers.
- Found: blocks that are appended in a loop, and a helper function that shards.
- Not found: a model of another library.

## Fix safety

Unsafe: a loop over the blocks with the same arguments goes above the call. Blocks that share weights
belong in one group.

## Known limits

Of two blocks one is gathered while the other computes, so a group for each saves little: they are left alone. Beside
language models of Transformers, only models whose blocks the analysis sees being built; none that is handed to code that
it cannot follow, which may shard the blocks. How large a library's model is, the analysis does not know.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Class,
    Finding,
    Fix,
    Instance,
    Layout,
    Literal,
    Module,
    Site,
    Trace,
    Value,
    lineage,
    rule,
)

from .._common.fixes import call_of, first_argument, loop_before, once, own_statement, path_text
from .._common.parts import below
from .._common.shared import Shard, class_name, is_transformer, parts_of, shards, together

_ATTRIBUTES = re.compile(r"(\.\w+)+\Z")
_LISTS = ("torch.nn.ModuleList", "torch.nn.Sequential", "torch.nn.ModuleDict")
_FEW = 2
"""While one of two blocks computes the other one is gathered: both are whole at once all the same."""
_STACKS = ("torch.nn.TransformerEncoder", "torch.nn.TransformerDecoder", "torch.nn.Transformer")


@rule(code="FSDP205", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Roots that are sharded alone."""
    for shard in shards(trace):
        blocks = _repeated(trace, shard.module)
        library = blocks is None and is_transformer(shard.module)
        if blocks is None and not library:
            continue
        if not trace.kept(shard.module) or not _alone(trace, shard):
            continue
        if blocks is not None and _are_few(trace, blocks):
            continue
        said = shard.module.words()
        where = "its blocks" if blocks is None else f"the blocks in `{blocks.words()}`"
        yield Finding(
            at=shard.event,
            message=f"`{said}` is sharded as one group, none of {where} is: "
            "every rank holds the whole model throughout the step and nothing overlaps",
            fix=None if blocks is None else _loop(trace, shard, blocks),
        )


def _alone(trace: Trace, shard: Shard) -> bool:
    """Whether nothing inside or around the module, or of unknown origin, is sharded in the run."""
    return (
        not any(
            other.module is not shard.module
            and (
                trace.inside(other.module, shard.module)
                or trace.inside(shard.module, other.module)
                or not (trace.kept(other.module) or _instead(other, shard))
            )
            for other in shards(trace)
        )
        and len(shard.event.modules) == 1
    )


def _instead(other: Shard, shard: Shard) -> bool:
    """Whether the same call is given another module in other runs: one that another library builds."""
    return other.event.at.node is shard.event.at.node and not together(other.guards, shard.guards)


def _repeated(trace: Trace, module: Value, depth: int = 4) -> Module | None:
    """The list below a module that holds several blocks of one class."""
    if not isinstance(module, Module) or depth == 0:
        return None
    if class_name(module) in _STACKS:
        return module
    children = parts_of(trace, module)
    if class_name(module) in _LISTS:
        kinds = [_kind(trace, child) for child in children]
        if any(kind and kinds.count(kind) > 1 for kind in kinds):
            return module
    for child in children:
        found = _repeated(trace, child, depth - 1)
        if found is not None:
            return found
    return None


def _kind(trace: Trace, block: Value) -> tuple[Class, ...]:
    """The class of the project that a block is of; of a list of its parts (attention, then feed-forward) theirs."""
    if class_name(block) in _LISTS:
        return tuple(kind for part in parts_of(trace, block) for kind in _kind(trace, part))
    return (block.cls,) if isinstance(block, Instance) and isinstance(block.cls, Class) else ()


def _are_few(trace: Trace, blocks: Module) -> bool:
    """Whether a list surely holds two blocks or fewer."""
    children = parts_of(trace, blocks)
    if class_name(blocks) in _STACKS:
        built = next(iter(trace.giving(blocks)), None)
        return built is not None and _is_small(built.argument(1, "num_layers"))
    if len(children) > _FEW:
        return False
    looped = [iterated for child in children for iterated in _looped_over(trace, child)]
    ranges = {c.at.node: c for c in trace.calls("builtins.range")}
    return all(
        one in ranges and len(ranges[one].arguments) == 1 and _is_small(ranges[one].arguments[0])
        for one in looped
    )


def _is_small(number: Value | None) -> bool:
    return isinstance(number, Literal) and isinstance(number.value, int) and number.value <= _FEW


def _looped_over(trace: Trace, block: Value) -> Iterator[cst.CSTNode]:
    """What the loops and comprehensions walk in which a block is built."""
    inside = set(below(trace, block))
    for called in trace.of(Called):
        if called.result in inside:
            site = called.at if called.result is block else _built_at(called, block)
            for around in () if site is None else Layout.of(site.source).ancestors(site.node):
                if isinstance(around, cst.FunctionDef | cst.Lambda):
                    break
                if isinstance(around, cst.For):
                    yield around.iter
                elif isinstance(around, cst.ListComp | cst.GeneratorExp):
                    yield around.for_in.iter


def _built_at(called: Called, block: Value) -> Site | None:
    """The call of the block's class in which one of its layers is built."""
    classes = set(lineage(block.cls)) if isinstance(block, Instance) else set()
    entered = zip(called.moment.calls, called.moment.inside, strict=False)
    return next((site for site, function in entered if function.home in classes), None)


def _loop(trace: Trace, shard: Shard, blocks: Module) -> Fix | None:
    """A loop over the blocks above the call for the root."""
    site = shard.event.at
    call = call_of(site)
    name = "" if call is None else path_text(site, first_argument(call))
    root, said = shard.module.words(), blocks.words()
    path = said.removeprefix(root)
    if class_name(blocks) == _LISTS[2]:
        return None
    if any(class_name(part) in _LISTS for part in parts_of(trace, blocks)):
        return None  # lists of parts, which `fully_shard` refuses
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
