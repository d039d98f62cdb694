"""Names from other modules: what to write to use one, and the import that makes it work.

    fully_shard = name_for(source, node, "torch.distributed.fsdp.fully_shard")
    fully_shard.text     "fully_shard", "fsdp.fully_shard", "torch.distributed.fsdp.fully_shard", …
    fully_shard.edits    the import that is needed, or nothing

An import that the file has is used under the name that it gives, if that name means the same where
``node`` is. Else the name is added to a ``from`` import of the same module, or a new import comes
beside those of the same package: code that runs between two imports (``os.environ[…] = …``) keeps its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.edits.alternatives import may_be_meant
from fsdp2lint.edits.changes import Change, Conflict
from fsdp2lint.edits.commas import CommaList
from fsdp2lint.edits.imports.where import Place, inserts, place_for, runs_before
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.names import Imported, Names, scope_of
from fsdp2lint.edits.statements import Insert, Remove, block_changes
from fsdp2lint.edits.text import Edit
from fsdp2lint.meanings.registry import canonical
from fsdp2lint.source.source import Source

WITH_TORCH = frozenset(
    "torch torch.accelerator torch.amp torch.cpu torch.cuda torch.distributed"
    " torch.distributed.device_mesh torch.nn torch.nn.functional torch.nn.init torch.nn.parallel"
    " torch.nn.utils torch.optim torch.optim.lr_scheduler torch.profiler torch.utils.checkpoint"
    " torch.utils.data torch.utils.data.distributed".split()
)
"""The modules that ``import torch`` loads (torch 2.13, read from ``sys.modules`` after it); a test
compares. ``torch.distributed.fsdp``, ``.checkpoint`` and ``.tensor`` are not among them."""


@dataclass(frozen=True, slots=True)
class Name:
    """What to write for a name of another module, and the edits that make it mean that."""

    text: str
    edits: tuple[Edit, ...] = ()


def name_for(
    source: Source,
    node: cst.CSTNode,
    target: str,
    *,
    alias: str = "",
    module: bool = False,
    dots: int = 9,
) -> Name:
    """How ``target`` (``torch.distributed.fsdp.fully_shard``) is written where ``node`` is.

    ``alias`` is the name to give to a new import; with ``module`` the target is a module itself, and
    a new import is ``import target as alias``, or ``import target`` without one. What the imports of
    the file make longer than ``dots`` is imported too.
    """
    for text in _known(source, node, target, module):
        if text.count(".") <= dots:
            return Name(text)
    layout, names = Layout.of(source), Names.of(source)
    at = scope_of(layout.ancestors(node))
    if module and not alias:
        root = target.partition(".")[0]
        if names.owner(root, at) is None or _is_root(layout, names, root, at):
            return Name(target, (AddImport(source, node, "", target, ""),))
    name = _free(names, alias or target.rpartition(".")[2], at, target)
    if module:
        return Name(name, (AddImport(source, node, "", target, name),))
    package, _, last = target.rpartition(".")
    given = "" if name == last else name
    return Name(name, (AddImport(source, node, package, last, given),))


class AddImport(Edit):
    """``from module import name as alias`` for use at ``node``; without a module ``import name as alias``.

    Rules ask :func:`name_for`, which adds nothing that is there already.
    """

    def __init__(
        self, source: Source, node: cst.CSTNode, module: str, name: str, alias: str
    ) -> None:
        self.source = source
        self.node = node
        self.module = module
        self.name = name
        self.alias = alias

    @property
    def group(self) -> Hashable:
        return AddImport, self.source

    @property
    def item(self) -> str:
        """The name as it is behind ``import``."""
        return f"{self.name} as {self.alias}" if self.alias else self.name

    def changes(self, together: Sequence[Edit]) -> list[Change]:
        wanted = [edit for edit in together if isinstance(edit, AddImport)]
        _check_one_meaning(wanted)
        places: dict[Place, dict[str, None]] = {}
        for edit in wanted:
            place = place_for(self.source, edit.node, edit.module, edit.name)
            places.setdefault(place, {})[edit.item] = None
        found: list[Change] = []
        apart = [(place, sorted(items)) for place, items in places.items() if place.merge is None]
        for place, items in places.items():
            if place.merge is not None:
                found += _merged(self.layout, place.merge, list(items))
        new: dict[cst.CSTNode, list[Insert]] = {}
        for insert in inserts(self.source, apart):
            new.setdefault(self.layout.block(insert.statement), []).append(insert)
        for of_block in new.values():
            for change in block_changes(self.layout, of_block):
                change.level = -1  # above what else is inserted here
                found.append(change)
        return found


class Unimport(Edit):
    """No import of ``target`` any more, if nothing uses it once all other edits are made.

    Stays: what ``__all__`` names, ``X as X``, imports marked ``noqa`` (for all or for F401), and everything in an ``__init__.py``.
    """

    afterwards = True

    def __init__(self, source: Source, target: str) -> None:
        self.source = source
        self.target = target

    @property
    def group(self) -> Hashable:
        return Unimport, self.source

    def on(self, source: Source) -> Edit:
        return Unimport(source, self.target)

    def changes(self, together: Sequence[Edit]) -> list[Change]:
        targets = {edit.target for edit in together if isinstance(edit, Unimport)}
        names = Names.of(self.source)
        gone: dict[cst.Import | cst.ImportFrom, list[Imported]] = {}
        for one in names.imports:
            if one.loads in targets and self._idle(one, names):
                gone.setdefault(one.statement, []).append(one)
        found: list[Change] = []
        whole: dict[cst.CSTNode, list[Remove]] = {}
        wholly = {s for s, imported in gone.items() if len(imported) == len(_aliases(s))}
        for statement, imported in gone.items():
            if statement not in wholly:
                found += _without(self.layout, statement, {one.alias for one in imported})
        places = (self._with_its_try(s, wholly, names) for s in gone if s in wholly)
        for place in dict.fromkeys(places):
            removal = Remove(self.source, place, comments="lone")
            whole.setdefault(self.layout.block(place), []).append(removal)
        for removals in whole.values():
            found += block_changes(self.layout, removals)
        return found

    def _with_its_try(
        self, statement: cst.CSTNode, gone: Collection[cst.CSTNode], names: Names
    ) -> cst.CSTNode:
        """The ``try`` around an import, where nothing is tried but imports that go and nobody uses what comes instead."""
        block = self.layout.block(statement)
        tried = self.layout.parents.get(block)
        if not isinstance(tried, cst.Try) or block is not tried.body:
            return statement
        if tried.orelse is not None or tried.finalbody is not None:
            return statement
        if not all(one in gone for one in _small(block)):
            return statement
        instead = [one for handler in tried.handlers for one in _small(handler.body)]
        imports = {one.statement for one in names.imports}
        used = {one.statement for one in names.imports if names.used(one.name, one.scope)}
        idle = all(isinstance(n, cst.Pass) or (n in imports and n not in used) for n in instead)
        return tried if idle else statement

    def _idle(self, one: Imported, names: Names) -> bool:
        """Whether the import can go."""
        if self.source.path.replace("\\", "/").endswith("__init__.py"):
            return False
        if one.alias.asname is not None and one.loads.rpartition(".")[2] == one.name:
            return False
        if names.used(one.name, one.scope) and not self._is_for_others(one, names):
            return False
        start, end = self.layout.span(one.statement)
        return not any(
            map(_keeps_unused, self.layout.text[start : self.layout.line_end(end)].splitlines())
        )

    def _is_for_others(self, one: Imported, names: Names) -> bool:
        """Whether all code means what another import binds by the same name."""
        same = [other for other in names.imports_of[one.name] if other.scope is one.scope]
        exported = one.name in names.exported and one.scope is names.tree
        return len(same) > 1 and not exported and not may_be_meant(self.source, one)


def _small(block: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The statements of a block, each of a line by itself."""
    for line in getattr(block, "body", ()):
        yield from line.body if isinstance(line, cst.SimpleStatementLine) else (line,)


