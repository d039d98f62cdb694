"""Which names a source binds where, and where it uses them: what an import must not clash with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.source.source import Source
from fsdp2lint.source.walk import children

_SCOPES = (
    cst.Module,
    cst.FunctionDef,
    cst.Lambda,
    cst.ClassDef,
    cst.GeneratorExp,
    cst.ListComp,
    cst.SetComp,
    cst.DictComp,
)


_NO_NAMES = ("", "True", "False", "None")


@dataclass(frozen=True, slots=True, eq=False)
class Imported:
    """A name bound by an import: ``target`` is the dotted name of what it stands for.

    ``import a.b`` binds ``a`` and loads ``a.b``; then ``loads`` is longer than ``target``.
    """

    name: str
    target: str
    loads: str
    alias: cst.ImportAlias
    statement: cst.Import | cst.ImportFrom
    scope: cst.CSTNode

    @property
    def without_dots(self) -> tuple[str, int]:
        """The target without the dots that it begins with, and how many packages up these lead.

        The target of ``from . import name`` has one more: that between the package and the name.
        """
        level = len(self.statement.relative) if isinstance(self.statement, cst.ImportFrom) else 0
        return self.target.lstrip("."), level


_BINDING = frozenset(
    {
        cst.AnnAssign,
        cst.AsName,
        cst.Assign,
        cst.AssignTarget,
        cst.AugAssign,
        cst.CompFor,
        cst.For,
        cst.MatchAs,
        cst.MatchMapping,
        cst.MatchStar,
        cst.NamedExpr,
    }
)
"""The kinds of nodes that bind names as targets."""

_SCOPED = frozenset(
    {
        cst.Annotation,
        cst.ClassDef,
        cst.Del,
        cst.DictComp,
        cst.FunctionDef,
        cst.GeneratorExp,
        cst.Global,
        cst.Import,
        cst.ImportFrom,
        cst.Lambda,
        cst.ListComp,
        cst.Nonlocal,
        cst.SetComp,
    }
)
"""The kinds of nodes that open a scope, or bind in another way."""


class Names:
    """The names of one source; made once for each by :meth:`of`."""

    def __init__(self, source: Source) -> None:
        self.tree = source.tree
        self.scopes: dict[cst.CSTNode, cst.CSTNode] = {}
        """The scope around each scope, and the one in which each name is used."""
        self.bindings: dict[cst.CSTNode, dict[str, list[cst.CSTNode]]] = {}
        """The nodes that bind each name of each scope."""
        self.imports: list[Imported] = []
        self.imports_of: dict[str, list[Imported]] = {}
        """The same, by the name that is bound."""
        self.renamed: set[str] = set()
        """Names that are perhaps another word for something: ``name = a.b``."""
        self.uses: dict[str, list[cst.CSTNode]] = {}
        """The scopes in which each name is used."""
        self.exported: set[str] = set()
        self._todo: list[tuple[cst.CSTNode, cst.CSTNode]] = []
        self._walk()

    @classmethod
    def of(cls, source: Source) -> Names:
        """The names of ``source``."""
        return source.derived(cls)

    def owner(self, name: str, scope: cst.CSTNode) -> cst.CSTNode | None:
        """The scope whose ``name`` code in ``scope`` means; None for a builtin or an unknown name."""
        at: cst.CSTNode | None = scope
        while at is not None:
            if name in self.bindings.get(at, ()) and (
                at is scope or not isinstance(at, cst.ClassDef)
            ):
                return at
            at = self.scopes.get(at)
        return None

    def used(self, name: str, scope: cst.CSTNode) -> bool:
        """Whether some code uses the ``name`` of ``scope``."""
        if name in self.exported and scope is self.tree:
            return True
        return any(self.owner(name, at) is scope for at in self.uses.get(name, ()))

    def _walk(self) -> None:
        self._todo = [(self.tree, self.tree)]
        while self._todo:
            node, scope = self._todo.pop()
            self._visit(node, scope)

    def _visit(self, node: cst.CSTNode, scope: cst.CSTNode) -> None:
        if type(node) is cst.Name:  # the most frequent ones first: libcst's classes are abstract
            self.uses.setdefault(node.value, []).append(scope)
        elif type(node) is cst.Attribute or type(node) is cst.Arg:
            self._later(scope, node.value)
        elif type(node) in _BINDING:
            self._targets(node, scope)
        elif type(node) in _SCOPED:
            self._scoped(node, scope)
        else:
            self._later(scope, *children(node))

    def _scoped(self, node: cst.CSTNode, scope: cst.CSTNode) -> None:
        if isinstance(node, cst.Import | cst.ImportFrom):
            self._import(node, scope)
        elif isinstance(node, cst.FunctionDef | cst.Lambda):
            self._function(node, scope)
        elif isinstance(node, cst.ClassDef):
            self._bind(node.name.value, node, scope)
            self._later(scope, *node.decorators, *node.bases, *node.keywords)
            self._open(node, scope, node.body)
        elif isinstance(node, cst.BaseComp):
            self._open(node, scope, *children(node))
        elif isinstance(node, cst.Global | cst.Nonlocal):
            self._declared(node, scope)
        elif isinstance(node, cst.Annotation):
            self._annotation(node, scope)
        elif isinstance(node, cst.Del):
            self._later(scope, node.target)

    def _targets(self, node: cst.CSTNode, scope: cst.CSTNode) -> None:
        """Statements, clauses and patterns that bind names."""
        if isinstance(node, cst.Assign):
            self._exports(node.targets[0].target, node.value)
            self._renames(node.value, *(target.target for target in node.targets))
        elif isinstance(node, cst.AnnAssign | cst.AugAssign) and node.value is not None:
            self._exports(node.target, node.value)
            self._renames(node.value, node.target)
        name = getattr(node, "target", None)
        if isinstance(node, cst.AsName | cst.MatchAs | cst.MatchStar):
            name = node.name
        elif isinstance(node, cst.MatchMapping):
            name = node.rest
        if isinstance(node, cst.NamedExpr):
            while isinstance(scope, cst.BaseComp):
                scope = self.scopes[scope]
        if isinstance(name, cst.BaseExpression):
            for target in _targets_in(name):
                if isinstance(target, cst.Name):
                    self._bind(target.value, node, scope)
                else:
                    self._later(scope, target)
            if isinstance(node, cst.AugAssign):
                self._later(scope, name)
        self._later(scope, *(c for c in children(node) if c is not name))

    def _renames(self, value: cst.BaseExpression, *targets: cst.BaseExpression) -> None:
        if dotted(value) not in _NO_NAMES:
            self.renamed.update(t.value for t in targets if isinstance(t, cst.Name))

    def _later(self, scope: cst.CSTNode, *nodes: cst.CSTNode) -> None:
        self._todo += ((node, scope) for node in nodes)

    def _open(self, scope: cst.CSTNode, around: cst.CSTNode, *nodes: cst.CSTNode) -> None:
        self.scopes[scope] = around
        self._later(scope, *nodes)

    def _bind(self, name: str, node: cst.CSTNode, scope: cst.CSTNode) -> None:
        self.bindings.setdefault(scope, {}).setdefault(name, []).append(node)

    def _function(self, node: cst.FunctionDef | cst.Lambda, scope: cst.CSTNode) -> None:
        if isinstance(node, cst.FunctionDef):
            self._bind(node.name.value, node, scope)
            self._later(scope, *node.decorators)
            if node.returns is not None:
                self._later(scope, node.returns)
        for child in _params(node.params):
            self._bind(child.name.value, child, node)
            self._later(scope, *(c for c in (child.annotation, child.default) if c is not None))
        self._open(node, scope, node.body)

    def _declared(self, node: cst.Global | cst.Nonlocal, scope: cst.CSTNode) -> None:
        """A declared name belongs to a scope further out; to be safe it counts as used there."""
        out = self.tree if isinstance(node, cst.Global) else self.scopes.get(scope, self.tree)
        for item in node.names:
            self._bind(item.name.value, node, out)
            self.uses.setdefault(item.name.value, []).append(out)

    def _annotation(self, node: cst.Annotation, scope: cst.CSTNode) -> None:
        self._later(scope, node.annotation)
        todo: list[cst.CSTNode] = [node.annotation]
        while todo:
            one = todo.pop()
            if isinstance(one, cst.SimpleString):
                self._quoted(one, scope)
            todo += children(one)

    def _quoted(self, node: cst.SimpleString, scope: cst.CSTNode) -> None:
        inside = quoted(node)
        if inside is not None:
            self._later(scope, inside)

    def _exports(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        """``__all__ = ["name"]`` uses the name."""
        if not (isinstance(target, cst.Name) and target.value == "__all__"):
            return
        for element in getattr(value, "elements", ()):
            if isinstance(element.value, cst.SimpleString):
                self.exported.add(str(element.value.evaluated_value))

    def _import(self, node: cst.Import | cst.ImportFrom, scope: cst.CSTNode) -> None:
        if isinstance(node.names, cst.ImportStar):
            return
        for alias, loaded in zip(node.names, loads(node), strict=True):
            asname = alias.asname
            if asname is not None and isinstance(asname.name, cst.Name):
                name, target = asname.name.value, loaded
            elif isinstance(node, cst.ImportFrom):
                name, target = dotted(alias.name), loaded
            else:
                name = target = loaded.partition(".")[0]
            self._bind(name, alias, scope)
            one = Imported(name, target, loaded, alias, node, scope)
            self.imports.append(one)
            self.imports_of.setdefault(name, []).append(one)


def scope_of(ancestors: Iterator[cst.CSTNode]) -> cst.CSTNode:
    """The innermost scope among the nodes around a node."""
    return next(a for a in ancestors if isinstance(a, _SCOPES))


def dotted(node: cst.CSTNode | None) -> str:
    """``a.b.c`` for a name or a chain of attributes, empty for anything else."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return ""
    return ".".join((node.value, *reversed(parts)))


