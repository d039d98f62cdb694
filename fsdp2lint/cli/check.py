"""``fsdp2lint check``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fsdp2lint.cli.output import Target, coloured, parse_targets, write
from fsdp2lint.discover import EXCLUDED, Exclusion, NoSuchPath, discover
from fsdp2lint.reporters import View
from fsdp2lint.runner import Batch, Mended, check, mend
from fsdp2lint.settings import OLDEST_TORCH, BadSetting, Settings

if TYPE_CHECKING:
    from fsdp2lint.diagnostics import Report

F = TypeVar("F", bound=Callable[..., Any])
Given = dict[str, Any]
Targets = tuple[Target, ...]

STDIN = "-"


def _split(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Comma lists and repeated flags add up."""
    return tuple(part.strip() for text in given for part in text.split(",") if part.strip())


def _list(*names: str, about: str) -> Callable[[F], F]:
    """An option that takes a list."""
    return click.option(*names, multiple=True, metavar="…", callback=_split, help=about)


@click.command("check", short_help="Report what breaks under FSDP2.")
@click.argument("paths", nargs=-1, metavar="[FILES|DIRS|-]...")
@_list("--select", about="Rules instead of the default: codes, prefixes, names, groups, ALL.")
@_list("--extend-select", about="Rules to run besides the default.")
@_list("--ignore", "--extend-ignore", about="Rules not to run.")
@click.option(
    "--target-torch",
    metavar="VERSION",
    default=OLDEST_TORCH,
    show_default=True,
    help="The oldest torch release that the code must run on.",
)
@_list("--exclude", about="Names and patterns to leave out instead of the default.")
@_list("--extend-exclude", about="Names and patterns to leave out besides the default.")
@click.option("--force-exclude", is_flag=True, help="Leave out also files that are named.")
@click.option(
    "--respect-gitignore/--no-respect-gitignore", default=True, help="Leave out what git ignores."
)
@click.option("--fix", is_flag=True, help="Apply the safe fixes.")
@click.option("--unsafe-fixes", is_flag=True, help="Count, and with --fix apply, unsafe ones too.")
@click.option("--diff", is_flag=True, help="Show what --fix would change, and change nothing.")
@click.option("--show-fixes", is_flag=True, help="List what was fixed.")
@click.option("--stdin-filename", metavar="NAME", help="Where the text of standard input stands.")
@click.option(
    "-f",
    "--output-format",
    "output_formats",
    multiple=True,
    metavar="F[=FILE]",
    envvar="FSDP2LINT_OUTPUT_FORMAT",
    help="full (default), concise, grouped, json, json-lines, sarif or github; can be repeated.",
)
@click.option("-o", "--output-file", metavar="FILE", help="Write the report to a file.")
@click.option("--statistics", is_flag=True, help="Count the findings of each rule instead.")
@click.option("-e", "--exit-zero", is_flag=True, help="Leave with 0 although there are findings.")
@click.option("--color", "--colour", type=click.Choice(["auto", "always", "never"]), default="auto")
@click.option("--isolated", is_flag=True, help="No effect yet: no configuration file is read.")
@click.option("-n", "--no-cache", is_flag=True, help="No effect yet: nothing is cached.")
@click.option("-q", "--quiet", is_flag=True, help="Only the findings, no summary.")
@click.option("-v", "--verbose", is_flag=True, help="Say on standard error what was looked at.")
def command(paths: tuple[str, ...], **given: Any) -> int:
    """Report what breaks under FSDP2 in FILES, in the Python files below DIRS, or on standard input.

    Exit code: 0 when nothing is wrong, 1 when something is (a note, such as "this is FSDP1", does not
    count), 2 when the run itself went wrong.
    """
    started = time.perf_counter()
    targets = parse_targets(given["output_formats"], given["output_file"])
    settings = Settings(
        given["select"], given["extend_select"], given["ignore"], given["target_torch"]
    )
    if STDIN in paths:
        code, report = _standard_input(paths, settings, targets, given)
    else:
        code, report = _on_disk(paths or (".",), settings, targets, given)
    if given["verbose"]:
        _say_what_was_done(report, time.perf_counter() - started)
    return code


def _on_disk(
    paths: tuple[str, ...], settings: Settings, targets: Targets, given: Given
) -> tuple[int, Report]:
    exclusion = Exclusion(
        (*(given["exclude"] or EXCLUDED), *given["extend_exclude"]),
        gitignore=given["respect_gitignore"],
        force=given["force_exclude"],
    )
    try:
        batch = Batch.of_files(discover(paths, exclusion))
        mended = _run(batch, settings, given)
    except (BadSetting, NoSuchPath) as error:
        raise click.ClickException(str(error)) from error
    if given["diff"]:
        return _show_diff(mended), mended.report
    if mended.changed:
        _write_back(mended)
    write(targets, mended.report, _view(given))
    return _exit_code(mended.report, given), mended.report


def _standard_input(
    paths: tuple[str, ...], settings: Settings, targets: Targets, given: Given
) -> tuple[int, Report]:
    """Check standard input; with ``--fix`` the text goes to standard output, whatever happens."""
    if len(paths) > 1:
        raise click.UsageError("`-` reads standard input and stands alone")
    raw = sys.stdin.buffer.read()
    text = raw
    try:
        mended = _run(Batch.of_text(raw, given["stdin_filename"] or STDIN), settings, given)
        for _, new in mended.changed:
            text = new.encode(new.text)
    except BadSetting as error:
        raise click.ClickException(str(error)) from error
    finally:
        if given["fix"] and not given["diff"]:
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
    if given["diff"]:
        return _show_diff(mended), mended.report
    write(targets, mended.report, _view(given), sys.stderr if given["fix"] else sys.stdout)
    return _exit_code(mended.report, given), mended.report


def _run(batch: Batch, settings: Settings, given: Given) -> Mended:
    if given["fix"] or given["diff"]:
        return mend(batch, settings, unsafe=given["unsafe_fixes"])
    return Mended(check(batch, settings))


def _view(given: Given) -> View:
    return View(
        unsafe=given["unsafe_fixes"],
        fixing=given["fix"],
        show_fixes=given["show_fixes"],
        colour=coloured(given["color"]),
        quiet=given["quiet"],
        statistics=given["statistics"],
    )


def _show_diff(mended: Mended) -> int:
    sys.stdout.write(mended.diff)
    fixed = len(mended.report.fixed)
    said = f"Would fix {fixed} finding{'' if fixed == 1 else 's'}." if fixed else "Nothing to fix."
    click.echo(said, err=True)
    return 2 if mended.report.crashed else int(bool(mended.diff))


def _write_back(mended: Mended) -> None:
    from fsdp2lint.fixing import NotWritten
    from fsdp2lint.fixing import write as write_files

    try:
        write_files(mended.changed)
    except NotWritten as error:
        raise click.ClickException(str(error)) from error


def _exit_code(report: Report, given: Given) -> int:
    if report.crashed:
        return 2
    return int(report.failing and not given["exit_zero"])


def _say_what_was_done(report: Report, seconds: float) -> None:
    rules = len(report.rules)
    click.echo(
        f"{report.files} files looked at, {report.analysed} analysed, {rules} rules, "
        f"{seconds:.2f} s",
        err=True,
    )
