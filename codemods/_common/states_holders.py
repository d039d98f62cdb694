"""Objects of the script's own that hold an optimizer and hand on what they are asked.

FSDP1 asks an optimizer for ``state_dict()`` and ``param_groups``, whatever it is. The functions of
``torch.distributed.checkpoint`` take anything but a ``torch.optim.Optimizer`` for a list of several
(torch/distributed/checkpoint/state_dict.py, ``get_optimizer_state_dict``), so they need the one inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import libcst as cst

from fsdp2lint.api import (
    ANNOTATED,
    Class,
    Event,
    External,
    Instance,
    Optimizer,
    Restored,
    Trace,
    Value,
    dotted,
    lineage,
    options,
)

from .states_uses import is_plain

_BASES = ("torch.optim.", "torch.distributed.optim.")
_HANDED_ON = ("param_groups", "state_dict", "step")
"""What an object that holds an optimizer hands on to it."""

TODO = "hand over the torch.optim.Optimizer inside: torch.distributed.checkpoint takes no other"


def field_of(events: Iterable[tuple[Trace, Event, Value]]) -> str | None:
    """The attribute in which what is given as an optimizer holds one: ``.optim``.

    Empty where it is an optimizer itself or of unknown origin; None where runs differ, or an object of the
    script's own does not show which attribute it is.
    """
    found = {_field(trace, event, one) for trace, event, value in events for one in options(value)}
    found.discard("?")
    return next(iter(found), "") if len(found) < 2 else None


def lifted(restored: Restored) -> tuple[Restored, str]:
    """A load that a method has only handed on to the optimizer in its object: where it was asked for.

    With the attribute that holds the optimizer there.
    """
    inside, calls = restored.moment.inside, restored.calls
    field = forwarded(inside[-1].node, "load_state_dict") if inside and calls else None
    call = calls[-1].node if field else None
    if field is None or not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return restored, ""
    if call.func.attr.value != "load_state_dict" or isinstance(call.func.value, cst.Call):
        return restored, ""
    moment = replace(restored.moment, at=calls[-1], calls=calls[:-1], inside=inside[:-1])
    return replace(restored, moment=moment), field


def why_not(events: Iterable[tuple[Trace, Event, Value]]) -> str:
    """Why there is no such attribute, in words."""
    classes = {
        cls.name
        for trace, event, value in events
        for one in options(value)
        for cls in _class(trace, event, one)
    }
    named = " or ".join(f"`{name}`" for name in sorted(classes))
    return f"what it is given can be of {named}, which is no torch.optim.Optimizer"


def held_in(trace: Trace, event: Event, value: Value) -> list[Value]:
    """The optimizers that a value is or holds."""
    found: list[Value] = []
    for one in options(value):
        field = _field(trace, event, one)
        inner = trace.memory.read(one, field, event.guards) if field and field != "?" else None
        found += options(inner) if inner is not None else [one]
    return found


def _field(trace: Trace, event: Event, value: Value) -> str | None:
    """The attribute for one value; "?" where nothing is known of it."""
    cls = next(_class(trace, event, value), None)
    if cls is None:
        return "" if isinstance(value, Optimizer) else "?"
    if any(isinstance(c, External) and c.name.startswith(_BASES) for c in lineage(cls)):
        return ""
    asked = {forwarded(m, name) for name in _HANDED_ON for m in _methods(cls, name)[:1]} - {None}
    if not asked and not all(is_plain(one) for one in lineage(cls)):
        return "?"
    return asked.pop() if len(asked) == 1 else None


def _class(trace: Trace, event: Event, value: Value) -> Iterator[Class]:
    """The class of the project that a value is of: it was made so, was tested, or is annotated so."""
    if isinstance(value, Instance):
        if isinstance(value.cls, Class):
            yield value.cls
        return
    for guard in event.guards:
        key = guard.test.key
        if guard.taken and isinstance(key, tuple) and key[0] == "isinstance":
            if guard.test.owner is value and event.guards.side(guard.test):
                classes = key[1:]
                if len(classes) == 1 and isinstance(classes[0], Class):
                    yield classes[0]
                    return
    said = trace.memory.read(value, ANNOTATED, event.guards)
    if isinstance(said, Class):
        yield said


def _methods(cls: Class, name: str) -> list[cst.FunctionDef]:
    """The methods of a name, the one that is taken first."""
    return [
        statement
        for one in lineage(cls)
        for statement in (one.node.body.body if isinstance(one, Class) else ())
        if isinstance(statement, cst.FunctionDef) and statement.name.value == name
    ]


def forwarded(method: cst.CSTNode, name: str) -> str | None:
    """The attribute ``.field`` where a method is no more than ``return self.field.name(…)``, or without a call."""
    if not isinstance(method, cst.FunctionDef):
        return None
    statements = [s for s in method.body.body if not _is_docstring(s)]
    if len(statements) != 1 or not isinstance(statements[0], cst.SimpleStatementLine):
        return None
    line = statements[0].body
    one = line[0] if len(line) == 1 else None
    value = one.value if isinstance(one, cst.Return | cst.Expr) else None
    asked = value.func if isinstance(value, cst.Call) else value
    own, *rest = dotted(asked).split(".") if asked is not None else [""]
    if [p.name.value for p in method.params.params[:1]] != [own] or rest[1:] != [name]:
        return None
    return f".{rest[0]}"


def _is_docstring(statement: cst.CSTNode) -> bool:
    line = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return isinstance(line, cst.Expr) and isinstance(
        line.value, cst.SimpleString | cst.ConcatenatedString
    )
