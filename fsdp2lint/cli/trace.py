"""``fsdp2lint trace``: what the analysis saw of a script, to be read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from fsdp2lint.cli.options import CONFIGURATION, OUTPUT, Given
from fsdp2lint.cli.sessions import configured, said_to_be_wrong
from fsdp2lint.config.settings import BadSetting
from fsdp2lint.system.discover import NoSuchPath

if TYPE_CHECKING:
    from fsdp2lint.model.events import Event
    from fsdp2lint.model.trace import Trace
    from fsdp2lint.source.source import Site

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
@OUTPUT
@CONFIGURATION
def command(
    file: str,
    function: str | None,
    every: bool,
    coverage: bool,
    output_format: str,
    **given: Any,
) -> int:
    """Print what happens in the script FILE, in order: what is sharded, which parameters an optimizer
    takes, which modules run, what is saved; under which conditions, and through which calls.

    With FUNCTION, only what happens while that function runs. What the configuration says about functions
    (`knowledge`) applies here too.
    """
    if coverage:
        return _print_coverage(file, given, output_format)
    from fsdp2lint.interpret.entries import traces
    from fsdp2lint.project.project import Project
    from fsdp2lint.source.reading import read
    from fsdp2lint.source.source import Unreadable
    from fsdp2lint.system.discover import project_roots

    try:
        source = read(file)
        source.tree  # noqa: B018  parsed here, so that what cannot be parsed is said here
    except Unreadable as problem:
        where = f"{file}:{problem.line}:{problem.column}: " if problem.line > 1 else f"{file}: "
        raise click.ClickException(where + problem.message) from problem
    session = configured([file], given)
    try:
        hints = session.settings(session.main).hints
    except BadSetting as error:
        raise click.ClickException(str(error)) from error
    project = Project.of([source], project_roots([file]), hints)
    seen = [(trace, list(_events(trace, function, every))) for trace in traces(project)]
    shown = [(trace, events) for trace, events in seen if events]
    if not shown and function:
        raise click.ClickException(f"no events in a function named `{function}`")
    wrong = said_to_be_wrong(session)
    if output_format == "json":
        sys.stdout.write(_json(shown))
        return 2 * wrong
    for trace, events in shown:
        sys.stdout.write("\n".join([_title(trace), *_story(events), "", ""]))
    if not shown:
        sys.stdout.write("No FSDP events (--all shows every call).\n")
    return 2 * wrong


def _print_coverage(path: str, given: Given, output_format: str) -> int:
    from fsdp2lint.check.coverage import table
    from fsdp2lint.reporters import View, render

    try:
        session = configured([path], given)
        report = session.check()
    except (BadSetting, NoSuchPath) as error:
        raise click.ClickException(str(error)) from error
    if output_format == "json":
        sys.stdout.write(render("coverage", report, View()))
    else:
        sys.stdout.write("\n".join(table(report.programs)) + "\n")
    return 2 * said_to_be_wrong(session)


def _json(seen: Sequence[tuple[Trace, Sequence[Event]]]) -> str:
    """Each run with its events: what happens, where, under which conditions, through which calls."""
    import msgspec

    from fsdp2lint.system.plain import encoded, in_json

    said = [
        {
            "filename": os.path.relpath(trace.source.path),
            "entry": trace.entry,
            "truncated": trace.truncated,
            "events": [
                {
                    "kind": type(event).__name__,
                    "text": event.words(),
                    "condition": event.guards.words() or None,
                    **_spot(event.at),
                    "calls": [{"text": _heading(call), **_spot(call)} for call in event.calls],
                }
                for event in events
            ],
        }
        for trace, events in seen
    ]
    return in_json(msgspec.json.format(encoded(said), indent=2).decode() + "\n")


def _spot(site: Site) -> dict[str, Any]:
    place = {"row": site.range.line, "column": site.range.column}
    return {"filename": os.path.relpath(site.source.path), "location": place}


def _title(trace: Trace) -> str:
    entry = "run as a program" if trace.entry == "__main__" else f"beginning with {trace.entry}"
    short = " (cut short: the script is too large to follow to its end)" if trace.truncated else ""
    return f"{os.path.relpath(trace.source.path)}, {entry}{short}"


def _events(trace: Trace, function: str | None, every: bool) -> Iterator[Event]:
    """What is shown of a trace."""
    from fsdp2lint.model import events

    details = (
        events.Augmented,
        events.Called,
        events.Escaped,
        events.Iterated,
        events.Operated,
        events.Placed,
        events.Read,
        events.Returned,
        events.Written,
    )
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
        yield event


def _story(events: Sequence[Event]) -> Iterator[str]:
    open_calls: tuple[Site, ...] = ()
    for event in events:
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
    """The code of a call; the name of what runs although no call of it was found."""
    import libcst as cst

    if isinstance(call.node, cst.FunctionDef):
        return f"def {call.node.name.value}"
    if isinstance(call.node, cst.ClassDef):
        return f"class {call.node.name.value}"
    return call.code if len(call.code) <= 60 else call.code[:57] + "..."
