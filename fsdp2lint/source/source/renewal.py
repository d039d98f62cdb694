"""A tree that takes the next text of its file: what stays as it was keeps its nodes.

Most edits change bodies of functions, and imports with them. Who walked the tree before and entered none of these
functions has seen nothing that is different now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import libcst as cst
from libcst.helpers import get_full_name_for_node

from fsdp2lint.source.walk import walk

if TYPE_CHECKING:
    from fsdp2lint.source.source import Source


@dataclass(frozen=True, slots=True)
class Import:
    """A module that a new import line names, and the names that it binds."""

    module: str
    level: int
    names: tuple[str, ...]


@dataclass(slots=True)
class Renewal:
    """What became different in a tree: bodies of functions, and imports and functions at the top of the module."""

    bodies: set[cst.CSTNode] = field(default_factory=set)
    """The functions of the module and of its classes whose bodies are different, and the classes around them."""
    imports: list[Import] = field(default_factory=list)
    gone: list[Import] = field(default_factory=list)
    """Imports that are there no more, or names that one of them took."""
    functions: list[str] = field(default_factory=list)
    """The names of new functions, which evaluate nothing until they are called."""
    classes: dict[str, list[str]] = field(default_factory=dict)
    """New classes of functions alone, with the names from which their bases come: these may notice it."""

    @property
    def names(self) -> Iterator[str]:
        """The names that the module binds and did not bind there before."""
        yield from self.functions
        yield from self.classes
        for one in self.imports:
            yield from one.names


def renew(old: Source, new: Source) -> Renewal | None:
    """Make the tree of ``old`` that of ``new``; None, and nothing is done, where more is different than a
    :class:`Renewal` says.
    """
    work = _Renewing(old, new)
    try:
        body = work.merged(old.tree.body, new.tree.body, ())
    except _TooDifferent:
        return None
    work.later += [(old.tree, "body", body)]
    work.later += [(old.tree, name, getattr(new.tree, name)) for name in _OF_MODULES]
    for node, name, value in work.later:
        object.__setattr__(node, name, value)
    return work.made


_OF_MODULES = (
    *("header", "footer", "encoding", "default_indent", "default_newline", "has_trailing_newline"),
)


class _TooDifferent(Exception):
    """More is different than bodies and additions."""


class _Renewing:
    """Two trees on their way to one."""

    def __init__(self, old: Source, new: Source) -> None:
        self._old = old
        self._new = new
        self.made = Renewal()
        self.later: list[tuple[cst.CSTNode, str, Any]] = []
        """What to set where, once all is known to fit."""

    def merged(
        self,
        before: Sequence[cst.CSTNode],
        after: Sequence[cst.CSTNode],
        within: tuple[cst.ClassDef, ...],
    ) -> list[cst.CSTNode]:
        """The statements of a module or a class: the old nodes for what stays, new ones for the rest."""
        old = list(_texts(self._old, before))
        new = list(_texts(self._new, after))
        found: list[cst.CSTNode] = []
        for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if tag == "equal":
                found += before[i:j]
                continue
            waiting = list(before[i:j])
            for one in after[k:m]:
                node = None
                for number, other in enumerate(waiting):
                    node = self._same(other, one, within)
                    if node is not None:
                        self._remove(waiting[:number], within)
                        del waiting[: number + 1]
                    if node is not None or not _imports(other):
                        break
                if node is None and within:
                    raise _TooDifferent  # a method more: who calls it got another one before
                if node is None:
                    self._add(one)
                found.append(one if node is None else node)
            self._remove(waiting, within)
        return found

    def _remove(self, old: Sequence[cst.CSTNode], within: tuple[cst.ClassDef, ...]) -> None:
        """Note statements that are gone."""
        for one in old:
            if within or not _imports(one):
                raise _TooDifferent
            self.made.gone += _imports(one)

    def _same(
        self, old: cst.CSTNode, new: cst.CSTNode, within: tuple[cst.ClassDef, ...]
    ) -> cst.CSTNode | None:
        """What a statement becomes; None where the new one is not the old one any more."""
        if isinstance(old, cst.FunctionDef) and isinstance(new, cst.FunctionDef):
            if self._head(self._old, old) != self._head(self._new, new):
                return None
            self.made.bodies.update((old, *within))
            self.later.append((old, "body", new.body))
            return old
        if isinstance(old, cst.ClassDef) and isinstance(new, cst.ClassDef):
            blocks = isinstance(old.body, cst.IndentedBlock) and isinstance(
                new.body, cst.IndentedBlock
            )
            if not blocks or self._head(self._old, old) != self._head(self._new, new):
                return None
            body = self.merged(old.body.body, new.body.body, (*within, old))
            self.later.append((old.body, "body", body))
            self.later += [(old.body, n, getattr(new.body, n)) for n in ("header", "footer")]
            return old
        before, after = _import_from(old), _import_from(new)
        if before is None or after is None or _origin(before) != _origin(after):
            return None
        names, others = _bound(before), _bound(after)
        if set(names).isdisjoint(others):
            return None
        added = tuple(bound for loaded, bound in others if (loaded, bound) not in names)
        gone = tuple(bound for loaded, bound in names if (loaded, bound) not in others)
        self.made.imports.append(Import(*_origin(after), added))
        self.made.gone.append(Import(*_origin(before), gone))
        return new

    def _head(self, source: Source, node: cst.FunctionDef | cst.ClassDef) -> str:
        """The text of a definition without its body."""
        alone = node.with_changes(body=cst.SimpleStatementSuite((cst.Pass(),)))
        return source.tree.code_for_node(alone)

    def _add(self, new: cst.CSTNode) -> None:
        """Note a new statement at the top of the module."""
        if isinstance(new, cst.FunctionDef) and _only_defines(new):
            self.made.functions.append(new.name.value)
            return
        if isinstance(new, cst.ClassDef) and not (new.decorators or new.keywords):
            bases = [get_full_name_for_node(one.value) or "" for one in new.bases]
            if all(bases) and all(map(_only_defines, new.body.body)):
                self.made.classes[new.name.value] = [one.partition(".")[0] for one in bases]
                return
        if not _imports(new):
            raise _TooDifferent
        self.made.imports += _imports(new)


def _only_defines(node: cst.CSTNode) -> bool:
    """Whether a statement is a function that evaluates nothing until it is called, or a docstring."""
    if isinstance(node, cst.FunctionDef):
        return not node.decorators and not any(isinstance(n, cst.Call) for n in walk(node.params))
    lines = node.body if isinstance(node, cst.SimpleStatementLine) else (node,)
    return all(isinstance(n, cst.Expr) and isinstance(n.value, cst.SimpleString) for n in lines)


def _imports(node: cst.CSTNode) -> list[Import]:
    """The imports of a line that holds nothing else; empty for all others."""
    found: list[Import] = []
    for small in node.body if isinstance(node, cst.SimpleStatementLine) else (node,):
        if isinstance(small, cst.ImportFrom) and not isinstance(small.names, cst.ImportStar):
            found.append(Import(*_origin(small), tuple(name for _, name in _bound(small))))
        elif isinstance(small, cst.Import):
            for alias in small.names:
                name = get_full_name_for_node(alias.name) or ""
                found.append(Import(name, 0, (_name(alias) or name.partition(".")[0],)))
        else:
            return []
    return found


def _texts(source: Source, statements: Sequence[cst.CSTNode]) -> Iterator[str]:
    """The lines of each statement, from behind those of the one before: two that are equal here are equal."""
    top = source.range(statements[0]).line - 1 if statements else 0
    while top and source.lines[top - 1].lstrip().startswith(("#", "@")):
        top -= 1
    for one in statements:
        end = source.range(one).end_line
        yield "\n".join(source.lines[top:end])
        top = end


def _import_from(node: cst.CSTNode) -> cst.ImportFrom | None:
    """The import that a line is, when it names what it takes."""
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return None
    one = node.body[0]
    named = isinstance(one, cst.ImportFrom) and not isinstance(one.names, cst.ImportStar)
    return one if named and isinstance(one, cst.ImportFrom) else None


def _origin(node: cst.ImportFrom) -> tuple[str, int]:
    module = "" if node.module is None else get_full_name_for_node(node.module) or ""
    return module, len(node.relative)


def _bound(node: cst.ImportFrom) -> list[tuple[str, str]]:
    """The names that an import takes, each with the name that it binds."""
    aliases = () if isinstance(node.names, cst.ImportStar) else node.names
    taken = [(get_full_name_for_node(alias.name) or "", _name(alias)) for alias in aliases]
    return [(name, bound or name) for name, bound in taken]


def _name(alias: cst.ImportAlias) -> str:
    """The name behind ``as``; empty when there is none."""
    return "" if alias.asname is None else get_full_name_for_node(alias.asname.name) or ""
