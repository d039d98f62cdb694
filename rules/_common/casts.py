"""Casts of whole modules to another dtype."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Edit,
    Event,
    External,
    Fix,
    Literal,
    Moved,
    Remove,
    Replace,
    Trace,
    Value,
    options,
    unwrapped,
)

from .fixes import call_of, own_statement, stands_alone

_BY_METHOD = {"bfloat16": "torch.bfloat16", "half": "torch.float16"}
LOW = ("torch.bfloat16", "torch.float16", "torch.half")


def lowered_to(moved: Moved) -> str | None:
    """The low-precision dtype that a module is surely cast to by ``half()``, ``bfloat16()`` or ``to(dtype)``."""
    if moved.how in _BY_METHOD:
        return _BY_METHOD[moved.how]
    for value in moved.to if moved.how in ("to", "type") else ():
        names = {one.name if isinstance(one, External) else "" for one in options(value)}
        if names and names <= set(LOW):
            return sorted(names)[0]
    return None


def lowered(trace: Trace) -> Iterator[tuple[Event, Value, str]]:
    """Casts and loads of models in a low dtype: where, what, and which dtype."""
    for moved in trace.of(Moved):
        dtype = lowered_to(moved)
        if dtype is not None:
            yield moved, unwrapped(moved.module), dtype
    for called in trace.of(Called):
        if called.name.endswith(".from_pretrained"):
            given = called.keywords.get("torch_dtype", called.keywords.get("dtype"))
            name = given.name if isinstance(given, External) else ""
            if isinstance(given, Literal):
                name = f"torch.{given.value}"  # dtype="bfloat16"
            if name in LOW:
                yield called, called.result, name


def without_cast(moved: Moved, title: str, note: str) -> Fix | None:
    """The module as it is, where the call does nothing but cast."""
    call = call_of(moved.at)
    if call is None or not isinstance(call.func, cst.Attribute) or len(call.args) > 1:
        return None
    source = moved.at.source
    if stands_alone(moved.at) is not None:
        edits: tuple[Edit, ...] = (Remove(source, call),)
    elif own_statement(moved.at) is not None and _same_name(call, own_statement(moved.at)):
        edits = (Remove(source, call),)
    else:
        edits = (Replace(source, call, source.code(call.func.value)),)
    return Fix(title, edits, "unsafe", note)


def _same_name(call: cst.Call, statement: cst.CSTNode | None) -> bool:
    """Whether a statement is ``model = model.half()``."""
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0].target
    owner = call.func.value if isinstance(call.func, cst.Attribute) else None
    return owner is not None and target.deep_equals(owner)
