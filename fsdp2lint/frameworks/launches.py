"""Which settings a script is launched with: by the commands around it, or because they lie beside it.

``accelerate launch --config_file fsdp.yaml train.py`` in a shell or Slurm script, a Makefile, a workflow or a README says
it, and so do ``--use_fsdp`` and the Trainer's own ``--fsdp full_shard``. Without a command, the only file of accelerate's
settings in a script's folder is taken for its own. The file that ``accelerate config`` writes into the cache counts, where it is
among the paths, for commands that name no other.

Sources: accelerate/commands/launch.py (``_validate_launch_command``: what the command line says counts more than the file),
accelerate/commands/config/config_args.py (``default_config_file``; 1.15), transformers/training_args.py (``_process_fsdp_args``; 5.23).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from fsdp2lint.frameworks import commands
from fsdp2lint.frameworks.asked import PARALLELISM, Asked, Launch, asks_by_words
from fsdp2lint.frameworks.commands import Command, read
from fsdp2lint.frameworks.document import Mapping, plain
from fsdp2lint.frameworks.text import SettingsText
from fsdp2lint.source.reading import decode
from fsdp2lint.source.source import Unreadable
from fsdp2lint.system.files import SETTINGS, Files, is_below

Launched = tuple[tuple[str, Launch], ...]
"""Scripts by their absolute paths, each with the settings that it is launched with."""

_OTHERWISE = ("cpu", "multi_gpu", "use_deepspeed", "tpu", "use_megatron_lm")
_OF_ACCELERATE = b"distributed_type"
_CLI, _OF_CLI = b"LightningCLI", b"trainer"
_DEFAULT = tuple(f"/accelerate/default_config{end}" for end in (".yaml", ".yml", ".json"))
"""Ends of the path that ``accelerate launch`` reads by itself, below ``~/.cache/huggingface`` or ``$HF_HOME``."""

_BUILDS = re.compile(rb"\bAccelerator\(|Trainer[()]|Trainer,[^()\n]*\):|LightningCLI[()]")
"""What the settings are for: an accelerator, a trainer, LightningCLI, or a class that is derived from one."""

_NAMED = re.compile(rb"""["']([^"'\n]{1,200}\.(?:ya?ml|json))["']""")
_OPTIONS = {
    "fsdp_version": "fsdp_version",
    "state_dict_type": "fsdp_state_dict_type",
    "reshard_after_forward": "fsdp_reshard_after_forward",
    "cpu_offload": "fsdp_offload_params",
    "mixed_precision": "mixed_precision",
}
"""What of a file an option of the command replaces."""
_TYPES = {"1": "FULL_STATE_DICT", "2": "LOCAL_STATE_DICT", "3": "SHARDED_STATE_DICT"}


class Launches(NamedTuple):
    """How the scripts are launched, and the settings that ask for FSDP and that no script is launched with."""

    scripts: Launched = ()
    alone: tuple[str, ...] = ()


class _Known(NamedTuple):
    """The settings files that ask for FSDP, by their paths."""

    accelerate: dict[str, Launch]
    trainer: dict[str, Launch]
    """Arguments of a training, the file of their ``fsdp_config`` alone, or a file of LightningCLI."""
    lightning: set[str]
    """Those of LightningCLI."""

    @property
    def default(self) -> Launch | None:
        """The settings that accelerate reads where a command names none; None where they are not among the files."""
        found = [p for p in self.accelerate if p.replace(os.sep, "/").endswith(_DEFAULT)]
        return self.accelerate[found[0]] if len(found) == 1 else None


def launched(
    scripts: Sequence[str], settings: Sequence[str], folders: Sequence[str], files: Files
) -> Launches:
    """The scripts among ``scripts`` that are launched with FSDP, by the ``settings`` among these paths or beside them.

    Commands are looked for below the ``folders``, and from the scripts' own folders up to their project.
    """
    own = {os.path.dirname(os.path.abspath(path)) for path in scripts if path.endswith(".py")}
    single = len(own) == 1 and not any(is_below(one, folders) for one in own)
    near = list(commands.near(own, files)) if single else []
    beside = [path for path in _listed(own if near else ()) if path.endswith(SETTINGS)]
    every = list(commands.commands([*near, *commands.below(folders)], files))
    named = [path for command in every for path in commands.named_files(command)]
    if single:
        named += (path for script in scripts for path in _named_in(os.path.abspath(script), files))
    known = _known((*settings, *near, *beside, *named), files)
    chosen: dict[str, list[Launch]] = {}
    used: set[str] = set()
    others: set[str] = set()
    plain_starts: set[str] = set()
    """Scripts that accelerate starts by settings of its own, which are not among the files."""
    paths = [os.path.abspath(path) for path in scripts]
    for command in every:
        script = _one(command.script, paths, command)
        if script is None:
            continue
        if not _asks(command, known):
            if command.by_accelerate:
                plain_starts.add(script)
            continue
        used.update(commands.named_files(command))
        launch = _of_command(command, known)
        if launch is None:
            others.add(script)
        else:
            twice = launch.activation_checkpointing and _recomputes(command, files)
            launch = launch._replace(gradient_checkpointing=twice, processes=_processes(command))
            chosen.setdefault(script, []).append(launch)
    for path in paths:
        if path not in chosen and path not in others:
            found = _beside(path, known, files, by_accelerate=path not in plain_starts)
            if not found and known.default is not None and _is_launched(path, files):
                found = [known.default]
            if found:
                chosen[path] = found
    used.update(launch.settings for of in chosen.values() for launch in of)
    unused = {*map(os.path.abspath, settings), *beside} & {*known.accelerate, *known.trainer}
    left = [path for path in paths if path not in chosen and _is_launched(path, files)]
    if not any(_CLI in read(path, files) for path in left):
        unused -= known.lightning
    alone = sorted(unused - used) if left else ()
    return Launches(tuple(sorted((path, _agreed(of)) for path, of in chosen.items())), tuple(alone))


def _is_launched(script: str, files: Files) -> bool:
    """Whether a script builds what the settings are for."""
    return _BUILDS.search(read(script, files)) is not None


def _listed(folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        yield from (os.path.join(folder, name) for name in sorted(os.listdir(folder)))


def _agreed(launches: Sequence[Launch]) -> Launch:
    """What the launches of one script with the newest version have in common."""
    newest = max(one.version or 0 for one in launches)
    first, *rest = (one for one in launches if (one.version or 0) == newest)
    nothing = Launch(first.version)
    differing = {
        name: getattr(nothing, name)
        for name in Launch._fields
        if any(getattr(one, name) != getattr(first, name) for one in rest)
    }
    if "processes" in differing and all(one.processes is not None for one in (first, *rest)):
        differing["processes"] = 0
    return first._replace(**differing)


# -- settings files ----------------------------------------------------------------------------------------------


def _known(paths: Iterable[str], files: Files) -> _Known:
    known = _Known({}, {}, set())
    for path in dict.fromkeys(map(os.path.abspath, paths)):
        if not path.endswith(SETTINGS):
            continue
        try:
            source = decode(files.read(path), path)
            asked = source.asked if isinstance(source, SettingsText) else None
        except (OSError, Unreadable):
            continue
        if asked is None:
            continue
        if asked.framework == "accelerate" and asked.version is not None:
            default = "FULL_STATE_DICT" if asked.version == 1 else "SHARDED_STATE_DICT"
            known.accelerate[path] = Launch(
                asked.version,
                _type(asked) or default,
                _classes(asked),
                asked.value("activation_checkpointing") is True,
                settings=path,
                named=_named(asked),
                sizes=_sizes(asked.top.value("parallelism_config")),
                offload=asked.value("offload_params") is True,
                efficient_loading=asked.value("cpu_ram_efficient_loading") is True,
                mixed_precision=_precision(asked.top.value("mixed_precision")),
            )
        elif asked.framework in ("the Trainer", "ms-swift", "Lightning"):
            # one file may be the Trainer's or ms-swift's
            if asked.framework == "Lightning":
                known.lightning.add(path)
            known.trainer[path] = Launch(
                asked.version,
                _type(asked),
                activation_checkpointing=asked.value("activation_checkpointing") is True,
                settings=path,
            )
    return known


def _named(asked: Asked) -> tuple[tuple[str, str], ...]:
    """What the file itself sets, by the names that a plugin of accelerate has for it."""
    said = {
        "fsdp_version": "" if asked.said is None else asked.version,
        "state_dict_type": _type(asked),
        "reshard_after_forward": asked.value("reshard_after_forward"),
        "cpu_offload": asked.value("offload_params"),
        "mixed_precision": asked.top.value("mixed_precision"),
    }
    return tuple((name, str(v)) for name, v in said.items() if isinstance(v, str | int) and v != "")


def _precision(given: object) -> str:
    """A precision that is mixed; empty for none."""
    return given if isinstance(given, str) and given != "no" else ""


def _sizes(section: object) -> tuple[tuple[str, int], ...]:
    """The sizes in a ``parallelism_config``; none where one of them is no number."""
    if not isinstance(section, Mapping):
        return ()
    given = (e for e in section if e.name.startswith(PARALLELISM) and e.name.endswith("_size"))
    sizes = {entry.name.removeprefix(PARALLELISM): plain(entry.value) for entry in given}
    return tuple(sorted(sizes.items())) if all(type(v) is int for v in sizes.values()) else ()


def _type(asked: Asked) -> str:
    kept = str(asked.value("state_dict_type") or "").upper()
    return _TYPES.get(kept, kept)


def _classes(asked: Asked) -> tuple[str, ...]:
    """The names by which accelerate wraps: it cuts the text of the value at its commas."""
    if str(asked.value("auto_wrap_policy")).upper() != "TRANSFORMER_BASED_WRAP":
        return ()
    value = asked.value("transformer_layer_cls_to_wrap")
    return tuple(value.split(",")) if isinstance(value, str) and value else ()


def _beside(script: str, known: _Known, files: Files, *, by_accelerate: bool) -> list[Launch]:
    """The settings that a script reads without a command: arguments of the Trainer whose files it names, and accelerate's or LightningCLI's in
    its folder, if no others of the same lie there, the script builds what they are for and no command starts it without them.
    """
    named = [known.trainer[path] for path in _named_in(script, files) if path in known.trainer]
    if named:
        return named
    folder = os.path.dirname(script)
    by_cli = _CLI in read(script, files)
    settings = (
        {path: known.trainer[path] for path in known.lightning} if by_cli else known.accelerate
    )
    here = [path for path in settings if os.path.dirname(path) == folder]
    if not by_accelerate or len(here) != 1 or not _is_launched(script, files):
        return []
    rivals = (p for p in _listed([folder]) if p.endswith(SETTINGS) and p not in here)
    mark = _OF_CLI if by_cli else _OF_ACCELERATE
    rival = any(mark in read(path, files) for path in rivals)
    return [] if rival else [settings[here[0]]]


def _named_in(script: str, files: Files) -> list[str]:
    """The settings files that a script of the Trainer names, where they lie relative to its folder or one above it in the
    project: ``parser.parse_yaml_file("conf/args.yaml")``.
    """
    raw = read(script, files)
    if not _BUILDS.search(raw):
        return []
    words = (word.decode("utf-8", "replace") for word in _NAMED.findall(raw))
    paths = (commands.lying(word, os.path.dirname(script)) for word in words)
    return list(dict.fromkeys(path for path in paths if path is not None))


# -- commands ----------------------------------------------------------------------------------------------------


def _asks(command: Command, known: _Known) -> bool:
    """Whether a command says how its script is trained: settings of accelerate, or words of FSDP."""
    if command.by_accelerate:
        if {"config_file", "use_fsdp"} & command.options.keys() or known.default is not None:
            return True
    return "fsdp" in command.arguments or any(w.endswith(SETTINGS) for w in command.words)


def _of_command(command: Command, known: _Known) -> Launch | None:
    """The settings that a command gives to its script; None where it asks for no FSDP, or names files that are not known."""
    by_arguments = _of_arguments(command, known.trainer)
    if by_arguments is not None or not command.by_accelerate:
        return by_arguments
    options = command.options
    if any(name in options for name in _OTHERWISE):
        return None
    base = None
    if "config_file" in options or "config-file" in options:
        path = _one(options["config_file"], [*known.accelerate], command)
        if path is None:
            return None
        base = known.accelerate[path]
    elif "use_fsdp" not in options:
        base = known.default
        if base is None:
            return None
    said = options.get("fsdp_version", "")
    version = int(said) if said in ("1", "2") else None if said else base.version if base else 1
    if version is None:
        return None
    kind = options.get("fsdp_state_dict_type", "").upper()
    default = "FULL_STATE_DICT" if version == 1 else "SHARDED_STATE_DICT"
    wrapped = (
        () if "fsdp_transformer_layer_cls_to_wrap" in options or base is None else base.wrapped
    )
    state = _TYPES.get(kind, kind) or (base.state_dict_type if base else default)
    start = base or Launch(version)
    made = start._replace(
        version=version,
        state_dict_type=state,
        wrapped=wrapped,
        activation_checkpointing=_flag(
            options, "activation_checkpointing", start.activation_checkpointing
        ),
        offload=_flag(options, "offload_params", start.offload),
        efficient_loading=_flag(options, "cpu_ram_efficient_loading", start.efficient_loading),
        mixed_precision=_precision(options.get("mixed_precision", start.mixed_precision)),
    )
    sizes = dict(base.sizes if base is not None else ())
    for name, given in options.items():
        if name.startswith(PARALLELISM) and name.endswith("_size"):
            sizes[name.removeprefix(PARALLELISM)] = int(given) if given.isdecimal() else -1
    set_sizes = tuple(sorted(sizes.items())) if min(sizes.values(), default=1) > 0 else ()
    named = tuple(pair for pair in made.named if _OPTIONS.get(pair[0]) not in options)
    return made._replace(sizes=set_sizes, named=named)


def _flag(options: dict[str, str], name: str, default: bool) -> bool:
    """An option of FSDP that is true or false."""
    said = options.get(f"fsdp_{name}")
    return default if said is None else said.lower() == "true"


def _processes(command: Command) -> int | None:
    """How many processes a command starts; None where it leaves that to the settings or the machine."""
    options = command.options
    if command.by_accelerate:
        said = [options.get("num_processes", "")]
    else:
        said = [options.get("nproc_per_node", ""), options.get("nnodes", "1")]
    return prod(map(int, said)) if all(one.isdecimal() for one in said) else None


def _of_arguments(command: Command, trainer: dict[str, Launch]) -> Launch | None:
    """FSDP as the arguments of the script ask the Trainer for it: ``--fsdp``, or a file with the arguments of a training."""
    given = command.arguments
    if asks_by_words(given.get("fsdp", "")):
        return _of_config(given.get("fsdp_config", ""), trainer, command)
    files = (_one(word, [*trainer], command) for word in command.words if word.endswith(SETTINGS))
    if "fsdp_config" in given:
        return None
    return next((trainer[path] for path in files if path is not None), None)


def _recomputes(command: Command, files: Files) -> bool:
    """Whether a command asks the Trainer for gradient checkpointing: by an argument, or in a file of arguments."""
    given = command.arguments.get("gradient_checkpointing")
    if given is not None:
        return given.lower() in ("", "true", "1")
    for path in commands.named_files(command):
        try:
            source = decode(files.read(path), path)
            if (
                isinstance(source, SettingsText)
                and source.top.value("gradient_checkpointing") is True
            ):
                return True
        except (OSError, Unreadable):
            continue
    return False


def _of_config(given: str, trainer: dict[str, Launch], command: Command) -> Launch:
    """What ``--fsdp_config`` says beside ``--fsdp``: a file, or the settings as JSON."""
    path = _one(given, [*trainer], command) if given.endswith(SETTINGS) else None
    if path is not None:
        return trainer[path]
    try:
        config = json.loads(given)
    except ValueError:
        return Launch(None)
    config = config if isinstance(config, dict) else {}
    version = config.get("fsdp_version", config.get("version"))
    kind = str(config.get("state_dict_type", config.get("fsdp_state_dict_type", ""))).upper()
    recomputed = config.get("activation_checkpointing", config.get("fsdp_activation_checkpointing"))
    return Launch(version if version in (1, 2) else None, kind, (), recomputed is True)


def _one(named: str, paths: Sequence[str], command: Command) -> str | None:
    """The only path that a word of a command can mean: where it lies relative to the command's file or a folder above, or else by its end."""
    tail = commands.parts(named)
    folder = os.path.dirname(os.path.abspath(command.written_in))
    there = {os.path.join(one, *tail) for one in commands.upwards(folder)} if tail else set()
    exact = [path for path in paths if path in there]
    if exact:
        return exact[0] if len(exact) == 1 else None
    for length in range(len(tail), 0, -1):
        end = "/" + "/".join(tail[-length:])
        found = [path for path in paths if path.replace(os.sep, "/").endswith(end)]
        if found:
            return found[0] if len(found) == 1 else None
    return None
