"""The settings of FSDP in version 2: which spans of a settings file change, and what becomes of each key.

What version 2 has no spelling for is left: then nothing of the file changes, for half of it would be another
strategy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from fsdp2lint.frameworks.asked import PREFIX, Asked, asked, bare
from fsdp2lint.frameworks.document import (
    Entry,
    Listing,
    Mapping,
    NotSettings,
    Scalar,
    end_of,
    plain,
    read,
)
from fsdp2lint.source.source import Source
from fsdp2lint.system.files import SETTINGS

Fate = Literal["changed", "dropped", "preserved", "manual"]


class Change(NamedTuple):
    """Another text between two offsets: what it is about, what becomes of it and why, and what is left to do."""

    start: int
    end: int
    text: str
    what: str
    fate: Fate
    why: str
    todo: str = ""


DROPPED = {
    "backward_prefetch": "version 2 prefetches the next all-gather in the backward by itself",
    "backward_prefetch_policy": "version 2 prefetches the next all-gather in the backward by itself",
    "forward_prefetch": "version 2 of accelerate has no such setting; without it the order is the default one",
    "limit_all_gathers": "version 2 needs no limit: it frees memory without waiting for the CPU",
    "sync_module_states": (
        "version 2 has no such setting: with `cpu_ram_efficient_loading` rank 0's weights are sent to all ranks, "
        "without it each rank shards its own"
    ),
    "use_orig_params": "version 2 always keeps the original parameters",
}
"""Keys that version 2 ignores or refuses, and why nothing is lost without them."""

PACKAGES = {"accelerate": "accelerate", "the Trainer": "transformers"}
"""Who reads the version, by the framework whose settings say it."""
FIRST_RELEASES = {
    "accelerate": (1, 6, 0),
    "transformers": (5, 0, 0),
    **dict.fromkeys(("lightning", "pytorch-lightning"), (2, 3, 0)),
}
"""The first releases that read it (accelerate/utils/launch.py, transformers/training_args.py), or have Lightning's
``ModelParallelStrategy`` (https://github.com/Lightning-AI/pytorch-lightning/releases/tag/2.3.0).
"""

BUFFERS_KEPT = "with mixed precision version 1 casts buffers too, version 2 leaves them in float32"

_RESHARD = {"FULL_SHARD": "true", "HYBRID_SHARD": "true"}
"""What ``reshard_after_forward`` is for a strategy; false for the others that shard."""

_NO_SHARD = "NO_SHARD replicates the model, and version 2 always shards"
_HYBRID = "version 2 has HYBRID_SHARD as a mesh, whose sizes this file does not say"
_TODO = {
    ("accelerate", "none"): (
        "set `distributed_type: MULTI_GPU` and remove `fsdp_config`: without FSDP, accelerate replicates with DDP"
    ),
    ("accelerate", "hybrid"): (
        "set `fsdp_version: 2`, `fsdp_reshard_after_forward: true` and, at the top level, `parallelism_config` with "
        "`parallelism_config_dp_replicate_size: <machines>` and `parallelism_config_dp_shard_size: <GPUs of one>`"
    ),
    (
        "the Trainer",
        "none",
    ): "remove `fsdp` and `fsdp_config`: without them the Trainer replicates with DDP",
    ("the Trainer", "hybrid"): (
        "pass `parallelism_config=ParallelismConfig(dp_replicate_size=<machines>, dp_shard_size=<GPUs of one>)` to "
        "TrainingArguments, with `fsdp: full_shard` and `fsdp_version: 2`"
    ),
    ("ms-swift", "none"): "leave `--fsdp` out: without it ms-swift replicates with DDP",
    ("ms-swift", "hybrid"): (
        "launch with accelerate, whose file has `parallelism_config` with the sizes: ms-swift has no setting for them"
    ),
    (
        "axolotl",
        "none",
    ): "remove `fsdp` and `fsdp_config`: without them axolotl replicates with DDP",
    ("axolotl", "hybrid"): (
        "set `fsdp_version: 2`, `reshard_after_forward: true`, `dp_shard_size: <GPUs of one machine>` and "
        "`dp_replicate_size: <machines>`"
    ),
}

LIGHTNING_NEEDS_CODE = "FSDPStrategy is FSDP1, and FSDP2 needs code of the LightningModule"
LIGHTNING_BY_HAND = (
    "use `class_path: lightning.pytorch.strategies.ModelParallelStrategy` with `data_parallel_size: <GPUs>` and "
    "`tensor_parallel_size: 1` in its `init_args`, and a `configure_model` in the LightningModule that calls fully_shard on "
    "the blocks and on the model"
)


def settings_changes(source: Source) -> list[Change]:
    """What becomes of a file that may hold settings; nothing where it asks for no FSDP, or for version 2."""
    found = settings_of(source)
    if found is None:
        return []
    made = changes(found, source.text, json=source.path.endswith(".json"))
    if not made or any(one.fate == "manual" for one in made) or _asks_for_2(source, made):
        return made
    why = "the keys of version 2 do not fit into the lines of this file"
    return [settings_left(found, why, "set `fsdp_version: 2` and the other keys of version 2")]


def spelled(release: tuple[int, ...]) -> str:
    """``1.6`` for the first release of a minor version."""
    return ".".join(map(str, release[:2]))


def settings_left(asked: Asked, why: str, todo: str) -> Change:
    """That the settings stay as they are: why, and what is to do."""
    return _left(asked.holder or asked.words or asked.top.entries[0], why, todo)


def _asks_for_2(source: Source, made: Sequence[Change]) -> bool:
    """Whether the file asks for version 2 once the changes are made."""
    text = source.text
    for one in reversed(made):
        text = text[: one.start] + one.text + text[one.end :]
    after = settings_of(Source(source.path, text))
    return after is not None and after.version == 2


def settings_of(source: Source) -> Asked | None:
    """How a file asks a framework for FSDP; None when it does not, or is no settings file."""
    if not source.path.endswith(SETTINGS):
        return None
    try:
        return asked(read(source))
    except NotSettings:
        return None


def changes(asked: Asked, text: str, *, json: bool) -> list[Change]:
    """What becomes of a file that asks for FSDP; nothing when it asks for version 2."""
    if asked.version == 2:
        return []
    if asked.framework == "Lightning":
        return [settings_left(asked, LIGHTNING_NEEDS_CODE, LIGHTNING_BY_HAND)]
    obstacle = _obstacle(asked)
    if obstacle is not None:
        return [obstacle]
    return sorted(Rewriting(asked, text, json).changes(), key=lambda c: (c.start, c.end))


def _left(entry: Entry, why: str, todo: str) -> Change:
    return Change(entry.key.start, end_of(entry.value), "", entry.name, "manual", why, todo)


def _obstacle(asked: Asked) -> Change | None:
    """What version 2 has no spelling for, or what is not safe to edit."""
    if asked.said is not None and asked.version is None:
        return _left(asked.said, "the version is neither 1 nor 2", "set it to 2")
    section = asked.section
    given = None if asked.holder is None else plain(asked.holder.value)
    if asked.holder is not None and isinstance(given, list):
        return _left(asked.holder, "`fsdp_config` is a list", "write a mapping of keys to values")
    if section is not None and asked.holder is not None and (section.merged or section.shared):
        why = "the settings come from a YAML anchor that other places use"
        return _left(asked.holder, why, "write the settings of version 2 here")
    double = written_twice(section) or written_twice(
        [e for e in asked.top if bare(e.name) in ("version", "config") or e.name == "fsdp"]
    )
    if double is not None:
        return _left(double, "the key is written twice", "keep one of the two")
    for entry, strategy in asked.strategies:
        if strategy == "NO_SHARD":
            return _left(entry, _NO_SHARD, _TODO[asked.framework, "none"])
        if strategy.startswith("HYBRID") and sizes(asked) is None:
            return _left(entry, _HYBRID, _TODO[asked.framework, "hybrid"])
    return None


def written_twice(section: Iterable[Entry] | None) -> Entry | None:
    """The second entry of a key, with or without its prefix."""
    seen: set[str] = set()
    for entry in section or ():
        if bare(entry.name) in seen:
            return entry
        seen.add(bare(entry.name))
    return None


def sizes(asked: Asked) -> tuple[int, int] | None:
    """Over how many ranks the file replicates and shards a hybrid model: its machines, and the processes of one."""
    if asked.framework != "accelerate" or asked.top.get("parallelism_config") is not None:
        return None
    machines, processes = asked.top.value("num_machines"), asked.top.value("num_processes")
    if machines is None:
        machines = 1
    if not isinstance(machines, int) or machines < 1 or isinstance(machines, bool):
        return None
    if machines == 1:
        return 1, processes if isinstance(processes, int) else 0
    if not isinstance(processes, int) or processes % machines or processes <= machines:
        return None
    return machines, processes // machines


_COMMENT = re.compile(r"(?<=[ \t])#[^\r\n]*(?:\r\n|\n|\r)")


def without_key(text: str, section: Mapping, entry: Entry) -> tuple[int, int, str]:
    """The span that an entry takes, alone, and what stays of it: a comment."""
    return (_in_braces if section.flow else _in_lines)(text, section, entry, [entry])


def _line_start(text: str, at: int) -> int:
    """Where the line begins that holds a place, whatever its file ends lines with."""
    return max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1


def _line_end(text: str, at: int) -> int:
    """The last character of the line end behind a place; -1 where the text ends without one."""
    found = re.compile(r"\r\n|\n|\r").search(text, at)
    return found.end() - 1 if found else -1


def _in_lines(
    text: str, section: Mapping, entry: Entry, dropped: list[Entry]
) -> tuple[int, int, str]:
    """The lines of an entry; comments behind it and behind the items of a list stay, on lines of their own."""
    start = _line_start(text, entry.key.start)
    stop = end_of(entry.value)
    end = _line_end(text, stop)
    end = len(text) if end < 0 else end + 1
    indent = text[start : entry.key.start]
    kept = _COMMENT.findall(text, start, stop) if isinstance(entry.value, Listing) else []
    behind = text[stop:end]
    if "#" in behind:
        kept.append(behind[behind.index("#") :])
    return start, end, "".join(indent + one for one in kept)


def _in_braces(
    text: str, section: Mapping, entry: Entry, dropped: list[Entry]
) -> tuple[int, int, str]:
    """An entry with the comma behind it, or with the one before when nothing comes behind that stays."""
    index = section.entries.index(entry)
    later = [e for e in section.entries[index + 1 :] if e not in dropped]
    if later:
        return entry.key.start, section.entries[index + 1].key.start, ""
    before = section.entries[index - 1] if index else None
    start = entry.key.start if before is None else end_of(before.value)
    return start, end_of(entry.value), ""


class Rewriting:
    """The changes of one file."""

    def __init__(self, asked: Asked, text: str, json: bool) -> None:
        self.asked = asked
        self.text = text
        self.json = json
        self.newline = next((end for end in ("\r\n", "\n", "\r") if end in text), "\n")
        keys = [entry.name for entry in asked.section or ()]
        self.prefixed = not keys or any(key.startswith(PREFIX) for key in keys)

    def changes(self) -> Iterator[Change]:
        asked = self.asked
        if asked.holder is not None and isinstance(plain(asked.holder.value), str):
            return  # it names a file, which says the version
        new: list[tuple[str, str, str]] = []
        if asked.said is not None:
            yield self._set(asked.said, "2", self._version())
        elif asked.framework == "axolotl":
            yield from self._at_the_top("fsdp_version", "2", self._version())
        else:
            name = "fsdp_version" if self.prefixed else "version"
            new.append((name, "2", self._version()))
        yield from self._strategy()
        dropped = self._dropped()
        state = asked.option("state_dict_type")
        if state is None and asked.framework in ("accelerate", "axolotl"):
            name = PREFIX * self.prefixed + "state_dict_type"
            why = "version 1 saves full state dicts by default, version 2 sharded ones"
            new.append((name, "FULL_STATE_DICT", why))
        elif state is not None and str(plain(state.value)).upper() in ("LOCAL_STATE_DICT", "2"):
            why = "version 2 refuses LOCAL_STATE_DICT; in SHARDED_STATE_DICT too each rank writes its own part"
            yield self._set(state, "SHARDED_STATE_DICT", why)
        yield from self._without(dropped, bool(new))
        yield from self._with(new, dropped)

    def _version(self) -> str:
        """Why the version is written, and who reads it."""
        package = PACKAGES.get(self.asked.framework)
        since = f" ({package} >= {spelled(FIRST_RELEASES[package])})" if package else ""
        top = self.asked.top
        mixed = str(top.value("mixed_precision")).lower() in ("bf16", "fp16")
        mixed = mixed or any(top.value(name) is True for name in ("bf16", "fp16"))
        return f"version 2 is fully_shard{since}" + f"; {BUFFERS_KEPT}" * mixed

    # -- single keys ---------------------------------------------------------------------------------

    def _set(self, entry: Entry, value: str, why: str) -> Change:
        node = entry.value
        assert isinstance(node, Scalar)
        said = self._word(value, quoted=node.quoted and value not in ("true", "false"))
        return Change(node.start, node.end, said, entry.name, "changed", why)

    def _word(self, value: str, *, quoted: bool = False) -> str:
        bare_json = value in ("true", "false") or value.isdigit()
        return f'"{value}"' if quoted or (self.json and not bare_json) else value

    def _key(self, name: str) -> str:
        return f'"{name}"' if self.json else name

    def _strategy(self) -> Iterator[Change]:
        asked = self.asked
        named = asked.option("sharding_strategy")
        known = asked.option("reshard_after_forward")
        for entry, strategy in asked.strategies:
            if entry is asked.words:
                yield from self._of_words(entry, strategy)
                continue
            value = _RESHARD.get(strategy, "false")
            why = _kept(strategy)
            if entry is known or known is None:
                assert isinstance(entry.value, Scalar)
                if entry is named:
                    key = entry.key
                    new = entry.name.replace("sharding_strategy", "reshard_after_forward")
                    said = f"{self._quotes(key)}{new}{self._quotes(key)}"
                    gap = self.text[key.end : entry.value.start]
                    yield Change(
                        key.start,
                        entry.value.end,
                        f"{said}{gap}{value}",
                        entry.name,
                        "changed",
                        why,
                    )
                else:
                    yield self._set(entry, value, why)
            if strategy.startswith("HYBRID"):
                yield from self._mesh()

    def _quotes(self, node: Scalar) -> str:
        return self.text[node.start] if node.quoted else ""

    def _of_words(self, entry: Entry, strategy: str) -> Iterator[Change]:
        """``fsdp: full_shard``: the Trainer reads it in version 2 too, and sets ``reshard_after_forward`` by it."""
        why = f"in version 2 the Trainer takes {strategy.lower()} as `reshard_after_forward: "
        why += "true`" if strategy == "FULL_SHARD" else "false`"
        at = entry.key.start
        yield Change(at, at, "", entry.name, "preserved", why)

    def _mesh(self) -> Iterator[Change]:
        """The mesh of a hybrid strategy: machines times the processes of one."""
        replicas, shards = sizes(self.asked) or (1, 0)
        if replicas == 1:
            return
        why = f"HYBRID_SHARD on {replicas} machines: shards on each, replicates between them (accelerate >= 1.10)"
        if self.json:
            inner = f'{{"parallelism_config_dp_replicate_size": {replicas}, "parallelism_config_dp_shard_size": {shards}}}'
        else:
            line = f"{self.newline}{self._margin(self._lead())}  "
            inner = (
                f"{line}parallelism_config_dp_replicate_size: {replicas}"
                f"{line}parallelism_config_dp_shard_size: {shards}"
            )
        yield from self._at_the_top("parallelism_config", inner, why)

    # -- lines -----------------------------------------------------------------------------------------

    def _dropped(self) -> list[Entry]:
        section = self.asked.section
        found = [e for e in section or () if bare(e.name) in DROPPED]
        if self.asked.option("reshard_after_forward") is not None:
            named = self.asked.option("sharding_strategy")
            found += [named] if named is not None else []
        if self.asked.framework == "axolotl" and "galore" in str(self.asked.top.value("optimizer")):
            found = [
                e for e in found if bare(e.name) != "use_orig_params"
            ]  # its validation wants it
        return sorted(found, key=lambda e: e.key.start)

    def _without(self, dropped: list[Entry], replaced: bool) -> Iterator[Change]:
        section = self.asked.section
        for entry in dropped:
            assert section is not None
            span = _in_braces if section.flow else _in_lines
            start, end, rest = span(self.text, section, entry, dropped)
            why = DROPPED.get(bare(entry.name), "`reshard_after_forward` says it")
            if bare(entry.name) == "sync_module_states" and plain(entry.value) is False:
                why = "version 2 has no such setting, and does not send rank 0's weights either"
            yield Change(start, end, rest, entry.name, "dropped", why)

    def _with(self, new: list[tuple[str, str, str]], dropped: list[Entry]) -> Iterator[Change]:
        """New keys at the end of the section, which is made where there is none."""
        section = self.asked.section
        if not new:
            return
        if section is None or not section.entries:
            yield from self._new_section(new)
            return
        if section.flow:
            yield from self._into_braces(section, new, dropped)
            return
        last = end_of(section.entries[-1].value)
        first = section.entries[0].key.start
        indent = self.text[_line_start(self.text, first) : first]
        end = _line_end(self.text, last)
        at = len(self.text) if end < 0 else end + 1
        for name, value, why in new:
            line = f"{indent}{name}: {value}"
            said = self.newline + line if end < 0 else line + self.newline
            yield Change(at, at, said, name, "changed", why)

    def _into_braces(
        self, section: Mapping, new: list[tuple[str, str, str]], dropped: list[Entry]
    ) -> Iterator[Change]:
        kept = [e for e in section.entries if e not in dropped]
        entries = section.entries
        gap = ", "
        if len(entries) > 1:
            between = self.text[end_of(entries[0].value) : entries[1].key.start]
            gap = between if between.strip() == "," else gap
        at = end_of((kept or entries)[-1].value)
        for number, (name, value, why) in enumerate(new):
            lead = gap if kept or number else ""
            said = f"{lead}{self._key(name)}: {self._word(value)}"
            yield Change(at, at, said, name, "changed", why)

    def _new_section(self, new: list[tuple[str, str, str]]) -> Iterator[Change]:
        holder = self.asked.holder
        lines = [f"{self._key(name)}: {self._word(value)}" for name, value, _ in new]
        why = new[0][2]
        if self.json:
            inner = "{" + ", ".join(lines) + "}"
        else:
            margin = self._margin(holder or self._lead())
            inner = "".join(f"{self.newline}{margin}  {line}" for line in lines)
        if holder is None:
            yield from self._at_the_top("fsdp_config", inner, why)
            return
        node = holder.value
        start = node.start
        if not self.json and isinstance(node, Mapping):  # {}
            inner = "{" + ", ".join(lines) + "}"
        elif not self.json and node.start == node.end:  # nothing behind the colon
            start = self.text.index(":", holder.key.end) + 1
        yield Change(start, max(node.end, start), inner, "fsdp_config", "changed", why)

    def _at_the_top(self, name: str, inner: str, why: str) -> Iterator[Change]:
        """A new key of the whole file, below the one by which it asks for FSDP."""
        lead = self._lead()
        gap = "" if inner.startswith(("\n", "\r")) else " "
        start = lead.key.start
        if self.json or self.asked.top.flow:
            said = f"{self._key(name)}: {inner}, "
            at = start
        else:
            at = _line_start(self.text, start)
            said = f"{self._margin(lead)}{name}:{gap}{inner}{self.newline}"
        yield Change(at, at, said, name, "changed", why)

    def _lead(self) -> Entry:
        """The key by which the file asks for FSDP."""
        top = self.asked.top
        first = self.asked.holder or self.asked.words or top.get("distributed_type")
        return first or top.entries[0]

    def _margin(self, entry: Entry) -> str:
        """What is before a key on its line."""
        return self.text[_line_start(self.text, entry.key.start) : entry.key.start]


def _kept(strategy: str) -> str:
    """Why another spelling means the same."""
    if strategy == "FULL_SHARD":
        return "FULL_SHARD frees the parameters after the forward"
    if strategy == "SHARD_GRAD_OP":
        return "SHARD_GRAD_OP keeps the parameters until the backward"
    done = "frees the parameters after the forward" if strategy in _RESHARD else "keeps them"
    return f"{strategy} {done}; the mesh says over which ranks it shards"
