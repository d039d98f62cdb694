"""Which settings a script is launched with: by the commands around it, or because they lie beside it.

``accelerate launch --config_file fsdp.yaml train.py`` in a shell or Slurm script, a Makefile, a workflow or a README says
it. Without a command, the only file of accelerate's settings in a script's folder is taken for its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from fsdp2lint.frameworks.asked import Launch
from fsdp2lint.frameworks.document import MAX_CHARACTERS
from fsdp2lint.frameworks.text import SettingsText
from fsdp2lint.source.source import Source, Unreadable
from fsdp2lint.system.discover import EXCLUDED, project_of
from fsdp2lint.system.files import SETTINGS, Files

Launched = tuple[tuple[str, Launch], ...]
"""Scripts by their absolute paths, each with the settings that it is launched with."""

COMMANDS = (
    *(".sh", ".bash", ".slurm", ".sbatch", ".job", ".mk", ".md", ".yml", ".yaml", "Makefile"),
)
MAX_FILES = 400
"""So many files around the scripts are looked at for commands."""

_COMMAND = re.compile(r"accelerate[ \t-]launch\b(?:\\\r?\n|[^\n])*")
_CONFIG = re.compile(r"--config[_-]file(?:=|[ \t]|\\\r?\n)+[\"']?(?P<file>[^\s\"'\\]+)")
_SCRIPT = re.compile(r"(?<![\w.-])[\w./${}-]*[\w-]+\.py\b")
_OTHERWISE = re.compile(r"--(cpu|multi_gpu|use_deepspeed|tpu|fsdp_version)\b")
_OF_ACCELERATE = b"distributed_type"


def launched(
    scripts: Sequence[str], settings: Sequence[str], folders: Sequence[str], files: Files
) -> Launched:
    """The scripts among ``scripts`` that are launched with FSDP, by the ``settings`` among these paths or beside them.

    Commands are looked for below the ``folders``, and from the scripts' own folders up to their project.
    """
    own = {os.path.dirname(os.path.abspath(path)) for path in scripts if path.endswith(".py")}
    near = list(_near(own, files)) if len(own) == 1 and not folders else []
    beside = [path for path in near if path.endswith(SETTINGS)]
    launches = dict(_launches((*settings, *beside), files))
    if not launches:
        return ()
    texts = [*near, *_below(folders)]
    chosen: dict[str, set[str]] = {}
    paths = [os.path.abspath(path) for path in scripts]
    for config, script in _commands(texts, files):
        found = _one(script, paths)
        if found is not None:
            chosen.setdefault(found, set()).add(_one(config, [*launches]) or "")
    for path in paths:
        if path not in chosen:
            alone = _beside(path, launches, files)
            if alone is not None:
                chosen[path] = {alone}
    made = ((path, [launches.get(one) for one in own]) for path, own in chosen.items())
    agreed = ((path, _agreed(of)) for path, of in made)
    return tuple(sorted((path, launch) for path, launch in agreed if launch is not None))


def _agreed(launches: Sequence[Launch | None]) -> Launch | None:
    """What all launches of one script have in common; None when they use different versions."""
    first = launches[0]
    if first is None or any(one is None or one.version != first.version for one in launches):
        return None
    types = {one.state_dict_type for one in launches if one is not None}
    return first if len(types) == 1 else Launch(first.version)


def _launches(paths: Iterable[str], files: Files) -> Iterator[tuple[str, Launch]]:
    """The settings files that ask accelerate for FSDP."""
    for path in dict.fromkeys(map(os.path.abspath, paths)):
        try:
            source = Source.decode(files.read(path), path)
            asked = source.asked if isinstance(source, SettingsText) else None
        except (OSError, Unreadable):
            continue
        if asked is not None and asked.framework == "accelerate" and asked.version is not None:
            kept = asked.value("state_dict_type")
            named = {"1": "FULL_STATE_DICT", "3": "SHARDED_STATE_DICT"}
            default = "FULL_STATE_DICT" if asked.version == 1 else "SHARDED_STATE_DICT"
            kind = str(default if kept is None else kept).upper()
            yield path, Launch(asked.version, named.get(kind, kind))


def _beside(script: str, launches: dict[str, Launch], files: Files) -> str | None:
    """The settings in a script's folder, if no other settings of accelerate lie there and the script asks for them."""
    folder = os.path.dirname(script)
    here = [path for path in launches if os.path.dirname(path) == folder]
    if len(here) != 1:
        return None
    try:
        others = [os.path.join(folder, name) for name in os.listdir(folder)]
        raw = files.read(script)
    except OSError:
        return None
    if b"Accelerator(" not in raw and b"Trainer(" not in raw:
        return None
    rivals = (p for p in others if p.endswith(SETTINGS) and p not in here)
    return None if any(_OF_ACCELERATE in _read(p, files) for p in rivals) else here[0]


def _commands(texts: Iterable[str], files: Files) -> Iterator[tuple[str, str]]:
    """The settings file and the script of each launch that names both."""
    for path in texts:
        if not path.endswith(COMMANDS):
            continue
        text = _read(path, files).decode("utf-8", "replace")
        for command in _COMMAND.findall(text) if "launch" in text else ():
            config = _CONFIG.search(command)
            rest = command if config is None else command[config.end() :]
            script = _SCRIPT.search(rest)
            if config is not None and script is not None and not _OTHERWISE.search(command):
                yield config["file"], script[0]


def _one(named: str, paths: Sequence[str]) -> str | None:
    """The only path that a word of a command can mean."""
    tail = [part for part in named.replace("\\", "/").split("/") if part not in (".", "..", "")]
    while tail and "$" in tail[0]:
        tail.pop(0)
    if not tail or any("$" in part for part in tail):
        return None
    for length in range(len(tail), 0, -1):
        end = "/" + "/".join(tail[-length:])
        found = [path for path in paths if path.replace(os.sep, "/").endswith(end)]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _near(folders: Iterable[str], files: Files) -> Iterator[str]:
    """The files in some folders and in those above them, up to their project."""
    for folder in folders:
        top = project_of(folder) or folder
        current = folder
        while True:
            try:
                names = sorted(os.listdir(current))
            except OSError:
                break
            yield from (
                os.path.join(current, name) for name in names[:MAX_FILES] if name.endswith(COMMANDS)
            )
            if current == top or os.path.dirname(current) == current:
                break
            current = os.path.dirname(current)


def _below(folders: Iterable[str]) -> Iterator[str]:
    """The files below some folders that may hold commands."""
    count = 0
    for folder in folders:
        for current, inner, names in os.walk(folder):
            inner[:] = sorted(name for name in inner if name not in EXCLUDED or name == ".github")
            for name in sorted(names):
                if name.endswith(COMMANDS):
                    count += 1
                    if count > MAX_FILES:
                        return
                    yield os.path.join(current, name)


def _read(path: str, files: Files) -> bytes:
    try:
        if os.path.getsize(path) > MAX_CHARACTERS:
            return b""
        return files.read(path)
    except OSError:
        return b""
