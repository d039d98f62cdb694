"""``model.state_dict()`` of an FSDP1 model, by ``get_model_state_dict``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import libcst as cst

from fsdp2lint.api import (
    Account,
    Arguments,
    Called,
    Container,
    Edit,
    Inner,
    InsertBefore,
    Layout,
    Left,
    Literal,
    Operated,
    Part,
    Program,
    Remove,
    Replace,
    Restored,
    Rewrite,
    Round,
    Saved,
    Source,
    StateDict,
    StateDictTaken,
    Step,
    Trace,
    Value,
    name_for,
    once,
    options,
    unwrapped,
)

from .loop_text import text_of
from .states_asked import FULL, SHARDED, Asked, accounts, asked, context_of, no_module
from .states_assumed import assumed
from .states_guards import besides_rank, test_above
from .states_kinds import Kind, agreed
from .states_text import (
    HOME,
    asks_already,
    chosen,
    fitted,
    free_name,
    is_doubted,
    is_path,
    is_statement,
    options_for,
)
from .states_uses import (
    MIXED,
    NEW_NAMES,
    comes_otherwise,
    for_first_rank_only,
    in_groups,
    is_compiled,
    is_filled,
    on_first_rank,
    wrappers_of,
)
from .states_whole import WHY as ON_CPU
from .states_whole import Wholes

_WHY = {
    FULL: "the whole weights, gathered from all ranks, as before",
    SHARDED: "the sharded weights, as DTensors",
    "": "the weights of the kind that the run asks for",
}
_OF_GROUPS = "on every rank: each group has its own, and `cpu_offload` keeps one for all"
_TODO = "use get_model_state_dict(model, options=StateDictOptions(...))"
_DCP = "torch.distributed.checkpoint."

Taken = Sequence[tuple[Trace, StateDictTaken]]


def take(program: Program, events: Taken, wholes: Wholes) -> Iterator[Step | Left]:
    """The rewriting of one ``model.state_dict()``."""
    events = [(t, e) for t, e in events if not no_module(e)]
    mine = [(t, e) for t, e in events if "fsdp1" in wrappers_of(t, e, e.state.of)]
    if not any(_is_used(trace, taken) for trace, taken in mine):
        return
    source, call = mine[0][1].at.source, mine[0][1].at.node
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        yield Left(source, call, "it is not called by its name", _TODO)
        return
    found = [(_asked(t, e), for_first_rank_only(t, e.state)) for t, e in mine]
    kind = agreed(source, call, found)
    if call.args:
        kind = "it is given arguments that get_model_state_dict does not have"
    if not isinstance(kind, Kind):
        yield Left(source, call, kind, _TODO)
        return
    why = _WHY[kind.name]
    others_too = not all(first for _, first in found)
    if others_too and kind.in_groups() != kind and any(in_groups(t, e.state.of) for t, e in mine):
        kind, why = kind.in_groups(), f"{why}; {_OF_GROUPS}"
    asks = comes_otherwise(program, call, [(t, e, e.state.of) for t, e in events])
    asks = asks or is_doubted(program, source, call, text_of(source, call.func.value))
    if asks and asks_already(source, call, text_of(source, call.func.value)):
        return
    why += f"; {ON_CPU}" if kind.on_cpu else ""
    why += assumed(program, mine) if kind.name == FULL else ""
    getter = _Getter(source, call, call.func.value, kind, wholes, asks=asks)
    if asks and not is_path(source, call.func.value):
        if not is_statement(source, call):
            yield Left(source, call, MIXED, _TODO)
        else:
            yield Step(_named_first(getter), accounts(mine, call, why))
        return
    yield Step(_edits(getter, mine), accounts(mine, call, why))


def _asked(trace: Trace, taken: StateDictTaken) -> Asked:
    """What is asked for: a whole state that all ranks load is whole on all of them, or their loads would fail."""
    found = asked(trace, taken)
    loads = (r for r in trace.of(Restored) if taken.state in options(r.state))
    if found.kind == FULL and found.rank0_only is None:
        if any(not on_first_rank(load.guards) for load in loads):
            return replace(found, rank0_only=False, offloaded=False)
    return found


def _is_used(trace: Trace, taken: StateDictTaken) -> bool:
    """Whether what is done with it needs more than shards that are aliases of the parameters."""
    state = taken.state
    if context_of(trace, taken) is not None or is_compiled(trace, taken, state.of):
        return True
    if any(state in s.states and not s.via.startswith(_DCP) for s in trace.of(Saved)):
        return True
    into = [r.into for r in trace.of(Restored) if state in options(r.state)]
    if any(unwrapped(one) is not unwrapped(state.of) for i in into for one in options(i)):
        return True
    if into and is_filled(trace, state):
        return True
    return state in _read(trace)


@once
def _read(trace: Trace) -> frozenset[Value]:
    """The state dicts of which something asks for tensors, which are whole under FSDP1, and not for names alone."""
    found: set[Value] = set()
    for called in trace.of(Called):
        if called.name not in _BY_NAMES and not called.name.startswith(_DCP):
            for given in (*called.arguments, *called.keywords.values()):
                for one in options(given):
                    held = trace.memory.entries(one) if isinstance(one, Container) else ()
                    states = (one, *(value for _, value in held))
                    found.update(state for state in states if isinstance(state, StateDict))
                    found.update(_entries_in(one))
        for one in options(called.receiver) if called.receiver is not None else ():
            if isinstance(one, StateDict) and called.name not in _OF_NAMES:
                found.add(one)
            of_text = hasattr(str, called.name.removeprefix("."))
            found.update(_entries_in(one, turns=not of_text))
    for operated in trace.of(Operated):
        sides = (operated.left, operated.right)
        of_text = any(isinstance(v, Literal) and isinstance(v.value, str) for v in sides)
        for side in sides:
            found.update(_entries_in(side, turns=not of_text))
    for taken in trace.of(StateDictTaken):  # what is put into one comes from others
        for _, value in trace.memory.entries(taken.state):
            for one in options(value):
                found.update(_entries_in(one, turns=True))
    return frozenset(found)


def _entries_in(value: Value, *, turns: bool = False) -> Iterator[Value]:
    """The state dicts that a value is an entry of, or is computed from entries of."""
    waiting: list[Value | None] = [value]
    seen: set[Value] = set()
    while waiting:
        one = waiting.pop()
        if isinstance(one, Part) and one not in seen:
            seen.add(one)
            if isinstance(one.owner, StateDict) and _is_entry(one, turns=turns):
                yield one.owner
            waiting += (one.owner, *one.operands)


def _is_entry(part: Part, *, turns: bool = False) -> bool:
    """Whether a part of a state dict is an entry of it; with ``turns`` also what a round of a loop over one has of it, its name
    or what is under that.
    """
    key = part.key
    if isinstance(key, tuple):
        return key[:1] == ("[]",) or ".get" in key
    return (isinstance(key, str) and key.startswith("[")) or (turns and isinstance(key, Round))


_OF_NAMES = (".keys", ".update", ".setdefault", ".__contains__")
"""Methods of a state dict that give no tensor of it."""
_BY_NAMES = frozenset(
    f"builtins.{name}"
    for name in "all any bool enumerate frozenset id isinstance iter len list set sorted tuple type".split()
) | {".load_state_dict"}
"""What takes a state dict and asks for its names alone, or puts it back."""


class _Getter:
    """How a state dict is taken instead; ``asks`` whether the run has to say that the model is sharded."""

    def __init__(
        self,
        source: Source,
        call: cst.Call,
        model: cst.BaseExpression,
        kind: Kind,
        wholes: Wholes,
        *,
        asks: bool = False,
    ) -> None:
        self.source = source
        self.call = call
        self.model = model
        self.asks = asks
        self.name = name_for(source, call, f"{HOME}.get_model_state_dict")
        self.around = wholes.name(source, call) if kind.on_cpu else ""
        self.options, more = options_for(source, call, kind.switches)
        self.sharded = name_for(source, call, "torch.distributed.fsdp.FSDPModule")
        asked_for = self.sharded.edits if self.asks else ()
        self.imports: tuple[Edit, ...] = (*self.name.edits, *more, *asked_for, *kind.imports)

    def text(self, model: str, at: cst.CSTNode, *, inserted: bool = False) -> str:
        """The call for the place of ``at``."""
        parts = [model, *([self.options] if self.options else [])]
        if not self.asks:
            lead = 14 * inserted
            return self._taken(at, parts, inserted=inserted, lead=lead)
        taken = self._taken(at, parts, inserted=True)
        test, plain = f"isinstance({model}, {self.sharded.text})", f"{model}.state_dict()"
        return chosen(self.source, at, taken, test, plain, inserted=inserted)

    def _taken(
        self, at: cst.CSTNode, parts: Sequence[str], *, inserted: bool, lead: int = 0
    ) -> str:
        """The call alone, in what brings its tensors to the CPU where that is wanted."""
        return fitted(
            self.source,
            at,
            self.name.text,
            parts,
            inserted=inserted,
            lead=lead,
            around=self.around,
        )


def _edits(getter: _Getter, events: Taken) -> tuple[Edit, ...]:
    source, call, model = getter.source, getter.call, getter.model
    if all(on_first_rank(e.guards) for _, e in events):
        test = test_above([e for _, e in events], call, model)
        if test is not None:
            asked = besides_rank(events[0][1], test)
            text = getter.text(text_of(source, model), test, inserted=True)
            names = ("weights", "model_state", "whole_weights")
            return (*hoisted(source, call, text, test, asked, names), *getter.imports)

    def in_place(inner: Inner) -> str:
        return getter.text(inner(model), call)

    return (Rewrite(source, call, in_place), *getter.imports)


def _named_first(getter: _Getter) -> tuple[Edit, ...]:
    """The model gets a name first, so that it can be asked about."""
    source, call = getter.source, getter.call
    name = free_name(source, *NEW_NAMES)
    named = InsertBefore(source, call, f"{name} = {text_of(source, getter.model)}")
    return (named, Replace(source, call, getter.text(name, call)), *getter.imports)


def hoisted(
    source: Source,
    call: cst.CSTNode,
    text: str,
    test: cst.CSTNode,
    asked: str,
    names: Sequence[str],
) -> Iterator[Edit]:
    """``text``, a gather, above the test of the rank, where all ranks make it, below what else is ``asked``."""
    layout = Layout.of(source)

    def below(line: str) -> str:
        new = line.replace("\n", "\n" + layout.unit)
        return f"if {asked}:\n{layout.unit}{new}" if asked else line

    statement = layout.parents.get(call)
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        target = statement.targets[0].target
        if isinstance(target, cst.Name):
            yield InsertBefore(source, test, below(f"{target.value} = {text}"))
            yield Remove(source, statement, comments="lone")
            return
    name = free_name(source, *names)
    yield InsertBefore(source, test, below(f"{name} = {text}"))
    yield Replace(source, call, name)


def handed_out(events: Sequence[tuple[Trace, Saved]], wholes: Wholes) -> Iterator[Step | Left]:
    """``model.save_pretrained(folder)`` inside the context: it takes the state dict in unresolved code."""
    trace, saved = events[0]
    source, call = saved.at.source, saved.at.node
    if context_of(trace, saved) is None or not isinstance(call, cst.Call):
        return
    edit = Arguments(source, call)
    if edit.has("state_dict") or not isinstance(call.func, cst.Attribute):
        return
    kind = agreed(source, call, [(asked(t, e), False) for t, e in events])
    if not isinstance(kind, Kind) or edit.open:
        why = kind if isinstance(kind, str) else "its arguments are handed on from elsewhere"
        yield Left(source, call, why, f"{_TODO} and pass it as state_dict=")
        return
    getter = _Getter(source, call, call.func.value, kind, wholes)
    text = getter.text(text_of(source, call.func.value), call)
    why = "save_pretrained asks the model itself for its state dict, which is sharded now"
    yield Step(
        (edit.add("state_dict", text), *getter.imports), (Account(source, call, "changed", why),)
    )
