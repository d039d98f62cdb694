"""Draw what a terminal shows of `check`: docs/terminal.svg, which needs nothing from elsewhere.

python docs/picture.py
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).parent.parent))

from fsdp2lint.check.session import Session
from fsdp2lint.reporters import View, render

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "terminal.svg"
SCRIPT = "fixtures/projects/tour"
SELECT = "FSDP201"

COLUMNS = 104
WIDTH, HEIGHT = 8.4, 18.0
"""Of a character of 14 px in most fixed-width fonts; every piece of text is fitted to it."""
MARGIN, BAR = 16, 34
PAPER, INK = "#0d1117", "#e6edf3"
INKS = {
    31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#79c0ff", 36: "#56d4dd", 90: "#8b949e",
}  # fmt: skip
BUTTONS = ("#ff5f56", "#ffbd2e", "#27c93f")

_SGR = re.compile(r"\x1b\[([\d;]*)m")

Piece = tuple[str, str, bool]
"""Text, its ink, and whether it is bold."""


def terminal() -> str:
    """What the program sends to a terminal, behind what was typed."""
    before = os.getcwd()
    os.chdir(ROOT)
    try:
        report = Session([SCRIPT], {"select": (SELECT,)}, isolated=True).check()
        return f"$ fsdp2lint check --select {SELECT} {SCRIPT}\n" + render(
            "full", report, View(colour=True)
        )
    finally:
        os.chdir(before)


def rows(text: str) -> Iterator[list[Piece]]:
    """The lines in pieces of one look, broken where the terminal ends."""
    ink, bold = INK, False
    for line in text.rstrip("\n").split("\n"):
        row: list[Piece] = []
        column = 0
        for n, part in enumerate(_SGR.split(line)):
            if n % 2:
                ink, bold = _look(part, ink, bold)
                continue
            while part:
                taken = part[: COLUMNS - column]
                row.append((taken, ink, bold))
                part, column = part[len(taken) :], column + len(taken)
                if part:
                    yield row
                    row, column = [], 0
        yield row


def svg(text: str) -> str:
    """The picture."""
    every = list(rows(text))
    width = round(COLUMNS * WIDTH + 2 * MARGIN)
    height = round(len(every) * HEIGHT + BAR + MARGIN)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="fsdp2lint check in a terminal">',
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
    ]
    for n, ink in enumerate(BUTTONS):
        lines.append(f'<circle cx="{MARGIN + 4 + 20 * n}" cy="17" r="6" fill="{ink}"/>')
    lines.append(
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14" '
        'style="white-space: pre">'
    )
    for number, row in enumerate(every):
        lines += _drawn(row, BAR + (number + 1) * HEIGHT - 5)
    return "\n".join([*lines, "</g>", "</svg>"]) + "\n"


def _drawn(row: list[Piece], y: float) -> Iterator[str]:
    column = 0
    for text, ink, bold in row:
        bare = text.strip()
        if bare:
            x = MARGIN + (column + len(text) - len(text.lstrip())) * WIDTH
            weight = ' font-weight="bold"' if bold else ""
            yield (
                f'<text x="{x:.1f}" y="{y:.0f}" fill="{ink}"{weight} xml:space="preserve" '
                f'textLength="{len(bare) * WIDTH:.1f}" lengthAdjust="spacingAndGlyphs">'
                f"{escape(bare)}</text>"
            )
        column += len(text)


def _look(codes: str, ink: str, bold: bool) -> tuple[str, bool]:
    for code in map(int, codes.split(";") if codes else ["0"]):
        if code in (0, 39):
            ink = INK
        if code in (0, 1, 22):
            bold = code == 1
        ink = INKS.get(code, ink)
    return ink, bold


if __name__ == "__main__":
    PICTURE.write_text(svg(terminal()), encoding="utf-8")
