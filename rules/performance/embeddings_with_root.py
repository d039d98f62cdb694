"""A large embedding and the head over the same vocabulary are left in the group of the root.

## What it does

Finds models whose blocks are sharded while an `nn.Embedding` and an `nn.Linear` over the same vocabulary, of ten
thousand entries or more, belong to the group of the root.

## Why is this bad

The parameters of the root are gathered together before the first layer and stay until the backward has passed
all of them. The embedding is needed for an instant at one end of the model and the head at the other; in one
group both are in memory, whole and on every rank, throughout the step, and the first forward waits for both.
With a group for each the embedding is freed after it was used, and the head is gathered behind the last blocks.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard


 class Model(nn.Module):
     def __init__(self):
         super().__init__()
         self.words = nn.Embedding(50304, 64)
         self.blocks = nn.ModuleList([nn.Linear(64, 64) for _ in range(4)])
         self.head = nn.Linear(64, 50304)


 dist.init_process_group("gloo")
 model = Model()
+fully_shard(model.words)
 for block in model.blocks:
     fully_shard(block)
+fully_shard(model.head, reshard_after_forward=False)
 fully_shard(model)
```

## Forms

- Found: sizes from a class of settings.
- Found: an embedding in a `ModuleDict`.
- Not found: a language model of Transformers, whose sizes are in its own settings.

## Known limits

Only layers that the project builds with known sizes: where the size of the vocabulary comes from a
configuration file, it is unknown. Weights that are tied, and a weight that the script reads
beside its layer (`x @ model.words.weight.T`, a fused loss), must stay where they are and are left alone. There is no
fix: code that the analysis does not see may use a weight so.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- https://github.com/pytorch/torchtitan (`apply_fsdp` of Llama 3)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Assigned,
    Called,
    Event,
    Finding,
    Literal,
    Operated,
    Part,
    Trace,
    Value,
    rule,
)

from .._common.shared import Shard, class_name, parts_of, shards, together
from .._common.tensors import has_root_above

_LARGE = 10_000
_INITIALISES = "torch.nn.init."


@rule(code="FSDP505", group="perf")
def check(trace: Trace) -> Iterator[Finding]:
    """Roots that hold both ends of a language model."""
    for shard in shards(trace):
        inner = [
            s.module
            for s in shards(trace)
            if s.module is not shard.module
            and trace.inside(s.module, shard.module)
            and together(s.guards, shard.guards)
        ]
        if not inner or has_root_above(trace, shard):
            continue
        found = _both_ends(trace, _left_over(trace, shard, inner))
        if found is not None and not any(_is_read(trace, shard, end.result) for end in found):
            words, head = found
            yield Finding(
                at=shard.event,
                message=f"`{words.result.words()}` and `{head.result.words()}` are gathered together with the "
                f"root and stay whole on every rank throughout the step: give each a `fully_shard` of its own",
                because=((words, "one end is built here"), (head, "the other end is built here")),
            )


def _left_over(trace: Trace, shard: Shard, inner: list[Value]) -> list[Value]:
    """The layers below a root that no other sharding takes."""
    found: list[Value] = []
    todo = [shard.module]
    while todo:
        for child in parts_of(trace, todo.pop()):
            if child not in inner and child not in found:
                found.append(child)
                todo.append(child)
    return found


def _both_ends(trace: Trace, layers: list[Value]) -> tuple[Called, Called] | None:
    """An embedding and a head over one large vocabulary whose weights are not tied."""
    built = {c.result: c for c in trace.calls("torch.nn.Embedding", "torch.nn.Linear")}
    tied = {a.owner for a in trace.of(Assigned) if a.name == "weight"}
    ends = [built[layer] for layer in layers if layer in built and layer not in tied]
    for words in ends:
        if class_name(words.result) != "torch.nn.Embedding":
            continue
        size = _large(words.argument(0, "num_embeddings"))
        for head in ends:
            if class_name(head.result) == "torch.nn.Linear" and size is not None:
                if _large(head.argument(1, "out_features")) == size:
                    return words, head
    return None


def _is_read(trace: Trace, shard: Shard, layer: Value) -> bool:
    """Whether the script computes with the weight of a layer itself, which works in the group of the root only.

    What is done with it before it is sharded, or to initialise it, works in every group.
    """
    weight = layer.part(".weight")
    given: list[tuple[Event, Value]] = [
        (c, one)
        for c in trace.of(Called)
        if not c.name.startswith(_INITIALISES)
        for one in (*c.arguments, *c.keywords.values())
    ]
    given += [(o, one) for o in trace.of(Operated) for one in (o.left, o.right)]
    return any(
        _made_of(one, weight) and not trace.precedes(event, shard.event) for event, one in given
    )


def _made_of(value: Value | None, weight: Value) -> bool:
    while value is not None and value is not weight:
        value = value.owner if isinstance(value, Part) else None
    return value is weight


def _large(size: Value | None) -> int | None:
    """A number of entries that is known and large."""
    known = size.value if isinstance(size, Literal) else None
    return known if isinstance(known, int) and known >= _LARGE else None
