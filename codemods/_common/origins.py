"""Where an expression gets its value from, by the text alone: through names, imports and returns.

The trace follows the values that a run has with the settings as they are; a settings file may say
something else tomorrow. What is written must be right for all that the text can mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

import libcst as cst

from fsdp2lint.api import Called, Layout, Names, Program, Source, dotted, scope_of, walk

MAX_DEPTH = 12


@dataclass(frozen=True)
class Origin:
    """An expression that a value can come from; ``node`` is None where the text does not say."""

    source: Source
    node: cst.BaseExpression | None

    @property
    def is_none(self) -> bool:
        """Whether it is the constant None."""
        return self.node is not None and dotted(self.node) == "None"


def origins(program: Program, source: Source, node: cst.BaseExpression) -> list[Origin]:
    """All expressions that ``node`` can get its value from."""
    found: dict[cst.CSTNode | None, Origin] = {}
    for one in _from(program, source, node, None, 0):
        found.setdefault(one.node, one)
    return list(found.values())


def meaning(program: Program, source: Source, node: cst.CSTNode | None) -> str:
    """The canonical dotted name that a node stands for through imports; empty if it is no such name."""
    return program.derived(_meanings, source).get(node, "") if node is not None else ""


def _meanings(program: Program, source: Source) -> dict[cst.CSTNode, str]:
    return {reference.node: reference.name for reference in program.named(source)}


def _from(
    program: Program, source: Source, node: cst.BaseExpression, index: int | None, depth: int
) -> Iterator[Origin]:
    """``index`` is the place in the tuple that ``node`` stands for, if only that is meant."""
    if depth > MAX_DEPTH:
        yield Origin(source, None)
    elif isinstance(node, cst.IfExp):
        yield from _from(program, source, node.body, index, depth + 1)
        yield from _from(program, source, node.orelse, index, depth + 1)
    elif index is not None and isinstance(node, cst.Tuple | cst.List):
        if index < len(node.elements):
            yield from _from(program, source, node.elements[index].value, None, depth + 1)
    elif isinstance(node, cst.Name) and node.value not in ("None", "True", "False"):
        yield from _of_name(program, source, node, index, depth)
    elif isinstance(node, cst.Attribute) and (found := in_module(program, source, node)):
        for other, binding in found:
            yield from _of_binding(program, other, binding, node.attr.value, index, depth)
    elif index is None and (own := _of_own_member(program, source, node, depth)):
        yield from own
    elif index is None and (given := _of_property(program, source, node)) is not None:
        other, values = given
        for value in values:
            yield from _from(program, other, value, None, depth + 1)
    elif (table := table_of(program, source, node)) is not None:
        other, display = table
        for each in entries_of(display):
            if each is None:
                yield Origin(source, None)
            else:
                yield from _from(program, other, each, index, depth + 1)
        if isinstance(node, cst.Call):
            default = node.args[1].value if len(node.args) > 1 else None
            if default is None:
                yield Origin(source, cst.Name("None"))
            else:
                yield from _from(program, source, default, index, depth + 1)
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Name | cst.Attribute):
        yield from _of_call(program, source, node, index, depth)
    elif index is not None:
        yield Origin(source, None)
    else:
        yield Origin(source, node)


def table_of(
    program: Program, source: Source, node: cst.BaseExpression
) -> tuple[Source, cst.Dict | cst.Call] | None:
    """The dictionary that ``{…}[key]``, ``TABLE[key]``, ``TABLE.get(key)`` or ``Class.TABLE[key]`` takes an entry of.

    It is a display, or ``dict(key=value)``.
    """
    table: cst.BaseExpression | None = None
    if isinstance(node, cst.Subscript):
        table = node.value
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        plain = len(node.args) in (1, 2) and not any(a.keyword or a.star for a in node.args)
        table = node.func.value if plain and node.func.attr.value == "get" else None
    if table is not None and _is_dictionary(table):
        return source, table
    if isinstance(table, cst.Attribute):
        name, found = table.attr.value, _in_class(program, source, table)
        found = found or in_module(program, source, table)
        changed = any(_grows(one, name) or _is_set(one, name) for one in program.sources)
    elif isinstance(table, cst.Name):
        name = table.value
        found = defined_by(program, source, table)
        changed = len(found) == 1 and _grows(found[0][0], name)
    else:
        return None
    if len(found) != 1 or changed:
        return None
    other, binding = found[0]
    bound = _bound_value(other, binding, name)
    return (other, bound[0]) if bound is not None and _is_dictionary(bound[0]) else None


def _is_dictionary(node: cst.BaseExpression) -> TypeGuard[cst.Dict | cst.Call]:
    return isinstance(node, cst.Dict) or (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Name)
        and node.func.value == "dict"
        and all(arg.keyword is not None for arg in node.args)
    )


def entries_of(table: cst.Dict | cst.Call) -> Iterator[cst.BaseExpression | None]:
    """What a dictionary holds; None for what another one brings with it."""
    if isinstance(table, cst.Call):
        yield from (arg.value for arg in table.args)
    else:
        for one in table.elements:
            yield one.value if isinstance(one, cst.DictElement) else None


def _in_class(
    program: Program, source: Source, table: cst.Attribute
) -> list[tuple[Source, cst.CSTNode]]:
    """What binds ``Class.TABLE`` in the body of the class."""
    root = table.value
    if not isinstance(root, cst.Name):
        return []
    return [
        (other, binding)
        for other, one in defined_by(program, source, root)
        if isinstance(one, cst.ClassDef)
        for binding in Names.of(other).bindings.get(one, {}).get(table.attr.value, ())
    ]


def _grows(source: Source, name: str) -> bool:
    """Whether entries of a dictionary of this name come, go or change after it was made."""
    if name not in source.text:
        return False
    for node in walk(source.tree):
        if isinstance(node, cst.AssignTarget | cst.AugAssign | cst.Del):
            target = node.target
            if isinstance(target, cst.Subscript):
                if dotted(target.value).rpartition(".")[2] == name:
                    return True
    return any(f"{name}.{method}(" in source.text for method in ("update", "pop", "setdefault"))


def _is_set(source: Source, name: str) -> bool:
    """Whether an attribute of this name is set outside of a class body."""
    return name in source.text and any(
        isinstance(node, cst.AssignTarget | cst.AnnAssign)
        and isinstance(node.target, cst.Attribute)
        and node.target.attr.value == name
        for node in walk(source.tree)
    )


def _of_name(
    program: Program, source: Source, node: cst.Name, index: int | None, depth: int
) -> Iterator[Origin]:
    found = defined_by(program, source, node)
    last = _bound_last(source, node)
    if last is not None:
        found = [(source, last)]
    if not found:
        yield Origin(source, node if index is None else None)
    for other, binding in found:
        if isinstance(binding, cst.FunctionDef | cst.ClassDef | cst.ImportAlias):
            yield Origin(source, node if index is None else None)
        else:
            yield from _of_binding(program, other, binding, node.value, index, depth)


def _bound_last(source: Source, node: cst.Name) -> cst.CSTNode | None:
    """What binds a name in every run right before a function reads it: a line of its body, whatever it was before."""
    layout, names = Layout.of(source), Names.of(source)
    scope = scope_of(layout.ancestors(node))
    if not isinstance(scope, cst.FunctionDef) or names.owner(node.value, scope) is not scope:
        return None
    bound = {one: set(layout.ancestors(one)) for one in names.bindings[scope][node.value]}
    around = set(layout.ancestors(node))
    lines = list(scope.body.body)
    here = next((i for i, line in enumerate(lines) if line in around), 0)
    if any(lines[here] in above for above in bound.values()):
        return None
    if any(isinstance(one, cst.Nonlocal) for one in bound):
        return None  # a function inside may bind it at any time
    for line in reversed(lines[:here]):
        inside = [one for one, above in bound.items() if line in above]
        if inside:
            parent = layout.parents[inside[0]]
            plain = isinstance(parent, cst.Assign) and layout.line(parent) is line
            return inside[0] if plain and len(inside) == 1 else None
    return None


def _of_binding(
    program: Program, source: Source, binding: cst.CSTNode, name: str, index: int | None, depth: int
) -> Iterator[Origin]:
    given = _bound_value(source, binding, name)
    if given is None or (given[1] is not None and index is not None):
        yield Origin(source, None)
    else:
        value, place = given
        at = index if place is None else place
        yield from _from(program, source, value, at, depth + 1)


def _of_call(
    program: Program, source: Source, node: cst.Call, index: int | None, depth: int
) -> Iterator[Origin]:
    found = defined_by(program, source, node.func) or _only_method(program, node)
    functions = [(s, f) for s, f in found if isinstance(f, cst.FunctionDef)]
    if len(functions) != len(found) or not found:
        yield Origin(source, node if index is None else None)
        return
    for other, function in functions:
        for value in returned(function):
            if value is None:
                yield Origin(other, cst.Name("None"))
            else:
                yield from _from(program, other, value, index, depth + 1)
        if _may_come_to_its_end(function.body):
            yield Origin(other, cst.Name("None"))


def callee(
    program: Program, source: Source, call: cst.Call
) -> tuple[Source, cst.FunctionDef] | None:
    """The one function of the project that a call runs, as far as the text says it."""
    func, found = call.func, defined_by(program, source, call.func)
    if isinstance(func, cst.Attribute):
        cls = _class_around(source, func.value) if isinstance(func.value, cst.Name) else None
        if not found and cls is not None and not _is_set_elsewhere(program, cls, func.attr.value):
            bound = Names.of(source).bindings.get(cls, {}).get(func.attr.value, ())
            found = [(source, one) for one in bound]
        found = found or _only_method(program, call)
    if len(found) != 1 or not isinstance(found[0][1], cst.FunctionDef):
        return None
    return found[0][0], found[0][1]


def _only_method(program: Program, call: cst.Call) -> list[tuple[Source, cst.CSTNode]]:
    """The method that some object's call runs, where no other of the project has its name.

    Nothing where a trace saw the call go to something outside of the project.
    """
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    found = program.derived(_methods).get(name, [])
    if len(found) != 1 or call in program.derived(_called):
        return []
    source, node = found[0]
    cls = Layout.of(source).parents[Layout.of(source).parents[node]]
    assert isinstance(cls, cst.ClassDef)
    if node.decorators or _is_set_elsewhere(program, cls, name):
        return []
    return [(source, node)]


def _of_property(
    program: Program, source: Source, node: cst.BaseExpression
) -> tuple[Source, list[cst.BaseExpression]] | None:
    """What ``config.name`` can be where ``config`` is annotated with a class of the project and ``name`` is its property."""
    if not isinstance(node, cst.Attribute) or not isinstance(node.value, cst.Name):
        return None
    found = program.derived(_methods).get(node.attr.value, [])
    if len(found) != 1 or not _is_property(found[0][1]):
        return None
    other, method = found[0]
    cls = Layout.of(other).parents[Layout.of(other).parents[method]]
    assert isinstance(cls, cst.ClassDef)
    said = _annotation(source, node.value).strip("\"'").rpartition(".")[2]
    if said != cls.name.value or _is_set_elsewhere(program, cls, node.attr.value):
        return None
    values = [one or cst.Name("None") for one in returned(method)]
    return other, values + ([cst.Name("None")] if _may_come_to_its_end(method.body) else [])


def _annotation(source: Source, name: cst.Name) -> str:
    """What annotates the parameter of the function that a name is; empty for others."""
    scope = scope_of(Layout.of(source).ancestors(name))
    if not isinstance(scope, cst.FunctionDef):
        return ""
    for one in (*scope.params.params, *scope.params.kwonly_params):
        if one.name.value == name.value and one.annotation is not None:
            return source.code(one.annotation.annotation)
    return ""


def _methods(program: Program) -> dict[str, list[tuple[Source, cst.FunctionDef]]]:
    """The methods of the project's classes by their names."""
    found: dict[str, list[tuple[Source, cst.FunctionDef]]] = {}
    for source in program.sources:
        for cls in walk(source.tree):
            for line in cls.body.body if isinstance(cls, cst.ClassDef) else ():
                if isinstance(line, cst.FunctionDef):
                    found.setdefault(line.name.value, []).append((source, line))
    return found


