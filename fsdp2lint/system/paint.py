"""Lines of text whose parts have a role; with colours they look better, without they say the same."""

from __future__ import annotations

import io
from collections.abc import Iterable

Line = list[tuple[str, str]]
"""Pieces of text, each with its role: a key of :data:`STYLES`, ``link:`` and a URL, both in this order, or empty."""


STYLES = {
    "error": "bold red",
    "warning": "bold yellow",
    "info": "bold cyan",
    "strong": "bold",
    "gutter": "blue",
    "mark": "bold cyan",
    "help": "bold cyan",
    "note": "bold",
    "add": "green",
    "remove": "red",
    "dim": "bright_black",
}


def plain(lines: Iterable[Line]) -> str:
    """The lines without colours."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def painted(lines: Iterable[Line], *, links: bool = False) -> str:
    """The lines with terminal colours, and links if wanted; they show the same characters as :func:`plain`."""
    from rich.console import Console
    from rich.style import Style
    from rich.text import Text

    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=True, color_system="standard", highlight=False, width=200
    )
    for line in lines:
        text = Text()
        for piece, role in line:
            name, _, url = role.partition("link:")
            link = Style(link=url if links and url else None)
            text.append(piece, Style.parse(STYLES.get(name, "")) + link)
        text.rstrip()
        console.print(text, soft_wrap=True)
    return stream.getvalue()
