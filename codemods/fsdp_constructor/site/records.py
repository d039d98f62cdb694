"""Keywords that are the fields of a dataclass: the call asks the object for each when it runs.

    given = plan.__dict__.copy()                           fully_shard(model, …plan.cpu_offload…)
    kind = given.pop("state_dict_type")
    FSDP(model, **given)

``__dict__`` of an object holds what its class and the bases of that declare as fields; what else a method or
another function sets makes the keywords unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    POSITIONS,
    Layout,
    Names,
    Program,
    Source,
    dotted,
    quoted,
    scope_of,
    walk,
)

from ..._common.names import function_scope, named_once
from ..._common.origins import class_named, meaning
from ..fields import Entry, Field

UNSEEN = "its keywords are the attributes of an object whose class cannot be resolved"
MORE = "its keywords are the attributes of an object that may have others than its class declares"
WRITTEN = "the dictionary of its keywords is changed after it was made"
FOREIGN = "its keywords are the fields of a class, and FSDP1 has none named {}"

_MAX_DEPTH = 6

Class = tuple[Source, cst.ClassDef]


def record_of(
    program: Program, source: Source, node: cst.BaseExpression, call: cst.CSTNode
) -> Field | str | None:
    """The entries of ``**node`` where it is the dictionary of an object; why they are not known; None else."""
    made = named_once(source, node)
    held = _object(made or node)
    if held is None:
        return None
    taken = _taken_out(source, node, call) if made is not None else frozenset()
    if taken is None:
        return WRITTEN
    classes = {one for one in _classes(program, source, held, 0) if one is not None}
    if len(classes) != 1 or None in set(_classes(program, source, held, 0)):
        return UNSEEN
    home, cls = classes.pop()
    names = _fields(program, home, cls, 0)
    if names is None or not _only_declared(program, cls, names):
        return MORE
    if any(_is_set(source, call, held, name) for name in names):
        return WRITTEN
    given = [name for name in names if name not in taken]
    foreign = next((name for name in given if name not in POSITIONS[1:]), "")
    if foreign:
        return FOREIGN.format(foreign)
    said = source.code(held)
    spread = Layout.of(source).parents[node]
    return {name: Entry(spread, (), False, f"{said}.{name}") for name in given}


def _object(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The object in ``object.__dict__``, ``vars(object)`` and copies of them."""
    if isinstance(node, cst.Attribute) and node.attr.value == "__dict__":
        return node.value if isinstance(node.value, cst.Name) else None
    if isinstance(node, cst.Dict) and len(node.elements) == 1:
        only = node.elements[0]
        return _object(only.value) if isinstance(only, cst.StarredDictElement) else None
    if not isinstance(node, cst.Call):
        return None
    given = [arg.value for arg in node.args if not arg.star and arg.keyword is None]
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "copy" and not node.args:
        return _object(node.func.value)
    if len(given) == len(node.args) == 1 and dotted(node.func) == "vars":
        return given[0] if isinstance(given[0], cst.Name) else None
    copying = dotted(node.func) in ("dict", "copy", "copy.copy")
    return _object(given[0]) if copying and len(given) == len(node.args) == 1 else None


def _taken_out(
    source: Source, name: cst.BaseExpression, call: cst.CSTNode
) -> frozenset[str] | None:
    """The keys that are taken out of a dictionary before the call; None where more is done with it."""
    layout = Layout.of(source)
    found: set[str] = set()
    same_block = layout.block(layout.statement(call))
    for node in walk(scope_of(layout.ancestors(name))):
        if not isinstance(node, cst.Name) or node.value != getattr(name, "value", ""):
            continue
        parent = layout.parents[node]
        if node is name or isinstance(parent, cst.AssignTarget | cst.AnnAssign):
            continue
        key = _popped(layout, parent)
        before = layout.span(node)[0] < layout.span(call)[0]
        if not key or not before or layout.block(layout.statement(node)) is not same_block:
            return None
        found.add(key)
    return frozenset(found)


def _popped(layout: Layout, parent: cst.CSTNode) -> str:
    """The key in ``name.pop("key")`` and ``del name["key"]``."""
    key: cst.BaseExpression | None = None
    around = layout.parents[parent]
    if isinstance(parent, cst.Attribute) and parent.attr.value == "pop":
        key = around.args[0].value if isinstance(around, cst.Call) and around.args else None
    elif isinstance(parent, cst.Subscript) and isinstance(around, cst.Del):
        index = parent.slice[0].slice
        key = index.value if isinstance(index, cst.Index) else None
    return str(key.evaluated_value) if isinstance(key, cst.SimpleString) else ""


