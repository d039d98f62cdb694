"""The calls of FSDP1 that prepare an optimizer's state for flat parameters, and where their results go.

Source: torch/distributed/fsdp/fully_sharded_data_parallel.py (the signatures; ``optim_state_dict_to_load`` took the state
first until torch 2.1), torch/distributed/fsdp/_optim_utils.py (``rank0_only`` broadcasts).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    FLATTENERS,
    Called,
    Edit,
    Layout,
    Literal,
    Module,
    Optimizer,
    Program,
    Restored,
    Source,
    StateDict,
    Trace,
    Value,
    Wrapped,
    argument,
    options,
)

from .loop_text import text_of
from .states_asked import FSDP1, FULL, LOCAL, SHARDED, Asked, asked
from .states_holders import field_of, lifted
from .states_kinds import Kind, agreed
from .states_putting import first_rank_has_it
from .states_text import function_of, is_path

_SCATTER = f"{FSDP1}.scatter_full_optim_state_dict"
_TO_LOAD = f"{FSDP1}.optim_state_dict_to_load"
_SIGNATURES = {
    _TO_LOAD: ("optim_state_dict", 2, 0, 1),
    _SCATTER: ("full_optim_state_dict", 0, 1, 3),
    f"{FSDP1}.shard_full_optim_state_dict": ("full_optim_state_dict", 0, 1, 3),
    f"{FSDP1}.flatten_sharded_optim_state_dict": ("sharded_optim_state_dict", 0, 1, 2),
}
"""The name of the state's parameter, and the positions of the state, the model and the optimizer."""

Place = tuple[Source, cst.CSTNode]
"""A function of a file, or the file's own module."""

_KINDS = {_SCATTER: FULL, f"{FSDP1}.shard_full_optim_state_dict": FULL}


@dataclass(frozen=True, slots=True)
class Flattening:
    """One such call with its arguments; ``loads`` says that it loads the state itself.

    ``from_file`` says that the state may have been written by an earlier run, ``broadcast`` that only
    the first rank has it, ``none`` that the others may have None, ``either`` that it is whole in some
    runs and shards in others.
    """

    source: Source
    call: cst.Call
    state: cst.BaseExpression
    model: cst.BaseExpression
    optimizer: cst.BaseExpression | None
    switches: tuple[str, ...]
    imports: tuple[Edit, ...]
    from_file: bool
    broadcast: bool
    none: bool
    either: bool
    loads: bool
    events: tuple[tuple[Trace, Called], ...]


def flattening(events: Sequence[tuple[Trace, Called]]) -> Flattening | str:
    """The call at one node, or why it cannot be read."""
    _, called = events[0]
    source, call = called.at.source, called.at.node
    if not isinstance(call, cst.Call) or any(a.star for a in call.args):
        return "its arguments are handed on from elsewhere"
    name, *places = _SIGNATURES[called.name]
    if called.name == _TO_LOAD and _old_order(called):
        places = [0, 1, 2]
    state = argument(call, places[0], name)
    model = argument(call, places[1], "model")
    optimizer = argument(call, places[2], "optim")
    value = called.argument(places[0], name)
    if state is None or model is None or value is None:
        return "it is not given a state and a model"
    broadcast = called.name == _SCATTER or any(
        first_rank_has_it(value) or asked(t, c, optimizer=True).rank0_only is True
        for t, c in events
    )
    kind = _kind(source, call, events, value)
    if isinstance(kind, str):
        return kind
    switches = tuple(s for s in kind.switches if s.startswith("full_state_dict"))
    if broadcast and switches:
        switches = (*switches, "broadcast_from_rank0=True")
    directly = argument(call, 4, "load_directly")
    return Flattening(
        source,
        call,
        state.value,
        model.value,
        optimizer.value if optimizer is not None else None,
        switches,
        kind.imports,
        from_file=bool(switches) and not _taken_here(value),
        broadcast=broadcast and bool(switches),
        either=not kind.name and kind.switches == ("full_state_dict=True",),
        none=_may_be_none(value) or (called.name == _SCATTER and not first_rank_has_it(value)),
        loads=directly is not None and source.code(directly.value) == "True",
        events=tuple(events),
    )


def _old_order(called: Called) -> bool:
    """Whether the state comes first, as in torch 2.0: the values tell."""
    given = [options(value) for value in called.arguments[:3]]
    kinds = [
        next((k for k in (Optimizer, Module, Wrapped) if any(isinstance(o, k) for o in one)), None)
        for one in given
    ]
    if "optim_state_dict" in called.keywords or len(given) < 3:
        return False
    return kinds[2] is Optimizer or (kinds[1] in (Module, Wrapped) and kinds[0] is None)


