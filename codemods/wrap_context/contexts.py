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
    Instance,
    Layout,
    Left,
    Program,
    Replace,
    Rewrite,
    Source,
    Step,
    Trace,
    Unwrap,
    Wrapping,
    options,
)

from .._common.names import class_of
from .._common.origins import meaning
from .._common.shared import Helpers
from ..fsdp_constructor.blocks import Blocks, units_below
from ..fsdp_constructor.dropped import unimports
from ..fsdp_constructor.pieces import Pieces
from ..fsdp_constructor.policies import Chosen
from ..fsdp_constructor.site import WRAP, Construction, arguments
from ..fsdp_constructor.steps import TODO, Events, fill, is_part
from ..fsdp_constructor.write import Writer, write

ENABLE = "torch.distributed.fsdp.wrap.enable_wrap"
FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"


def contexts(program: Program) -> Iterator[Step | Left]:
    """What becomes of the calls of ``wrap``, by the context around them."""
    inside: dict[cst.WithItem, list[Events]] = {}
    outside: list[Events] = []
    for events in program.sites(Wrapping):
        at = events[0][1].at
        node = at.node
        if not isinstance(node, cst.Call) or meaning(program, at.source, node.func) != WRAP:
            continue
        item = _context(program, at.source, node)
        if item is None:
            outside.append(events)
        else:
            inside.setdefault(item, []).append(events)
    if outside:
        yield from _built_inside(program, inside, outside)
    else:
        yield from (_without(program, item, calls) for item, calls in inside.items())
    yield from _bare(program)


def _built_inside(
    program: Program, inside: dict[cst.WithItem, list[Events]], outside: list[Events]
) -> Iterator[Step | Left]:
    """The model is built inside of the context by what calls ``wrap`` in another function."""
    around = dict.fromkeys(item for events in outside for item in _contexts_of(events))
    made = [_with_units(program, item, inside.get(item, []), outside) for item in around if item]
    steps = [one for one in made if isinstance(one, Step)]
    if None not in around and len(steps) == len(made):
        without = [_without(program, item, c) for item, c in inside.items() if item not in around]
        edits, accounts = _inner(outside)
        elsewhere = {edit.source for edit in edits}
        edits += [edit for step in steps for edit in step.edits]
        accounts += [one for step in steps for one in step.accounts]
        yield Step((*edits, *unimports(program, elsewhere)), tuple(accounts))
        yield from without
        return
    why = "its `enable_wrap` context is in another function"
    for events in outside:
        yield _left(events[0][1].at.source, events[0][1].at.node, why)
    why = next((one for one in made if isinstance(one, str)), "")
    why = why or "a class that calls `wrap` is built inside of the context"
    for item, calls in inside.items():  # without it those calls would give their modules back
        yield _left(calls[0][0][1].at.source, item.item, why)


def _left(source: Source, node: cst.CSTNode, why: str) -> Left:
    return Left(source, node, why, TODO.format(why=why))


def _contexts_of(events: Events) -> Iterator[cst.WithItem | None]:
    """The contexts that are open when a call of ``wrap`` runs; None for one that no ``with`` opens."""
    for _, event in events:
        at = _manager(event).born
        around = Layout.of(at.source).parents[at.node] if at is not None else None
        yield around if isinstance(around, cst.WithItem) else None


def _manager(event: Wrapping) -> Instance:
    """The innermost context that is open when a call of ``wrap`` runs."""
    return next(
        one
        for one in reversed(event.moment.within)
        if isinstance(one, Instance) and class_of(one) == ENABLE
    )


def _inner(outside: list[Events]) -> tuple[list[Edit], list[Account]]:
    """The calls in other functions give their modules back."""
    edits: list[Edit] = []
    accounts: list[Account] = []
    for events in outside:
        source, node = events[0][1].at.source, events[0][1].at.node
        assert isinstance(node, cst.Call)
        edits.append(Rewrite(source, node, _argument(node)))
        why = "its module is sharded where the context was"
        accounts.append(Account(source, node, "changed", why))
    return edits, accounts


def _with_units(
    program: Program, item: cst.WithItem, calls: list[Events], outside: list[Events]
) -> Step | str:
    """The context goes: the model that it wraps is sharded after its units, wherever these were wrapped."""
    if len(calls) != 1:
        return "a class that calls `wrap` is built inside of the context, and what it is a part of is not known"
    events, made = calls[0], item.item
    source, call = events[0][1].at.source, events[0][1].at.node
    assert isinstance(made, cst.Call)
    assert isinstance(call, cst.Call)
    found = arguments(program, source, made, events)
    if isinstance(found, str):
        return found
    wrapper = found.pop("wrapper_cls", None)
    if wrapper is None or meaning(program, source, wrapper.value) != FSDP1:
        return "the wrapper is not known"
    inner = [one.at.node for each in outside for _, one in each]
    given = [call, *(one for one in inner if isinstance(one, cst.Call))]
    if "auto_wrap_policy" in found or any(len(c.args) != 1 or c.args[0].star for c in given):
        return "a call has arguments of its own"
    units = {_units(trace, event, outside) for trace, event in events}
    blocks = units.pop() if len(units) == 1 else None
    if blocks is None:
        return (
            "it is not known where in the model the modules are that are wrapped while it is built"
        )
    helpers, pieces = Helpers.above(source, call), Pieces()
    site = Construction(program, source, call, events, call.args[0].value, found)
    units_policy = Chosen(lambda module: "", blocks=blocks)
    policy = fill(site, pieces, helpers, wrapped_before=units_policy)
    if isinstance(policy, str):
        return policy
    if why := write(site, pieces, policy, helpers):
        return why
    statement = Layout.of(source).parents[item]
    assert isinstance(statement, cst.With)
    elsewhere = [edit for one in site.elsewhere.values() for edit in one]
    edits = (
        Unwrap(source, statement, "", item=item),
        *site.edits,
        *elsewhere,
        *helpers.all_edits(),
    )
    accounts = (
        Account(source, made, "changed", "its arguments are now passed to each call"),
        Account(source, call, "changed", "replaced by `fully_shard`"),
        *site.accounts,
    )
    touched = {edit.source for edit in edits}
    return Step((*edits, *unimports(program, touched)), accounts)


def _units(trace: Trace, root: Wrapping, outside: list[Events]) -> Blocks | None:
    """Where below a model the modules are that a context wrapped while it was built; None if not known."""
    manager = _manager(root)
    inner = [
        event
        for events in outside
        for its, event in events
        if its is trace and _manager(event) is manager
    ]
    results = {event.result for event in inner}
    models = options(root.module)
    found, blocks = units_below(trace, models[0]) if len(models) == 1 else (set(), None)
    if (
        blocks is not None
        and blocks.singles
        and not all(root.guards.implies(e.guards) for e in inner)
    ):
        return None  # an attribute that may not be there
    return blocks if found == results else None


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
    pieces = Pieces()
    policy = fill(site, pieces, helpers)
    if isinstance(policy, str):
        return Left(source, made, policy, TODO.format(why=policy))
    for call in twice:
        site.edits.append(Rewrite(source, call, _argument(call)))
        site.account(call, "dropped", "a wrapper around a wrapper holds no parameters")
    parts = {e[0][1].at.node: is_part(e) for e in calls if e[0][1].at.node in wraps}
    writer = Writer(site, pieces, policy, helpers)
    if writer.needs_name() and pieces.root != pieces.inner and len(set(parts.values())) > 1:
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
