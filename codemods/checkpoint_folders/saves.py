"""``torch.save`` of gathered states by one rank, as ``dcp.save`` of the shards by all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from fsdp2lint.api import (
    Container,
    Edit,
    InsertBefore,
    Layout,
    Program,
    Remove,
    Replace,
    Saved,
    Source,
    StateDict,
    StateDictTaken,
    Trace,
    Unimport,
    Unknown,
    Value,
    argument,
    dotted,
    name_for,
    options,
    rank_dependent,
    walk,
)

from .._common.loop_text import text_of
from .._common.origins import meaning, origins
from .._common.states_text import HOME, fitted, function_of, names_in
from .._common.states_uses import on_first_rank
from .paths import folder_text

DCP = "torch.distributed.checkpoint"
_GETTERS = (f"{HOME}.get_model_state_dict", f"{HOME}.get_optimizer_state_dict")
_UNLIKE = ("time", "datetime", "random", "uuid", "tempfile", "getpid", "now", "strftime")


@dataclass(eq=False)
class Save:
    """One ``torch.save`` of checkpoints: what it holds under which keys, and the test of the rank around it.

    ``entries`` is empty when a state dict is saved as it is. ``problem`` says why it cannot be changed.
    """

    source: Source
    call: cst.Call
    path: cst.BaseExpression
    what: cst.BaseExpression
    states: tuple[StateDict, ...]
    events: tuple[tuple[Trace, Saved], ...]
    entries: dict[str, cst.BaseExpression] = field(default_factory=dict)
    test: cst.If | None = None
    problem: str = ""
    unclear: bool = False
    """Whether there may be more in it than ``entries`` says."""

    @property
    def paths(self) -> set[Value]:
        """The values that its path can be."""
        return {one for _, e in self.events if e.path is not None for one in options(e.path)}

    @property
    def kinds(self) -> set[str]:
        """What it holds the states of, gathered or not: ``model``, ``optimizer``."""
        return {state.kind for _, event in self.events for state in event.states}


def saves(program: Program) -> Iterator[Save]:
    """Every ``torch.save`` that holds gathered states."""
    for events in program.sites(Saved):
        mine = [(t, e) for t, e in events if e.via == "torch.save" and any(map(_full, e.states))]
        call = mine[0][1].at.node if mine else None
        if not isinstance(call, cst.Call):
            continue
        what, path = argument(call, 0, "obj"), argument(call, 1, "f")
        if what is None or path is None:
            continue
        states = tuple(dict.fromkeys(s for _, e in mine for s in e.states if _full(s)))
        source = mine[0][1].at.source
        save = Save(source, call, path.value, what.value, states, tuple(mine))
        save.problem = _read(program, save, len(events) != len(mine))
        yield save


def _full(state: StateDict) -> bool:
    return bool(state.full) and state.via in _GETTERS


def _read(program: Program, save: Save, also_others: bool) -> str:
    """Fill in what is saved and where; the reason why it cannot be changed, if there is one."""
    source, call = save.source, save.call
    layout = Layout.of(source)
    save.unclear = True
    if also_others:
        return "other callers save other things by it"
    statement = layout.parents[call]
    if not isinstance(statement, cst.Expr) or len(_line(layout, statement).body) != 1:
        return "it is part of another statement"
    shown = _display(save)
    save.unclear = shown is None and not _is_state(save)
    if shown is not None:
        save.entries = dict(_entries(shown))
        if len(save.entries) != len(shown.elements):
            return "the keys of what it saves are not all constants"
        if key := next((k for k, v in save.entries.items() if _is_tensor(program, save, v)), ""):
            return (
                f"`{key}` is a tensor of the rank that writes, which a folder takes from any rank"
            )
    elif save.unclear:
        return "what it saves is put together elsewhere"
    for trace, event in save.events:
        for state in event.states:
            if state.kind == "optimizer" and state.via == ".state_dict":
                return "it holds what `optimizer.state_dict()` gives, too"
            taken = _taken(trace, state)
            if taken is None or taken.at.source is not source:
                return "its states are taken in another file"
            if function_of(source, taken.at.node) is not function_of(source, call):
                return "its states are taken in another function"
            if isinstance(layout.parents[taken.at.node], cst.IfExp):
                return "the model may be wrapped by DDP"
            if any(state in s.states and s.at.node is not call for s in trace.of(Saved)):
                return "its states are saved elsewhere too"
    return _find_test(save)


def _is_tensor(program: Program, save: Save, value: cst.BaseExpression) -> bool:
    """Whether an entry is surely a tensor of torch's own making: the state of a random generator, a loss.

    ``dcp.save`` writes plain tensors once, from the rank that has the least to write, and ``dcp.load`` has to be given one
    of the same shape (torch/distributed/checkpoint/default_planner.py, planner_helpers.py, torch 2.13).
    """
    source = save.source
    if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        if value.func.attr.value in ("detach", "cpu", "clone"):
            return _is_tensor(program, save, value.func.value)
    if isinstance(value, cst.Name | cst.Attribute):
        said = f"{source.code(value)}.backward"
        for node in walk(function_of(source, save.call)):
            if isinstance(node, cst.Call) and source.code(node.func) == said:
                return True
    made = [one.node for one in origins(program, source, value)]
    return bool(made) and all(
        isinstance(one, cst.Call) and meaning(program, source, one.func) in _TENSORS for one in made
    )


_TENSORS = ("torch.get_rng_state", "torch.cuda.get_rng_state", "torch.tensor", "torch.zeros")


def is_taken_apart(program: Program, save: Save, key: str) -> bool:
    """Whether an entry is a dictionary, or a list that holds one: ``dcp.save`` writes what is inside, name by name.

    ``dcp.load`` then has to be given one with the same names (torch/distributed/checkpoint/_traverse.py, torch 2.13).
    """
    for trace, event in save.events:
        value = trace.memory.read(event.what, f"[{key!r}]", event.guards)
        if value is not None and _holds_a_dictionary(trace, value):
            return True
    entry = save.entries.get(key)
    if entry is None:  # a state dict is saved as it is
        return False
    made = [one.node for one in origins(program, save.source, entry)]
    for one in (entry, *made):
        if isinstance(one, cst.Attribute):
            if any(map(_is_dictionary, _set_to(program, one.attr.value))):
                return True
        elif one is not None and _is_dictionary(one):
            return True
    return False


def _is_dictionary(made: cst.CSTNode) -> bool:
    """Whether an expression surely makes a dictionary."""
    if isinstance(made, cst.Call):
        return dotted(made.func).rpartition(".")[2] in _DICTIONARIES
    return isinstance(made, cst.Dict | cst.DictComp)


_DICTIONARIES = ("dict", "vars", "asdict", "to_dict", "defaultdict", "OrderedDict", "Counter")


def _set_to(program: Program, name: str) -> Iterator[cst.BaseExpression]:
    """What attributes of this name are set to, whoever's they are."""
    for source in program.sources:
        for node in walk(source.tree) if f".{name}" in source.text else ():
            targets = [one.target for one in node.targets] if isinstance(node, cst.Assign) else []
            targets += [node.target] if isinstance(node, cst.AnnAssign) else []
            if any(isinstance(t, cst.Attribute) and t.attr.value == name for t in targets):
                assert isinstance(node, cst.Assign | cst.AnnAssign)
                if node.value is not None:
                    yield node.value


