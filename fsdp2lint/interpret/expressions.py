"""What expressions stand for: one short function for each kind of node."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import libcst as cst

from fsdp2lint.interpret import conditions, loops
from fsdp2lint.interpret.imports import Promise, kept
from fsdp2lint.interpret.scopes import Scope
from fsdp2lint.model.guards import Guards
from fsdp2lint.model.memory import choose
from fsdp2lint.model.values import Container, Either, Function, Literal, Rank, Value

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine

Handler = Callable[["Machine", Any], Value]
HANDLERS: dict[type[cst.CSTNode], Handler] = {}
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


def handles(*kinds: type[cst.CSTNode]) -> Callable[[Handler], Handler]:
    """Register the handler of expression kinds."""

    def register(handler: Handler) -> Handler:
        for kind in kinds:
            HANDLERS[kind] = handler
        return handler

    return register


# -- names and constants -----------------------------------------------------------------------


@handles(cst.Name)
def name(machine: Machine, node: cst.Name) -> Value:
    constant = _CONSTANTS.get(node.value)
    if constant is not None:
        return machine.literal(constant[0])
    found = machine.frame.scope.read(node.value, machine.here)
    if found is None:
        return _not_bound(machine, node.value)
    if isinstance(found, Promise | Either):
        return machine.spread(found, lambda one: kept(machine, one))
    return found


def _not_bound(machine: Machine, name_: str) -> Value:
    """A builtin, or what the file's only star import of a module outside must have brought."""
    stars = machine.frame.scope.module().stars
    if len(stars) == 1 and not hasattr(builtins, name_):
        return machine.external(f"{stars[0].words()}.{name_}")
    return machine.external(f"builtins.{name_}")


_CONSTANTS: dict[str, tuple[object]] = {"None": (None,), "True": (True,), "False": (False,)}


@handles(cst.Integer, cst.Float, cst.Imaginary, cst.SimpleString, cst.ConcatenatedString)
def constant(machine: Machine, node: cst.Integer) -> Value:
    try:
        value = node.evaluated_value
    except Exception:  # libcst evaluates with literal_eval, which has its own limits
        value = None
    if value is None:
        for part in _formatted_parts(node):
            machine.eval(part)
        return machine.unknown()
    return machine.literal(value)


def _formatted_parts(node: cst.CSTNode) -> list[cst.BaseExpression]:
    if isinstance(node, cst.ConcatenatedString):
        return [node.left, node.right]
    return []


@handles(cst.Ellipsis)
def ellipsis(machine: Machine, node: cst.Ellipsis) -> Value:
    return machine.literal(...)


@handles(cst.FormattedString)
def formatted_string(machine: Machine, node: cst.FormattedString) -> Value:
    """A string of parts: constant when all parts are, else made of the values inside."""
    values = [
        machine.eval(part.expression)
        for part in node.parts
        if isinstance(part, cst.FormattedStringExpression)
    ]
    if not values:
        return machine.literal("".join(p.value for p in node.parts if hasattr(p, "value")))
    dependent = [v for v in values if isinstance(v, Rank)]
    made = (dependent or values)[0]
    text = "".join(p.value if isinstance(p, cst.FormattedStringText) else "{}" for p in node.parts)
    return made.part(("format", text, *values))


if hasattr(cst, "TemplatedString"):
    HANDLERS[cst.TemplatedString] = formatted_string


# -- attributes, subscripts, calls -----------------------------------------------------------------


@handles(cst.Attribute)
def attribute(machine: Machine, node: cst.Attribute) -> Value:
    return machine.get(machine.eval(node.value), node.attr.value, machine.site(node))


@handles(cst.Subscript)
def subscript(machine: Machine, node: cst.Subscript) -> Value:
    owner = machine.eval(node.value)
    if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        key = machine.eval(node.slice[0].slice.value)
        return machine.item(owner, key, machine.site(node))
    bounds = [bound for element in node.slice for bound in _bounds(machine, element.slice)]
    if len(node.slice) == 1 and all(isinstance(b, Literal) for b in bounds):
        return _sliced(machine, owner, [b.value for b in bounds if isinstance(b, Literal)])
    return owner.part(("[:]", *bounds))


