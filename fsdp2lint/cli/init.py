"""``fsdp2lint init``: a configuration and a pre-commit entry to begin with."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib import metadata
from typing import NamedTuple

import click

from fsdp2lint import __version__
from fsdp2lint.config import toml
from fsdp2lint.system.files import MAX_TEXT, read
from fsdp2lint.system.journal import NotWritten, replace_all

_KEYS = """\
# select = ["correctness", "suspicious"]
# ignore = ["root-only-shard"]
# target-torch = "2.8"  # else the lower bound in the project's dependencies

# [{prefix}per-file-ignores]
# "tests/*" = ["FSDP3"]

# [{prefix}knowledge]  # functions of the project that the analysis cannot see through
# shards = ["mypackage.parallel.apply_fsdp"]
"""

_HOOK = """\
  - repo: local
    hooks:
      - id: fsdp2lint
        name: fsdp2lint
        entry: {entry} check --force-exclude
{language}
        types_or: [python, pyi, jupyter]
        require_serial: true
"""

_OWN_ENVIRONMENT = """\
        language: python
        additional_dependencies: ["{requirement}"]"""

_THIS_ENVIRONMENT = """\
        language: system  # fsdp2lint was installed from a local folder: install it before you commit"""


@click.command("init", short_help="Write a configuration and a pre-commit entry.")
@click.argument("folder", default=".", type=click.Path(exists=True, file_okay=False))
def command(folder: str) -> None:
    """Write a configuration for the project in FOLDER and a pre-commit entry.

    Appends `[tool.fsdp2lint]` to pyproject.toml, or creates fsdp2lint.toml if there is none. Existing
    settings are never changed; what you would have to change is printed.
    """
    new = _configuration(folder), _pre_commit(folder)
    try:
        replace_all({one.path: one.raw for one in new if one is not None})
    except NotWritten as error:
        raise click.ClickException(str(error)) from error
    for one in new:
        if one is not None:
            click.echo(one.said)


class _New(NamedTuple):
    """A file as it is to be, and the line to print about it."""

    path: str
    raw: bytes
    said: str


def _configuration(folder: str) -> _New | None:
    for name in (".fsdp2lint.toml", "fsdp2lint.toml"):
        if os.path.exists(os.path.join(folder, name)):
            click.echo(f"{os.path.join(folder, name)} already exists.")
            return None
    pyproject = os.path.join(folder, "pyproject.toml")
    if not os.path.exists(pyproject):
        return _created(os.path.join(folder, "fsdp2lint.toml"), _KEYS.format(prefix=""))
    text = _text(pyproject)
    if "[tool.fsdp2lint" in text:
        click.echo(f"{pyproject} already has [tool.fsdp2lint].")
        return None
    table = "[tool.fsdp2lint]\n" + _KEYS.format(prefix="tool.fsdp2lint.")
    more = ("" if text.endswith("\n") or not text else "\n") + "\n" + table
    try:
        toml.loads(text.replace("\r\n", "\n") + more)
    except toml.TOMLDecodeError as error:
        said, line = toml.complaint(error, text)
        raise click.ClickException(
            f"{pyproject}:{line}: no [tool.fsdp2lint] can follow: {said}"
        ) from error
    said = f"Added [tool.fsdp2lint] to {pyproject}."
    return _New(pyproject, (text + _as_in(text, more)).encode(), said)


def _pre_commit(folder: str) -> _New | None:
    path = os.path.join(folder, ".pre-commit-config.yaml")
    if not os.path.exists(path):
        return _created(path, "repos:\n" + _hook())
    if "fsdp2lint" in _text(path):
        click.echo(f"{path} already runs fsdp2lint.")
    else:
        click.echo(f"Add this to {path} under `repos:`:\n\n{_hook()}", nl=False)
    return None


def _hook() -> str:
    """The entry for pre-commit that finds fsdp2lint again where this one came from."""
    requirement = _requirement()
    if requirement:
        language = _OWN_ENVIRONMENT.format(requirement=requirement)
        return _HOOK.format(entry="fsdp2lint", language=language)
    entry = "fsdp2lint" if shutil.which("fsdp2lint") else f"{sys.executable} -m fsdp2lint"
    return _HOOK.format(entry=entry, language=_THIS_ENVIRONMENT)


def _requirement() -> str:
    """What pip can install anywhere to get this fsdp2lint; empty when it came from a local folder or file.

    https://packaging.python.org/en/latest/specifications/direct-url/
    """
    # a checkout may hold the folder of a build as well: only what is installed has a RECORD
    found = (d for d in metadata.distributions(name="fsdp2lint") if d.read_text("RECORD"))
    installed = next(found, None)
    if installed is None:
        return ""
    text = installed.read_text("direct_url.json")
    if text is None:
        return f"fsdp2lint=={__version__}"
    origin = json.loads(text)
    url: str = origin["url"]
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return "" if url.startswith("file:") else f"fsdp2lint @ {url}"


def _text(path: str) -> str:
    try:
        return read(path, MAX_TEXT).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path}: {error}") from error


def _created(path: str, text: str) -> _New:
    return _New(path, text.encode(), f"Wrote {path}.")


def _as_in(text: str, more: str) -> str:
    """More lines, ended as those of the text."""
    return more.replace("\n", "\r\n") if "\r\n" in text else more
