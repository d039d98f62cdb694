"""``model.load_state_dict(state)`` of an FSDP1 model, by ``set_model_state_dict``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Account,
    Container,
    Edit,
    Either,
    Inner,
    InsertBefore,
    Layout,
    Left,
    Literal,
    Loaded,
    MainRank,
    Part,
    Program,
    Restored,
    Rewrite,
    Saved,
    StateDict,
    StateDictTaken,
    Step,
    Trace,
    Value,
    argument,
    name_for,
    options,
)

from .loop_text import text_of
from .names import is_none
from .states_asked import FULL, LOCAL, LOCAL_WHY, SHARDED, accounts, asked, context_of
from .states_kinds import Kind, agreed
from .states_text import (
    HOME,
    asks_already,
    fitted,
    free_name,
    is_doubted,
    is_path,
    is_statement,
    options_for,
    starred,
)
from .states_uses import (
    MIXED,
    NEW_NAMES,
    comes_otherwise,
    is_compiled,
    is_filled,
    wrapped_for_all,
    wrappers_of,
)

_TODO = "use set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))"

_SHARDS = "its file holds this rank's shards as FSDP1 wrote them, which FSDP2 cannot read"
_RAISES = "keys that it lacks raise as before, by broadcast_from_rank0"
_COMPILED = (
    "keys that it lacks raise where the model is compiled, and are not reported where it is not"
)
"""With a broadcast, ranks that have read the file too keep the names without ``_orig_mod.``, and raise for those."""
_MISSING = "keys that it lacks are not reported: those parameters keep their values"
"""``_load_model_state_dict`` puts the model's own values in the place of missing keys; ``_broadcast_state_dict`` takes them out
again where the load is strict (torch/distributed/checkpoint/state_dict.py, torch/distributed/_state_dict_utils.py, 2.13)."""
_GATHER = "write the whole state under FSDP1 first, and load that with full_state_dict=True"

_ANEW = "a file with one rank's shards that FSDP1 wrote raises: write the whole state under FSDP1 to go on from it"

Put = Sequence[tuple[Trace, Restored]]


def put(program: Program, events: Put) -> Iterator[Step | Left]:
    """The rewriting of one ``model.load_state_dict(state)``."""
    mine = [(t, e) for t, e in events if "fsdp1" in wrappers_of(t, e, e.into)]
    if not mine or all(_stays(trace, restored) for trace, restored in mine):
        return
    source, call = mine[0][1].at.source, mine[0][1].at.node
    problem = _problem(mine, call)
    anew = problem == _SHARDS and all(_writes_shards(trace) for trace, _ in mine)
    problem = "" if anew else problem
    if problem or not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        todo = _GATHER if problem == _SHARDS else _TODO
        yield Left(source, call, problem or "it is not called by its name", todo)
        return
    kind = _kinds(mine).pop()
    asks = comes_otherwise(program, call, [(t, e, e.into) for t, e in events])
    asks = asks or is_doubted(program, source, call, text_of(source, call.func.value))
    first_only = any(first_rank_has_it(e.state) for _, e in mine)
    compiled = any(is_compiled(t, e, e.into) for t, e in mine)
    strict = kind == FULL and _is_strict(call) and not compiled
    broadcast = first_only or (strict and _for_all_ranks(mine))
    if asks and asks_already(source, call, text_of(source, call.func.value)):
        return
    if asks and not is_path(source, call.func.value) and not is_statement(source, call):
        yield Left(source, call, MIXED, _TODO)
        return
    asked_for = None if kind else _in_the_run(mine, call)
    full = "full_state_dict=True" if kind == FULL else ""
    full = asked_for.switches[0] if asked_for is not None else full
    edits = _edits(mine[0][1], call, full, broadcast, asks)
    edits += asked_for.imports if asked_for is not None else ()
    raises = broadcast and _is_strict(call)
    why = "the shards are put back"
    if full:
        missing = _RAISES if raises else _COMPILED if compiled and _is_strict(call) else _MISSING
        why = f"plain tensors are spread over the ranks; {missing}"
    why += f"; {_ANEW}" if anew else ""
    changed = accounts(mine, call, why)
    apart = anew or (bool(full) and not raises)
    own = (Account(source, call, "changed", why, own=True),) if apart and len(changed) == 1 else ()
    yield Step(edits, (*changed, *own))


def _problem(events: Put, call: cst.CSTNode) -> str:
    kinds = _kinds(events)
    if LOCAL in kinds:
        return LOCAL_WHY
    if len(kinds) > 1 or ("" in kinds and _in_the_run(events, call) is None):
        return "which kind of state dict it gets is known only at run time"
    if kinds == {SHARDED} and any(from_file(t, one) for t, e in events for one in options(e.state)):
        return _SHARDS
    if isinstance(call, cst.Call) and (starred(call) or argument(call, 2, "assign")):
        return "it is given arguments that set_model_state_dict does not have"
    return ""


def _in_the_run(events: Put, call: cst.CSTNode) -> Kind | None:
    """The switch that asks the run for the kind, where the code beside the call says it; else None."""
    found = [(asked(t, e), False) for t, e in events]
    kind = agreed(events[0][1].at.source, call, found, loads=True)
    return kind if isinstance(kind, Kind) and not kind.name else None


def _kinds(events: Put) -> set[str]:
    return {_kind(trace, restored) for trace, restored in events}


def _kind(trace: Trace, restored: Restored) -> str:
    """What is put back: by the state dict itself where it was taken by resolved code, else by what is asked for."""
    kind = asked(trace, restored).kind
    known = {one.full for one in options(restored.state) if isinstance(one, StateDict)}
    if kind != LOCAL and len(known) == 1 and None not in known:
        return FULL if known.pop() else SHARDED
    return kind


def _stays(trace: Trace, restored: Restored) -> bool:
    """Whether the model gets back what its own ``state_dict()`` gave, shards that it takes as they are."""
    if context_of(trace, restored) is not None or is_compiled(trace, restored, restored.into):
        return False
    states = [one for one in options(restored.state) if not is_none(one)]  # nothing kept so far
    own = (isinstance(one, StateDict) and one.via == ".state_dict" for one in states)
    return bool(states) and all(own) and not any(is_filled(trace, one) for one in states)


def from_file(trace: Trace, value: Value) -> bool:
    """Whether a value is what ``torch.load`` read, or an entry of it."""
    read = {e.result for e in trace.of(Loaded) if e.via == "torch.load"}
    one: Value | None = value
    while one is not None and one not in read:
        one = one.owner if isinstance(one, Part) else None
    return one is not None


def _writes_shards(trace: Trace) -> bool:
    """Whether the run itself writes files with one rank's shards of a model, to be read again."""
    return any(
        state.kind == "model" and asked(trace, taken).kind == SHARDED
        for saved in trace.of(Saved)
        for state in (saved.states if saved.via == "torch.save" else ())
        for taken in trace.of(StateDictTaken)
        if taken.state is state
    )


