"""``fsdp2lint migrate-checkpoint``: files and folders of checkpoints, each made of the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fsdp2lint.bridge.convert import Kind

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@click.command("migrate-checkpoint", short_help="Convert a checkpoint: file to folder or back.")
@click.option(
    "--to",
    "kind",
    type=click.Choice(["file", "folder", "huggingface"]),
    help="What NEW is to be, where its name and OLD do not say it.",
)
@click.option("--force", is_flag=True, help="Replace NEW if it exists.")
@click.option(
    "--trust",
    is_flag=True,
    help="Load pickled objects too, which can run any code: only for checkpoints of your own.",
)
@click.argument("old", type=click.Path())
@click.argument("new", type=click.Path())
def command(old: str, new: str, kind: Kind | None, force: bool, trust: bool) -> int:
    """Convert the checkpoint OLD to NEW, in one process with one tensor in memory at a time.

    A single file (`torch.save` of a full state dict of model and optimizer) becomes a folder of
    `torch.distributed.checkpoint`. A folder, also one that FSDP1 wrote, becomes a single file. A Hugging Face
    folder with an index of its files becomes a folder of `torch.distributed.checkpoint`; `--to huggingface`
    writes the weights as such a folder. Needs the extra `verify`.

    If NEW is named like a file (.pt, .pth, …), a file stays a file, in which no tensors share memory. The keys
    stay as they are. NEW.safetensors holds the weights of the model and nothing else; OLD may be such a file, too.

    Both may be URLs that fsspec knows (`s3://bucket/model.pt`): the checkpoint is brought into the folder for temporary files
    (`TMPDIR`), and NEW is put there when it is complete.

    Exit code: 0 when NEW was written, 2 when it could not be; then nothing is changed.
    """
    from fsdp2lint.bridge.convert import convert
    from fsdp2lint.bridge.stored import CannotConvert
    from fsdp2lint.bridge.stores import local

    try:
        with local(old, new, force) as (source, target), _bar() as progress:
            made = convert(source, target, force=force, trust=trust, kind=kind, progress=progress)
    except CannotConvert as problem:
        raise click.ClickException(str(problem)) from problem
    others = f", {made.others} other values" if made.others else ""
    click.echo(
        f"{made.source} {old} -> {made.target} {new}: {made.tensors} tensors, {_size(made.size)}{others}"
    )
    if made.separated:
        click.echo(f"{made.separated} tensors shared memory with others; each has its own now")
    if made.left_out:
        entries = ", ".join(f"`{key}`" for key in made.left_out)
        click.echo(f"note: a safetensors file holds weights only: left out {entries}")
    if made.numbered:
        click.echo(
            "note: the optimizer state is keyed by numbers and FSDP2 needs parameter names: load it into the"
            " unsharded model's optimizer, or save it again with FSDP.optim_state_dict"
        )
    return 0


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """A bar of what is written, on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, size: bar.update(task, completed=done, total=size)


def _size(size: int) -> str:
    number, unit = float(size), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.0f} {_UNITS[unit]}" if unit == 0 else f"{number:.1f} {_UNITS[unit]}"
