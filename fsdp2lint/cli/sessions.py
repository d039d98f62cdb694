"""From the options of the command line to a session."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from fsdp2lint.check.context import Keeping, Means
from fsdp2lint.check.session import Session
from fsdp2lint.cli.options import Given, configuration, overrides
from fsdp2lint.cli.output import on_terminal
from fsdp2lint.cli.progress import Progress
from fsdp2lint.config.files import BadConfig
from fsdp2lint.system.discover import project_roots
from fsdp2lint.system.files import is_below

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
        BadConfig: a configuration file is wrong.
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
        raise click.UsageError(f"--{wanted[0]} and --{wanted[1]} exclude each other")
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
    """Where the project keeps its results.

    Raises:
        BadConfig: its configuration says a folder outside of it, where it has nothing to say.
    """
    home = session.main.folder if session.main.file else project_roots(["."])[-1]
    said: str | None = session.option("cache-dir")
    if said is None:
        return os.path.join(home, CACHE_FOLDER)
    place = session.main.places.get("cache-dir", "")
    if place != "--config" and not is_below(said, (home,)):
        raise BadConfig(
            f"{place}: `cache-dir`: {said} lies outside of the project; name such a folder with "
            "--cache-dir or FSDP2LINT_CACHE_DIR"
        )
    return said


def _progress() -> Progress | None:
    if not on_terminal(sys.stderr):
        return None
    from shutil import get_terminal_size

    return Progress(width=get_terminal_size().columns)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
