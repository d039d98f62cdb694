"""Run the codemods over a program, one after the other, and keep the account of what they do."""

from __future__ import annotations

import gc
import os
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp2lint.ask.inventory import inventory
from fsdp2lint.ask.program import Options, Program
from fsdp2lint.ask.wrapped import is_fairscales, is_fsdp_itself
from fsdp2lint.catalogue.declare import EVERY_OTHER
from fsdp2lint.catalogue.findings import Finding
from fsdp2lint.edits.apply import Outcome, combine
from fsdp2lint.edits.changes import Span, apply
from fsdp2lint.edits.import_lines import on_one_line
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.long_lines import broken_lines
from fsdp2lint.edits.steps import Account, Kept, Left, Respelling, Step
from fsdp2lint.edits.unbound import unbound_in
from fsdp2lint.migrate.ledger import Entry, Ledger, Place, Todo
from fsdp2lint.migrate.leftovers import (
    account_for_imports,
    account_for_the_rest,
    comments,
    idle_imports,
    idle_tests,
    left_before,
    long_pairs,
    statement_at,
    todos,
    unused_imports,
)
from fsdp2lint.migrate.rule_fixes import (
    Before,
    advice,
    fixes,
    holds_anyway,
    new_findings,
    site_of,
    test_around,
)
from fsdp2lint.migrate.rule_fixes import before as wrong_before
from fsdp2lint.migrate.speaks import holds_fsdp1
from fsdp2lint.migrate.units import (
    Held,
    Model,
    Stuck,
    builds_by_hand,
    held,
    left_stuck,
    models,
    opens_by_hand,
)
from fsdp2lint.model.hints import NO_HINTS, Hints
from fsdp2lint.project.links import is_second_rate
from fsdp2lint.source.source import Site, Source, Unreadable
from fsdp2lint.system.collector import no_collector
from fsdp2lint.system.frames import roomy

if TYPE_CHECKING:
    import libcst as cst

    from fsdp2lint.catalogue.declare import Codemod, Rule
    from fsdp2lint.project.links import Folder
    from fsdp2lint.project.project import Interest

RAISED = "stays, and raises `KeyError: None` on a model of FSDP2 when it is left"
MAX_ROUNDS = 12
MAX_ATTEMPTS = 3
"""How often the whole is done again, because a model cannot be migrated as a whole."""
WORTH_COLLECTING = 3_000_000
"""So many events of texts that are no more were let go before it is worth looking for what is left of them.

Nearly all goes by itself, and in a large project one look takes as long as tracing it again.
"""
REQUIREMENT = "torch-requirement"
_OF_FSDP2 = ("torch.distributed.fsdp.fully_shard", "torch.distributed.fsdp.FSDPModule")
RAISES = "FSDP229"
"""A context or helper of FSDP1 around a model of FSDP2 raises, whatever is to be done about it by hand."""
_INSIDE = re.compile(
    r"^(?:from|import) torch\.distributed\.fsdp\.(_\w+|flat_param)\b", re.MULTILINE
)
"""Imports of the modules that FSDP1 is made of."""
CONTRACT = "contract"
IMPORTS = "imports"
"""What the two stages are called that are no codemods."""

Made = tuple[Step, str]
Spot = tuple[int, int, int | None]
"""A step, and who makes it."""
Progress = Callable[[str], None]
Accept = Callable[["Stage"], bool]


@dataclass(slots=True)
class Stage:
    """What codemods changed: their files before and after, and the entries that they accounted for."""

    codemod: str
    """The name of the codemod; of several that ran together, all that changed something."""
    changed: list[tuple[Source, Source]]
    entries: list[Entry]