def _kind(
    source: Source, call: cst.Call, events: Sequence[tuple[Trace, Called]], value: Value
) -> Kind | str:
    name = events[0][1].name
    known = {one.full for one in options(value) if isinstance(one, StateDict)}
    if name in _KINDS:
        return Kind(FULL, ("full_state_dict=True",))
    if name != _TO_LOAD or known == {False}:
        return Kind(SHARDED, ())
    if known == {True}:
        return Kind(FULL, ("full_state_dict=True",))
    found: list[tuple[Asked, bool]] = [(asked(t, c, optimizer=True), False) for t, c in events]
    kind = agreed(source, call, found, loads=True)
    if isinstance(kind, str) and _differ(one for one, _ in found):
        return Kind("", ("full_state_dict=True",))
    return kind


def _differ(every: Iterable[Asked]) -> bool:
    """Whether the runs bring whole states and shards, each on every rank.

    A load of whole tensors takes shards as they are (torch/distributed/_state_dict_utils.py,
    ``_distribute_state_dict``; torch/distributed/tensor/_api.py, ``distribute_tensor``).
    """
    found = list(every)
    kinds = {one.kind for one in found}
    return (
        LOCAL not in kinds
        and kinds != {FULL}
        and kinds != {SHARDED}
        and all(one.rank0_only is False for one in found)
    )


def as_called(found: Flattening, named: cst.BaseExpression, called: Called, around: Place) -> str:
    """How the function ``around`` says what ``named`` is in the function that flattens; "" if it cannot.

    ``around`` is on the way to the call, which hands the value on as it is.
    """
    source, node = found.source, named
    sites = zip(reversed(called.calls), reversed(called.moment.inside), strict=False)
    if around == (found.source, function_of(found.source, found.call)):
        return text_of(source, node)
    for site, function in sites:
        given = _given(site.node, function.node, node)
        if given is None or not is_path(site.source, given):
            return ""
        source, node = site.source, given
        if around == (source, function_of(source, site.node)):
            return source.code(node)
    return ""


def _given(
    call: cst.CSTNode, function: cst.CSTNode, named: cst.BaseExpression
) -> cst.BaseExpression | None:
    """The argument of a call that becomes the parameter ``named`` of the function."""
    if not isinstance(named, cst.Name) or not isinstance(call, cst.Call):
        return None
    if not isinstance(function, cst.FunctionDef):
        return None
    names = [p.name.value for p in (*function.params.posonly_params, *function.params.params)]
    if names[:1] == ["self"]:
        names = names[1:]
    for index, arg in enumerate(call.args):
        given = arg.keyword.value if arg.keyword is not None else "".join(names[index : index + 1])
        if given == named.value and not arg.star:
            return arg.value
    return None


def _taken_here(value: Value) -> bool:
    return all(isinstance(one, StateDict) for one in options(value))


def _may_be_none(value: Value) -> bool:
    return any(isinstance(one, Literal) and one.value is None for one in options(value))


def loads_of(found: Flattening) -> list[tuple[Trace, Restored]]:
    """Where its results are loaded into optimizers, or into what hands them on to one."""
    return [
        (trace, lifted(restored)[0])
        for trace, called in found.events
        for restored in trace.of(Restored)
        if restored.via == ".load_state_dict" and called.result in options(restored.state)
    ]


def field_at(program: Program, load: Restored) -> str | None:
    """The attribute of what gets the state at a load that holds the optimizer; None where runs differ."""
    found: set[str | None] = set()
    for trace, event in program.of(Restored):
        there, field = lifted(event)
        if there.at.node is load.at.node:
            found.add(field or field_of([(trace, event, event.into)]))
    return found.pop() if len(found) == 1 else None


def field_given(found: Flattening) -> str | None:
    """The attribute of what it is given as an optimizer that holds one; None where runs differ."""
    given = ((t, c, c.argument(_SIGNATURES[c.name][3], "optim")) for t, c in found.events)
    return field_of((t, c, value) for t, c, value in given if value is not None)


def gets_others(program: Program, at: Restored, found: Sequence[Flattening]) -> bool:
    """Whether the load at that node gets anything but results of these calls."""
    results = {called.result for one in found for _, called in one.events}
    return any(
        option not in results
        for _, restored in program.of(Restored)
        if lifted(restored)[0].at.node is at.at.node
        for option in options(restored.state)
    )


def statement_of(source: Source, call: cst.CSTNode) -> cst.Assign | cst.Expr | None:
    """The statement that is a call, or gives a name to its value."""
    statement = Layout.of(source).parents.get(call)
    if isinstance(statement, cst.Expr):
        return statement
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        if isinstance(statement.targets[0].target, cst.Name):
            return statement
    return None


def name_of(statement: cst.CSTNode | None) -> str:
    """The name that an assignment binds."""
    target = statement.targets[0].target if isinstance(statement, cst.Assign) else None
    return target.value if isinstance(target, cst.Name) else ""


def all_flattenings(program: Program) -> Iterator[Flattening | tuple[Source, cst.CSTNode, str]]:
    """Every such call of the program; with what is wrong about one that cannot be read."""
    for events in program.sites(Called):
        mine = [(trace, called) for trace, called in events if called.name in FLATTENERS]
        if mine:
            found = flattening(mine)
            if isinstance(found, str):
                yield mine[0][1].at.source, mine[0][1].at.node, found
            else:
                yield found
