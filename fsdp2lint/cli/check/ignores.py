"""``fsdp2lint check --add-ignore``: a suppression comment for each finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic, Report
    from fsdp2lint.check.session import Session
    from fsdp2lint.source.source import Source


def add(session: Session, reason: str) -> tuple[int, Report]:
    """Write the comments; the exit code and the report of what was found.

    Raises:
        click.ClickException: a file cannot be written; then none is.
    """
    from fsdp2lint.catalogue.toolrules import ALWAYS_ON
    from fsdp2lint.check.add_ignores import silenced
    from fsdp2lint.check.fixing import NotWritten, write
    from fsdp2lint.cli.sessions import refuse_wrong
    from fsdp2lint.system.plain import count

    report = session.check()
    refuse_wrong(session)
    by_file: dict[str, list[Diagnostic]] = {}
    for diagnostic in report.found:
        if diagnostic.rule not in ALWAYS_ON and diagnostic.severity != "info":
            by_file.setdefault(diagnostic.place.source.path, []).append(diagnostic)
    changed: list[tuple[Source, Source]] = []
    documents = [path for path in by_file if session.is_document(path)]
    for path in documents:
        left_here = count(len(by_file.pop(path)), "finding")
        click.echo(f"{path}: {left_here} left: comments are not added to documents", err=True)
    for found in by_file.values():
        old = found[0].place.source
        changed.append((old, old.with_text(silenced(old, found, reason))))
    try:
        write(changed, named=session.paths)
    except NotWritten as error:
        raise click.ClickException(str(error)) from error
    number = sum(map(len, by_file.values()))
    click.echo(f"Silenced {count(number, 'finding')} in {count(len(changed), 'file')}.")
    left = documents or any(d.rule in ALWAYS_ON for d in report.found)
    return 2 if report.went_wrong else int(bool(left)), report
