"""What is put into a shard's ``.data``: whether it surely is another tensor, and how it is copied into the shard instead."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Container,
    Edit,
    Fix,
    Layout,
    Part,
    Replace,
    Source,
    Trace,
    Value,
    Written,
    call_that_made,
    of_parameters,
    options,
    scope_of,
    walk,
)

from ..._common.tensors import is_plain, may_hold_more

_SAME = frozenset(
    "detach view view_as reshape to cpu cuda type type_as float half bfloat16 double contiguous squeeze"
    " unsqueeze flatten alias t transpose permute narrow expand select unbind chunk split movedim".split()
)
"""Methods that may give the very tensor, or one in its memory."""
_ARITHMETIC = ("+", "-", "*", "/", "**", "@")
_DEPTH = 8


def is_another(trace: Trace, written: Written) -> bool:
    """Whether what is put into ``.data`` surely is another tensor than the shard, in memory of its own."""
    if is_plain(trace, written, written.value):
        return True
    return all(_is_new(trace, one, _DEPTH) for one in options(written.value))


def _is_new(trace: Trace, value: Value, depth: int) -> bool:
    if depth == 0 or not isinstance(value, Part):
        return False
    if not value.operation:
        kept = [one for each in _kept(trace, value) for one in options(each)]
        return bool(kept) and all(_is_new(trace, one, depth - 1) for one in kept)
    what = value.operation
    if what == "call":
        made = call_that_made(trace, value)
        given = made.argument(0, "input") if made is not None else None
        name = made.name.rpartition(".")[2] if made is not None else ""
        computed = made is not None and made.name.startswith("torch.") and name not in _SAME
        return computed and not name.endswith("_") and of_parameters(given)
    if what == "[]":
        entries = _entries(trace, value.owner)
        return bool(entries) and all(_is_new(trace, one, depth - 1) for one in entries)
    if what in _ARITHMETIC:
        return True
    if not isinstance(what, str) or not what.startswith(".") or not what.endswith("()"):
        return False
    name = what[1:-2]
    if name.endswith("_"):
        return False  # in the memory of the shard itself, whatever was put into `.data` before
    if name in _SAME:
        return all(_is_new(trace, one, depth - 1) for one in options(value.owner))
    return name == "clone" or of_parameters(value.owner)


def _kept(trace: Trace, value: Part) -> list[Value]:
    """What the script keeps under a name of its own on parameters: ``p.master`` of ``p.master = torch.empty_like(p)``."""
    if not isinstance(value.key, str) or not of_parameters(value.owner):
        return []
    return [one.value for one in trace.of(Written) if f".{one.name}" == value.key != ".data"]


def _entries(trace: Trace, table: Value) -> list[Value]:
    """What a dictionary holds; nothing where it may hold more."""
    if not isinstance(table, Container) or table.kind != "dict" or may_hold_more(trace, table):
        return []
    return [one for _, value in trace.memory.entries(table) for one in options(value)]


def copied(trace: Trace, written: Written) -> Fix | None:
    """Copy the new values into the shard; None for tensors that are not sharded like it, and other statements."""
    source = written.at.source
    if is_plain(trace, written, written.value):
        return None
    if any(isinstance(one, Part) and _kept(trace, one) for one in options(written.value)):
        return None  # such a copy may be of another dtype, which the shard does not take on
    statement = Layout.of(source).statement(written.at.node)
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0].target
    if isinstance(target, cst.Tuple):
        text = _exchanged(source, statement, target)
        edits: list[Edit] = [Replace(source, statement, text)] if text else []
    else:
        new = source.code(statement.value)
        edits = [Replace(source, statement, f"{source.code(target)}.copy_({new})")]
        edits += _kept_apart(source, statement, source.code(target))
    if not edits:
        return None
    return Fix(
        "copy the values into the shard",
        tuple(edits),
        "unsafe",
        "what held the same memory as the parameter changes with it",
    )


def _exchanged(source: Source, statement: cst.Assign, target: cst.Tuple) -> str:
    """``p.data, kept = kept, p.data`` as three statements; empty for other tuples."""
    value = statement.value
    if not isinstance(value, cst.Tuple) or not len(value.elements) == len(target.elements) == 2:
        return ""
    ours, theirs = (source.code(one.value) for one in target.elements)
    if not ours.endswith(".data"):
        ours, theirs = theirs, ours
    said = [source.code(one.value) for one in value.elements]
    if not ours.endswith(".data") or theirs not in said:
        return ""
    said.remove(theirs)
    if said[0] not in (ours, f"{ours}.clone()"):
        return ""
    layout = Layout.of(source)
    indent = layout.newline + layout.indentation(layout.line(statement))
    kept = "before" if "before" not in source.text else "data_before"
    last = f"{theirs}.copy_({kept})" if theirs.endswith(".data") else f"{theirs} = {kept}"
    return indent.join([f"{kept} = {ours}.clone()", f"{ours}.copy_({theirs})", last])


def _kept_apart(source: Source, statement: cst.Assign, data: str) -> Iterator[Edit]:
    """Clones of what the function keeps of the parameter under another name, before it is written."""
    scope = scope_of(Layout.of(source).ancestors(statement))
    for node in walk(scope) if scope is not None else ():
        if isinstance(node, cst.Assign) and node is not statement:
            if source.code(node.value) == data:
                yield Replace(source, node.value, f"{data}.clone()")
