"""``fsdp2lint plan``: what a training script shards on any number of ranks, planned in one process."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from fsdp2lint.cli.options import COLOR, MAKING_UP, OUTPUT, PATCH, made_up, target_of
from fsdp2lint.cli.output import coloured
from fsdp2lint.system.signals import cleaning_up


@click.command(
    "plan",
    short_help="Show what a script shards on any number of ranks.",
    context_settings={"ignore_unknown_options": True},
)
@click.option("-m", "--module", metavar="MODULE", help="Plan a module instead of a script.")
@click.option("--world-size", type=click.IntRange(1), required=True, help="Number of ranks.")
@click.option(
    "--per-node", type=click.IntRange(1), default=8, show_default=True, help="Ranks per machine."
)
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=300.0,
    show_default=True,
    help="Seconds for the run.",
)
@PATCH
@MAKING_UP
@OUTPUT
@COLOR
@click.argument("words", nargs=-1, metavar="[SCRIPT] [-- ARGS]", type=click.UNPROCESSED)
@cleaning_up()
def command(
    module: str | None,
    world_size: int,
    per_node: int,
    timeout: float,
    patches: tuple[str, ...],
    output_format: str,
    color: str,
    words: tuple[str, ...],
    **making_up: Any,
) -> int:
    """Run a training script as rank 0 of many, without a GPU and without values, up to its first training step,
    and print what each rank would hold and communicate: parameters, gradients, optimizer state, activations,
    collectives, and what other groups of `fully_shard` would cost.

    Padding and groups that are too small for so many ranks are named. Needs the extra `verify`.

    Exit code: 0 when there is a plan, 2 when the script failed before it had sharded a model.
    """
    from fsdp2lint.plan import CannotPlan, plan
    from fsdp2lint.plan.words import record, rendered
    from fsdp2lint.rehearse.outcome import Request
    from fsdp2lint.rehearse.rehearse import CannotRun, require_torch
    from fsdp2lint.rehearse.words import ways
    from fsdp2lint.rehearse.workfolder import make
    from fsdp2lint.system.paint import painted, plain

    target, arguments = target_of(module, words)
    if module is None and not os.path.isfile(target):
        raise click.ClickException(f"no such script: {target}")
    with tempfile.TemporaryDirectory(prefix="fsdp2lint-") as scratch:
        folder = make(Path.cwd(), Path(scratch).resolve() / "work")
        request = Request(
            target if module else os.path.abspath(target),
            "",
            module is not None,
            arguments,
            timeout=timeout,
            patches=patches,
            folder=str(folder),
            root=os.getcwd(),
            made_up=made_up(making_up),
        )
        try:
            require_torch()
            made = plan(request, world_size, per_node)
        except (CannotRun, CannotPlan) as problem:
            said = str(problem)
            help_ = "; ".join(ways(said.partition(": ")[2], request.made_up))
            raise click.ClickException(f"{said} ({help_})" if help_ else said) from problem
    if output_format == "json":
        raw = msgspec.json.encode(record(made))
        sys.stdout.write(msgspec.json.format(raw, indent=2).decode() + "\n")
    else:
        lines = list(rendered([made]))
        sys.stdout.write(painted(lines) if coloured(color) else plain(lines))
    return 0
