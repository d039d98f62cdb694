"""The options of ``check``, of which other commands have some too, and what they come to."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fsdp2lint.config.meant import MEANT

if TYPE_CHECKING:
    from fsdp2lint.rehearse.outcome import MadeUp

F = TypeVar("F", bound=Callable[..., Any])
Given = dict[str, Any]

SEVERITIES = ("error", "warning", "info")
LANGUAGES = ("python", "markdown")


def _split(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Comma lists and repeated flags add up."""
    return tuple(part.strip() for text in given for part in text.split(",") if part.strip())


def of_key(key: str, *names: str, more: str = "", **how: Any) -> Callable[[F], F]:
    """The option for a key of the configuration, which has its text; ``names`` where it is not ``--key`` alone."""
    return click.option(*(names or (f"--{key}",)), help=MEANT[key] + more, **how)


def several(name: str, about: str) -> Callable[[F], F]:
    """An option that takes a list, and is no key of the configuration."""
    return click.option(name, multiple=True, metavar="…", callback=_split, help=about)


def listing(key: str, *others: str, form: str = "…") -> Callable[[F], F]:
    """The option for a key that holds a list."""
    return of_key(key, f"--{key}", *others, multiple=True, metavar=form, callback=_split)


def flag(key: str) -> Callable[[F], F]:
    """A flag for a key: None when it was not used."""
    return of_key(key, is_flag=True, default=None)


def switch(key: str) -> Callable[[F], F]:
    """A flag and its opposite for a key: None when neither was used."""
    return of_key(key, f"--{key}/--no-{key}", default=None)


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


OUTPUT = click.option(
    "-f",
    "--output-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
)

COLOR = click.option(
    "--color",
    "--colour",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colour the output.",
)

NPROC = click.option(
    "--nproc",
    type=click.IntRange(1, 64),
    help="Number of ranks [default: what the command line starts, else 2].",
)


def _patches(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for patch in given:
        if not all(patch.partition(":")):
            raise click.UsageError(f"--patch takes MODULE:FUNCTION, not `{patch}`")
    return given


PATCH = click.option(
    "--patch",
    "patches",
    multiple=True,
    metavar="MODULE:FUNCTION",
    callback=_patches,
    help="Call a function on every rank before the script, for what this machine lacks.",
)

MAKING_UP = together(
    click.option(
        "--fake",
        is_flag=True,
        help="Make up what this machine lacks: data sets and tokenizers give noise, `from_pretrained` gives a small "
        "model with random weights, trackers and other missing packages do nothing.",
    ),
    click.option(
        "--fake-module",
        "fake_modules",
        multiple=True,
        metavar="NAME",
        help="With --fake, also replace this missing package by one that does nothing, even if settings or the model come from it.",
    ),
    click.option(
        "--full-size",
        is_flag=True,
        help="With --fake, build models of `from_pretrained` as large as their `config.json` says, where a folder or the hub's "
        "cache has one, else at the default size of its class (GPT-2 at that of its name).",
    ),
    click.option(
        "--small",
        is_flag=True,
        help="Build small models (two layers, width 64) where a configuration sets the size: those of "
        "`transformers`, and modules or dataclasses of the program with a width and a number of layers.",
    ),
)

TARGET = of_key("target-torch", metavar="VERSION")

SELECTION = together(
    listing("select"),
    listing("extend-select"),
    listing("ignore", "--extend-ignore"),
    listing("per-file-ignores", form="PATTERN:RULE"),
    switch("preview"),
    listing("fixable"),
    listing("unfixable"),
    TARGET,
)

DISCOVERY = together(
    listing("exclude"),
    listing("extend-exclude"),
    listing("extension", form="EXT:LANGUAGE"),
    switch("force-exclude"),
    switch("respect-gitignore"),
)

CONFIGURATION = together(
    click.option(
        "--config",
        "configs",
        multiple=True,
        metavar="PATH|KEY=VALUE",
        help="Configuration file, or a single KEY=VALUE in TOML.",
    ),
    click.option("--isolated", is_flag=True, help="Ignore configuration files."),
)


def made_up(given: Given) -> MadeUp:
    """What ``MAKING_UP`` asks for."""
    from fsdp2lint.rehearse.outcome import MadeUp

    modules, full_size = given["fake_modules"], given["full_size"]
    return MadeUp(given["fake"] or full_size or bool(modules), modules, full_size, given["small"])


def overrides(given: Given) -> Given:
    """What the command line says under the names of the configuration's keys.

    Raises:
        click.UsageError: ``--per-file-ignores`` is not PATTERN:RULE, ``--extension`` not EXT:LANGUAGE.
    """
    said: Given = {}
    for key in ("select", "extend-select", "ignore", "fixable", "unfixable"):
        said[key] = given.get(key.replace("-", "_")) or None
    for key in ("exclude", "extend-exclude"):
        said[key] = given.get(key.replace("-", "_")) or None
    for key in ("force-exclude", "respect-gitignore", "target-torch", "preview"):
        said[key] = given.get(key.replace("-", "_"))
    said["extension"] = _languages(given.get("extension", ())) or None
    said["per-file-ignores"] = _by_pattern(given.get("per_file_ignores", ())) or None
    return said


def configuration(given: Given) -> tuple[str | None, tuple[str, ...]]:
    """The configuration file of the command line or the environment, and the ``KEY=VALUE`` pairs.

    Raises:
        click.UsageError: two files.
    """
    files: list[str] = []
    pairs: list[str] = []
    for text in given["configs"]:
        is_pair = "=" in text and not os.path.exists(text)
        (pairs if is_pair else files).append(text)
    if len(files) > 1:
        raise click.UsageError(f"--config names two files: {files[0]} and {files[1]}")
    if given["isolated"] and files:
        raise click.UsageError("--isolated and --config cannot be used together")
    variable = os.environ.get("FSDP2LINT_CONFIG")
    file = files[0] if files else None if given["isolated"] else variable or None
    return file, tuple(pairs)


def _languages(pairs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        extension, _, language = pair.lstrip(".").partition(":")
        if not extension or language not in LANGUAGES:
            raise click.UsageError(f"--extension {pair}: write EXT:{' or EXT:'.join(LANGUAGES)}")
        found[extension] = language
    return found


def _by_pattern(pairs: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pair in pairs:
        pattern, colon, selector = pair.rpartition(":")
        if not colon or not pattern or not selector:
            raise click.UsageError(f"--per-file-ignores {pair}: write PATTERN:RULE")
        found.setdefault(pattern, []).append(selector)
    return found


def target_of(module: str | None, words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """What to run and its own arguments; a first ``--`` only separates them."""
    if module is not None:
        return module, words[1:] if words[:1] == ("--",) else words
    if not words or words[0] == "--":
        raise click.UsageError("name a script, or a module with -m")
    rest = words[1:]
    return words[0], rest[1:] if rest[:1] == ("--",) else rest
