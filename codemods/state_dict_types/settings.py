"""``FSDP.set_state_dict_type(…)``, and the configurations and kinds that only it or a context used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Layout,
    Left,
    Names,
    Optimizer,
    Program,
    Remove,
    Restored,
    Source,
    StateDictTaken,
    Step,
    Trace,
    Unimport,
    Value,
    dotted,
    options,
    scope_of,
    unwrapped,
)

from .._common.states_asked import (
    FSDP1,
    KINDS,
    LOCAL_CHANGED,
    LOCAL_TODO,
    LOCAL_WHY,
    SETTER,
    SHARDED,
    asked,
    is_local,
    kind_of,
)
from .._common.states_text import OF_STATES, unimports

_WHY = "the state-dict type is now passed to each call"
_UNUSED = "removed: no call reads an FSDP1 state-dict setting any more"
_IN_THE_RUN = "the kind is decided at run time, and the code that takes the state dict afterwards cannot be resolved"
_TODO = "say the kind at each call (StateDictOptions) and remove this"


def settings(program: Program) -> Iterator[Step | Left]:
    """Each setter on which no call depends any more."""
    for events in program.sites(Called):
        mine = [(trace, called) for trace, called in events if called.name == SETTER]
        if not mine:
            continue
        source, call = mine[0][1].at.source, mine[0][1].at.node
        depends = next((e for t, c in mine for e in _depending(t, c)), None)
        statement = Layout.of(source).parents.get(call)
        if depends is not None:
            yield Left(source, call, f"`{depends.at.code}` depends on it still", _TODO)
        elif any(is_local(c) for _, c in mine) and not any(_asked_for(t, c) for t, c in mine):
            yield Left(source, call, LOCAL_WHY, LOCAL_TODO)
        elif not any(kind_of(c) or _decides(t, c) for t, c in mine):
            yield Left(source, call, _IN_THE_RUN, _TODO)
        elif not any(_asked_for(t, c) for t, c in mine):
            yield Left(
                source,
                call,
                "the code that takes the state dict afterwards cannot be resolved",
                _TODO,
            )
        elif _can_go(source, statement):
            edits = (Remove(source, call, comments="lone"), *unimports(program, source))
            why = LOCAL_CHANGED if any(is_local(c) for _, c in mine) else _WHY
            yield Step(edits, (Account(source, call, "changed", why),))
        else:
            yield Left(source, call, "its result is used", _TODO)


def _depending(trace: Trace, setter: Called) -> Iterator[StateDictTaken | Restored]:
    for taken in trace.of(StateDictTaken):
        via = taken.state.via
        if via.startswith(f"{FSDP1}.") or (via == ".state_dict" and taken.state.full is not None):
            if taken.state.kind == "model" or via != ".state_dict":
                request = asked(trace, taken)
                if request.by is setter and not _same_without(request.kind, via):
                    yield taken
    for restored in trace.of(Restored):
        if restored.via == ".load_state_dict" and restored.kind == "model":
            request = asked(trace, restored)
            if restored.order > setter.order and request.by is setter:
                if not _same_without(request.kind, ".state_dict"):
                    yield restored


def _same_without(kind: str, via: str) -> bool:
    """Whether the model's own method means the same by default: shards are what FSDP2 gives and takes."""
    return kind == SHARDED and via == ".state_dict"


def _asked_for(trace: Trace, setter: Called) -> bool:
    """Whether resolved code takes or puts back a state dict of it afterwards, or no unresolved code can."""
    model = setter.argument(0, "module")
    if model is None:
        return False
    taken = [(e.order, e.state.of) for e in trace.of(StateDictTaken)]
    later = [*taken, *((e.order, e.into) for e in trace.of(Restored))]
    if any(at > setter.order and _belongs(trace, of, model) for at, of in later):
        return True
    return all(trace.known(one) for one in options(model))


def _decides(trace: Trace, setter: Called) -> bool:
    """Whether a state dict of the kind that the run asks for is taken or put back by resolved code, where it asks itself.

    What no resolved code takes others take: such a setting is there for them.
    """
    model = setter.argument(0, "module")
    taken = [(e, e.state.of) for e in trace.of(StateDictTaken)]
    restored = [(e, e.into) for e in trace.of(Restored)]
    return model is not None and any(
        _is_of(trace, of, model) and asked(trace, event).by is setter
        for event, of in (*taken, *restored)
    )


