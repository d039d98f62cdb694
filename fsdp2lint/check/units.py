"""What of a run belongs together: the files that are analysed as one, apart from all others.

Two files belong together when one of them is reached from the other by imports. Such a unit does not
depend on what else is passed, so units can be analysed by several processes, and kept in a cache.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import NamedTuple
from warnings import catch_warnings, simplefilter

from fsdp2lint.config.settings import Settings
from fsdp2lint.project.links import Finder, Folder, is_second_rate
from fsdp2lint.source.prefilter import MAX_BYTES, Content, tells, written
from fsdp2lint.source.prefilter import relevant as is_relevant
from fsdp2lint.system.discover import is_left_out
from fsdp2lint.system.files import NOTEBOOK, TEXTS, Files

MAX_PROGRAMS = 40
"""Files without a marker that are run for one unit because imports lead from them to a file of it.

Tests among them are run where there are no others.
Those that hand a model to a sharding function of the unit do not count among them: they are analysed themselves.
"""

MAX_LAUNCHERS = 300
"""Launch scripts that are read to see which programs are started, where there are more than are run."""

MAX_LINKED = 150
"""Files whose import lines are read to tell units apart; a project with more is one unit."""

MAX_LED = 150
"""Files whose import lines are read to see whether a program leads to FSDP."""


class Unit(NamedTuple):
    """Files that are analysed together, with their bytes; the ``programs`` are only run."""

    asked: tuple[tuple[str, Content], ...]
    programs: tuple[tuple[str, Content], ...] = ()
    skipped: tuple[str, ...] = ()
    """Programs beyond :data:`MAX_PROGRAMS`, which are not run."""


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
    is in none of the unit's files is reported by the first.
    """
    for unit in units:
        held = _one_way_to_follow(
            {path: at(os.path.dirname(path)) for path, _ in (*unit.asked, *unit.programs)}
        )
        every = list(dict.fromkeys(held.values()))
        for settings in every:
            mine = [path for path in passed if held.get(path, every[0]) == settings]
            yield Task(unit, settings, passed if len(every) == 1 else mine)


def _one_way_to_follow(held: dict[str, Settings]) -> dict[str, Settings]:
    """The settings of files, in each the Trainer's versions of all: the files are followed once for all of them."""
    versions = {os.path.dirname(p): one.hints.trainer_version for p, one in held.items()}
    if len(set(versions.values())) <= 1:
        return held
    by_folder = tuple(sorted(versions.items()))
    return {
        path: one._replace(
            hints=one.hints._replace(trainer_version=None, trainer_versions=by_folder)
        )
        for path, one in held.items()
    }


def units(
    passed: Sequence[str],
    relevant: Sequence[tuple[str, Content]],
    named: Sequence[str],
    roots: Sequence[Folder],
    files: Files,
    hints: Sequence[str] = (),
) -> list[Unit]:
    """The units of the relevant files among those that were passed, in the order of their first files.

    A library that only tells of FSDP, in comments and docstrings, is not asked. A file that imports a
    relevant one belongs to it: it may hold the program's beginning. What a file that was ``named`` imports
    may not have been passed: it is analysed when it leads to FSDP in the end. The functions ``hints`` by dotted
    name count as FSDP.
    """
    asked = {
        os.path.abspath(path): (path, content)
        for path, content in relevant
        if isinstance(content, OSError)
        or path.endswith(TEXTS)
        or written(content)
        or tells(content, hints)
        or _begins(path, content)
    }
    spelled = {os.path.abspath(path): path for path in passed}
    finder = Finder(roots, files, spelled)
    for path in named:
        full = os.path.abspath(path)
        if full not in asked and _leads_out(full, spelled.keys(), finder, hints):
            asked[full] = (path, files.read(full))
    if not asked:
        return []
    for path, raw in _sharding_callers(spelled.keys() - asked.keys(), asked, finder):
        asked[path] = (spelled[path], raw)
    leading = _leading(spelled.keys() - asked.keys(), asked, finder)
    started = _console_scripts(finder)
    asked |= {p: (spelled[p], files.read(p)) for p in leading if p in started}
    programs = [p for p in leading if p not in started and _is_program(p, files.read(p))]
    made = []
    for group in _together([*asked, *programs], finder):
        theirs = [p for p in programs if p in group]
        if any(not is_second_rate(p) for p in theirs):
            theirs = [p for p in theirs if not is_second_rate(p)]
        if len(theirs) > MAX_PROGRAMS:
            launched = _launched(finder.roots, files)
            theirs.sort(key=lambda p: (not _is_started(p, launched), not _is_main(p, files)))
        read = tuple((spelled[p], files.read(p)) for p in theirs[:MAX_PROGRAMS])
        left = theirs[MAX_PROGRAMS:]
        skipped = tuple(spelled[p] for p in left if "train" in p or b"optimizer" in files.read(p))
        made.append(Unit(tuple(asked[p] for p in sorted(group & asked.keys())), read, skipped))
    return sorted(made, key=lambda unit: unit.asked[0][0])