@dataclass(slots=True)
class Migration:
    """The outcome: the files before and after, the ledger, and what failed on the way."""

    before: tuple[Source, ...]
    after: tuple[Source, ...]
    ledger: Ledger
    stages: list[Stage] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Codemods that raised: errors in the tool itself."""
    remaining: list[tuple[Rule, Finding]] = field(default_factory=list)
    """What ``check`` says of the new text and did not say of the old."""
    todos: tuple[Todo, ...] = ()
    """What earlier runs left to a person and nobody has done yet."""
    models: tuple[Model, ...] = ()
    """The models that FSDP1 wrapped before."""

    @property
    def changed(self) -> list[tuple[Source, Source]]:
        """Each file whose text is another now."""
        pairs = zip(self.before, self.after, strict=True)
        return [(old, new) for old, new in pairs if old.text != new.text]


@roomy
def migrate(
    sources: Sequence[Source],
    codemods: Sequence[Codemod],
    roots: Sequence[Folder] = (),
    options: Options | None = None,
    *,
    whole: bool = True,
    progress: Progress = lambda name: None,
    accept: Accept | None = None,
    apart: bool = False,
    texts: Sequence[Source] = (),
    hints: Hints = NO_HINTS,
    staying: Collection[Stuck] = (),
) -> Migration:
    """Run the codemods over the sources; nothing is written.

    With ``whole``, what no codemod accounts for is left to a person, with a comment in the text;
    otherwise (some codemods were left out) it stays open. ``accept`` is asked for each stage: what it
    refuses is undone, and then the migration is not a whole one. Codemods that need not wait for each other
    run together and are one stage, unless ``apart``. ``hints`` is what the configuration says of functions of
    the project. The models of the constructors ``staying`` stay FSDP1's.
    """
    before = tuple(one.bare() for one in (*sources, *texts))
    apart = apart or accept is not None
    stuck = frozenset[Stuck]()
    if whole and accept is None:
        stuck = frozenset(left_stuck(sources)).union(staying)
    by_hand: frozenset[Place] = frozenset()
    first = Program(tuple(sources), tuple(roots), options or Options(), tuple(texts), hints)
    first.interests = first.project.interests = interests(first)
    wrapped = tuple(models(first)) if whole and accept is None else ()
    program: Program | None = first
    del first
    known: Before | None = None if whole else Before()
    for _ in range(MAX_ATTEMPTS):
        assert program is not None
        with no_collector():  # but between two rounds, where traces are let go
            run = _Run(program, before, accept, held(program, stuck) if stuck else None, by_hand)
            if known is None:
                known = wrong_before(program)
            program = None  # its traces go when a codemod has changed a text
            for together in [[one] for one in codemods] if apart else waves(codemods):
                for codemod in together:
                    progress(codemod.name)
                run.make(together)
            if whole and not run.refused:
                progress("the contract of fully_shard")
                run.keep_the_contract(known)
                run.conclude()
            elif accept is None:
                run.lay_out()
        lines = {(one.path, one.line) for one in stuck}
        found = frozenset(one for one in run.stuck() if (one.path, one.line) not in lines)
        more = stuck | found if whole and accept is None else stuck
        if more == stuck or not run.stages:
            run.program.runs.forget()
            run.undone()
            break
        program = run.undone()
        if not stuck:
            by_hand = frozenset(entry.start for entry in run.ledger.manual)
        stuck = more  # nothing of their models may be rewritten: all of it once more
    run.ledger.entries.sort(key=lambda e: (e.path, e.cell or 0, e.line, e.column))
    return Migration(
        before,
        run.after,
        run.ledger,
        run.stages,
        run.failures,
        run.remaining,
        tuple(todos(before)),
        wrapped,
    )


def interests(program: Program) -> dict[str, Interest]:
    """The files that hold no FSDP1: near are those that import, through others of the project, one that does.

    Tests are aside: how they call something is a poor picture of how it is used. Those that hold FSDP1 themselves are
    rewritten, and need no patience where the project has more than tests of it.
    """
    project = program.project
    paths = {project.path_of(one): one for one in program.sources}
    importers: dict[str, list[str]] = {}
    for path, one in paths.items():
        for imported in project.imported_by(one):
            importers.setdefault(imported, []).append(path)
    about = {p for p, one in paths.items() if holds_fsdp1(one.text.encode(errors="ignore"))}
    near = set(about)
    waiting = list(about)
    while waiting:
        more = set(importers.get(waiting.pop(), ())) - near
        near |= more
        waiting += more
    top = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    tests = {path for path in paths if is_second_rate(os.path.relpath(path, top))}
    found: dict[str, Interest] = {}
    for path, one in paths.items():
        if path not in about:
            found[one.path] = "near" if path in near - tests else "aside"
        elif path in tests and about - tests:
            found[one.path] = "tests"
    return found


def waves(codemods: Sequence[Codemod]) -> list[list[Codemod]]:
    """The codemods in their order, those together of which none has to see what another wrote.

    They ask the same traces: in a large project, to trace a new text costs more than all codemods.
    """
    found: list[list[Codemod]] = []
    for one in codemods:
        last = found[-1] if found else []
        if not last or EVERY_OTHER in one.after or any(other.name in one.after for other in last):
            found.append([one])
        else:
            last.append(one)
    return found


def _is_inner(source: Source) -> bool:
    return is_fsdp_itself(source) or len(set(_INSIDE.findall(source.text))) > 2


def _as_it_was(finding: Finding) -> Finding:
    """A finding that knows its place whatever text its file gets."""
    site = site_of(finding)
    return Finding(Site(site.source.kept(), site.node, site.statement), finding.message)


class _Run:
    """The state of a migration on its way."""

    def __init__(
        self,
        program: Program,
        before: tuple[Source, ...],
        accept: Accept | None,
        held: Held | None,
        by_hand: frozenset[Place],
    ) -> None:
        self.program = program
        self.before = before
        """The files as they were."""
        self.after = before
        self.held = held
        self.by_hand = by_hand
        """What could not be rewritten before anything was held: the rest follows from it."""
        self.accept = accept
        self.refused = False
        self.ledger = Ledger(inventory(program))
        for one in held.stuck if held is not None else ():
            if one.todo and not one.builds:
                self._begin_there(one)
        self.stages: list[Stage] = []
        self.failures: list[str] = []
        self.remaining: list[tuple[Rule, Finding]] = []
        self.breaking: list[tuple[tuple[Rule, Finding], Spot, list[Entry]]] = []
        """What remains, where that was before the migration, and what is there and where a fix would change it."""
        self.made: set[str] = set()
        """Who changed a text in this stage."""

    def make(self, codemods: Sequence[Codemod]) -> None:
        """Run codemods of which none waits for another, together, until they change nothing more.

        Where a framework wraps all models in unresolved code, only those run that say they are right there; none
        where FSDP is another library's.
        """
        if is_fairscales(self.program.sources):
            return
        asked = [one for one in codemods if one.frameworks or not self.program.framework]
        self.made = set()
        first = self._now()
        known = [(entry, copy(entry)) for entry in self.ledger.entries]
        for _ in range(MAX_ROUNDS):
            if not self._round(asked):
                break
            self._let_go()
        entries = [entry for entry, old in known if entry.fate != old.fate]
        working = self.made | {entry.by for entry in entries}
        name = ", ".join(one.name for one in codemods if one.name in working)
        if self._remember(name or codemods[0].name, first, entries):
            return
        self.refused = True
        self.program = self._with(first)
        self.ledger.entries = [old for _, old in known]

    def _round(self, codemods: Sequence[Codemod]) -> bool:
        """Ask each codemod once of the same traces; whether any text changed."""
        steps: list[tuple[Step, str]] = []
        respelled = False
        for codemod in codemods:
            try:
                said = list(codemod.rewrite(self.program))
            except Exception as error:
                self._failed(codemod, error)
                continue
            for one in said:
                if not isinstance(one, Step) and is_fsdp_itself(one.source):
                    continue
                if isinstance(one, Left):
                    self._leave(one, codemod.name)
                elif isinstance(one, Kept):
                    self._keep(one, codemod.name)
            words = [one for one in said if isinstance(one, Respelling)]
            if self._respell(words, codemod.name):
                self.made.add(codemod.name)
                respelled = True
            made = [self._outside(one) for one in said if isinstance(one, Step)]
            steps += [(one, codemod.name) for one in made if self._is_free(one, codemod.name)]
        return self._apply(steps) or respelled

    def _outside(self, step: Step) -> Step:
        """A step without what it does to files that work inside FSDP1, such as a copy of one of its modules."""
        inner = {one.source for one in step.edits if _is_inner(one.source)}
        if not inner:
            return step
        accounts = tuple(one for one in step.accounts if one.source not in inner)
        edits = tuple(one for one in step.edits if one.source not in inner)
        return Step(edits, accounts, step.words)

    def stuck(self) -> Iterator[Stuck]:
        """The constructors that no codemod could rewrite, and what would break a rule of FSDP2."""
        for entry in self.ledger.manual:
            if entry.cell is not None or (self.held is not None and entry.why == self.held.why):
                continue
            shown, at = f"{entry.path}:{entry.place}", (entry.path, entry.line, entry.column)
            if builds_by_hand(entry):
                yield Stuck(*at, True, shown, entry.why, entry.todo)
            elif opens_by_hand(entry):
                shown += f": `state_dict_type` {RAISED}"
                yield Stuck(*at, False, shown, entry.why, entry.todo)
        for (rule, finding), (line, column, cell), here in self.breaking:
            path = site_of(finding).source.path
            said = rule.code != RAISES and any(e.fate == "manual" for e in here)
            if rule.group == "correctness" and cell is None and not said:
                shown = f"{path}:{line}: {finding.message} ({rule.code})"
                todo = f"as FSDP2, {finding.message}" if rule.code != RAISES else ""
                yield Stuck(path, line, column, False, shown, todo=todo)

    def _begin_there(self, one: Stuck) -> None:
        """Say at a line that would break a rule what a person has to do there."""
        assert self.held is not None
        source = next(s for s in self.program.sources if s.path == one.path)
        at = one.offset(source)
        here = self.ledger.inside(source, at, at + 1)
        if any(e.todo for e in here):
            return  # one thing to do a line is enough to begin with
        entry = here[0] if here else self.ledger.enter(source, statement_at(source, at))
        entry.account("manual", self.held.why, CONTRACT, 0, one.todo)

    def _holds(self, source: Source, node: cst.CSTNode) -> bool:
        """Whether a place belongs to a model that stays FSDP1's."""
        if self.held is None:
            return False
        at = node if node is source.tree else Layout.of(source).statement(node)
        return self.held.holds((source.path, self.ledger.place(source, at)[0]))

    def _leave_held(self, entry: Entry, by: str) -> None:
        """Leave a piece of a model that stays, unless it has an entry already."""
        assert self.held is not None
        if entry.fate == "open":
            why, todo = self.held.reason(entry)
            entry.account("manual", why, by, 0, todo)

    def _is_free(self, step: Step, by: str) -> bool:
        """Whether a step touches no model that stays, and nothing that an earlier run left to a person.

        Below the comment of an earlier run nothing changes until the person has taken it away.
        """
        if self.held is not None and by != CONTRACT:
            tells = not step.edits and all(one.fate == "preserved" for one in step.accounts)
            if not tells and any(self._holds(one.source, one.node) for one in step.accounts):
                for one in step.accounts:
                    start, end = Layout.of(one.source).span(one.node)
                    for entry in self.ledger.inside(one.source, start, end):
                        self._leave_held(entry, by)
                self._leave_words(step, self.held.why, by)
                return False
        begun = [left_before(one.source, one.node) for one in step.accounts]
        for account, todo in zip(step.accounts, begun, strict=True) if any(begun) else ():
            what = "this" if todo else "a part of this"
            why = f"an earlier run left {what} for manual migration"
            self._leave(Left(account.source, account.node, why, todo), by)
            self._leave_words(step, why, by)
        return not any(begun) and (by != CONTRACT or not self._halves(step))

    def _halves(self, step: Step) -> bool:
        """Whether a fix rewrites code whose meaning is left to a person: it would be half of a rewriting."""
        return any(
            entry.fate == "manual" and entry.kind == "code"
            for source, spans in combine([step.edits]).spans.items()
            for span in spans
            for entry in self.ledger.inside(source, span.start, span.end)
        )

    def undone(self) -> Program:
        """The program as it was: its files take their old texts again, and what came of them is kept."""
        self.after = self._now()
        program = self._with(self.before)
        self._let_go()
        return program

    def _now(self) -> tuple[Source, ...]:
        """The files as they are."""
        return tuple(one.bare() for one in (*self.program.sources, *self.program.texts))

    def _with(self, files: Sequence[Source]) -> Program:
        """The program with the texts of these files."""
        sources = self.program.sources
        pairs = zip(sources, files[: len(sources)], strict=True)
        new = [old if old.text == one.text else one.bare() for old, one in pairs]
        return self.program.with_sources(new).with_texts(files[len(sources) :])

    def _let_go(self) -> None:
        """Collect what texts that are no more have left, when it is worth the time."""
        if self.program.runs.dropped > WORTH_COLLECTING:
            gc.collect()
            self.program.runs.dropped = 0

    def keep_the_contract(self, known: Before) -> None:
        """Make the fixes of the rules for what they say of the new text and did not say of the old."""
        first = self._now()
        for left in reversed(range(MAX_ROUNDS + 1)):  # the last one only looks
            self.remaining = []  # findings hold the traces that they come from
            self._let_go()
            if not self._keep_the_contract_once(known, mend=left > 0):
                break
        self.breaking = list(map(self._placed, self.remaining))
        self.remaining = [(rule, _as_it_was(finding)) for rule, finding in self.remaining]
        self._remember(CONTRACT, first, [])

    def _placed(self, one: tuple[Rule, Finding]) -> tuple[tuple[Rule, Finding], Spot, list[Entry]]:
        """A finding with its place; computed before its text changes once more."""
        _, finding = one
        site = site_of(finding)
        layout = Layout.of(site.source)
        start, end = layout.span(layout.statement(site.node))
        here = self.ledger.inside(site.source, start, end)
        if finding.fix is not None:
            for source, spans in combine([finding.fix.edits]).spans.items():
                for span in spans:
                    here += self.ledger.inside(source, span.start, span.end)
        return one, self.ledger.place(site.source, site.node), here

    def _keep_the_contract_once(self, known: Before, *, mend: bool) -> bool:
        found = new_findings(known, self.program)
        anyway = [
            one for one in found if holds_anyway(known, *one) or self._hung_before(known, *one)
        ]
        self.remaining = [one for one in found if one not in anyway]
        mends = [(s, CONTRACT) for s in fixes(self.remaining) if self._is_free(s, CONTRACT)]
        if mend and self._apply(mends):
            return True
        for rule, finding in anyway:
            self._keep(advice(rule, finding), CONTRACT)
        return False

    def _hung_before(self, known: Before, rule: Rule, finding: Finding) -> bool:
        """Whether ranks are missing at a call below a test that kept them from one under FSDP1 as well."""
        site = site_of(finding)
        line = self.ledger.place(site.source, test_around(site))[0]
        return (rule.code, site.source.path, line) in known.hangs

    def _remember(self, name: str, first: Sequence[Source], entries: list[Entry]) -> bool:
        """Keep what a stage did; False when whoever is asked does not want it."""
        pairs = zip(first, self._now(), strict=True)
        changed = [(old, new) for old, new in pairs if old.text != new.text]
        if not changed and not entries:
            return True
        stage = Stage(name, changed, entries)
        if changed and self.accept is not None and not self.accept(stage):
            return False
        self.stages.append(stage)
        return True

    def conclude(self) -> None:
        """Give what is open to a person, and say in the text what a person has to do."""
        first = self._now()
        for entry in self.ledger.entries if self.held is not None else ():
            if entry.fate == "open" and entry.kind != "import" and entry.at is not None:
                source = next(one for one in self.program.sources if one.path == entry.path)
                if self._holds(source, statement_at(source, entry.at)):
                    self._leave_held(entry, "")
        self._ask_for_no_release()
        account_for_the_rest(self.program, self.ledger)
        while self._apply([(s, IMPORTS) for s in idle_tests(self._pairs())]):
            pass
        self._apply([(s, IMPORTS) for s in long_pairs(self._pairs())])
        mine = {new for old, new in self._pairs() if old.text != new.text or self.held is None}
        unused = [one for one in unused_imports(self.program) if one.edits[0].source in mine]
        self._apply([(s, IMPORTS) for s in unused])
        self._apply([(s, IMPORTS) for s in idle_imports(self.program, self._pairs())])
        self.lay_out()
        account_for_imports(self.program, self.ledger)
        self._apply([(s, "") for s in comments(self.program, self.ledger)])
        self._remember(IMPORTS, first, [])

    def _ask_for_no_release(self) -> None:
        """Take requirements of torch back where everything stays FSDP1's: no release is needed for that."""
        if self.held is None or any(self.program.references(*_OF_FSDP2)):
            return
        old = {one.path: one for one in self.before}
        raised = {one.path for one in self.ledger.entries if one.by == REQUIREMENT}
        texts = [
            one.with_text(old[one.path].text) if one.path in raised else one
            for one in self.program.texts
        ]
        self.program = self.program.with_texts(texts)
        self.ledger.entries = [one for one in self.ledger.entries if one.by != REQUIREMENT]

    def _pairs(self) -> Iterator[tuple[Source, Source]]:
        """The files of Python as they were and as they are."""
        sources = self.program.sources
        return zip(self.before[: len(sources)], sources, strict=True)

    def lay_out(self) -> None:
        """Write on one line, or on several, what the rewriting made too short or too long."""
        for layout in (on_one_line, broken_lines):
            edits = [e for old, new in self._pairs() for e in layout(old, new)]
            self._apply([(Step((e,), ()), IMPORTS) for e in edits])

    def _apply(self, steps: Sequence[Made]) -> bool:
        """Make the steps that go together; whether any text changed."""
        while True:
            outcome = combine([step.edits for step, _ in steps])
            bad = {left.index: left for left in outcome.left if not left.again}
            late = {left.index for left in outcome.left if left.again}
            for index, left in bad.items():
                self._refuse(steps[index], f"two rewritings conflict here: {left.why}")
            made = [s for i, s in enumerate(steps) if i not in bad and i not in late]
            broken = self._broken(outcome)
            if broken is None:
                break
            steps = self._without(made, *broken)
        for step, by in made:
            if step.edits:
                self.made.add(by)
            for account in step.accounts:
                self._account(account, by)
        respelled = [self._respell(step.words, by) for step, by in made if step.words]
        return self._take(outcome) or any(respelled)

    def _respell(self, words: Sequence[Respelling], by: str) -> bool:
        """Change files that are no Python; whether any text changed."""
        new: list[Source] = []
        for source in self.program.texts:
            mine = sorted((w for w in words if w.source is source), key=lambda w: w.start)
            self.ledger.add(mine, by)
            spans = [Span(w.start, w.end, w.text) for w in mine if w.changes]
            text = apply(source.text, spans)
            new.append(source.with_text(text) if text != source.text else source)
        if tuple(new) == self.program.texts:
            return False
        self.program = self.program.with_texts(new)
        return True

    def _take(self, outcome: Outcome) -> bool:
        texts = outcome.texts
        new: list[Source] = []
        for source in self.program.sources:
            if source in texts and texts[source] != source.text:
                self.ledger.follow(source, outcome.spans[source])
                new.append(source.with_text(texts[source]))
            else:
                new.append(source)
        if tuple(new) == self.program.sources:
            return False
        self.program = self.program.with_sources(new)
        return True

    def _broken(self, outcome: Outcome) -> tuple[Source, str] | None:
        """A source that may not be changed, or whose new text would be no good, and why."""
        mine = set(self.program.sources)
        for source, text in outcome.texts.items():
            spoils = f"the rewriting would spoil {source.path}"
            if source not in mine:
                return source, spoils
            try:
                source.encode(text)
                new = source.with_text(text)
                if not Layout.of(new).faithful:
                    return source, spoils
            except (Unreadable, UnicodeEncodeError):
                return source, spoils
            brought = new.derived(unbound_in) - source.derived(unbound_in)
            if names := sorted({name for _, name in brought}):
                return source, f"`{names[0]}` could be read here before it has a value"
        return None

    def _without(self, made: Sequence[Made], broken: Source, why: str) -> list[Made]:
        """The steps without the first that spoils a file alone, or without all of that file."""
        touching = [s for s in made if any(e.source is broken for e in s[0].edits)]
        alone = [s for s in touching if self._broken(combine([s[0].edits])) is not None]
        dropped = alone[:1] or touching
        for one in dropped:
            self._refuse(one, why)
        return [s for s in made if s not in dropped]

    def _refuse(self, made: Made, why: str) -> None:
        """Leave all of a step to a person."""
        step, by = made
        for account in step.accounts:
            self._leave(Left(account.source, account.node, why, "migrate this by hand"), by)
        self._leave_words(step, why, by)

    def _leave_words(self, step: Step, why: str, by: str) -> None:
        """Leave what a step would have changed in files that are no Python."""
        todo = "migrate this by hand, with the code that goes with it"
        self.ledger.add([replace(word, why=why, todo=todo) for word in step.words[:1]], by)

    def _account(self, account: Account, by: str) -> None:
        start, end = Layout.of(account.source).span(account.node)
        inside = self.ledger.inside(account.source, start, end)
        if account.own:
            said = (e for e in inside if e.by == by and (e.kind != "code" or e.why == account.why))
            if next(said, None) is not None:
                return  # in the round before
            inside = [self.ledger.enter(account.source, account.node)]
        for entry in inside:
            entry.account(account.fate, account.why, by, end - start)

    def _leave(self, left: Left, by: str) -> None:
        start, end = Layout.of(left.source).span(left.node)
        inside = self.ledger.inside(left.source, start, end)
        for entry in inside or [self.ledger.enter(left.source, left.node)]:
            follows = entry.start not in self.by_hand and self._holds(left.source, left.node)
            if follows:
                self._leave_held(entry, by)
            elif entry.fate == "open":
                entry.account("manual", left.why, by, end - start, left.todo, left.skeleton)

    def _keep(self, kept: Kept, by: str) -> None:
        start, end = Layout.of(kept.source).span(kept.node)
        here = self.ledger.inside(kept.source, start, start + 1)
        known = next((e for e in here if e.kind == "code" and e.by == by), None)
        entry = known or self.ledger.enter(kept.source, kept.node)
        where = ""
        if kept.at is not None:
            where = f": {kept.at[0].path}:{self.ledger.place(*kept.at)[0]}"
        entry.account("preserved", kept.why + where, by, end - start)

    def _failed(self, codemod: Codemod, error: Exception) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        failed = f"{codemod.name} failed: {type(error).__name__}: {error} ({where})"
        if failed not in self.failures:  # once, when others of its stage go on
            self.failures.append(failed)
