"""Parameters of a sharded model are counted once for each rank.

## What it does

Finds the sum of `p.numel()` over the parameters of a sharded model that is multiplied by the number of ranks, or
summed over the ranks by `dist.all_reduce`.

## Why is this bad

`numel()`, like `shape`, of a parameter that `fully_shard` has made a `DTensor` is that of the whole parameter, on
every rank. FSDP1's flat parameters had only the part of their rank, and there the sum had to be made over all
ranks. What is printed now is too large by the number of ranks; learning rates, budgets and tables computed from
it are wrong with it.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-count = sum(p.numel() for p in model.parameters()) * dist.get_world_size()
+count = sum(p.numel() for p in model.parameters())
```

## Forms

- Found: a helper function that counts in a loop.
- Found: a sum over the ranks, and the number of ranks from the environment.
- Not found: a product of shapes.
- Not found: the size of a mesh.

## Fix safety

Unsafe: the factor or the sum over the ranks goes, also for runs that shard nothing, where it was as wrong. There is no
fix where the result of the collective is used (`async_op=True`), or where a statement has several products.

## Known limits

Silent where the product goes on being multiplied (`6 * count * tokens * ranks` is an amount of work), where the
local shards are counted (`p.to_local().numel()`), and where parameters are ignored by `fully_shard`. Filters that
ask for `p.ndim` or `p.shape` are not judged: they mean what they say again.

## References

- https://docs.pytorch.org/docs/stable/distributed.tensor.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`to_sharded_dtensor`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

import libcst as cst

from fsdp2lint.api import (
    Collective,
    Container,
    Edit,
    Event,
    Finding,
    Fix,
    Layout,
    Literal,
    Names,
    Operated,
    Parameters,
    Part,
    Remove,
    Replace,
    Round,
    Source,
    Splice,
    Trace,
    Value,
    dotted,
    of_world_size,
    rule,
    scope_of,
    walk,
)

from .._common.fixes import stands_alone
from .._common.shared import Shard, sharded
from ._common.sums import sums_over_ranks

_NUMBERS = ("+", "sum", "/", "//", "int", "float")


@rule(code="FSDP247", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Counts that grow with the number of ranks."""
    for event, value, how in _scaled(trace):
        counted = _counted(trace, value, 12)
        shard = None if counted is None else _shard_of(trace, event, counted)
        if shard is None:
            continue
        said = shard.module.words()
        yield Finding(
            at=event,
            message=f"the parameters of the sharded `{said}` are {how}: `numel()` is that of the whole "
            "parameter on every rank, and the count is too large by the number of ranks",
            because=((shard.event, f"`{said}` is sharded here"),),
            fix=_counted_once(event),
        )


def _counted_once(event: Event) -> Fix | None:
    """Without the factor, or without the sum over the ranks."""
    source, node = event.at.source, event.at.node
    layout = Layout.of(source)
    if not isinstance(event, Operated):
        statement = stands_alone(event.at)
        if statement is None:
            return None
        return _without(source, statement, "sum over the ranks", _tensors_gone(source, statement))
    small = node.body[0] if isinstance(node, cst.SimpleStatementLine) else node
    if isinstance(small, cst.AugAssign):
        return _without(source, small, "factor")
    products = [n for n in walk(node, into=False) if _is_product(n)]
    if len(products) != 1:
        return None
    kept = products[0].left if _is_world_size(event.right) else products[0].right
    (start, end), (first, last) = layout.whole(products[0]), layout.whole(kept)
    edits: tuple[Splice, ...]
    if isinstance(kept, cst.Call) or kept.lpar:  # over its lines as it is
        edits = (Splice(source, start, first, ""), Splice(source, last, end, ""))
    else:
        edits = (Splice(source, start, end, source.code(kept)),)
    return Fix("count without the factor", edits, "unsafe", _NOTE)


def _without(
    source: Source, statement: cst.CSTNode, what: str, further: Sequence[Edit] = ()
) -> Fix:
    """The statement goes, with the comment that explains it."""
    gone = _all_that_goes(Layout.of(source), statement)
    edits = (Remove(source, gone, comments=True), *further)
    return Fix(f"count without the {what}", edits, "unsafe", _NOTE)


def _tensors_gone(source: Source, statement: cst.Expr) -> Sequence[Edit]:
    """The tensor that was made for the sum over the ranks becomes the number itself; nothing where it is read otherwise."""
    layout, names = Layout.of(source), Names.of(source)
    summed = statement.value.args[0].value if isinstance(statement.value, cst.Call) else None
    scope = scope_of(layout.ancestors(statement))
    if not isinstance(summed, cst.Name) or scope is None:
        return ()
    uses = [n for n in walk(scope) if isinstance(n, cst.Name) and n.value == summed.value]
    made = layout.parents[layout.parents[uses[0]]]
    if not isinstance(made, cst.Assign) or len(made.targets) > 1:
        return ()
    number = _number_of(made)
    read = [layout.parents[layout.parents[n]] for n in uses[1:] if n is not summed]
    if number is None or not all(map(_is_item, read)):
        return ()
    if isinstance(number, cst.Name):
        bound = names.bindings.get(scope, {}).get(number.value, ())
        if not all(_counts_up(layout, one) for one in bound):
            return ()
        if bound and all(layout.span(one)[0] < layout.span(made)[0] for one in bound):
            said = (Replace(source, one, number.value) for one in read)
            return Remove(source, made), *said
    said = (Replace(source, one, summed.value) for one in read)
    return Replace(source, made.value, source.code(number)), *said


