"""Finding and reading configuration files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fsdp2lint.config.settings import BadSetting
from fsdp2lint.system.discover import CONFIGURATIONS
from fsdp2lint.system.files import MAX_TEXT, read

_ADDING = ("extend-select", "extend-ignore", "extend-exclude")
"""Lists to which an extending file adds; every other key it replaces."""

_MAX_EXTENDED = 16


class BadConfig(BadSetting):
    """A configuration file that cannot be read or says something wrong; the message says where."""


class Config(NamedTuple):
    """One configuration: the keys that were given, paths in them absolute."""

    folder: str
    """What patterns are relative to."""
    file: str | None = None
    given: Mapping[str, Any] = {}
    places: Mapping[str, str] = {}
    """Where each key stands: ``pyproject.toml:12``."""


class Configs:
    """The configuration of each folder. ``path`` makes one file hold for all, ``isolated`` none."""

    def __init__(self, path: str | None = None, *, isolated: bool = False) -> None:
        self._by_folder: dict[str, Config] = {}
        self._only: Config | None = None
        if path is not None:
            self._only = load(path)
        elif isolated:
            self._only = Config(os.getcwd())

    def of(self, folder: str) -> Config:
        """The configuration that counts for what lies in ``folder``.

        Raises:
            BadConfig: the file that holds it is wrong.
        """
        if self._only is not None:
            return self._only
        folder = os.path.abspath(folder)
        passed = []
        while folder not in self._by_folder:
            found = _in_folder(folder)
            if found is not None:
                self._by_folder[folder] = found
                break
            passed.append(folder)
            parent = os.path.dirname(folder)
            if parent == folder:
                self._by_folder[folder] = Config(os.getcwd())
                break
            folder = parent
        config = self._by_folder[folder]
        self._by_folder.update(dict.fromkeys(passed, config))
        return config


def load(path: str) -> Config:
    """The configuration in the file at ``path``, with what it extends.

    Raises:
        BadConfig: it cannot be read, is no TOML, holds an unknown key or a wrong type.
    """
    raw = _read(path, named=True)
    found = _parsed(path, raw)
    if found is None:
        raise BadConfig(f"{_shown(path)}: has no [tool.fsdp2lint]")
    return found


def inline(text: str, config: Config) -> Config:
    """``config`` with what ``--config KEY=VALUE`` says in place of its own.

    Raises:
        BadConfig: it is no TOML, or a wrong key or type.
    """
    from fsdp2lint.config import toml
    from fsdp2lint.config.options import Wrong, checked

    try:
        table = checked(toml.loads(text))
    except toml.TOMLDecodeError as error:
        raise BadConfig(f"--config {text}: neither a file nor TOML: {error}") from error
    except Wrong as error:
        raise BadConfig(f"--config {text}: {error}") from error
    table = _absolute(table, os.getcwd())
    places = dict.fromkeys(table, "--config")
    return Config(
        config.folder, config.file, {**config.given, **table}, {**config.places, **places}
    )


def _in_folder(folder: str) -> Config | None:
    """The configuration of exactly this folder."""
    for name in CONFIGURATIONS:
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            continue
        raw = _read(path)
        if name == "pyproject.toml" and b"fsdp2lint" not in raw:
            continue  # most projects: nothing is parsed
        found = _parsed(path, raw)
        if found is not None:
            return found
    return None


def _parsed(path: str, raw: bytes, above: tuple[str, ...] = ()) -> Config | None:
    from fsdp2lint.config import toml

    shown = _shown(path)
    try:
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
        table: Any = toml.loads(text)
    except UnicodeDecodeError as error:
        raise BadConfig(f"{shown}: not UTF-8: {error}") from error
    except toml.TOMLDecodeError as error:
        said, line = toml.complaint(error, text)
        raise BadConfig(f"{shown}:{line}: {said}") from error
    prefix: tuple[str, ...] = ()
    if os.path.basename(path) == "pyproject.toml":
        prefix = ("tool", "fsdp2lint")
        tools = table.get("tool")
        table = tools.get("fsdp2lint") if isinstance(tools, dict) else None
        if table is None:
            return None
        if not isinstance(table, dict):
            raise BadConfig(f"{shown}:{toml.line_of(text, prefix)}: `tool.fsdp2lint` is no table")
    from fsdp2lint.config.options import Wrong, checked
    from fsdp2lint.system.globs import spelled_out

    try:
        given = checked(table)
    except Wrong as error:
        line = toml.line_of(text, (*prefix, *error.path))
        raise BadConfig(f"{shown}:{line}: {error}") from error
    for key, pattern in _patterns(given):
        try:
            spelled_out(pattern)
        except ValueError as error:
            line = toml.line_of(text, (*prefix, key))
            raise BadConfig(f"{shown}:{line}: `{key}`: {error}") from error
    folder = os.path.dirname(os.path.abspath(path))
    places = {key: f"{shown}:{toml.line_of(text, (*prefix, key))}" for key in given}
    own = Config(folder, os.path.abspath(path), _absolute(given, folder), places)
    return _extended(own, (*above, os.path.realpath(path))) if "extend" in given else own


def _patterns(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The patterns of paths in a table, each with the key under which it stands."""
    for key in ("exclude", "extend-exclude", "per-file-ignores"):
        for pattern in given.get(key, ()):
            yield key, pattern


def _extended(own: Config, above: tuple[str, ...]) -> Config:
    """``own`` on top of the file that it names."""
    path, place = own.given["extend"], own.places["extend"]
    if os.path.realpath(path) in above or len(above) > _MAX_EXTENDED:
        raise BadConfig(f"{place}: `extend` leads in a circle")
    try:
        base = _parsed(path, _read(path), above)
    except BadConfig as error:
        raise BadConfig(f"{place}: `extend`: {error}") from error
    if base is None:
        raise BadConfig(f"{place}: `extend`: {_shown(path)} has no [tool.fsdp2lint]")
    given = {**base.given, **own.given}
    for key in _ADDING:
        if key in base.given and key in own.given:
            given[key] = [*base.given[key], *own.given[key]]
    return Config(own.folder, own.file, given, {**base.places, **own.places})


def _absolute(given: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Paths and patterns with a slash are relative to the file in which they stand."""

    def path(text: str) -> str:
        return os.path.normpath(os.path.join(folder, os.path.expanduser(text)))

    def pattern(text: str) -> str:
        return path(text) if "/" in text.rstrip("/") else text

    made = dict(given)
    for key in ("extend", "baseline", "cache-dir"):
        if key in made:
            made[key] = path(made[key])
    for key in ("exclude", "extend-exclude"):
        if key in made:
            made[key] = [pattern(one) for one in made[key]]
    if "per-file-ignores" in made:
        from fsdp2lint.system.globs import anchored

        ignored = made["per-file-ignores"].items()
        made["per-file-ignores"] = {anchored(one, folder): codes for one, codes in ignored}
    return made


def _read(path: str, *, named: bool = False) -> bytes:
    try:
        if named and not stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "rb") as file:  # `--config <(…)` of a shell
                return file.read(MAX_TEXT)
        return read(path, MAX_TEXT)
    except OSError as error:
        raise BadConfig(f"{_shown(path)}: {error.strerror or error}") from error


def _shown(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