def _holds_a_dictionary(trace: Trace, value: Value) -> bool:
    waiting, seen = [value], set[Value]()
    while waiting:
        for one in options(waiting.pop()):
            if isinstance(one, StateDict):
                return True
            if isinstance(one, Container) and one not in seen:
                if one.kind == "dict":
                    return True
                seen.add(one)
                waiting += (entry for _, entry in trace.memory.entries(one))
    return False


def _is_state(save: Save) -> bool:
    """Whether a state dict is saved as it is."""
    return all(e.what is s for _, e in save.events for s in e.states[:1])


def _line(layout: Layout, statement: cst.CSTNode) -> cst.SimpleStatementLine:
    line = layout.line(statement)
    return line if isinstance(line, cst.SimpleStatementLine) else cst.SimpleStatementLine([])


def _taken(trace: Trace, state: StateDict) -> StateDictTaken | None:
    return next((t for t in trace.of(StateDictTaken) if t.state is state), None)


def _display(save: Save) -> cst.Dict | None:
    """The dictionary that is saved, as it is written: in place, or bound to the name once."""
    if isinstance(save.what, cst.Dict):
        return save.what
    if not isinstance(save.what, cst.Name):
        return None
    name, function = save.what.value, function_of(save.source, save.call)
    parents = Layout.of(save.source).parents
    bound = [
        n
        for n in walk(function)
        if isinstance(n, cst.Name) and n.value == name and isinstance(parents[n], cst.AssignTarget)
    ]
    assigned = parents[parents[bound[0]]] if len(bound) == 1 else None
    value = assigned.value if isinstance(assigned, cst.Assign) else None
    return value if isinstance(value, cst.Dict) else None


