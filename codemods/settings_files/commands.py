"""Commands that ask accelerate or the Trainer for FSDP by their options: in shell, Slurm and Make files.

Sources: accelerate/commands/launch.py and accelerate/utils/launch.py (1.15), transformers/training_args.py (5.23).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fsdp2lint.api import (
    DROPPED_SETTINGS,
    Program,
    Respelling,
    Source,
    asks_by_words,
    strategy_of,
    unread,
    words_of,
)

_SCRIPTS = re.compile(r"(\.(sh|bash|slurm|sbatch|job|mk)|(^|/)Makefile)\Z")
_COMMAND = re.compile(r"^(?![ \t]*#)[^\n]*?(?:\\\r?\n[^\n]*?)*$", re.MULTILINE)
_COMMENT = re.compile(r"[ \t]#")
_LAUNCHER = re.compile(r"\baccelerate[ \t-]launch\b")
_STARTS = re.compile(r"\b(?:accelerate[ \t-]launch|torchrun|python[\d.]*)\b")
_OPTION = re.compile(
    r"""(?:[ \t]|\\\r?\n)+--(?P<name>(?:use[_-])?fsdp(?:[_-]\w+)*)(?=[\s=]|\Z)"""
    r"""(?:(?:=|(?:[ \t]|\\\r?\n)+)(?!-)(?P<value>"[^"]*"|'[^']*'|[^\s\\;&|"']+))?"""
)
_FILES = re.compile(r"--(?:config[_-]file|fsdp[_-]config)\b")
_OF_THE_TRAINER = re.compile(
    r"--(?:per_device_train_batch_size|num_train_epochs|model_name_or_path)\b"
)
_RESHARDS = {"FULL_SHARD": "true", "SHARD_GRAD_OP": "false"}
_SINCE = "version 2 is fully_shard"


@dataclass(frozen=True)
class _Option:
    """An option of a command: the span with the blanks before it, and that of its value."""

    name: str
    value: str
    start: int
    end: int
    at: int
    """Where the option itself begins."""


def in_commands(program: Program) -> Iterator[Respelling]:
    """Commands that ask for FSDP1 by their options."""
    for text in program.texts:
        if not _SCRIPTS.search(text.path.replace("\\", "/")) or "--" not in text.text:
            continue
        for command in _COMMAND.finditer(text.text):
            said = _COMMENT.split(command[0], maxsplit=1)[0]
            if "fsdp" not in said or _FILES.search(said) or not _STARTS.search(said):
                continue
            options = {one.name: one for one in _options(said, command.start())}
            if "use_fsdp" in options and _LAUNCHER.search(said):
                yield from _of_accelerate(program, text, options)
            elif "fsdp" in options and "use_fsdp" not in options:
                yield from _of_the_trainer(program, text, said, options)


def _options(said: str, start: int) -> Iterator[_Option]:
    for found in _OPTION.finditer(said):
        name = found["name"].replace("-", "_")
        value = "" if name == "use_fsdp" else found["value"] or ""
        end = found.end("name") if name == "use_fsdp" else found.end()
        spans = (found.start(), end, found.start("name") - 2)
        yield _Option(name, value.strip("\"'"), *(start + one for one in spans))


def _of_accelerate(
    program: Program, text: Source, options: dict[str, _Option]
) -> Iterator[Respelling]:
    """``accelerate launch --use_fsdp``."""
    version, use = options.get("fsdp_version"), options["use_fsdp"]
    if version is not None and version.value != "1":
        return
    chosen, known = options.get("fsdp_sharding_strategy"), options.get("fsdp_reshard_after_forward")
    older = unread("accelerate", program.options.limits)
    strategy = "FULL_SHARD" if chosen is None else strategy_of(chosen.value) or ""
    left = older or _without_equal(strategy)
    if left is not None:
        yield _left(text, use if older or chosen is None else chosen, *left)
        return
    why = f"{_SINCE} (accelerate >= 1.6)"
    if version is not None:
        yield _changed(text, version, "--fsdp_version 2", why)
    new = " --fsdp_version 2" * (version is None)
    state = options.get("fsdp_state_dict_type")
    if state is None:
        new += " --fsdp_state_dict_type FULL_STATE_DICT"
        why += "; version 1 saves full state dicts by default, version 2 sharded ones"
    elif state.value.upper() in ("LOCAL_STATE_DICT", "2"):
        reason = "version 2 refuses LOCAL_STATE_DICT; in SHARDED_STATE_DICT too each rank writes its own part"
        yield _changed(text, state, f"--{state.name} SHARDED_STATE_DICT", reason)
    if new:
        yield _with_more(text, use, new, why)
    if chosen is not None and known is None:
        value = _RESHARDS[strategy]
        kept = "frees the parameters after the forward" if value == "true" else "keeps them"
        yield _changed(text, chosen, f"--fsdp_reshard_after_forward {value}", f"{strategy} {kept}")
    elif chosen is not None:
        yield _dropped(text, chosen, "`--fsdp_reshard_after_forward` says it")
    for name, option in options.items():
        reason = DROPPED_SETTINGS.get(name.removeprefix("fsdp_"), "")
        if reason:
            yield _dropped(text, option, reason)


