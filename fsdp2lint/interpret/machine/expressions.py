"""What expressions stand for: one short function for each kind of node."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import libcst as cst

from fsdp2lint.interpret.handlers import HANDLERS, handles
from fsdp2lint.interpret.imports import Promise, kept
from fsdp2lint.meanings.attributes import sliced
from fsdp2lint.model.memory import entries_of_one
from fsdp2lint.model.values import (
    Container,
    Either,
    Function,
    Literal,
    Mesh,
    Part,
    Rank,
    Unknown,
    Value,
)

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.model.guards import Guards

# -- names and constants -----------------------------------------------------------------------


@handles(cst.Name)
def name(machine: Machine, node: cst.Name) -> Value:
    constant = _CONSTANTS.get(node.value)
    if constant is not None:
        return machine.literal(constant[0])
    found = machine.frames[-1].scope.read(node.value, machine.here)
    if found is None:
        return _not_bound(machine, node.value)
    if isinstance(found, Either):
        if not any(isinstance(one, Promise) for _, one in found.options):
            return machine.narrowed(found)
        return machine.spread(found, lambda one: kept(machine, one))
    return kept(machine, found)


def _not_bound(machine: Machine, name_: str) -> Value:
    """A builtin, or what the file's only star import of a module outside must have brought."""
    stars = machine.frame.scope.module().stars
    if len(stars) == 1 and not hasattr(builtins, name_):
        return machine.external(f"{stars[0].words()}.{name_}")
    return machine.external(f"builtins.{name_}")


_CONSTANTS: dict[str, tuple[object]] = {"None": (None,), "True": (True,), "False": (False,)}


@handles(cst.Integer, cst.Float, cst.Imaginary, cst.SimpleString)
def constant(machine: Machine, node: cst.Integer | cst.SimpleString) -> Value:
    value = _evaluated(node.value)
    return machine.unknown() if value is None else machine.literal(value)


@handles(cst.ConcatenatedString)
def concatenated(machine: Machine, node: cst.ConcatenatedString) -> Value:
    """Strings written side by side."""
    left, right = machine.eval(node.left), machine.eval(node.right)
    if isinstance(left, Literal) and isinstance(right, Literal):
        if isinstance(left.value, str) and isinstance(right.value, str):
            return machine.literal(left.value + right.value)
        return machine.unknown()
    return right if isinstance(left, Literal) else left


@lru_cache(maxsize=10_000)
def _evaluated(text: str) -> object:
    """The constant that a token is; None when it is none that Python can evaluate by itself."""
    try:
        made = ast.parse(text, mode="eval").body
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return made.value if isinstance(made, ast.Constant) else None


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
    text = "".join(map(_written, node.parts))
    constants = [v.value for v in values if isinstance(v, Literal)]
    if len(constants) == len(values) and "{:" not in text:
        pieces = iter(constants)
        return machine.literal(
            "".join(p.value if hasattr(p, "value") else str(next(pieces)) for p in node.parts)
        )
    return made.part(("format", text, *values))


def _written(part: cst.CSTNode) -> str:
    """A piece of such a string: text as it is, ``{}`` or ``{:.3f}`` for a value."""
    if isinstance(part, cst.FormattedStringText):
        return part.value
    if not isinstance(part, cst.FormattedStringExpression) or part.conversion is not None:
        return "{}"
    if not part.format_spec:
        return "{}"
    spec = (p.value for p in part.format_spec if isinstance(p, cst.FormattedStringText))
    return f"{{:{''.join(spec) or 's'}}}"


if hasattr(cst, "TemplatedString"):
    HANDLERS[cst.TemplatedString] = formatted_string


# -- attributes, subscripts, calls -----------------------------------------------------------------


@handles(cst.Attribute)
def attribute(machine: Machine, node: cst.Attribute) -> Value:
    return machine.get(machine.eval(node.value), node.attr.value, machine.site(node))


@handles(cst.Subscript)
def subscript(machine: Machine, node: cst.Subscript) -> Value:
    owner = machine.eval(node.value)
    first = node.slice[0].slice
    if len(node.slice) == 1 and type(first) is cst.Index:
        key = machine.eval(first.value)
        if isinstance(first.value, cst.Tuple) and isinstance(key, Container):
            several = _dimensions(owner, [v for _, v in machine.memory.entries(key)])
            if several is not None:
                return several
        return machine.item(owner, key, machine.site(node))
    bounds = [bound for element in node.slice for bound in _bounds(machine, element.slice)]
    several = _dimensions(owner, bounds)
    if several is not None:
        return several
    if len(node.slice) == 1 and all(isinstance(b, Literal) for b in bounds):
        return _sliced(machine, owner, [b.value for b in bounds if isinstance(b, Literal)])
    return owner.part(("[:]", *bounds))


