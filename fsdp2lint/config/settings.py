"""Which rules run: selectors by code, prefix, name and group, and the torch release that they must fit."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, get_args

from fsdp2lint.model.hints import NO_HINTS, Hints, Limits

if TYPE_CHECKING:
    from packaging.version import Version

    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.torch_api import Release

OLDEST_TORCH = "2.6"
"""The oldest release with the public ``torch.distributed.fsdp.fully_shard``."""

DEFAULT_GROUPS = ("correctness", "suspicious")
DEFAULT_SELECT = (*DEFAULT_GROUPS, "FSDP101", "FSDP601")


class BadSetting(Exception):
    """A setting that means nothing; the message says which and what was perhaps meant.

    ``about`` is the selector or value that is wrong, so that whoever knows can say where it is.
    """

    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(message)
        self.about = about


class Plugin(NamedTuple):
    """Rules from outside: as the configuration names them, the module, and a mark of its package's files."""

    name: str
    module: str
    mark: str


class Settings(NamedTuple):
    """The options of a run. Selectors: ``ALL``, a code, the beginning of one, a name, a group."""

    select: tuple[str, ...] | None = None
    """What runs in place of the default; nothing when it is empty."""
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    target_torch: str = ""
    """The oldest torch release to run on; :data:`OLDEST_TORCH` when empty."""
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Patterns of files, each with the selectors of what is not reported there."""
    fixable: tuple[str, ...] | None = None
    """Whose fixes may be made: everyone's when nobody said."""
    unfixable: tuple[str, ...] = ()
    hints: Hints = NO_HINTS
    preview: bool = False
    """Whether rules that are being tried out run like others."""
    plugins: tuple[Plugin, ...] = ()
    limits: Limits = ()
    """The newest releases of frameworks that the project allows."""

    @property
    def target(self) -> Release | None:
        """The oldest torch release to run on; None when nobody named it.

        Raises:
            BadSetting: what was named is no version, or too old for FSDP2.
        """
        return self.release if self.target_torch else None

    @property
    def release(self) -> Release:
        """The oldest torch release to run on, whether somebody named it or not.

        Raises:
            BadSetting: what was named is no version, or too old for FSDP2.
        """
        version = _supported(self.target_torch or OLDEST_TORCH)
        return version.major, version.minor

    @property
    def default(self) -> bool:
        """Whether nothing was asked for that could be wrong."""
        return self == Settings()

    def chosen(self, known: Sequence[Rule]) -> tuple[Rule, ...]:
        """The rules among ``known`` (and of the tool itself) that run.

        The more precise selector wins, and of two equally precise ones ``ignore``.

        Raises:
            BadSetting: an unknown selector, a preview that is selected alone, or a target that is no
                version or too old for FSDP2.
        """
        from fsdp2lint.catalogue.toolrules import ALWAYS_ON, TOOL_RULES

        every = (*known, *TOOL_RULES)
        for selector in self._selectors():
            if not any(precision(selector, rule) for rule in every):
                raise BadSetting(unknown("rule", selector, selectors(every)), selector)
        for selector in self._asked():
            if any(precision(selector, r) == 100 and not self._ripe(r) for r in every):
                raise BadSetting(f"`{selector}` is in preview: --preview runs it", selector)
        target = _supported(self.target_torch or OLDEST_TORCH)
        return tuple(
            rule
            for rule in every
            if rule in ALWAYS_ON
            or (
                self._wanted(rule) > _best(self.ignore, rule)
                and self._ripe(rule)
                and _fits(rule, target)
            )
        )

    def ignored_in(self, path: str) -> tuple[str, ...]:
        """The selectors that ``per-file-ignores`` has for a file."""
        if not self.per_file_ignores:
            return ()
        full = os.path.abspath(path)
        return tuple(
            selector
            for pattern, given in self.per_file_ignores
            if matches(pattern, full)
            for selector in given
        )

    def may_fix(self, rule: Rule) -> bool:
        """Whether the fixes of a rule may be applied; ``unfixable`` wins over an equal ``fixable``."""
        wanted = 1 if self.fixable is None else _best(self.fixable, rule)
        return wanted > _best(self.unfixable, rule)

    def _asked(self) -> tuple[str, ...]:
        return (*(self.select or ()), *self.extend_select)

    def _selectors(self) -> tuple[str, ...]:
        inside = (s for _, given in self.per_file_ignores for s in given)
        asked = (*self._asked(), *self.ignore)
        return (*asked, *(self.fixable or ()), *self.unfixable, *inside)

    def _wanted(self, rule: Rule) -> float:
        """How precisely a rule is asked for; one that runs by default yields to any ``ignore``."""
        default = 0.5 * (self.select is None and bool(_best(DEFAULT_SELECT, rule)))
        return max(default, _best(self._asked(), rule))

    def _ripe(self, rule: Rule) -> bool:
        return self.preview or not rule.preview


def _version(text: str) -> Version:
    from packaging.version import Version

    try:
        return Version(text)
    except ValueError as error:  # InvalidVersion is one; so is a number of thousands of digits
        raise BadSetting(f"`{text[:40]}` is not a torch version such as 2.8", text) from error


def _supported(text: str) -> Version:
    """The version of torch in ``text``, for which there are rules."""
    target = _version(text)
    if target.release[:2] < _version(OLDEST_TORCH).release:
        raise BadSetting(
            f"`{text}` is older than {OLDEST_TORCH}, the first torch with FSDP2's public names",
            text,
        )
    return target


def _fits(rule: Rule, target: Version) -> bool:
    if target < _version(rule.since):
        return False
    return not rule.until or _version(target.base_version) <= _version(rule.until)


def precision(selector: str, rule: Rule) -> int:
    """How precisely ``selector`` means ``rule``: 0 not at all, more for a group, a longer prefix, itself."""
    text = selector.strip()
    if text.upper() == "ALL":
        return 1
    if text == rule.group:
        return 2
    if text == rule.name:
        return 100
    code = text.upper()
    if rule.code.startswith(code) and code.startswith(rule.code.rstrip("0123456789")):
        return 100 if code == rule.code else 3 + len(code)
    return 0


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern means the file at the absolute ``path``, or a folder above it.

    ``!pattern`` means every file that the pattern does not.
    """
    from fsdp2lint.system.globs import anchored, fits

    if pattern.startswith("!"):
        return not matches(pattern[1:], path)
    whole = anchored(pattern, os.getcwd())
    return fits(path, whole) or fits(path, os.path.join(whole, "*"))


def selectors(rules: Iterable[Rule]) -> list[str]:
    """Everything that can be written where rules are selected."""
    from fsdp2lint.catalogue.declare import Group

    every = list(rules)
    families = dict.fromkeys(rule.code[:-2] for rule in every)
    return [
        "ALL",
        *get_args(Group),
        *families,
        *(rule.code for rule in every),
        *(rule.name for rule in every),
    ]


def unknown(what: str, text: str, known: Iterable[str]) -> str:
    """``unknown rule `FSDP2O3`, did you mean `FSDP203`?``."""
    import difflib

    names = list(known)
    wanted = text.upper().replace("O", "0") if text.upper().startswith("FSDP") else text
    if wanted in names:
        close = [wanted]
    elif re.fullmatch(r"FSDP\d{3}", wanted):
        close = []  # one digit away is another rule, not a slip
    else:
        close = difflib.get_close_matches(wanted, names, n=1)
    return f"unknown {what} `{text}`" + (f", did you mean `{close[0]}`?" if close else "")


def _best(given: Sequence[str], rule: Rule) -> int:
    return max((precision(selector, rule) for selector in given), default=0)