def _entries(shown: cst.Dict) -> Iterator[tuple[str, cst.BaseExpression]]:
    for element in shown.elements:
        if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
            key = element.key.evaluated_value
            if isinstance(key, str):
                yield key, element.value


def _find_test(save: Save) -> str:
    """The ``if rank == 0:`` around the save; nothing may keep ranks away in another way."""
    guarded = [[g for g in e.guards if rank_dependent(g.test)] for _, e in save.events]
    if any(_may_ask_for_the_rank(t, g.test) for t, e in save.events for g in e.guards):
        return "it is unknown whether all ranks reach it: code outside these files decides"
    if not any(guarded):
        return ""
    layout = Layout.of(save.source)
    block = layout.block(layout.statement(save.call))
    test = layout.parents.get(block, block)
    if not isinstance(test, cst.If) or test.orelse is not None or test.body is not block:
        return "the test of the rank around it does more"
    if isinstance(test.test, cst.BooleanOperation) or isinstance(layout.parents[test], cst.If):
        return "the test of the rank around it asks for more"
    for (_, event), guards in zip(save.events, guarded, strict=True):
        site = guards[0].site if len(guards) == 1 else None
        if site is None or site.statement is not test or not on_first_rank(event.guards):
            return "ranks are kept away from it elsewhere"
    save.test = test
    return "" if _needed(save) is not None else "what it needs is made on rank 0 only"


def _may_ask_for_the_rank(trace: Trace, test: Value) -> bool:
    """Whether a test is the answer of unseen code: ``utils.is_chief()``."""
    return type(test) is Unknown and test not in trace.memory.foreign


def _needed(save: Save) -> list[cst.SimpleStatementLine] | None:
    """The assignments inside the test that the save needs, which all ranks have to make; None if unclear."""
    assert save.test is not None
    block = save.test.body.body
    layout = Layout.of(save.source)
    index = list(block).index(_line(layout, layout.statement(save.call)))
    names = names_in(save.what) | names_in(save.path)
    found: list[cst.SimpleStatementLine] = []
    for line in reversed(block[:index]):
        bound = {n for node in walk(line) for n in _bound(node)}
        if not bound & names:
            continue
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            return None
        if not isinstance(line.body[0], cst.Assign) or names_in(line) & set(_UNLIKE):
            return None
        names |= names_in(line)
        found.append(line)
    return found[::-1]


def _bound(node: cst.CSTNode) -> Iterator[str]:
    if isinstance(node, cst.AssignTarget | cst.AnnAssign | cst.AugAssign | cst.For | cst.AsName):
        target = node.name if isinstance(node, cst.AsName) else node.target
        yield dotted(target).partition(".")[0]


