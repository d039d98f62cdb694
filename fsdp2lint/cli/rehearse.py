"""``fsdp2lint rehearse``: a training script on this machine's CPU ranks."""

from __future__ import annotations

import sys
from typing import Any

import click

from fsdp2lint.cli.options import COLOR, MAKING_UP, NPROC, OUTPUT, PATCH, made_up, target_of
from fsdp2lint.cli.output import coloured
from fsdp2lint.system.signals import cleaning_up


class _Launching(click.Command):
    """A command that may be followed by a launcher's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from fsdp2lint.rehearse.commands import marked

        return super().parse_args(ctx, marked(args))


@click.command(
    "rehearse",
    cls=_Launching,
    short_help="Run a script on CPU ranks and check it at run time.",
    context_settings={"ignore_unknown_options": True},
)
@click.option("-m", "--module", metavar="MODULE", help="Run a module instead of a script.")
@NPROC
@click.option(
    "--steps",
    type=click.IntRange(1),
    help="Stop after this many optimizer steps; code after the training is not run.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=300.0,
    show_default=True,
    help="Seconds for the whole run; a deadlock is usually reported sooner.",
)
@click.option(
    "--in-place",
    is_flag=True,
    help="Let the script work in the current folder and keep what it writes. By default it works in a "
    "temporary folder of links to the files of the current one.",
)
@PATCH
@MAKING_UP
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="On `cuda` the script runs unchanged, one GPU per rank.",
)
@OUTPUT
@COLOR
@click.option("-q", "--quiet", is_flag=True, help="Do not show what the script prints on rank 0.")
@click.argument(
    "words", nargs=-1, metavar="[SCRIPT | LAUNCHER …] [-- ARGS]", type=click.UNPROCESSED
)
@cleaning_up()
def command(
    module: str | None,
    nproc: int | None,
    steps: int | None,
    timeout: float,
    in_place: bool,
    patches: tuple[str, ...],
    device: str,
    output_format: str,
    color: str,
    quiet: bool,
    words: tuple[str, ...],
    **making_up: Any,
) -> int:
    """Run a training script under torchrun on this machine's CPU, also one written for CUDA and NCCL,
    and check at run time what `check` can only read. Needs the extra `verify`.

    What the script prints on rank 0 goes to standard error, the report to standard output. What it writes
    by a relative path is discarded, unless with `--in-place`.

    In place of a script, `accelerate launch --config_file fsdp.yaml train.py` or `torchrun … train.py` may be given as
    it is: the ranks get what the launcher would put into their environment.

    Exit code: 0 when nothing is wrong, 1 when the contract of FSDP2 was broken, 2 when the script
    failed for another reason or timed out.
    """
    from fsdp2lint.rehearse.commands import NoCommand, split, started
    from fsdp2lint.rehearse.outcome import Request
    from fsdp2lint.rehearse.rehearse import CannotRun, rehearse
    from fsdp2lint.rehearse.words import as_json, rendered

    is_module, environment = module is not None, dict[str, str]()
    if split(words) is not None:
        try:
            made = started(words)
        except NoCommand as problem:
            raise click.ClickException(str(problem)) from problem
        target, is_module, arguments = made.target, made.module, made.arguments
        nproc, environment = nproc or made.processes, made.environment
    else:
        target, arguments = target_of(module, words)
    request = Request(
        target,
        "",
        is_module,
        arguments,
        nproc or 2,
        steps,
        timeout,
        patches,
        "cuda" if device == "cuda" else "cpu",
        environment=environment,
        made_up=made_up(making_up),
    )
    try:
        rehearsal = rehearse(request, (lambda _: None) if quiet else _pass_on, in_place=in_place)
    except CannotRun as problem:
        raise click.ClickException(str(problem)) from problem
    report = as_json(rehearsal) if output_format == "json" else ""
    sys.stdout.write(report or rendered(rehearsal, colour=coloured(color)))
    return rehearsal.exit_code


def _pass_on(output: bytes) -> None:
    sys.stderr.buffer.write(output)
    sys.stderr.flush()
