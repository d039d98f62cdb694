"""Commands that start training scripts: in shell and Slurm scripts, Makefiles, workflows and pages.

Variables of shell scripts and Makefiles, as far as the file itself sets them: commands are often built of them.

``LAUNCHER="accelerate launch --config_file fsdp.yaml"`` and ``srun bash -c "$LAUNCHER $PROGRAM"`` become one line.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fsdp2lint.system.discover import is_left_out, project_of
from fsdp2lint.system.files import SETTINGS, Files

MAX_CHARACTERS = 1_000_000
"""A page or a script is smaller."""

MAX_FILES = 400
"""So many files around the scripts are looked at for commands."""

_FILES = (
    *(".sh", ".bash", ".slurm", ".sbatch", ".job", ".mk", ".md", ".yml", ".yaml", "Makefile"),
)
_COMMAND = re.compile(
    r"(?:\baccelerate[ \t-]launch|\btorchrun|\btune[ \t]run|\bpython3?(?:\.\d+)?)[ \t][^\n]*"
)
_ENDS = re.compile(r"(?!<[^<>]+>$)[;&|><)`#].*|\d>.*")
"""What ends a command in a shell, at the begin of a word; `<your_path>` on a page is to be filled in."""

_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


@dataclass(frozen=True)
class Command:
    """One start of a script: the launcher's options, and what the script is given."""

    by_accelerate: bool
    script: str
    """As the command writes it; a module as the path of its file."""
    options: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    """Everything behind the script."""
    written_in: str = ""
    """The file that holds the command."""


def commands(paths: Iterable[str], files: Files) -> Iterator[Command]:
    """The starts of scripts in some files."""
    for path in paths:
        text = read(path, files).decode("utf-8", "replace")
        for line in _COMMAND.findall(expanded(text, path)):
            command = _parsed(line)
            if command is not None:
                yield replace(command, written_in=path)


def _parsed(line: str) -> Command | None:
    """The parts of a command line; None where it names no script."""
    try:
        words = shlex.split(line)
    except ValueError:  # prose, or a quote that another line closes
        words = [word.strip("\"'") for word in line.split()]
    end = next((n for n, word in enumerate(words) if _ENDS.fullmatch(word)), len(words))
    words = [word.rstrip(";`)") for word in words[:end]]
    accelerated = words[0].startswith("accelerate")
    rest = words[2:] if words[0] == "accelerate" else words[1:]
    for number, word in enumerate(rest):
        before = rest[number - 1] if number else ""
        if before in ("-m", "--module") and not word.startswith("-") and not word.endswith(".py"):
            if word in _LAUNCHERS:
                accelerated = word.startswith("accelerate")
                continue
            script = word.replace(".", "/") + ".py"
        elif word.endswith(".py"):
            script = word
        else:
            continue
        behind = rest[number + 1 :]
        return Command(
            accelerated, script, _options(rest[:number]), _options(behind), tuple(behind)
        )
    return None


def _options(words: Sequence[str]) -> dict[str, str]:
    """The options among some words, without dashes; a switch has an empty value."""
    found: dict[str, str] = {}
    for number, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, given, value = word[2:].partition("=")
        if not given and number + 1 < len(words) and not words[number + 1].startswith("--"):
            value = words[number + 1]
        found[name.replace("-", "_")] = value
    return found


def named_files(command: Command) -> Iterator[str]:
    """The settings files that a command names, where they lie relative to its own folder or one above it in the project."""
    words = (command.options.get("config_file", ""), *command.words)
    folder = os.path.dirname(os.path.abspath(command.written_in))
    for word in {word.rpartition("=")[2] for word in words if word.endswith(SETTINGS)}:
        path = lying(word, folder)
        if path is not None:
            yield path


def lying(word: str, folder: str, is_file: Callable[[str], bool] = os.path.isfile) -> str | None:
    """The file that a word means, relative to a folder or to one above it in the project; None where none is there."""
    tail = parts(word)
    found = (os.path.join(base, *tail) for base in upwards(folder))
    return next((path for path in found if is_file(path)), None) if tail else None


def parts(word: str) -> list[str]:
    """The parts of a path in a command, without variables of the shell at its begin; none where one is within it."""
    tail = [part for part in word.replace("\\", "/").split("/") if part not in (".", "..", "")]
    while tail and "$" in tail[0]:
        tail.pop(0)
    return [] if any("$" in part for part in tail) else tail


def upwards(folder: str) -> Iterator[str]:
    """A folder and those above it, up to its project."""
    top = project_of(folder) or folder
    yield folder
    while folder != top and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
        yield folder


