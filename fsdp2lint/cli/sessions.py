"""From the options of the command line to a session.

What is being analysed, on a terminal, when it takes its time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

import click

from fsdp2lint.check.context import Keeping, Means
from fsdp2lint.check.session import Session
from fsdp2lint.cli.options import Given, configuration, overrides
from fsdp2lint.cli.output import on_terminal
from fsdp2lint.config.files import INLINE, Fault
from fsdp2lint.system.discover import project_roots
from fsdp2lint.system.files import is_below
from fsdp2lint.system.plain import one_line

CACHE_FOLDER = ".fsdp2lint_cache"
DEFAULTS: Given = {
    "jobs": None,
    "no_cache": False,
    "cache_dir": None,
    "profile_rules": False,
    "staged": False,
    "changed": False,
    "since": None,
}
"""What a command without these options means by them."""


@contextmanager
def opened(paths: Sequence[str], given: Given) -> Iterator[Session]:
    """The session that the options ask for; what it learnt is kept when it ends.

    Raises:
        BadSetting: a value on the command line is wrong.
        click.ClickException: git refuses.
    """
    file, pairs = configuration(given)
    options = (overrides(given), file, given["isolated"], pairs)
    listed, instead = _by_git(paths, given, Session(paths, *options).looks_at)
    means = Means(
        progress=_progress(),
        jobs=given["jobs"] or _processors(),
        instead=instead or {},
        profiling=given["profile_rules"],
    )
    session = Session(paths, *options, means=means, listed=listed)
    keeping = None
    if not given["no_cache"] and not given["profile_rules"] and not instead and "-" not in paths:
        named = given["cache_dir"]
        keeping = Keeping(named or _cache_folder(session), named=bool(named))
        session = session.using(means._replace(keeping=keeping))
    yield session
    if keeping is not None:
        keeping.close()


def said_to_be_wrong(session: Session) -> bool:
    """Whether files of settings say what means nothing; then that is printed, a line for each."""
    for fault in session.faults:
        click.echo(one_line(f"{fault}"), err=True)
    return bool(session.faults)


def refuse_wrong(session: Session) -> None:
    """Write nothing where a setting is wrong: it may be the one that forbids it.

    Raises:
        click.ClickException: one is.
    """
    if session.faults:
        raise click.ClickException(
            f"{session.faults[0]}; nothing is written while a setting is wrong"
        )


def configured(paths: Sequence[str], given: Given) -> Session:
    """The session of a command that reads files in its own way.

    Raises:
        click.UsageError: two configuration files are named.
    """
    file, pairs = configuration(given)
    return Session(paths, overrides(given), file, given["isolated"], pairs)


def _by_git(
    paths: Sequence[str], given: Given, looks_at: Callable[[str], bool]
) -> tuple[list[str] | None, dict[str, bytes] | None]:
    wanted = [name for name in ("staged", "changed", "since") if given[name] not in (None, False)]
    if not wanted:
        return None, None
    if len(wanted) > 1:
        raise click.UsageError(f"--{wanted[0]} and --{wanted[1]} cannot be used together")
    if "-" in paths:
        raise click.UsageError(f"--{wanted[0]} is about files, not standard input")
    from fsdp2lint.system import git

    try:
        if given["staged"]:
            return git.staged(paths, looks_at)
        return git.changed(paths, looks_at, given["since"]), None
    except git.GitProblem as error:
        raise click.ClickException(str(error)) from error


def _cache_folder(session: Session) -> str:
    """Where the project keeps its results; outside of it its configuration has nothing to say."""
    home = session.main.folder if session.main.file else project_roots(["."])[-1]
    said: str | None = session.option("cache-dir")
    place = session.main.places.get("cache-dir", INLINE)
    if said is not None and place != INLINE and not is_below(said, (home,)):
        outside = f"{said} is outside the project; pass it with"
        session.note(Fault(place, f"`cache-dir`: {outside} --cache-dir or FSDP2LINT_CACHE_DIR"))
        said = None
    return said or os.path.join(home, CACHE_FOLDER)


def _progress() -> Progress | None:
    if not on_terminal(sys.stderr):
        return None
    from shutil import get_terminal_size

    return Progress(width=get_terminal_size().columns)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


PATIENCE = 0.7
"""Seconds before anything is shown."""

PACE = 0.1
"""Seconds between two changes of what is shown."""


class Progress:
    """One line on standard error that is rewritten, and gone in the end."""

    def __init__(self, stream: TextIO | None = None, width: int = 80) -> None:
        self.stream = stream or sys.stderr
        self.width = width
        self._next = time.perf_counter() + PATIENCE
        self._shown = False

    def __call__(self, what: str) -> None:
        """``what`` is being analysed now; when it is empty, nothing is."""
        if not what:
            self.close()
            return
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + PACE
        self._shown = True
        room = self.width - len("analysing ") - 1
        said = what if len(what) <= room else "…" + what[-(room - 1) :]
        self.stream.write(f"\r\x1b[Kanalysing {said}")
        self.stream.flush()

    def close(self) -> None:
        """Take the line away."""
        if self._shown:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
            self._shown = False
