"""``enable_wrap`` and the calls of ``wrap`` inside it.

Facts (torch/distributed/fsdp/wrap.py, torch 2.13): inside the context ``wrap(module, **over)`` calls the
wrapper with the context's keywords; outside it gives the module back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Edit,
    Inner,
    Layout,
    Left,
    Program,
    Replace,
    Rewrite,
    Source,
    Step,
    Unwrap,
    Wrapping,
)

from .._common.origins import meaning
from .._common.shared import Helpers
from ..fsdp_constructor.dropped import unimports
from ..fsdp_constructor.plan import Plan
from ..fsdp_constructor.site import WRAP, Construction, arguments
from ..fsdp_constructor.steps import TODO, Events, is_part, planned
from ..fsdp_constructor.write import Writer

ENABLE = "torch.distributed.fsdp.wrap.enable_wrap"
FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"


def contexts(program: Program) -> Iterator[Step | Left]:
    """What becomes of the calls of ``wrap``, by the context around them."""
    inside: dict[cst.WithItem, list[Events]] = {}
    outside: list[tuple[Source, cst.Call]] = []
    for events in program.sites(Wrapping):
        at = events[0][1].at
        node = at.node
        if not isinstance(node, cst.Call) or meaning(program, at.source, node.func) != WRAP:
            continue
        item = _context(program, at.source, node)
        if item is None:
            outside.append((at.source, node))
        else:
            inside.setdefault(item, []).append(events)
    why = "its `enable_wrap` context is in another function"
    yield from (Left(source, node, why, TODO.format(why=why)) for source, node in outside)
    for item, calls in inside.items():
        if outside:  # without the context those calls would give their modules back
            why = "a class that calls `wrap` is built inside of the context"
            yield Left(calls[0][0][1].at.source, item.item, why, TODO.format(why=why))
        else:
            yield _without(program, item, calls)
    yield from _bare(program)


def _bare(program: Program) -> Iterator[Step]:
    """Calls of ``wrap`` that no context is around in any run give their module back."""
    wrapping = {events[0][1].at.node for events in program.sites(Wrapping)}
    for events in program.sites(Called):
        _, called = events[0]
        source, node = called.at.source, called.at.node
        if called.name != WRAP or node in wrapping or not isinstance(node, cst.Call):
            continue
        if len(node.args) == 1 and not node.args[0].star:
            text = source.text[slice(*Layout.of(source).whole(node.args[0].value))]
            why = "outside of `enable_wrap` it gives its module back"
            edits = (Replace(source, node, text), *unimports(program, {source}))
            yield Step(edits, (Account(source, node, "dropped", why),))


def _context(program: Program, source: Source, call: cst.Call) -> cst.WithItem | None:
    """The ``with enable_wrap(…)`` around a call in the same function."""
    for around in Layout.of(source).ancestors(call):
        if isinstance(around, cst.FunctionDef):
            return None
        for item in around.items if isinstance(around, cst.With) else ():
            made = item.item
            if isinstance(made, cst.Call) and meaning(program, source, made.func) == ENABLE:
                return item
    return None


def _without(program: Program, item: cst.WithItem, calls: Sequence[Events]) -> Step | Left:
    """The context goes; each ``wrap`` becomes what the context's arguments ask for."""
    source = calls[0][0][1].at.source
    made = item.item
    assert isinstance(made, cst.Call)
    found = arguments(program, source, made, calls[0])
    why = found if isinstance(found, str) else ""
    if isinstance(found, dict):
        wrapper = found.pop("wrapper_cls", None)
        if wrapper is None or meaning(program, source, wrapper.value) != FSDP1:
            why = "the wrapper is not known"
    wraps = [c for events in calls if isinstance(c := events[0][1].at.node, cst.Call)]
    twice = [call for call in wraps if call.args and call.args[0].value in wraps]
    wraps = [call for call in wraps if call not in twice]
    if any(len(call.args) != 1 or call.args[0].star for call in wraps):
        why = why or "a call has arguments of its own"
    helpers = Helpers.above(source, made)
    if isinstance(found, str) or why:
        return Left(source, made, why, TODO.format(why=why))
    every = [one for events in calls for one in events]
    site = Construction(program, source, made, every, made, found)
    plan = Plan()
    policy = planned(site, plan, helpers)
    if isinstance(policy, str):
        return Left(source, made, policy, TODO.format(why=policy))
    for call in twice:
        site.edits.append(Rewrite(source, call, _argument(call)))
        site.account(call, "dropped", "a wrapper around a wrapper holds no parameters")
    parts = {e[0][1].at.node: is_part(e) for e in calls if e[0][1].at.node in wraps}
    writer = Writer(site, plan, policy, helpers)
    if writer.needs_name() and plan.root != plan.inner and len(set(parts.values())) > 1:
        why = "inputs are cast at the outermost module only"
        return Left(source, made, why, TODO.format(why=why))
    return _step(site, item, wraps, parts, writer)


def _argument(call: cst.Call) -> Callable[[Inner], str]:
    return lambda inner: inner(call.args[0].value)


def _step(
    site: Construction,
    item: cst.WithItem,
    wraps: list[cst.Call],
    parts: dict[cst.CSTNode, bool],
    writer: Writer,
) -> Step:
    source = site.source
    statement = Layout.of(source).parents[item]
    assert isinstance(statement, cst.With)
    accounts = [Account(source, site.call, "changed", "its arguments are now passed to each call")]
    edits: list[Edit] = []
    if writer.needs_name():
        name, text = writer.function()
        edits += [Replace(source, call.func, name) for call in wraps]
    else:
        said = writer.arguments(len(wraps) > 1, set(parts.values()))
        text = "\n".join(writer.lines)
        for call in wraps:
            given = ", ".join([site.text(call.args[0].value), *said[parts[call]]])
            edits.append(Replace(source, call, f"{writer.shard}({given})"))
    accounts += [Account(source, call, "changed", "replaced by `fully_shard`") for call in wraps]
    edits.append(Unwrap(source, statement, text, item=item))
    elsewhere = [edit for one in site.elsewhere.values() for edit in one]
    edits += [*site.edits, *elsewhere, *writer.helpers.all_edits()]
    touched = {edit.source for edit in edits}
    return Step((*edits, *unimports(site.program, touched)), (*accounts, *site.accounts))
