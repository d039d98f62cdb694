"""Version 2 of FSDP does not read the sharding strategy of the settings.

## What it does

Reports `fsdp_sharding_strategy` other than FULL_SHARD beside `fsdp_version: 2`, where `fsdp_reshard_after_forward` is not
set.

## Why is this bad

Version 2 reads `fsdp_reshard_after_forward`, whose default frees the parameters after the forward. The strategy in
the file has no effect: SHARD_GRAD_OP gathers the parameters a second time in each backward, HYBRID_SHARD shards over all
machines, and NO_SHARD shards. Nothing is raised.

## Example

```diff
 distributed_type: FSDP
 fsdp_config:
   fsdp_version: 2
-  fsdp_sharding_strategy: SHARD_GRAD_OP
+  fsdp_reshard_after_forward: false
```

## Forms

- Found: a strategy by its number.
- Found: a hybrid strategy without a `parallelism_config`.
- Not found: a strategy that the script sets in the environment.

## Fix safety

Unsafe: `fsdp_reshard_after_forward: false` needs more memory than what ran before.

## Known limits

A value that the command line or the environment gives is not seen. Beside a `parallelism_config` a hybrid strategy is taken
for a remark.

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/dataclasses.py
- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/fsdp_utils.py
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Fix, Splice, Trace, plain, rule, strategy_of

from ._common.settings import found, said

_INSTEAD = {
    "SHARD_GRAD_OP": "parameters are freed after the forward and gathered again in the backward",
    "HYBRID_SHARD": "the model is sharded over all ranks of all machines",
    "HYBRID_SHARD_ZERO2": "the model is sharded over all ranks of all machines",
    "NO_SHARD": "the model is sharded",
}


@rule(code="FSDP603", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """A strategy beside version 2."""
    asked = trace.settings
    if asked is None or asked.version != 2 or asked.framework not in ("accelerate", "axolotl"):
        return
    entry = asked.option("sharding_strategy")
    strategy = None if entry is None else strategy_of(plain(entry.value))
    if entry is None or strategy not in _INSTEAD or asked.option("reshard_after_forward"):
        return
    if strategy.startswith("HYBRID") and asked.top.get("parallelism_config"):
        return
    message = f"version 2 ignores {said(trace, entry)}: {_INSTEAD[strategy]}"
    fix = None
    if strategy == "SHARD_GRAD_OP":
        key = entry.name.replace("sharding_strategy", "reshard_after_forward")
        quote = entry.key.quoted
        edits = (
            Splice(trace.source, entry.key.start + quote, entry.key.end - quote, key),
            Splice(trace.source, entry.value.start, entry.value.end, "false"),
        )
        note = "parameters stay gathered until the backward, which takes more memory"
        fix = Fix(f"write `{key}: false`", edits, "unsafe", note)
    yield found(trace, entry, message, fix)