def near(folders: Iterable[str], files: Files) -> Iterator[str]:
    """The files that may hold commands in some folders and in those above them, up to their project."""
    for folder in folders:
        for current in upwards(folder):
            for name in files.names(current)[:MAX_FILES]:
                if name.endswith(_FILES):
                    yield os.path.join(current, name)


def below(folders: Iterable[str]) -> Iterator[str]:
    """The files below some folders that may hold commands."""
    count = 0
    for folder in folders:
        for current, inner, names in os.walk(folder):
            inner[:] = sorted(
                one for one in inner if one == ".github" or not is_left_out(one, current)
            )
            for name in sorted(names):
                if name.endswith(_FILES):
                    count += 1
                    if count > MAX_FILES:
                        return
                    yield os.path.join(current, name)


def may_ask(paths: Iterable[str], files: Files) -> bool:
    """Whether a file among these may hold a command that asks for FSDP by its own words."""
    return any(b"--fsdp" in raw or b"--use_fsdp" in raw for raw in (read(p, files) for p in paths))


def read(path: str, files: Files) -> bytes:
    """The bytes of a file; none where it cannot be read, or is too large."""
    try:
        if os.path.getsize(path) > MAX_CHARACTERS:
            return b""
        return files.read(path)
    except OSError:
        return b""


MAX_VALUE = 4_000
"""A command is shorter."""
_MAX_TEXT = 1_000_000
_ROUNDS = 4
"""How deep variables are looked for within the values of others."""

_CONTINUED = re.compile(r"\\\r?\n")
_PIECES = r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'()|&;#]+)+"""
_IN_SHELL = re.compile(
    rf"^[ \t]*(?:(?:export|local|readonly|declare|set)[ \t]+(?:-\w+[ \t]+)*)?"
    rf"(?P<name>[A-Za-z_]\w*)(?P<more>\+?)=(?P<value>\((?:[^()]|\$\([^()]*\))*\)|{_PIECES}|)",
    re.MULTILINE,
)
_IN_MAKE = re.compile(
    r"^(?P<name>[A-Za-z_][\w-]*)[ \t]*(?:[:?]{0,2}|(?P<more>\+))=[ \t]*(?P<value>[^\n#]*)",
    re.MULTILINE,
)
_PIECE = re.compile(r"""\\(.)|["']""")
_SHELL_USE = re.compile(
    r"""(?<!\\)\$(?:\{(?P<name>\w+)(?:\[[@*]\])?(?::?[-=](?P<default>[^{}]*))?\}|(?P<bare>[A-Za-z_]\w*))"""
)
_MAKE_USE = re.compile(r"\$[({](?P<name>[\w-]+)[)}]")


def expanded(text: str, path: str) -> str:
    """The text of a file with its own variables filled in; those that it sets differently in two places stay."""
    make = path.endswith((".mk", "Makefile"))
    text = _CONTINUED.sub(" ", text)
    known = _set_in(text, _IN_MAKE if make else _IN_SHELL)
    for _ in range(_ROUNDS if "$" in text else 0):
        new = (_MAKE_USE if make else _SHELL_USE).sub(lambda use: _filled_in(use, known), text)
        if new == text or len(new) > _MAX_TEXT:
            break
        text = new
    return text


def _set_in(text: str, assignment: re.Pattern[str]) -> dict[str, str]:
    """The variables that have one value; what is appended to them comes behind it."""
    values: dict[str, set[str]] = {}
    added: dict[str, list[str]] = {}
    for found in assignment.finditer(text):
        value = _value(found["value"])
        if found["more"]:
            added.setdefault(found["name"], []).append(value)
        else:
            values.setdefault(found["name"], set()).add(value)
    known = {name: of.pop() for name, of in values.items() if len(of) == 1}
    whole = {name: " ".join((value, *added.get(name, ()))) for name, value in known.items()}
    return {name: value for name, value in whole.items() if _is_written_out(value)}


def _is_written_out(value: str) -> bool:
    """Whether no other command makes a value: ``$(…)`` is cut at its parenthesis."""
    return len(value) <= MAX_VALUE and "`" not in value and not value.endswith("$")


def _value(written: str) -> str:
    """What a word or an array means, on one line and without quotes."""
    inner = written[1:-1] if written.startswith("(") else written
    return " ".join(_PIECE.sub(r"\1", inner).split())


def _filled_in(use: re.Match[str], known: dict[str, str]) -> str:
    """The value of a variable where it is used, or the default that is there."""
    parts = use.groupdict()
    name = parts.get("name") or parts.get("bare") or ""
    if name in known:
        return known[name]
    default = parts.get("default")
    return use[0] if default is None else _value(default)
