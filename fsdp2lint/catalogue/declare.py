"""How a rule or a codemod is declared: one decorator, its page in the docstring of its module.

A module under ``rules/`` holds one function:

    @rule(code="FSDP203", group="correctness")
    def check(trace: Trace) -> Iterator[Finding]: ...

Its name is the file's name with dashes. The docstring's first line is the summary; then come the
sections of :data:`SECTIONS`, each a line of its own that begins with ``## ``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fsdp2lint.ask.program import Program
    from fsdp2lint.catalogue.findings import Finding
    from fsdp2lint.edits.steps import Kept, Left, Respelling, Step
    from fsdp2lint.model.trace import Trace

Group = Literal["correctness", "suspicious", "perf", "pedantic", "migration"]
FixSafety = Literal["safe", "unsafe", "sometimes-safe"]
"""How safe the fixes of a rule are; ``sometimes-safe``: the page says when they are."""

Check = Callable[["Trace"], Iterator["Finding"]]

OWN = "FSDP"
"""How the codes of this project begin; rules from outside have others."""

SECTIONS = (
    "What it does",
    "Why is this bad",
    "Example",
    "Forms",
    "Fix safety",
    "Known limits",
    "References",
)
"""The headings of a rule's page, in order. ``Example`` holds one diff, from the code that the rule reports to the
code to write instead. ``Forms`` names other spellings of the same mistake, each a point ``Found: …`` or ``Not found: …``; the code of
each is in the rule's fixtures, and tests check both. ``Fix safety`` is left out when the rule has no fix."""

OPTIONAL_SECTIONS = ("Fix safety",)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as the engine knows it."""

    code: str
    name: str
    group: Group
    check: Check
    page: str
    since: str
    """The first torch release to which it applies (``2.6``: all that are supported)."""
    until: str
    """The last torch release to which it applies, or empty."""
    preview: bool = False
    """Whether it is still being tried out: it runs only with ``--preview``."""
    url: str = ""
    """The address of its page, when it is not a rule of this project."""

    def findings(self, trace: Trace) -> Iterator[Finding]:
        """What it says of a trace, but for events that no run comes to."""
        return (one for one in self.all_findings(trace) if one.certain)

    def all_findings(self, trace: Trace) -> Iterator[Finding]:
        """The same, with what only may happen and has a fix."""
        for finding in self.check(trace):
            guards = getattr(finding.at, "guards", None)  # a site is on no path
            possible = guards is None or guards.possible()
            if possible and (finding.certain or finding.fix is not None):
                yield finding

    @property
    def link(self) -> str | None:
        """The address of its page on the web; None when it is nowhere."""
        if self.url or not self.code.startswith(OWN):
            return self.url or None
        return f"{docs()}/reference/rules/{self.name}.html" if docs() else None

    @property
    def summary(self) -> str:
        """The first line of the page."""
        return self.page.strip().splitlines()[0]

    @property
    def fix(self) -> FixSafety | None:
        """How safe its fixes are, as the page says it; None when it has none.

        The section ``Fix safety`` begins with ``Safe`` or ``Unsafe``, and names the other where that happens too.
        """
        said = set(re.findall(r"\b(?:un)?safe\b", self.section("Fix safety").lower()))
        if said == {"safe", "unsafe"}:
            return "sometimes-safe"
        return None if not said else "safe" if said == {"safe"} else "unsafe"

    def section(self, heading: str) -> str:
        """The text under a heading of the page; empty when it has none."""
        return _section(self.page, heading)


@cache
def docs() -> str:
    """The address of the docs site, without a slash at its end; empty when it is published nowhere.

    ``FSDP2LINT_DOCS`` names it, else the URL called ``Documentation`` in the metadata of the installed package.
    """
    said = os.environ.get("FSDP2LINT_DOCS", "")
    if not said:
        from importlib import metadata

        try:
            urls = metadata.metadata("fsdp2lint").get_all("Project-URL") or []
        except metadata.PackageNotFoundError:
            return ""
        named = (url.partition(",") for url in urls)
        said = next((url.strip() for name, _, url in named if name == "Documentation"), "")
    return said.rstrip("/") if re.fullmatch(r"https?://[!-~]+", said) else ""


def _section(page: str, heading: str) -> str:
    _, found, rest = page.partition(f"\n## {heading}\n")
    return rest.partition("\n## ")[0].strip() if found else ""


declared: dict[str, Rule] = {}
"""Every rule that was declared, by its module's name; filled as the modules are loaded."""


def rule(
    *,
    code: str,
    group: Group,
    since: str = "2.6",
    until: str = "",
    preview: bool = False,
    url: str = "",
) -> Callable[[Check], Check]:
    """Declare the decorated function as the rule of its module; ``url`` is for rules from outside."""

    def declare(check: Check) -> Check:
        module = check.__module__
        name = module.rpartition(".")[2].replace("_", "-")
        page = sys.modules[module].__doc__ or ""
        declared[module] = Rule(code, name, group, check, page, since, until, preview, url)
        return check

    return declare


# -- codemods -------------------------------------------------------------------------------------------------

CODEMOD_SECTIONS = ("What it does", "Why", "Example", "What it leaves", "References")
"""The headings of a codemod's page, in order. ``Example`` holds one diff: what the codemod, run alone, makes of the
code before it."""

Rewriting = Callable[["Program"], Iterator["Step | Left | Kept | Respelling"]]


@dataclass(frozen=True, slots=True)
class Codemod:
    """A codemod as the engine knows it; ``after`` are the names of those that must have run.

    ``frameworks`` says whether it is right also where a framework wraps the models, by FSDP1 or FSDP2.
    """

    name: str
    after: tuple[str, ...]
    rewrite: Rewriting
    page: str
    frameworks: bool = False

    @property
    def summary(self) -> str:
        """The first line of the page."""
        return self.page.strip().splitlines()[0]

    def section(self, heading: str) -> str:
        """The text under a heading of the page; empty when it has none."""
        return _section(self.page, heading)


EVERY_OTHER = "*"
"""In ``after``: all codemods that do not say the same."""

declared_codemods: dict[str, Codemod] = {}
"""Every codemod that was declared, by its module's name."""


def codemod(
    *, after: tuple[str, ...] = (), frameworks: bool = False
) -> Callable[[Rewriting], Rewriting]:
    """Declare the decorated function as the codemod of its module; its name is the file's with dashes.

    The function gets a :class:`~fsdp2lint.ask.program.Program` and yields steps. It runs again on the new
    text until it yields nothing more to change, together with its neighbours in the order that neither
    wait for it nor it for them: those see the same text and traces.
    """

    def declare(rewrite: Rewriting) -> Rewriting:
        module = rewrite.__module__
        name = module.rpartition(".")[2].replace("_", "-")
        page = sys.modules[module].__doc__ or ""
        declared_codemods[module] = Codemod(name, after, rewrite, page, frameworks)
        return rewrite

    return declare
