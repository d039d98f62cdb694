"""The framework does not know a key of the FSDP settings.

## What it does

Reports keys of `fsdp_config` that accelerate, the Trainer, ms-swift or axolotl do not read, with the known key that is closest. In
accelerate's file, also unknown keys of its `parallelism_config` and at its top.

## Why is this bad

The frameworks ignore such a key without a word: with a misspelt `fsdp_transformer_layer_cls_to_wrap`, other modules are
wrapped than the file says. An unknown key at the top of its file is the one that accelerate refuses, at the launch.

## Example

```diff
 distributed_type: FSDP
 fsdp_config:
   fsdp_version: 2
-  fsdp_transformer_cls_names_to_wrap: Qwen3DecoderLayer
+  fsdp_transformer_layer_cls_to_wrap: Qwen3DecoderLayer
```

## Forms

- Found: sizes without their prefix.
- Found: a file of the Trainer.
- Not found: a dictionary in a script.

## Fix safety

Unsafe: the key is renamed to the closest one, which then has an effect that it had not before.

## Known limits

accelerate read `fsdp_backward_prefetch_policy` before 1.0: it is not reported where the project's dependencies keep accelerate below. The keys are those of accelerate 1.15, transformers 5.23, ms-swift 4.6 and axolotl 0.13; a newer release may know more. Keys that begin
with an underscore are taken for comments. A key at the top that is like none of accelerate's is reported only where the file has a
`compute_environment`, as those of `accelerate config` do: other files may be read by the script alone.

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/launch.py
- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/commands/config/config_args.py (`from_yaml_file`)
- https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/training_args.py
- https://github.com/modelscope/ms-swift/blob/main/swift/trainers/arguments.py
- https://docs.axolotl.ai/docs/multi-gpu.html#sec-fsdp
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from fsdp2lint.api import (
    ACCELERATE_KEYS,
    PARALLELISM_KEYS,
    PREFIX,
    SETTINGS_KEYS,
    Asked,
    Entry,
    Finding,
    Fix,
    SettingsMapping,
    Splice,
    Trace,
    bare_key,
    rule,
)

from ._common.settings import found

_OF_OLD_RELEASES = ("ipex_config",)
"""What was at the top of accelerate's file before 1.15."""


@rule(code="FSDP602", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Keys that are in no list."""
    asked = trace.settings
    if asked is None:
        return
    yield from _of_fsdp(trace, asked)
    if asked.framework == "accelerate" and asked.top.get("ec2_instance_type") is None:
        yield from _at_the_top(trace, asked)
        sizes = asked.top.value("parallelism_config")
        if isinstance(sizes, SettingsMapping):
            yield from _of_parallelism(trace, sizes)


def _of_fsdp(trace: Trace, asked: Asked) -> Iterator[Finding]:
    """Keys of the section of FSDP."""
    known = SETTINGS_KEYS.get(asked.framework, ())
    for entry in (asked.section or ()) if known else ():
        bare = bare_key(entry.name)
        if bare in known or entry.name.startswith(("_", "<<")):
            continue
        message = f"{asked.framework} does not know `{entry.name}` and ignores it"
        if asked.framework == "accelerate" and bare == "backward_prefetch_policy":
            limit = dict(trace.limits).get("accelerate")
            if limit is not None and limit.lacks((1, 0, 0)):
                continue
            message = f"accelerate >= 1.0 does not know `{entry.name}` any more and ignores it"
        close = [one for one in _close(bare, known) if asked.option(one) is None]
        prefix = PREFIX if entry.name.startswith(PREFIX) else ""
        yield _finding(trace, entry, message, [prefix + one for one in close])


def _at_the_top(trace: Trace, asked: Asked) -> Iterator[Finding]:
    """Keys of accelerate's whole file: it refuses those that it does not know."""
    for entry in asked.top:
        if entry.name in (*ACCELERATE_KEYS, *_OF_OLD_RELEASES) or entry.name.startswith("<<"):
            continue
        close = _close(entry.name, ACCELERATE_KEYS)
        if close or asked.top.get("compute_environment") is not None:
            message = f"accelerate does not know `{entry.name}` and refuses the file at the launch"
            yield _finding(trace, entry, message, [c for c in close if asked.top.get(c) is None])


def _of_parallelism(trace: Trace, sizes: SettingsMapping) -> Iterator[Finding]:
    """Keys of the section of sizes: the launcher reads them by their whole names."""
    for entry in sizes:
        if entry.name in PARALLELISM_KEYS or entry.name.startswith(("_", "<<")):
            continue
        whole = f"parallelism_config_{entry.name}"
        close = [whole] if whole in PARALLELISM_KEYS else _close(entry.name, PARALLELISM_KEYS)
        message = f"accelerate does not know `{entry.name}` and ignores it"
        yield _finding(trace, entry, message, [one for one in close if sizes.get(one) is None])


def _close(name: str, known: Sequence[str]) -> list[str]:
    return get_close_matches(name, known, n=1, cutoff=0.7)


def _finding(trace: Trace, entry: Entry, message: str, close: Sequence[str]) -> Finding:
    """That a key is not known, with the one that was meant, if any."""
    if not close:
        return found(trace, entry, message)
    right, quote = close[0], entry.key.quoted
    edit = Splice(trace.source, entry.key.start + quote, entry.key.end - quote, right)
    fix = Fix(f"rename it to `{right}`", (edit,), "unsafe", "the setting takes effect then")
    return found(trace, entry, f"{message}; did you mean `{right}`?", fix)
