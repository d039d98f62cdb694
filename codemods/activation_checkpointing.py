"""The choice of what is recomputed no longer asks for exact classes or for the wrapper.

## What it does

Looks at the `check_fn` of `apply_activation_checkpointing` where the model is wrapped by FSDP1. Tests for an exact class become
`isinstance`, and `not isinstance(module, FSDP)` goes.

## Why

FSDP1 put a module around each unit, and the unit inside kept its class. `fully_shard` gives the unit itself another
class, derived from the old one: exact tests match nothing, and "not FSDP" leaves every unit out. Nothing is recomputed
then, and nothing says so.

## Example

```diff
 from torch import nn
 from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 model = FSDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
-apply_activation_checkpointing(model, check_fn=lambda m: type(m) is nn.Linear)
+apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, nn.Linear))
```

## What it leaves

A `check_fn` that cannot be resolved.

## References

- `torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py` (`apply_activation_checkpointing`)
- `torch/distributed/fsdp/_fully_shard/_fully_shard.py` (`fully_shard` changes `__class__`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Function,
    Inner,
    Layout,
    Left,
    Program,
    Rewrite,
    Source,
    Step,
    Trace,
    Wrapped,
    Wrapping,
    codemod,
    options,
    walk,
)

from ._common.names import whose_type

APPLY = ".apply_activation_checkpointing"
FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"


@codemod()
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Choices of what a wrapped model recomputes."""
    seen: set[cst.CSTNode] = set()
    for trace, called in program.of(Called):
        if not called.name.endswith(APPLY) or not _wrapped(trace, called):
            continue
        choice = called.argument(2, "check_fn")
        for function in options(choice) if choice is not None else ():
            if isinstance(function, Function) and function.node not in seen:
                seen.add(function.node)
                source = function.scope.source
                if source in program.sources:
                    yield from _exact(source, function.node)
                    yield from _other_than_fsdp(program, source, function.node)


def _wrapped(trace: Trace, called: Called) -> bool:
    """Whether FSDP1 wraps the model, or something in it."""
    model = called.argument(0, "model")
    wrapped = [event.module for event in trace.of(Wrapping) if event.by == "fsdp1"]
    return any(
        (isinstance(one, Wrapped) and one.by == "fsdp1")
        or any(trace.inside(inner, one) for part in wrapped for inner in options(part))
        for one in (options(model) if model is not None else ())
    )


def _exact(source: Source, function: cst.CSTNode) -> Iterator[Step]:
    """``type(m) is C``, ``m.__class__ in blocks``: what comes instead holds for derived classes too."""
    for node in walk(function):
        if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
            continue
        module, (against,) = whose_type(node.left), node.comparisons
        if module is None:
            continue
        several = isinstance(against.operator, cst.In)
        if several or isinstance(against.operator, cst.Is | cst.Equal):
            yield Step((Rewrite(source, node, _asking(module, against.comparator, several)),), ())


def _asking(
    module: cst.BaseExpression, classes: cst.BaseExpression, several: bool
) -> Callable[[Inner], str]:
    def text(inner: Inner) -> str:
        wanted = inner(classes)
        plain = isinstance(classes, cst.Tuple)
        return f"isinstance({inner(module)}, {f'tuple({wanted})' if several and not plain else wanted})"

    return text


def _other_than_fsdp(program: Program, source: Source, function: cst.CSTNode) -> Iterator[Step]:
    """``… and not isinstance(m, FSDP)``: the condition goes."""
    layout = Layout.of(source)
    for reference in program.references(FSDP1):
        around = list(layout.ancestors(reference.node)) if reference.source is source else []
        if function not in around:
            continue
        negated = next((n for n in around if isinstance(n, cst.UnaryOperation)), None)
        joined = None if negated is None else layout.parents[negated]
        if not isinstance(joined, cst.BooleanOperation) or not isinstance(joined.operator, cst.And):
            continue
        other = joined.right if joined.left is negated else joined.left
        why = "a unit is the module itself now: leaving FSDP modules out would leave out every unit"
        yield Step(
            (Rewrite(source, joined, lambda inner, other=other: inner(other)),),  # type: ignore[misc]
            (Account(source, reference.node, "dropped", why),),
        )
