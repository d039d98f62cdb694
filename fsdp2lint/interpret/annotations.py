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
from fsdp2lint.model.memory import ANNOTATED
from fsdp2lint.model.values import (
    Class,
    External,
    Function,
    Instance,
    Literal,
    Optimizer,
    Unknown,
    Value,
    lineage,
)
from fsdp2lint.project.bindings import bindings

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.interpret.scopes import Scope

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


def _generic(
    machine: Machine, node: cst.Subscript, scope: Scope, name: str, load: bool
) -> Value | None:
    head = (get_full_name_for_node(node.value) or "").rpartition(".")[2]
    inner = [e.slice.value for e in node.slice if isinstance(e.slice, cst.Index)]
    if head in _TRANSPARENT:
        options = (annotated(machine, one, scope, name, load=load) for one in inner)
        return next((one for one in options if one is not None), None)
    if head in _SEQUENCES and inner:
        entry = annotated(machine, inner[0], scope, "", load=load)
        return None if entry is None else machine.container("list", [entry], open_=True)
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
    return found


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
        model = classes.life(machine, cls, name)
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
        return None if is_empty(found) else found
    if isinstance(found, Class):
        return found
    for cls in lineage(value.cls):
        if isinstance(cls, Class):
            said = annotations_of(cls.node).get(name) or _taken_by_init(cls, name)
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


def _taken_by_init(cls: Class, name: str) -> cst.BaseExpression | None:
    """The annotation of the argument that ``__init__`` keeps under its own name: ``self.model = model``."""
    variable = cls.scope.names.get("__init__")
    init = variable.bindings[-1][1] if variable is not None and variable.bindings else None
    if not isinstance(init, Function):
        return None
    params = init.node.params
    for param in (*params.params, *params.kwonly_params):
        if param.name.value == name and param.annotation is not None:
            kept_so = re.compile(rf"\bself\.{re.escape(name)}\b[^=\n]*= {re.escape(name)}\b")
            return param.annotation.annotation if kept_so.search(cls.scope.source.text) else None
    return None


@lru_cache(maxsize=5_000)
def _does_nothing(node: cst.FunctionDef) -> bool:
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
    return isinstance(function.node, cst.FunctionDef) and _does_nothing(function.node)
