"""The contract of FSDP2 on migrated code: the rules' own fixes where FSDP1 allowed what FSDP2 does not.

FSDP1 trains with an optimizer that was built before wrapping, lets ``model.forward(x)`` through its hooks
and a method other than ``forward`` compute; ``fully_shard`` does none of this. The rules know these mistakes
and their fixes, so the migration asks them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.findings import Finding
from fsdp2lint.edits.steps import Account, Kept, Step
from fsdp2lint.source.source import Site

if TYPE_CHECKING:
    from fsdp2lint.ask.program import Program
    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.model.trace import Trace

Said = tuple[str, str, str]
"""What a finding is known by across two texts: its rule, its file, the code that it is at."""

GROUPS = ("correctness", "suspicious")

ANYWAY = ("FSDP230",)
"""Rules whose fixes belong to the migration also where the old text had the finding: old import paths."""


_ADVICE = ("FSDP205", "FSDP206", "FSDP212", "FSDP222", "FSDP314", "FSDP410", "FSDP509")
"""Rules that advise what FSDP1 did not do either: the groups, what is in none, the dtype of the weights and inputs, which
ranks read a file, and the order of the data stay those of FSDP1, and the ledger says it."""

_HANGS = ("FSDP402", "hang in the forward of")
"""The rule about ranks that leave alone, and what it says where FSDP1 hangs as well: its forward gathers too."""


def findings(program: Program) -> Iterator[tuple[Rule, Finding]]:
    """What the rules of the default groups say of a program, each finding once."""
    version = program.options.target_torch
    seen: set[tuple[str, object, str]] = set()
    mine = set(program.sources)
    for rule in knowledge.rules():
        if not (rule.group in GROUPS or rule.code in ANYWAY) or not _applies(rule, version):
            continue
        for trace in program.traces:
            for finding in _of(rule, trace):
                site = site_of(finding)
                key = rule.code, site.node, finding.message
                if site.source in mine and key not in seen:
                    seen.add(key)
                    yield rule, finding


def _of(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    """What a rule says of a trace, asked once: many traces stay the same when a text changes."""
    if rule not in trace.answers:
        trace.answers[rule] = tuple(rule.findings(trace))
    found: tuple[Finding, ...] = trace.answers[rule]
    return found


def said(program: Program) -> Counter[Said]:
    """What the rules say of a program, without the events that they say it of."""
    return Counter(_said(rule, finding) for rule, finding in findings(program))


def new_findings(before: Counter[Said], after: Program) -> list[tuple[Rule, Finding]]:
    """The findings of a program that were not said before."""
    known = before.copy()
    new: list[tuple[Rule, Finding]] = []
    for rule, finding in findings(after):
        what = _said(rule, finding)
        if known[what] > 0 and rule.code not in ANYWAY:
            known[what] -= 1
        else:
            new.append((rule, finding))
    return new


def fixes(found: list[tuple[Rule, Finding]]) -> list[Step]:
    """The steps that remove findings, as far as they have a fix that may be made."""
    return [
        Step(finding.fix.edits, (_account(rule, finding),))
        for rule, finding in found
        if finding.fix is not None and finding.fix.safety != "shown"
    ]


def _account(rule: Rule, finding: Finding) -> Account:
    assert finding.fix is not None
    reason = finding.message.partition("; ")[0].partition(": use ")[0]
    why = f"rewritten to {finding.fix.title}, because {reason} ({rule.code})"
    site = site_of(finding)
    return Account(site.source, site.node, "changed", why, own=True)


def holds_anyway(rule: Rule, finding: Finding) -> bool:
    """Whether what a rule finds holds for FSDP1 as well, so that the migration changes nothing about it."""
    code, said = _HANGS
    return rule.code in _ADVICE or (rule.code == code and said in finding.message)


def advice(rule: Rule, finding: Finding) -> Kept:
    """What the ledger says of a finding that holds for FSDP1 as well."""
    site = site_of(finding)
    return Kept(site.source, site.node, f"as under FSDP1: {finding.message} ({rule.code})")


def site_of(finding: Finding) -> Site:
    """Where a finding stands."""
    return finding.at if isinstance(finding.at, Site) else finding.at.at


def _said(rule: Rule, finding: Finding) -> Said:
    site = site_of(finding)
    return rule.code, site.source.path, site.source.code(site.node)


def _applies(rule: Rule, version: tuple[int, int]) -> bool:
    def parts(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split("."))

    return version >= parts(rule.since) and (not rule.until or version <= parts(rule.until))
