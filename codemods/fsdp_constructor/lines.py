"""How the statements that shard a module are broken into lines."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence

import libcst as cst

LINE = 88
WIDTH = 100
"""No line that can be broken is longer."""

_BRACKETED = re.compile(r"(\s*)((?:[\w.]+ = |\*\*|\"\w+\": )?[\w.]*\()(.*)(\),?)")
_NAMED = re.compile(r"(\s*)([\w.]+ = |\"\w+\": )(.*?)(,?)")


def entry(argument: str) -> str:
    """A keyword argument as an entry of a dictionary."""
    name, _, value = argument.partition("=")
    return f'"{name}": {value}'


def bracketed(head: str, items: list[str], tail: str, indent: int) -> str:
    """Items between brackets, on one line if they fit."""
    text = f"{head}{', '.join(items)}{tail}"
    if indent + len(text) <= LINE or "\n" in text:
        return text
    body = "".join(f"    {item},\n" for item in items)
    return f"{head}\n{body}{tail}"


def fitted(statement: str) -> str:
    """An assignment on several lines when it is too long for one."""
    name, _, value = statement.partition(" = ")
    if len(statement) > LINE and "\n" not in value and _is_choice(value):
        return f"{name} = (\n    {value}\n)"
    head, opened, rest = statement.partition("(")
    if len(statement) <= LINE or not opened or not rest.endswith(")") or "\n" in statement:
        return statement
    if not re.fullmatch(r"[\w.]+ = [\w.]+", head):
        return statement
    items = _items(rest[:-1]) if len(rest) > LINE else []
    inside = "".join(f"    {item},\n" for item in items) or f"    {rest[:-1]}\n"
    return f"{head}(\n{inside})"


def _is_choice(value: str) -> bool:
    """Whether a text is ``one if test else other`` as a whole."""
    try:
        return isinstance(ast.parse(value, mode="eval").body, ast.IfExp)
    except SyntaxError:
        return False


def joined(lines: Sequence[str], indentation: int) -> str:
    """Lines for a place that is indented so far; those that are too long are broken at their brackets."""
    width = WIDTH - indentation
    return "\n".join(one for line in "\n".join(lines).split("\n") for one in _broken(line, width))


def _broken(line: str, width: int) -> Iterator[str]:
    choice = list(_choice(line, width)) if len(line) > width else []
    if choice:
        yield from choice
        return
    found = _BRACKETED.fullmatch(line) if len(line) > width else None
    if found is None:
        yield line
        return
    pad, head, inner, tail = found.groups()
    items = _items(inner)
    if not items:
        yield line
        return
    yield f"{pad}{head}"
    if len(pad) + 4 + len(inner) <= width:
        yield f"{pad}    {inner}"
    else:
        for item in items:
            yield from _broken(f"{pad}    {item},", width)
    yield f"{pad}{tail}"


def _choice(line: str, width: int) -> Iterator[str]:
    """``name = one if test else other`` in parentheses on lines of its own; nothing for another line."""
    found = _NAMED.fullmatch(line)
    if found is None:
        return
    pad, name, value, comma = found.groups()
    try:
        node = ast.parse(value, mode="eval").body
    except SyntaxError:
        return
    if not isinstance(node, ast.IfExp) or not value.isascii():
        return
    yield f"{pad}{name}("
    if len(pad) + 4 + len(value) <= width:
        yield f"{pad}    {value}"
    else:
        one, test, other = (
            value[n.col_offset : n.end_col_offset] for n in (node.body, node.test, node.orelse)
        )
        yield from _broken(f"{pad}    {one}", width)
        yield from (f"{pad}    if {test}", f"{pad}    else {other}")
    yield f"{pad}){comma}"


def _items(text: str) -> list[str]:
    """What the commas of a text separate, those inside of brackets apart; nothing if it is no such text."""
    depth, start, items = 0, 0, []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.string in ("(", "[", "{"):
                depth += 1
            elif token.string in (")", "]", "}"):
                depth -= 1
            elif token.string == "," and depth == 0:
                items.append(text[start : token.start[1]].strip())
                start = token.end[1]
            if depth < 0:
                return []
    except (tokenize.TokenError, SyntaxError):
        return []
    return [item for item in (*items, text[start:].strip()) if item]


def reindented(text: str) -> str:
    """An expression of several lines as it is where its last line is not indented."""
    last = text.rpartition("\n")[2]
    margin = " " * (len(last) - len(last.lstrip()))
    return text.replace("\n" + margin, "\n")


def expression_alone(text: str) -> bool:
    """Whether an expression over several lines needs no parentheses around it."""
    try:
        cst.parse_statement(f"_ = {text}")
    except cst.ParserSyntaxError:
        return False
    return True
