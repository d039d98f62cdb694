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


class Spot(NamedTuple):
    """Where a setting is."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


INLINE = Spot("--config")
"""Where a setting is that was said on the command line in the words of a file."""


class Fault(NamedTuple):
    """Something in a file of settings that means nothing. It counts as not said, and all else counts."""

    at: Spot
    said: str

    def __str__(self) -> str:
        return f"{self.at}: {self.said}"


class BadConfig(BadSetting):
    """A configuration file of which nothing can be read."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Config(NamedTuple):
    """One configuration: the keys that were given, paths in them absolute."""

    folder: str
    """What patterns are relative to."""
    file: str | None = None
    given: Mapping[str, Any] = {}
    places: Mapping[str, Spot] = {}
    """Where each key is."""
    faults: tuple[Fault, ...] = ()
    """What is in the file and means nothing."""


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
        """The configuration that counts for what lies in ``folder``."""
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

    def leave_out(self, file: str | None, key: str, about: str, fault: Fault) -> None:
        """Go on without an entry of a file, which means nothing."""
        if self._only is not None:
            self._only = without(self._only, key, about, fault)
        for folder, config in self._by_folder.items():
            if config.file == file:
                self._by_folder[folder] = without(config, key, about, fault)

    def faults(self) -> Iterator[Fault]:
        """What was wrong in all files that were read."""
        known = [self._only] if self._only is not None else self._by_folder.values()
        yield from dict.fromkeys(fault for config in known for fault in config.faults)


def load(path: str) -> Config:
    """The configuration in the file at ``path``, with what it extends.

    Raises:
        BadConfig: it cannot be read, is no TOML, or has no table for us.
    """
    raw = _read(path, named=True)
    found = _parsed(path, raw)
    if found is None:
        raise BadConfig(Fault(Spot(_shown(path)), "has no [tool.fsdp2lint]"))
    return found


def without(config: Config, key: str, about: str, fault: Fault) -> Config:
    """A configuration without what one key holds of a value that means nothing.

    A choice of rules of which nothing is left is none: the usual rules run.
    """
    given = dict(config.given)
    left = _stripped(given.pop(key, None), about)
    if left or (left is not None and key not in ("select", "fixable")):
        given[key] = left
    return config._replace(given=given, faults=(*config.faults, fault))


def _stripped(value: Any, about: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _stripped(one, about) for key, one in value.items()}
    if isinstance(value, list):
        return [one for one in value if one != about]
    return None if value == about else value


def inline(text: str, config: Config) -> Config:
    """``config`` with what ``--config KEY=VALUE`` says in place of its own.

    Raises:
        BadSetting: it is no TOML, or a wrong key or type.
    """
    from fsdp2lint.config import toml
    from fsdp2lint.config.options import checked

    try:
        table, wrong = checked(toml.loads(text))
    except toml.TOMLDecodeError as error:
        raise BadSetting(f"--config {text}: neither a file nor TOML: {error}") from error
    if wrong:
        raise BadSetting(f"--config {text}: {wrong[0].said}")
    table = _absolute(table, os.getcwd())
    places = dict.fromkeys(table, INLINE)
    given = {**config.given, **table}
    return config._replace(given=given, places={**config.places, **places})


def _in_folder(folder: str) -> Config | None:
    """The configuration of exactly this folder."""
    for name in CONFIGURATIONS:
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            continue
        try:
            raw = _read(path)
            if name == "pyproject.toml" and b"fsdp2lint" not in raw:
                continue  # most projects: nothing is parsed
            found = _parsed(path, raw)
        except BadConfig as error:
            return Config(folder, path, faults=(error.fault,))
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
        raise BadConfig(Fault(Spot(shown), f"not UTF-8: {error}")) from error
    except toml.TOMLDecodeError as error:
        said, line = toml.complaint(error, text)
        raise BadConfig(Fault(Spot(shown, line), said)) from error
    prefix: tuple[str, ...] = ()
    if os.path.basename(path) == "pyproject.toml":
        prefix = ("tool", "fsdp2lint")
        tools = table.get("tool")
        table = tools.get("fsdp2lint") if isinstance(tools, dict) else None
        if table is None:
            return None

    def spot(*inner: str) -> Spot:
        return Spot(shown, toml.line_of(text, (*prefix, *inner)))

    if not isinstance(table, dict):
        raise BadConfig(Fault(spot(), "`tool.fsdp2lint` is not a table"))
    from fsdp2lint.config.options import checked

    given, wrong = checked(table)
    faults = [Fault(spot(*one.path), one.said) for one in wrong]
    for key, said in _without_bad_patterns(given):
        faults.append(Fault(spot(key), f"`{key}`: {said}"))
    folder = os.path.dirname(os.path.abspath(path))
    places = {key: spot(key) for key in given}
    own = Config(folder, os.path.abspath(path), _absolute(given, folder), places, tuple(faults))
    return _extended(own, (*above, os.path.realpath(path))) if "extend" in given else own


def _without_bad_patterns(given: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Take the patterns out of a table that no path can be matched with; their keys, and why."""
    from fsdp2lint.system.globs import spelled_out

    for key in ("exclude", "extend-exclude", "per-file-ignores"):
        for pattern in list(given.get(key, ())):
            try:
                spelled_out(pattern)
            except ValueError as error:
                kept = given[key]
                given[key] = (
                    {one: codes for one, codes in kept.items() if one != pattern}
                    if isinstance(kept, dict)
                    else [one for one in kept if one != pattern]
                )
                yield key, str(error)


def _extended(own: Config, above: tuple[str, ...]) -> Config:
    """``own`` on top of the file that it names."""
    path, place = own.given["extend"], own.places["extend"]

    def alone(said: str) -> Config:
        return own._replace(faults=(*own.faults, Fault(place, f"`extend`: {said}")))

    if os.path.realpath(path) in above or len(above) > _MAX_EXTENDED:
        return alone("leads in a circle")
    try:
        base = _parsed(path, _read(path), above)
    except BadConfig as error:
        return alone(str(error))
    if base is None:
        return alone(f"{_shown(path)} has no [tool.fsdp2lint]")
    given = {**base.given, **own.given}
    for key in _ADDING:
        if key in base.given and key in own.given:
            given[key] = [*base.given[key], *own.given[key]]
    return Config(
        own.folder,
        own.file,
        given,
        {**base.places, **own.places},
        (*base.faults, *own.faults),
    )


def _absolute(given: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Paths and patterns with a slash are relative to the file in which they are."""

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
        raise BadConfig(Fault(Spot(_shown(path)), error.strerror or str(error))) from error


def _shown(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
