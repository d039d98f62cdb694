"""A whole project as a codemod sees it: its files, everything that happens in its runs, and what each name means."""

from __future__ import annotations

import builtins
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

import libcst as cst

from fsdp2lint.edits.alternatives import means, tried_before
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.names import Imported, Names, dotted, imported_module, naming, scope_of
from fsdp2lint.interpret.again import Bodies, Runs
from fsdp2lint.meanings import load
from fsdp2lint.meanings.fsdp1_symbols import FRAMEWORKS
from fsdp2lint.meanings.registry import canonical
from fsdp2lint.model.events import Called, Event, Wrapping
from fsdp2lint.model.hints import NO_HINTS, Hints, Limits
from fsdp2lint.project.bindings import Bindings, Import, bindings
from fsdp2lint.project.project import Budget, Interest, Project
from fsdp2lint.source.source import Unreadable
from fsdp2lint.system.derived import Derives
from fsdp2lint.system.files import Files

if TYPE_CHECKING:
    from fsdp2lint.model.trace import Trace
    from fsdp2lint.project.links import Folder
    from fsdp2lint.source.source import Source

E = TypeVar("E", bound=Event)

MAX_HANDS = 8
"""Through so many files a name is followed back to where it comes from."""

PATIENCE = 3
"""What a run does not show is not rewritten: it may take longer than under ``check``."""

_WRAPPERS = {
    "fsdp1": "torch.distributed.fsdp.FullyShardedDataParallel",
    "ddp": "torch.nn.parallel.DistributedDataParallel",
}

_ENGINES = (
    "accelerate.Accelerator",
    "deepspeed.initialize",
    "lightning.fabric.Fabric",
    "lightning.Fabric",
    "lightning.pytorch.Trainer",
    "lightning.Trainer",
    "pytorch_lightning.Trainer",
)
"""Whose objects wrap a model in unresolved code, or are one themselves."""

_TRAINERS = ("transformers.Trainer", "transformers.Seq2SeqTrainer")
"""Who does so when its settings say it: beside them a program may wrap other models itself."""

Checkpoints = Literal["dcp", "full"]
Launch = Literal["torchrun", "keep"]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the migration."""

    checkpoints: Checkpoints = "dcp"
    """``dcp``: write folders of the distributed checkpoint, read old files too; ``full``: keep the files."""
    async_save: bool = False
    launch: Launch = "keep"
    target_torch: tuple[int, int] = (2, 6)
    limits: Limits = ()
    """The frameworks that the project keeps below some release."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A place in the text that names something: ``node`` is the name or the chain of attributes."""

    source: Source
    node: cst.BaseExpression
    name: str
    """The canonical dotted name."""


