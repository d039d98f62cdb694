"""Names that a text reads and may not have bound: never anywhere, or not on every path to the read.

An output checker: a rewriting that brings such a name is no rewriting. What the text had before is not
its fault, so callers compare both.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsdp2lint.source.source import Source

Read = tuple[str, str]
"""The function (dotted; empty for the module) and the name that it reads."""

_BUILTINS = frozenset(dir(builtins)) | {
    *("__file__", "__name__", "__doc__", "__spec__", "__path__", "__package__", "__class__"),
    *("__builtins__", "__annotations__", "__loader__", "get_ipython", "WindowsError"),
}
_LEAVES = frozenset(
    ("ctx", "op", "ops", "id", "attr", "kind", "level", "module", "type_comment", "conversion")
)
"""Fields that hold no code."""
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def unbound_in(source: Source) -> set[Read]:
    """The names that may be unbound where a source reads them."""
    return unbound(source.text)


def unbound(text: str) -> set[Read]:
    """The names that may be unbound where they are read; nothing for a text that does not parse."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    nodes = list(_walk(tree))
    if any(isinstance(n, ast.ImportFrom) and n.names[0].name == "*" for n in nodes):
        module = None  # anything may come from there
    else:
        global_names = (name for n in nodes if isinstance(n, ast.Global) for name in n.names)
        module = frozenset(_bound_in(tree.body)) | set(global_names)
    scope = _Scope("", frozenset(), module, is_function=False)
    scope.block(tree.body, set())
    return scope.found


@cache
def _holding(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in fields if name not in _LEAVES)


def _children(node: ast.AST) -> list[ast.AST]:
    """The nodes that a node holds, without operators and contexts."""
    found: list[ast.AST] = []
    for name in _holding(node._fields):
        held = getattr(node, name, None)
        if type(held) is list:
            found += [one for one in held if isinstance(one, ast.AST)]
        elif isinstance(held, ast.AST):
            found.append(held)
    return found


