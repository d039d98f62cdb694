"""The example of a page: one diff with every line of the code, from which come the code before and after it."""

from __future__ import annotations

import ast
import re

from fsdp2lint.source.reading import decode
from fsdp2lint.source.source import Source

DIFF = re.compile(r"```diff\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def example(section: str) -> tuple[Source, Source]:
    """The code before and after the one diff of a section: Python, or YAML where it is not."""
    (diff,) = DIFF.findall(section)
    lines = diff.splitlines()
    assert all(line[:1] in ("", " ", "-", "+") for line in lines), "a line has no mark of a diff"
    return _code(lines, "-"), _code(lines, "+")


def _code(lines: list[str], mark: str) -> Source:
    text = "".join(f"{line[1:]}\n" for line in lines if line[:1] in ("", " ", mark))
    try:
        ast.parse(text)
    except SyntaxError:
        return decode(text.encode(), "example.yaml")
    return decode(text.encode(), "example.py")