def _dimensions(owner: Value, asked: list[Value]) -> Value | None:
    """``mesh["dp", "fs"]``: the mesh of several dimensions, where their names are known."""
    names = tuple(str(one.value) for one in asked if isinstance(one, Literal) and one.value)
    if not isinstance(owner, Mesh) or len(names) < 2 or len(names) != len(asked):
        return None
    return sliced(owner, names)


def _bounds(machine: Machine, node: cst.BaseSlice) -> list[Value]:
    parts: tuple[cst.BaseExpression | None, ...] = ()
    if isinstance(node, cst.Index):
        parts = (node.value,)
    elif isinstance(node, cst.Slice):
        parts = (node.lower, node.upper, node.step)
    return [machine.literal(None) if part is None else machine.eval(part) for part in parts]


def _sliced(machine: Machine, owner: Value, bounds: list[Any]) -> Value:
    """``owner[1:]``: those entries of a list that is known whole, else a part of that name."""
    whole = len(bounds) == 3 and bounds[:2] == [None, None] and bounds[2] in (None, 1, -1)
    if isinstance(owner, Container) and (whole or not owner.open) and owner.kind != "dict":
        entries = [v for _, v in machine.memory.entries(owner, machine.here)]
        try:
            return machine.container(owner.kind, entries[slice(*bounds)], owner.open)
        except (TypeError, ValueError):  # bounds that raise in the script as well
            return machine.unknown()
    if whole and isinstance(owner, Part):
        return owner  # the same elements, perhaps back to front
    said = ":".join("" if b is None else repr(b) for b in bounds).removesuffix(":")
    return owner.part(f"[{said if ':' in said else said + ':'}]")


@handles(cst.Call)
def call(machine: Machine, node: cst.Call) -> Value:
    machine.visited.add(node)
    target = machine.eval(node.func)
    values = [machine.eval(argument.value) for argument in node.args]

    def called(one: Value) -> Value:  # what the arguments are may depend on what is called
        given = [
            machine.narrowed(v) if isinstance(v, Either) and one is not target else v
            for v in values
        ]
        args, keywords, open_ = _gathered(machine, node.args, given)
        return machine.call(one, args, keywords, machine.site(node), open_)

    return machine.spread(target, called)


def arguments(
    machine: Machine, nodes: Sequence[cst.Arg]
) -> tuple[list[Value], dict[str, Value], bool]:
    """Positional and keyword arguments, stars unpacked; and whether some stayed unknown."""
    return _gathered(machine, nodes, [machine.eval(argument.value) for argument in nodes])


def _gathered(
    machine: Machine, nodes: Sequence[cst.Arg], values: Sequence[Value]
) -> tuple[list[Value], dict[str, Value], bool]:
    args: list[Value] = []
    keywords: dict[str, Value] = {}
    open_ = False
    for argument, value in zip(nodes, values, strict=True):
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
        return _unpack_one_of(machine, value, keywords)
    if not (isinstance(value, Container) and value.kind == "dict"):
        return True
    for key, entry in machine.memory.entries(value, machine.here):
        name_ = _string_key(key)
        if name_ is not None:
            keywords[name_] = entry
    return value.open


def _unpack_one_of(machine: Machine, value: Either, keywords: dict[str, Value]) -> bool:
    """The same for one of several dictionaries: what only some of them hold may be missing."""
    open_ = False
    each: list[tuple[Guards, dict[str, Value]]] = []
    for guards, one in value.options:
        entries: dict[str, Value] = {}
        open_ = _unpack(machine, one, entries) or open_
        each.append((guards, entries))
    keywords |= entries_of_one(each, Unknown)
    return open_


def _string_key(key: object) -> str | None:
    if isinstance(key, str) and key[:2] in ("['", '["'):
        return key[2:-2]
    return None


# -- functions and comprehensions ----------------------------------------------------------------------


@handles(cst.Lambda)
def lambda_(machine: Machine, node: cst.Lambda) -> Value:
    from fsdp2lint.interpret.functions import defaults_of

    defaults = defaults_of(machine, node.params)
    made = Function("lambda", node, machine.frame.scope, defaults, under=machine.here)
    machine.made.append(made)
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
        machine.note_walk(value, machine.site(node.value.item))
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
