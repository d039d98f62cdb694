"""Lists with commas, of arguments, imported names or context managers: what comes and goes keeps lines and comments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from fsdp2lint.edits.changes import Change
from fsdp2lint.edits.layout import Layout


class CommaList:
    """The items of a list as they are written; ``close`` is the offset of its bracket, None without one."""

    def __init__(
        self,
        layout: Layout,
        items: Sequence[cst.Arg] | Sequence[cst.ImportAlias] | Sequence[cst.WithItem],
        close: int | None,
        level: int,
    ) -> None:
        self.layout = layout
        self.text = layout.text
        self.items = items
        self.close = close
        self.level = level
        self.spans = [layout.span(item) for item in items]
        self.ends = [self._comma_end(index) for index in range(len(items))]

    def alone(self, index: int) -> bool:
        """Whether an item has its lines for itself, apart from a comment behind it."""
        start, past = self.spans[index][0], self.ends[index]
        return self.close is not None and self._starts_line(start) and self._nothing_behind(past)

    def remove(self, gone: Iterable[int]) -> Iterator[Change]:
        """Without the items at these places.

        A comment goes when it shares the lines of one that goes, or is right above an argument that goes.
        """
        away = set(gone)
        for index in sorted(away):
            yield from self._remove(index, away)

    def before(self, index: int, new: Sequence[str]) -> Change:
        """New items before the one at ``index``."""
        start = self.spans[index][0]
        gap = " "
        if self.close is not None and self._starts_line(start):
            gap = self.layout.newline + self._indent(start)
        return Change(start, start, "".join(f"{text},{gap}" for text in new))

    def behind(self, index: int, new: Sequence[str]) -> Iterator[Change]:
        """New items behind the one at ``index``."""
        (start, end), past = self.spans[index], self.ends[index]
        own = self._starts_line(start)
        comment = "#" in self.text[past : self.layout.line_end(past)]
        if self.close is None or not self._nothing_behind(past) or not (own or comment):
            gap = self.layout.newline + self._indent(start) if own and self.close else " "
            pieces = (f"{gap}{t}," if past > end else f",{gap}{t}" for t in new)
            yield Change(past, past, "".join(pieces))
            return
        if past == end:
            yield Change(end, end, ",")
        indent = self._indent(start) if own else self._indent(self.close) + self.layout.unit
        lines = [f"{indent}{text},{self.layout.newline}" for text in new]
        if past == end and own:
            lines[-1] = f"{indent}{new[-1]}{self.layout.newline}"
        at = self.layout.line_end(past)
        yield Change(at, at, "".join(lines))

    def fill(self, new: Sequence[str]) -> Change:
        """Items for a list that has none; comments between its brackets stay."""
        close = self.close or 0
        if not self._starts_line(close):
            return Change(close, close, ", ".join(new))
        at, indent = self.layout.line_start(close), self._indent(close) + self.layout.unit
        return Change(at, at, "".join(f"{indent}{t},{self.layout.newline}" for t in new))

    def instead(self, index: int, new: Sequence[str]) -> Change:
        """Other items where one is."""
        return self._going(*self.spans[index], ", ".join(new))

    def _remove(self, index: int, away: set[int]) -> Iterator[Change]:
        (start, end), past = self.spans[index], self.ends[index]
        if self.alone(index):
            yield self._going(self._top(index), self.layout.line_end(past))
            return
        if index + 1 < len(self.items):
            following = self.spans[index + 1][0]
            gap = self.text[past:following]
            if "#" in gap or (index + 1 in away and self.alone(index + 1)):
                following = past + len(gap) - len(gap.lstrip(" \t"))
            yield self._going(start, following)
            return
        before = max((k for k in range(index) if k not in away), default=None)
        if before is None:
            yield self._going(start, past)
            return
        between = self.text[self.spans[before][1] : self.spans[before + 1][0]]
        if "#" in between or any(self.alone(i) for i in range(before + 1, index)):
            yield self._going(start, past)
        else:
            yield self._going(self.spans[before][1], self.spans[before + 1][0])
            yield self._going(start, end)

    def _top(self, index: int) -> int:
        """Where the lines of an item begin: those of the comments right above an argument are its own."""
        top = self.layout.line_start(self.spans[index][0])
        first = (
            self.ends[index - 1]
            if index
            else self.layout.line_end(self.layout.line_start(top - 1) - 1)
        )
        while isinstance(self.items[index], cst.Arg) and top > 0:
            above = self.layout.line_start(top - 1)
            if above < first or not self.text[above:top].strip().startswith("#"):
                break
            top = above
        return top

    def _comma_end(self, index: int) -> int:
        end = self.spans[index][1]
        if not isinstance(self.items[index].comma, cst.Comma):
            return end
        while self.text[end] != ",":
            end = self.layout.line_end(end) if self.text[end] == "#" else end + 1
        return end + 1

    def _starts_line(self, offset: int) -> bool:
        return not self.text[self.layout.line_start(offset) : offset].strip()

    def _nothing_behind(self, offset: int) -> bool:
        behind = self.text[offset : self.layout.line_end(offset)].strip()
        return not behind or behind.startswith("#")

    def _indent(self, offset: int) -> str:
        line = self.text[self.layout.line_start(offset) : offset]
        return line[: len(line) - len(line.lstrip())]

    def _going(self, start: int, end: int, text: str = "") -> Change:
        return Change(start, end, text, level=self.level, absorbs=True)