def _classes(
    program: Program, source: Source, node: cst.BaseExpression, depth: int
) -> Iterator[Class | None]:
    """The classes of the project that an object can be of, None where another can be too."""
    if isinstance(node, cst.IfExp):
        yield from _classes(program, source, node.body, depth)
        yield from _classes(program, source, node.orelse, depth)
    elif isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.Or):
        yield from _classes(program, source, node.left, depth)
        yield from _classes(program, source, node.right, depth)
    elif isinstance(node, cst.Call):
        yield class_named(program, source, node.func)
    elif isinstance(node, cst.Name) and depth < _MAX_DEPTH:
        names = Names.of(source)
        scope = names.owner(node.value, scope_of(Layout.of(source).ancestors(node)))
        bound = names.bindings.get(scope, {}).get(node.value, []) if scope is not None else []
        for one in bound:
            yield from _of_binding(program, source, node.value, one, depth + 1)
        if not bound:
            yield None
    else:
        yield None


def _of_binding(
    program: Program, source: Source, name: str, binding: cst.CSTNode, depth: int
) -> Iterator[Class | None]:
    """The same of what binds a name; an assignment from the name itself says nothing new."""
    if isinstance(binding, cst.Param):
        annotation = binding.annotation.annotation if binding.annotation is not None else None
        yield from _annotated(program, source, annotation)
        return
    statement = Layout.of(source).parents.get(binding)
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        yield None
        return
    for side in _sides(statement.value):
        if not isinstance(side, cst.Name) or side.value != name:
            yield from _classes(program, source, side, depth)


def _sides(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """What ``a if … else b`` and ``a or b`` can be."""
    if isinstance(node, cst.IfExp):
        yield from (*_sides(node.body), *_sides(node.orelse))
    elif isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.Or):
        yield from (*_sides(node.left), *_sides(node.right))
    else:
        yield node


def _annotated(
    program: Program, source: Source, annotation: cst.BaseExpression | None
) -> Iterator[Class | None]:
    """The class in ``Class``, ``Optional[Class]`` and ``Class | None``."""
    if isinstance(annotation, cst.SimpleString):
        annotation = quoted(annotation)
    if isinstance(annotation, cst.Subscript) and len(annotation.slice) == 1:
        index = annotation.slice[0].slice
        optional = dotted(annotation.value).rpartition(".")[2] == "Optional"
        annotation = index.value if isinstance(index, cst.Index) and optional else None
    if isinstance(annotation, cst.BinaryOperation) and isinstance(annotation.operator, cst.BitOr):
        sides = [s for s in (annotation.left, annotation.right) if dotted(s) != "None"]
        annotation = sides[0] if len(sides) == 1 else None
    yield class_named(program, source, annotation) if annotation is not None else None


def _fields(program: Program, home: Source, cls: cst.ClassDef, depth: int) -> list[str] | None:
    """The fields that a dataclass declares with those of its bases; None where it is no resolved dataclass."""
    marks = [
        d.decorator.func if isinstance(d.decorator, cst.Call) else d.decorator
        for d in cls.decorators
    ]
    if not any(meaning(program, home, mark) == "dataclasses.dataclass" for mark in marks):
        return None
    found: list[str] = []
    for base in cls.bases:
        above = class_named(program, home, base.value)
        more = _fields(program, *above, depth + 1) if above and depth < _MAX_DEPTH else None
        if more is None:
            return None
        found += more
    for line in cls.body.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name):
                said = home.code(small.annotation.annotation)
                if "InitVar" in said or "slots" in home.code(cls.decorators[0]):
                    return None
                if "ClassVar" not in said:
                    found.append(small.target.value)
    return list(dict.fromkeys(found))


def _only_declared(program: Program, cls: cst.ClassDef, names: list[str]) -> bool:
    """Whether no method of the class sets another attribute, and no class derives from it."""
    own = {
        node.target.attr.value
        for node in walk(cls)
        if isinstance(node, cst.AssignTarget | cst.AnnAssign)
        and isinstance(node.target, cst.Attribute)
        and dotted(node.target.value) == "self"
    }
    name = cls.name.value
    derived = any(
        isinstance(node, cst.ClassDef)
        and name in {dotted(b.value).rpartition(".")[2] for b in node.bases}
        for source in program.sources
        if name in source.text
        for node in walk(source.tree)
    )
    return own <= set(names) and not derived


def _is_set(source: Source, call: cst.CSTNode, held: cst.BaseExpression, name: str) -> bool:
    """Whether the function of the call gives that attribute of the object another value."""
    said = f"{source.code(held)}.{name}"
    return any(
        dotted(node.target) == said
        for node in walk(function_scope(source, call))
        if isinstance(node, cst.AssignTarget | cst.AnnAssign | cst.AugAssign)
    )
