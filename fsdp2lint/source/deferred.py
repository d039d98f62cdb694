"""Files that are parsed function by function: a body is parsed when somebody looks into it.

Of a file that others import, a run needs the statements of the module and a function here and there. The
standard library's parser, ten times faster than libcst's, says where the bodies are; libcst gets the text
without them, and each of them when it is asked for. The tree becomes the same, node for node, as if the
file had been parsed at once.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import libcst as cst

from fsdp2lint.source.source.places import NEWLINE
from fsdp2lint.source.walk import children

Parse = Callable[[str], cst.Module]
_AstFunction = ast.FunctionDef | ast.AsyncFunctionDef

WORTH_DEFERRING = 200
"""A body of fewer characters is parsed with the file."""

_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
_COMPOUND = frozenset(
    getattr(cst, name)
    for name in (
        *("ClassDef", "If", "Else", "For", "While", "With", "Try", "TryStar", "Finally", "Match"),
        *("ExceptHandler", "ExceptStarHandler", "MatchCase", "IndentedBlock", "Module"),
    )
)
"""What holds statements outside functions."""


class _Chunk(NamedTuple):
    """The text of a body, inside something that has one, and who parses it."""

    text: str
    parse: Parse


class _Deferred(cst.IndentedBlock):
    """The body of a function that nobody has looked into: until then a :class:`_Chunk` is in its place."""

    __slots__ = ()  # type: ignore[misc]  # mypy takes it for an attribute of instances

    def __getattribute__(self, name: str) -> Any:
        if name in ("body", "footer"):
            _fill(self)
        return object.__getattribute__(self, name)  # the class is another one by now


class Unread(cst.IndentedBlock):
    """A body that libcst cannot parse: nobody knows what is in it."""

    __slots__ = ()  # type: ignore[misc]  # mypy takes it for an attribute of instances


def unread(node: cst.FunctionDef | cst.Lambda) -> bool:
    """Whether what a function does cannot be read."""
    if type(node.body) is _Deferred:
        node.body.body  # noqa: B018  parsed here
    return type(node.body) is Unread


def says(body: cst.CSTNode, word: str) -> bool:
    """Whether a body may hold a word: one that was not looked into is asked for its text alone."""
    if type(body) is not _Deferred:
        return True
    chunk: Any = object.__getattribute__(body, "body")
    return word in chunk.text


def outlined(text: str, parse: Parse) -> cst.Module | None:
    """The tree of a text whose longer functions are parsed when they are looked into.

    None when this Python or the layout of the text does not allow it; ``parse`` is libcst's parser.
    """
    if "\f" in text or "\r" in text.replace("\r\n", ""):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that are no escapes
            outer = list(_functions(ast.parse(text).body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    starts = [0, *(m.end() for m in NEWLINE.finditer(text)), len(text)]
    cuts = [_cut(text, starts, node) for node in outer]
    short, at = [], 0
    for node, cut in zip(outer, cuts, strict=True):
        if cut is not None:
            short += [text[at : cut.start], _indent(text, starts, node.body[0]), "0"]
            if text[cut.stop - 1] in "\r\n":
                short.append("\n")
            at = cut.stop
    if not short:
        return None
    tree = parse("".join((*short, text[at:])))
    found = list(defined(tree))
    if [node.name.value for node in found] != [node.name for node in outer]:
        return None
    newline = tree.default_newline
    around = f"if 0:{newline}{tree.default_indent}0{newline}if 0:{newline}"
    for made, cut in zip(found, cuts, strict=True):
        if cut is not None:
            object.__setattr__(made.body, "body", _Chunk(around + text[cut], parse))
            object.__setattr__(made.body, "__class__", _Deferred)
    return tree


def in_pieces(text: str, parse: Parse) -> cst.Module | None:
    """The whole tree of a long text, of which libcst gets one longer function after the other.

    While it parses, libcst needs many times the memory of the tree. None where the text cannot be taken
    apart, or where libcst refuses a piece: whoever parses it at once hears what is wrong, and where.
    """
    try:
        tree = outlined(text, parse)
    except Exception:  # libcst lets several exception types out of its native parser
        return None
    if tree is None or any(unread(node) for node in defined(tree)):
        return None
    return tree


def _fill(block: _Deferred) -> None:
    """Parse what belongs into a block: from then on it is one like all others."""
    chunk: Any = object.__getattribute__(block, "body")
    object.__setattr__(block, "__class__", cst.IndentedBlock)
    try:
        made: Any = chunk.parse(chunk.text).body[1]
        object.__setattr__(block, "body", made.body.body)
        object.__setattr__(block, "footer", (*made.body.footer, *block.footer))
    except Exception:  # libcst lets several exception types out of its native parser
        object.__setattr__(block, "body", ())
        object.__setattr__(block, "__class__", Unread)


def _functions(body: Sequence[ast.AST]) -> Iterator[_AstFunction]:
    """The functions that are not inside another one, in order."""
    for one in body:
        if isinstance(one, _AstFunction):
            yield one
            continue
        for block in _BLOCKS:
            held = getattr(one, block, None)
            if isinstance(held, list):
                yield from _functions(held)


def defined(tree: cst.Module) -> Iterator[cst.FunctionDef]:
    """The functions of a file that are in no other, in the order of the text."""
    todo: list[cst.CSTNode] = [tree]
    while todo:
        node = todo.pop()
        if type(node) is cst.FunctionDef:
            yield node
        elif type(node) in _COMPOUND:
            todo.extend(reversed(list(children(node))))


def _cut(text: str, starts: list[int], node: _AstFunction) -> slice | None:
    """The whole lines of a body that is on lines of its own; None when it is short or does not."""
    first = node.body[0]
    indent = _indent(text, starts, first)
    if indent.strip():
        return None
    line = min([first.lineno - 1, *(d.lineno - 1 for d in getattr(first, "decorator_list", ()))])
    top = _header_end(text, starts, node, line)
    bottom = _bottom(text, starts, node.end_lineno or line, indent)
    head = text[starts[top - 1] : starts[top]].strip()
    if head.startswith("@") or head.endswith("\\"):
        return None
    if starts[bottom] - starts[top] < WORTH_DEFERRING:
        return None
    return slice(starts[top], starts[bottom])


def _indent(text: str, starts: list[int], statement: ast.stmt) -> str:
    """What is before a statement on its line."""
    start = starts[statement.lineno - 1]
    return text[start : start + statement.col_offset]


def _header_end(text: str, starts: list[int], node: _AstFunction, line: int) -> int:
    """The number of the line on which the colon is: above the body only blank lines and comments follow."""
    held = chain(ast.walk(node.args), () if node.returns is None else ast.walk(node.returns))
    ends = (getattr(one, "end_lineno", None) or 0 for one in held)
    least = max([node.lineno, *ends])
    while line > least:
        above = text[starts[line - 1] : starts[line]].strip()
        if above and not above.startswith("#"):
            break
        line -= 1
    return line


def _bottom(text: str, starts: list[int], line: int, indent: str) -> int:
    """The last line of a body, with the comments below it that are deeper: they belong to what is inside."""
    last = line
    while line < len(starts) - 1:
        below = text[starts[line] : starts[line + 1]]
        line += 1
        said = below.lstrip()
        if said and not said.startswith("#"):
            break
        if said and len(below) - len(said) > len(indent):
            last = line
    return last
