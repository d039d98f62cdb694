"""Imports: modules of the project are loaded when something of them is used; others are names outside."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst
from libcst.helpers import get_full_name_for_node

from fsdp2lint.interpret.scopes import Scope
from fsdp2lint.model.guards import ALWAYS, Guard, Guards, unit
from fsdp2lint.model.memory import MAX_OPTIONS
from fsdp2lint.model.values import (
    Class,
    Container,
    Either,
    External,
    Function,
    Literal,
    Part,
    Unknown,
    Value,
)
from fsdp2lint.project.project import is_parsed
from fsdp2lint.project.registrations import packages_of, registers_when_imported
from fsdp2lint.source.walk import walk

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.source.source import Site, Source


class Namespace(Value):
    """A module of the project (or a folder of modules). It runs when it is first read."""

    __slots__ = ("loaded", "path", "scope", "source", "spelled")

    def __init__(self, path: str, spelled: str, source: Source | None) -> None:
        super().__init__(spelled)
        self.path = path
        self.spelled = spelled
        self.source = source
        self.scope: Scope | None = None
        self.loaded = False

    def load(self, machine: Machine, name: str = "") -> None:
        """Run the module, once; a module that is still loading is read as far as it is.

        One that cannot be parsed is of unknown content from then on.
        """
        if self.loaded or self.source is None:
            return
        if not is_parsed(self.source):
            self.source = None
            return
        self.loaded = True
        self.scope = Scope("module", self.source)
        run_module(machine, self.source, self.scope, name or self.spelled)

    def read(self, machine: Machine, name: str) -> Value:
        """A name of the module, a module of the package, or the name outside when it is neither."""
        self.load(machine)
        if name == NAMES[1:] and self.source is not None:
            return self.part(NAMES)
        if self.scope is not None:
            found = self.scope.read(name, machine.here)
            if found is not None:
                return machine.spread(found, lambda one: kept(machine, one))
        below = machine.project.resolve_below(self.path, name)
        if below is not None:
            return namespace(machine, below, f"{self.spelled}.{name}")
        return machine.external(f"{self.spelled}.{name}")

    def write(self, machine: Machine, name: str, value: Value) -> None:
        """``module.name = value``."""
        self.load(machine)
        if self.scope is not None:
            self.scope.write(name, machine.here, value)

    def loosen(self, machine: Machine, site: Site) -> None:
        """Something gives new values to names that only the run knows: every setting may be another from here on."""
        for name, variable in self.scope.names.items() if self.scope is not None else ():
            value = variable.value(machine.here)
            if value is not None and not name.startswith("__") and _is_setting(value):
                variable.write(machine.here, Unknown(name, site))


def _is_setting(value: Value) -> bool:
    """Whether a value is a constant, or one of several."""
    if isinstance(value, Either):
        return all(_is_setting(one) for _, one in value.options)
    return isinstance(value, Literal)


def own_names(machine: Machine) -> Value | None:
    """What ``globals()`` gives: the names of the module whose code is running."""
    scope = machine.frame.scope.module()
    found = (one for one in machine.namespaces.values() if one.scope is scope)
    return next((one.part(NAMES) for one in found), None)


def module_of_names(value: Value) -> Namespace | None:
    """The module whose ``__dict__`` a value is."""
    if isinstance(value, Part) and value.key == NAMES and isinstance(value.owner, Namespace):
        return value.owner
    return None


NAMES = ".__dict__"
"""The part of a module that maps its names to what they stand for."""


def one_of_names(machine: Machine, module: Namespace, name: Value, site: Site) -> Value:
    """``getattr(models, cfg.arch)``, ``models.__dict__[cfg.arch]``: each class or builder of a module of the project,
    where the name is its own, and something else where it is none of them.
    """
    module.load(machine)
    found: list[tuple[str, Value]] = []
    own = module.source is not None and os.path.basename(module.path) != "__init__.py"
    for spelled, variable in list(module.scope.names.items()) if module.scope is not None else ():
        value = next((v for _, v in variable.bindings), None)
        if (
            value is not None
            and not spelled.startswith("_")
            and not (own and _is_from_elsewhere(module, value))
        ):
            found.append((spelled, value))
    made: list[tuple[str, Value]] = [(s, v) for s, v in found if isinstance(v, Class)]
    made = made or [(s, v) for s, v in found if isinstance(v, Function)]
    if not made and not own:
        made = [(s, kept(machine, v)) for s, v in found[:MAX_OPTIONS] if isinstance(v, Promise)]
        made = [(s, v) for s, v in made if isinstance(v, Class | Function)]
    options: list[tuple[Guards, Value]] = []
    for spelled, value in made[:MAX_OPTIONS]:
        test = name.part(("==", machine.literal(spelled)))
        options.append((Guards(unit(Guard(test, True, site))), value))
    if len(made) > 1 and _alike([v for _, v in made]):
        return made[0][1]
    rest = module.part(("getattr", name))
    if len(made) > MAX_OPTIONS:
        options[-1] = (ALWAYS, rest)
    return Either(tuple(options)) if options else rest


def _alike(made: list[Value]) -> bool:
    """Whether all are functions that say to return the same: settings by their name, of which each stands for all."""
    if not all(isinstance(one, Function) for one in made):
        return False
    nodes = [one.node.returns for one in made if isinstance(one.node, cst.FunctionDef)]  # type: ignore[attr-defined]
    said = {None if n is None else get_full_name_for_node(n.annotation) for n in nodes}
    return len(said) == 1 and None not in said


def _is_from_elsewhere(module: Namespace, value: Value) -> bool:
    return isinstance(value, Class | Function) and value.scope.source is not module.source


class Promise(Value):
    """``from module import name`` of a project module, not looked up yet."""

    __slots__ = ("name", "namespace")

    def __init__(self, namespace: Namespace, name: str) -> None:
        super().__init__(name)
        self.namespace = namespace
        self.name = name


def kept(machine: Machine, value: Value) -> Value:
    """What a ``from module import name`` promised."""
    return value.namespace.read(machine, value.name) if isinstance(value, Promise) else value


def run_module(machine: Machine, source: Source, scope: Scope, name: str) -> None:
    """Run a module's own statements, as if nothing led here."""
    here, path, running, within = (
        machine.here,
        machine.call_path,
        machine.running,
        machine.within,
    )
    machine.here, machine.call_path, machine.running, machine.within = ALWAYS, (), (), ()
    looping, machine.looping = machine.looping, 0
    counted, machine.counted = machine.counted, True
    uncounted, machine.uncounted = machine.uncounted, 0
    scope.write("__name__", ALWAYS, machine.literal(name))
    scope.write("__file__", ALWAYS, machine.external("__file__"))
    machine.push(scope)
    machine.run(source.tree.body)
    machine.pop()
    machine.looping, machine.counted = looping, counted
    machine.uncounted = uncounted
    machine.here, machine.call_path, machine.running, machine.within = here, path, running, within


