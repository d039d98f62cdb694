"""The fix of a norm that is summed over the ranks once more: the norm of all ranks, and no sum.

A norm that is made by hand: a loop over parameters that adds up squares, a sum over the ranks, the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    Site,
    Trace,
    Value,
    name_for,
    options,
    scope_of,
    walk,
)

from ..._common.fixes import call_of, first_argument, stands_alone
from ..._common.fixes_moving import bound_names

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
        parts += value.made_of
    return bool(parts) and all(_made_here(trace, collective, p, depth - 1) for p in parts)


def by_the_utility(trace: Trace, collective: Collective) -> Fix | None:
    """`get_total_norm` in place of a loop over parameters, the sum and the root.

    None unless the four are one below the other and nothing else uses what the loop adds up.
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


BEGINNING = ("torch.zeros", "torch.tensor")
"""What a sum may begin with."""


@dataclass(frozen=True, slots=True)
class SummingLoop:
    """A norm made by hand: ``total = 0``, a loop that adds squares, the sum over the ranks, the root."""

    total: str
    begun: cst.SimpleStatementLine
    loop: cst.For
    summed: cst.Call
    root: cst.BaseExpression
    gradients: str


def summing_loop(trace: Trace, site: Site) -> SummingLoop | None:
    """The norm whose sum over the ranks happens at a site; None unless nothing else uses the sum of squares."""
    call, layout = call_of(site), Layout.of(site.source)
    statement = stands_alone(site)
    given = None if call is None else first_argument(call)
    if call is None or statement is None or not isinstance(given, cst.Name):
        return None
    body = list(getattr(layout.block(statement), "body", ()))
    place = body.index(layout.line(statement)) if layout.line(statement) in body else 0
    if place < 2 or place + 1 >= len(body):
        return None
    begun, loop, below = body[place - 2], body[place - 1], body[place + 1]
    if not isinstance(begun, cst.SimpleStatementLine) or not isinstance(loop, cst.For):
        return None
    gradients = _gradients(site, loop, given.value)
    root = _root(below, given.value)
    if not gradients or root is None or not _begins(trace, begun, given.value):
        return None
    start, end = layout.span(begun)[0], layout.span(call)[0]
    if "#" in layout.text[start:end] or _used_elsewhere(
        site, body[place - 2 : place + 2], given.value
    ):
        return None
    return SummingLoop(given.value, begun, loop, call, root, gradients)


def _begins(trace: Trace, line: cst.SimpleStatementLine, total: str) -> bool:
    """Whether a statement binds the total, and nothing else, to zero."""
    small = line.body[0]
    if len(line.body) != 1 or not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return False
    return is_name(small.targets[0].target, total) and _is_zero(trace, small.value)


def _is_zero(trace: Trace, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Integer | cst.Float):
        return float(node.value) == 0
    for called in trace.calls(*BEGINNING):
        if called.at.node is node:
            first = called.arguments[0] if called.arguments else None
            zero = isinstance(first, Literal) and first.value == 0
            return zero or called.name == "torch.zeros"
    return False


def _gradients(site: Site, loop: cst.For, total: str) -> str:
    """What a loop walks as a comprehension of gradients, when it does nothing but add up their squared norms."""
    target, body = loop.target, list(loop.body.body)
    if not isinstance(target, cst.Name) or loop.orelse is not None or loop.asynchronous is not None:
        return ""
    test = ""
    first = body[0]
    if isinstance(first, cst.If) and first.orelse is None and len(body) == 1:
        if not _asks_for_gradient(first.test, target.value):
            return ""
        test, body = f" if {target.value}.grad is not None", list(first.body.body)
    small = body[0].body[0] if isinstance(body[0], cst.SimpleStatementLine) else body[0]
    alone = len(body) == 1 and len(getattr(body[0], "body", (small,))) == 1
    added = _added(small, total) if alone else None
    if added is None or not _is_square(added, target.value):
        return ""
    return f"{target.value}.grad for {target.value} in {site.source.code(loop.iter)}{test}"


