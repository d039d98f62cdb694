"""``fsdp2lint check --watch``: again whenever a file changes."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence

import click

from fsdp2lint.cli.output import on_terminal

SUFFIXES = (".py", ".pyw", ".ipynb", ".toml")


def watch(paths: Sequence[str], run: Callable[[], object]) -> None:
    """Do ``run`` now and after each change below ``paths``, until the user interrupts it.

    Raises:
        click.ClickException: the extra ``watch`` is not installed, or a path is gone.
    """
    try:
        import watchfiles
    except ImportError as error:
        said = "--watch needs watchfiles: pip install 'fsdp2lint[watch]'"
        raise click.ClickException(said) from error
    _again(run)
    roots = watched(paths)
    try:
        for _ in watchfiles.watch(*roots, watch_filter=lambda _, path: concerns(path, roots)):
            if on_terminal(sys.stdout):
                click.clear()
            _again(run)
    except FileNotFoundError as error:
        raise click.ClickException(f"cannot watch: {error}") from error


def watched(paths: Sequence[str]) -> list[str]:
    """The folders to watch: of a file its own, for what it imports lies beside it or below."""
    full = map(os.path.abspath, paths)
    return list(dict.fromkeys(os.path.dirname(p) if os.path.isfile(p) else p for p in full))


def _again(run: Callable[[], object]) -> None:
    """One run; what is wrong with the configuration or a path is said, and may be mended meanwhile."""
    try:
        run()
    except click.ClickException as error:
        error.show()
    gc.collect()  # trees know their sources and the other way round
    click.echo("Watching for changes (Ctrl-C to stop).", err=True)


def concerns(path: str, roots: Sequence[str]) -> bool:
    """Whether a change of a file matters; not so in hidden folders below the watched ones."""
    if not path.endswith(SUFFIXES):
        return False
    full = os.path.abspath(path)
    root = next((r for r in roots if full.startswith(r + os.sep)), os.path.dirname(full))
    folders = os.path.dirname(os.path.relpath(full, root)).split(os.sep)
    return not any(name.startswith(".") for name in folders)
