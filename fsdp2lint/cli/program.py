"""The program itself: the group of commands, hints for slips, and clean exits."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import signal
import sys
from typing import Any, NoReturn

import click

from fsdp2lint import __version__
from fsdp2lint.system.home import journals
from fsdp2lint.system.plain import guard_streams, one_line

COMMANDS = (
    "baseline",
    "check",
    "config",
    "init",
    "migrate",
    "migrate-checkpoint",
    "plan",
    "rehearse",
    "rule",
    "server",
    "trace",
    "verify",
)
EXIT_ERROR = 2
_DISK_FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EFBIG")}
EXIT_INTERRUPTED = 130
EXIT_READER_GONE = 141
"""What a shell says of a program that SIGPIPE ended."""


class _ReaderGone(Exception):
    """Whoever reads the output has enough."""


class Commands(click.Group):
    """Commands that are imported when they are called, and a hint when none is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"fsdp2lint.cli.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGone from error  # click would leave with 1: there are findings

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            raise click.UsageError(_hint(name, args), ctx)
        return super().resolve_command(ctx, args)


def _hint(name: str, args: list[str]) -> str:
    from difflib import get_close_matches

    if os.path.exists(name) or name.endswith(".py"):
        return f"no command is named `{name}`; to check it: fsdp2lint check {' '.join(args)}"
    close = get_close_matches(name, COMMANDS, n=1)
    if close:
        return f"no command is named `{name}`, did you mean `{close[0]}`?"
    return f"no command is named `{name}`; there are {', '.join(COMMANDS)}"


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", message="fsdp2lint %(version)s")
def program() -> None:
    """A linter for PyTorch FSDP2 training code."""
    if journals():
        from fsdp2lint.system.journal import recover

        for sentence in recover():
            click.echo(f"note: {sentence}", err=True)


def _drop_output() -> None:
    """What is still buffered must not raise again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_what_is_closed() -> None:
    """A stream that whoever began the program has closed is None, and its number would go to the next file."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  open until the end


def _somewhere() -> bool:
    """Whether the current folder is there."""
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _say_that_it_is_a_bug() -> None:
    """A traceback alone would leave with 1, which says that the script has findings."""
    import traceback

    traceback.print_exc()
    click.echo("fsdp2lint itself failed: this is a bug in it, please report it", err=True)


def main() -> NoReturn:
    """Run the program and leave with its exit code: 0 clean, 1 findings, 2 errors."""
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    guard_streams()
    gc.disable()  # one run a process: what it makes is needed to the end
    try:
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = program.main(prog_name="fsdp2lint", standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        error.show()
        code = EXIT_ERROR
    except click.ClickException as error:
        click.echo(one_line(f"Error: {error.format_message()}"), err=True)
        code = EXIT_ERROR
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = EXIT_INTERRUPTED
    except (_ReaderGone, BrokenPipeError):
        _drop_output()
        code = EXIT_READER_GONE
    except Exception as error:
        code = EXIT_ERROR
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            _drop_output()
            where = error.filename or "the output"
            click.echo(f"Error: {where} cannot be written: {error.strerror}", err=True)
        elif isinstance(error, FileNotFoundError) and not _somewhere():
            click.echo("Error: the current folder does not exist any more", err=True)
        else:
            _say_that_it_is_a_bug()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is left to be cleaned up
    gc.freeze()  # or the exit would spend its time on trees that nobody needs
    sys.exit(code if isinstance(code, int) else 0)
