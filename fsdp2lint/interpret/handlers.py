"""Which function evaluates or runs which kind of node; the files of this package fill the table, and bodies are run by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import libcst as cst

from fsdp2lint.model.events import Exited
from fsdp2lint.model.guards import FAILED, NEVER

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine

Handler = TypeVar("Handler", bound=Callable[["Machine", Any], Any])
HANDLERS: dict[type[cst.CSTNode], Callable[[Machine, Any], Any]] = {}
"""Handlers of expressions return a value, those of statements nothing."""

_LINES = (cst.SimpleStatementLine, cst.SimpleStatementSuite)


def handles(*kinds: type[cst.CSTNode]) -> Callable[[Handler], Handler]:
    """Register the handler of kinds of nodes."""

    def register(handler: Handler) -> Handler:
        for kind in kinds:
            HANDLERS[kind] = handler
        return handler

    return register


def run(machine: Machine, block: Sequence[cst.CSTNode]) -> None:
    """Run statements one after the other; those that cannot be reached are walked once, without effect."""
    frame = machine.frame
    outer = frame.statement
    for statement in block:
        if machine.here.impossible:
            if statement in machine.walked:
                continue
            machine.walked.add(statement)
        for one in getattr(statement, "body", ()) if type(statement) in _LINES else (statement,):
            frame.statement = statement
            handler = HANDLERS.get(type(one))
            if handler is not None:
                handler(machine, one)
    frame.statement = outer


def run_body(machine: Machine, body: cst.BaseSuite) -> None:
    """Run the body of a compound statement."""
    if type(body) is cst.SimpleStatementSuite:
        run(machine, [body])
    else:
        run(machine, body.body)


def leave(machine: Machine, node: cst.CSTNode, how: str) -> None:
    """Control does not go on behind ``node``; a departure under a condition is written down."""
    if machine.here.clauses and not machine.here.impossible:
        machine.record(Exited(machine.moment(machine.site(node)), how, machine.here))
    machine.here = FAILED if how == "raise" else NEVER