def _called(program: Program) -> set[cst.CSTNode]:
    """The calls that go to something outside of the project."""
    return {event.at.node for _, event in program.of(Called)}


def _of_own_member(
    program: Program, source: Source, node: cst.BaseExpression, depth: int
) -> list[Origin]:
    """What ``self.field``, ``self.property`` or ``self.method(…)`` can be; nothing if that is not known."""
    found: list[Origin] = []
    for value in own_values(program, source, node):
        found += _from(program, source, value, None, depth + 1)
    return found if all(one.node is not None for one in found) else []


def own_values(
    program: Program, source: Source, node: cst.BaseExpression
) -> list[cst.BaseExpression]:
    """The expressions that ``self.field``, ``self.property`` or ``self.method(…)`` gets, in a method of the class.

    Nothing unless the class alone says it: its methods set the field, and no base, derived class or code outside does.
    """
    member = node.func if isinstance(node, cst.Call) else node
    if not isinstance(member, cst.Attribute) or not isinstance(member.value, cst.Name):
        return []
    cls, name = _class_around(source, member.value), member.attr.value
    if cls is None or _is_set_elsewhere(program, cls, name):
        return []
    found = _member_values(source, cls, name, is_called=isinstance(node, cst.Call))
    return [one for one in found if one is not None] if None not in found else []


