"""A unified diff with its lines coloured, one part a file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp2lint.prove.report.markup import Markup, join, tag

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_ROLES = {"+": "add", "-": "del", "@": "hunk"}


def changes(diff: str) -> Iterator[Markup]:
    """Each file of a diff, open, under its name."""
    for number, (name, lines) in enumerate(_files(diff)):
        added = sum(line.startswith("+") for line in lines)
        removed = sum(line.startswith("-") for line in lines)
        counts = (tag("b", f"+{added}", class_="add"), " ", tag("b", f"-{removed}", class_="del"))
        title = tag("summary", tag("code", name), " ", join(*counts))
        body = tag("pre", (_line(line) for line in lines), tabindex="0")
        yield tag("details", title, body, id=anchor(number), open=True)


def anchor(number: int) -> str:
    """Where the part of a file is found on the page."""
    return f"diff-{number}"


def files(diff: str) -> list[str]:
    """The names of the files in a diff, in order."""
    return [name for name, _ in _files(diff)]


def _files(diff: str) -> list[tuple[str, list[str]]]:
    """Names and hunks; what is between the hunks of two files is not shown.

    The counts of a hunk say which lines are its own: a removed ``-- x`` looks like the name of a file.
    """
    found: list[tuple[str, list[str]]] = []
    left = [0, 0]
    old = ""
    for line in diff.split("\n"):
        if any(left) and found:
            found[-1][1].append(line)
            left[0] -= line[:1] not in ("+", "\\")
            left[1] -= line[:1] not in ("-", "\\")
        elif line.startswith("--- "):
            old = line[4:].split("\t")[0]
        elif line.startswith("+++ "):
            new = line[4:].split("\t")[0]
            found.append((_plain(old if new == "/dev/null" else new), []))
        elif found and (hunk := _HUNK.match(line)) is not None:
            found[-1][1].append(line)
            left = [int(hunk[1] or 1), int(hunk[2] or 1)]
        elif found and line.startswith("\\"):
            found[-1][1].append(line)
    return found


def _plain(name: str) -> str:
    """Without the ``a/`` and ``b/`` that git writes."""
    return name[2:] if name.startswith(("a/", "b/")) else name


def _line(line: str) -> Markup:
    return join(tag("span", line or " ", class_=_ROLES.get(line[:1])), "\n")