def saved_by_all(written: Sequence[Save]) -> Iterator[Edit]:
    """The edits that make files folders, which all ranks write."""
    by_test: dict[cst.If, list[tuple[Save, str]]] = {}
    for save in written:
        source, call = save.source, save.call
        folder, more = folder_text(source, save.path)
        dcp = name_for(source, call, DCP, alias="dcp", module=True)
        parts = [text_of(source, save.what), f"checkpoint_id={folder}"]
        yield from (
            *more,
            *dcp.edits,
            *_sharded(save),
            Unimport(source, f"{HOME}.StateDictOptions"),
        )
        if save.test is None:
            yield Replace(source, call, fitted(source, call, f"{dcp.text}.save", parts))
            continue
        text = fitted(source, save.test, f"{dcp.text}.save", parts, inserted=True)
        by_test.setdefault(save.test, []).append((save, text))
    for test, every in by_test.items():
        yield InsertBefore(every[0][0].source, test, "\n".join(_out_of_test(test, every)))
        yield Remove(every[0][0].source, test)


def _out_of_test(test: cst.If, every: Sequence[tuple[Save, str]]) -> Iterator[str]:
    """The statements of the test in order: what all ranks do now, and the rest below the test again."""
    source = every[0][0].source
    layout = Layout.of(source)
    saved = {_line(layout, layout.statement(save.call)): text for save, text in every}
    needed = {line for save, _ in every for line in _needed(save) or ()}
    alone: list[str] = []
    head = source.text[layout.span(test)[0] : layout.line_end(layout.span(test.test)[1])].rstrip()
    if "\n" in head:
        head = f"if {text_of(source, test.test)}:"
    for line in (*test.body.body, None):
        if line is not None and line not in saved and line not in needed:
            text = _indented(_source_of(source, line), layout.unit)
            alone.append(text if alone else text.lstrip("\n"))
            continue
        if line is not None and line in needed:
            yield _source_of(source, line)
            continue
        if alone:
            yield "\n".join([head, *alone])
            head, alone = f"if {text_of(source, test.test)}:", []
        if line is not None:
            yield _with_comments(source, line, saved[line])


def _with_comments(source: Source, line: cst.BaseStatement, text: str) -> str:
    """The new text of a statement below the comments that are above it."""
    layout = Layout.of(source)
    comments = source.text[layout.comments_above(line) : layout.top(line)]
    above = [one.strip() for one in comments.splitlines()]
    return "\n".join([*above, text])


def _source_of(source: Source, line: cst.CSTNode) -> str:
    """The lines of a statement, its comments above included, as they would be without indentation."""
    layout = Layout.of(source)
    start, end = layout.comments_above(line), layout.bottom(line)
    start = start if _is_first(layout, line) else layout.blank_above(start)
    indent = layout.indentation(line)
    lines = source.text[start:end].rstrip("\r\n").replace("\r\n", "\n").split("\n")
    return "\n".join(one.removeprefix(indent) for one in lines)


def _is_first(layout: Layout, line: cst.CSTNode) -> bool:
    return getattr(layout.parents[line], "body", (line,))[0] is line


def _indented(text: str, unit: str) -> str:
    return "\n".join(unit + line if line.strip() else line for line in text.split("\n"))


def _sharded(save: Save) -> Iterator[Edit]:
    """The states are taken as they are, without gathering."""
    seen: set[cst.CSTNode] = set()
    for trace, event in save.events:
        for state in event.states:
            taken = _taken(trace, state) if _full(state) else None
            call = taken.at.node if taken is not None else None
            if isinstance(call, cst.Call) and call not in seen:
                seen.add(call)
                kept = [a for a in call.args if a.keyword is None or a.keyword.value != "options"]
                parts = [text_of(save.source, a.value) for a in kept]
                head = text_of(save.source, call.func)
                yield Replace(save.source, call, fitted(save.source, call, head, parts))
