"""Which names a statement reads that were bound before it, and which it binds or changes.

Names of attributes are written with their dot: ``.optimizer`` of whatever object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp2lint.api import children, walk

_BINDING = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr, cst.Del)
_CHANGING = frozenset(
    "add append clear discard extend insert pop popitem remove setdefault sort reverse update".split()
)
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)


def exposed(statements: Iterable[cst.CSTNode]) -> set[str]:
    """The plain names that statements, one after the other, read without having bound them themselves.

    What may not run (a branch, the body of a loop) binds nothing for what comes behind it.
    """
    found: set[str] = set()
    _block(statements, set(), found)
    return found


def reads(*statements: cst.CSTNode) -> set[str]:
    """What statements read: names as :func:`exposed` says, and all attributes."""
    attributes = (n for one in statements for n in walk(one) if isinstance(n, cst.Attribute))
    return exposed(statements) | {f".{n.attr.value}" for n in attributes}


def writes(statement: cst.CSTNode) -> set[str]:
    """What a statement binds, and what it changes: attributes, the owners of entries, lists that grow."""
    found: set[str] = set()
    for node in walk(statement, into=False):
        if isinstance(node, _BINDING):
            found |= _written(node.target)
        elif isinstance(node, cst.FunctionDef | cst.ClassDef):
            found.add(node.name.value)
        elif isinstance(node, cst.AsName):
            found |= _written(node.name)
        elif isinstance(node, cst.Import | cst.ImportFrom):
            found |= imported(node)
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            if node.func.attr.value in _CHANGING:
                found |= _written(node.func.value)
    return found


def _written(target: cst.CSTNode) -> set[str]:
    if isinstance(target, cst.Attribute):
        return {f".{target.attr.value}"}
    if isinstance(target, cst.Subscript):
        return _written(target.value)
    if isinstance(target, cst.Tuple | cst.List):
        return set().union(*(_written(one.value) for one in target.elements))
    return _plain(target)


def outer_names(function: cst.FunctionDef | cst.Lambda) -> set[str]:
    """The names that a function takes from the scopes around it."""
    bound = _parameters(function.params)
    found: set[str] = set()
    if isinstance(function, cst.Lambda):
        _expression(function.body, bound, found)
    else:
        _block(function.body.body, bound, found)
    return found


def _block(statements: Iterable[cst.CSTNode], bound: set[str], found: set[str]) -> None:
    for statement in statements:
        _statement(statement, bound, found)


def _statement(statement: cst.CSTNode, bound: set[str], found: set[str]) -> None:
    if isinstance(statement, cst.SimpleStatementLine | cst.SimpleStatementSuite):
        for small in statement.body:
            _small(small, bound, found)
    elif isinstance(statement, cst.For):
        _expression(statement.iter, bound, found)
        _block(statement.body.body, bound | _plain(statement.target), found)
        _otherwise(statement.orelse, bound, found)
    elif isinstance(statement, cst.If):
        _expression(statement.test, bound, found)
        taken = set(bound)
        _block(statement.body.body, taken, found)
        if statement.orelse is not None:
            bound |= taken & _otherwise(statement.orelse, bound, found)
    elif isinstance(statement, cst.With):
        for item in statement.items:
            _expression(item.item, bound, found)
            bound |= set() if item.asname is None else _plain(item.asname.name)
        _block(statement.body.body, bound, found)
    elif isinstance(statement, cst.FunctionDef):
        found |= outer_names(statement) - bound
        for node in (*_defaults(statement.params), *statement.decorators):
            _expression(node, bound, found)
        bound.add(statement.name.value)
    else:
        _expression(statement, bound, found)


def _otherwise(branch: cst.CSTNode | None, bound: set[str], found: set[str]) -> set[str]:
    """The names that are bound at the end of an ``else`` or ``elif``."""
    inner = set(bound)
    if isinstance(branch, cst.If):
        _statement(branch, inner, found)
    elif isinstance(branch, cst.Else):
        _block(branch.body.body, inner, found)
    return inner


def _small(statement: cst.CSTNode, bound: set[str], found: set[str]) -> None:
    if isinstance(statement, cst.Import | cst.ImportFrom):
        bound |= imported(statement)
        return
    if isinstance(statement, cst.Assign):
        targets: list[cst.CSTNode] = [one.target for one in statement.targets]
    elif isinstance(statement, cst.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    else:
        _expression(statement, bound, found)
        return
    _expression(statement.value or statement, bound, found)
    for target in targets:
        _expression(target, bound | _plain(target), found)
        bound |= _plain(target)


def imported(statement: cst.Import | cst.ImportFrom) -> set[str]:
    """The names that an import binds, as far as it says them."""
    found: set[str] = set()
    for alias in () if isinstance(statement.names, cst.ImportStar) else statement.names:
        name: cst.CSTNode = alias.name if alias.asname is None else alias.asname.name
        while isinstance(name, cst.Attribute):
            name = name.value
        found |= _plain(name)
    return found


def _plain(target: cst.CSTNode) -> set[str]:
    """The variables that a target binds: no attributes, no entries."""
    if isinstance(target, cst.Name):
        return {target.value}
    if isinstance(target, cst.StarredElement):
        return _plain(target.value)
    if isinstance(target, cst.Tuple | cst.List):
        return set().union(*(_plain(one.value) for one in target.elements))
    return set()


def _parameters(params: cst.Parameters) -> set[str]:
    return {n.name.value for n in walk(params) if isinstance(n, cst.Param)}


def _defaults(params: cst.Parameters) -> Iterator[cst.CSTNode]:
    for node in walk(params):
        if isinstance(node, cst.Param) and node.default is not None:
            yield node.default


def _expression(node: cst.CSTNode, bound: Iterable[str], found: set[str]) -> None:
    """Add the names that an expression, or a statement that is not looked into, reads and nothing has bound."""
    todo = [(node, frozenset(bound))]
    while todo:
        one, known = todo.pop()
        if isinstance(one, cst.Name):
            if one.value not in known:
                found.add(one.value)
        elif isinstance(one, cst.Attribute | cst.Arg):
            todo.append((one.value, known))
        elif isinstance(one, cst.Lambda):
            found |= outer_names(one) - known
            todo += [(default, known) for default in _defaults(one.params)]
        elif isinstance(one, _COMPREHENSIONS):
            within = known.union(*(_plain(f.target) for f in _chain(one.for_in)))
            todo += [(one.for_in.iter, known), *((child, within) for child in children(one))]
        else:
            todo += [(child, known) for child in children(one)]


def _chain(comp: cst.CompFor) -> Iterator[cst.CompFor]:
    inner: cst.CompFor | None = comp
    while inner is not None:
        yield inner
        inner = inner.inner_for_in
