"""A settings file or a command asks a framework for FSDP1.

## What it does

Reports YAML and JSON files of accelerate, axolotl and LightningCLI that ask for FSDP1: `distributed_type: FSDP` without
`fsdp_version: 2`, a recipe without `fsdp_version: 2`, `strategy: fsdp`. In shell, Slurm and Make files it reports commands that
ask for it by their options: `accelerate launch --use_fsdp` without `--fsdp_version 2`, `--trainer.strategy fsdp` of LightningCLI,
and the Trainer's `--fsdp` where it can only mean FSDP1: beside `--fsdp_transformer_layer_cls_to_wrap`, which transformers 5.0
removed, or in a project that keeps transformers below 5.0.

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
transformers, and so are its options. A version that only the command line says (`--fsdp_version 2`) is not seen in the file. Commands with
`--config_file` or `--fsdp_config` are not reported: their file is. Commands in documents are not read.

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/dataclasses.py
- https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/training_args.py (`_process_fsdp_args`)
- https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import AskingCommand, Finding, Limits, Trace, rule, too_old

from ._common.settings import place


@rule(code="FSDP601", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """Settings and commands of version 1."""
    asked = trace.settings
    if asked is not None and asked.version == 1:
        message = f"These settings ask {asked.framework} for FSDP1. Run `fsdp2lint migrate` on this file to convert them"
        yield Finding(at=place(trace, asked.at), message=message)
    for command in trace.commands:
        if _is_of_version_1(command, trace.limits):
            message = f"This command asks {command.framework} for FSDP1. Run `fsdp2lint migrate` on this file to convert it"
            yield Finding(at=place(trace, command.asking), message=message)


def _is_of_version_1(command: AskingCommand, limits: Limits) -> bool:
    """Whether a command asks for FSDP1, in each release of its framework that the project allows."""
    if command.framework == "the Trainer" and too_old("transformers", limits) is not None:
        return True
    return command.version == 1
