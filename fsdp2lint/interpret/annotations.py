"""What annotations say of values whose making is unresolved: their class, and with it their methods and fields.

A *stranger* is an object of which only the class is known, by an annotation. It may be of a subclass, or
None in spite of what is written, so tests of it stay open; what its class leaves empty stays unknown.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst
from libcst.helpers import get_full_name_for_node

from fsdp2lint.interpret import classes
from fsdp2lint.interpret.imports import Namespace, Promise, kept, namespace
from fsdp2lint.model.memory import ANNOTATED, BOUND
from fsdp2lint.model.trace import options
from fsdp2lint.model.values import (
    Class,
    External,
    Function,
    Instance,
    Literal,
    Module,
    Optimizer,
    Part,
    Unknown,
    Value,
    Wrapped,
    lineage,
    of_model,
)
from fsdp2lint.project.bindings import bindings
from fsdp2lint.source.walk import walk

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.interpret.scopes import Scope
    from fsdp2lint.source.source import Source

MAX_HANDS = 8
"""Through so many files a name is followed by import lines."""
MAX_LIVES = 4
"""Models known by their annotation are built inside each other at most so deep."""

_TRANSPARENT = frozenset({"Annotated", "ClassVar", "Final", "Optional", "Required", "Union"})
_SEQUENCES = frozenset({"Iterable", "List", "Sequence", "Tuple", "list", "tuple"})


def annotated(
    machine: Machine, node: cst.BaseExpression, scope: Scope, name: str, *, load: bool
) -> Value | None:
    """A value called ``name`` of which its annotation says what it is; None where that says nothing that helps.

    Without ``load`` no file is read for it that was not read before.
    """
    if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
        quoted = _parsed(str(node.evaluated_value))
        return None if quoted is None else annotated(machine, quoted, scope, name, load=load)
    if isinstance(node, cst.BinaryOperation):
        left = annotated(machine, node.left, scope, name, load=load)
        return left or annotated(machine, node.right, scope, name, load=load)
    if isinstance(node, cst.Subscript):
        return _generic(machine, node, scope, name, load)
    found = _named(machine, node, scope, load)
    if isinstance(found, Class):
        return stranger(machine, found, name)
    if isinstance(found, External):
        return _from_outside(machine, found, name)
    return None


def believed(
    machine: Machine, value: Value, node: cst.BaseExpression, scope: Scope, *, load: bool
) -> Value:
    """A value of which nothing is known, as an object of the class of the project that an annotation says."""
    twin = machine.memory.twins.get(options(value)[0])
    if twin is not None and all(type(one) in (Unknown, Part) for one in options(value)):
        return twin
    if not _may_name_a_class(node) or not _is_blank(machine, value):
        return value
    lives = machine.lives
    if _is_held_by_a_model(machine, value):
        machine.lives = MAX_LIVES  # a part of that model is no model of its own
    said = annotated(machine, node, scope, "", load=load)
    machine.lives = lives
    return _twin(machine, value, said)


def of_class(machine: Machine, value: Value, cls: Class) -> Value:
    """A value of which nothing is known, as an object of a class."""
    if not _is_blank(machine, value):
        return value
    return _twin(machine, value, stranger(machine, cls, ""))


def other_settings(machine: Machine, receiver: Instance, value: Value) -> Value | None:
    """What ``config.merge(overrides)`` gives that says to be of the class of ``config``, where it is not seen how that is
    made: the same settings, each of which may be another one; None where it is more than settings, or was seen.
    """
    memory = machine.memory
    if type(receiver) is not Instance or receiver in memory.strangers or value is receiver:
        return None
    if not isinstance(receiver.cls, Class) or classes.find(machine, receiver.cls, "__init__"):
        return None
    if not all(_may_be(machine, one, receiver.cls) for one in options(value)):
        return None
    known = memory.twins.get(value)
    if known is not None:
        return known
    made = Instance(receiver.cls, receiver.born)
    made.label = value.label
    for key, entry in list(memory.entries(receiver, machine.here)):
        memory.write(made, key, machine.here, entry)
    classes.loosen(machine, made)
    return memory.twins.setdefault(value, made)


def _may_be(machine: Machine, value: Value, cls: Class) -> bool:
    """Whether a value may be settings of a class: an annotation says so, or nothing is known of it."""
    if isinstance(value, Instance):
        return value in machine.memory.strangers and value.cls is cls
    unknown = type(value) in (Unknown, Part) and machine.memory.is_blank(value)
    return unknown and not machine.is_module(value) and not of_model(value)


def _is_blank(machine: Machine, value: Value) -> bool:
    """Whether nothing is known of a value, and nobody asked for anything of it: a test of a part is a test of that part."""
    return all(
        type(one) in (Unknown, Part)
        and not one.parts()
        and not machine.is_module(one)
        and not of_model(one)
        and machine.memory.is_blank(one)
        for one in options(value)
    )


def _is_held_by_a_model(machine: Machine, value: Value) -> bool:
    holders = (holder for one in options(value) for holder in machine.memory.holders(one))
    return any(isinstance(holder, Module | Wrapped) for holder in holders)


def _twin(machine: Machine, value: Value, made: Value | None) -> Value:
    if not isinstance(made, Instance):
        return value
    made.label = value.label
    return machine.memory.twins.setdefault(options(value)[0], made)


_OF_NO_CLASS = frozenset(
    {
        *("Any", "Callable", "Dict", "Iterable", "List", "Literal", "None", "Optional", "Sequence"),
        *("Tensor", "Tuple", "Type", "Union", "bool", "bytes", "dict", "float", "int", "list"),
        *("np", "object", "optim", "set", "str", "torch", "tuple", "type", "typing"),
    }
)
"""Names in annotations that stand for no class of the project."""


@lru_cache(maxsize=10_000)
def _may_name_a_class(node: cst.BaseExpression) -> bool:
    """Whether an annotation holds a name that may be that of a class of the project."""
    if isinstance(node, cst.SimpleString):
        return True
    if isinstance(node, cst.Attribute):
        return _may_name_a_class(node.value)
    names = (n.value for n in walk(node) if isinstance(n, cst.Name))
    return any(name not in _OF_NO_CLASS for name in names)


def _generic(
    machine: Machine, node: cst.Subscript, scope: Scope, name: str, load: bool
) -> Value | None:
    head = _last_name(node.value)
    inner = [e.slice.value for e in node.slice if isinstance(e.slice, cst.Index)]
    if head in _TRANSPARENT:
        options = (annotated(machine, one, scope, name, load=load) for one in inner)
        return next((one for one in options if one is not None), None)
    if head in _SEQUENCES and inner:
        entry = annotated(machine, inner[0], scope, "", load=load)
        if entry is None:
            return None
        made = machine.container("list", [entry], open_=True)
        machine.memory.strangers.add(made)  # `list[Model] | Model` may be the other
        return made
    return None


@lru_cache(maxsize=2_000)
def _parsed(text: str) -> cst.BaseExpression | None:
    try:
        return cst.parse_expression(text)
    except cst.ParserSyntaxError:
        return None


def _named(machine: Machine, node: cst.BaseExpression, scope: Scope, load: bool) -> Value | None:
    """What a dotted name stands for."""
    head, *rest = (get_full_name_for_node(node) or "").split(".")
    found = scope.read(head, machine.here) if head else None
    for name in ("", *rest):
        if isinstance(found, Namespace):
            if not (load or found.loaded):
                return None
            found = found.read(machine, name) if name else found
        elif isinstance(found, Class) and name:
            found = classes.find(machine, found, name)
        elif isinstance(found, External) and name:
            found = machine.external(f"{found.name}.{name}")
        if isinstance(found, Promise):
            outside = _outside(machine, found)
            if outside is None and not (load or found.namespace.loaded):
                return None
            found = outside or kept(machine, found)
    return _bound(machine, found, scope, load) if isinstance(found, Unknown) else found


def _bound(machine: Machine, variable: Unknown, scope: Scope, load: bool) -> Value | None:
    """What a type variable stands for at the least: ``TypeVar("M", bound=Model)``."""
    bound = machine.memory.read(variable, BOUND, machine.here)
    if not isinstance(bound, Literal):
        return bound
    quoted = _parsed(str(bound.value))
    return None if quoted is None else _named(machine, quoted, scope, load)


def _outside(machine: Machine, promise: Promise) -> External | None:
    """What a promised name is outside of the project, where the import lines of the files between say so.

    Most annotations name classes of PyTorch: no file is parsed to learn that.
    """
    module: Value = promise.namespace
    name = promise.name
    for _ in range(MAX_HANDS):
        source = module.source if isinstance(module, Namespace) else None
        table = None if source is None else bindings(source.text)
        if source is None or table is None or table.stars or name in table.bound:
            return None
        found = table.names.get(name)
        if found is None or found.level is None:
            return None
        dotted, _, name = found.target.lstrip(".").rpartition(".")
        path = machine.project.resolve(dotted, found.level, source)
        if path is None:
            return machine.external(found.target) if found.level == 0 else None
        module = namespace(machine, path, dotted)
    return None


def _from_outside(machine: Machine, cls: External, name: str) -> Value | None:
    if cls.name.startswith("torch.optim.") and "scheduler" not in cls.name:
        optimizer = Optimizer(cls, ())
        optimizer.label = name
        return optimizer
    if cls.name == "torch.nn.Module":
        value = Unknown(name)
        machine.modules_known.add(value)
        return value
    return None


# -- objects of which the class is known ---------------------------------------------------------------


def stranger(machine: Machine, cls: Class, name: str) -> Value | None:
    """An object of a class of the project whose making is unresolved."""
    if classes.is_module_class(cls):
        if machine.lives >= MAX_LIVES:
            return None
        machine.lives += 1
        model = machine.life(cls, name)
        machine.lives -= 1
        machine.memory.strangers.add(model)
        return model
    if not classes.seen_whole(cls):
        value = Unknown(name)
        machine.memory.write(value, ANNOTATED, machine.here, cls)
        return value
    made = Instance(cls)
    made.label = name
    machine.memory.foreign.add(made)
    machine.memory.strangers.add(made)
    return made


def stranger_attribute(machine: Machine, value: Instance, name: str) -> Value | None:
    """The attribute ``name`` of a stranger as its class says it; None where that says nothing."""
    found = classes.find(machine, value.cls, name)
    if isinstance(found, Function):
        machine.looked.add(found.node)
        return None if is_empty(found) else found
    if isinstance(found, Class):
        return found
    for cls in lineage(value.cls):
        if isinstance(cls, Class):
            said = annotations_of(cls.node).get(name) or _taken_by_init(machine, cls, name)
            if said is not None:
                made = annotated(machine, said, cls.scope, "", load=True)
                return None if made is None else value.keep(f".{name}", made)
    return None if isinstance(found, Literal) else found


@lru_cache(maxsize=5_000)
def annotations_of(node: cst.ClassDef) -> dict[str, cst.BaseExpression]:
    """The annotations in a class body, by name."""
    return {
        small.target.value: small.annotation.annotation
        for statement in node.body.body
        if isinstance(statement, cst.SimpleStatementLine)
        for small in statement.body
        if isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name)
    }


@lru_cache(maxsize=5_000)
def gives_its_own_kind(node: cst.FunctionDef) -> bool:
    """Whether a method says that it returns an object of the class on which it is called: ``-> Self``, or
    ``(self: T) -> T`` and ``(cls: type[T]) -> T``.
    """
    said = _name_said(node.returns)
    if said.rpartition(".")[2] == "Self":
        return True
    first = next(iter((*node.params.posonly_params, *node.params.params)), None)
    mine = None if first is None else first.annotation
    if mine is None or not said:
        return False
    inner = mine.annotation
    if isinstance(inner, cst.Subscript) and _last_name(inner.value) in ("Type", "type"):
        element = inner.slice[0].slice
        return isinstance(element, cst.Index) and get_full_name_for_node(element.value) == said
    return _name_said(mine) == said


def _name_said(annotation: cst.Annotation | None) -> str:
    """The name that an annotation is, quoted or not; empty when it is more than that."""
    if annotation is None:
        return ""
    node: cst.BaseExpression | None = annotation.annotation
    if isinstance(node, cst.SimpleString):
        node = _parsed(str(node.evaluated_value))
    is_name = isinstance(node, cst.Name | cst.Attribute)
    return (get_full_name_for_node(node) or "") if is_name and node is not None else ""


def made_by_one_of(machine: Machine, cls: Class) -> Value | None:
    """``getattr(Settings, name)(…)``: an object of the class that all class methods of ``Settings`` say to return."""
    said = set()
    for variable in cls.scope.names.values():
        for _, one in variable.bindings:
            if isinstance(one, Function) and one.kind == "classmethod" and one.name[:1] != "_":
                node = one.node
                own = isinstance(node, cst.FunctionDef) and gives_its_own_kind(node)
                said.add(cls.name if own else _name_said(getattr(node, "returns", None)))
    return stranger(machine, cls, "") if said == {cls.name} else None


def _last_name(node: cst.BaseExpression) -> str:
    return (get_full_name_for_node(node) or "").rpartition(".")[2]


def _taken_by_init(machine: Machine, cls: Class, name: str) -> cst.BaseExpression | None:
    """The annotation of the argument that ``__init__`` keeps under its own name: ``self.model = model``."""
    variable = cls.scope.names.get("__init__")
    init = variable.bindings[-1][1] if variable is not None and variable.bindings else None
    if not isinstance(init, Function):
        return None
    params = init.node.params
    for param in (*params.params, *params.kwonly_params):
        if param.name.value == name and param.annotation is not None:
            kept = machine.ask(_keeps, cls.node, cls.scope.source, name)
            return param.annotation.annotation if kept else None
    return None


def _keeps(cls: cst.ClassDef, source: Source, name: str) -> bool:
    """Whether a class, or another of its file, keeps an argument under its own name."""
    kept_so = rf"\bself\.{re.escape(name)}\b[^=\n]*= {re.escape(name)}\b"
    return re.search(kept_so, source.said) is not None


@lru_cache(maxsize=5_000)
def is_empty_body(node: cst.FunctionDef) -> bool:
    """Whether a function only raises, or does not even do that."""
    statements = [
        small
        for statement in node.body.body
        for small in (
            statement.body if isinstance(statement, cst.SimpleStatementLine) else (statement,)
        )
    ]
    return all(
        isinstance(one, cst.Pass | cst.Raise)
        or (isinstance(one, cst.Expr) and isinstance(one.value, cst.SimpleString | cst.Ellipsis))
        for one in statements
    )


def is_empty(function: Function) -> bool:
    """Whether a method is there for subclasses to define it: it does nothing, or raises."""
    return isinstance(function.node, cst.FunctionDef) and is_empty_body(function.node)