@dataclass(eq=False)
class Program(Derives):
    """The files of a project, of which ``sources`` may be changed, and the traces of all its runs.

    ``texts`` are files around them that are no Python: launch scripts, lists of requirements.
    """

    sources: tuple[Source, ...]
    roots: tuple[Folder, ...] = ()
    options: Options = field(default_factory=Options)
    texts: tuple[Source, ...] = ()
    hints: Hints = NO_HINTS
    """What the configuration says of the project's functions."""
    interests: Mapping[str, Interest] = field(default_factory=dict)
    """The paths of sources that the work is not about, or only in tests, and how much it is."""
    files: Files = field(default_factory=Files)
    """What is on disk around the sources."""
    runs: Runs = field(default_factory=Runs)
    """The runs of this version of the program, or of the last one whose runs were asked for."""

    def with_sources(self, sources: Sequence[Source]) -> Program:
        """The same program with other texts, which its files take: the runs that saw nothing of it stay known.

        This one must not be used any more.
        """
        pairs = zip(self.sources, sources, strict=True)
        changed = [(source, new) for source, new in pairs if new is not source]
        self.runs.renew({source: self._renewed(source, new) for source, new in changed})
        return replace(self)

    def _renewed(self, source: Source, new: Source) -> Bodies:
        """Let a file take its next text; the functions with other bodies, or None where a run may notice more.

        Who imports something from outside the project, or takes such an import away that nothing mentions any more,
        or defines a function that nobody knew, has changed nothing for those who entered no changed function. Nor has
        a new class of functions alone whose bases it imports with it.
        """
        if not self.runs.know(source):
            source.become_another(new.text)
            return None
        bound = {*Names.of(source).bindings.get(source.tree, ()), *dir(builtins)}
        change = source.become(new)
        if change is None or not bound.isdisjoint(change.names):
            return None
        imported = {name for one in change.imports for name in one.names}
        if not all(imported.issuperset(bases) for bases in change.classes.values()):
            return None
        moved = (*change.imports, *change.gone)
        if any(one.level or self._is_inside(source, one.module) for one in moved):
            return None
        gone = {name for one in change.gone for name in one.names}
        if any(re.search(rf"\b{name}\b", source.text) for name in gone):
            return None
        return None if gone and self._is_taken(source, gone) else change.bodies

    def _is_taken(self, source: Source, names: Collection[str]) -> bool:
        """Whether another file may take one of these names out of a file."""
        here = self.project.path_of(source)
        for other in self.sources:
            for star in self._bindings(other).stars:
                if self.project.resolve(star.target.lstrip("."), star.level or 0, other) == here:
                    return True
            if other is not source and any(name in other.text for name in names):
                for one in Names.of(other).imports:
                    if any(self.comes_from(other, one, source, name) for name in names):
                        return True
        return False

    def _is_inside(self, source: Source, module: str) -> bool:
        """Whether an absolute import of a file leads to a file or a folder of the project."""
        return self.project.resolve(module, 0, source) is not None

    def with_texts(self, texts: Sequence[Source]) -> Program:
        """The same program beside other launch files: what is known of its sources stays known."""
        other = copy(self)
        other.texts = tuple(texts)
        return other

    @cached_property
    def project(self) -> Project:
        """The project that the sources and the files that they import make."""
        read = self.runs.decoded
        project = Project.of(self.sources, self.roots, self.hints, self.files, decoded=read)
        project.budget = Budget(patience=PATIENCE)
        project.interests = self.interests
        return project

    @cached_property
    def traces(self) -> tuple[Trace, ...]:
        """What happens from each entry; made when it is first asked for."""
        from fsdp2lint.interpret.entries import traces

        return tuple(traces(self.project, self.runs))

    def of(self, kind: type[E]) -> Iterator[tuple[Trace, E]]:
        """All events of a kind in files that may be changed, each with the trace that it is part of."""
        mine = set(self.sources)
        for trace in self.traces:
            for event in trace.of(kind):
                if event.at.source in mine:
                    yield trace, event

    def sites(self, kind: type[E]) -> list[list[tuple[Trace, E]]]:
        """The events of a kind by the node at which they happen: one list a node, in the order of the text."""
        return self.derived(Program._sites, kind)

    def _sites(self, kind: type[E]) -> list[list[tuple[Trace, E]]]:
        found: dict[cst.CSTNode, list[tuple[Trace, E]]] = {}
        for trace, event in self.of(kind):
            found.setdefault(event.at.node, []).append((trace, event))
        order = {source: number for number, source in enumerate(self.sources)}
        each = found.values() if kind is Called else map(_on_possible_paths, found.values())
        return sorted(each, key=lambda events: _place(events[0][1], order))

    @cached_property
    def wrappers(self) -> frozenset[str]:
        """The kinds of wrappers (``fsdp1``, ``ddp``) that any run of the program puts around a model."""
        return frozenset(event.by for trace in self.traces for event in trace.of(Wrapping))

    @cached_property
    def named_wrappers(self) -> frozenset[str]:
        """The same, and those that the program only names; nothing when an engine wraps its models.

        This is what a model that comes from unseen code can be.
        """
        if any(self.references(*_ENGINES)) or self.framework:
            return frozenset()
        named = {
            kind for kind, name in _WRAPPERS.items() if any(self.references(name, f"{name}.*"))
        }
        return frozenset(named | (self.wrappers & _WRAPPERS.keys()))

    @cached_property
    def framework(self) -> str:
        """The name of what wraps the models in unresolved code, where the program itself wraps none by FSDP1."""
        engine = next(self.references(*_ENGINES, *_TRAINERS, *FRAMEWORKS), None)
        own = engine is None or "fsdp1" in self.wrappers or self._wraps()
        return "" if engine is None or own else engine.name.partition(".")[0]

    def _wraps(self) -> bool:
        """Whether a call of FSDP1's constructor is anywhere, or the class is handed on."""
        for reference in self.references(_WRAPPERS["fsdp1"]):
            parent = Layout.of(reference.source).parents[reference.node]
            if isinstance(parent, cst.Call) and parent.func is reference.node:
                return True
            call = Layout.of(reference.source).parents.get(parent)
            if isinstance(parent, cst.Arg) and isinstance(call, cst.Call | cst.ClassDef):
                tested = getattr(getattr(call, "func", None), "value", "")
                if tested not in ("isinstance", "issubclass", "cast"):
                    return True
        return False

    def connected(self, source: Source) -> frozenset[Source]:
        """The sources that imports join to one, whichever way they lead; what is in others does not concern it."""
        return next(group for group in self.groups if source in group)

    def programs_with(self, source: Source) -> frozenset[Source]:
        """The sources of all programs that one may be part of: who imports it, itself or by others, and all that these import."""
        path = self.project.path_of(source)
        users: dict[str, set[str]] = {}
        for one, others in self._imports.items():
            for other in others:
                users.setdefault(other, set()).add(one)
        found = _reached(_reached({path}, users), self._imports)
        return frozenset(one for one in self.sources if self.project.path_of(one) in found)

    @cached_property
    def _imports(self) -> dict[str, set[str]]:
        """The files that each file imports, by their paths, from the sources on."""
        met: dict[str, set[str]] = {}
        waiting = [self.project.path_of(source) for source in self.sources]
        while waiting:
            path = waiting.pop()
            if path in met:
                continue
            source = self.project.passed_through(path)
            met[path] = {*self.project.imported_by(source)} if source is not None else set()
            waiting += met[path]
        return met

    @cached_property
    def groups(self) -> tuple[frozenset[Source], ...]:
        """The sources in groups that no import joins, in the order of the text."""
        joined: list[set[str]] = []
        for path, others in self._imports.items():
            mine = {path, *others}
            touched = [one for one in joined if not one.isdisjoint(mine)]
            joined = [one for one in joined if one.isdisjoint(mine)]
            joined.append(mine.union(*touched))
        of_path = {path: number for number, group in enumerate(joined) for path in group}
        found: dict[int, list[Source]] = {}
        for source in self.sources:
            found.setdefault(of_path[self.project.path_of(source)], []).append(source)
        return tuple(map(frozenset, found.values()))

    def references(self, *names: str) -> Iterator[Reference]:
        """Every place outside of imports that names one of ``names`` (canonical; ``prefix.*`` for all below)."""
        for source in self.sources:
            yield from (r for r in self.named(source) if _matches(r.name, names))

    def named(self, source: Source) -> Sequence[Reference]:
        """All references of a source to something that an import binds, outermost chains only."""
        known = self._named.get(source)
        if known is None:
            load()
            known = self._named[source] = tuple(self._references(source))
        return known

    @cached_property
    def _named(self) -> dict[Source, tuple[Reference, ...]]:
        return {}

    def _references(self, source: Source) -> Iterator[Reference]:
        layout, names = Layout.of(source), Names.of(source)
        for chain in source.derived(_chains, bool(self._bindings(source).stars)):
            for node, text in chain:
                target = self._target(source, layout, names, node, text)
                if target:
                    yield Reference(source, node, canonical(target))
                    break

    def meaning(self, source: Source, node: cst.CSTNode, text: str) -> str:
        """The canonical name of what ``text``, a chain of names, stands for where ``node`` is."""
        names = Names.of(source)
        return canonical(self._target(source, Layout.of(source), names, node, text))

    def otherwise(self, source: Source, node: cst.CSTNode, text: str) -> str:
        """What of another library ``text`` stands for where ``node`` is: what a ``try`` imports by the same name, if it can."""
        names = Names.of(source)
        root, _, rest = text.partition(".")
        owner = names.owner(root, scope_of(Layout.of(source).ancestors(node)))
        for one in names.imports_of.get(root, ()):
            other = tried_before(source, one, node) if one.scope is owner else None
            if other is not None and not other.target.startswith("torch."):  # torch is there
                return other.target + (f".{rest}" if rest else "")
        return ""

    def comes_from(self, source: Source, one: Imported, other: Source, name: str) -> bool:
        """Whether an import of ``source`` takes ``name`` out of the file ``other``, or that file itself."""
        module, _, last = one.target.rpartition(".")
        if self._file(source, one.target) is other:
            return f"{one.name}.{name}" in source.text
        return last == name and module != "" and self._file(source, module) is other

    def _target(
        self,
        source: Source,
        layout: Layout,
        names: Names,
        node: cst.CSTNode,
        text: str,
        depth: int = 0,
    ) -> str:
        """The dotted name that a chain of names stands for; empty when no import binds its root."""
        root, _, rest = text.partition(".")
        imports = names.imports_of.get(root, ())
        if not imports and root not in names.renamed and not self._bindings(source).stars:
            return ""
        owner = names.owner(root, scope_of(layout.ancestors(node)))
        here = [one for one in imports if one.scope is owner]
        if len(here) > 1:  # in a `try` and its handler, perhaps
            here.sort(key=lambda one: not one.target.startswith("torch."))
            said = [means(source, one, node) for one in here]
            here = [here[said.index(True) if True in said else 0]]
        for one in here:
            found = self.origin(source, one.target, one.statement)
            return self._handed_on(source, found, rest) if rest else found
        if owner is not None:
            found = self._renamed(source, root, owner, node, depth + 1)
            return f"{found}.{rest}" if found and rest else found
        if starred := self._starred(source, root):
            return starred + (f".{rest}" if rest else "")
        return ""

    def _renamed(
        self, source: Source, name: str, scope: cst.CSTNode, node: cst.CSTNode, depth: int
    ) -> str:
        """The same for a name that is another word for something imported: ``FSDP = fsdp.Wrapper``."""
        layout, names = Layout.of(source), Names.of(source)
        bound = names.bindings[scope][name]
        assign = bound[0] if isinstance(bound[0], cst.AnnAssign) else layout.parents.get(bound[0])
        if len(bound) != 1 or not isinstance(assign, cst.Assign | cst.AnnAssign):
            return ""
        target = getattr(bound[0], "target", None)
        said = dotted(assign.value)
        if not isinstance(target, cst.Name) or target is node or not said or depth > 8:
            return ""
        return self._target(source, layout, names, assign, said, depth)

    def _renamed_in(self, source: Source, name: str, depth: int) -> str:
        """The same for a name that a file of the project binds by an assignment, for those who import it."""
        parsed = self.project.source(self.project.path_of(source))
        if parsed is None or name not in Names.of(parsed).bindings.get(parsed.tree, ()):
            return ""
        return self._renamed(parsed, name, parsed.tree, parsed.tree, depth)

    def _handed_on(self, source: Source, target: str, rest: str) -> str:
        """What ``target.rest`` is; where ``target`` is a file of the project, what that file imports."""
        name, _, further = rest.partition(".")
        other = self._file(source, target)
        table = None if other is None else self._bindings(other)
        if other is None or table is None:
            return f"{target}.{rest}"
        one = table.names.get(name)
        if one is not None:
            found = self._origin(other, one)
            return self._handed_on(other, found, further) if further else found
        if name in table.renamed:
            found = self._renamed_in(other, name, 0)
            return f"{found}.{further}" if found and further else found or f"{target}.{rest}"
        return f"{target}.{rest}"

    def _file(self, source: Source, module: str) -> Source | None:
        """The file of the project that is the module of this name, as ``source`` writes it."""
        key = (source, module)
        if key not in self._files:
            name = module.lstrip(".")
            level = len(module) - len(name)
            if level and name and "." not in name:  # ``from . import name`` is written ``..name``
                level -= 1
            path = self.project.resolve(name, level, source)
            python = path is not None and path.endswith(".py")
            self._files[key] = self.project.passed_through(path) if path and python else None
        return self._files[key]

    @cached_property
    def _files(self) -> dict[tuple[Source, str], Source | None]:
        return {}

    def origin(self, source: Source, target: str, statement: cst.CSTNode) -> str:
        """Where an imported name comes from in the end, through files of the project that hand it on."""
        if not isinstance(statement, cst.ImportFrom):
            return target
        return self._origin(source, Import(target, len(statement.relative)))

    def _origin(self, source: Source, one: Import, depth: int = 0) -> str:
        if one.level is None or depth > MAX_HANDS:
            return one.target
        module, _, name = one.target.lstrip(".").rpartition(".")
        path = self.project.resolve(module, one.level, source)
        other = self.project.passed_through(path) if path and path.endswith(".py") else None
        if other is None:
            return one.target
        table = self._bindings(other)
        further = table.names.get(name)
        if further is not None:
            return self._origin(other, further, depth + 1)
        if name in table.renamed:
            return self._renamed_in(other, name, depth) or one.target
        if name in table.bound:
            return one.target
        return self._starred(other, name, depth + 1) or one.target

    def _starred(self, source: Source, name: str, depth: int = 0) -> str:
        """The same for a name that comes by ``from module import *``."""
        if depth > MAX_HANDS:
            return ""
        for star in self._bindings(source).stars:
            one = Import(f"{star.target}.{name}", star.level)
            found = self._origin(source, one, depth + 1)
            if found != one.target:
                return found
        return ""

    def _bindings(self, source: Source) -> Bindings:
        found = bindings(source.text)
        return source.derived(_by_libcst) if found is None else found


