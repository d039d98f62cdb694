"""``fsdp2lint check``."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

import click

from fsdp2lint.check.runner import Mended
from fsdp2lint.cli.options import (
    COLOR,
    CONFIGURATION,
    DISCOVERY,
    SELECTION,
    SEVERITIES,
    Given,
    flag,
    of_key,
    together,
)
from fsdp2lint.cli.output import Target, coloured, on_terminal, parse_targets, write
from fsdp2lint.cli.sessions import opened, said_to_be_wrong
from fsdp2lint.config.files import INLINE, Fault
from fsdp2lint.config.settings import BadSetting
from fsdp2lint.reporters import FOR_PEOPLE, View
from fsdp2lint.system.discover import NoSuchPath
from fsdp2lint.system.files import is_below
from fsdp2lint.system.plain import lines, no_command

if TYPE_CHECKING:
    from fsdp2lint.check.report import Report
    from fsdp2lint.check.session import Session

Targets = tuple[Target, ...]

STDIN = "-"
NOT_FIXED = "nothing is fixed under a configuration with a wrong setting"


class Check(click.Command):
    """The command; ``--add-ignore`` takes its value only behind ``=``, as the next word may be a path."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments, ``--add-ignore`` alone with an empty value."""
        said = [word + "=" if word == "--add-ignore" else word for word in args]
        return super().parse_args(ctx, said)


_FIXING = together(
    flag("fix"),
    flag("unsafe-fixes"),
    click.option("--fix-only", is_flag=True, help="Apply the safe fixes and report nothing."),
    click.option("-i", "--interactive", is_flag=True, help="Ask before each fix."),
    click.option("--diff", is_flag=True, help="Show what --fix would change; write nothing."),
    flag("show-fixes"),
    click.option(
        "--add-ignore",
        metavar="[=REASON]",
        help="Add a suppression comment, with a reason, for each remaining finding.",
    ),
)

_FILES = together(
    click.option("--staged", is_flag=True, help="Check the staged version of the files."),
    click.option(
        "--changed", is_flag=True, help="Check only files that differ from the last commit."
    ),
    click.option(
        "--since", metavar="REF", help="Check only files changed since the branch left REF."
    ),
    click.option(
        "--stdin-filename", metavar="NAME", help="File name to report for standard input."
    ),
    click.option("--watch", is_flag=True, help="Check again whenever a file changes."),
    click.option(
        "--show-files", is_flag=True, help="List the files that would be checked, and exit."
    ),
    click.option("--show-settings", is_flag=True, help="Print the resolved settings."),
)

_OUTPUT = together(
    of_key(
        "output-format",
        "-f",
        "--output-format",
        "output_formats",
        more=" Can be repeated.",
        multiple=True,
        metavar="F[=FILE]",
        envvar="FSDP2LINT_OUTPUT_FORMAT",
    ),
    click.option("-o", "--output-file", metavar="FILE", help="Write the report to a file."),
    click.option(
        "--statistics", is_flag=True, help="Print the number of findings per rule instead."
    ),
    click.option("--profile-rules", is_flag=True, help="Print the time spent in each rule."),
    of_key("min-severity", type=click.Choice(SEVERITIES)),
    of_key("baseline", metavar="FILE"),
    click.option("--error-on-warning", is_flag=True, help="Report warnings as errors."),
    click.option("-e", "--exit-zero", is_flag=True, help="Exit 0 even if there are findings."),
    click.option("--exit-non-zero-on-fix", is_flag=True, help="Exit 1 if a fix was applied."),
    COLOR,
    click.option("-q", "--quiet", is_flag=True, help="Print findings only, without a summary."),
    click.option(
        "-v", "--verbose", is_flag=True, help="Print files, rules and coverage on standard error."
    ),
)

_RUNNING = together(
    click.option(
        "-j", "--jobs", type=click.IntRange(1), metavar="N", help="Use at most N processes."
    ),
    click.option("-n", "--no-cache", is_flag=True, help="Neither read nor write the cache."),
    of_key("cache-dir", metavar="FOLDER", envvar="FSDP2LINT_CACHE_DIR"),
)


