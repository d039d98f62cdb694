"""What statements do. Each leaves in ``machine.here`` what must hold for control to go on behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst
from libcst.helpers import get_full_name_for_node

from fsdp2lint.interpret import classes, conditions, functions, imports, loops
from fsdp2lint.interpret.binding import bind
from fsdp2lint.interpret.displays import filled
from fsdp2lint.interpret.handlers import handles, leave, run_body
from fsdp2lint.interpret.operators import operate
from fsdp2lint.interpret.scopes import Scope
from fsdp2lint.interpret.statements import contexts, matching
from fsdp2lint.model.events import Augmented
from fsdp2lint.model.guards import NEVER, Clause, Guards
from fsdp2lint.model.values import (
    Container,
    Literal,
    StateDict,
    Unknown,
    Value,
    rank_dependent,
)

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine


# -- simple statements ---------------------------------------------------------------------------


@handles(cst.Expr)
def expression(machine: Machine, node: cst.Expr) -> None:
    machine.eval(node.value)


@handles(cst.Assign)
def assign(machine: Machine, node: cst.Assign) -> None:
    value = machine.eval(node.value)
    for target in node.targets:
        bind(machine, target.target, value)


@handles(cst.AnnAssign)
def annotated(machine: Machine, node: cst.AnnAssign) -> None:
    if node.value is not None:
        bind(machine, node.target, machine.eval(node.value))


@handles(cst.AugAssign)
def augmented(machine: Machine, node: cst.AugAssign) -> None:
    before = machine.eval(node.target)
    value = machine.eval(node.value)
    symbol = _AUGMENTED.get(type(node.operator), "?")
    if isinstance(before, Container) and symbol in ("+", "|"):
        functions.extend(machine, before, value, machine.site(node))
        return
    if isinstance(before, StateDict) and symbol == "|":
        filled(machine, before, [value], node)
        return
    if not isinstance(before, Literal):
        machine.record(Augmented(machine.moment(machine.site(node)), before, symbol))
    local = isinstance(
        node.target, cst.Name
    )  # what an object or a table counts outlives inner loops
    counted = machine.counted if local else not machine.uncounted
    if _counts(before, value) and not counted:  # two rounds are walked, and many run
        bind(machine, node.target, before.part((symbol, value)))
        return
    bind(machine, node.target, operate(machine, before, symbol, value))


def _counts(before: Value, value: Value) -> bool:
    """Whether a number that is known is changed by another one."""
    return all(isinstance(v, Literal) and type(v.value) in (int, float) for v in (before, value))


_AUGMENTED: dict[type[cst.BaseAugOp], str] = {
    cst.AddAssign: "+",
    cst.SubtractAssign: "-",
    cst.MultiplyAssign: "*",
    cst.DivideAssign: "/",
    cst.FloorDivideAssign: "//",
    cst.ModuloAssign: "%",
    cst.BitOrAssign: "|",
}


@handles(cst.Return)
def return_(machine: Machine, node: cst.Return) -> None:
    value = machine.eval(node.value) if node.value is not None else machine.literal(None)
    if not machine.here.impossible:
        machine.frame.returned.append((machine.here.lasting, value))
    leave(machine, node, "return")


@handles(cst.Raise)
def raise_(machine: Machine, node: cst.Raise) -> None:
    for part in (node.exc, node.cause.item if node.cause else None):
        if part is not None:
            machine.eval(part)
    machine.frame.left.append(machine.here)
    leave(machine, node, "raise")


@handles(cst.Break)
def break_(machine: Machine, node: cst.Break) -> None:
    if machine.frame.loops and not machine.here.impossible:
        loop = machine.frame.loops[-1]
        loop.broke = True
        loop.ended = loop.ended or machine.here == loop.round
    leave(machine, node, "break")


@handles(cst.Continue)
def continue_(machine: Machine, node: cst.Continue) -> None:
    leave(machine, node, "continue")


@handles(cst.Assert)
def assert_(machine: Machine, node: cst.Assert) -> None:
    test = machine.eval(node.test)
    if node.msg is not None:
        machine.eval(node.msg)
    added = conditions.clauses(machine, test, True, machine.site(node))
    if added is not None and not rank_dependent(test):
        machine.here = machine.here.also(added, survived=True, fatal=not machine.catching)
    if isinstance(test, Literal) and not test.value:
        _known_otherwise(machine, node.test)


def _known_otherwise(machine: Machine, test: cst.BaseExpression) -> None:
    """Forget the value of a name that an assertion contradicts: what set it to another is not resolved."""
    name = test.left if isinstance(test, cst.Comparison) else test
    scope: Scope | None = machine.frame.scope
    if not isinstance(name, cst.Name) or scope is None:
        return
    scope = scope.elsewhere.get(name.value, scope)
    while scope is not None and name.value not in scope.names:
        scope = scope.outer
    if scope is not None:
        scope.names[name.value].write(machine.here, Unknown(name.value))


@handles(cst.Del)
def delete(machine: Machine, node: cst.Del) -> None:
    todo: list[cst.BaseExpression] = [node.target]
    while todo:
        target = todo.pop()
        if isinstance(target, cst.Tuple | cst.List):
            todo.extend(e.value for e in target.elements)
        elif isinstance(target, cst.Name):
            variable = machine.frame.scope.names.get(target.value)
            if variable is not None:
                variable.forget(machine.here)
        elif isinstance(target, cst.Attribute):
            owner = machine.eval(target.value)
            machine.memory.forget(owner, f".{target.attr.value}", machine.here)
        elif isinstance(target, cst.Subscript):
            _delete_entry(machine, target)


def _delete_entry(machine: Machine, target: cst.Subscript) -> None:
    owner = machine.eval(target.value)
    for element in target.slice:
        key = machine.eval(element.slice.value) if isinstance(element.slice, cst.Index) else None
        if isinstance(key, Literal):
            machine.memory.forget(owner, f"[{key.value!r}]", machine.here)
        elif isinstance(owner, Container):
            owner.open = True


@handles(cst.Global)
def global_(machine: Machine, node: cst.Global) -> None:
    for item in node.names:
        machine.frame.scope.declare(item.name.value, "global")


@handles(cst.Nonlocal)
def nonlocal_(machine: Machine, node: cst.Nonlocal) -> None:
    for item in node.names:
        machine.frame.scope.declare(item.name.value, "nonlocal")


@handles(cst.TypeAlias)
def type_alias(machine: Machine, node: cst.TypeAlias) -> None:
    machine.frame.scope.write(node.name.value, machine.here, Unknown(node.name.value))


# -- branches ------------------------------------------------------------------------------------


@handles(cst.If)
def if_(machine: Machine, node: cst.If) -> None:
    """An ``elif`` chain is walked in a loop: libcst nests it."""
    base = machine.here
    left: list[tuple[frozenset[Clause] | None, Guards]] = []
    branch: cst.If | cst.Else | None = node
    refused: frozenset[Clause] | None = frozenset()
    needed = isinstance(node.orelse, cst.Else) and _raises(node.orelse.body)
    while branch is not None:
        machine.here = base.also(refused) if refused is not None else NEVER
        if isinstance(branch, cst.Else):
            run_body(machine, branch.body)
            left.append((refused, machine.here))
            refused = None
            break
        test = machine.eval(branch.test)
        site = machine.site(branch.test)
        above = refused
        taken, other = conditions.sides(machine, test, site)
        standing = None if above is None or taken is None else above | taken
        fatal = needed and not machine.catching
        machine.here = (
            NEVER if standing is None else base.also(standing, survived=needed, fatal=fatal)
        )
        run_body(machine, branch.body)
        left.append((standing, machine.here))
        refused = None if above is None or other is None else above | other
        branch = branch.orelse
    if refused is not None:
        left.append((refused, base.also(refused)))
    machine.here = conditions.joined(base, left, fatal=not machine.catching)


def _raises(body: cst.BaseSuite) -> bool:
    """Whether a block ends in ``raise``: what else would run is nobody's choice then."""
    last = body.body[-1] if body.body else None
    if isinstance(last, cst.SimpleStatementLine) and last.body:
        last = last.body[-1]
    return isinstance(last, cst.Raise)


