"""The fix of a norm that is summed over the ranks once more: the norm of all ranks, and no sum."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import (
    Collective,
    Container,
    Edit,
    Either,
    Fix,
    Layout,
    Literal,
    Part,
    Remove,
    Replace,
    Trace,
    Value,
    name_for,
    options,
)

from ..._common.fixes import stands_alone
from .norm_loops import BEGINNING, SummingLoop, is_name, summing_loop

_NOTE = "the number becomes smaller: look at what was fitted to it"


_MAKING = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.get_total_norm", ".full_tensor")
_JOINING = ("torch.stack", "torch.cat")


def without_sum(trace: Trace, collective: Collective, value: Value) -> Fix | None:
    """The statement that sums goes; None where it is more than the call, or other functions bring the value."""
    statement = stands_alone(collective.at)
    if statement is None or not _made_here(trace, collective, value, 14):
        return None
    edit = Remove(collective.at.source, statement)
    return Fix("leave the norm as it is", (edit,), "unsafe", _NOTE)


def _made_here(trace: Trace, collective: Collective, value: Value, depth: int) -> bool:
    """Whether a value is made of nothing but norms that the function which sums has asked for itself."""
    if depth == 0 or isinstance(value, Literal):
        return depth > 0
    made = trace.giving(value)
    if any(c.name in _MAKING for c in made):
        return all(c.moment.calls == collective.moment.calls for c in made)
    parts: list[Value] = []
    if isinstance(value, Either):
        parts += options(value)
    elif isinstance(value, Container):
        parts += (held for _, held in trace.memory.entries(value))
    elif any(c.name in (*_JOINING, *BEGINNING) for c in made):
        parts += made[0].arguments
        return not made[0].keywords and all(
            _made_here(trace, collective, p, depth - 1) for p in parts
        )
    elif isinstance(value, Part):
        key = value.key[1:] if isinstance(value.key, tuple) else ()
        parts += (value.owner, *(o for o in key if isinstance(o, Value)))
    return bool(parts) and all(_made_here(trace, collective, p, depth - 1) for p in parts)


def by_the_utility(trace: Trace, collective: Collective) -> Fix | None:
    """`get_total_norm` in place of a loop over parameters, the sum and the root.

    None unless the four stand one below the other and nothing else uses what the loop adds up.
    """
    found = summing_loop(trace, collective.at)
    if found is None:
        return None
    source = collective.at.source
    utility = name_for(source, found.summed, "torch.nn.utils.get_total_norm")
    text = _asked(Layout.of(source), found, utility.text)
    edits: list[Edit] = [
        Remove(source, found.begun),
        Remove(source, found.loop),
        Replace(source, found.summed, text),
        *utility.edits,
    ]
    layout = Layout.of(source)
    around = layout.parents[found.root]
    if isinstance(around, cst.Assign) and is_name(around.targets[0].target, found.total):
        edits.append(Remove(source, around))
    else:
        edits.append(Replace(source, found.root, found.total))
    return Fix("ask `get_total_norm` for the norm", tuple(edits), "unsafe", _NOTE)


def _asked(layout: Layout, found: SummingLoop, utility: str) -> str:
    """The statement that asks for the norm, on three lines where one would be too long."""
    indent = layout.indentation(layout.line(layout.statement(found.summed)))
    start, end = f"{found.total} = {utility}(", ").full_tensor()"
    line = f"{start}[{found.gradients}]{end}"
    if len(indent + line) <= layout.width:
        return line
    below = layout.newline + indent
    return f"{start}{below}{layout.unit}[{found.gradients}]{below}{end}"
