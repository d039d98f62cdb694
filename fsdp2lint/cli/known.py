"""What ``check`` does with a baseline."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from fsdp2lint.config.files import INLINE, Fault, Spot

if TYPE_CHECKING:
    from fsdp2lint.check.baseline import Baseline, Compared
    from fsdp2lint.check.report import Report
    from fsdp2lint.check.session import Session

DEFAULT_NAME = "fsdp2lint-baseline.json"


def compared(session: Session, report: Report, named: str | None) -> Report:
    """The report without what the baseline knows; one that cannot be read knows nothing.

    Raises:
        click.ClickException: the baseline that was named on the command line cannot be read.
    """
    file = file_of(session, named)
    if not os.path.exists(file) and not (named or session.option("baseline")):
        return report
    try:
        baseline = load(file)
    except click.ClickException as error:
        place = session.main.places.get("baseline", Spot(file))
        if named or place == INLINE:
            raise
        session.note(Fault(place, error.message.removeprefix(f"{place}: ")))
        return report
    outcome = against(baseline, session, report)
    if outcome.stale:
        number = sum(count for _, count in outcome.stale)
        what = "entry matches" if number == 1 else "entries match"
        (path, code, _), _ = outcome.stale[0]
        click.echo(
            f"{file}: {number} {what} nothing any more (first: {code} in {path}); "
            "drop with `fsdp2lint baseline prune`",
            err=True,
        )
    elsewhere = baseline.compare(report.elsewhere, (), ()).new
    return report.but(
        found=outcome.new, known=outcome.known, stale=bool(outcome.stale), elsewhere=elsewhere
    )


def against(baseline: Baseline, session: Session, report: Report) -> Compared:
    """What of a report the baseline knows, what is new, and which entries are stale."""
    files = [] if "-" in session.paths else session.files
    passed = {os.path.abspath(path) for path in files}
    ran = {rule.code for rule in report.rules}
    outcome = baseline.compare(report.found, passed, ran)
    stale = {baseline.path_of(key) for key, _ in outcome.stale} & passed
    unsure = session.unsure(stale) if stale else ()
    return baseline.compare(report.found, passed.difference(unsure), ran) if unsure else outcome


def load(file: str) -> Baseline:
    """The baseline in a file.

    Raises:
        click.ClickException: it cannot be read.
    """
    from fsdp2lint.check.baseline import BadBaseline, Baseline

    try:
        return Baseline.load(file)
    except BadBaseline as error:
        raise click.ClickException(str(error)) from error


def file_of(session: Session, named: str | None) -> str:
    """Where the baseline is: as named, as configured, or under its usual name."""
    if named:
        return named
    said: str | None = session.option("baseline")
    if said:
        return os.path.relpath(said)
    home = session.main.folder if session.main.file else "."
    return os.path.normpath(os.path.join(os.path.relpath(home), DEFAULT_NAME))
