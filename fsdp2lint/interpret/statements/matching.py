"""``match``: each case is under the guard that its pattern fits and no earlier one did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp2lint.interpret import conditions
from fsdp2lint.interpret.binding import bind
from fsdp2lint.interpret.handlers import run_body
from fsdp2lint.model.guards import NEVER, Clause, Guards
from fsdp2lint.model.values import Value

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine


def match(machine: Machine, node: cst.Match) -> None:
    """Run the cases one after the other, as an ``elif`` chain."""
    base = machine.here
    subject = machine.eval(node.subject)
    refused: frozenset[Clause] | None = frozenset()
    left: list[tuple[frozenset[Clause] | None, Guards]] = []
    for case in node.cases:
        test = _fits(machine, subject, case.pattern)
        if case.guard is not None:
            test = conditions.logic(machine, "and", [test, machine.eval(case.guard)])
        site = machine.site(case.pattern)
        taken, other = conditions.sides(machine, test, site)
        standing = None if refused is None or taken is None else refused | taken
        machine.here = base.also(standing) if standing is not None else NEVER
        _capture(machine, subject, case.pattern)
        run_body(machine, case.body)
        left.append((standing, machine.here))
        refused = None if refused is None or other is None else refused | other
        machine.here = base
    if refused is not None:
        left.append((refused, base.also(refused)))
    machine.here = conditions.joined(base, left, fatal=not machine.catching)


def _fits(machine: Machine, subject: Value, pattern: cst.MatchPattern) -> Value:
    """The test "the subject fits the pattern"."""
    if isinstance(pattern, cst.MatchAs):
        if pattern.pattern is None:
            return machine.literal(True)
        return _fits(machine, subject, pattern.pattern)
    if isinstance(pattern, cst.MatchValue | cst.MatchSingleton):
        return conditions.compare(machine, subject, "==", machine.eval(pattern.value))
    if isinstance(pattern, cst.MatchOr):
        tests = [_fits(machine, subject, option.pattern) for option in pattern.patterns]
        return conditions.logic(machine, "or", tests)
    if isinstance(pattern, cst.MatchClass):
        cls = machine.eval(pattern.cls)
        return subject.part(("isinstance", cls))
    return subject.part(("match", machine.source.code(pattern)))


def _capture(machine: Machine, subject: Value, pattern: cst.CSTNode) -> None:
    """Bind the names that a pattern captures."""
    if isinstance(pattern, cst.MatchAs):
        if pattern.name is not None:
            bind(machine, pattern.name, subject)
        if pattern.pattern is not None:
            _capture(machine, subject, pattern.pattern)
        return
    if isinstance(pattern, cst.MatchStar) and pattern.name is not None:
        bind(machine, pattern.name, subject.part(("*", pattern.name.value)))
        return
    if isinstance(pattern, cst.MatchSequence):
        for index, element in enumerate(pattern.patterns):
            inside = machine.item(subject, machine.literal(index), machine.site(pattern))
            _capture(machine, inside, getattr(element, "value", element))
        return
    for index, child in enumerate(pattern.children):
        if isinstance(child, cst.MatchPattern):
            _capture(machine, subject.part(("match", index)), child)
        elif isinstance(child, cst.CSTNode):
            _capture(machine, subject, child)
