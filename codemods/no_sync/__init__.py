"""`no_sync()` becomes `set_requires_gradient_sync`.

## What it does

In place of `with model.no_sync():` the synchronisation of gradients is switched off before the block and on again
behind it. A choice between `no_sync()` and `nullcontext()` becomes one switch before the forward. Where the context
is kept, handed on, given to an `ExitStack`, or where DDP may wrap the model in another run, a context manager of the
same meaning comes into the file. A test `hasattr(model, "no_sync")` becomes one for `FSDPModule`, as does
`getattr(model, "no_sync", default)`; where nothing is computed backwards, the default will do.

## Why

`FSDPModule` has no `no_sync`. Its flag is read in the backward, as FSDP1's was, so that a switch before the forward
of a micro-batch accumulates the same gradients. FSDP1's context put the flag back when it was left: so does the
code that comes out, with `try` and `finally` where the block may be left early and the script goes on.

## Example

```diff
-from contextlib import nullcontext
-
 import torch
 from torch import nn
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 model = FSDP(nn.Linear(8, 8))
 optimizer = torch.optim.AdamW(model.parameters())
 for step in range(8):
     last = step % 4 == 3
-    with nullcontext() if last else model.no_sync():
-        model(torch.randn(4, 8)).sum().backward()
+    model.set_requires_gradient_sync(last)
+    model(torch.randn(4, 8)).sum().backward()
     if last:
         optimizer.step()
         optimizer.zero_grad()
```

## What it leaves

- An exception that the function does not catch leaves the flag as it is.
- With mixed precision, gradients are accumulated in `reduce_dtype`; FSDP1 accumulated them in `param_dtype`.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`set_requires_gradient_sync`)
- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`no_sync`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Account,
    Backward,
    Called,
    Edit,
    InsertAfter,
    Layout,
    Left,
    PausedBlock,
    Program,
    Source,
    Splice,
    Step,
    SyncPaused,
    Wrapping,
    codemod,
    dotted,
    is_no_instance,
    kinds,
    unseen_methods,
    walk,
)

from .._common.both_classes import STAYS, is_for_fsdp1, is_library
from .._common.loop_tests import asked_by_name, hasattr_steps
from .._common.loop_text import has_comment, is_path, text_of
from .contexts import by_helper, by_name
from .sync import Paused, always_wrapped, block_of

_NOTHING_BACKWARDS = "no backward runs here: modules of FSDP2 take the default"
_DDP = "DDP's own: modules of FSDP2 do not come here"
WHY = "`set_requires_gradient_sync` replaces the context"
ADDED_UP = "; gradients add up in `reduce_dtype` now, under FSDP1 in `param_dtype`"
"""With mixed precision the sums of several micro-batches differ in their last digits."""


@codemod()
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Blocks without gradient synchronisation."""
    rest: dict[Source, list[cst.BaseExpression]] = {}
    ddp: set[Source] = set()
    for events in program.sites(SyncPaused):
        site = events[0][1].at
        found = kinds(program, [one.module for _, one in events])
        if "fsdp1" not in found or not isinstance(site.node, cst.Call):
            continue
        if others := _of_others(site.node):
            yield Step((), (Account(site.source, site.node, "preserved", others),))
            continue
        if is_library(program) and is_for_fsdp1(program, site.source, site.node):
            yield Step((), (Account(site.source, site.node, "preserved", STAYS),))
            continue
        paused = [p for _, p in events if "fsdp1" in kinds(program, [p.module])]
        if all(is_no_instance(one, one.module) for one in paused):
            yield Step((), (Account(site.source, site.node, "preserved", _DDP),))
            continue
        if is_library(program):
            found |= {"ddp"}  # the helper asks for FSDP2's class and takes all others as they are
        step = None if "ddp" in found else _switched(program, site.source, site.node, events)
        if step is not None:
            yield step
            continue
        rest.setdefault(site.source, []).append(site.node)
        if "ddp" in found:
            ddp.add(site.source)
    for source, node in unseen_methods(program, "no_sync"):
        call = Layout.of(source).parents[node]
        is_called = isinstance(call, cst.Call) and call.func is node
        place = call if isinstance(call, cst.Call) and is_called else node
        if others := _of_others(place):
            yield Step((), (Account(source, place, "preserved", others),))
            continue
        if is_library(program) and is_for_fsdp1(program, source, place):
            yield Step((), (Account(source, place, "preserved", STAYS),))
            continue
        called = program.derived(_asked).get(place, [])
        if called and all(is_no_instance(c, c.receiver) for c in called if c.receiver is not None):
            yield Step((), (Account(source, place, "preserved", _DDP),))
            continue
        rest.setdefault(source, []).append(place)
        if "ddp" in program.named_wrappers or is_library(program):
            ddp.add(source)
    for source, calls in rest.items():
        yield by_helper(source, calls, source in ddp, added_up(program))
    yield from hasattr_steps(program, "no_sync")
    yield from _by_name(program)