def _bounds(machine: Machine, node: cst.BaseSlice) -> list[Value]:
    parts: tuple[cst.BaseExpression | None, ...] = ()
    if isinstance(node, cst.Index):
        parts = (node.value,)
    elif isinstance(node, cst.Slice):
        parts = (node.lower, node.upper, node.step)
    return [machine.literal(None) if part is None else machine.eval(part) for part in parts]


def _sliced(machine: Machine, owner: Value, bounds: list[Any]) -> Value:
    """``owner[1:]``: those entries of a list that is known whole, else a part of that name."""
    if isinstance(owner, Container) and not owner.open and owner.kind in ("list", "tuple"):
        entries = [v for _, v in machine.memory.entries(owner, machine.here)]
        try:
            return machine.container(owner.kind, entries[slice(*bounds)])
        except (TypeError, ValueError):  # bounds that raise in the script as well
            return machine.unknown()
    said = ":".join("" if b is None else repr(b) for b in bounds).removesuffix(":")
    return owner.part(f"[{said if ':' in said else said + ':'}]")


@handles(cst.Call)
def call(machine: Machine, node: cst.Call) -> Value:
    machine.visited.add(node)
    target = machine.eval(node.func)
    args, keywords, open_ = arguments(machine, node.args)
    return machine.call(target, args, keywords, machine.site(node), open_)


def arguments(
    machine: Machine, nodes: Sequence[cst.Arg]
) -> tuple[list[Value], dict[str, Value], bool]:
    """Positional and keyword arguments, stars unpacked; and whether some stayed unknown."""
    args: list[Value] = []
    keywords: dict[str, Value] = {}
    open_ = False
    for argument in nodes:
        value = machine.eval(argument.value)
        if argument.star == "*":
            if isinstance(value, Container) and value.kind in ("list", "tuple", "set"):
                args.extend(v for _, v in machine.memory.entries(value, machine.here))
                open_ = open_ or value.open
            else:
                open_ = True
        elif argument.star == "**":
            open_ = _unpack(machine, value, keywords) or open_
        elif argument.keyword is not None:
            keywords[argument.keyword.value] = value
        else:
            args.append(value)
    return args, keywords, open_


def _unpack(machine: Machine, value: Value, keywords: dict[str, Value]) -> bool:
    """Add the entries of a dictionary to the keywords; True when it may hold more."""
    if isinstance(value, Either):
        opens = [_unpack(machine, one, keywords) for _, one in value.options]
        return any(opens)
    if not (isinstance(value, Container) and value.kind == "dict"):
        return True
    for key, entry in machine.memory.entries(value, machine.here):
        name_ = _string_key(key)
        if name_ is not None:
            keywords[name_] = entry
    return value.open


def _string_key(key: object) -> str | None:
    if isinstance(key, str) and key[:2] in ("['", '["'):
        return key[2:-2]
    return None


# -- containers ----------------------------------------------------------------------------------


@handles(cst.List, cst.Tuple, cst.Set)
def sequence(machine: Machine, node: cst.List | cst.Tuple | cst.Set) -> Value:
    values: list[Value] = []
    open_ = False
    for element in node.elements:
        value = machine.eval(element.value)
        if not isinstance(element, cst.StarredElement):
            values.append(value)
        elif isinstance(value, Container) and value.kind != "dict":
            values.extend(v for _, v in machine.memory.entries(value, machine.here))
            open_ = open_ or value.open
        else:
            values.extend(machine.elements(value, machine.site(element)))
            open_ = True
    return machine.container(type(node).__name__.lower(), values, open_)


@handles(cst.Dict)
def dictionary(machine: Machine, node: cst.Dict) -> Value:
    made = Container("dict")
    for element in node.elements:
        if isinstance(element, cst.StarredDictElement):
            spread_into(machine, made, machine.eval(element.value))
        elif isinstance(element, cst.DictElement):
            key = machine.eval(element.key)
            store(machine, made, key, machine.eval(element.value))
    return made