def _leads_out(path: str, passed: Collection[str], finder: Finder, hints: Sequence[str]) -> bool:
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
        if current not in passed and (is_relevant(raw) or tells(raw, hints)):
            return True
        found = [p for p in dict.fromkeys(finder.imported(raw, current)) if p not in seen]
        seen.update(found)
        pending += found
    return False


def _leading(candidates: Set[str], asked: Collection[str], finder: Finder) -> list[str]:
    """The files among ``candidates`` from which imports lead to an asked one, the nearest first."""
    found: dict[str, None] = {}
    newest: Collection[str] = asked
    while newest:
        left = sorted(candidates - found.keys(), key=_programs_first)
        newest = [path for path, _ in finder.importing(left, newest)]
        found.update(dict.fromkeys(newest))
    return list(found)


# -- callers of the project's own sharding functions ------------------------------------------------------

_SHARDS = ("fully_shard", "FullyShardedDataParallel", "FSDP", "shard_model")


def _sharding_callers(
    candidates: Set[str], asked: Mapping[str, tuple[str, Content]], finder: Finder
) -> Iterator[tuple[str, bytes]]:
    """The files among ``candidates`` that call a function by which a file of the project shards its model.

    They may not hold a single word of FSDP, and are trainers all the same.
    """
    shards = {
        path: names
        for path, (_, raw) in asked.items()
        if isinstance(raw, bytes) and (names := _sharding(raw, frozenset(_SHARDS)))
    }
    newest: Collection[str] = shards
    left = sorted(candidates)
    while newest:
        found = {}
        for path, targets in finder.importing(left, newest):
            raw = finder.files.read(path)
            known = frozenset(name for target in targets for name in shards[target])
            used = frozenset(name for name in known if _mentions(raw, name))
            if not used:
                continue
            found[path] = used | _sharding(raw, used, handed=True)
            if any(_calls(raw, name) for name in used):
                yield path, raw
        shards |= found
        newest = found.keys()
        left = [path for path in left if path not in shards]


def _mentions(raw: bytes, name: str) -> bool:
    return re.search(rb"\b%s\b" % name.encode(), raw) is not None


def _calls(raw: bytes, name: str) -> bool:
    return re.search(rb"(?<!def )\b%s\s*\(" % name.encode(), raw) is not None


