"""What a configuration and the options of the command line come to together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fsdp2lint.config.files import INLINE, Config, Fault
from fsdp2lint.config.settings import OLDEST_TORCH, BadSetting, Plugin, Settings
from fsdp2lint.model.hints import NO_HINTS, Hints
from fsdp2lint.system.discover import EXCLUDED, PACKAGES, SUFFIXES, Exclusion
from fsdp2lint.system.files import TEXTS

if TYPE_CHECKING:
    from fsdp2lint.config.target import Targets

Given = Mapping[str, Any]
"""Options of the command line under the names of the configuration; None where one was not used."""

MARKDOWN = ("md", "markdown")
"""Extensions of documents: named files are read as such, folders are not searched for them."""

_SELECTING = ("select", "extend-select", "ignore", "extend-ignore", "fixable", "unfixable")


def value(key: str, config: Config, given: Given, default: Any = None) -> Any:
    """The command line's word, else the configuration's, else the default."""
    said = given.get(key)
    return said if said is not None else config.given.get(key, default)


def settings(config: Config, given: Given) -> Settings:
    """The rules and their surroundings; ``target_torch`` stays empty when nobody names it."""

    def added(key: str) -> tuple[str, ...]:
        return (*config.given.get(key, ()), *(given.get(key) or ()))

    return Settings(
        select=_listed(value("select", config, given)),
        extend_select=added("extend-select"),
        ignore=(*added("ignore"), *added("extend-ignore")),
        target_torch=value("target-torch", config, given, ""),
        preview=value("preview", config, given, False),
        per_file_ignores=tuple(
            (pattern, tuple(selectors))
            for pattern, selectors in value("per-file-ignores", config, given, {}).items()
        ),
        fixable=_listed(value("fixable", config, given)),
        unfixable=added("unfixable"),
        hints=_hints(config),
        plugins=_plugins(config),
    )


def aimed(settings_: Settings, folder: str, targets: Targets) -> Settings:
    """The settings with what the project around ``folder`` asks for: its torch release, if none was named,
    the newest releases of frameworks, and what the Trainer means by FSDP in those that are allowed.
    """
    hints = settings_.hints._replace(trainer_version=targets.trainer_version(folder))
    settings_ = settings_._replace(limits=targets.limits(folder), hints=hints)
    if settings_.target_torch:
        return settings_
    found = targets.around(folder)
    if found is None or _older(found, OLDEST_TORCH):
        return settings_
    return settings_._replace(target_torch=found)


def exclusion(config: Config, given: Given) -> Exclusion:
    """What discovery leaves out."""
    patterns = value("exclude", config, given, EXCLUDED)
    said = () if patterns is EXCLUDED else patterns
    more = (*config.given.get("extend-exclude", ()), *(given.get("extend-exclude") or ()))
    try:
        return Exclusion(
            (*patterns, *more),
            gitignore=value("respect-gitignore", config, given, True),
            force=value("force-exclude", config, given, False),
            top=config.folder,
            suffixes=(
                *SUFFIXES,
                *TEXTS,
                *(f".{extension}" for extension in languages(config, given)),
            ),
            packages=PACKAGES.difference(said, more),
        )
    except ValueError as error:
        raise BadSetting(f"exclude: {error}") from error


def languages(config: Config, given: Given) -> dict[str, str]:
    """What files of other extensions hold, by extension; the command line counts more."""
    return {**config.given.get("extension", {}), **(given.get("extension") or {})}


def documents(config: Config, given: Given) -> tuple[str, ...]:
    """The ends of the names of files that are documents, with blocks of Python in them."""
    known = {**dict.fromkeys(MARKDOWN, "markdown"), **languages(config, given)}
    return tuple(f".{extension}" for extension, held in known.items() if held == "markdown")


def blamed(error: BadSetting, config: Config, given: Given) -> tuple[str, Fault]:
    """The key of a configuration file under which a value is that means nothing, and what is wrong.

    Raises:
        BadSetting: the command line said it.
    """
    for key in (*_SELECTING, "target-torch", "per-file-ignores", "plugins"):
        if not error.about or _holds(given.get(key), error.about):
            break
        if _holds(config.given.get(key), error.about):
            fault = Fault(config.places[key], f"`{key}`: {error}")
            if fault.at == INLINE:
                raise BadSetting(str(fault)) from error
            return key, fault
    raise error


def _listed(said: Iterable[str] | None) -> tuple[str, ...] | None:
    """A list that may be empty on purpose; None where nobody gave one."""
    return None if said is None else tuple(said)


def _holds(said: Any, text: str) -> bool:
    if isinstance(said, Mapping):
        return any(_holds(one, text) for one in said.values())
    return said == text or (isinstance(said, list | tuple) and text in said)


def _older(version: str, other: str) -> bool:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(".")]

    return numbers(version) < numbers(other)


def _plugins(config: Config) -> tuple[Plugin, ...]:
    names = config.given.get("plugins")
    if not names:
        return ()
    from fsdp2lint.catalogue.knowledge import plugins

    return plugins(tuple(names))


def _hints(config: Config) -> Hints:
    said = config.given.get("knowledge")
    if not said:
        return NO_HINTS
    named: dict[str, Any] = {key.replace("-", "_"): tuple(names) for key, names in said.items()}
    return Hints(**named)