def namespace(machine: Machine, path: str, spelled: str) -> Namespace:
    """The module at ``path``, one for each run."""
    known = machine.namespaces.get(path)
    if known is None:
        source = None if os.path.isdir(path) else machine.project.followed(path)
        known = machine.namespaces[path] = Namespace(path, spelled, source)
    return known


_COPY_OF_TORCH = re.compile(
    r"(?:^|/)(?:third_?party|_?vendor|_?vendored|3rdparty)/(torch(?:/\w+)*?)(?:/__init__)?\.py$"
)
"""A file of torch that a project keeps a copy of: it means what torch's own does."""


def copied_from_torch(path: str) -> str:
    """The module of torch of which a file is a copy; empty when it is none."""
    found = _COPY_OF_TORCH.search(path.replace(os.sep, "/"))
    return "" if found is None else found[1].replace("/", ".")


def module_named(machine: Machine, dotted: str, level: int) -> Value:
    """The module that an import names: of the project when a file is there, else outside."""
    source = machine.source
    path = machine.project.resolve(dotted, level, source)
    if path is not None and (copied := copied_from_torch(path)):
        return machine.external(copied)
    if path is not None:
        _register(machine, path)
        found = namespace(machine, path, dotted or os.path.basename(os.path.dirname(path)))
        if found.source is not None or os.path.isdir(path):
            return found
        too_large = machine.project.too_large.get(path)
        if too_large is not None:
            statement = machine.frame.statement or source.tree
            machine.trace.unread[path] = too_large, machine.site(statement)
    return machine.external(("." * level) + dotted)