def _class_around(source: Source, name: cst.Name) -> cst.ClassDef | None:
    """The class of whose object ``self`` is the name, in one of its methods."""
    layout = Layout.of(source)
    for around in layout.ancestors(name):
        if isinstance(around, cst.FunctionDef) and around.params.params:
            cls = layout.parents.get(layout.parents[around])
            if around.params.params[0].name.value == name.value:
                return cls if isinstance(cls, cst.ClassDef) else None
    return None


def _is_property(function: cst.FunctionDef) -> bool:
    said = [dotted(one.decorator).rpartition(".")[2] for one in function.decorators]
    return said in (["property"], ["cached_property"])


def _member_values(
    source: Source, cls: cst.ClassDef, name: str, *, is_called: bool
) -> list[cst.BaseExpression | None]:
    """The expressions that a member of a class can be; None for one that is not said."""
    found: list[cst.BaseExpression | None] = []
    for line in walk(cls.body):
        if isinstance(line, cst.FunctionDef) and line.name.value == name:
            if _is_property(line) == is_called or (is_called and line.decorators):
                return [None]
            found += [one or cst.Name("None") for one in returned(line)]
            if _may_come_to_its_end(line.body):
                found.append(cst.Name("None"))
        elif isinstance(line, cst.AssignTarget | cst.AnnAssign | cst.AugAssign):
            if not _names_member(line.target, name):
                continue
            set_by = line if isinstance(line, cst.AnnAssign) else Layout.of(source).parents[line]
            is_field = isinstance(line.target, cst.Attribute) and not is_called
            plain = set_by if isinstance(set_by, cst.Assign | cst.AnnAssign) else None
            found.append(plain.value if plain is not None and is_field else None)
    return found


