"""Writes into rows of a tensor that is cut along its rows: what is written into a row of it may reach no rank."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.model.events import Called, Event, Filled
from fsdp2lint.model.trace import Trace, options
from fsdp2lint.model.values import (
    Container,
    Parameters,
    Part,
    Value,
    made_like_another,
)

_WRITING = tuple(
    f".{name}" for name in "add_ clamp_ copy_ div_ fill_ mul_ normal_ sub_ uniform_ zero_".split()
)
_INIT = "torch.nn.init."
_INDEX = re.compile(r"\[-?\d+\]\Z")


@dataclass(frozen=True, slots=True)
class RowWrite:
    """A write into some rows of ``tensor``: ``words`` say which rows, ``value`` what is written where that is assigned."""

    event: Event
    tensor: Value
    words: str
    value: Value | None


def row_writes(trace: Trace) -> Iterator[RowWrite]:
    """Each write into rows: by a method (``w[i].zero_()``), a function (``nn.init.zeros_(w[i])``) or ``w[i] = value``."""
    for called in trace.calls_named(_writes):
        written = called.receiver if called.name in _WRITING else called.argument(0, "tensor")
        if isinstance(written, Part) and _is_index(written.key):
            yield RowWrite(called, written.owner, written.words(), None)
    for filled in trace.of(Filled):
        target = filled.at.node
        if isinstance(target, cst.Subscript) and not _takes_all_rows(target):
            yield RowWrite(filled, filled.owner, filled.at.source.code(target), filled.value)


def like(trace: Trace, value: Value) -> Value:
    """The tensor that gave one its layout: ``w.grad`` of ``torch.zeros_like(w.grad)``, else the tensor itself."""
    while made_like_another(value):
        made = call_that_made(trace, value)
        other = None if made is None else made.argument(0, "input")
        if other is None:
            return value
        value = other
    return value


def holders(trace: Trace, tensor: Value) -> Iterator[Value]:
    """The modules, or whatever has the parameter that a tensor is, or whose gradient or layout it has."""
    for one in options(like(trace, tensor)):
        if not isinstance(one, Part):
            continue
        owner, key = one.owner, one.key
        listed = owner.owner if isinstance(owner, Part) and key == "[1]" else owner
        if key in (".weight", ".bias"):
            yield owner
        elif isinstance(listed, Parameters):
            yield listed.of
        elif key in (".data", ".grad") or (isinstance(key, tuple) and key[0] in _SAME):
            yield from holders(trace, owner)


_SAME = frozenset(f".{name}()" for name in "clone contiguous cpu cuda detach to".split())


def call_that_made(trace: Trace, value: Value) -> Called | None:
    """The call that a value is the result of."""
    return next((c for c in trace.of(Called) if c.result is value), None)


def _writes(name: str) -> bool:
    return name in _WRITING or (name.startswith(_INIT) and name.endswith("_"))


def _is_index(key: Hashable) -> bool:
    """Whether a key is one index along the rows: a number, or a value that is no tuple and no slice."""
    if isinstance(key, tuple):
        index = key[1] if key[0] == "[]" else None
        return isinstance(index, Value) and not isinstance(index, Container)
    return isinstance(key, str) and bool(_INDEX.match(key))


def _takes_all_rows(target: cst.Subscript) -> bool:
    """Whether the first of the keys is ``:`` or ``...``."""
    first = target.slice[0].slice
    if isinstance(first, cst.Slice):
        return first.lower is None and first.upper is None and first.step is None
    return isinstance(first, cst.Index) and isinstance(first.value, cst.Ellipsis)
