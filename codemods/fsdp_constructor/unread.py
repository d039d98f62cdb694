"""Entries of a dictionary of keywords that nothing reads any more, where the dictionary itself stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from fsdp2lint.api import (
    POSITIONS,
    Arguments,
    Edit,
    Layout,
    Names,
    Remove,
    Replace,
    Source,
    dotted,
    scope_of,
    walk,
)

from .displays import Write, entries_of, writes_of

Binding = cst.Assign | cst.AnnAssign
IsPure = Callable[[cst.BaseExpression], bool]


def unread_entries(source: Source, statement: Binding, is_pure: IsPure) -> Iterator[Edit]:
    """Take the arguments of FSDP1 out of a dictionary of a function that is only asked for others.

    What became of them, the call that they were for has said.
    """
    value = statement.value
    entries = entries_of(value)
    asked = _asked(source, statement)
    if value is None or not entries or asked is None:
        return
    dead = [
        node
        for key, node, given in entries
        if key in POSITIONS and key not in asked and is_pure(given)
    ]
    writes = writes_of(source, value, statement) or []
    gone = [w for w in writes if w.key in POSITIONS and w.key not in asked and is_pure(w.value)]
    yield from _shorter(source, value, dead)
    yield from _without(gone, writes, source)


def _asked(source: Source, statement: Binding) -> set[str] | None:
    """The keys for which the dictionary is asked; None where it is used in another way."""
    target = (
        statement.target if isinstance(statement, cst.AnnAssign) else statement.targets[0].target
    )
    value = statement.value
    if not isinstance(target, cst.Name) or value is None:
        return None
    layout, names = Layout.of(source), Names.of(source)
    scope = scope_of(layout.ancestors(statement))
    writes = writes_of(source, value, statement)
    if not isinstance(scope, cst.FunctionDef) or writes is None:
        return None
    asked = list(_keys_asked(layout, scope, target.value))
    reads = sum(names.owner(target.value, at) is scope for at in names.uses.get(target.value, ()))
    known = len({w.statement for w in writes}) + len(asked)
    return set(asked) if asked and reads == known else None


def _keys_asked(layout: Layout, scope: cst.CSTNode, name: str) -> Iterator[str]:
    """The keys of every ``name.get("key")``."""
    for node in walk(scope):
        call = layout.parents.get(node)
        if isinstance(node, cst.Attribute) and isinstance(call, cst.Call) and call.func is node:
            first = call.args[0].value if call.args else None
            if dotted(node) == f"{name}.get" and isinstance(first, cst.SimpleString):
                yield str(first.evaluated_value)


def _shorter(
    source: Source, display: cst.BaseExpression, dead: list[cst.CSTNode]
) -> Iterator[Edit]:
    """A display, or a call that takes them, without the entries."""
    if isinstance(display, cst.Call) and display.args and set(display.args) <= set(dead):
        yield Replace(source, display, f"{dotted(display.func)}()")
    elif isinstance(display, cst.Call) and any(arg in dead for arg in display.args):
        edit = Arguments(source, display)
        for arg in display.args:
            if arg in dead:
                edit.remove(arg)
        yield edit
    elif isinstance(display, cst.Dict) and any(e in dead for e in display.elements):
        kept = [e for e in display.elements if e not in dead]
        said = [source.text[slice(*Layout.of(source).span(e))] for e in kept]
        yield Replace(source, display, f"{{{', '.join(said)}}}")


def _without(gone: list[Write], writes: list[Write], source: Source) -> Iterator[Edit]:
    """The statements without what they write for nobody."""
    for statement in dict.fromkeys(w.statement for w in gone):
        mine = [w.node for w in gone if w.statement is statement]
        if len(mine) == sum(w.statement is statement for w in writes):
            yield Remove(source, statement)
        elif isinstance(statement.value, cst.Call):
            yield from _shorter(source, statement.value, mine)
