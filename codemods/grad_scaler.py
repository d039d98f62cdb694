"""`ShardedGradScaler` becomes `torch.amp.GradScaler`.

## What it does

Rewrites the calls of `ShardedGradScaler`, its annotations and the tests for it. The `process_group` goes; what was
given by position gets its name where the two classes order their parameters differently.

## Why

The gradients of FSDP2 are DTensors: `torch.amp.GradScaler` finds an infinite value on any rank, so that all ranks
skip the same steps. `ShardedGradScaler` did that for FSDP1's plain shards.

## Example

```diff
-from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
+from torch.amp import GradScaler

-scaler = ShardedGradScaler(enabled=True)
+scaler = GradScaler("cuda", enabled=True)
```

## What it leaves

Classes that derive from `ShardedGradScaler`: what they override is its own.

## References

- https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
- `torch/distributed/fsdp/sharded_grad_scaler.py`, `torch/amp/grad_scaler.py`
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Account,
    Arguments,
    Edit,
    Layout,
    Left,
    Program,
    Reference,
    Replace,
    Source,
    Splice,
    Step,
    Unimport,
    argument,
    codemod,
    name_for,
)

from ._common.loop_quoted import Quoted, quotations
from ._common.shared import unimports

SCALER = "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"
ORDINARY = "torch.amp.GradScaler"
POSITIONS = (
    "device",
    "init_scale",
    "backoff_factor",
    "growth_factor",
    "growth_interval",
    "enabled",
)
"""The parameters of ``ShardedGradScaler.__init__``, in order, before ``process_group``."""
WHY = "the class of the scaler that knows the gradients of FSDP2"
OWN_NAME = "a local name for the scaler class"
SHARED = 2
"""So many of them are at the same position in ``torch.amp.GradScaler``."""


@codemod()
def rewrite(program: Program) -> Iterator[Step | Left]:
    """FSDP1's gradient scaler, wherever it is named."""
    for reference in program.references(SCALER):
        parent = Layout.of(reference.source).parents[reference.node]
        if isinstance(parent, cst.Call) and parent.func is reference.node:
            yield _made(program, reference, parent)
        elif _is_base(reference):
            why = "a class derives from it"
            todo = "derive from torch.amp.GradScaler: it knows the gradients of FSDP2"
            yield Left(reference.source, reference.node, why, todo)
        elif isinstance(parent, cst.AssignTarget):
            account = Account(reference.source, reference.node, "preserved", OWN_NAME)
            yield Step((), (account,))
        else:
            yield _named(program, reference.source, reference.node)
    for quoted in quotations(program, SCALER):
        yield _quoted(program, quoted)


def _is_base(reference: Reference) -> bool:
    layout = Layout.of(reference.source)
    arg = layout.parents[reference.node]
    around = layout.parents.get(arg)
    return isinstance(around, cst.ClassDef) and any(arg is base for base in around.bases)


def _named(program: Program, source: Source, node: cst.BaseExpression) -> Step:
    """The class where it is only named."""
    scaler = name_for(source, node, ORDINARY)
    edits = (Replace(source, node, scaler.text), *scaler.edits, *_unimports(program, source))
    return Step(edits, (Account(source, node, "changed", WHY),))


def _quoted(program: Program, quoted: Quoted) -> Step:
    """The class in a quoted annotation."""
    source = quoted.source
    scaler = name_for(source, quoted.node, ORDINARY)
    edits = (Splice(source, quoted.start, quoted.end, scaler.text), *scaler.edits)
    account = Account(source, quoted.node, "changed", WHY)
    return Step((*edits, *_unimports(program, source)), (account,))


def _unimports(program: Program, source: Source) -> Iterator[Unimport]:
    """The imports of the old class that nothing needs any more."""
    yield from unimports(program, source, SCALER)
    yield from unimports(program, source, SCALER.rpartition(".")[0])


def _made(program: Program, reference: Reference, call: cst.Call) -> Step | Left:
    """The class where it is called."""
    source = reference.source
    if any(arg.star for arg in call.args):
        why = "its arguments are not written out"
        return Left(source, call, why, "call torch.amp.GradScaler, without process_group")
    scaler = name_for(source, call, ORDINARY)
    edits: tuple[Edit, ...] = (
        Replace(source, call.func, scaler.text),
        *_arguments(reference, call),
        *scaler.edits,
        *_unimports(program, source),
    )
    if argument(call, -1, "process_group"):
        edits += (Unimport(source, "torch.distributed"),)
    account = Account(source, call, "changed", "GradScaler finds an infinity on any rank by itself")
    return Step(edits, (account,))


def _arguments(reference: Reference, call: cst.Call) -> Iterator[Arguments]:
    """Its arguments for the other class."""
    arguments = Arguments(reference.source, call)
    given = [arg for arg in call.args if arg.keyword is None]
    old = bool(given) and isinstance(given[0].value, cst.Integer | cst.Float)
    names = POSITIONS[1:] if old else POSITIONS
    for position, arg in enumerate(given):
        if position >= len(names):
            arguments.remove(arg)
        elif old or position >= SHARED:
            arguments.name(position, names[position])
    if arguments.has("process_group"):
        arguments.remove("process_group")
    if not arguments.has("device") and (not given or old):
        arguments.first('"cuda"')
    yield arguments
