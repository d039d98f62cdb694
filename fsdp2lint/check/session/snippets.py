"""A run over a document: block after block, each a batch of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fsdp2lint.check.fixing import diff
from fsdp2lint.check.in_documents import placed
from fsdp2lint.check.runner import Batch, Mended
from fsdp2lint.source.documents.markdown import Markdown, markdown
from fsdp2lint.source.prefilter import relevant
from fsdp2lint.source.source import Source

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Report

Run = Callable[[Batch], Mended]


def checked(source: Source, run: Run) -> Iterator[Mended]:
    """What ``run`` makes of each block of a document; with the last of them comes the changed document.

    Its places are those of the document.
    """
    text, index = source.text, 0
    while index < len(made := markdown(text, source.path)):
        block = made[index]
        index += 1
        snippet = block.snippet
        if not relevant(snippet):
            continue
        mended = run(Batch([source.path], [(source.path, snippet)]))
        yield Mended(_own(mended.report, block))
        for _, new in mended.changed:
            text = block.text(new.text)
    if text != source.text:
        new = source.with_text(text)
        yield Mended(_nothing(), [(source, new)], diff(source, text))


def _own(report: Report, block: Markdown) -> Report:
    """The findings in the block itself: those in imports above it are reported with theirs."""
    found = [d for d in report.found if block.holds(d.place.range)]
    return placed(report.but(found=found)).but(files=0, analysed=0)


def _nothing() -> Report:
    from fsdp2lint.check.diagnostics import Report

    return Report()
