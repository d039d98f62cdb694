"""`functools.partial(FSDP, …)` that is returned, stored or passed: a function that shards takes its place.

    return partial(FSDP, use_orig_params=True)         wrap_layers(model, partial(FSDP, …))

Whoever calls it gives a module and takes what comes back; `fully_shard` gives back the module itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Layout, Names, Program, Reference, Source, Wrapping, scope_of, walk

from ..._common.origins import meaning, origins
from ..chosen import Chosen, Events, is_field, takes_a_module
from ..derived import derived

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
WRAP = "torch.distributed.fsdp.wrap.wrap"
PARTIAL = "functools.partial"


def partials(program: Program, known: set[cst.BaseExpression]) -> list[Chosen]:
    """The partial calls of FSDP1 that reach other functions, and the calls that can be theirs.

    None where such a call gives more than a module: then it says what the partial call does not.
    ``known`` are those that are seen to already.
    """
    made = [one for one in _made(program) if one[1] not in known]
    calls = list(_elsewhere(program))
    if not made or any(not takes_a_module(call) for call, _ in calls):
        return []
    bare = any(_is_bare(reference) for reference in program.references(FSDP1))
    found = []
    for source, node in made:
        mine = [(c, e) for c, es in calls for e in es if _can_come_from(e[1], node)]
        theirs = () if bare else tuple(dict.fromkeys(call for call, _ in mine))
        found.append(Chosen(source, node, theirs, [event for _, event in mine]))
    return found


def _can_come_from(wrapping: Wrapping, made: cst.Call) -> bool:
    """Whether a model is wrapped with what a partial call gives."""
    names = {arg.keyword.value for arg in made.args if arg.keyword is not None}
    if any(arg.star for arg in made.args):
        return names <= wrapping.options.keys()
    return names == wrapping.options.keys()


def _made(program: Program) -> Iterator[tuple[Source, cst.Call]]:
    """The partial calls that are in a simple statement, are given to no library and called nowhere beside."""
    for reference in program.references(FSDP1):
        source, layout = reference.source, Layout.of(reference.source)
        arg = layout.parents[reference.node]
        call = layout.parents.get(arg)
        if not isinstance(call, cst.Call) or not call.args or call.args[0] is not arg:
            continue
        if meaning(program, source, call.func) != PARTIAL or _has_places(call):
            continue
        if _is_handed_out(source, call) and not _is_of_libraries(program, source, call):
            yield source, call


def _has_places(call: cst.Call) -> bool:
    return any(arg.keyword is None and arg.star != "**" for arg in call.args[1:])


def _is_handed_out(source: Source, call: cst.Call) -> bool:
    """Whether a partial call leaves the function that makes it, or is bound to a field."""
    layout = Layout.of(source)
    if not isinstance(layout.statement(call), cst.BaseSmallStatement):
        return False
    scope = scope_of(layout.ancestors(call))
    if not isinstance(scope, cst.FunctionDef | cst.Module):
        return False
    parent = layout.parents[call]
    if not isinstance(parent, cst.Assign) or len(parent.targets) != 1:
        return isinstance(parent, cst.Return | cst.Arg)
    target = parent.targets[0].target
    if not isinstance(target, cst.Name):
        return isinstance(target, cst.Attribute)
    if len(Names.of(source).bindings.get(scope, {}).get(target.value, [])) != 1:
        return False
    reads = [n for n in walk(scope) if isinstance(n, cst.Name) and n.value == target.value]
    around = [layout.parents[n] for n in reads if layout.parents[n] is not parent.targets[0]]
    called = [p for p in around if isinstance(p, cst.Call)]
    return bool(around) and not called


def _is_of_libraries(program: Program, source: Source, call: cst.Call) -> bool:
    """Whether a partial call is given to something that is not the project's."""
    layout = Layout.of(source)
    arg = layout.parents[call]
    taker = layout.parents.get(arg) if isinstance(arg, cst.Arg) else None
    return isinstance(taker, cst.Call) and bool(meaning(program, source, taker.func))


def _elsewhere(program: Program) -> Iterator[tuple[cst.Call, Events]]:
    """The calls that wrap by something that is not FSDP1's class, nor made beside them."""
    for sited in program.sites(Wrapping):
        events = [(trace, event) for trace, event in sited if event.by == "fsdp1"]
        at = sited[0][1].at
        if not events or not isinstance(at.node, cst.Call):
            continue
        func = at.node.func
        if meaning(program, at.source, func) in (FSDP1, WRAP) or is_field(program, func):
            continue
        if derived(program, at.source, func) is None and not _made_beside(program, at.source, func):
            yield at.node, events


def _made_beside(program: Program, source: Source, func: cst.BaseExpression) -> bool:
    """Whether what is called comes from statements of the same function."""
    scope = scope_of(Layout.of(source).ancestors(func))
    return isinstance(func, cst.Name) and all(
        one.source is source
        and one.node is not None
        and scope_of(Layout.of(source).ancestors(one.node)) is scope
        for one in origins(program, source, func)
    )


def _is_bare(reference: Reference) -> bool:
    """Whether FSDP1's class itself is given to something that may call it."""
    layout = Layout.of(reference.source)
    arg = layout.parents[reference.node]
    call = layout.parents.get(arg)
    if isinstance(arg, cst.Return | cst.Assign):
        return True
    if not isinstance(arg, cst.Arg) or not isinstance(call, cst.Call):
        return False
    return getattr(call.func, "value", "") not in (
        "isinstance",
        "issubclass",
        "cast",
        "partial",
    ) and (
        not isinstance(call.func, cst.Attribute) or call.func.attr.value not in ("partial", "cast")
    )
