"""``fsdp2lint verify``: two training programs, and whether they do the same."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fsdp2lint.cli.options import COLOR, MAKING_UP, NPROC, OUTPUT, PATCH, made_up
from fsdp2lint.cli.output import coloured
from fsdp2lint.system.signals import cleaning_up

if TYPE_CHECKING:
    from fsdp2lint.plan import Plan
    from fsdp2lint.prove.compare import Verification
    from fsdp2lint.prove.places import Place
    from fsdp2lint.prove.report import Entry


@click.command(
    "verify",
    short_help="Run two training programs on CPU ranks and compare them.",
    context_settings={"allow_interspersed_args": True},
)
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.argument("arguments", nargs=-1, metavar="[-- ARGS]", type=click.UNPROCESSED)
@click.option("--entry", metavar="FILE", help="The script to run, when both are folders.")
@click.option("-m", "--module", metavar="MODULE", help="The module to run in both folders.")
@NPROC
@click.option(
    "--steps",
    type=click.IntRange(1),
    help="Stop both after this many optimizer steps; code after the training is not run.",
)
@click.option(
    "--resume",
    nargs=2,
    metavar="SAVE RESUME",
    help="Arguments with which a program saves a checkpoint, and with which it resumes. Both resume from "
    "BEFORE's checkpoint, and AFTER from its own as well.",
)
@click.option(
    "--rtol",
    type=click.FloatRange(0),
    help="The relative difference that counts as equal. By default none, and 1e-5 where the order of "
    "a sum may differ: with more than two ranks, on GPUs, or where gradients are clipped.",
)
@click.option(
    "--accept-missing",
    multiple=True,
    metavar="NAME",
    help="Accept that AFTER lacks this entry of a checkpoint or this file; a pattern such as `rng*` works too.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=300.0,
    show_default=True,
    help="Seconds for each run.",
)
@PATCH
@MAKING_UP
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="On `cuda` the scripts run unchanged, one GPU per rank.",
)
@click.option(
    "--world-size",
    type=click.IntRange(1),
    metavar="N",
    help="Also plan both for N ranks, without running them: units, bytes and traffic of each rank.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="Also write an HTML page with the curves, the diff and the ledger.",
)
@click.option(
    "--ledger",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The ledger that `fsdp2lint migrate -f json=FILE` wrote, for the report and the HTML page.",
)
@OUTPUT
@COLOR
@click.option("-q", "--quiet", is_flag=True, help="Do not show what the scripts print on rank 0.")
@cleaning_up()
def command(
    before: str,
    after: str,
    arguments: tuple[str, ...],
    entry: str | None,
    module: str | None,
    nproc: int | None,
    steps: int | None,
    resume: tuple[str, str] | None,
    rtol: float | None,
    accept_missing: tuple[str, ...],
    timeout: float,
    patches: tuple[str, ...],
    device: str,
    world_size: int | None,
    report: str | None,
    ledger: str | None,
    output_format: str,
    color: str,
    quiet: bool,
    **making_up: Any,
) -> int:
    """Run two training programs, say one with FSDP1 and one with FSDP2, under torchrun on this machine's
    CPU with the same seeds and arguments, and compare what they do: each loss on every rank, gradient
    norms, learning rates, batches, evaluation, printed numbers, final parameters, buffers and optimizer
    state, and the checkpoints and files that they write. What BEFORE has and AFTER lacks is a difference.
    Needs the extra `verify`.

    A program is a script, a folder with `main.py`, `train.py` or `__main__.py`, or a command line in quotes,
    `"accelerate launch --config_file fsdp.yaml train.py"` or `"torchrun … train.py"`. Each works in a folder
    of its own made of links to the files of the current folder (of the program's, where that is a folder),
    so that neither sees or overwrites what the other writes by a relative path.

    Exit code: 0 when they do the same, 1 when not, 2 when one could not be run to its end, neither
    trains, or the losses of both are not finite.
    """
    from fsdp2lint.prove.accounts import BadLedger, read
    from fsdp2lint.prove.compare import Options, verify
    from fsdp2lint.prove.ladder import text
    from fsdp2lint.prove.places import NoEntry, find, scripts
    from fsdp2lint.prove.planning import planned
    from fsdp2lint.prove.words import as_json, rendered
    from fsdp2lint.rehearse.commands import NoCommand
    from fsdp2lint.rehearse.rehearse import CannotRun, require_torch

    options = Options(
        arguments,
        2,
        steps,
        timeout,
        patches,
        "cuda" if device == "cuda" else "cpu",
        rtol,
        accept_missing,
        _resume(resume, arguments),
        made_up(making_up),
    )
    if report is not None and not os.path.isdir(os.path.dirname(os.path.abspath(report))):
        raise click.UsageError(f"--report: no such folder: {os.path.dirname(report)}")
    try:
        require_torch()
        old = find(before, entry=entry, module=module)
        new = find(after, entry=entry, module=module)
        announce = (lambda _: None) if quiet else _say
        plans: list[Plan] = []
        options = msgspec.structs.replace(options, nproc=nproc or _ranks(old, new))
        rungs = [text([*scripts(new), *filter(None, [new.settings])])]
        entries: list[Entry] = []
        if ledger is not None:
            entries, rung = read(ledger)
            rungs.append(rung)
        if world_size is not None:
            announce(f"planning both for {world_size} ranks")
            plans, rung = planned(old, new, options, world_size)
            rungs.append(rung)
        echo = (lambda _: None) if quiet else _pass_on
        verification = verify(old, new, options, echo=echo, announce=announce, rungs=rungs)
    except (BadLedger, CannotRun, NoCommand, NoEntry) as problem:
        raise click.ClickException(str(problem)) from problem
    verification.plans = plans
    shown = as_json(verification) if output_format == "json" else ""
    sys.stdout.write(shown or rendered(verification, colour=coloured(color)))
    if report is not None:
        _report(verification, old, new, entries, report)
    return verification.exit_code


def _ranks(before: Place, after: Place) -> int:
    """How many ranks the command lines start; 2 where they do not say it."""
    started = {place.processes for place in (before, after)} - {None}
    if len(started) > 1:
        numbers = f"{before.processes} processes and AFTER {after.processes}"
        raise click.UsageError(f"BEFORE starts {numbers}: say how many with --nproc")
    return started.pop() or 2 if started else 2


def _report(
    verification: Verification, before: Place, after: Place, ledger: Sequence[Entry], file: str
) -> None:
    from fsdp2lint.prove.places import diff
    from fsdp2lint.prove.report import report_of, write_report
    from fsdp2lint.system.journal import NotWritten

    changes = diff(before, after)
    page = report_of(verification, plans=verification.plans, diff=changes, ledger=ledger)
    try:
        write_report(page, file)
    except NotWritten as problem:
        raise click.ClickException(str(problem)) from problem


def _resume(
    given: tuple[str, str] | None, arguments: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The arguments to save and to resume with; those after ``--`` come first in both."""
    if not given:
        return None
    try:
        save, resume = (tuple(shlex.split(words)) for words in given)
    except ValueError as problem:
        raise click.UsageError(f"--resume: {problem}") from problem
    return (*arguments, *save), (*arguments, *resume)


def _say(what: str) -> None:
    click.echo(f"verify: {what}", err=True)


def _pass_on(output: bytes) -> None:
    sys.stderr.buffer.write(output)
    sys.stderr.flush()
