"""Operators: arithmetic, comparisons, ``and``/``or``, conditional expressions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import libcst as cst

from fsdp2lint.interpret import conditions
from fsdp2lint.interpret.binding import bind
from fsdp2lint.interpret.displays import filled, spread_into
from fsdp2lint.interpret.handlers import handles
from fsdp2lint.model.events import Operated
from fsdp2lint.model.guards import Guards
from fsdp2lint.model.memory import EVERYWHERE, choose
from fsdp2lint.model.values import (
    Container,
    Instance,
    Literal,
    Rank,
    StateDict,
    Value,
    of_parameters,
    of_world_size,
)

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine

MAX_REPEATED = 16
"""A list of so many entries is written out when it is made by ``[x] * number``."""

MAX_FOLDED = 10_000


_BINARY: dict[type[cst.BaseBinaryOp], str] = {
    cst.Add: "+",
    cst.Subtract: "-",
    cst.Multiply: "*",
    cst.Divide: "/",
    cst.FloorDivide: "//",
    cst.Modulo: "%",
    cst.Power: "**",
    cst.MatrixMultiply: "@",
    cst.BitOr: "|",
    cst.BitAnd: "&",
    cst.BitXor: "^",
    cst.LeftShift: "<<",
    cst.RightShift: ">>",
}
_COMPARISON: dict[type[cst.BaseCompOp], str] = {
    cst.Equal: "==",
    cst.NotEqual: "!=",
    cst.LessThan: "<",
    cst.LessThanEqual: "<=",
    cst.GreaterThan: ">",
    cst.GreaterThanEqual: ">=",
    cst.Is: "is",
    cst.IsNot: "is not",
    cst.In: "in",
    cst.NotIn: "not in",
}


@handles(cst.UnaryOperation)
def unary(machine: Machine, node: cst.UnaryOperation) -> Value:
    value = machine.eval(node.expression)
    if type(node.operator) is cst.Not:
        return conditions.invert(machine, value)
    if (
        isinstance(node.operator, cst.Minus)
        and isinstance(value, Literal)
        and isinstance(value.value, int | float)
    ):
        return machine.literal(-value.value)
    return value.part((type(node.operator).__name__,))


@handles(cst.BinaryOperation)
def binary(machine: Machine, node: cst.BinaryOperation) -> Value:
    """Walks the left spine of a long chain in a loop: libcst nests ``a + b + c + …`` that way."""
    spine: list[cst.BinaryOperation] = []
    first: cst.BaseExpression = node
    while type(first) is cst.BinaryOperation:
        spine.append(first)
        first = first.left
    value = machine.eval(first)
    for operation in reversed(spine):
        symbol = _BINARY.get(type(operation.operator), "?")
        value = operate(machine, value, symbol, machine.eval(operation.right))
    return value


def operate(machine: Machine, left: Value, symbol: str, right: Value) -> Value:
    """``left symbol right``."""
    if isinstance(left, Container) and symbol in ("+", "|"):
        return _joined(machine, left, right)
    if isinstance(left, StateDict) and symbol == "|":
        return filled(machine, left, [right], machine.frame.statement or cst.Pass())
    if symbol == "*":
        repeated = _repeated(machine, left, right) or _repeated(machine, right, left)
        if repeated is not None:
            return repeated
    if isinstance(left, Literal) and isinstance(right, Literal):
        folded = _fold(left.value, symbol, right.value)
        if folded is not None:
            return machine.literal(folded)
    elif symbol == "%" and isinstance(right, Literal) and right.value == 1:
        return machine.literal(0)  # of any whole number: accumulation over one step
    elif any(of_parameters(v) or of_world_size(v) for v in (left, right)):
        site = machine.site(machine.frame.statement or cst.Pass())
        machine.record(Operated(machine.moment(site), left, symbol, right))
    if isinstance(right, Rank) and not isinstance(left, Rank):
        return right.part((symbol, left, "reversed"))
    return left.part((symbol, right))


def _joined(machine: Machine, left: Container, right: Value) -> Value:
    made = Container(left.kind, left.open)
    if left.kind == "dict":
        spread_into(machine, made, left)
        spread_into(machine, made, right)
        return made
    values = [v for _, v in machine.memory.entries(left, machine.here)]
    if isinstance(right, Container):
        values += [v for _, v in machine.memory.entries(right, machine.here)]
        open_ = left.open or right.open
    else:
        values += machine.elements(right, machine.site(machine.frame.statement or cst.Pass()))
        open_ = True
    return machine.container(left.kind, values, open_)


def _repeated(machine: Machine, entries: Value, times: Value) -> Value | None:
    """``[config] * layers``: a list that holds one object, however often."""
    if not isinstance(entries, Container) or entries.open or entries.kind not in ("list", "tuple"):
        return None
    found = [v for _, v in machine.memory.entries(entries, machine.here)]
    if not found or not all(isinstance(one, Instance) for one in found):
        return None  # places to be filled, or batches of which only their number counts
    number = times.value if isinstance(times, Literal) else None
    if isinstance(number, int) and 0 <= number * len(found) <= MAX_REPEATED:
        return machine.container(entries.kind, found * number)
    if len(found) != 1:
        return None
    made = Container(entries.kind, True)
    machine.memory.write(made, EVERYWHERE, machine.here, found[0])
    return made


def _fold(left: Any, symbol: str, right: Any) -> object:
    small = (int, float)
    try:
        if symbol == "+" and isinstance(left, str) and isinstance(right, str):
            return left + right if len(left) + len(right) < MAX_FOLDED else None
        if not isinstance(left, small) or not isinstance(right, small):
            return None
        if symbol == "+":
            return left + right
        if symbol == "-":
            return left - right
        if symbol == "*" and abs(left) < MAX_FOLDED**2 and abs(right) < MAX_FOLDED**2:
            return left * right
        if symbol in ("/", "//", "%") and right:
            return {"/": left / right, "//": left // right, "%": left % right}[symbol]
    except (ArithmeticError, TypeError):
        return None
    return None


@handles(cst.BooleanOperation)
def boolean(machine: Machine, node: cst.BooleanOperation) -> Value:
    """``a and b``: the right side is under the left one's guard."""
    symbol = "and" if type(node.operator) is cst.And else "or"
    spine: list[cst.BaseExpression] = []
    first: cst.BaseExpression = node
    while type(first) is cst.BooleanOperation and type(first.operator) is type(node.operator):
        spine.append(first.right)
        first = first.left
    here = machine.here
    values = [machine.eval(first)]
    for operand in reversed(spine):
        added = conditions.clauses(machine, values[-1], symbol == "and", machine.site(operand))
        if added is None:
            machine.dead(partial(machine.eval, operand))
            continue
        machine.here = machine.here.also(added)
        values.append(machine.eval(operand))
    machine.here = here
    return conditions.logic(machine, symbol, values)


