"""Functions that came into several files of a project: one module has them, and the other files import them.

That is a module that all of these import already and whose name fits, or one of these that the others can import.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

import libcst as cst

from fsdp2lint.api import (
    AddImport,
    Edit,
    Layout,
    Names,
    Program,
    Remove,
    Source,
    Step,
    dotted,
    imported_module,
)

from .shared import Helpers, Naming

NAMES = frozenset(
    "CompiledLoadPlanner broadcast_from_rank0 broadcast_in_group children_first clip_grads full_params hybrid_mesh"
    " local_shard materialize_unit no_sync own_parameters precision_policy shard_by_policy shard_with sharding_group"
    " sharding_options unsharded unsharded_mesh whole_on_cpu whole_optimizer_states without_prefix".split()
)
"""What the functions and classes are called that a migration brings into files."""
_NUMBER = re.compile(r"_\d+$")
"""What such a name ends with where the file had it already."""
_AT_HOME = re.compile(r"util|common|helper|dist|fsdp|parallel|sharding")
_NOT_AT_HOME = re.compile(r"checkpoint|ckpt|config|data|log|model|test|token")

Definition = cst.FunctionDef | cst.ClassDef
Functions = dict[str, Definition]


def together(program: Program) -> Iterator[Step]:
    """Each function once, where a module of the project can have it for all files."""
    known = {source: _functions(source) for source in program.sources}
    for name in sorted({name for functions in known.values() for name in functions}):
        having = [source for source in program.sources if name in known[source]]
        if len(having) == 1:
            continue
        alike: dict[str, list[Source]] = {}
        for source in having:
            if _stands_alone(source, known[source][name]):
                text = _text(program, source, known[source][name], _in_full)
                alike.setdefault(text, []).append(source)
        for sources in alike.values():
            home = _home(program, sources, name) if len(sources) > 1 else None
            if home is not None:
                yield Step(tuple(_moved(program, sources, known, name, *home)), ())
                return  # one after the other: what one function calls may have moved


def _in_full(target: str) -> str:
    return target


def _functions(source: Source) -> Functions:
    """The functions and classes of a file that a migration has brought in."""
    if not any(name in source.text for name in NAMES):
        return {}
    found = (one for one in source.tree.body if isinstance(one, cst.FunctionDef | cst.ClassDef))
    return {one.name.value: one for one in found if _NUMBER.sub("", one.name.value) in NAMES}


Modules = dict[Source, str]
"""Files that import from a module, and how each of them names it."""


def _home(program: Program, sources: Sequence[Source], name: str) -> tuple[Source, Modules] | None:
    """The module that will have a function, and how each file that imports it from there names it."""
    taken = {one: _taken_from(program, one) for one in sources}
    shared = set.intersection(*(set(modules) for modules in taken.values()))
    fitting = [one for one in shared if _fits(one) and name not in Names.of(one).bindings[one.tree]]
    free = [one for one in fitting if not _imports_any(program, one, sources)]
    best = min(free, key=lambda one: (-_fits(one), one.path), default=None)
    if best is not None:
        return best, {one: taken[one][best] for one in sources}
    found: list[tuple[Source, Modules]] = []
    for home in sources:
        others = [one for one in sources if one is not home]
        if _is_imported(program, home) and not _imports_any(program, home, others):
            named = {one: _module_for(program, one, home, taken[one]) for one in others}
            found.append((home, {one: module for one, module in named.items() if module}))
    most = max(found, key=lambda one: len(one[1]), default=None)
    return most if most is not None and most[1] else None


def _is_imported(program: Program, home: Source) -> bool:
    """Whether a file is a module: some other imports it, and it is no program."""
    path = program.project.path_of(home)
    importing = (one for one in program.sources if one is not home)
    return "__main__" not in home.text and any(
        path in program.project.imported_by(one) for one in importing
    )


def _module_for(program: Program, source: Source, home: Source, taken: dict[Source, str]) -> str:
    """How a file names another in an import; "" where that is not clear."""
    if home in taken:
        return taken[home]
    path, beside = program.project.path_of(home), PurePath(home.path)
    if beside.parent != PurePath(source.path).parent or beside.stem == "__init__":
        return ""
    level = 1 if any(imported_module(one).startswith(".") for one in _imports(source)) else 0
    found = program.project.resolve(beside.stem, level, source) == path
    return "." * level + beside.stem if found else ""


def _fits(source: Source) -> int:
    """How well the name of a module says that it is for functions that others use."""
    stem = PurePath(source.path).stem
    if stem == "__init__" or _NOT_AT_HOME.search(stem) or not _AT_HOME.search(stem):
        return 0
    return 2 if "torch.distributed" in source.text else 1


def _taken_from(program: Program, source: Source) -> dict[Source, str]:
    """The modules of the project that a file imports names from, and how it names them."""
    found: dict[Source, str] = {}
    for one in _imports(source):
        if isinstance(one.names, cst.ImportStar):
            continue
        module = imported_module(one)
        other = program.project.module_named(dotted(one.module), len(one.relative), source)
        if other is not None and other in program.sources and other is not source:
            found.setdefault(other, module)
    return found


def _imports(source: Source) -> Iterator[cst.ImportFrom]:
    """The lines at the top of a file that import names from a module."""
    for line in source.tree.body:
        for one in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(one, cst.ImportFrom):
                yield one


def _imports_any(program: Program, home: Source, sources: Sequence[Source]) -> bool:
    """Whether a module imports one of some files, also through others."""
    project = program.project
    waiting, known = [home], set[str]()
    while waiting:
        for path in project.imported_by(waiting.pop()):
            one = project.source(path) if path not in known else None
            known.add(path)
            if one is not None:
                waiting.append(one)
    return any(project.path_of(one) in known for one in sources)


def _stands_alone(source: Source, function: Definition) -> bool:
    """Whether a function reads nothing of its file but imports and itself."""
    names = Names.of(source)
    own = set(names.bindings[source.tree]) - {one.name for one in names.imports}
    inside = Layout.of(source).span(function)
    used = {
        node.value
        for node in _names_in(source, inside)
        if names.owner(node.value, function) is source.tree
    }
    return not (used & own) - {function.name.value}


def _names_in(source: Source, span: tuple[int, int]) -> Iterator[cst.Name]:
    layout = Layout.of(source)
    for node in layout.parents:
        if isinstance(node, cst.Name) and span[0] <= layout.span(node)[0] < span[1]:
            yield node


def _moved(
    program: Program,
    sources: Sequence[Source],
    known: dict[Source, Functions],
    name: str,
    home: Source,
    modules: Modules,
) -> Iterator[Edit]:
    """The function goes from its files, which import it from its home."""
    if home not in sources:
        yield from _brought(program, sources[0], known[sources[0]][name], home)
    for source, module in modules.items():
        function = known[source][name]
        yield Remove(source, function)
        yield AddImport(source, function, module, name, "")


def _brought(program: Program, first: Source, function: Definition, home: Source) -> Iterator[Edit]:
    """The function comes into its new home."""
    place = next(
        (one for one in home.tree.body if isinstance(one, cst.FunctionDef | cst.ClassDef)),
        home.tree.body[-1],
    )
    helpers = Helpers.above(home, place)

    def build(given: str, named: Naming) -> str:
        return _text(program, first, function, named)

    helpers.add(function.name.value, build)
    yield from helpers.all_edits()


def _text(program: Program, source: Source, function: Definition, named: Naming) -> str:
    """The text of a function with the names of other modules as its new file has them."""
    layout = Layout.of(source)
    start, end = layout.span(function)
    said, at = "", start
    found = [(layout.span(one.node), one.name) for one in program.named(source)]
    for (first, last), name in sorted(found):
        if at <= first and last <= end:
            text = source.text[first:last]
            is_chain = text == name and text.startswith("torch.")
            text = named("torch") + text.removeprefix("torch") if is_chain else named(name)
            said += source.text[at:first] + text
            at = last
    return said + source.text[at:end]
