"""Places in the text of a training loop: what a call's value is for, and what is around it."""

from __future__ import annotations

import re

import libcst as cst

from fsdp2lint.api import NEWLINE, Layout, Source, walk

_SPACE = re.compile(r"\s+|,(?=\s*[)\]}])")
_INDENT = re.compile(r"[ \t]*")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[\d+\])*\Z")
_LAZY = (
    cst.Lambda,
    cst.BaseComp,
    cst.IfExp,
    cst.BooleanOperation,
    cst.While,
    cst.Assert,
    cst.Comparison,
)
_ATOMS = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)


def text_of(source: Source, node: cst.CSTNode) -> str:
    """The text of a node with the parentheses that belong to it."""
    return source.text[slice(*Layout.of(source).whole(node))]


def receiver_text(source: Source, node: cst.BaseExpression) -> str:
    """The text of a node, such that a dot can follow."""
    text = text_of(source, node)
    return text if node.lpar or isinstance(node, _ATOMS) else f"({text})"


def is_path(text: str) -> bool:
    """Whether a text is a name or a path of attributes, which can be said again."""
    return bool(_PATH.match(text))


def same_text(one: str, other: str) -> bool:
    """Whether two pieces of code differ in blanks, line breaks and trailing commas at most."""
    return _SPACE.sub("", one) == _SPACE.sub("", other)


def around(source: Source, node: cst.CSTNode) -> cst.CSTNode:
    """The function that a node is in, or the module."""
    return Layout.of(source).function(node) or source.tree


def is_lazy(source: Source, node: cst.CSTNode) -> bool:
    """Whether a node may be computed another number of times than once when its statement runs."""
    for one in Layout.of(source).ancestors(node):
        if isinstance(one, _LAZY):
            return True
        if isinstance(one, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            return not isinstance(one, cst.BaseSmallStatement | cst.If)
    return True


def bound_name(source: Source, node: cst.BaseExpression) -> str:
    """The plain name that a statement gives to exactly this value; empty when it does something else."""
    statement = Layout.of(source).parents[node]
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        target = statement.targets[0].target
    elif isinstance(statement, cst.AnnAssign):
        target = statement.target
    else:
        return ""
    return target.value if isinstance(target, cst.Name) else ""


def is_dropped(source: Source, node: cst.BaseExpression) -> bool:
    """Whether nothing is done with a value."""
    if isinstance(Layout.of(source).parents[node], cst.Expr):
        return True
    name = bound_name(source, node)
    place = around(source, node)
    return bool(name) and isinstance(place, cst.FunctionDef) and _mentions(place, name) < 2


def _mentions(place: cst.CSTNode, name: str) -> int:
    return sum(isinstance(one, cst.Name) and one.value == name for one in walk(place))


def free_name(source: Source, node: cst.CSTNode, wanted: str) -> str:
    """``wanted``, or that with a number where the function of ``node`` has something of that name."""
    used = {one.value for one in walk(around(source, node)) if isinstance(one, cst.Name)}
    name, number = wanted, 2
    while name in used:
        name, number = f"{wanted}_{number}", number + 1
    return name


_READING = re.compile(r"\w+\(\)")


def fitted(source: Source, call: cst.Call, text: str) -> str:
    """``text``, a call that comes in place of ``call``, with its arguments on a line of their own if need be.

    Inside an f-string it stays on its line: before Python 3.12 that must not end there.
    """
    layout = Layout.of(source)
    if any(isinstance(one, cst.FormattedString) for one in layout.ancestors(call)):
        return text
    start, end = layout.whole(call)
    first = layout.line_start(start)
    line_end = NEWLINE.search(source.text, end)
    rest = source.text[end : line_end.start() if line_end else len(source.text)]
    behind = rest.partition("#")[0].rstrip()
    indent = _INDENT.match(source.text, first)
    head, bracket, tail = text.partition("(")
    arguments, close, chained = tail.rpartition(").")
    if not _READING.fullmatch(chained) and tail.endswith(")"):
        arguments, close, chained = tail[:-1], ")", ""
    long = start - first + len(text) + len(behind) > layout.width
    before = source.text[first:start]
    nested = any(before.count(a) > before.count(b) for a, b in ("()", "[]", "{}"))
    if nested:
        return text  # a line is broken at its outermost brackets, when all of it is written
    if not long or indent is None or NEWLINE.search(text) or not arguments:
        return text
    deeper = layout.newline + indent[0]
    return f"{head}{bracket}{deeper}{layout.unit}{arguments}{deeper}{close}{chained}"


def has_comment(source: Source, start: int, end: int) -> bool:
    """Whether a comment is between two offsets."""
    layout = Layout.of(source)
    return any(start <= layout.offset(c.line, c.column) < end for c in source.comments)