def _chains(source: Source, starred: bool) -> list[list[tuple[cst.Name | cst.Attribute, str]]]:
    """The names and chains of attributes that may stand for something imported: each with those inside it, in words.

    They say the same of a text in every version of the program, and most texts stay as they are.
    """
    names = Names.of(source)
    found: list[list[tuple[cst.Name | cst.Attribute, str]]] = []
    todo: list[cst.CSTNode] = [source.tree]
    while todo:
        node = todo.pop()
        # libcst's classes are abstract: to ask for instances of them is slow
        if type(node) is cst.Import or type(node) is cst.ImportFrom:
            continue
        text = dotted(node) if type(node) is cst.Name or type(node) is cst.Attribute else ""
        if not text:
            todo += reversed(list(naming(node)))
            continue
        root = text.partition(".")[0]
        if starred or root in names.imports_of or root in names.renamed:
            found.append(list(_inside(node, text)))
    return found


def _inside(node: cst.CSTNode, text: str) -> Iterator[tuple[cst.Name | cst.Attribute, str]]:
    while isinstance(node, cst.Attribute):
        yield node, text
        node, text = node.value, text.rpartition(".")[0]
    if isinstance(node, cst.Name):
        yield node, text


def _reached(start: set[str], leads: Mapping[str, set[str]]) -> set[str]:
    """All that is reached from ``start``, which is among it."""
    found, waiting = set(start), list(start)
    while waiting:
        new = leads.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def _on_possible_paths(events: list[tuple[Trace, E]]) -> list[tuple[Trace, E]]:
    """Those events at a place that some run comes to: not where settings exclude each other in the end."""
    if len(events) == 1:
        return events
    asked = {event.guards: None for _, event in events}
    possible = {guards for guards in asked if guards.possible()}
    return [(trace, event) for trace, event in events if event.guards in possible] or events


