"""Which packages that are not installed are made up, and which are left missing.

A package is left missing where the program is ready for that (``except ImportError``), where it is only asked for
(``importlib.util.find_spec``), where an installed library asks, and where the program computes with it: without
Hydra there are no settings, without timm no model. A package of the project itself, which the user has installed
elsewhere, is taken from the folders above the file that imports it.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import sysconfig
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

from fsdp2lint.rehearse.fakes.nothing import Hollow
from fsdp2lint.rehearse.standin.replace import Counted

NEEDED = frozenset(
    "absl addict argbind argh argparse_dataclass chz click clize configargparse configobj cyclopts dacite datargs dataclass_extensions "
    "dataclass_wizard dataclasses_json defopt docopt draccus easydict fastcore fire gflags gin hjson hydra hydra_zen json5 jsonargparse marshmallow mashumaro ml_collections munch omegaconf plac "
    "pydantic pydantic_config pydantic_settings pyrallis ruamel sacred simple_parsing tap toml tomli tomlkit trl typed_argparse "
    "typer tyro yacs yaml "
    "accelerate colossalai deepspeed diffusers einops fairscale fms huggingface_hub jax lightning megatron mmcv mmengine "
    "numpy olmo open_clip pandas peft pytorch_lightning ray safetensors scipy sentence_transformers sklearn timm "
    "tokenizers torch torchao torchaudio torchdata torchtext torchtitan torchtune transformers vit_pytorch".split()
)
"""Packages that give the settings or the model: what the program does without them is another program."""

_MISSING = ("ImportError", "ModuleNotFoundError")
_ANY = (*_MISSING, "Exception", "BaseException")
_IMPORTING = (
    __name__, "importlib", "importlib._bootstrap", "importlib._bootstrap_external",
    "_frozen_importlib", "_frozen_importlib_external",
)  # fmt: skip
"""Modules that import for others."""
_INSTALLED = tuple(
    os.path.join(os.path.realpath(folder), "")
    for folder in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")}
)
_OURS = os.path.join(os.path.realpath(Path(__file__).parents[2]), "")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last, so only for what is not installed.

    ``known`` says for packages which module of ours takes their part. ``always`` are packages that are made up
    whether or not the program is ready to go without them; ``trackers`` are those of them that the program has to name.
    """

    makes_up = True

    def __init__(
        self,
        counted: Counted,
        known: dict[str, str],
        always: frozenset[str],
        trackers: frozenset[str] = frozenset(),
    ) -> None:
        self._counted, self._known, self._always, self._trackers = counted, known, always, trackers

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for the packages that are made up, and for their parts."""
        top = name.partition(".")[0]
        if name == top and (folder := _own_folder(name)):
            sys.path.append(folder)
            self._counted.note(f"put on the path: {os.path.basename(folder)}/ with {name}")
            return importlib.machinery.PathFinder.find_spec(name, [folder])
        if name != top:
            wanted = isinstance(sys.modules.get(top), Hollow)  # not a part that a real one lacks
        elif top in self._always:
            wanted = top not in self._trackers or is_mentioned(top)
        else:
            wanted = top not in NEEDED and not top.startswith("_") and _must_be_there()
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if wanted else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """A module that has what the stand-in has, and else things that do nothing."""
        if "." not in spec.name:
            self._counted.note(f"made up: {spec.name}")
        return Hollow(spec.name, self._names_of(spec.name))

    def _names_of(self, name: str) -> object:
        """What has the names of a package or of a part of it: its own object where the stand-in has one."""
        top, *parts = name.split(".")
        if top not in self._known:
            return None
        whole: object = importlib.import_module(self._known[top])
        found = whole
        for part in parts:
            found = getattr(found, part, whole)
        return found

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is left to do."""


def _must_be_there() -> bool:
    """Whether a file of the program imports now, and the program ends if that fails."""
    importers = _frames()
    first = next(importers, None)
    if first is None or not is_own(first.f_code.co_filename):
        return False
    if caught(first, _ANY):
        return False
    return not any(
        caught(frame, _MISSING) for frame in importers if is_own(frame.f_code.co_filename)
    )


def _own_folder(name: str) -> str | None:
    """The folder above the importing file in which the project has a package or a module of that name."""
    importer = next(_frames(), None)
    if importer is None or not is_own(importer.f_code.co_filename):
        return None
    file = Path(importer.f_code.co_filename)
    for above in dict.fromkeys((*file.absolute().parents, *file.resolve().parents)):
        if above in (Path.home(), Path(above.anchor), Path(tempfile.gettempdir())):
            continue
        for folder in (above, above / "src"):
            if (folder / f"{name}.py").is_file() or _is_package(folder / name):
                return str(folder)
    return None


