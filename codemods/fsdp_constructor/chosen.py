"""Wrappers that a script calls by a name of its own: a field of a class, or one of several.

    self.wrapper = FSDP                       wrapper = FSDP if args.shard else DDP
    self.wrapper(model)                       wrapper(model)

What is always FSDP1 is rewritten where it is called. Where it is one of several, a function that shards
takes its place among them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    Layout,
    Names,
    Program,
    Source,
    Trace,
    Wrapping,
    dotted,
    scope_of,
    walk,
)

from .._common.origins import Origin, meaning, origins, returned

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"

Events = Sequence[tuple[Trace, Wrapping]]


@dataclass(frozen=True)
class Chosen:
    """One expression of FSDP1 among others that a name can be, and the calls of that name."""

    source: Source
    node: cst.BaseExpression
    calls: tuple[cst.Call, ...]
    events: Events


def is_field(program: Program, func: cst.BaseExpression) -> bool:
    """Whether an attribute holds FSDP1's class and nothing else, wherever the program sets it."""
    if not isinstance(func, cst.Attribute):
        return False
    name, found = func.attr.value, False
    for source in program.sources:
        if name not in source.text:
            continue
        for node in walk(source.tree):
            if (
                isinstance(node, cst.Arg)
                and node.keyword is not None
                and node.keyword.value == name
            ):
                return False
            if isinstance(node, cst.FunctionDef) and node.name.value == name:
                return False
            value = given_to_field(source, node, name)
            if value is None:
                continue
            found = True
            for one in origins(program, source, value):
                if meaning(program, one.source, one.node) != FSDP1:
                    return False
    return found


def held_by(program: Program, node: cst.BaseExpression | None) -> list[Origin]:
    """All that an attribute can hold, where methods set it and nothing else does, or a property returns it.

    Nothing where that is not known: a field that a class declares may be set by any caller or settings file. A plain
    variable of a class is none.
    """
    if not isinstance(node, cst.Attribute):
        return []
    name, found = node.attr.value, list[Origin]()
    for source in program.sources:
        if name not in source.text:
            continue
        if re.search(rf"""["']{name}["']""", source.text):
            return []
        for one in walk(source.tree):
            if isinstance(one, cst.Arg) and one.keyword is not None and one.keyword.value == name:
                return []
            if isinstance(one, cst.FunctionDef) and one.name.value == name:
                if [dotted(d.decorator) for d in one.decorators] != ["property"]:
                    return []
                values = returned(one)
            else:
                value = given_to_field(source, one, name)
                values = [value] if value is not None else []
                if values and not _is_set_by_code(source, one):
                    return []
            for value in values:
                found += origins(program, source, value) if value is not None else []
    return found if all(one.node is not None for one in found) else []


def _is_set_by_code(source: Source, statement: cst.CSTNode) -> bool:
    """Whether a statement is that of a method, or binds a variable of a plain class, which has no fields."""
    scope = scope_of(Layout.of(source).ancestors(statement))
    if not isinstance(scope, cst.ClassDef):
        return isinstance(scope, cst.FunctionDef)
    plain = not (scope.bases or scope.keywords or scope.decorators)
    return plain and isinstance(statement, cst.Assign)


def given_to_field(source: Source, node: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """What a statement sets the field of that name to."""
    if not isinstance(node, cst.Assign | cst.AnnAssign) or node.value is None:
        return None
    targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
    for target in targets:
        if isinstance(target, cst.Attribute) and target.attr.value == name:
            return node.value
        if isinstance(target, cst.Name) and target.value == name:
            scope = scope_of(Layout.of(source).ancestors(node))
            if isinstance(scope, cst.ClassDef):
                return node.value
    return None


def chosen(program: Program) -> list[Chosen]:
    """The expressions of FSDP1 that names can be which other wrappers can be too."""
    found: dict[cst.CSTNode, Chosen] = {}
    for events in program.sites(Wrapping):
        mine = [(t, e) for t, e in events if e.by == "fsdp1"]
        at = events[0][1].at
        if not mine or not isinstance(at.node, cst.Call) or not takes_a_module(at.node):
            continue
        func = at.node.func
        if not isinstance(func, cst.Name) or not _is_only_called(at.source, func):
            continue
        sources = origins(program, at.source, func)
        ours = [one for one in sources if _is_ours(program, one)]
        if not ours or len(sources) < 2 or any(one.source is not at.source for one in sources):
            continue
        for one in ours:
            assert one.node is not None
            known = found.get(one.node)
            calls = (*(known.calls if known else ()), at.node)
            every = (*(known.events if known else ()), *mine)
            found[one.node] = Chosen(one.source, one.node, calls, every)
    return list(found.values())


def takes_a_module(call: cst.Call) -> bool:
    """Whether a call is given a module and nothing that only one of the wrappers may understand."""
    if len(call.args) != 1 or call.args[0].star:
        return False
    keyword = call.args[0].keyword
    return keyword is None or keyword.value == "module"


def _is_ours(program: Program, one: Origin) -> bool:
    if meaning(program, one.source, one.node) == FSDP1:
        return True
    node = one.node
    partial = isinstance(node, cst.Call) and meaning(program, one.source, node.func)
    if partial != "functools.partial" or not isinstance(node, cst.Call) or not node.args:
        return False
    keywords = all(arg.keyword is not None for arg in node.args[1:])
    return keywords and meaning(program, one.source, node.args[0].value) == FSDP1


def _is_only_called(source: Source, name: cst.Name) -> bool:
    """Whether a name is used for nothing else: it is no class that something is tested for."""
    layout, names = Layout.of(source), Names.of(source)
    scope = names.owner(name.value, scope_of(layout.ancestors(name)))
    if scope is None or (scope is source.tree and name.value in names.exported):
        return False
    for node in walk(scope):
        if isinstance(node, cst.Name) and node.value == name.value:
            parent = layout.parents[node]
            if isinstance(parent, cst.Call) and parent.func is node:
                continue
            if not isinstance(parent, cst.AssignTarget):
                return False
    return True


def is_idle_field(program: Program, name: str, written: int) -> bool:
    """Whether nothing reads a field: its name is behind a dot, or in quotes, only where it is written."""
    word = re.compile(rf"\.{name}\b|[\"']{name}[\"']")
    read = sum(len(word.findall(source.text)) for source in program.sources)
    said = (
        one.text for source in program.sources if name in source.text for one in source.comments
    )
    return read - sum(len(word.findall(text)) for text in said) == written