def _names_member(target: cst.BaseExpression, name: str) -> bool:
    """Whether a statement that sets ``target`` may set a member of this name."""
    return any(
        (isinstance(one, cst.Attribute) and one.attr.value == name)
        or (isinstance(one, cst.Name) and one is target and one.value == name)
        for one in walk(target)
    )


def _is_set_elsewhere(program: Program, cls: cst.ClassDef, name: str) -> bool:
    """Whether a base, a derived class or code outside of a class may give it, or its objects, such a member."""
    related = {dotted(base.value).rpartition(".")[2] for base in cls.bases}
    quoted = (f'"{name}"', f"'{name}'")
    for source in program.sources:
        if name not in source.text:
            continue
        if "setattr(" in source.text and any(one in source.text for one in quoted):
            return True
        layout = Layout.of(source)
        for node in walk(source.tree):
            if isinstance(node, cst.FunctionDef):
                sets = node.name.value == name
            elif isinstance(node, cst.AssignTarget | cst.AnnAssign | cst.AugAssign):
                sets = _names_member(node.target, name)
            else:
                continue
            if not sets:
                continue
            around = list(layout.ancestors(node))
            other = next((one for one in around if isinstance(one, cst.ClassDef)), None)
            if cls in around:
                continue
            if other is None:
                target = node.target if not isinstance(node, cst.FunctionDef) else None
                if target is not None and any(isinstance(o, cst.Attribute) for o in walk(target)):
                    return True
                continue
            bases = {dotted(base.value).rpartition(".")[2] for base in other.bases}
            if other.name.value in related or cls.name.value in bases:
                return True
    return False


