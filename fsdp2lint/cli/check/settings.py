"""``fsdp2lint check --show-settings`` and ``--show-files``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from fsdp2lint.config import toml
from fsdp2lint.config.settings import OLDEST_TORCH, Settings
from fsdp2lint.system.plain import no_command, one_line

if TYPE_CHECKING:
    from fsdp2lint.check.session import Session
    from fsdp2lint.config.files import Config


def show(session: Session, *, files: bool) -> None:
    """Print the files that would be looked at, or what holds for each group of them."""
    if files:
        for path in session.files:
            click.echo(no_command(one_line(path)))
        return
    for config, paths in session.groups():
        by_target: dict[Settings, list[str]] = {}
        for path in paths:
            aimed = session.aimed(session.settings(config), os.path.dirname(path))
            by_target.setdefault(aimed, []).append(path)
        for settings, same in by_target.items():
            _show_group(session, config, settings, same)
    if not session.files:
        _show_group(session, session.main, session.settings(session.main), [])


def _show_group(session: Session, config: Config, settings: Settings, paths: list[str]) -> None:
    click.echo(f"# {_source(config)}, for {len(paths)} file{'' if len(paths) == 1 else 's'}")
    for key, value in _table(session, config).items():
        click.echo(f"{key} = {toml.dumps(value)}")
    click.echo(f"target-torch = {toml.dumps(settings.target_torch or OLDEST_TORCH)}")
    click.echo(f"rules = {toml.dumps(_rules(session, config, settings))}\n")


def _source(config: Config) -> str:
    return os.path.relpath(config.file) if config.file else "no configuration file"


def _table(session: Session, config: Config) -> dict[str, Any]:
    said = {**config.given, **{k: v for k, v in session.given.items() if v is not None}}
    said.pop("target-torch", None)
    return dict(sorted(said.items()))


def _rules(session: Session, config: Config, settings: Settings) -> list[str]:
    return [rule.code for rule in session.chosen(config, settings)]
