"""Every fixture of a rule shows what its comments say, and nothing else.

``# expect: FSDP201`` at the end of a line: that finding is on that line. ``# fine: FSDP201``: a near miss.
``# target: torch 2.13`` at the beginning of a line of the script: the oldest torch that it is for.
``# launched: fsdp_version 2``: what the settings say that the script is launched with.
``# limits: accelerate==1.5.2``: what the project's dependencies say of a framework.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.declare import Rule
from fsdp2lint.catalogue.findings import Finding
from fsdp2lint.config.settings import DEFAULT_GROUPS
from fsdp2lint.config.target import limits_in
from fsdp2lint.edits.apply import combine
from fsdp2lint.interpret.entries import traces
from fsdp2lint.model.hints import Limits
from fsdp2lint.project.project import Project
from fsdp2lint.source.reading import read
from fsdp2lint.source.source import Site, Source
from fsdp2lint.system.files import SETTINGS
from tests.support.launching import launched

ROOT = Path(__file__).parents[2] / "fixtures" / "rules"
LIMIT = re.compile(r"^# limits: (\S+)$", re.MULTILINE)
TARGET = re.compile(r"^# target: torch (\d+)\.(\d+)$", re.MULTILINE)
MARK = re.compile(r"#\s*(expect|fine):\s*((?:FSDP\d{3}[,\s]*)+)")


@dataclass(frozen=True)
class Found:
    """A finding as the fixtures name it."""

    path: str
    line: int
    code: str


@dataclass(frozen=True)
class Case:
    """A script, or a folder of files that belong together."""

    name: str
    files: tuple[Path, ...]

    @lru_cache(maxsize=100)  # noqa: B019  the tests of a rule run together, and no rule has more
    def seen(self) -> tuple[list[Source], list[tuple[Rule, Finding]]]:
        """The files, and what all rules say of them."""
        sources = [read(path) for path in self.files]
        folder = self.name.partition("/")[0].replace("_", "-")
        return sources, list(findings(sources, folder))


def cases() -> Iterator[Case]:
    """All fixtures: each file and each folder below a rule's folder."""
    for folder in sorted(p for p in ROOT.iterdir() if p.is_dir()):
        for one in sorted(folder.iterdir()):
            if one.suffix in (".py", *SETTINGS):
                yield Case(f"{folder.name}/{one.stem}", (one,))
            elif one.is_dir() and any(one.rglob("*.py")):
                yield Case(f"{folder.name}/{one.name}", tuple(sorted(one.rglob("*.py"))))


CASES = tuple(cases())
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def marked(sources: Sequence[Source], word: str) -> set[Found]:
    """What the comments of some sources say."""
    return {
        Found(source.path, number, code)
        for source in sources
        for number, line in enumerate(source.lines, 1)
        for kind, codes in MARK.findall(line)
        if kind == word
        for code in re.findall(r"FSDP\d{3}", codes)
    }


def findings(sources: Sequence[Source], about: str = "") -> Iterator[tuple[Rule, Finding]]:
    """What all rules say of some sources; what several traces show is said once.

    Of the rules that are not on by default (this is FSDP1; this could be faster) only the one that a
    fixture is ``about`` is asked.
    """
    seen: set[object] = set()
    asked = next((found for s in sources if (found := TARGET.search(s.text))), None)
    target = (int(asked[1]), int(asked[2])) if asked else None
    limits = limits_of(sources)
    for trace in traces(Project.of(sources, hints=launched(sources), target=target)):
        trace.limits = limits
        for rule in knowledge.rules():
            if rule.group not in DEFAULT_GROUPS and rule.name != about:
                continue
            for finding in rule.findings(trace):
                key = (rule.code, site(finding).node)
                if key not in seen:
                    seen.add(key)
                    yield rule, finding


def limits_of(sources: Sequence[Source]) -> Limits:
    """What ``# limits: accelerate==1.5.2`` says that the project allows."""
    asked = [found[1] for s in sources for found in LIMIT.finditer(s.text)]
    return limits_in(asked)


def site(finding: Finding) -> Site:
    """Where a finding is."""
    return finding.at if isinstance(finding.at, Site) else finding.at.at


def named(said: Sequence[tuple[Rule, Finding]]) -> set[Found]:
    """Findings as the fixtures name them."""
    return {Found(site(f).source.path, site(f).line, rule.code) for rule, f in said}


def mended(sources: Sequence[Source], said: Sequence[tuple[Rule, Finding]]) -> list[Source]:
    """The sources with the fixes of all findings made."""
    texts = combine([f.fix.edits for _, f in said if f.fix is not None]).texts
    return [s.with_text(texts.get(s, s.text)) for s in sources]


@pytest.mark.parametrize("rule", knowledge.rules(), ids=lambda rule: rule.name)
def test_each_rule_has_three_bad_shapes_and_three_near_misses(rule: Rule) -> None:
    folder = rule.name.replace("-", "_")
    own = [case for case in CASES if case.name.startswith(f"{folder}/")]
    assert sum("/bad_" in case.name for case in own) >= 3
    fine = [f for case in own if "/good_" in case.name for f in marked(case.seen()[0], "fine")]
    assert sum(one.code == rule.code for one in fine) >= 3


@every_case
def test_a_fixture_shows_what_it_says(case: Case) -> None:
    sources, said = case.seen()
    assert named(said) == marked(sources, "expect")


@every_case
def test_a_fixture_says_what_it_is(case: Case) -> None:
    folder, name = case.name.split("/")
    code = {r.name.replace("-", "_"): r.code for r in knowledge.rules()}[folder]
    expected = {one.code for one in marked(case.seen()[0], "expect")}
    if name.startswith("bad_"):
        assert code in expected
    else:
        assert not expected


@every_case
def test_findings_say_why(case: Case) -> None:
    for rule, finding in case.seen()[1]:
        assert finding.message, rule.code
        assert not finding.message.endswith("."), rule.code
        assert "unknown" not in finding.message, finding.message
        for where, label in finding.because:
            at = where if isinstance(where, Site) else where.at
            assert label
            assert at.line > 0


@every_case
def test_fixes_remove_their_findings(case: Case) -> None:
    sources, said = case.seen()
    fixed = [rule.code for rule, finding in said if finding.fix is not None]
    if not fixed:
        return
    before = [one.code for one in named(said)]
    left = [one.code for one in named(list(findings(mended(sources, said))))]
    for code in fixed:
        assert left.count(code) < before.count(code), code
    assert set(left) <= set(before), "a fix brings a new finding"