def _counts_up(layout: Layout, bound: cst.CSTNode) -> bool:
    """Whether what binds a name binds it to a number, and not to a list of some."""
    node: cst.CSTNode | None = bound
    while node is not None and not isinstance(node, cst.Assign | cst.AugAssign | cst.BaseStatement):
        node = layout.parents.get(node)
    if isinstance(node, cst.AugAssign):
        return True
    value = node.value if isinstance(node, cst.Assign) else None
    called = dotted(value.func) if isinstance(value, cst.Call) else ""
    return called in ("sum", "int") or isinstance(value, cst.Integer | cst.BinaryOperation)


def _number_of(made: cst.Assign) -> cst.BaseExpression | None:
    """``x`` of ``t = torch.tensor(x)`` and ``torch.tensor([x])``."""
    call = made.value
    if not isinstance(call, cst.Call) or not call.args or call.args[0].keyword is not None:
        return None
    given = call.args[0].value
    if dotted(call.func).rpartition(".")[2] not in ("tensor", "as_tensor"):
        return None
    if isinstance(given, cst.List) and len(given.elements) == 1:
        return given.elements[0].value
    return None if isinstance(given, cst.List | cst.Tuple) else given


def _is_item(node: cst.CSTNode) -> bool:
    """Whether it is ``t.item()``, seen from the name."""
    func = node.func if isinstance(node, cst.Call) else None
    return isinstance(func, cst.Attribute) and func.attr.value == "item"


_NOTE = "a run that shards nothing counts without it, too"


def _is_product(node: cst.CSTNode) -> TypeGuard[cst.BinaryOperation]:
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply)


def _all_that_goes(layout: Layout, statement: cst.CSTNode) -> cst.CSTNode:
    """The statement, or the `if` around it that does nothing else."""
    around = next((a for a in layout.ancestors(statement) if isinstance(a, cst.If)), None)
    if around is None or around.orelse is not None or len(around.body.body) != 1:
        return statement
    is_only = layout.block(statement) is around.body
    calls = [n.func for n in walk(around.test) if isinstance(n, cst.Call)]
    asks = all(isinstance(f, cst.Attribute) and f.attr.value in _ASKING for f in calls)
    is_branch = isinstance(layout.parents[around], cst.If)  # `elif`
    return around if is_only and asks and not is_branch else statement


_ASKING = ("is_available", "is_initialized", "get_world_size", "get_rank")
"""Calls without effects that a test of the run may make."""


def _scaled(trace: Trace) -> Iterator[tuple[Event, Value, str]]:
    """What is multiplied by the number of ranks, or summed over them."""
    products = trace.of(Operated)
    for operated in products:
        sides = (operated.left, operated.right)
        if operated.symbol != "*" or not any(_is_world_size(v) for v in sides):
            continue
        value = operated.left if _is_world_size(operated.right) else operated.right
        made = operated.left.part(("*", operated.right))
        if not any(made in (p.left, p.right) and p.symbol == "*" for p in products):
            yield operated, value, "counted and multiplied by the number of ranks"
    for collective in trace.of(Collective):
        summed = sums_over_ranks(trace, collective)
        if summed is not None:
            yield collective, summed, "counted and summed over the ranks"


def _is_world_size(value: Value) -> bool:
    """Whether a value is the number of ranks and nothing else."""
    while isinstance(value, Part) and value.operation == "int":
        value = value.owner
    return of_world_size(value) and value.operation in ("", "call")


def _counted(trace: Trace, value: Value, depth: int) -> Parameters | None:
    """The parameters of which a value is the number of elements, all of them added up."""
    if depth == 0:
        return None
    if isinstance(value, Container):
        found = [_counted(trace, v, depth - 1) for _, v in trace.memory.entries(value)]
        return found[0] if found and all(one is found[0] for one in found) else None
    if not isinstance(value, Part):
        return None
    if value.operation in (".numel()", ".nelement()"):
        element = value.owner
        while isinstance(element, Part) and (
            isinstance(element.key, Round) or element.key in ("[1]", ".data")
        ):
            element = element.owner
        return element if isinstance(element, Parameters) else None
    if value.operation not in _NUMBERS:
        return None
    operands = (value.owner, *value.operands)
    parts = [_counted(trace, v, depth - 1) for v in operands if _counts(v)]
    return parts[0] if parts and all(one is parts[0] for one in parts) else None


def _counts(value: object) -> bool:
    return isinstance(value, Value) and not isinstance(value, Literal)


def _shard_of(trace: Trace, event: Event, counted: Parameters) -> Shard | None:
    found = sharded(trace, event, counted.of)
    if found is None or found[0].event.open or "ignored_params" in found[0].event.options:
        return None
    if counted.taken is not None and counted.taken < found[0].order:
        return None
    return found[0]