def _of_others(call: cst.CSTNode) -> str:
    """Why a call of this name is none of FSDP's; empty where it may be one."""
    given = call.args if isinstance(call, cst.Call) else ()
    if given:
        return "a method of the project: FSDP1's takes no arguments"
    method = call.func if isinstance(call, cst.Call) else call
    asked = dotted(method.value) if isinstance(method, cst.Attribute) else ""
    if "optim" in asked.rpartition(".")[2].lower():
        return "an optimizer's own: FSDP1's is a method of the model"
    return ""


def _asked(program: Program) -> dict[cst.CSTNode, list[Called]]:
    """The calls of a method of this name, by their nodes."""
    found: dict[cst.CSTNode, list[Called]] = {}
    for _, called in program.of(Called):
        if called.name == ".no_sync":
            found.setdefault(called.at.node, []).append(called)
    return found


def _by_name(program: Program) -> Iterator[Step]:
    """``getattr(model, "no_sync", default)``: the default will do where nothing is computed backwards."""
    for events, call, found in asked_by_name(program, "getattr", "no_sync"):
        source = events[0][1].at.source
        if is_path(text_of(source, call.args[0].value)):
            if len(call.args) > 2 and not any(trace.of(Backward) for trace, _ in events):
                yield Step((), (Account(source, call, "preserved", _NOTHING_BACKWARDS, own=True),))
            else:
                yield by_name(source, call, "ddp" in found)


def _switched(
    program: Program, source: Source, call: cst.Call, events: Sequence[Paused]
) -> Step | None:
    """A switch in place of a ``with``; None where that would not surely be the same."""
    if not isinstance(call.func, cst.Attribute) or not is_path(text_of(source, call.func.value)):
        return None
    block = block_of(program, source, call)
    if block is None or _asks_for_it(block) or not always_wrapped(program, block, events):
        return None
    model = text_of(source, call.func.value)
    inside, outside = block.backwards(program.traces)
    again = block.flag is None or outside or not inside
    left_early = again and block.may_be_left()
    edits = _tried(source, block, model) if left_early else block.switched(model, again=again)
    if edits is None:
        return None
    return Step(edits, (Account(source, call, "changed", WHY + added_up(program)),))


def added_up(program: Program) -> str:
    """What is to be said of sums of gradients where some model has mixed precision."""
    lower = any(
        event.by == "fsdp1" and "mixed_precision" in event.options
        for _, event in program.of(Wrapping)
    )
    return ADDED_UP if lower else ""


def _asks_for_it(block: PausedBlock) -> bool:
    """Whether the choice depends on there being a ``no_sync``."""
    places = [block.item.item] if block.bound is None else [block.bound.value]
    return any(
        isinstance(n, cst.Call) and isinstance(n.func, cst.Name) and n.func.value == "hasattr"
        for place in places
        for n in walk(place)
    )


def _tried(source: Source, block: PausedBlock, model: str) -> tuple[Edit, ...] | None:
    """The same with ``try`` and ``finally``: the ``with`` becomes the ``try``."""
    node, layout = block.node, Layout.of(source)
    if len(node.items) != 1 or isinstance(node.body, cst.SimpleStatementSuite):
        return None
    start = layout.span(node)[0]
    colon = layout.text.index(":", layout.whole(node.items[0].item)[1])
    if has_comment(source, start, colon):
        return None
    switch = block.switch(model, lambda inside: text_of(source, inside))
    header = f"{switch}{layout.newline}{layout.indentation(node)}try:"
    behind = f"finally:\n    {model}.set_requires_gradient_sync(True)"
    edits = (Splice(source, start, colon + 1, header), InsertAfter(source, node, behind))
    return (*edits, *block.tidied())