def _may_come_to_its_end(body: cst.BaseSuite) -> bool:
    """Whether what follows the statements of a block, or the function's end, may be reached."""
    last: cst.CSTNode | None = body.body[-1] if body.body else None
    if isinstance(last, cst.Return | cst.Raise):
        return False
    if isinstance(last, cst.SimpleStatementLine):
        return not isinstance(last.body[-1], cst.Return | cst.Raise)
    if isinstance(last, cst.With):
        return _may_come_to_its_end(last.body)
    if isinstance(last, cst.If):
        return _if_may_end(last)
    if isinstance(last, cst.Try) and last.orelse is None and last.finalbody is None:
        blocks = (last.body, *(one.body for one in last.handlers))
        return any(_may_come_to_its_end(one) for one in blocks)
    return True


def _if_may_end(node: cst.If) -> bool:
    other = node.orelse
    if other is None or _may_come_to_its_end(node.body):
        return True
    return _if_may_end(other) if isinstance(other, cst.If) else _may_come_to_its_end(other.body)


def defined_by(
    program: Program, source: Source, node: cst.BaseExpression
) -> list[tuple[Source, cst.CSTNode]]:
    """What binds a name, or ``module.name``, in the file of the project that has it."""
    if isinstance(node, cst.Attribute):
        return in_module(program, source, node)
    if not isinstance(node, cst.Name):
        return []
    scope = Names.of(source).owner(node.value, scope_of(Layout.of(source).ancestors(node)))
    return list(definitions(program, source, node.value, scope or source.tree))


def in_module(
    program: Program, source: Source, node: cst.Attribute
) -> list[tuple[Source, cst.CSTNode]]:
    """What binds ``module.name`` in a module of the project."""
    root = node.value
    if not isinstance(root, cst.Name):
        return []
    names = Names.of(source)
    scope = names.owner(root.value, scope_of(Layout.of(source).ancestors(node)))
    for one in names.imports:
        if one.name == root.value and one.scope is scope:
            other = program.project.module_named(*one.without_dots, source)
            if other is not None:
                return list(definitions(program, other, node.attr.value, other.tree))
    return []


def returned(function: cst.FunctionDef) -> list[cst.BaseExpression | None]:
    """What a function returns, in the order of the text."""
    return [n.value for n in walk(function.body, into=False) if isinstance(n, cst.Return)]