def _sharding(raw: bytes, names: Collection[str], *, handed: bool = False) -> frozenset[str]:
    """The functions of a file that call one of these names; ``handed``: with one of their own parameters."""
    if not any(name.encode() in raw for name in names):
        return frozenset()
    tree = _parsed(raw)
    found = set()
    for function in tree.body if tree is not None else ():
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            given = function.args
            own = {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
            if any(
                _name(call.func) in names and (not handed or own & _names_given(call))
                for call in ast.walk(function)
                if isinstance(call, ast.Call)
            ):
                found.add(function.name)
    return frozenset(found)


def _name(called: ast.expr) -> str:
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def _names_given(call: ast.Call) -> set[str]:
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    return {one.id for one in given if isinstance(one, ast.Name)}


# -- which programs come first ----------------------------------------------------------------------------


_SCRIPT = re.compile(rb"""=\s*["']?\s*(?P<module>[A-Za-z_][\w.]*)\s*:\s*[A-Za-z_][\w.]*""")
_STARTED = re.compile(rb"([\w./-]+)\.py\b|-m[ =]+([A-Za-z_][\w.]*)")
_LAUNCHERS = (".sh", ".slurm", ".sbatch", ".mk", "Makefile", "justfile", "Justfile")


def _console_scripts(finder: Finder) -> frozenset[str]:
    """The files that ``[project.scripts]`` or the entry points of a ``setup`` name: a command calls a function there."""
    found = set()
    for root in finder.roots:
        for name in ("pyproject.toml", "setup.cfg", "setup.py"):
            file = os.path.join(root, name)
            if not finder.files.is_file(file):
                continue
            raw = finder.files.read(file)
            if b"scripts" not in raw:
                continue
            for match in _SCRIPT.finditer(raw):
                path = finder.resolve(match["module"].decode(), 0, file)
                if path is not None and path.endswith(".py"):
                    found.add(path)
    return frozenset(found)


def _launched(roots: Sequence[str], files: Files) -> frozenset[str]:
    """The ends of the paths of programs that launch scripts start: ``/train.py``, ``/pkg/main``."""
    found: set[str] = set()
    read = 0
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(one for one in folders if not is_left_out(one, folder))
            for name in sorted(names):
                if not name.endswith(_LAUNCHERS) or read == MAX_LAUNCHERS:
                    continue
                read += 1
                with suppress(OSError):
                    for path, module in _STARTED.findall(files.read(os.path.join(folder, name))):
                        said = path.decode().lstrip("./") or module.decode().replace(".", "/")
                        found.add(f"/{said}")
    return frozenset(found)


def _is_started(path: str, launched: Collection[str]) -> bool:
    """Whether a launch script starts the file at a path."""
    stem = path.replace(os.sep, "/").removesuffix(".py").removesuffix("/__main__")
    return any(stem.endswith(end) for end in launched)


def _is_program(path: str, raw: bytes) -> bool:
    """Whether running a file may train something."""
    may = _says_main(raw) or path.endswith(NOTEBOOK) or _MAY_ACT.search(raw) is not None
    return may and _TRAINING.search(raw) is not None and _begins(path, raw)


def _is_main(path: str, files: Files) -> bool:
    return _says_main(files.read(path))


def _says_main(raw: bytes) -> bool:
    """Whether a file does something only when it is run: fastcore's decorator asks as ``if __name__`` does."""
    return b"__main__" in raw or b"call_parse" in raw


def _begins(path: str, raw: bytes) -> bool:
    """Whether running a file does anything: a library only imports and defines."""
    if os.path.basename(path) == "__init__.py":
        return False
    if _says_main(raw) or path.endswith(NOTEBOOK):
        return True
    tree = _parsed(raw)
    return tree is None or any(map(_acts, tree.body))


_MAY_ACT = re.compile(
    rb"^(?:[A-Za-z_][\w.]*[ \t]*\(|(?:async[ \t]+)?(?:for|while|with|match)\b|print\b|if\b|try\b|else\b|\()",
    re.MULTILINE,
)
"""A line that is not indented and may call something for the effect, or opens a block that may."""

_TRAINING = re.compile(
    rb"(?i)(?<!pre)train|pretrain(?!ed)|optimizer|\.backward\(|finetun|\.fit\(|\bmain\("
)
"""What a program that trains says somewhere, even if all of it is done elsewhere."""


def _parsed(raw: bytes) -> ast.Module | None:
    """The syntax tree of a file; None where it has none, or is too large to be analysed."""
    if len(raw) > MAX_BYTES:
        return None
    try:
        with catch_warnings():
            simplefilter("ignore")
            return ast.parse(raw)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


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
    """Programs before their tests."""
    return is_second_rate(path), path


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
