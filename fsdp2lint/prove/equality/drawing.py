"""Two curves drawn with characters."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH, HEIGHT = 56, 9
BOTH, BEFORE, AFTER = "●", "○", "×"

Number = float | None


def chart(before: Sequence[Number], after: Sequence[Number]) -> list[str]:
    """Both curves in one frame; where both have the same place, one sign for both.

    Nothing when no curve has two points.
    """
    length = max(len(before), len(after))
    numbers = [n for n in (*before, *after) if n is not None]
    if length < 2 or not numbers:
        return []
    low, high = min(numbers), max(numbers)
    width = min(WIDTH, max(length * 2 - 1, 16))
    cells = [[" "] * width for _ in range(HEIGHT)]
    for curve, sign in ((before, BEFORE), (after, AFTER)):
        for step, number in enumerate(curve):
            if number is None:
                continue
            row = _place(high - number, high - low, HEIGHT)
            column = _place(step, length - 1, width)
            taken = cells[row][column]
            cells[row][column] = BOTH if sign == AFTER and taken in (BEFORE, BOTH) else sign
    return _framed(cells, low, high, length)


def _place(part: float, whole: float, cells: int) -> int:
    return round(part / whole * (cells - 1)) if whole else 0


def _framed(cells: list[list[str]], low: float, high: float, length: int) -> list[str]:
    labels = {0: f"{high:.4g}", len(cells) - 1: f"{low:.4g}"}
    gutter = max(map(len, labels.values()))
    rows = [
        f"  {labels.get(n, ''):>{gutter}} {'┤' if n in labels else '│'}{''.join(row)}"
        for n, row in enumerate(cells)
    ]
    last = str(length)
    steps = f"1{last:>{len(cells[0]) - 1}}"
    rows.append(f"  {'':>{gutter}} └{'─' * len(cells[0])}")
    rows.append(f"  {'':>{gutter}}  {steps}")
    rows.append(f"  {'':>{gutter}}  loss by step: {BOTH} both  {BEFORE} BEFORE  {AFTER} AFTER")
    return rows