@click.command("check", cls=Check, short_help="Report what breaks under FSDP2.")
@click.argument("paths", nargs=-1, metavar="[FILES|DIRS|-]...")
@SELECTION
@DISCOVERY
@_FIXING
@_FILES
@_OUTPUT
@CONFIGURATION
@_RUNNING
def command(paths: tuple[str, ...], **given: Any) -> int:
    """Report what breaks under FSDP2 in FILES, in the Python files below DIRS, or on standard input.

    Exit code: 0 without findings, 1 with findings (notes, such as "this is FSDP1", do not count), 2 when
    the run itself failed.
    """
    if given["watch"]:
        from fsdp2lint.cli.check.watch import watch

        if STDIN in paths:
            raise click.UsageError("--watch is about files, not standard input")
        watch(paths or (".",), lambda: _once(paths, given))
        return 0
    return _once(paths, given)


def _once(paths: tuple[str, ...], given: Given) -> int:
    started = time.perf_counter()
    try:
        with opened(paths or (".",), given) as session:
            code, report = _run(session, given)
    except (BadSetting, NoSuchPath) as error:
        raise click.ClickException(str(error)) from error
    if report is not None and given["verbose"]:
        _say_what_was_done(report, time.perf_counter() - started)
        _say_what_was_followed(report)
    if report is not None and given["profile_rules"]:
        _say_how_long(report)
    return code


def _run(session: Session, given: Given) -> tuple[int, Report | None]:
    if given["show_settings"] or given["show_files"]:
        from fsdp2lint.cli.check.settings import show

        show(session, files=given["show_files"])
        return 2 * said_to_be_wrong(session), None
    if STDIN in session.paths:
        return _standard_input(session, given)
    return _on_disk(session, given)


def _on_disk(session: Session, given: Given) -> tuple[int, Report]:
    targets = _targets(session, given)
    if given["add_ignore"] is not None:
        if any(given[name] for name in ("fix", "fix_only", "diff", "interactive")):
            raise click.UsageError("--add-ignore does not work with options that fix")
        from fsdp2lint.cli.check.ignores import add

        return add(session, given["add_ignore"])
    if _fixes(session, given) or given["diff"]:
        if given["interactive"]:
            session = _asking(session, given)
        mended = session.mend(unsafe=_unsafe(session, given))
    else:
        mended = Mended(session.check())
    if given["diff"]:
        return _show_diff(mended, session), mended.report
    if mended.changed:
        _write_back(mended, session)
    return _finish(session, mended.report, targets, given), mended.report


def _asking(session: Session, given: Given) -> Session:
    from fsdp2lint.cli.check.interactive import Asking

    accept = Asking(coloured(given["color"]))
    return session.using(session.means._replace(accept=accept, progress=None))


def _standard_input(session: Session, given: Given) -> tuple[int, Report]:
    """Check standard input; with ``--fix`` the text goes to standard output, whatever happens."""
    if len(session.paths) > 1:
        raise click.UsageError("`-` reads standard input and takes no other files")
    if given["add_ignore"] is not None:
        raise click.UsageError("--add-ignore changes files; it does not work with `-`")
    if given["interactive"]:
        raise click.UsageError("--interactive does not work with `-`: both read standard input")
    raw = text = sys.stdin.buffer.read()
    echoing = bool(given["fix"] or given["fix_only"]) and not given["diff"]
    try:
        targets = _targets(session, given)
        fixing = _fixes(session, given)
        echoing = fixing and not given["diff"]
        mended = session.of_text(
            raw,
            given["stdin_filename"] or STDIN,
            fix=fixing or given["diff"],
            unsafe=_unsafe(session, given),
        )
        for _, new in mended.changed:
            text = new.encode(new.text)
    finally:
        if echoing:
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
    if given["diff"]:
        return _show_diff(mended, session), mended.report
    stream = sys.stderr if echoing else sys.stdout
    return _finish(session, mended.report, targets, given, stream), mended.report


def _targets(session: Session, given: Given) -> Targets:
    if given["output_formats"]:
        return parse_targets(given["output_formats"], given["output_file"])
    configured = session.option("output-format")
    place = session.main.places.get("output-format", INLINE)
    try:
        targets = parse_targets((configured or "full",), given["output_file"])
    except click.UsageError as error:
        session.note(Fault(place, f"`output-format`: {error.message}"))
        return parse_targets(("full",), given["output_file"])
    for target in targets:
        if target.file in (None, given["output_file"]) or place == INLINE:
            continue
        why = "" if is_below(str(target.file), (session.main.folder,)) else "outside of the project"
        if os.path.exists(str(target.file)) and not os.path.isfile(str(target.file)):
            why = why or "where there is no regular file"  # a pipe would be waited for
        if why:
            name = "name such a file with --output-format"
            session.note(Fault(place, f"`output-format`: {target.file} lies {why}; {name}"))
            return parse_targets(("full",), given["output_file"])
    return targets


