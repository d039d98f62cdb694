"""Statements that an edit made too long for one line: broken at their brackets, an item a line."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import libcst as cst

from fsdp2lint.edits.changes import Change
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.text import Edit
from fsdp2lint.source.source import Source
from fsdp2lint.source.walk import walk


class Broken(Edit):
    """A bracketed expression of one line, written on several."""

    def __init__(self, source: Source, node: cst.BaseExpression, text: str) -> None:
        self.source = source
        self.node = node
        self.text = text

    @property
    def group(self) -> Hashable:
        return Broken, self.node

    def changes(self, together: Sequence[Edit]) -> list[Change]:
        return [Change(*self.layout.span(self.node), self.text)]


def broken_lines(old: Source, new: Source) -> Iterator[Broken]:
    """The statements on one line that the old text does not have and that are too long."""
    known = set(old.lines)
    if all(len(line) <= Layout.of(new).width or line in known for line in new.lines):
        return
    for statement in walk(new.tree):
        if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
            layout = Layout.of(new)
            start, end = layout.span(statement.body[0])
            first = layout.line_start(start)
            line = layout.text[first : layout.line_end(start)].rstrip("\r\n")
            if (
                len(line) > layout.width
                and line not in known
                and "\n" not in layout.text[start:end]
            ):
                value = getattr(statement.body[0], "value", None)
                indent = line[: len(line) - len(line.lstrip())]
                if value is not None and "#" not in line and _bracketed(value) is not None:
                    text = _on_several(layout, value, indent)
                    if text != layout.text[slice(*layout.span(value))]:
                        yield Broken(new, value, text)


def _on_several(layout: Layout, node: cst.BaseExpression, indent: str) -> str:
    """An expression with the items of its last brackets on lines of their own, together if they fit."""
    start, end = layout.span(node)
    found = _bracketed(node)
    if found is None:
        return layout.text[start:end]
    inside, items = found
    if isinstance(inside, _Comprehension):
        return _comprehension(layout, (start, end), inside, indent)
    first, last = layout.span(items[0])[0], layout.span(items[-1])[1]
    deeper = indent + layout.unit
    said = [layout.text[slice(*layout.span(one))].rstrip(", ") for one in items]
    room = layout.width - len(deeper)
    comma = "" if isinstance(items[-1], cst.Arg) and items[-1].star and len(items) == 1 else ","
    only = getattr(items[0], "value", None) if len(items) == 1 else None
    if isinstance(only, cst.BaseString) and len(said[0]) > room:
        return layout.text[start:end]  # a text of its own is no shorter on a line of its own
    if isinstance(inside, cst.Call) and len(", ".join(said)) <= room:
        said, comma = [", ".join(said)], ""
    else:
        values = [getattr(one, "value", None) for one in items]
        for index, value in enumerate(values):
            if len(said[index]) >= room and isinstance(value, cst.BaseExpression):
                head = said[index][: layout.span(value)[0] - layout.span(items[index])[0]]
                said[index] = head + _on_several(layout, value, deeper)
    body = "".join(f"{layout.newline}{deeper}{one}{comma}" for one in said)
    head, tail = layout.text[start:first].rstrip(), layout.text[last:end].lstrip(", ")
    return f"{head}{body}{layout.newline}{indent}{tail}"


_Comprehension = cst.ListComp | cst.SetComp | cst.DictComp | cst.GeneratorExp


def _comprehension(
    layout: Layout,
    whole: tuple[int, int],
    node: cst.ListComp | cst.SetComp | cst.DictComp | cst.GeneratorExp,
    indent: str,
) -> str:
    """A comprehension with what it collects, each ``for`` and each ``if`` on lines of their own."""

    def text(one: cst.CSTNode) -> str:
        return layout.text[slice(*layout.whole(one))]

    if isinstance(node, cst.DictComp):
        first = layout.whole(node.key)[0]
        said = [f"{text(node.key)}: {text(node.value)}"]
    else:
        first = layout.whole(node.elt)[0]
        said = [text(node.elt)]
    last = first
    loop: cst.CompFor | None = node.for_in
    while loop is not None:
        word = "async for" if loop.asynchronous is not None else "for"
        said.append(f"{word} {text(loop.target)} in {text(loop.iter)}")
        said += [f"if {text(one.test)}" for one in loop.ifs]
        last = layout.whole(loop.ifs[-1].test if loop.ifs else loop.iter)[1]
        loop = loop.inner_for_in
    line = layout.newline + indent
    body = "".join(f"{line}{layout.unit}{one}" for one in said)
    start, end = whole
    return f"{layout.text[start:first].rstrip()}{body}{line}{layout.text[last:end].lstrip()}"


def _bracketed(
    node: cst.BaseExpression,
) -> tuple[cst.BaseExpression, Sequence[cst.CSTNode]] | None:
    """The last brackets of an expression that hold something, and what they hold."""
    while True:
        if isinstance(node, cst.Call) and node.args:
            only = node.args[0].value if len(node.args) == 1 else None
            if isinstance(only, cst.GeneratorExp):
                return None if len(only.lpar) > 1 else (only, (only,))
            return node, node.args
        if isinstance(node, cst.ListComp | cst.SetComp | cst.DictComp):
            return node, (node,)
        if isinstance(node, cst.Call):
            node = node.func
        elif isinstance(node, cst.Attribute):
            node = node.value
        elif isinstance(node, cst.Dict | cst.List | cst.Set) and node.elements:
            return node, node.elements
        else:
            return None