@handles(cst.Match)
def match(machine: Machine, node: cst.Match) -> None:
    matching.match(machine, node)


# -- loops, contexts, exceptions -------------------------------------------------------------------


@handles(cst.For)
def for_(machine: Machine, node: cst.For) -> None:
    loops.run_for(machine, node)


@handles(cst.While)
def while_(machine: Machine, node: cst.While) -> None:
    loops.run_while(machine, node)


@handles(cst.With)
def with_(machine: Machine, node: cst.With) -> None:
    contexts.run_with(machine, node)


@handles(cst.Try, cst.TryStar)
def try_(machine: Machine, node: cst.Try | cst.TryStar) -> None:
    """The body may stop anywhere: each handler is under a guard of its own ("it was raised")."""
    base = machine.here
    raised = _raised(machine, node)
    catching = any(map(_swallows, node.handlers))
    machine.catching += catching
    run_body(machine, node.body)
    machine.catching -= catching
    body_end = machine.here
    site = machine.site(node)
    not_raised = conditions.clauses(machine, raised, False, site) or frozenset()
    was_raised = conditions.clauses(machine, raised, True, site) or frozenset()
    if node.orelse is not None:
        run_body(machine, node.orelse.body)
        body_end = machine.here
    ends = [body_end]
    there = imports.are_there(node.body)
    handled = False
    for handler in node.handlers:
        idle = there and imports.is_for_imports(handler)
        handled = handled or not idle
        machine.here = NEVER if idle else base.also(was_raised)
        if handler.type is not None:
            machine.eval(handler.type)
        if handler.name is not None and isinstance(handler.name.name, cst.Name):
            bind(machine, handler.name.name, Unknown(handler.name.name.value))
        run_body(machine, handler.body)
        ends.append(machine.here)
    if node.finalbody is not None:
        machine.here = base
        run_body(machine, node.finalbody.body)
        if machine.here.impossible:
            return
    open_ends = [e for e in ends if not e.impossible]
    if not open_ends:
        machine.here = NEVER
    elif body_end.impossible:
        machine.here = base.also(was_raised)
    elif len(open_ends) == 1:
        machine.here = body_end.also(not_raised, survived=True) if handled else body_end
    else:
        machine.here = base


