"""Functions that came into several files of a project: they move into a module that all of these import already."""

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
    imported_module,
)

from .shared import Helpers, Naming

NAMES = frozenset(
    "broadcast_from_rank0 children_first hybrid_mesh materialize precision_policy shard_by_policy"
    " sharding_options unsharded_mesh".split()
)
"""What the functions are called that calls of FSDP1 bring into their file."""
_AT_HOME = re.compile(r"util|common|helper|dist|fsdp|parallel|sharding")
_NOT_AT_HOME = re.compile(r"checkpoint|ckpt|config|data|log|model|test|token")

Functions = dict[str, cst.FunctionDef]


def together(program: Program) -> Iterator[Step]:
    """Each function once, where a module of the project has a name that says it is for such functions."""
    known = {source: _functions(source) for source in program.sources}
    for name in sorted({name for functions in known.values() for name in functions}):
        having = [source for source in program.sources if name in known[source]]
        alike: dict[str, list[Source]] = {}
        for source in having:
            alike.setdefault(source.code(known[source][name]), []).append(source)
        for sources in alike.values():
            home = _home(program, sources, name) if len(sources) > 1 else None
            if home is not None and all(_stands_alone(one, known[one][name]) for one in sources):
                yield Step(tuple(_moved(program, sources, known, name, home)), ())
                return  # one after the other: what one function calls may have moved


def _functions(source: Source) -> Functions:
    """The functions of a file that a migration has brought in."""
    if not any(f"def {name}" in source.text for name in NAMES):
        return {}
    found = (one for one in source.tree.body if isinstance(one, cst.FunctionDef))
    return {one.name.value: one for one in found if one.name.value in NAMES}


def _home(program: Program, sources: Sequence[Source], name: str) -> Source | None:
    """The module with a fitting name that all of these import names from, and that imports none of them."""
    shared = set.intersection(*(set(_taken_from(program, one)) for one in sources))
    fitting = [one for one in shared if _fits(one) and name not in Names.of(one).bindings[one.tree]]
    free = [one for one in fitting if not _imports_any(program, one, sources)]
    return min(free, key=lambda one: (-_fits(one), one.path), default=None)


def _fits(source: Source) -> int:
    """How well the name of a module says that it is for functions that others use."""
    stem = PurePath(source.path).stem
    if stem == "__init__" or _NOT_AT_HOME.search(stem) or not _AT_HOME.search(stem):
        return 0
    return 2 if "torch.distributed" in source.text else 1


def _taken_from(program: Program, source: Source) -> dict[Source, str]:
    """The modules of the project that a file imports names from, and how it names them."""
    found: dict[Source, str] = {}
    for line in source.tree.body:
        for one in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if not isinstance(one, cst.ImportFrom) or isinstance(one.names, cst.ImportStar):
                continue
            module = imported_module(one)
            level = len(module) - len(module.lstrip("."))
            path = program.project.resolve(module[level:], level, source)
            other = program.project.source(path) if path and path.endswith(".py") else None
            if other is not None and other in program.sources and other is not source:
                found.setdefault(other, module)
    return found


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


def _stands_alone(source: Source, function: cst.FunctionDef) -> bool:
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
) -> Iterator[Edit]:
    """The function goes from its files, which import it from its new home."""
    first = sources[0]
    place = next(
        (one for one in home.tree.body if isinstance(one, cst.FunctionDef | cst.ClassDef)),
        home.tree.body[-1],
    )
    helpers = Helpers.above(home, place)

    def build(given: str, named: Naming) -> str:
        return _text(program, first, known[first][name], named)

    helpers.add(name, build)
    yield from helpers.all_edits()
    for source in sources:
        function = known[source][name]
        yield Remove(source, function)
        module = _taken_from(program, source)[home]
        yield AddImport(source, function, module, name, "")


def _text(program: Program, source: Source, function: cst.FunctionDef, named: Naming) -> str:
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