def _without_equal(strategy: str) -> tuple[str, str] | None:
    """Why version 2 has no option for a strategy, and what to do."""
    if strategy in _RESHARDS:
        return None
    if strategy == "NO_SHARD":
        why = "NO_SHARD replicates the model, and version 2 always shards"
        return (
            why,
            "write `--multi_gpu` in place of `--use_fsdp` and its options: accelerate replicates with DDP",
        )
    if strategy.startswith("HYBRID"):
        resharded = "true" if strategy == "HYBRID_SHARD" else "false"
        todo = (
            f"write `--fsdp_version 2 --fsdp_reshard_after_forward {resharded} --use_parallelism_config` with "
            "`--parallelism_config_dp_replicate_size <machines>` and `--parallelism_config_dp_shard_size <GPUs of one>`"
        )
        return (
            "version 2 has hybrid sharding as a mesh, whose sizes this command does not say",
            todo,
        )
    todo = "write `--fsdp_version 2`, and `--fsdp_reshard_after_forward` for the strategy"
    return "a variable chooses the strategy", todo


def _of_the_trainer(
    program: Program, text: Source, said: str, options: dict[str, _Option]
) -> Iterator[Respelling]:
    """``--fsdp "full_shard auto_wrap"`` among the arguments of a script."""
    words = options["fsdp"]
    named = words_of(words.value)
    if not asks_by_words(words.value) or not ("auto_wrap" in named or _OF_THE_TRAINER.search(said)):
        return
    left = unread("transformers", program.options.limits)
    if left is None and any(word.startswith(("hybrid", "no_shard")) for word in named):
        why = "version 2 has no word for this strategy"
        left = why, "leave `--fsdp` out for DDP, or set the sizes of a mesh by `parallelism_config`"
    classes = options.get("fsdp_transformer_layer_cls_to_wrap")
    if left is None and classes is not None and "$" in classes.value:
        left = (
            "a variable names the classes to wrap",
            "write `--fsdp_config FILE` with `fsdp_version: 2`",
        )
    if left is not None:
        yield _left(text, words, *left)
        return
    config: dict[str, object] = {"fsdp_version": 2}
    if classes is not None:
        config["transformer_layer_cls_to_wrap"] = classes.value.split(",")
        reason = "transformers >= 5.0 reads it in the fsdp_config"
        yield replace(_dropped(text, classes, reason), fate="changed")
    new = f" --fsdp_config '{json.dumps(config)}'"
    why = "version 2 of the fsdp_config is fully_shard (transformers >= 5.0)"
    yield _with_more(text, words, new, why)


def _with_more(text: Source, option: _Option, new: str, why: str) -> Respelling:
    return _changed(text, option, text.text[option.at : option.end] + new, why)


def _changed(text: Source, option: _Option, new: str, why: str) -> Respelling:
    return Respelling(text, option.at, option.end, new, f"--{option.name}", why)


def _dropped(text: Source, option: _Option, why: str) -> Respelling:
    return Respelling(text, option.start, option.end, "", f"--{option.name}", why, fate="dropped")


def _left(text: Source, option: _Option, why: str, todo: str) -> Respelling:
    return Respelling(text, option.at, option.end, "", f"--{option.name}", why, todo)
