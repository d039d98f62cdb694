"""Recipes: YAML files that name the classes and functions of which a script builds what it trains.

Which one a script reads is in the script (``OmegaConf.load("train.yaml")``, ``@hydra.main(config_name="train")``) or in
the commands around it (``tune run train.py --config train.yaml``). Where there are several, what they have in common counts.

Sources: torchtune/config/{_parse,_utils}.py (0.6), nemo_automodel/components/config/{_arg_parser,loader}.py (2025),
hydra/_internal/{config_loader_impl,defaults_list}.py (1.3).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from fsdp2lint.frameworks import commands, document
from fsdp2lint.frameworks.document import Listing, Mapping, Node, NotSettings, Scalar
from fsdp2lint.source.reading import decode
from fsdp2lint.source.source import Unreadable
from fsdp2lint.system.files import Files

Tree = dict[str, object]
"""Keys with their constants, lists and trees."""

Way = Callable[[Files], Tree]
"""A way of reading a recipe."""

MAX_DEPTH = 12
"""Recipes are nested less deeply; an alias can lead in a circle."""

_ENDS = (".yaml", ".yml")
_OPTIONS = ("--config", "-c", "--config-file", "--config_file")
_SELF = "_self_"


def tree(path: str, files: Files) -> Tree:
    """What a YAML file sets; nothing where it cannot be read."""
    try:
        return _mapping(document.read(decode(files.read(path), path)), 0)
    except (OSError, Unreadable, NotSettings):
        return {}


def _mapping(node: Mapping, depth: int) -> Tree:
    return {entry.name: _plain(entry.value, depth + 1) for entry in node if not node.merged}


def _plain(node: Node, depth: int) -> object:
    if depth > MAX_DEPTH:
        return {}
    if isinstance(node, Mapping):
        return _mapping(node, depth)
    if isinstance(node, Listing):
        return [_plain(item, depth + 1) for item in node.items]
    return node.value if isinstance(node, Scalar) else None


def composed(first: str, files: Files) -> Tree:
    """What Hydra makes of its first file and the files of its ``defaults``: later ones replace what earlier ones set."""
    path = _file(first, files)
    return {} if path is None else _composed(os.path.dirname(path), path, files, 0)


def _composed(folder: str, path: str, files: Files, depth: int) -> Tree:
    own = tree(path, files)
    defaults = own.pop("defaults", [])
    if not isinstance(defaults, list) or depth > MAX_DEPTH:
        return own
    made: Tree = {}
    if _SELF not in defaults:
        defaults = [*defaults, _SELF]
    for one in defaults:
        if one == _SELF:
            made = _over(made, own)
            continue
        for package, file in _chosen(one):
            found = _file(os.path.join(folder, *file.split("/")), files)
            if found is not None:
                below = _composed(folder, found, files, depth + 1)
                for name in reversed(package.split(".") if package else []):
                    below = {name: below}
                made = _over(made, below)
    return made


def _chosen(default: object) -> Iterator[tuple[str, str]]:
    """Where in the settings the file of one entry of ``defaults`` belongs, and the file: ``model: gpt``, ``base``."""
    if isinstance(default, str):
        yield os.path.dirname(default).replace("/", "."), default
    if isinstance(default, dict):
        for said, option in default.items():
            group = said.removeprefix("override ").removeprefix("optional ").strip()
            group, _, package = group.partition("@")
            if isinstance(option, str) and not group.startswith("/"):
                below = "" if package in ("_global_", "_here_") else package
                yield below or group.replace("/", "."), f"{group}/{option}"


def _over(first: Tree, second: Tree) -> Tree:
    """The first with all that the second sets."""
    both = dict(first)
    for key, value in second.items():
        known = both.get(key)
        together = isinstance(known, dict) and isinstance(value, dict)
        both[key] = _over(known, value) if together else value  # type: ignore[arg-type]
    return both


def agreed(trees: Sequence[Tree]) -> Tree:
    """What several recipes have in common."""
    if not trees:
        return {}
    first, *rest = trees
    common: Tree = {}
    for key, value in first.items():
        others = [one[key] for one in rest if key in one]
        if len(others) < len(rest):
            continue
        mappings = [one for one in (value, *others) if isinstance(one, dict)]
        if len(mappings) == len(trees):
            common[key] = agreed(mappings)
        elif all(one == value for one in others):
            common[key] = value
    return common


def named(word: str, folder: str, files: Files) -> Tree:
    """The recipe that a script means by a path, from its own folder or one above it in the project."""
    path = _lying(word, folder, files)
    return {} if path is None else tree(path, files)


def launched(script: str, own: str, files: Files) -> Tree:
    """What the recipes have in common that the commands around a script give it, and its ``own`` where it has one."""
    paths = launched_with(script, files)
    default = _lying(own, os.path.dirname(script), files)
    if default is not None and default not in paths:
        paths.append(default)
    return agreed([tree(path, files) for path in paths])


def launched_with(script: str, files: Files) -> list[str]:
    """The recipes that the commands around a script give it."""
    folder = os.path.dirname(script)
    found: dict[str, None] = {}
    for command in commands.commands(commands.near([folder], files), files):
        said = commands.parts(command.script)
        if said and script.replace(os.sep, "/").endswith("/" + "/".join(said)):
            for word in _given(command.words):
                path = _lying(word, os.path.dirname(command.written_in), files)
                found.update({} if path is None else {path: None})
    return list(found)


def _given(words: Sequence[str]) -> Iterator[str]:
    """The words behind an option for a recipe."""
    for number, word in enumerate(words):
        option, given, value = word.partition("=")
        if option in _OPTIONS:
            yield value if given else "".join(words[number + 1 : number + 2])


def _lying(word: str, folder: str, files: Files) -> str | None:
    return commands.lying(word, folder, files.is_file) if word.endswith(_ENDS) else None


def _file(path: str, files: Files) -> str | None:
    """A file of Hydra, whose names may leave out the ending."""
    names = (path, *(f"{path}{end}" for end in _ENDS))
    return next((one for one in names if one.endswith(_ENDS) and files.is_file(one)), None)