def _register(machine: Machine, path: str) -> None:
    """Run the files now that put something into a registry: whoever reads it there does not name them."""
    if path in machine.imported:
        return
    machine.imported.add(path)
    for one in (*packages_of(machine.project, path), path):
        if registers_when_imported(machine.project, one):
            machine.imported.add(one)
            namespace(machine, one, _dotted(one)).load(machine)


def _dotted(path: str) -> str:
    """What a module is called by whoever imports it for what it does."""
    folder, name = os.path.split(path)
    return os.path.basename(folder) if name == "__init__.py" else name.removesuffix(".py")


def module_like(machine: Machine, name: Value) -> Value | None:
    """``import_module(f"models.{arch}.settings")``: the simplest of the modules that it can be, or the one for which
    the program runs again; None when it is none of those around the project's files.
    """
    before, after = _around_the_unknown(name)
    if not before.endswith(".") or after[:1] not in ("", "."):
        return None
    package = machine.project.resolve(before.strip("."), 0, machine.source)
    if package is None:
        return None
    found = []
    for below in machine.project.names_below(package):
        path = machine.project.resolve(f"{before}{below}{after}", 0, machine.source)
        source = None if path is None else machine.project.passed_through(path)
        if path is not None and source is not None:
            found.append((len(source.said), path, f"{before}{below}{after}"))
    if not found:
        return None
    _, simplest, spelled = min(found)
    if simplest not in machine.others:
        others = {path: dotted for _, path, dotted in found}
        if after.strip("."):  # the package around them may be one of several as well
            others = {path: _dotted(path) for path in _called_like(machine, simplest)} | others
        machine.others[simplest] = others
    others = machine.others[simplest]
    if machine.instead in others:
        return namespace(machine, machine.instead, others[machine.instead])
    return namespace(machine, simplest, spelled)


def _called_like(machine: Machine, path: str) -> Iterator[str]:
    """The files of the same name in packages beside the one that is around a module's own: ``*/*/settings.py``."""
    package, name = os.path.split(path)
    kinds = os.path.dirname(os.path.dirname(package))
    for kind in machine.project.names_below(kinds):
        for below in machine.project.names_below(os.path.join(kinds, kind)):
            beside = os.path.join(kinds, kind, below, name)
            if beside != path and machine.project.passed_through(beside) is not None:
                yield beside


def _around_the_unknown(name: Value) -> tuple[str, str]:
    """What is before and behind the only part of a format string that is not known."""
    if not (isinstance(name.key, tuple) and name.key[0] == "format" and len(name.key) > 2):
        return "", ""
    _, text, *values = name.key
    pieces = str(text).split("{}")
    if len(pieces) != len(values) + 1:
        return "", ""
    sides = [pieces[0]]
    for value, piece in zip(values, pieces[1:], strict=True):
        if isinstance(value, Literal):
            sides[-1] += f"{value.value}{piece}"
        else:
            sides.append(piece)
    return (sides[0], sides[1]) if len(sides) == 2 else ("", "")


def run_import(machine: Machine, node: cst.Import) -> None:
    """``import a.b.c`` binds ``a``; ``import a.b.c as d`` binds ``d`` to the innermost."""
    for alias in node.names:
        dotted = get_full_name_for_node(alias.name) or ""
        name = _alias(alias)
        if name is not None:
            machine.frame.scope.write(name, machine.here, module_named(machine, dotted, 0))
            continue
        if "." in dotted:
            module_named(machine, dotted, 0)  # it may register something
        top = dotted.partition(".")[0]
        machine.frame.scope.write(top, machine.here, module_named(machine, top, 0))