def _is_package(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob("*.py"))


def _frames() -> Iterator[types.FrameType]:
    """The frames that wait for an import, without those of the import system."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") not in _IMPORTING:
            yield frame
        frame = frame.f_back


@functools.cache
def is_own(file: str) -> bool:
    """Whether a file is the program's: of no installed package, not of Python and not ours."""
    if file.startswith("<"):
        return False
    whole = os.path.realpath(file)
    return not whole.startswith((*_INSTALLED, _OURS)) and "site-packages" not in whole


def own_files() -> list[str]:
    """The files of the program: first those that wait for what is read, then all that were imported."""
    waiting = [frame.f_code.co_filename for frame in own_frames()]
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    imported = [file for file in modules if isinstance(file, str) and is_own(file)]
    return list(dict.fromkeys(waiting + imported))


def own_frames() -> Iterator[types.FrameType]:
    """The frames of the program, the innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


@functools.cache
def source_of(file: str) -> str:
    """The text of a file, empty where there is none."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@functools.cache
def nodes_of(file: str) -> tuple[ast.AST, ...]:
    """All that is written in a file of Python; nothing where it cannot be parsed."""
    try:
        return tuple(ast.walk(ast.parse(source_of(file))))
    except (SyntaxError, ValueError):
        return ()


def is_mentioned(name: str) -> bool:
    """Whether the program, its command line or a file that this names speaks of a package.

    Libraries ask for every tracker that they know, and report to all that are there.
    """
    named = [word.rpartition("=")[2] for word in sys.argv[1:]]
    files = [file for file in named if os.path.isfile(file) and os.path.getsize(file) < 1 << 20]
    texts = [*sys.argv[1:], *map(source_of, [*files, *own_files()])]
    return any(name in text for text in texts)


def asked_by_the_program(through: tuple[str, ...], depth: int = 1) -> bool:
    """Whether a file of the program calls, itself or through these modules, what called so many frames above."""
    frame = sys._getframe(depth + 1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in through:
        frame = frame.f_back
    return is_own(frame.f_code.co_filename)


def caught(frame: types.FrameType, names: tuple[str, ...]) -> bool:
    """Whether the line that a frame is at is where one of these exceptions is caught."""
    spans = _catching(frame.f_code.co_filename)
    return any(
        first <= frame.f_lineno <= last and kinds.intersection(names)
        for first, last, kinds in spans
    )


@functools.cache
def _catching(file: str) -> tuple[tuple[int, int, frozenset[str]], ...]:
    """First and last line of what is in ``try`` or ``with suppress``, with the names of what is caught there."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            kinds = [one.type for one in node.handlers if not _gives_up(one.body[-1])]
            caught = frozenset(name for kind in kinds for name in _names(kind))
        elif isinstance(node, ast.With):
            calls = [item.context_expr for item in node.items]
            kinds = [arg for c in calls if isinstance(c, ast.Call) for arg in c.args]
            caught = frozenset(name for kind in kinds for name in _names(kind))
        else:
            continue
        found.append((node.body[0].lineno, node.body[-1].end_lineno or 0, caught))
    return tuple(found)


def ends_without(frame: types.FrameType) -> bool:
    """Whether the line that a frame is at asks for something and the program ends where that is missing.

    ``if not os.path.exists(path): raise …``, ``assert path.exists()``, and an ``else`` that raises.
    """
    spans = _asking(frame.f_code.co_filename)
    return any(first <= frame.f_lineno <= last for first, last in spans)


@functools.cache
def _asking(file: str) -> tuple[tuple[int, int], ...]:
    """First and last line of each test without which the program ends."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.If | ast.Assert):
            continue
        denied = any(isinstance(one, ast.Not) for one in ast.walk(node.test))
        if isinstance(node, ast.If):
            branch = node.body if denied else node.orelse
            needed = bool(branch) and _gives_up(branch[-1])
        else:
            needed = not denied
        if needed:
            found.append((node.test.lineno, node.test.end_lineno or 0))
    return tuple(found)


def _gives_up(last: ast.stmt) -> bool:
    """Whether a handler ends the program all the same, with a better text: ``raise``, ``sys.exit(…)``."""
    if isinstance(last, ast.Raise):
        return True
    called = last.value if isinstance(last, ast.Expr) else None
    return isinstance(called, ast.Call) and "exit" in _names(called.func)


def _names(kind: ast.expr | None) -> set[str]:
    """The last names of an exception or of several; a bare ``except`` catches everything."""
    if kind is None:
        return {"BaseException"}
    nodes = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
    }
