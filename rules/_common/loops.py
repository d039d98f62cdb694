"""The loop that trains: which events happen once in each of its steps."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import (
    Backward,
    Event,
    GroupStarted,
    Layout,
    Site,
    Source,
    Stepped,
    Trace,
    once,
)

Loop = cst.For | cst.While


def loops_around(event: Event) -> list[Loop]:
    """The loops that repeat an event, innermost first, through the calls that lead to it."""
    found: list[Loop] = []
    for site in (event.at, *reversed(event.moment.calls)):
        found += loops_at(site)
    return found


def loops_at(site: Site) -> tuple[Loop, ...]:
    """The loops of one function in whose body (or whose ``while`` test) a site is."""
    return site.source.derived(_loops_above, site.node)


def _loops_above(source: Source, node: cst.CSTNode) -> tuple[Loop, ...]:
    found: list[Loop] = []
    inner = node
    for around in Layout.of(source).ancestors(node):
        if isinstance(around, cst.FunctionDef | cst.Lambda):
            break
        repeats = isinstance(around, cst.For) and inner is around.body
        if repeats or (isinstance(around, cst.While) and inner is not around.orelse):
            found.append(around)  # type: ignore[arg-type]
        inner = around
    return tuple(found)


@once
def _step_loops(trace: Trace) -> dict[Loop, Stepped]:
    """The innermost loop around each step of an optimizer."""
    found: dict[Loop, Stepped] = {}
    for stepped in trace.of(Stepped):
        for loop in loops_around(stepped)[:1]:
            found.setdefault(loop, stepped)
    return found


@once
def _backward_loops(trace: Trace) -> set[Loop]:
    """The innermost loops around a backward in which gradients are cleared, or something makes a step."""
    calls = trace.calls(".step", ".zero_grad")
    stepping = {loop for called in calls for loop in loops_around(called)[:1]}
    return {
        loop
        for backward in trace.of(Backward)
        for loop in loops_around(backward)[:1]
        if loop in stepping
    }


def leaves_after(event: Event, loop: Loop) -> bool:
    """Whether the loop is left in the very branch in which an event happens, behind it."""
    for site in (event.at, *reversed(event.moment.calls)):
        layout = Layout.of(site.source)
        inner: cst.CSTNode = site.node
        for around in layout.ancestors(site.node):
            if around is loop.body or isinstance(around, cst.FunctionDef):
                break
            if isinstance(around, cst.IndentedBlock) and loop in layout.ancestors(around):
                behind = around.body[around.body.index(inner) + 1 :]
                if any(_leaves(one) for one in behind):
                    return True
            inner = around
    return False


def _leaves(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and any(
        isinstance(small, cst.Break | cst.Return | cst.Raise) for small in statement.body
    )


def step_loop(trace: Trace, event: Event) -> Loop | None:
    """The innermost loop around the step of an optimizer, when an event happens in it too."""
    steps = _step_loops(trace)
    return next((loop for loop in loops_around(event) if loop in steps), None)


def train_loop(trace: Trace, event: Event) -> Loop | None:
    """The innermost loop around the step of an optimizer, or around a backward where that is not known, with an event in it."""
    found = step_loop(trace, event)
    loops = _backward_loops(trace) if found is None else ()
    return found or next((loop for loop in loops_around(event) if loop in loops), None)


def each_step(trace: Trace, event: Event) -> Stepped | None:
    """The step of the optimizer in whose own loop an event happens too; None outside of such loops."""
    loop = step_loop(trace, event)
    return None if loop is None else _step_loops(trace)[loop]


@once
def only_cpu(trace: Trace) -> bool:
    """Whether a script surely trains on CPUs: each process group it starts is gloo's alone."""
    started = trace.of(GroupStarted)
    return bool(started) and all(one.backend == "gloo" for one in started)