def run_import_from(machine: Machine, node: cst.ImportFrom) -> None:
    """``from a import b``: looked up now, so that a name that is not there can be a module of the package."""
    dotted = get_full_name_for_node(node.module) or "" if node.module is not None else ""
    level = len(node.relative)
    module = module_named(machine, dotted, level)
    if isinstance(node.names, cst.ImportStar):
        _star(machine, module)
        return
    for alias in node.names:
        if not isinstance(alias.name, cst.Name):
            continue
        value = promise(machine, module, alias.name.value)
        name = _alias(alias) or alias.name.value
        machine.frame.scope.write(name, machine.here, value)


def promise(machine: Machine, module: Value, name: str) -> Value:
    """``module.name``, looked up when it is needed if that would load a file of the project.

    A package that has loaded hands on what it was promised itself.
    """
    if isinstance(module, Namespace):
        below = machine.project.resolve_below(module.path, name)
        if below is not None:
            _register(machine, below)
        if module.loaded or module.source is None:
            found = None if module.scope is None else module.scope.read(name, machine.here)
            return found if isinstance(found, Promise) else module.read(machine, name)
        return module.keep(("promise", name), Promise(module, name))
    return machine.external(f"{module.words()}.{name}")


def _star(machine: Machine, module: Value) -> None:
    if isinstance(module, External):
        machine.frame.scope.stars.append(module)
    if not isinstance(module, Namespace):
        return
    module.load(machine)
    if module.scope is None:
        return
    chosen = _exported(machine, module.scope)
    for name, variable in list(module.scope.names.items()):
        if name in chosen if chosen is not None else not name.startswith("_"):
            for guards, value in variable.bindings:
                machine.frame.scope.write(name, guards.and_(machine.here), value)
    machine.frame.scope.stars.extend(module.scope.stars)


def _exported(machine: Machine, scope: Scope) -> frozenset[str] | None:
    """The names in ``__all__``; None when there is none, or not all of them are known."""
    declared = scope.read("__all__", machine.here)
    if not isinstance(declared, Container) or declared.open:
        return None
    names = [v for _, v in machine.memory.entries(declared, machine.here)]
    if not all(isinstance(v, Literal) for v in names):
        return None
    return frozenset(str(v.value) for v in names if isinstance(v, Literal))


def _alias(alias: cst.ImportAlias) -> str | None:
    if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
        return alias.asname.name.value
    return None


# -- imports that may fail --------------------------------------------------------------------------


@lru_cache(maxsize=20_000)
def are_there(body: cst.BaseSuite) -> bool:
    """Whether the imports of a block are all of PyTorch: the script is judged as run with a release that has them."""
    found = [n for n in walk(body, into=False) if isinstance(n, cst.Import | cst.ImportFrom)]
    return bool(found) and all(_of_torch(node) for node in found)


def tried_first(body: cst.BaseSuite) -> str:
    """The import of another library with which a block begins; "" where it begins otherwise."""
    line = body.body[0] if body.body else None
    first = line.body[0] if isinstance(line, cst.SimpleStatementLine) else line
    if isinstance(first, cst.Import):
        return get_full_name_for_node(first.names[0].name) or ""
    if not isinstance(first, cst.ImportFrom) or first.relative or first.module is None:
        return ""
    if isinstance(first.names, cst.ImportStar):
        return ""
    module = get_full_name_for_node(first.module)
    return f"{module}.{get_full_name_for_node(first.names[0].name)}"


def _of_torch(node: cst.Import | cst.ImportFrom) -> bool:
    if isinstance(node, cst.ImportFrom):
        names = [get_full_name_for_node(node.module) if node.module and not node.relative else ""]
    else:
        names = [get_full_name_for_node(alias.name) for alias in node.names]
    return all(name == "torch" or (name or "").startswith("torch.") for name in names)


def is_for_imports(handler: cst.ExceptHandler | cst.ExceptStarHandler) -> bool:
    """Whether a handler is for imports that fail and for nothing else."""
    said = handler.type
    if said is None:
        return False
    kinds = [e.value for e in said.elements] if isinstance(said, cst.Tuple) else [said]
    names = {kind.value for kind in kinds if isinstance(kind, cst.Name)}
    return len(names) == len(kinds) and names <= {"ImportError", "ModuleNotFoundError"}