def only_asks(program: Program, source: Source, test: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether a test surely changes nothing: it asks for classes, or calls a function of the project that only does so."""
    if depth > MAX_DEPTH or any(isinstance(n, cst.Await | cst.NamedExpr) for n in walk(test)):
        return False
    for call in (n for n in walk(test) if isinstance(n, cst.Call)):
        if dotted(call.func) in ("isinstance", "issubclass", "hasattr", "callable"):
            continue
        found = defined_by(program, source, call.func)
        other, function = found[0] if len(found) == 1 else (source, None)
        if not isinstance(function, cst.FunctionDef):
            return False
        if any(isinstance(line, cst.BaseCompoundStatement) for line in function.body.body):
            return False
        lines = [one for line in function.body.body for one in getattr(line, "body", (line,))]
        *others, last = lines
        said = last.value if isinstance(last, cst.Return) else None
        more = [n for n in others if not isinstance(getattr(n, "value", None), cst.BaseString)]
        if said is None or more or not only_asks(program, other, said, depth + 1):
            return False
    return True


def definitions(
    program: Program, source: Source, name: str, scope: cst.CSTNode, depth: int = 0
) -> Iterator[tuple[Source, cst.CSTNode]]:
    """The nodes that bind a name of a scope, through imports from other files of the project."""
    names = Names.of(source)
    bound = names.bindings.get(scope, {}).get(name, [])
    for node in bound:
        imported = next((i for i in names.imports if i.alias is node), None)
        if imported is None or not isinstance(imported.statement, cst.ImportFrom):
            yield source, node
            continue
        name_there, level = imported.without_dots
        module, _, last = name_there.rpartition(".")
        other = program.project.module_named(module, level, source)
        if other is None or depth > MAX_DEPTH:
            yield source, node
        else:
            yield from definitions(program, other, last, other.tree, depth + 1)
    if not bound and scope is source.tree and depth <= MAX_DEPTH:
        yield from _starred(program, source, name, depth)


def class_named(
    program: Program, source: Source, node: cst.BaseExpression
) -> tuple[Source, cst.ClassDef] | None:
    """The class of the project that a name of a file means, with its file; the name may be one that was quoted."""
    if not isinstance(node, cst.Name):
        return None
    found = list(definitions(program, source, node.value, source.tree))
    home, only = found[0] if len(found) == 1 else (source, None)
    return (home, only) if isinstance(only, cst.ClassDef) else None


def uses_of(program: Program, cls: cst.ClassDef) -> Iterator[cst.Call | cst.ClassDef]:
    """The calls of a class by its name, and the classes that derive from it."""
    name = cls.name.value
    for source in program.sources:
        for node in walk(source.tree) if name in source.text else ():
            if isinstance(node, cst.Call) and dotted(node.func).rpartition(".")[2] == name:
                yield node
            if isinstance(node, cst.ClassDef) and any(
                dotted(base.value).rpartition(".")[2] == name for base in node.bases
            ):
                yield node


def _starred(
    program: Program, source: Source, name: str, depth: int
) -> Iterator[tuple[Source, cst.CSTNode]]:
    for node in walk(source.tree, into=False):
        if isinstance(node, cst.ImportFrom) and isinstance(node.names, cst.ImportStar):
            other = program.project.module_named(dotted(node.module), len(node.relative), source)
            if other is not None:
                yield from definitions(program, other, name, other.tree, depth + 1)


def _bound_value(
    source: Source, binding: cst.CSTNode, name: str
) -> tuple[cst.BaseExpression, int | None] | None:
    """The expression that a binding gives a name, and which element of it; None when there is none."""
    layout = Layout.of(source)
    if isinstance(binding, cst.AnnAssign):
        return (binding.value, None) if binding.value is not None else None
    if isinstance(binding, cst.NamedExpr):
        return binding.value, None
    assign = layout.parents.get(binding)
    if not isinstance(binding, cst.AssignTarget) or not isinstance(assign, cst.Assign):
        return None
    target = binding.target
    if isinstance(target, cst.Tuple | cst.List):
        for index, element in enumerate(target.elements):
            if isinstance(element.value, cst.Name) and element.value.value == name:
                return assign.value, index
        return None
    return assign.value, None