def _is_of(trace: Trace, of: Value, model: Value) -> bool:
    """Whether a state is surely the model's, or that of an optimizer of its parameters."""
    held = [p.of for one in options(of) if isinstance(one, Optimizer) for p in one.over]
    owners = held or list(options(of))
    wholes = [unwrapped(one) for one in options(model)]
    return any(
        trace.memory.inside(unwrapped(part), whole)
        for owner in owners
        for part in options(owner)
        for whole in wholes
    )


def _belongs(trace: Trace, of: Value, model: Value) -> bool:
    """Whether a state is the model's, or that of an optimizer, which is over some model."""
    if any(isinstance(one, Optimizer) for one in options(of)):
        return True
    inner = [unwrapped(one) for one in options(model)]
    return any(
        trace.memory.inside(unwrapped(part), whole) or trace.memory.inside(whole, unwrapped(part))
        for part in options(of)
        for whole in inner
    )


def _can_go(source: Source, statement: cst.CSTNode | None) -> bool:
    """Whether a call is alone, or what it returns is bound to a name that only another setter reads."""
    if isinstance(statement, cst.Expr):
        return True
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0].target
    if not isinstance(target, cst.Name):
        return False
    names = Names.of(source)
    scope = scope_of(Layout.of(source).ancestors(statement))
    return not names.used(target.value, scope)


def unused(program: Program) -> Iterator[Step]:
    """Statements that only give a name to configurations and kinds, when nothing reads the name."""
    wanted: dict[cst.CSTNode, Source] = {
        r.node: r.source for r in program.references(*OF_STATES, f"{KINDS}.*")
    }
    seen: set[cst.CSTNode] = set()
    for node, source in wanted.items():
        layout = Layout.of(source)
        value = _held(layout, _made(layout, node), wanted)
        statement = layout.parents[value]
        if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
            targets = _targets(statement.targets[0].target, value)
            if statement not in seen and all(_is_idle(program, source, one) for one in targets):
                seen.add(statement)
                gone = Remove(source, statement, comments=True)
                handed = (e for one in targets for e in _handed_on(program, source, dotted(one)))
                edits = (gone, *unimports(program, source), *handed)
                yield Step(edits, (Account(source, statement, "dropped", _UNUSED),))


def _targets(target: cst.BaseExpression, value: cst.CSTNode) -> list[cst.BaseExpression]:
    """What an assignment binds: each of several names that it gives one value each."""
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
        return [one.value for one in target.elements]
    return [target]


def _made(layout: Layout, node: cst.CSTNode) -> cst.CSTNode:
    """The call that a name is the function of, or the name."""
    parent = layout.parents[node]
    return parent if isinstance(parent, cst.Call) and parent.func is node else node


def _held(layout: Layout, value: cst.CSTNode, wanted: Mapping[cst.CSTNode, Source]) -> cst.CSTNode:
    """The tuple, list or dictionary that a value is in, where it holds only such configurations and kinds, and names."""
    element = layout.parents[value]
    around = layout.parents.get(element)
    if not isinstance(element, cst.Element | cst.DictElement):
        return value
    if not isinstance(around, cst.Tuple | cst.List | cst.Dict):
        return value
    each = [getattr(one.value, "func", one.value) for one in around.elements]
    return around if all(one in wanted or isinstance(one, cst.Name) for one in each) else value


def _is_idle(program: Program, source: Source, target: cst.BaseExpression) -> bool:
    """Whether nothing reads what an assignment binds, in any file."""
    name = dotted(target).rpartition(".")[2]
    if not name:
        return False
    word = re.compile(rf"\b{name}\b")
    if isinstance(target, cst.Attribute):
        read = re.compile(rf"""\.\s*{name}\b|["']{name}["']""")
        return sum(len(read.findall(s.text)) for s in program.sources) == 1
    scope = scope_of(Layout.of(source).ancestors(target))
    others = [s for s in program.sources if s is not source]
    if isinstance(scope, cst.Module) and any(_reads(s, name, word) for s in others):
        return False
    held = isinstance(scope, cst.Module | cst.FunctionDef)
    return held and not Names.of(source).used(name, scope)


def _reads(source: Source, name: str, word: re.Pattern[str]) -> bool:
    """Whether a file does more with a word than import it and not use it."""
    names = Names.of(source)
    idle = [o for o in names.imports if o.name == name and not names.used(name, o.scope)]
    return len(word.findall(source.text)) > len(idle)


def _handed_on(program: Program, source: Source, name: str) -> Iterator[Unimport]:
    """The imports of a name by other files, which do not use it."""
    for other in program.sources:
        for one in Names.of(other).imports if other is not source else ():
            if one.name == name and one.loads.endswith(f".{name}"):
                yield Unimport(other, one.loads)
