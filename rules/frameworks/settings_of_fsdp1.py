"""A framework is asked for FSDP1: by a settings file, a command or a script.

## What it does

Reports YAML and JSON files of accelerate, axolotl and LightningCLI that ask for FSDP1: `distributed_type: FSDP` without
`fsdp_version: 2`, a recipe without `fsdp_version: 2`, `strategy: fsdp`. In shell, Slurm and Make files it reports commands that
ask for it by their options: `accelerate launch --use_fsdp` without `--fsdp_version 2`, `--trainer.strategy fsdp` of LightningCLI,
and the Trainer's `--fsdp` where it can only mean FSDP1: beside `--fsdp_transformer_layer_cls_to_wrap`, which transformers 5.0
removed, or in a project that keeps transformers below 5.0. In scripts it reports `FullyShardedDataParallelPlugin` without
`fsdp_version=2`, an `FSDPStrategy` of Lightning (or `strategy="fsdp"`), and a Trainer whose `fsdp_config` says version 1, or none in a project that keeps
transformers below 5.10.

## Why is this bad

FSDP1 gets no new features, and transformers 5.23 warns that it will remove it. `fsdp2lint migrate FILE` writes the same settings for
version 2. Of Lightning's Fabric its ledger says what to write.

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

- Found: a file of LightningCLI.
- Found: JSON in the place of YAML.
- Found: a plugin in a script.
- Found: a strategy of Lightning that a function chooses.
- Not found: a strategy that Hydra builds.

## Known limits

Settings files of the Trainer that do not say a version are not reported: what the default is depends on the release of
transformers, and so do its options. A version that only the command line says (`--fsdp_version 2`) is not seen in the file. A plugin without a
version takes that of its launch: one that no file of the project shows is not seen. Commands with
`--config_file` or `--fsdp_config` are not reported: their file is. Commands in documents are not read.

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/dataclasses.py
- https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/training_args.py (`_process_fsdp_args`)
- https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import AskedOldVersion, AskingCommand, Finding, Limits, Trace, rule, too_old

from ._common.settings import place


@rule(code="FSDP601", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """Settings and commands of version 1."""
    asked = trace.settings
    if asked is not None and asked.version == 1:
        message = f"These settings ask {asked.framework} for FSDP1. Run `fsdp2lint migrate` on this file to convert them"
        yield Finding(at=place(trace, asked.at), message=message)
    for asks in trace.of(AskedOldVersion):
        message = f"This asks {asks.framework} for FSDP1. Run `fsdp2lint migrate` on this file: it converts this, or says what to write"
        yield Finding(at=asks, message=message)
    for command in trace.commands:
        if _is_of_version_1(command, trace.limits):
            message = f"This command asks {command.framework} for FSDP1. Run `fsdp2lint migrate` on this file to convert it"
            yield Finding(at=place(trace, command.asking), message=message)


def _is_of_version_1(command: AskingCommand, limits: Limits) -> bool:
    """Whether a command asks for FSDP1, in each release of its framework that the project allows."""
    if command.framework == "the Trainer" and too_old("transformers", limits) is not None:
        return True
    return command.version == 1