def _finish(
    session: Session, report: Report, targets: Targets, given: Given, stream: TextIO | None = None
) -> int:
    """Write the report and tell the exit code."""
    from fsdp2lint.cli.known import compared

    for path in report.unchecked:
        click.echo(f"{path}: not checked: {_why_not_checked(path)}", err=True)
    if (
        report.alone
        and not given["quiet"]
        and not any(target.format in FOR_PEOPLE for target in targets)
    ):
        from fsdp2lint.reporters._summary import alone

        click.echo(alone(report), err=True)
    report = compared(session, report, given["baseline"])
    report = _graded(session, report, given)
    view = _view(session, given)
    if given["fix_only"]:
        report = report.but(found=[], stale=False)
        view = view._replace(quiet=view.quiet or not report.fixed)
    if beside := session.beside_files():
        from fsdp2lint.check.report import order

        wrong = report.went_wrong or bool(session.faults)
        report = report.but(found=sorted((*report.found, *beside), key=order), went_wrong=wrong)
        view = view._replace(quiet=given["quiet"])
        if view.fixing and session.faults:
            click.echo(NOT_FIXED, err=True)
    write(targets, report, view, stream)
    return _exit_code(report, given)


def _why_not_checked(path: str) -> str:
    from fsdp2lint.frameworks.text import why_not_checked
    from fsdp2lint.system.files import read

    try:
        raw = read(path)
    except OSError:
        raw = b""
    return why_not_checked(path, raw)


def _graded(session: Session, report: Report, given: Given) -> Report:
    from fsdp2lint.check.report import narrowed, strict

    if given["error_on_warning"]:
        report = strict(report)
    least = given["min_severity"] or session.option("min-severity")
    return narrowed(report, least) if least is not None else report


def _fixes(session: Session, given: Given) -> bool:
    wanted = given["fix"] if given["fix"] is not None else session.option("fix", False)
    fixing = bool(wanted or given["fix_only"] or given["interactive"])
    if fixing and given["staged"]:
        raise click.UsageError(
            "--staged checks what would be committed; it does not work with --fix, which changes the files"
        )
    return fixing


def _unsafe(session: Session, given: Given) -> bool:
    said = given["unsafe_fixes"]
    return bool(said if said is not None else session.option("unsafe-fixes", False))


def _view(session: Session, given: Given) -> View:
    show = given["show_fixes"]
    return View(
        unsafe=_unsafe(session, given),
        fixing=_fixes(session, given),
        show_fixes=bool(show if show is not None else session.option("show-fixes", False)),
        colour=coloured(given["color"]),
        links=on_terminal(sys.stdout),
        quiet=given["quiet"],
        statistics=given["statistics"],
    )


def _show_diff(mended: Mended, session: Session) -> int:
    sys.stdout.write(no_command(lines(mended.diff)))
    fixed = len(mended.report.fixed)
    said = f"Would fix {fixed} finding{'' if fixed == 1 else 's'}." if fixed else "Nothing to fix."
    click.echo(said, err=True)
    wrong = said_to_be_wrong(session)
    return 2 if wrong or mended.report.went_wrong else int(bool(mended.diff))


def _write_back(mended: Mended, session: Session) -> None:
    from fsdp2lint.check.fixing import NotWritten
    from fsdp2lint.check.fixing import write as write_files

    try:
        write_files(mended.changed, named=session.paths)
    except NotWritten as error:
        raise click.ClickException(str(error)) from error


def _exit_code(report: Report, given: Given) -> int:
    if report.went_wrong:
        return 2
    if given["exit_non_zero_on_fix"] and report.fixed:
        return 1
    return int((report.failing or report.stale) and not given["exit_zero"])


def _say_what_was_done(report: Report, seconds: float) -> None:
    rules = len(report.rules)
    click.echo(
        f"{report.files} files looked at, {report.analysed} analysed, {rules} rules, "
        f"{seconds:.2f} s",
        err=True,
    )


def _say_what_was_followed(report: Report) -> None:
    from fsdp2lint.check.coverage import details

    for line in details(report.programs):
        click.echo(line, err=True)


def _say_how_long(report: Report) -> None:
    names = {rule.code: rule.name for rule in report.rules}
    ordered = sorted(report.profile.items(), key=lambda pair: (-pair[1], pair[0]))
    for code, seconds in ordered:
        click.echo(f"{seconds * 1000:9.1f} ms  {code}  {names.get(code, '')}", err=True)
    click.echo(f"{sum(report.profile.values()) * 1000:9.1f} ms  all rules", err=True)