def _raised(machine: Machine, node: cst.Try | cst.TryStar) -> Unknown:
    """Whether what is tried raises: a library that one file looks for is there in all files or in none."""
    optional = (
        imports.tried_first(node.body) if all(map(imports.is_for_imports, node.handlers)) else ""
    )
    if not optional:
        return Unknown("an exception was raised")
    return machine.missing.setdefault(optional, Unknown("an exception was raised"))


_FOR_OTHERS = frozenset({"ImportError", "KeyboardInterrupt", "ModuleNotFoundError"})
"""Exceptions that no ``assert`` and no test before a ``raise`` raises."""
_ENDING = frozenset({"exit", "os._exit", "os.abort", "quit", "sys.exit"})


def _swallows(handler: cst.ExceptHandler | cst.ExceptStarHandler) -> bool:
    """Whether the program may go on behind a handler of what is raised in a ``try``."""
    types = handler.type.elements if isinstance(handler.type, cst.Tuple) else ()
    caught = [e.value for e in types] if types else [handler.type] if handler.type else []
    if caught and all(get_full_name_for_node(one) in _FOR_OTHERS for one in caught):
        return False
    last: cst.CSTNode | None = handler.body.body[-1] if handler.body.body else None
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    if isinstance(last, cst.Expr) and isinstance(last.value, cst.Call):
        return get_full_name_for_node(last.value.func) not in _ENDING
    return not isinstance(last, cst.Raise)


# -- definitions and imports -----------------------------------------------------------------------


@handles(cst.FunctionDef)
def function(machine: Machine, node: cst.FunctionDef) -> None:
    value = functions.define(machine, node)
    machine.frame.scope.write(node.name.value, machine.here, value)


@handles(cst.ClassDef)
def class_(machine: Machine, node: cst.ClassDef) -> None:
    value = classes.define(machine, node)
    machine.frame.scope.write(node.name.value, machine.here, value)


@handles(cst.Import)
def import_(machine: Machine, node: cst.Import) -> None:
    imports.run_import(machine, node)


@handles(cst.ImportFrom)
def import_from(machine: Machine, node: cst.ImportFrom) -> None:
    imports.run_import_from(machine, node)
