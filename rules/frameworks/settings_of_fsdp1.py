"""A settings file asks a framework for FSDP1.

## What it does

Reports YAML and JSON files of accelerate, axolotl and LightningCLI that ask for FSDP1: `distributed_type: FSDP` without
`fsdp_version: 2`, a recipe without `fsdp_version: 2`, `strategy: fsdp`.

## Why is this bad

FSDP1 gets no new features, and transformers 5.23 warns that it will remove it. `fsdp2lint migrate FILE` writes the same settings for
version 2.

## Example

```diff
 distributed_type: FSDP
 fsdp_config:
-  fsdp_sharding_strategy: FULL_SHARD
+  fsdp_version: 2
+  fsdp_reshard_after_forward: true
   fsdp_state_dict_type: FULL_STATE_DICT
```

## Forms

Found: a file of LightningCLI.

```yaml
trainer:
  strategy: fsdp
  devices: 8
```

Found: JSON in the place of YAML.

```json
{"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"}, "num_processes": 8}
```

Not found: a strategy that Hydra builds.

```yaml
model: gpt2
trainer:
  _target_: lightning.Trainer
  strategy:
    _target_: lightning.pytorch.strategies.FSDPStrategy
```

## Known limits

Settings of the Trainer that do not say a version are not reported: what the default is depends on the release of
transformers. A version that only the command line says (`--fsdp_version 2`) is not seen.

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/dataclasses.py
- https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/training_args.py (`_process_fsdp_args`)
- https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from ._common.settings import place


@rule(code="FSDP601", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """Settings of version 1."""
    asked = trace.settings
    if asked is not None and asked.version == 1:
        message = f"These settings ask {asked.framework} for FSDP1. Run `fsdp2lint migrate` on this file to convert them"
        yield Finding(at=place(trace, asked.at), message=message)