def _walk(*nodes: ast.AST) -> Iterator[ast.AST]:
    """The nodes and all that they hold, in no order; in half of the time of ``ast.walk``."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        yield node
        todo += _children(node)


def _inside(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a scope: functions and classes in it, and not what is in those."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            todo += node.decorator_list
        elif isinstance(node, _COMPREHENSIONS):  # only what `:=` binds belongs to the scope
            todo += [n for n in _walk(node) if isinstance(n, ast.NamedExpr)]
        elif not isinstance(node, ast.Lambda):
            todo += _children(node)


def _bound_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that a scope binds."""
    for node in _inside(nodes):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((one.asname or one.name.partition(".")[0]) for one in node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest


def _named(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that ``:=`` binds."""
    for one in _walk(*nodes):
        if isinstance(one, ast.NamedExpr) and isinstance(one.target, ast.Name):
            yield one.target.id


class _Scope:
    """A function, a class or the module, statement by statement; ``None`` is code that nothing reaches."""

    def __init__(
        self,
        name: str,
        outer: frozenset[str],
        module: frozenset[str] | set[str] | None,
        *,
        is_function: bool,
        own: frozenset[str] = frozenset(),
    ) -> None:
        self.name, self.outer, self.module, self.is_function = name, outer, module, is_function
        self.own = own
        """The names that the scope binds: reads of others are not its own."""
        self.found: set[Read] = set()
        self.tested: dict[str, set[str]] = {}
        """What was bound under each test so far."""
        self.exits: list[list[set[str]]] = []
        """What is bound at each ``break`` out of the loops around."""

    def block(self, body: Iterable[ast.stmt], bound: set[str] | None) -> set[str] | None:
        for statement in body:
            if bound is None:
                return None
            bound = self.statement(statement, bound)
        return bound

    def statement(self, node: ast.stmt, bound: set[str]) -> set[str] | None:
        """What is bound behind a statement."""
        if isinstance(node, ast.Return | ast.Raise):
            self.reads(node, bound)
            return None
        if isinstance(node, ast.Break):
            if self.exits:
                self.exits[-1].append(bound)
            return None
        if isinstance(node, ast.Continue):
            return None
        if isinstance(node, ast.If):
            self.reads(node.test, bound)
            return self.choice(node, bound | set(_named([node.test])))
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            return self.loop(node, bound)
        if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            return self.attempt(node, bound)  # type: ignore[arg-type]
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                self.reads(item, bound)
                bound = bound | set(_bound_in([item]))
            return self.block(node.body, bound)
        if isinstance(node, ast.Match):
            self.reads(node.subject, bound)
            ends: list[set[str] | None] = [set(bound)]
            for case in node.cases:
                inside = bound | set(_bound_in([case.pattern]))
                if case.guard is not None:
                    self.reads(case.guard, inside)
                ends.append(self.block(case.body, inside))
            return _both(ends)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.definition(node, bound)
            return bound | {node.name}
        self.reads(node, bound)
        bound = bound.union(_bound_in([node]))
        if isinstance(node, ast.Delete):
            names = (n for n in _walk(node) if isinstance(n, ast.Name))
            bound -= {n.id for n in names if isinstance(n.ctx, ast.Del)}
        return bound

    def choice(self, node: ast.If, bound: set[str]) -> set[str] | None:
        """A test that was made before binds again what it bound then."""
        text = ast.unparse(node.test)
        other = text.removeprefix("not ") if text.startswith("not ") else f"not {text}"
        both = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
        parts = map(ast.unparse, node.test.values) if isinstance(node.test, ast.BoolOp) else ()
        known = {name for part in (text, *(parts if both else ())) for name in self.when(part)}
        ends = [
            self.block(node.body, bound | known),
            self.block(node.orelse, bound | self.when(other)),
        ]
        for test, end in zip((text, other), ends, strict=True):
            self.tested[test] = self.when(test) | ((end or set()) - bound)
        return _both(ends)

    def when(self, test: str) -> set[str]:
        """What is bound where a test holds, because it held before."""
        return self.tested.get(test, set())

    def loop(self, node: ast.For | ast.AsyncFor | ast.While, bound: set[str]) -> set[str] | None:
        inside = set(bound)
        endless = False
        if isinstance(node, ast.While):
            self.reads(node.test, inside)
            bound = bound | set(_named([node.test]))
            inside |= bound
            endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        else:
            self.reads(node.iter, inside)
            inside |= set(_bound_in([node.target]))
        self.exits.append([])
        once = self.block(node.body, inside)
        left: list[set[str] | None] = [*self.exits.pop()]
        certain = isinstance(getattr(node, "iter", None), ast.Tuple | ast.List) and once is not None
        if not endless:
            left.append(self.block(node.orelse, (once or set()) | bound if certain else set(bound)))
        return _both(left)

    def attempt(self, node: ast.Try, bound: set[str]) -> set[str] | None:
        through = self.block(node.body, set(bound))
        if through is not None:
            through = self.block(node.orelse, through)
        ends = [through]
        for handler in node.handlers:
            inside = set(bound) | ({handler.name} if handler.name else set())
            if handler.type is not None:
                self.reads(handler.type, inside)
            ends.append(self.block(handler.body, inside))
        behind = _both(ends)
        last = self.block(node.finalbody, set(bound) if behind is None else behind)
        return None if behind is None else last

    def definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, bound: set[str]
    ) -> None:
        for one in node.decorator_list:
            self.reads(one, bound)
        name = f"{self.name}.{node.name}".lstrip(".")
        outer = self.outer | self.own if self.is_function else self.outer
        if isinstance(node, ast.ClassDef):
            for base in (*node.bases, *(k.value for k in node.keywords)):
                self.reads(base, bound)
            inner = _Scope(name, outer, self.module, is_function=False)
            inner.block(node.body, set())
        else:
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                self.reads(default, bound)
            arguments = {one.arg for one in _walk(node.args) if isinstance(one, ast.arg)}
            apart = {
                name
                for one in _inside(node.body)
                if isinstance(one, ast.Global | ast.Nonlocal)
                for name in one.names
            }
            own = (frozenset(_bound_in(node.body)) | arguments) - apart
            inner = _Scope(name, outer, self.module, is_function=True, own=own)
            inner.block(node.body, set(arguments))
        self.found |= inner.found

    def reads(self, node: ast.AST, bound: set[str]) -> None:
        """Look at the names that a piece of code reads."""
        nodes = list(_walk(node))
        later = bound.union(_named([node]))
        inner = [n for n in nodes if isinstance(n, (ast.Lambda, *_COMPREHENSIONS.__args__))]
        deferred = {n for n in _walk(*inner) if isinstance(n, ast.Name)}
        hidden = {
            name
            for one in nodes
            for name in (
                {a.arg for a in _walk(one.args) if isinstance(a, ast.arg)}
                if isinstance(one, ast.Lambda)
                else set(_bound_in([one.target]))
                if isinstance(one, ast.comprehension)
                else ()
            )
        }
        for one in nodes:
            if not isinstance(one, ast.Name) or not isinstance(one.ctx, ast.Load):
                continue
            name = one.id
            if name in later or name in self.outer or (one in deferred and name in hidden):
                continue
            if name in self.own:
                if one not in deferred:
                    self.found.add((self.name, name))
            elif self.module is not None and name not in self.module and name not in _BUILTINS:
                self.found.add((self.name, name))


def _both(ends: Iterable[set[str] | None]) -> set[str] | None:
    """What is bound however control came here."""
    known = [one for one in ends if one is not None]
    return set.intersection(*known) if known else None
