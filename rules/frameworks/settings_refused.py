"""The settings hold a value that the framework refuses at the start.

## What it does

Reports, for accelerate: a strategy of FSDP1 in `fsdp_reshard_after_forward` and LOCAL_STATE_DICT, both with version 2; unknown
names of a wrap policy or a state-dict type; `fsdp_sync_module_states: false` without
`fsdp_cpu_ram_efficient_loading: false`; `fsdp_activation_checkpointing_offload` without activation checkpointing or with version 1; wrap classes as a
YAML list or with blanks behind their commas. For the Trainer
and ms-swift, with version 2: hybrid strategies and `no_shard`, unknown names of a wrap policy or a state-dict type, and LOCAL_STATE_DICT. For
LightningCLI: a `precision` that `ModelParallelStrategy` does not have.

## Why is this bad

The launch or the Accelerator raises before the first step, on every rank, after the job has waited for its
machines.

## Example

```diff
 distributed_type: FSDP
 fsdp_config:
   fsdp_version: 2
-  fsdp_reshard_after_forward: FULL_SHARD
+  fsdp_reshard_after_forward: true
```

## Forms

- Found: classes as a YAML list.
- Found: a hybrid strategy of the Trainer.
- Not found: a precision that accelerate's launcher does not know.
- Not found: words where a number is read.

## Fix safety

Unsafe: a strategy becomes what it means in version 2, and a type the one that is closest.

## Known limits

What the command line gives in place of the file is not seen.

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/dataclasses.py
- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/launch.py
- https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/training_args.py
- https://github.com/Lightning-AI/pytorch-lightning/blob/2.6.6/src/lightning/pytorch/trainer/connectors/accelerator_connector.py (`_validate_precision_choice`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Asked,
    Entry,
    Finding,
    Fix,
    SettingsMapping,
    Trace,
    plain,
    rule,
    strategy_of,
    words_of,
)

from ._common.settings import found, said, written

_POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
_TYPES = ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT")
_PRECISIONS = ("16", "16-mixed", "64", "64-true")
"""Words and numbers for precisions that Lightning has, and its FSDP2 has not."""
_FSDP1 = ("hybrid_shard", "hybrid_shard_zero2", "no_shard")

Refused = tuple[Entry, str, Fix | None]


@rule(code="FSDP605", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Values that raise."""
    asked = trace.settings
    if asked is None:
        return
    if asked.framework == "accelerate":
        for entry, why, fix in _of_accelerate(trace, asked):
            yield found(trace, entry, f"{said(trace, entry)} {why}", fix=fix)
    elif asked.framework in ("the Trainer", "ms-swift") and asked.version == 2:
        for entry, why in _of_the_trainer(asked):
            yield found(trace, entry, f"{asked.framework} {why}")
    elif asked.framework == "Lightning" and asked.version == 2:
        trainer = asked.top.value("trainer")
        precision = trainer.get("precision") if isinstance(trainer, SettingsMapping) else None
        if precision is not None and str(plain(precision.value)) in _PRECISIONS:
            why = "raises a ValueError: `ModelParallelStrategy` does not support it"
            yield found(trace, precision, f"{said(trace, precision)} {why}")


def _of_the_trainer(asked: Asked) -> Iterator[tuple[Entry, str]]:
    """What TrainingArguments, or the plugin that they build, refuse in version 2."""
    if asked.words is not None:
        named = [word for word in words_of(plain(asked.words.value)) if word in _FSDP1]
        if named:
            yield asked.words, f"raises a ValueError: `{named[0]}` is a strategy of FSDP1 alone"
    policy, state = asked.option("auto_wrap_policy"), asked.option("state_dict_type")
    if policy is not None and isinstance(plain(policy.value), str):
        if plain(policy.value) not in _POLICIES:
            yield policy, f"raises a ValueError: the policies are {', '.join(_POLICIES)}"
    if state is not None and (why := _refused_type(state, asked.version)):
        yield state, why


def _refused_type(entry: Entry, version: int | None) -> str:
    """Why the plugin raises for a type of state dicts; empty when it does not."""
    value = plain(entry.value)
    name = "" if value is None else str(value).upper()
    if name and not name.isdigit() and name not in _TYPES:
        return f"raises a KeyError: the types are {', '.join(_TYPES)}"
    if name == "LOCAL_STATE_DICT" and version == 2:
        return "raises a ValueError: version 2 has no local state dicts"
    return ""


def _of_accelerate(trace: Trace, asked: Asked) -> Iterator[Refused]:
    """What the launcher or the plugin of accelerate refuses."""
    reshard, state = asked.option("reshard_after_forward"), asked.option("state_dict_type")
    policy, sync = asked.option("auto_wrap_policy"), asked.option("sync_module_states")
    if reshard is not None and asked.version == 2:
        strategy = strategy_of(plain(reshard.value))
        if strategy is not None and str(plain(reshard.value)) not in ("0", "1"):
            new = "true" if strategy in ("FULL_SHARD", "HYBRID_SHARD") else "false"
            fix = written(
                trace, reshard, new, f"write `{new}`", "look at the strategy that was meant"
            )
            yield reshard, "raises a ValueError: version 2 wants true or false", fix
    if state is not None and (why := _refused_type(state, asked.version)):
        right, note = "SHARDED_STATE_DICT", "look at who reads it"
        local = why.startswith("raises a ValueError")
        yield state, why, written(trace, state, right, f"write `{right}`", note) if local else None
    if policy is not None and isinstance(plain(policy.value), str):
        if plain(policy.value).upper() not in _POLICIES:
            yield policy, f"raises a ValueError: the policies are {', '.join(_POLICIES)}", None
    loading = asked.value("cpu_ram_efficient_loading")
    if sync is not None and plain(sync.value) is False and loading in (None, True):
        if asked.option("cpu_ram_efficient_loading") is None or loading is True:
            why = "raises a ValueError at the launch: `fsdp_cpu_ram_efficient_loading`, which is true "
            why += "unless it is set to false, needs it to be true"
            yield sync, why, None
    wrapped = asked.option("transformer_layer_cls_to_wrap")
    if wrapped is not None and str(asked.value("auto_wrap_policy")).upper() == _POLICIES[0]:
        yield from _wrap_classes(trace, wrapped)
    offload = asked.option("activation_checkpointing_offload")
    if offload is not None and plain(offload.value) is True:
        if asked.value("activation_checkpointing") is not True:
            yield offload, "raises a ValueError without `fsdp_activation_checkpointing: true`", None
        elif asked.version == 1:
            yield offload, "raises a ValueError without `fsdp_version: 2`", None


def _wrap_classes(trace: Trace, entry: Entry) -> Iterator[Refused]:
    """Names that accelerate does not find: it cuts the text of the value at each comma, and keeps blanks and brackets."""
    value = plain(entry.value)
    names = [str(one) for one in value] if isinstance(value, list) else str(value).split(",")
    if isinstance(value, list):
        why = "raises a ValueError: accelerate reads the list as text, and finds no class of such a name"
    elif any(name != name.strip() for name in names if name.strip()):
        why = "raises a ValueError: accelerate keeps the blanks as parts of the names"
    else:
        return
    text = ",".join(name.strip() for name in names if name.strip())
    if all(name.strip().isidentifier() for name in names):
        note = "the same classes, found by their names"
        yield entry, why, written(trace, entry, text, f"write `{text}`", note)
    else:
        yield entry, why, None