def spread_into(machine: Machine, made: Container, value: Value) -> None:
    """Add the entries of another dictionary (``**value``, ``update(value)``)."""
    if isinstance(value, Container) and value.kind == "dict":
        for key, entry in list(machine.memory.entries(value, machine.here)):
            machine.memory.write(made, key, machine.here, entry)
        made.open = made.open or value.open
    else:
        made.open = True
        machine.memory.hold(made, value)
        machine.memory.write(made, ("of", value), machine.here, value)


def store(machine: Machine, owner: Value, key: Value, value: Value) -> None:
    """``owner[key] = value``."""
    if isinstance(key, Literal):
        machine.memory.write(owner, f"[{key.value!r}]", machine.here, value)
        return
    if isinstance(owner, Container):
        owner.open = True
    machine.memory.write(owner, ("[]", key), machine.here, value)


# -- operators -------------------------------------------------------------------------------------


@handles(cst.UnaryOperation)
def unary(machine: Machine, node: cst.UnaryOperation) -> Value:
    value = machine.eval(node.expression)
    if isinstance(node.operator, cst.Not):
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
    while isinstance(first, cst.BinaryOperation):
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
    if isinstance(left, Literal) and isinstance(right, Literal):
        folded = _fold(left.value, symbol, right.value)
        if folded is not None:
            return machine.literal(folded)
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
    """``a and b``: the right side stands under the left one's guard."""
    symbol = "and" if isinstance(node.operator, cst.And) else "or"
    spine: list[cst.BaseExpression] = []
    first: cst.BaseExpression = node
    while isinstance(first, cst.BooleanOperation) and type(first.operator) is type(node.operator):
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
    from fsdp2lint.interpret.statements import bind

    value = machine.eval(node.value)
    scope = machine.frame.scope
    machine.frame.scope = scope.target()
    bind(machine, node.target, value)
    machine.frame.scope = scope
    return value


# -- functions and comprehensions ----------------------------------------------------------------------


@handles(cst.Lambda)
def lambda_(machine: Machine, node: cst.Lambda) -> Value:
    from fsdp2lint.interpret.functions import defaults_of

    made = Function("lambda", node, machine.frame.scope, defaults_of(machine, node.params))
    machine.made.append(made)
    return made


@handles(cst.ListComp, cst.SetComp, cst.GeneratorExp)
def comprehension(machine: Machine, node: cst.ListComp | cst.SetComp | cst.GeneratorExp) -> Value:
    values: list[Value] = []
    lazy = isinstance(node, cst.GeneratorExp)
    exact = loops.comprehend(
        machine, node.for_in, lambda: values.append(machine.eval(node.elt)), lazy
    )
    kind = "set" if isinstance(node, cst.SetComp) else "list"
    return machine.container(kind, values, open_=not exact)


@handles(cst.DictComp)
def dict_comprehension(machine: Machine, node: cst.DictComp) -> Value:
    made = Container("dict")

    def one() -> None:
        key = machine.eval(node.key)
        store(machine, made, key, machine.eval(node.value))

    exact = loops.comprehend(machine, node.for_in, one)
    made.open = made.open or not exact
    return made


@handles(cst.Await)
def await_(machine: Machine, node: cst.Await) -> Value:
    return machine.eval(node.expression)


@handles(cst.Yield)
def yield_(machine: Machine, node: cst.Yield) -> Value:
    value: Value = machine.literal(None)
    delegated = isinstance(node.value, cst.From)
    if isinstance(node.value, cst.From):
        value = machine.eval(node.value.item)
    elif node.value is not None:
        value = machine.eval(node.value)
    give = machine.frame.on_yield
    if give is not None:
        for one in machine.elements(value, machine.site(node)) if delegated else [value]:
            give(one)
    return machine.unknown()


@handles(cst.StarredElement)
def starred(machine: Machine, node: cst.StarredElement) -> Value:
    return machine.eval(node.value)


def comprehension_scope(machine: Machine) -> Scope:
    """A scope for the names of a comprehension."""
    return Scope("comprehension", machine.source, machine.frame.scope)
