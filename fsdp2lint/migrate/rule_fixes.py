"""The contract of FSDP2 on migrated code: the rules' own fixes where FSDP1 allowed what FSDP2 does not.

FSDP1 trains with an optimizer that was built before wrapping, lets ``model.forward(x)`` through its hooks
and a method other than ``forward`` compute; ``fully_shard`` does none of this. The rules know these mistakes
and their fixes, so the migration asks them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.findings import Finding
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.steps import Account, Kept, Step
from fsdp2lint.meanings.fsdp1 import FSDP1
from fsdp2lint.model.events import OptimizerBuilt, Saved, StateDictTaken, Wrapping
from fsdp2lint.model.trace import options
from fsdp2lint.model.values import External, Literal, StateDict, unwrapped
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


_ADVICE = ("FSDP205", "FSDP206", "FSDP212", "FSDP222", "FSDP314", "FSDP328", "FSDP410", "FSDP509")
"""Rules that advise what FSDP1 did not do either: the groups, what is in none, the dtype of the weights and inputs, which
ranks read a file, where a save goes, and the order of the data stay those of FSDP1, and the ledger says it."""

_HANGS = ("FSDP402", "hang in the forward of")
"""The rule about ranks that leave alone, and what it says where FSDP1 hangs as well: its forward gathers too."""


_BUILT_TOO_EARLY = "FSDP201"
"""The rule about optimizers over parameters that are replaced later, as FSDP1 replaced them by flat ones too."""


_FILE_OF_SHARDS = "FSDP301"
"""The rule about files with the shards of one rank, of which FSDP1 wrote some too: then no fix gathers them."""


@dataclass(frozen=True, slots=True)
class Before:
    """What was wrong before the migration: what the rules said, and what FSDP1 did just as wrong and no rule says."""

    said: Counter[Said] = field(default_factory=Counter)
    wrong: frozenset[tuple[Said, str]] = frozenset()
    """Each with words that a finding about it has."""
    hangs: frozenset[tuple[str, str, int]] = frozenset()
    """The rule and file of each call that some ranks never came to, and the line of the test that it is below."""


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
    """The findings of a rule in a trace, kept with it: many traces stay the same when a text changes."""
    return trace.derived(_findings_of, rule)


def _findings_of(trace: Trace, rule: Rule) -> tuple[Finding, ...]:
    return tuple(rule.all_findings(trace))


def before(program: Program) -> Before:
    """What is wrong with a program, without the events that it is about."""
    said = Counter(_said(rule, finding) for rule, finding in findings(program))
    hangs = frozenset(
        (rule.code, site.source.path, site.source.range(test_around(site)).line)
        for rule, finding in findings(program)
        if rule.code in _HANGING
        for site in (site_of(finding),)
    )
    wrong = frozenset((*_built_too_early(program), *_files_of_shards(program)))
    return Before(said, wrong, hangs)


_HANGING = ("FSDP401", "FSDP402")
"""What makes a program of FSDP1 hang as well, by whatever name it makes the call."""


def _built_too_early(program: Program) -> Iterator[tuple[Said, str]]:
    """Optimizers over parameters that FSDP1 then replaced by flat ones, so that they trained nothing.

    With ``use_orig_params=True`` the parameters stay (torch/distributed/fsdp/_flat_param.py).
    """
    for trace in program.traces:
        for built in trace.of(OptimizerBuilt):
            flat = (w for w in trace.after(built, Wrapping) if w.by == "fsdp1" and _is_flat(w))
            models = [unwrapped(w.module) for w in flat]
            over = [unwrapped(p.of) for p in built.over]
            if any(trace.inside(one, model) for one in over for model in models):
                yield (_BUILT_TOO_EARLY, built.at.source.path, built.at.code), ""


def _files_of_shards(program: Program) -> Iterator[tuple[Said, str]]:
    """Files into which each rank wrote its own shards under FSDP1, because the script asked for these.

    Where more is in a file, what is reported about the whole others is something new.
    """
    for trace in program.traces:
        for saved in trace.of(Saved):
            what = _about_file(saved.at)
            mine = [state for state in saved.states if _is_of_a_rank(trace, state)]
            for state in mine:
                yield what, "" if len(mine) == len(saved.states) else f" of `{state.of.words()}`"


def _about_file(save: Site) -> Said:
    """A file that a call writes, by how it says the path: what goes into it is written anew."""
    args = save.node.args if isinstance(save.node, cst.Call) else ()
    path = args[-1].value if args else save.node
    return _FILE_OF_SHARDS, save.source.path, save.source.code(path)


def _is_of_a_rank(trace: Trace, state: StateDict) -> bool:
    if state.kind == "optimizer" and state.via == ".state_dict":
        return True
    taken = (t for t in trace.of(StateDictTaken) if t.state is state)
    managers = {one for t in taken for manager in t.within for one in options(manager)}
    asked = (
        called.argument(1, "state_dict_type")
        for called in trace.calls(f"{FSDP1}.state_dict_type")
        if called.result in managers
    )
    return any(isinstance(one, External) and one.name.endswith(_OF_A_RANK) for one in asked)


_OF_A_RANK = (".SHARDED_STATE_DICT", ".LOCAL_STATE_DICT")


def _is_flat(wrapping: Wrapping) -> bool:
    given = wrapping.options.get("use_orig_params")
    return given is None or (isinstance(given, Literal) and given.value is False)


def new_findings(before: Before, after: Program) -> list[tuple[Rule, Finding]]:
    """The findings of a program that were not said before."""
    known = before.said.copy()
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


def holds_anyway(before: Before, rule: Rule, finding: Finding) -> bool:
    """Whether what a rule finds holds for FSDP1 as well, so that the migration changes nothing about it."""
    code, said = _HANGS
    if finding.fix is None or rule.code == _FILE_OF_SHARDS:
        file = rule.code == _FILE_OF_SHARDS
        this = _about_file(site_of(finding)) if file else _said(rule, finding)
        if any(this == wrong and words in finding.message for wrong, words in before.wrong):
            return True
    return rule.code in _ADVICE or (rule.code == code and said in finding.message)


def advice(rule: Rule, finding: Finding) -> Kept:
    """What the ledger says of a finding that holds for FSDP1 as well."""
    site = site_of(finding)
    return Kept(site.source, site.node, f"as under FSDP1: {finding.message} ({rule.code})")


def site_of(finding: Finding) -> Site:
    """Where a finding is."""
    return finding.at if isinstance(finding.at, Site) else finding.at.at


def test_around(site: Site) -> cst.CSTNode:
    """The ``if`` that a place is in; the place itself where it is in none."""
    around = Layout.of(site.source).ancestors(site.node)
    return next((one for one in around if isinstance(one, cst.If)), site.node)


def _said(rule: Rule, finding: Finding) -> Said:
    site = site_of(finding)
    return rule.code, site.source.path, site.source.code(site.node)


def _applies(rule: Rule, version: tuple[int, int]) -> bool:
    def parts(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split("."))

    return version >= parts(rule.since) and (not rule.until or version <= parts(rule.until))