def first_rank_has_it(state: Value) -> bool:
    """Whether a state is loaded by the first rank, and nothing or an empty dictionary on the others."""
    found = options(state)
    empty = [one for one in found if is_nothing(one)]
    return bool(empty) and len(empty) < len(found) and _differs_by_rank(state)


def is_nothing(value: Value) -> bool:
    """Whether a value is None or a dictionary of the script's own."""
    if isinstance(value, Literal):
        return value.value is None
    return isinstance(value, Container) and value.kind == "dict"


def _differs_by_rank(state: Value) -> bool:
    sides = state.apart() if isinstance(state, Either) else ()
    return any(isinstance(g.test, MainRank) for guards, _ in sides for g in guards)


def _is_strict(call: cst.Call) -> bool:
    """Whether the load may be one that raises for missing keys."""
    strict = argument(call, 1, "strict")
    return strict is None or not (
        isinstance(strict.value, cst.Name) and strict.value.value == "False"
    )


def _for_all_ranks(events: Put) -> bool:
    """Whether the model's wrapping is found and takes all ranks: those that the broadcast waits for."""
    return {wrapped_for_all(t, e.into) for t, e in events} - {None} == {True}


def _edits(
    event: Restored, call: cst.Call, full: str, broadcast: bool, asks: bool
) -> tuple[Edit, ...]:
    source = event.at.source
    assert isinstance(call.func, cst.Attribute)
    model, state = call.func.value, argument(call, 0, "state_dict")
    strict = argument(call, 1, "strict")
    switches = [full] if full else []
    switches += ["broadcast_from_rank0=True"] if broadcast else []
    if strict is not None and source.code(strict.value) != "True":
        switches.append(f"strict={source.code(strict.value)}")
    given, more = options_for(source, call, switches)
    setter = name_for(source, call, f"{HOME}.set_model_state_dict")
    value = state.value if state is not None else call
    none = first_rank_has_it(event.state) and any(
        isinstance(o, Literal) for o in options(event.state)
    )
    name = "" if not asks or is_path(source, model) else free_name(source, *NEW_NAMES)

    def text(inner: Inner) -> str:
        parts = [name or inner(model), inner(value) + (" or {}" if none else "")]
        given_parts = [*parts, *([given] if given else [])]
        return fitted(source, call, setter.text, given_parts, inserted=asks)

    if not asks:
        return (Rewrite(source, call, text), *setter.edits, *more)
    return (*_asking(event, call, text, name), *setter.edits, *more)


def _asking(
    event: Restored, call: cst.Call, text: Callable[[Inner], str], name: str
) -> Iterator[Edit]:
    """The same where DDP wraps the model in some runs; ``name`` is what the model is called first."""
    source = event.at.source
    assert isinstance(call.func, cst.Attribute)
    model = text_of(source, call.func.value)
    if name:
        yield InsertBefore(source, call, f"{name} = {model}")
    sharded = name_for(source, call, "torch.distributed.fsdp.FSDPModule")
    layout = Layout.of(source)
    statement = layout.parents.get(call)
    test = f"isinstance({name or model}, {sharded.text})"
    old = text_of(source, call)
    old = name + old[len(model) :] if name else old
    alone = (
        isinstance(statement, cst.Expr) and len(getattr(layout.line(statement), "body", ())) == 1
    )
    if not alone or statement is None:
        yield Rewrite(
            source,
            call,
            lambda inner: f"{text(inner)} if {test} else {old if name else inner.text}",
        )
    else:
        indent = layout.newline + layout.indentation(layout.line(statement))
        inner_indent = indent + layout.unit

        def both(inner: Inner) -> str:
            new = re.sub(r"\r?\n", inner_indent, text(inner))
            return f"if {test}:{inner_indent}{new}{indent}else:{inner_indent}{old}"

        yield Rewrite(source, call, both)
    yield from sharded.edits
