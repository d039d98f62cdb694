"""The fix of shards that are pickled: all ranks gather the full states, the first one writes them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    Edit,
    Event,
    Fix,
    Guard,
    InsertBefore,
    Layout,
    Loaded,
    MainRank,
    Module,
    OptimizerBuilt,
    Replace,
    Saved,
    StateDict,
    StateDictTaken,
    Trace,
    Wrap,
    name_for,
    rank_dependent,
    walk,
)

from ..._common.fixes import call_of, free_name, path_text, receiver_of, stands_alone
from ..._common.fixes_moving import bound_names
from ..._common.shared import differs_by_rank

_HOME = "torch.distributed.checkpoint.state_dict"
_EXPRESSIONS = (cst.BaseExpression, cst.Arg, cst.BaseElement, cst.BaseDictElement, cst.CompFor)
_NOT_ONCE = (cst.BaseComp, cst.Lambda, cst.IfExp, cst.BooleanOperation)


@dataclass(frozen=True, slots=True)
class _Gather:
    """A ``state_dict()`` to be replaced: the call, whose state, and the statement above which to gather."""

    call: cst.Call
    function: str
    arguments: str
    name: str
    above: cst.CSTNode | None
    """None where the gather takes the place of the call."""


def gathered(trace: Trace, saved: Saved, states: Sequence[StateDict]) -> Fix | None:
    """Gather states on every rank and write them on the first.

    None unless each state is taken in the function that saves, and what asks for the rank around it, if
    anything, is an ``if rank == 0:`` that directly holds the statements that take and save.
    """
    guards = _rank_guards(saved)
    if stands_alone(saved.at) is None or guards is None:
        return None
    if any(e.at.node is saved.at.node and _rank_guards(e) != guards for e in trace.of(Saved)):
        return None
    if differs_by_rank(saved.path) and any(differs_by_rank(e.path) for e in trace.of(Loaded)):
        return None  # each rank reads a file of its own again
    gathers = [_gather(trace, saved, states, state) for state in states]
    found = [g for g in gathers if g is not None]
    if not found or len(found) < len(gathers):
        return None
    if len({g.name for g in found}) < len(found) or len({g.call for g in found}) < len(found):
        return None
    source, node = saved.at.source, saved.at.node
    chosen = name_for(source, node, f"{_HOME}.StateDictOptions")
    options = f"{chosen.text}(full_state_dict=True, cpu_offload=True)"
    edits: list[Edit] = [*chosen.edits]
    places = {Layout.of(source).statement(g.above or g.call) for g in found}
    if len(found) > 1 and len(places) == 1:
        whole = free_name(saved.at, "whole", "full_options")
        edits.append(InsertBefore(source, places.pop(), f"{whole} = {options}"))
        options = whole
    for one in found:
        get = name_for(source, node, f"{_HOME}.{one.function}")
        call = f"{get.text}({one.arguments}, options={options})"
        edits += get.edits
        if one.above is not None:
            edits.append(InsertBefore(source, one.above, f"{one.name} = {call}"))
        edits.append(Replace(source, one.call, one.name if one.above is not None else call))
    if not guards:
        rank = name_for(source, node, "torch.distributed.get_rank")
        edits += [Wrap(source, node, f"if {rank.text}() == 0:"), *rank.edits]
    return Fix(
        "gather the full state dict on every rank and write it on the first",
        tuple(edits),
        "unsafe",
        "every rank must reach this, and rank 0's host must hold the whole model",
    )


def _gather(
    trace: Trace, saved: Saved, states: Sequence[StateDict], state: StateDict
) -> _Gather | None:
    taken = _taken(trace, state)
    if taken is None or taken.calls != saved.calls or taken.at.source is not saved.at.source:
        return None
    call, owner = call_of(taken.at), path_text(taken.at, receiver_of(taken.at))
    if call is None or call.args or not owner or state.via.rpartition(".")[2] != "state_dict":
        return None
    above = _above(saved, taken)
    if above is None:
        return None
    place = None if above is call else above
    if place is not None and _sometimes(Layout.of(taken.at.source), call):
        return None
    if state.kind == "model":
        name = free_name(saved.at, "state", "model_state", "full_state", "full_state_dict")
        return _Gather(call, "get_model_state_dict", owner, name, place)
    model = _model_of(trace, state, states)
    if not model:
        return None
    name = free_name(saved.at, "optimizer_state", "full_optimizer_state")
    return _Gather(call, "get_optimizer_state_dict", f"{model}, {owner}", name, place)


def _taken(trace: Trace, state: StateDict) -> StateDictTaken | None:
    return next((e for e in trace.of(StateDictTaken) if e.state is state), None)


def _model_of(trace: Trace, state: StateDict, states: Sequence[StateDict]) -> str:
    """What the function calls the model of an optimizer whose state it takes: it takes the model's too."""
    over = [b.over for b in trace.of(OptimizerBuilt) if b.optimizer is state.of]
    if len(over) != 1 or len(over[0]) != 1:
        return ""
    for other in states:
        taken = _taken(trace, other) if other.of is over[0][0].of else None
        if taken is not None and isinstance(other.of, Module) and other.kind == "model":
            return path_text(taken.at, receiver_of(taken.at))
    return ""


def _above(saved: Saved, taken: StateDictTaken) -> cst.CSTNode | None:
    """The statement above which all ranks can gather; the call itself when they all come to it."""
    layout = Layout.of(saved.at.source)
    guards = _rank_guards(taken)
    if guards is None:
        return None
    statement = layout.statement(taken.at.node)
    if not guards:
        return statement if statement is layout.statement(saved.at.node) else taken.at.node
    block = layout.block(statement)
    around = layout.parents.get(block)
    if not isinstance(around, cst.If) or around.body is not block or around.orelse is not None:
        return None
    if any(g.site is None or g.site.node is not around.test for g in guards):
        return None
    if layout.statement(around) is not around:
        return None
    read = {n.value for n in walk(taken.at.node) if isinstance(n, cst.Name)}
    return None if any(bound_names(one) & read for one in around.body.body) else around


def _sometimes(layout: Layout, call: cst.Call) -> bool:
    """Whether a part of a statement may be evaluated never, or several times."""
    around = layout.ancestors(call)
    inside = itertools.takewhile(lambda one: isinstance(one, _EXPRESSIONS), around)
    return any(isinstance(one, _NOT_ONCE) for one in inside)


def _rank_guards(event: Event) -> list[Guard] | None:
    """The guards that let only the first rank come to an event; None when others are about ranks too."""
    found = [c for c in event.guards.clauses if any(rank_dependent(g.test) for g in c)]
    guards = [g for clause in found for g in clause]
    return guards if len(guards) == len(found) and all(_on_first(g) for g in guards) else None


def _on_first(guard: Guard) -> bool:
    """Whether a guard holds on the first rank only."""
    return isinstance(guard.test, MainRank) and guard.test.scope == "global" and guard.taken
