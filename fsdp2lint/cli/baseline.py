"""``fsdp2lint baseline``, and what ``check`` does with one."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fsdp2lint.cli.options import CONFIGURATION, DISCOVERY, SELECTION, Given
from fsdp2lint.cli.sessions import DEFAULTS, opened
from fsdp2lint.discover import NoSuchPath
from fsdp2lint.settings import BadSetting

if TYPE_CHECKING:
    from fsdp2lint.baseline import Baseline, Compared
    from fsdp2lint.diagnostics import Report
    from fsdp2lint.session import Session

DEFAULT_NAME = "fsdp2lint-baseline.json"
ACTIONS = ("create", "update", "prune", "show")


@click.command("baseline", short_help="Keep a list of known findings.")
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("paths", nargs=-1, metavar="[FILES|DIRS]...")
@click.option("--baseline", metavar="FILE", help="The list [default: fsdp2lint-baseline.json].")
@SELECTION
@DISCOVERY
@CONFIGURATION
def command(action: str, paths: tuple[str, ...], **given: Any) -> None:
    """Keep a list of findings that `check` does not count.

    create writes it; update adds what is new and drops what is gone; prune only drops; show prints it.
    `check` finds it by its name, and fails when an entry matches nothing any more.
    """
    try:
        with opened(paths or (".",), DEFAULTS | given) as session:
            _do(action, session, given)
    except (BadSetting, NoSuchPath) as error:
        raise click.ClickException(str(error)) from error


def compared(session: Session, report: Report, named: str | None) -> tuple[Report, bool]:
    """The report without what the baseline knows, and whether an entry of the baseline is stale.

    Raises:
        click.ClickException: the baseline that was asked for cannot be read.
    """
    file = _file(session, named)
    if not os.path.exists(file) and not (named or session.option("baseline")):
        return report, False
    baseline = _load(file)
    outcome = _against(baseline, session, report)
    if outcome.stale:
        number = sum(count for _, count in outcome.stale)
        what = "entry matches" if number == 1 else "entries match"
        (path, code, _), _ = outcome.stale[0]
        click.echo(
            f"{file}: {number} {what} nothing any more (first: {code} in {path}); "
            "drop with `fsdp2lint baseline prune`",
            err=True,
        )
    return replace(report, found=outcome.new, known=outcome.known), bool(outcome.stale)


def _do(action: str, session: Session, given: Given) -> None:
    from fsdp2lint.baseline import BadBaseline, Baseline

    file = _file(session, given["baseline"])
    if action == "create" and os.path.exists(file):
        raise click.ClickException(f"{file} exists: `fsdp2lint baseline update` changes it")
    baseline = Baseline(file) if action == "create" else _load(file)
    if action == "show":
        _show(baseline)
        return
    outcome = _against(baseline, session, session.check())
    after = baseline.without(outcome.stale)
    if action != "prune":
        after = after.with_new(outcome.new)
    try:
        after.write()
    except BadBaseline as error:
        raise click.ClickException(str(error)) from error
    dropped = (baseline.entries - after.entries).total()
    added = (after.entries - baseline.entries).total()
    click.echo(f"{file}: {added} added, {dropped} dropped, {after.entries.total()} in all.")


def _against(baseline: Baseline, session: Session, report: Report) -> Compared:
    files = [] if "-" in session.paths else session.files
    passed = {os.path.abspath(path) for path in files}
    return baseline.compare(report.found, passed, {rule.code for rule in report.rules})


def _show(baseline: Baseline) -> None:
    for (path, code, line), count in sorted(baseline.entries.items()):
        times = f" ({count} times)" if count > 1 else ""
        click.echo(f"{path}: {code}{times}: {line}")


def _load(file: str) -> Baseline:
    from fsdp2lint.baseline import BadBaseline, Baseline

    try:
        return Baseline.load(file)
    except BadBaseline as error:
        raise click.ClickException(str(error)) from error


def _file(session: Session, named: str | None) -> str:
    if named:
        return named
    said: str | None = session.option("baseline")
    if said:
        return os.path.relpath(said)
    home = session.main.folder if session.main.file else "."
    return os.path.normpath(os.path.join(os.path.relpath(home), DEFAULT_NAME))