def quoted(node: cst.SimpleString) -> cst.BaseExpression | None:
    """The expression inside the quotes of an annotation; None where it is none after all."""
    value = node.evaluated_value
    try:
        return cst.parse_expression(value) if isinstance(value, str) else None
    except Exception:  # the parser raises more than its own errors
        return None


def imported_module(node: cst.ImportFrom) -> str:
    """The module of ``from module import …``; relative ones begin with dots."""
    return "." * len(node.relative) + dotted(node.module)


def loads(node: cst.Import | cst.ImportFrom) -> Iterator[str]:
    """The dotted names that an import loads; none where it takes all that there is."""
    if isinstance(node.names, cst.ImportStar):
        return
    module = imported_module(node) + "." if isinstance(node, cst.ImportFrom) else ""
    for alias in node.names:
        yield module + dotted(alias.name)


def naming(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The children that can name something: not the names that parameters and keywords bind."""
    if type(node) is cst.Arg or type(node) is cst.Attribute:
        yield node.value
    elif type(node) is cst.Param:
        yield from (c for c in (node.annotation, node.default) if c is not None)
    elif type(node) is cst.FunctionDef or type(node) is cst.ClassDef:
        yield from (c for c in children(node) if c is not node.name)
    else:
        yield from children(node)


def _params(params: cst.Parameters) -> Iterator[cst.Param]:
    for one in (*params.posonly_params, *params.params, params.star_arg, *params.kwonly_params):
        if isinstance(one, cst.Param):
            yield one
    if params.star_kwarg is not None:
        yield params.star_kwarg


def _targets_in(target: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The targets in ``a, (b, c.d) = …``: the names are bound, the others used."""
    todo = [target]
    while todo:
        one = todo.pop()
        if isinstance(one, cst.Tuple | cst.List):
            todo += (element.value for element in one.elements)
        else:
            yield one