def _asks_for_gradient(test: cst.BaseExpression, name: str) -> bool:
    if not isinstance(test, cst.Comparison) or not _is_gradient(test.left, name):
        return False
    asked = test.comparisons
    return (
        len(asked) == 1
        and isinstance(asked[0].operator, cst.IsNot)
        and is_name(asked[0].comparator, "None")
    )


def _added(small: cst.CSTNode, total: str) -> cst.BaseExpression | None:
    """What a statement adds to the total."""
    if isinstance(small, cst.AugAssign) and isinstance(small.operator, cst.AddAssign):
        return small.value if is_name(small.target, total) else None
    if isinstance(small, cst.Assign) and isinstance(small.value, cst.BinaryOperation):
        plus = isinstance(small.value.operator, cst.Add) and is_name(small.value.left, total)
        bound = len(small.targets) == 1 and is_name(small.targets[0].target, total)
        return small.value.right if plus and bound else None
    return None


def _is_square(node: cst.BaseExpression, name: str) -> bool:
    """Whether an expression is the square of the whole 2-norm of a gradient."""
    norm = _power(node, ("2", "2.0"), "square")
    whole = None if norm is None else _method(norm, "full_tensor")
    if whole is None or whole[1].args:
        return False
    asked = _method(whole[0], "norm")
    if asked is None or len(asked[1].args) > 1:
        return False
    kind = [a.value for a in asked[1].args]
    if kind and not (isinstance(kind[0], cst.Integer | cst.Float) and float(kind[0].value) == 2):
        return False
    detached = _method(asked[0], "detach")
    inner = detached[0] if detached is not None else asked[0]
    if isinstance(inner, cst.Attribute) and inner.attr.value == "data":
        inner = inner.value
    return _is_gradient(inner, name)


def _root(line: cst.CSTNode, total: str) -> cst.BaseExpression | None:
    """The root of the total in the statement below the sum."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    value = getattr(line.body[0], "value", None)
    if not isinstance(line.body[0], cst.Assign | cst.Return) or value is None:
        return None
    inner = _power(value, ("0.5", ".5"), "sqrt")
    return value if inner is not None and is_name(inner, total) else None


def _power(
    node: cst.BaseExpression, exponents: tuple[str, ...], method: str
) -> cst.BaseExpression | None:
    """What is raised to a power: ``x ** 2``, ``x.pow(2)``, ``x.square()``."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Power):
        return node.left if getattr(node.right, "value", None) in exponents else None
    raised, named = _method(node, "pow"), _method(node, method)
    if raised is not None and len(raised[1].args) == 1:
        return raised[0] if getattr(raised[1].args[0].value, "value", None) in exponents else None
    return named[0] if named is not None and not named[1].args else None


def _method(node: cst.BaseExpression, name: str) -> tuple[cst.BaseExpression, cst.Call] | None:
    """The object and the call of ``object.name(…)``."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value == name:
            return node.func.value, node
    return None


def _is_gradient(node: cst.BaseExpression, name: str) -> bool:
    return (
        isinstance(node, cst.Attribute) and node.attr.value == "grad" and is_name(node.value, name)
    )


def is_name(node: cst.CSTNode, name: str) -> bool:
    """Whether a node is this name."""
    return isinstance(node, cst.Name) and node.value == name


def _used_elsewhere(site: Site, lines: Sequence[cst.CSTNode], total: str) -> bool:
    """Whether the function uses the sum of squares itself beside some lines, or the lines after the root."""
    layout = Layout.of(site.source)
    if total in bound_names(lines[-1]):
        return False
    inside = {n for one in lines for n in walk(one)}
    whole = scope_of(layout.ancestors(site.node))
    return any(is_name(n, total) and n not in inside for n in walk(whole))
