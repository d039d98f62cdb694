"""Import statements that run whenever their file does."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Source, Trace, says, statements


def imports(trace: Trace, word: str) -> Iterator[tuple[Source, cst.ImportFrom, str]]:
    """The statements ``from module import …`` of all files of a run, each with its module.

    Statements under ``if`` or ``try`` are how code serves several releases and are left out, as are files
    without ``word``.
    """
    for source in trace.sources:
        if source.derived(_imported, word):
            yield from ((source, node, module) for node, module in source.derived(_unconditional))


def _imported(source: Source, word: str) -> bool:
    """Whether the text has such a statement at all: most files only use the word."""
    if word not in source.said:
        return False
    return re.search(rf"\bfrom[\s\\]+[\w.]*{re.escape(word)}", source.said) is not None


def _unconditional(source: Source) -> tuple[tuple[cst.ImportFrom, str], ...]:
    return tuple(
        (node, source.code(node.module))
        for node in statements(source.tree, closed=_is_closed)
        if isinstance(node, cst.ImportFrom) and node.module is not None and not node.relative
    )


def _is_closed(node: cst.CSTNode) -> bool:
    """Whether nothing inside a statement counts; what surely imports nothing need not be parsed for it."""
    if isinstance(node, cst.FunctionDef):
        return not says(node.body, "import")
    return isinstance(node, cst.If | cst.Try)
