"""``fsdp2lint baseline``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from fsdp2lint.cli.known import against, file_of, load
from fsdp2lint.cli.options import CONFIGURATION, DISCOVERY, SELECTION, Given
from fsdp2lint.cli.sessions import DEFAULTS, opened, refuse_wrong
from fsdp2lint.config.files import INLINE
from fsdp2lint.config.settings import BadSetting
from fsdp2lint.system.discover import NoSuchPath
from fsdp2lint.system.files import is_below

if TYPE_CHECKING:
    from fsdp2lint.check.baseline import Baseline
    from fsdp2lint.check.session import Session

ACTIONS = ("create", "update", "prune", "show")


@click.command("baseline", short_help="Manage a list of accepted findings.")
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("paths", nargs=-1, metavar="[FILES|DIRS]...")
@click.option("--baseline", metavar="FILE", help="The list [default: fsdp2lint-baseline.json].")
@SELECTION
@DISCOVERY
@CONFIGURATION
def command(action: str, paths: tuple[str, ...], **given: Any) -> None:
    """Keep a list of findings that `check` does not count.

    create writes the list; update adds new findings and drops fixed ones; prune only drops; show prints it.
    `check` finds it by its name, and fails when an entry matches nothing any more.
    """
    try:
        with opened(paths or (".",), DEFAULTS | given) as session:
            _do(action, session, given)
    except (BadSetting, NoSuchPath) as error:
        raise click.ClickException(str(error)) from error


def _do(action: str, session: Session, given: Given) -> None:
    from fsdp2lint.check.baseline import BadBaseline, Baseline

    file = file_of(session, given["baseline"])
    if action == "create" and os.path.exists(file):
        raise click.ClickException(f"{file} exists: `fsdp2lint baseline update` changes it")
    baseline = Baseline(file) if action == "create" else load(file)
    if action == "show":
        _show(baseline)
        return
    _refuse_outside(session, given, file)
    report = session.check()
    refuse_wrong(session)
    outcome = against(baseline, session, report)
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


def _refuse_outside(session: Session, given: Given, file: str) -> None:
    """A project's configuration has a file written in the project only."""
    home = session.main.folder if session.main.file else os.getcwd()
    if not given["baseline"] and not is_below(file, (home,)):
        place = session.main.places.get("baseline", INLINE)
        raise click.ClickException(
            f"{place}: `baseline`: {file} is outside the project; pass it with --baseline"
        )


def _show(baseline: Baseline) -> None:
    for (path, code, line), count in sorted(baseline.entries.items()):
        times = f" ({count} times)" if count > 1 else ""
        click.echo(f"{path}: {code}{times}: {line}")
