"""A rank that fails in a step catches the exception and goes on, while the others wait for it.

## What it does

Finds `try` statements in a training loop whose body runs the forward or the backward of a sharded model and whose
handler catches errors of any kind (`except:`, `Exception`, `RuntimeError`, out of memory) and neither raises nor ends
the program: the loop goes on with the next batch.

## Why is this bad

Forward and backward of a sharded model gather and reduce over all ranks. Out of memory or a broken sample hits one rank;
it leaves the step in the middle and begins the next one, whose collectives meet those of the step that the others are
still in. The job hangs, or mixes the data of two steps. Let the exception end the job, or catch what can fail (reading
the batch) before the first collective and decide together with the other ranks.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
 for batch in torch.randn(4, 2, 8):
-    try:
-        model(batch).sum().backward()
-        optimizer.step()
-    except RuntimeError:
-        continue
+    model(batch).sum().backward()
+    optimizer.step()
```

## Forms

- Found: a helper function that gives up its batch.
- Found: a handler that raises everything else.
- Found: a decorator that swallows the error.
- Not found: a context that swallows the error.
- Not found: a loop that tries a smaller batch again.

## Known limits

A handler that calls a function which ends the program, and a loop in which ranks tell each other how they fared
(an `all_reduce` or `all_gather_object` of something that the handler sets, a `barrier` in it) are left alone. Errors that all ranks meet in the same step do no harm; whether they do is not known.

## References

- https://docs.pytorch.org/docs/stable/notes/faq.html ("My out of memory exception handler can't allocate memory")
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst.helpers import get_full_name_for_node

from fsdp2lint.api import (
    Backward,
    Collective,
    Event,
    Finding,
    Forward,
    Layout,
    Site,
    Trace,
    rule,
    walk,
)

from .._common.loops import loops_at, train_loop
from .._common.shared import sharded, shards, together

_BROAD = {
    "Exception",
    "BaseException",
    "RuntimeError",
    "OutOfMemoryError",
    "AcceleratorError",
    "ValueError",
}
_ENDS = ("exit", "_exit", "abort", "raise", "kill", "destroy_process_group")


@rule(code="FSDP419", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Handlers that leave a step in the middle."""
    said: set[cst.CSTNode] = set()
    for event in (*trace.of(Forward), *trace.of(Backward)):
        loop = train_loop(trace, event)
        shard = None if loop is None else _sharding(trace, event)
        if loop is None or shard is None:
            continue
        sites = _from_loop(event, loop)
        for caller, site in zip((None, *sites), sites, strict=False):
            handler = _handler(site, loop, caller)
            if handler is None or handler in said or _decided_together(trace, handler, site):
                continue
            said.add(handler)
            yield Finding(
                at=Site(site.source, handler, handler),
                message="a rank that fails here goes on with the next batch, while the others wait for it in the "
                "collectives of this one: the job hangs or mixes two steps",
                because=(
                    (shard, "the model is sharded here"),
                    (event, "this communicates with all ranks"),
                ),
            )
            break


def _from_loop(event: Event, loop: cst.CSTNode) -> tuple[Site, ...]:
    """The calls that lead from a loop to an event in it: whoever called the function with the loop goes on behind it."""
    sites = (*event.moment.calls, event.at)
    inside = (
        number
        for number, site in enumerate(sites)
        if any(around is loop for around in Layout.of(site.source).ancestors(site.node))
    )
    return sites[next(inside, 0) :]


def _sharding(trace: Trace, event: Event) -> Event | None:
    """The sharding that makes a forward or a backward communicate."""
    if isinstance(event, Forward):
        found = sharded(trace, event, event.module)
        return None if found is None else found[0].event
    for shard in shards(trace):
        if trace.precedes(shard.event, event) and together(shard.guards, event.guards):
            return shard.event
    return None


def _handler(site: Site, loop: cst.CSTNode, caller: Site | None) -> cst.ExceptHandler | None:
    """The handler of broad errors around a site, inside the loop, after which the loop goes on.

    A handler in a function of its own may return: the loop goes on behind a ``caller`` that uses no result.
    """
    layout = Layout.of(site.source)
    inner: cst.CSTNode = site.node
    around_all = list(layout.ancestors(site.node))
    in_loop = loop in around_all
    inside = in_loop or not loops_at(site)
    may_return = not in_loop and caller is not None and _is_statement(caller)
    for around in around_all if inside else ():
        if around is loop or isinstance(around, cst.FunctionDef | cst.Lambda):
            return None
        if isinstance(around, cst.Try) and inner is around.body and around.finalbody is None:
            for handler in around.handlers:
                if _is_broad(handler) and _goes_on(handler, may_return):
                    return handler
        inner = around
    return None


def _is_broad(handler: cst.ExceptHandler) -> bool:
    """Whether a handler catches errors that one rank may meet alone."""
    caught = handler.type
    if caught is None:
        return True
    each = [e.value for e in caught.elements] if isinstance(caught, cst.Tuple) else [caught]
    names = [get_full_name_for_node(one) or "" for one in each]
    return any(name.rpartition(".")[2] in _BROAD for name in names)


def _is_statement(call: Site) -> bool:
    """Whether nothing is done with what a call returns."""
    return isinstance(Layout.of(call.source).parents.get(call.node), cst.Expr)


def _goes_on(handler: cst.ExceptHandler, may_return: bool) -> bool:
    """Whether a handler, on a path at least, neither raises nor leaves the loop or the program."""
    for node in walk(handler.body, into=False):
        if isinstance(node, cst.Call):
            name = get_full_name_for_node(node.func) or ""
            if any(word in name.rpartition(".")[2] for word in _ENDS):
                return False
    ends = (cst.Raise, cst.Break) if may_return else (cst.Raise, cst.Break, cst.Return)
    return not _always(handler.body, ends)


def _always(body: cst.BaseSuite | cst.If | cst.Else, ends: tuple[type[cst.CSTNode], ...]) -> bool:
    """Whether each path through some statements comes to one of these; loops and ``try`` count as paths to it."""
    if isinstance(body, cst.If):
        return body.orelse is not None and _always(body.body, ends) and _always(body.orelse, ends)
    if isinstance(body, cst.Else):
        return _always(body.body, ends)
    for statement in body.body:
        if isinstance(statement, cst.If):
            found = _always(statement, ends)
        else:
            found = any(isinstance(node, ends) for node in walk(statement, into=False))
        if found:
            return True
    return False


def _decided_together(trace: Trace, handler: cst.ExceptHandler, site: Site) -> bool:
    """Whether ranks tell each other how they fared: in the handler, or of something that it sets."""
    handled = _names(handler.body)
    for collective in trace.of(Collective):
        name = collective.name.rpartition(".")[2]
        if not name.startswith(("all_reduce", "all_gather", "barrier", "monitored", "broadcast")):
            continue
        if handler in Layout.of(collective.at.source).ancestors(collective.at.node):
            return True
        call = collective.at.node
        given = call.args if isinstance(call, cst.Call) else ()
        same_file = collective.at.source is site.source
        if same_file and any(handled & _names(argument.value) for argument in given):
            return True
    return False


def _names(node: cst.CSTNode) -> set[str]:
    return {one.value for one in walk(node) if isinstance(one, cst.Name)}