@handles(cst.Comparison)
def comparison(machine: Machine, node: cst.Comparison) -> Value:
    left = machine.eval(node.left)
    results: list[Value] = []
    for target in node.comparisons:
        right = machine.eval(target.comparator)
        symbol = _COMPARISON.get(type(target.operator), "?")
        results.append(conditions.compare(machine, left, symbol, right))
        left = right
    return results[0] if len(results) == 1 else conditions.logic(machine, "and", results)


@handles(cst.IfExp)
def conditional(machine: Machine, node: cst.IfExp) -> Value:
    test = machine.eval(node.test)
    here = machine.here
    found: list[tuple[Guards, Value]] = []
    for taken, side in ((True, node.body), (False, node.orelse)):
        added = conditions.clauses(machine, test, taken, machine.site(node.test))
        if added is None:
            machine.dead(partial(machine.eval, side))
            continue
        machine.here = here.also(added)
        if machine.here.impossible:
            machine.eval(side)
        else:
            guards = machine.here
            found.append((guards, machine.eval(side)))
        machine.here = here
    machine.here = here
    return choose(found, here) or machine.unknown()


@handles(cst.NamedExpr)
def walrus(machine: Machine, node: cst.NamedExpr) -> Value:
    value = machine.eval(node.value)
    scope = machine.frame.scope
    machine.frame.scope = scope.target()
    bind(machine, node.target, value)
    machine.frame.scope = scope
    return value
