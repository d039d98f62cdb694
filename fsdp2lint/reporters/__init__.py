"""How a report is written: one module for each format, found by its name.

Each holds ``render(report, view) -> str``: pure text, so that the same report can be written several
times and to several places. A module whose name begins with ``_`` is a helper.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from fsdp2lint.system.plain import in_json, no_command

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Report


FOR_PEOPLE = ("concise", "full", "grouped")
"""The formats that ``--statistics`` replaces."""


class View(NamedTuple):
    """What a reporter has to know besides the report."""

    unsafe: bool = False
    """Whether unsafe fixes would be applied too: that decides what counts as fixable."""
    fixing: bool = False
    """Whether the fixes have been made already."""
    show_fixes: bool = False
    """Whether the fixes that were made are listed."""
    colour: bool = False
    links: bool = False
    """Whether file names are links, where there are colours."""
    quiet: bool = False
    """Whether only the findings are wanted, no summary."""
    statistics: bool = False
    """Whether the findings of each rule are counted, not listed."""


@cache
def formats() -> tuple[str, ...]:
    """The names of all formats: the modules of this folder, with dashes."""
    names = (info.name for info in pkgutil.iter_modules(__path__))
    return tuple(sorted(name.replace("_", "-") for name in names if not name.startswith("_")))


def render(name: str, report: Report, view: View) -> str:
    """The report in the format called ``name``, ending in a newline unless it is empty."""
    if any((report.found, report.suppressed, report.fixed, report.refused, report.known)):
        from fsdp2lint.check.in_documents import placed

        report = placed(report)
    if view.statistics and name in FOR_PEOPLE:
        from fsdp2lint.reporters._statistics import statistics

        return no_command("".join(line + "\n" for line in statistics(report, view)))
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    text: str = module.render(report, view)
    if name == "github":
        return text  # commands are what it is made of
    if name in ("coverage", "json", "json-lines", "sarif", "gitlab"):
        return in_json(text)
    return no_command(text, "##&#91;" if name == "junit" else "## [")