def _by_libcst(source: Source) -> Bindings:
    """The table of a text that is too new for the Python that runs."""
    try:
        imports = Names.of(source).imports
    except Unreadable:
        return Bindings({}, (), frozenset(), frozenset())
    names: dict[str, Import] = {}
    for one in imports:
        if one.scope is source.tree:
            names.setdefault(one.name, Import(one.target, _level(one.statement)))
    lines = (s for s in source.tree.body if isinstance(s, cst.SimpleStatementLine))
    stars = [
        Import(imported_module(one), len(one.relative))
        for line in lines
        for one in line.body
        if isinstance(one, cst.ImportFrom) and isinstance(one.names, cst.ImportStar)
    ]
    bound = frozenset(Names.of(source).bindings.get(source.tree, ()))
    return Bindings(names, tuple(stars), bound, bound)


def _level(statement: cst.Import | cst.ImportFrom) -> int | None:
    return len(statement.relative) if isinstance(statement, cst.ImportFrom) else None


def _matches(name: str, names: Iterable[str]) -> bool:
    return any(name == n or (n.endswith(".*") and name.startswith(n[:-1])) for n in names)


def _place(event: Event, order: dict[Source, int]) -> tuple[int, int]:
    source = event.at.source
    return order[source], Layout.of(source).span(event.at.node)[0]
