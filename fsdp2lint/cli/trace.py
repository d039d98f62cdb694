"""``fsdp2lint trace``: what the analysis saw of a script, to be read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from fsdp2lint.cli.options import CONFIGURATION, Given
from fsdp2lint.cli.sessions import configured
from fsdp2lint.discover import NoSuchPath
from fsdp2lint.settings import BadSetting

if TYPE_CHECKING:
    from fsdp2lint.model.trace import Trace
    from fsdp2lint.source import Site, Source

PLACE = 24


@click.command("trace", short_help="Show what the analysis sees in a script.")
@click.argument("file", metavar="FILE")
@click.argument("function", required=False, metavar="[FUNCTION]")
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Include every call, and the places where a value can no longer be followed.",
)
@click.option(
    "--coverage",
    is_flag=True,
    help="Print how far each training program in FILE, which may be a folder, was followed.",
)
@CONFIGURATION
def command(file: str, function: str | None, every: bool, coverage: bool, **given: Any) -> None:
    """Print what happens in the script FILE, in order: what is sharded, which parameters an optimizer
    takes, who computes, what is saved; under which conditions, and through which calls.

    With FUNCTION only what happens while that function runs. What the configuration tells of functions
    (`knowledge`) holds here too.
    """
    if coverage:
        _print_coverage(file, given)
        return
    from fsdp2lint.discover import project_roots
    from fsdp2lint.interpret.entries import traces
    from fsdp2lint.project import Project
    from fsdp2lint.source import Source, Unreadable

    try:
        source = Source.read(file)
        source.tree  # noqa: B018  parsed here, so that what cannot be parsed is said here
    except Unreadable as problem:
        where = f"{file}:{problem.line}:{problem.column}: " if problem.line > 1 else f"{file}: "
        raise click.ClickException(where + problem.message) from problem
    told = 0
    session = configured([file], given)
    try:
        told_of_functions = session.settings(session.main).told
    except BadSetting as error:
        raise click.ClickException(str(error)) from error
    project = Project.of([source], project_roots([file]), told_of_functions)
    for trace in traces(project):
        lines = list(_story(trace, source, function, every))
        if lines:
            told += 1
            sys.stdout.write("\n".join([_title(trace), *lines, "", ""]))
    if not told and function:
        raise click.ClickException(f"nothing was seen to happen in a function named `{function}`")
    if not told:
        sys.stdout.write(
            "Nothing that concerns FSDP was seen to happen (--all shows every call).\n"
        )


def _print_coverage(path: str, given: Given) -> None:
    from fsdp2lint.coverage import table

    try:
        report = configured([path], given).check()
    except (BadSetting, NoSuchPath) as error:
        raise click.ClickException(str(error)) from error
    sys.stdout.write("\n".join(table(report.programs)) + "\n")


def _title(trace: Trace) -> str:
    entry = "run as a program" if trace.entry == "__main__" else f"beginning with {trace.entry}"
    short = " (cut short: the script is too large to follow to its end)" if trace.truncated else ""
    return f"{os.path.relpath(trace.source.path)}, {entry}{short}"


def _story(trace: Trace, source: Source, function: str | None, every: bool) -> Iterator[str]:
    from fsdp2lint.model import events

    details = (
        events.Augmented,
        events.Called,
        events.Escaped,
        events.Iterated,
        events.Operated,
        events.Read,
        events.Returned,
        events.Written,
    )

    open_calls: tuple[Site, ...] = ()
    said: set[tuple[object, str, str]] = set()
    for event in trace:
        if not every and isinstance(event, details):
            continue
        if function and all(f.name != function for f in event.moment.inside):
            continue
        key = (event.at.node, event.words(), event.guards.words())
        if key in said:
            continue  # the second round of a loop
        said.add(key)
        yield from _calls(event.calls, open_calls)
        open_calls = event.calls
        yield _line(event.at, len(event.calls), event.words(), event.guards.words())


def _calls(now: tuple[Site, ...], before: tuple[Site, ...]) -> Iterable[str]:
    """The calls that are entered between two events."""
    shared = 0
    for one, other in zip(now, before, strict=False):
        if one.node is not other.node:
            break
        shared += 1
    for depth, call in enumerate(now[shared:], shared):
        yield _line(call, depth, _heading(call) + ":", "")


def _line(at: Site, depth: int, what: str, guards: str) -> str:
    place = f"{os.path.basename(at.source.path)}:{at.line}"
    text = f"  {place:<{PLACE}}{'  ' * depth}{what}"
    return f"{text}  [{guards}]" if guards else text


def _heading(call: Site) -> str:
    """The code of a call; the name of what runs although nobody in sight calls it."""
    import libcst as cst

    if isinstance(call.node, cst.FunctionDef):
        return f"def {call.node.name.value}"
    if isinstance(call.node, cst.ClassDef):
        return f"class {call.node.name.value}"
    return call.code if len(call.code) <= 60 else call.code[:57] + "..."