_NOQA = re.compile(
    r"#.*\bnoqa\b(?:\s*:\s*(?P<codes>[A-Z]+\d*(?:[\s,]+[A-Z]+\d+)*))?", re.IGNORECASE
)


def _keeps_unused(line: str) -> bool:
    """Whether the comment of a line says that an unused import is meant (``# noqa``, ``# noqa: F401``)."""
    said = _NOQA.search(line)
    if said is None:
        return False
    codes = re.split(r"[\s,]+", said["codes"] or "F401")
    return any("F401".startswith(code.upper()) for code in codes)


def _known(source: Source, node: cst.CSTNode, target: str, module: bool) -> Iterator[str]:
    """How the imports of the file let ``target`` be written at ``node``, the shortest first."""
    layout, names = Layout.of(source), Names.of(source)
    at = scope_of(layout.ancestors(node))
    home = target if module else target.rpartition(".")[0]
    found: list[str] = []
    for one in names.imports:
        if not _means_it(layout, names, one, at) or not runs_before(layout, one.statement, node):
            continue
        if target in (one.target, canonical(one.target)):
            found.append(one.name)
        elif target.startswith(one.target + ".") and _loaded(one, home):
            found.append(one.name + target[len(one.target) :])
    yield from sorted(found, key=lambda text: (text.count("."), found.index(text)))


def _loaded(one: Imported, home: str) -> bool:
    """Whether the module ``home`` is there once the import has run."""
    if one.loads == home or (one.loads + ".").startswith(home + "."):
        return True
    return one.loads.partition(".")[0] == "torch" and home in WITH_TORCH


def _means_it(layout: Layout, names: Names, one: Imported, at: cst.CSTNode) -> bool:
    """Whether the name that an import binds means that, and nothing else, in scope ``at``.

    Another meaning in the handlers of the ``try`` that the import is in is the script's own fallback.
    """
    if names.owner(one.name, at) is not one.scope:
        return False
    means = canonical(one.target)
    same = {i.alias for i in names.imports if i.name == one.name and canonical(i.target) == means}
    tried = next((a for a in layout.ancestors(one.alias) if isinstance(a, cst.Try)), None)
    return all(
        node in same or (tried is not None and tried in layout.ancestors(node))
        for node in names.bindings[one.scope][one.name]
    )


