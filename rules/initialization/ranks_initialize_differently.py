"""The weights are drawn with a seed that differs from rank to rank, and are never made equal.

## What it does

Finds models of `torch.nn` layers, and those that Transformers builds from a configuration (`from_config`), that are
built after `torch.manual_seed(…)` (or a helper of a library) with a value made of the rank, and that are then sharded
and trained without a load, a broadcast or constants in between, on some path of the run: a load on the resume branch leaves a fresh start as it was, and so does a
random initialisation before the sharding (`nn.init.normal_`, `reset_parameters`), which draws with the same seed.

## Why is this bad

Each rank keeps its own part of its own draw: the sharded weight is a patchwork of as many initialisations as
there are ranks. Orthogonal, scaled or otherwise joint initialisations are lost, the start depends on the
number of ranks, and with replicas (hybrid sharding) each replica begins elsewhere and stays elsewhere.
Buffers differ too. Use one seed while the model is built, and a seed of the rank afterwards, for data and
dropout.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
-torch.manual_seed(dist.get_rank())
+torch.manual_seed(0)
 model = nn.Linear(8, 8)
 fully_shard(model)
+torch.manual_seed(dist.get_rank())
 optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

## Forms

- Found: weights that are drawn again before the sharding.
- Not found: random numbers that ranks draw in different number.

## Known limits

Without any seed PyTorch draws a seed per process, so ranks differ then too; that is not reported, since
launchers and libraries may seed. A random initialisation after the sharding is left alone: on GPUs the first random
operation on a DTensor gives all ranks the state of rank 0 (`OffsetBasedRNGTracker`), and there DTensors draw in step. Any other call that is handed a
layer, a model around it or a parameter between its making and the first step counts as one that may make the ranks equal, unless it is known to write nothing.

## References

- https://docs.pytorch.org/docs/stable/notes/randomness.html
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/tensor/_random.py` (`OffsetBasedRNGTracker`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    Event,
    Finding,
    Part,
    Stepped,
    Trace,
    Value,
    root,
    rule,
)

from .._common.meta import (
    LIBRARY_MODELS,
    meta_cases,
    out_of_sight,
    plain,
    values_given,
    ways_without_values,
)
from .._common.shared import Shard, class_name, differs_by_rank, shards_after, together

_SEEDS = (
    "torch.manual_seed",
    "torch.random.manual_seed",
    "transformers.set_seed",
    "transformers.trainer_utils.set_seed",
    "accelerate.utils.set_seed",
    "lightning.seed_everything",
    "pytorch_lightning.seed_everything",
)
_DRAWING = frozenset(
    "normal_ uniform_ trunc_normal_ kaiming_normal_ kaiming_uniform_ xavier_normal_ xavier_uniform_ orthogonal_ sparse_ "
    "reset_parameters _reset_parameters exponential_ log_normal_ cauchy_".split()
)
"""Functions of ``torch.nn.init`` and methods of tensors and layers that draw random values."""
_DRAWN = "Linear Embedding Conv1d Conv2d Conv3d LSTM GRU Bilinear MultiheadAttention".split()


@rule(code="FSDP232", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Weights that are drawn apart."""
    seeds = list(trace.calls(*_SEEDS))
    for seed in seeds:
        value = seed.argument(0, "seed")
        if value is None or not differs_by_rank(value):
            continue
        found = next(_drawn(trace, seeds, seed), None)
        if found is not None:
            built, shard = found
            yield Finding(
                at=seed,
                message=f"this seed differs from rank to rank when the weights of `{shard.module.words()}` are "
                "drawn: the sharded weights are a patchwork of the draws of all ranks",
                because=(
                    (built, "weights are drawn here"),
                    shard.reason,
                ),
            )


def _drawn(trace: Trace, seeds: list[Called], seed: Called) -> Iterator[tuple[Called, Shard]]:
    """The layers that are drawn with a seed and sharded as they are."""
    for built in trace.after(seed, Called):
        home, _, name = class_name(built.result).rpartition(".")
        draws = (home == "torch.nn" and name in _DRAWN) or LIBRARY_MODELS.fullmatch(built.name)
        if not draws or not together(seed.guards, built.guards):
            continue
        if _elsewhere(built) or any(seed.order < s.order < built.order for s in seeds):
            continue
        for shard in shards_after(trace, built):
            inside = trace.inside(built.result, shard.module)
            if not inside or not together(shard.guards, built.guards):
                continue
            reseeded = any(built.order < s.order < shard.order for s in seeds)
            if not reseeded and _trained_as_is(trace, seed, built, shard):
                yield built, shard
            break


def _elsewhere(built: Called) -> bool:
    """Whether a layer is built where its values are not drawn: on the meta device, or in an unknown context."""
    device = built.keywords.get("device")
    if any(any(meta_cases(built, d)) for d in (device, *built.within) if d is not None):
        return True
    return not all(map(plain, built.within))


def _trained_as_is(trace: Trace, seed: Called, built: Called, shard: Shard) -> bool:
    """Whether the module is trained with the values that were drawn, on a path at least.

    A path does not count that is chosen by what the seed is made of: ``seed + rank * share`` is one seed without ``share``.
    """
    stepped = next(trace.after(shard.event, Stepped), None)
    if stepped is None or not together(built.guards, stepped.guards):
        return False
    if out_of_sight(trace, stepped, shard.module) or _written_into(trace, built.result):
        return False
    giving = [
        event
        for event in values_given(trace, built, stepped, built.result)
        if not (event.order < shard.order and _draws(event))
    ]
    every = ways_without_values(trace, built, stepped, built.result, stepped.guards, giving=giving)
    ways = [one for one in every if not one.excludes(shard.guards)]
    if not ways:
        return False
    asked = {guard.test for clause in ways[0].since(stepped.guards) for guard in clause}
    return not any(part in asked for part in _parts(seed.argument(0, "seed")))


def _written_into(trace: Trace, layer: Value) -> bool:
    """Whether the script stores into tensors of a layer: ``layer.weight.data[:n] = others``."""
    return any(isinstance(o, Part) and root(o) is layer for o in trace.memory.fields)


def _draws(event: Event) -> bool:
    """Whether an event only draws values anew, with the same seed, or writes into a bias."""
    if not isinstance(event, Called):
        return False
    if event.name.rpartition(".")[2] in _DRAWING and (
        event.receiver is not None or event.name.startswith("torch.nn.init.")
    ):
        return True
    written = event.receiver if event.receiver is not None else event.argument(0, "tensor")
    while isinstance(written, Part) and written.key in (".data", ".detach()"):
        written = written.owner
    return isinstance(written, Part) and written.key == ".bias"


def _parts(value: Value | None) -> Iterator[Value]:
    """A value and those that it is computed from by operators."""
    if value is None:
        return
    yield value
    if isinstance(value, Part) and value.operation:
        for one in value.made_of:
            yield from _parts(one)
