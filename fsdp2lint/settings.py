"""Which rules run: selectors by code, prefix, name and group, and the torch release that they must fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from fsdp2lint.declare import DEFAULT_GROUPS, Group
from fsdp2lint.toolrules import ALWAYS_ON, TOOL_RULES

if TYPE_CHECKING:
    from fsdp2lint.declare import Rule

OLDEST_TORCH = "2.6"
"""The oldest release with the public ``torch.distributed.fsdp.fully_shard``."""

DEFAULT_SELECT = (*DEFAULT_GROUPS, "FSDP101")

_CODE = re.compile(r"FSDP\d{3}")


class BadSetting(Exception):
    """A setting that means nothing; the message says which and what was perhaps meant."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked of a run. Selectors: ``ALL``, a code, the beginning of one, a name, a group."""

    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    target_torch: str = OLDEST_TORCH

    @property
    def default(self) -> bool:
        """Whether nothing was asked for that could be wrong."""
        return self == Settings()

    def chosen(self, known: Sequence[Rule]) -> tuple[Rule, ...]:
        """The rules among ``known`` (and of the tool itself) that run.

        The more precise selector wins, and of two equally precise ones ``ignore``.

        Raises:
            BadSetting: an unknown selector or a target that is no version.
        """
        every = (*known, *TOOL_RULES)
        select = (*self.select, *self.extend_select)
        for selector in (*select, *self.ignore):
            if not any(precision(selector, rule) for rule in every):
                raise BadSetting(unknown("rule", selector, selectors(every)))
        return tuple(
            rule
            for rule in every
            if rule in ALWAYS_ON
            or (self._wanted(rule) > _best(self.ignore, rule) and self._fits(rule))
        )

    def _wanted(self, rule: Rule) -> float:
        """How precisely a rule is asked for; one that runs by default yields to any ``ignore``."""
        default = 0 if self.select else 0.5 * bool(_best(DEFAULT_SELECT, rule))
        return max(default, _best((*self.select, *self.extend_select), rule))

    def _fits(self, rule: Rule) -> bool:
        from packaging.version import InvalidVersion, Version

        try:
            target = Version(self.target_torch)
        except InvalidVersion as error:
            raise BadSetting(f"`{self.target_torch}` is not a torch version such as 2.8") from error
        if target < Version(rule.since):
            return False
        return not rule.until or Version(target.base_version) <= Version(rule.until)


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
    if code.startswith("FSDP") and rule.code.startswith(code):
        return 100 if code == rule.code else 3 + len(code)
    return 0


def selectors(rules: Iterable[Rule]) -> list[str]:
    """Everything that can be written where rules are selected."""
    every = list(rules)
    families = dict.fromkeys(rule.code[:5] for rule in every)
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
    elif _CODE.fullmatch(wanted):
        close = []  # one digit away is another rule, not a slip
    else:
        close = difflib.get_close_matches(wanted, names, n=1)
    return f"unknown {what} `{text}`" + (f", did you mean `{close[0]}`?" if close else "")


def _best(given: Sequence[str], rule: Rule) -> int:
    return max((precision(selector, rule) for selector in given), default=0)
