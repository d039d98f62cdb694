"""Where reports go: formats to standard output and to files, several in one run."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple, TextIO

import click

from fsdp2lint.config.settings import unknown
from fsdp2lint.reporters import formats, render
from fsdp2lint.system.plain import Plain

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Report
    from fsdp2lint.reporters import View

DEFAULT_FORMAT = "full"


class Target(NamedTuple):
    """A format and the file that it goes to; standard output when there is none."""

    format: str
    file: str | None = None


def parse_targets(given: tuple[str, ...], output_file: str | None) -> tuple[Target, ...]:
    """The targets of ``-f F``, ``-f F=FILE`` and ``-o FILE`` (the file of the formats without one).

    Raises:
        click.UsageError: an unknown format, or two reports for standard output or for one file.
    """
    targets = []
    for text in given or (DEFAULT_FORMAT,):
        name, _, file = text.partition("=")
        if name not in formats():
            known = ", ".join(formats())
            raise click.UsageError(f"{unknown('output format', name, formats())} (known: {known})")
        targets.append(Target(name, file or output_file))
    places = [os.path.abspath(t.file) if t.file else "" for t in targets]
    for place in places:
        if places.count(place) > 1:
            where = place or "standard output: give all but one a file, as in `-f sarif=out.sarif`"
            raise click.UsageError(f"two reports go to {where}")
    return tuple(targets)


def write(
    targets: tuple[Target, ...], report: Report, view: View, stream: TextIO | None = None
) -> None:
    """Write the report to each target; ``stream`` in place of standard output.

    Raises:
        click.ClickException: a file cannot be written.
    """
    for target in targets:
        if target.format == "github" and os.environ.get("GITHUB_STEP_SUMMARY"):
            from fsdp2lint.reporters.github import step_summary

            _put(os.environ["GITHUB_STEP_SUMMARY"], step_summary(report, view), "a")
        if target.file is None:
            out = stream or sys.stdout
            if target.format == "github" and isinstance(out, Plain):
                out = out.with_commands()
            out.write(render(target.format, report, view))
            out.flush()
            continue
        text = render(target.format, report, view._replace(colour=False))
        save(target.file, text)


def save(file: str, text: str) -> None:
    """Write a report to a file, all of it or nothing; to a device as it is.

    Raises:
        click.ClickException: it cannot be written.
    """
    if os.path.exists(file) and not os.path.isfile(file):
        _put(file, text, "w")
        return
    from fsdp2lint.system.journal import (  # a check that writes no file needs neither
        NotWritten,
        replace_all,
    )

    try:
        replace_all({file: text.encode("utf-8", "backslashreplace")}, folders=True)
    except NotWritten as error:
        raise click.ClickException(str(error)) from error


def _put(path: str, text: str, mode: str) -> None:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, mode, encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
    except OSError as error:
        raise click.FileError(path, error.strerror) from error


def coloured(choice: str) -> bool:
    """Whether standard output gets colours: ``always``, ``never``, or as the terminal and
    ``NO_COLOR``/``FORCE_COLOR`` say.
    """
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or on_terminal(sys.stdout)


def on_terminal(stream: TextIO) -> bool:
    """Whether a stream goes to a terminal that knows more than plain text."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"
