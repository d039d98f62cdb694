"""What the user names as BEFORE or AFTER: a script, a folder with an entry, a module in a folder, or a command line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path

from fsdp2lint.rehearse import commands

ENTRIES = ("main.py", "train.py", "__main__.py")
"""The files that a folder is run by, in order; without any, its only script with a main guard."""


class NoEntry(Exception):
    """Nothing to run can be found; the text says what was looked for."""


@dataclass(frozen=True)
class Place:
    """What to run, and the folder that it works in."""

    name: str
    """As the user said it."""
    target: str
    """The script, or the module's name."""
    folder: Path
    module: bool = False
    arguments: tuple[str, ...] = ()
    """Those of a command line, before the ones that both programs get."""
    processes: int | None = None
    """How many ranks a command line starts."""
    environment: dict[str, str] = field(default_factory=dict)
    settings: str = ""
    """The settings file of a command line."""


def find(name: str, *, entry: str | None = None, module: str | None = None) -> Place:
    """What ``name`` stands for; a file and a command line work in the current folder, a folder in itself.

    Raises:
        NoCommand: it is a command line that cannot be run here.
        NoEntry: it is not there, or it is a folder in which nothing says what to run.
    """
    path = Path(name)
    words = [] if path.exists() else commands.words_of(name)
    if commands.split(words) is not None:
        return _of_command(name, words)
    if not path.exists():
        raise NoEntry(f"no such file or folder: {name}")
    if module is not None:
        if not path.is_dir():
            raise NoEntry(f"-m looks for `{module}` in a folder, and {name} is a file")
        if not any((path / f).exists() for f in _files_of(module)):
            raise NoEntry(f"no module `{module}` in {name}")
        return Place(name, module, path.resolve(), module=True)
    if path.is_dir():
        return Place(name, str(_entry(path, entry)), path.resolve())
    if entry is not None:
        raise NoEntry(f"--entry names a script in a folder, and {name} is a file")
    return Place(name, str(path.resolve()), Path.cwd())


def _of_command(name: str, words: list[str]) -> Place:
    made = commands.started(words)
    if not made.module and not Path(made.target).is_file():
        raise NoEntry(f"no such script: {made.target}")
    target = made.target if made.module else str(Path(made.target).resolve())
    settings = str(Path(made.settings).resolve()) if made.settings else ""
    return Place(
        name,
        target,
        Path.cwd(),
        made.module,
        made.arguments,
        made.processes,
        made.environment,
        settings,
    )


def _files_of(module: str) -> tuple[str, str]:
    path = module.replace(".", "/")
    return f"{path}.py", f"{path}/__main__.py"


def _entry(folder: Path, entry: str | None) -> Path:
    if entry is not None:
        if not (folder / entry).is_file():
            raise NoEntry(f"no such script: {folder / entry}")
        return (folder / entry).resolve()
    for name in ENTRIES:
        if (folder / name).is_file():
            return (folder / name).resolve()
    guarded = list(_guarded(folder))
    if len(guarded) == 1:
        return guarded[0].resolve()
    found = ", ".join(path.name for path in guarded) or "no script with a main guard"
    raise NoEntry(f"{folder} has none of {', '.join(ENTRIES)}, but {found}: name one with --entry")


def _guarded(folder: Path) -> Iterator[Path]:
    """The scripts of a folder that ask whether they are ``__main__``."""
    for path in sorted(folder.glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        tests = [node.test for node in tree.body if isinstance(node, ast.If)]
        names = {n.id for test in tests for n in ast.walk(test) if isinstance(n, ast.Name)}
        if "__name__" in names:
            yield path


def scripts(place: Place) -> list[str]:
    """The files of a program: its script, or all Python files of its folder, hidden ones aside, when that was named."""
    if not Path(place.name).is_dir():
        files = [str(place.folder / name) for name in _files_of(place.target)]
        return [f for f in files if Path(f).exists()][:1] if place.module else [place.target]
    below = ((path, path.relative_to(place.name)) for path in Path(place.name).rglob("*.py"))
    return sorted(str(path) for path, name in below if not _is_hidden(name))


def _is_hidden(name: Path) -> bool:
    """Whether it lies in a folder of tools, as backups of `migrate` and environments do."""
    return any(part.startswith(".") or part == "site-packages" for part in name.parts)


def diff(before: Place, after: Place) -> str:
    """How the text of two programs differs, file by file; two scripts are one file."""
    old, new = (_texts(place) | _settings(place) for place in (before, after))
    if len(old) == len(new) == 1:
        new = dict.fromkeys(old, *new.values())
    parts: list[str] = []
    for name in sorted(old.keys() | new.keys()):
        was, now = (texts.get(name, "").splitlines(keepends=True) for texts in (old, new))
        parts += unified_diff(was, now, f"before/{name}", f"after/{name}")
    return "".join(part if part.endswith("\n") else part + "\n" for part in parts)


def _settings(place: Place) -> dict[str, str]:
    """The settings of a command line, under one name for both."""
    if not place.settings:
        return {}
    return {"settings": Path(place.settings).read_text("utf-8", "replace")}


def _texts(place: Place) -> dict[str, str]:
    root = Path(place.name) if Path(place.name).is_dir() else Path(place.target).parent
    found = {}
    for script in scripts(place):
        path = Path(script)
        with suppress(OSError):
            found[str(path.relative_to(root))] = path.read_text("utf-8", "replace")
    return found
