"""Commands that ask accelerate or the Trainer for FSDP by their options: in shell, Slurm and Make files.

Sources: accelerate/commands/launch.py and accelerate/utils/launch.py (1.15), transformers/training_args.py (5.23).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

from fsdp2lint.api import (
    DROPPED_SETTINGS,
    LIGHTNING_BY_HAND,
    LIGHTNING_NEEDS_CODE,
    REMOVED_OPTION,
    AskingCommand,
    CommandOption,
    Program,
    Respelling,
    Source,
    asking_commands,
    strategy_of,
    unread,
    words_of,
)

_SCRIPTS = re.compile(r"(\.(sh|bash|slurm|sbatch|job|mk)|(^|/)Makefile)\Z")
_RESHARDS = {"FULL_SHARD": "true", "SHARD_GRAD_OP": "false"}
_SINCE = "version 2 is fully_shard"


def in_commands(program: Program) -> Iterator[Respelling]:
    """Commands that ask for FSDP1 by their options."""
    for text in program.texts:
        if not _SCRIPTS.search(text.path.replace("\\", "/")) or "--" not in text.text:
            continue
        for command in asking_commands(text.text):
            if command.framework == "accelerate":
                yield from _of_accelerate(program, text, command)
            elif command.framework == "the Trainer":
                yield from _of_the_trainer(program, text, command)
            else:
                yield _left(text, command.asking, LIGHTNING_NEEDS_CODE, LIGHTNING_BY_HAND)


def _of_accelerate(program: Program, text: Source, command: AskingCommand) -> Iterator[Respelling]:
    """``accelerate launch --use_fsdp``."""
    options, use = command.options, command.asking
    version = options.get("fsdp_version")
    if command.version != 1:
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


def _of_the_trainer(program: Program, text: Source, command: AskingCommand) -> Iterator[Respelling]:
    """``--fsdp "full_shard auto_wrap"`` among the arguments of a script."""
    words = command.asking
    named = words_of(words.value)
    left = unread("transformers", program.options.limits)
    if left is None and any(word.startswith(("hybrid", "no_shard")) for word in named):
        why = "version 2 has no word for this strategy"
        left = why, "leave `--fsdp` out for DDP, or set the sizes of a mesh by `parallelism_config`"
    classes = command.options.get(REMOVED_OPTION)
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


def _with_more(text: Source, option: CommandOption, new: str, why: str) -> Respelling:
    return _changed(text, option, text.text[option.start : option.end] + new, why)


def _changed(text: Source, option: CommandOption, new: str, why: str) -> Respelling:
    return Respelling(text, option.start, option.end, new, f"--{option.name}", why)


def _dropped(text: Source, option: CommandOption, why: str) -> Respelling:
    return Respelling(text, option.before, option.end, "", f"--{option.name}", why, fate="dropped")


def _left(text: Source, option: CommandOption, why: str, todo: str) -> Respelling:
    return Respelling(text, option.start, option.end, "", f"--{option.name}", why, todo)
