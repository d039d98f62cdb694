"""What of a run belongs together: the files that are analysed as one, apart from all others.

Two files belong together when one of them is reached from the other by imports. Such a unit does not
depend on what else is passed, so units can be analysed by several processes, and kept in a cache.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from typing import NamedTuple
from warnings import catch_warnings, simplefilter

from fsdp2lint.files import NOTEBOOK, Files
from fsdp2lint.links import Finder, Folder
from fsdp2lint.prefilter import Content, tells, written
from fsdp2lint.prefilter import relevant as is_relevant
from fsdp2lint.settings import Settings

MAX_PROGRAMS = 24
"""Files without a marker that are run for one unit because they import a file of it."""

MAX_ROUNDS = 3
"""So many imports away from a relevant file a program is still looked for."""

MAX_LINKED = 150
"""Files whose import lines are read to tell units apart; a project with more is one unit."""

MAX_LED = 150
"""Files whose import lines are read to see whether a program leads to FSDP."""


class Unit(NamedTuple):
    """Files that are analysed together, with their bytes; the ``programs`` are only run."""

    asked: tuple[tuple[str, Content], ...]
    programs: tuple[tuple[str, Content], ...] = ()


class Task(NamedTuple):
    """A unit under the settings of some of its files: those among the ``passed`` are reported on."""

    unit: Unit
    settings: Settings
    passed: Sequence[str]


def tasks(
    units: Iterable[Unit], passed: Sequence[str], at: Callable[[str], Settings]
) -> Iterator[Task]:
    """Each unit under the settings that count in the folders of its files.

    Most have the same for all. Where projects import each other, each has a task of its own, and what
    stands in none of the unit's files is told by the first.
    """
    for unit in units:
        held = {path: at(os.path.dirname(path)) for path, _ in (*unit.asked, *unit.programs)}
        every = list(dict.fromkeys(held.values()))
        for settings in every:
            mine = [path for path in passed if held.get(path, every[0]) == settings]
            yield Task(unit, settings, passed if len(every) == 1 else mine)


def units(
    passed: Sequence[str],
    relevant: Sequence[tuple[str, Content]],
    named: Sequence[str],
    roots: Sequence[Folder],
    files: Files,
    told: Sequence[str] = (),
) -> list[Unit]:
    """The units of the relevant files among those that were passed, in the order of their first files.

    A library that only tells of FSDP, in comments and docstrings, is not asked. A file that imports a
    relevant one belongs to it: it may hold the program's beginning. What a file that was ``named`` imports
    may not have been passed: it is analysed when it leads to FSDP in the end. The functions ``told`` by dotted
    name count as FSDP.
    """
    asked = {
        os.path.abspath(path): (path, content)
        for path, content in relevant
        if isinstance(content, OSError)
        or written(content)
        or tells(content, told)
        or _begins(path, content)
    }
    spelled = {os.path.abspath(path): path for path in passed}
    finder = Finder(roots, files, spelled)
    for path in named:
        full = os.path.abspath(path)
        if full not in asked and _leads_out(full, spelled.keys(), finder, told):
            asked[full] = (path, files.read(full))
    if not asked:
        return []
    programs = _programs(spelled.keys() - asked.keys(), asked, finder)
    made = []
    for group in _together([*asked, *programs], finder):
        theirs = [p for p in programs if p in group][:MAX_PROGRAMS]
        contents = ((spelled[p], files.read(p)) for p in theirs)
        read = tuple((path, raw) for path, raw in contents if _begins(path, raw))
        made.append(Unit(tuple(asked[p] for p in sorted(group & asked.keys())), read))
    return sorted(made, key=lambda unit: unit.asked[0][0])


def _leads_out(path: str, passed: Collection[str], finder: Finder, told: Sequence[str]) -> bool:
    """Whether a file that says nothing of FSDP imports, directly or not, one that does and was not passed."""
    seen = {path}
    pending = [path]
    for current in pending:
        if len(seen) > MAX_LED:
            return False
        try:
            raw = finder.files.read(current)
        except OSError:
            continue
        if current not in passed and (is_relevant(raw) or tells(raw, told)):
            return True
        found = [p for p in dict.fromkeys(finder.imported(raw, current)) if p not in seen]
        seen.update(found)
        pending += found
    return False


def _programs(candidates: Set[str], asked: Collection[str], finder: Finder) -> list[str]:
    """The files among ``candidates`` from which imports lead to an asked one, the nearest first."""
    found: dict[str, None] = {}
    newest: Collection[str] = asked
    for _ in range(MAX_ROUNDS):
        left = sorted(candidates - found.keys(), key=_programs_first)
        newest = [path for path, _ in finder.importing(left, newest)]
        found.update(dict.fromkeys(newest))
        if not newest or len(found) >= MAX_PROGRAMS:
            break
    return list(found)


def _begins(path: str, raw: bytes) -> bool:
    """Whether running a file does anything: a library only imports and defines."""
    if os.path.basename(path) == "__init__.py":
        return False
    if b"__main__" in raw or path.endswith(NOTEBOOK):
        return True
    try:
        with catch_warnings():
            simplefilter("ignore")
            return any(map(_acts, ast.parse(raw).body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


def _acts(statement: ast.stmt) -> bool:
    """Whether a statement loops, opens something or calls for the effect, on a branch of it perhaps."""
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.For | ast.While | ast.With | ast.Match):
        return True
    if isinstance(statement, ast.If | ast.Try):
        blocks = [statement.body, statement.orelse, *_handlers(statement)]
        return any(_acts(inner) for block in blocks for inner in block)
    return False


def _handlers(statement: ast.If | ast.Try) -> list[list[ast.stmt]]:
    """The other blocks of a ``try``."""
    if isinstance(statement, ast.If):
        return []
    return [statement.finalbody, *(handler.body for handler in statement.handlers)]


def _programs_first(path: str) -> tuple[bool, str]:
    """Programs before their tests: a test is a poor picture of how a program begins."""
    return "test" in path, path


def _together(nodes: Sequence[str], finder: Finder) -> list[set[str]]:
    """The nodes by which of them reach each other through imports."""
    edges: dict[str, list[str]] = {}
    group_of = {node: {node} for node in nodes}
    for node in nodes:
        seen, pending = {node}, [node]
        for current in pending:
            if current not in edges:
                if len(edges) >= MAX_LINKED:
                    return [set(nodes)]
                edges[current] = _edges(current, finder)
            for target in edges[current]:
                if target in group_of and group_of[target] is not group_of[node]:
                    _join(group_of, node, target)
                    if len(group_of[node]) == len(nodes):
                        return [set(nodes)]
                if target not in seen and target not in group_of:
                    seen.add(target)
                    pending.append(target)
    unique = {id(group): group for group in group_of.values()}
    return list(unique.values())


def _join(group_of: dict[str, set[str]], one: str, other: str) -> None:
    joined = group_of[one]
    joined |= group_of[other]
    for member in joined:
        group_of[member] = joined


def _edges(path: str, finder: Finder) -> list[str]:
    try:
        return list(dict.fromkeys(finder.imported(finder.files.read(path), path)))
    except OSError:
        return []
