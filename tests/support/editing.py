"""What the tests of edits share: finding a node by its text, and the text after some edits."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.edits.apply import resolve
from fsdp2lint.edits.changes import apply
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.text import Edit
from fsdp2lint.source.source import Source
from fsdp2lint.source.walk import walk


def find(source: Source, code: str) -> cst.CSTNode:
    """The outermost node, suites apart, whose text is ``code``."""
    layout = Layout.of(source)
    for node in walk(source.tree):
        if isinstance(node, cst.Module | cst.BaseSuite | cst.Else | cst.Finally):
            continue
        if source.text[slice(*layout.span(node))] == code:
            return node
    raise LookupError(code)


def call(source: Source) -> cst.Call:
    """The first call."""
    return next(node for node in walk(source.tree) if isinstance(node, cst.Call))


def edited(source: Source, *edits: Edit) -> str:
    """The text after the edits of one fix; it parses."""
    spans = resolve(edits)
    assert set(spans) <= {source}
    text = apply(source.text, spans.get(source, ()))
    assert Source("after.py", text).tree.code == text
    return text