def _is_root(layout: Layout, names: Names, root: str, at: cst.CSTNode) -> bool:
    return any(one.target == root and _means_it(layout, names, one, at) for one in names.imports)


def _free(names: Names, wanted: str, at: cst.CSTNode, target: str) -> str:
    """A name that means nothing yet in the scope ``at`` and around it."""
    meaning = {one.alias for one in names.imports if one.target == target}

    def taken(name: str) -> bool:
        scopes = {names.owner(name, at), names.tree} - {None}
        bound = [node for s in scopes if s for node in names.bindings.get(s, {}).get(name, ())]
        return any(node not in meaning for node in bound)

    if not taken(wanted):
        return wanted
    first = f"{target.partition('.')[0]}_{wanted}"
    return next(n for n in _numbered(first) if not taken(n))


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}_{number}"
        number += 1


def _check_one_meaning(wanted: Sequence[AddImport]) -> None:
    meanings: dict[str, tuple[str, str]] = {}
    for edit in wanted:
        name = edit.alias or (edit.name if edit.module else "")
        if name and meanings.setdefault(name, (edit.module, edit.name)) != (edit.module, edit.name):
            raise Conflict(f"two imports would be called `{name}`")


def _aliases(statement: cst.Import | cst.ImportFrom) -> Sequence[cst.ImportAlias]:
    return () if isinstance(statement.names, cst.ImportStar) else statement.names


def _listed(layout: Layout, statement: cst.Import | cst.ImportFrom) -> CommaList:
    bracket = statement.rpar if isinstance(statement, cst.ImportFrom) else None
    close = layout.span(bracket)[1] - 1 if bracket is not None else None
    return CommaList(layout, _aliases(statement), close, 2 * layout.depth(statement) + 1)


def _merged(layout: Layout, statement: cst.ImportFrom, items: Sequence[str]) -> Iterator[Change]:
    """Names added to an import, in its order if it has one."""
    there = [layout.text[slice(*layout.span(alias))] for alias in _aliases(statement)]
    listed = _listed(layout, statement)
    order = next((key for key in _ORDERS if sorted(there, key=key) == there), None)
    at_place: dict[int, list[str]] = {}
    for item in sorted(items, key=order):
        place = len(there)
        if order is not None:
            place = sum(order(one) < order(item) for one in there)
        at_place.setdefault(place, []).append(item)
    every = [n for i, one in enumerate([*there, ""]) for n in (*at_place.get(i, ()), one) if n]
    if _too_long(layout, statement, every):
        yield _on_lines(layout, statement, every)
        return
    for place, new in at_place.items():
        if place < len(there):
            yield listed.before(place, new)
        else:
            yield from listed.behind(len(there) - 1, new)


def _too_long(layout: Layout, statement: cst.ImportFrom, names: Sequence[str]) -> bool:
    """Whether names that are on one line would get a line that is too long."""
    start, first = layout.span(statement)[0], layout.span(_aliases(statement)[0])[0]
    head = layout.text[layout.line_start(start) : first]
    one_line = "\n" not in layout.text[slice(*layout.span(statement))]
    close = 0 if statement.rpar is None else 1
    return one_line and len(head) + len(", ".join(names)) + close > layout.width


def _on_lines(layout: Layout, statement: cst.ImportFrom, names: Sequence[str]) -> Change:
    """All names in parentheses, one a line."""
    aliases = _aliases(statement)
    newline = layout.newline + layout.indentation(layout.line(statement))
    lines = "".join(f"{newline}{layout.unit}{name}," for name in names)
    start, end = layout.span(aliases[0])[0], layout.span(aliases[-1])[1]
    if statement.lpar is not None:
        start, end = layout.span(statement.lpar)[0], layout.span(statement)[1]
    return Change(start, end, f"({lines}{newline})")


def _without(
    layout: Layout, statement: cst.Import | cst.ImportFrom, gone: set[cst.ImportAlias]
) -> Iterator[Change]:
    indexes = {i for i, alias in enumerate(_aliases(statement)) if alias in gone}
    kept = [alias for alias in _aliases(statement) if alias not in gone]
    if isinstance(statement, cst.ImportFrom) and statement.lpar is not None and len(kept) == 1:
        start, end = layout.span(statement.lpar)[0], layout.span(statement)[1]
        name = layout.text[slice(*layout.span(kept[0]))]
        column = start - layout.line_start(start)
        if "#" not in layout.text[start:end] and column + len(name) <= layout.width:
            blank = "" if layout.text[start - 1].isspace() else " "
            return iter((Change(start, end, blank + name),))
    return _listed(layout, statement).remove(indexes)


def _by_kind(item: str) -> tuple[int, str]:
    """The order of isort and ruff: constants, classes, then the rest."""
    name = item.partition(" ")[0]
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2), name


_ORDERS: tuple[Callable[[str], tuple[int, str]], ...] = (
    _by_kind,
    lambda item: (0, item.casefold()),
    lambda item: (0, item),
)
