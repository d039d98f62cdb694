"""The framework does not know a key of the FSDP settings.

## What it does

Reports keys of `fsdp_config` that accelerate, the Trainer, ms-swift or axolotl do not read, with the known key that is closest.

## Why is this bad

The frameworks ignore such a key without a word: with a misspelt `fsdp_transformer_layer_cls_to_wrap`, other modules are
wrapped than the file says.

## Example

```diff
 distributed_type: FSDP
 fsdp_config:
   fsdp_version: 2
-  fsdp_transformer_cls_names_to_wrap: Qwen3DecoderLayer
+  fsdp_transformer_layer_cls_to_wrap: Qwen3DecoderLayer
```

## Fix safety

Unsafe: the key is renamed to the closest one, which then has an effect that it had not before.

## Known limits

accelerate read `fsdp_backward_prefetch_policy` before 1.0: it is not reported where the project's dependencies keep accelerate below. The keys are those of accelerate 1.15, transformers 5.23, ms-swift 4.6 and axolotl 0.13; a newer release may know more. Keys that begin
with an underscore are taken for comments.

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/launch.py
- https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/training_args.py
- https://github.com/modelscope/ms-swift/blob/main/swift/trainers/arguments.py
- https://docs.axolotl.ai/docs/multi-gpu.html#sec-fsdp
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from fsdp2lint.api import PREFIX, SETTINGS_KEYS, Finding, Fix, Splice, Trace, bare_key, rule

from ._common.settings import found


@rule(code="FSDP602", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Keys that are in no list."""
    asked = trace.settings
    known = () if asked is None else SETTINGS_KEYS.get(asked.framework, ())
    if asked is None or asked.section is None or not known:
        return
    for entry in asked.section:
        bare = bare_key(entry.name)
        if bare in known or entry.name.startswith(("_", "<<")):
            continue
        message = f"{asked.framework} does not know `{entry.name}` and ignores it"
        if asked.framework == "accelerate" and bare == "backward_prefetch_policy":
            limit = dict(trace.limits).get("accelerate")
            if limit is not None and limit.lacks((1, 0, 0)):
                continue
            message = f"accelerate >= 1.0 does not know `{entry.name}` any more and ignores it"
        fix = None
        close = get_close_matches(bare, known, n=1, cutoff=0.7)
        prefix = PREFIX if entry.name.startswith(PREFIX) else ""
        if close and asked.option(close[0]) is None:
            right = prefix + close[0]
            message += f"; did you mean `{right}`?"
            quote = entry.key.quoted
            edit = Splice(trace.source, entry.key.start + quote, entry.key.end - quote, right)
            fix = Fix(f"rename it to `{right}`", (edit,), "unsafe", "the setting takes effect then")
        yield found(trace, entry, message, fix)
