"""Settings files and commands of accelerate, the Trainer, axolotl and LightningCLI ask for FSDP2, in its own keys.

## What it does

Writes `fsdp_version: 2` into YAML and JSON files that ask for FSDP1: accelerate's configuration, the `fsdp_config` of the
Trainer (in a file of its own or among the training arguments) and axolotl's recipes. `fsdp_sharding_strategy` becomes
`fsdp_reshard_after_forward`; a hybrid strategy of accelerate over several machines becomes its `parallelism_config`; keys
that version 2 ignores or refuses go. Where a file says no state-dict type, the one that version 1 means is written.
Comments, order, quotes and anchors stay, and files that say version 2 are left alone. Where scripts prepare the model and its
optimizer by two calls of a block, which version 2 of accelerate refuses, one call takes both; other such calls get a comment.

In a file of LightningCLI, `FSDPStrategy` (or `fsdp`) becomes `ModelParallelStrategy` with the number of GPUs, and the LightningModule
that it trains gets a `configure_model` that shards it: both change, or neither.

In shell, Slurm and Make files, the options of `accelerate launch --use_fsdp …` are rewritten the same way, and the arguments
`--fsdp "full_shard auto_wrap"` of a Trainer get an `--fsdp_config` with version 2, which takes
`--fsdp_transformer_layer_cls_to_wrap` in. Commands with `--config_file` or `--fsdp_config` stay: their file says the version.

## Why

The framework shards the model: only its settings choose between FSDP1 and FSDP2. `accelerate to-fsdp2` writes the file anew:
it loses the comments, makes sharding of `NO_SHARD`, drops the mesh of `HYBRID_SHARD`, and lets the checkpoints become sharded ones
where the state-dict type is not written.

## Example

```diff
 from accelerate import Accelerator

 accelerator = Accelerator()
```

## What it leaves

`NO_SHARD` (version 2 always shards), hybrid strategies whose sizes the file does not say, settings that come from a YAML
anchor, projects whose requirements allow only releases of accelerate or transformers that do not read `fsdp_version`, files of
LightningCLI whose LightningModule is not among the migrated files or has a `configure_model` already, that do not say the
number of GPUs, or whose strategy has other arguments than a wrap policy of classes, FULL_SHARD or SHARD_GRAD_OP and the
state-dict type: then nothing of the file changes, and the ledger says what to write. Of commands, the same strategies, those in a variable of the shell, and commands in documents. Templates, several
documents in one file and what is no valid YAML or JSON are reported and left.

## References

- https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2
- `accelerate/commands/to_fsdp2.py`, `accelerate/utils/dataclasses.py` and `accelerate/parallelism_config.py` of accelerate 1.15
- `transformers/training_args.py` of transformers 5.23
- https://docs.axolotl.ai/docs/multi-gpu.html#sec-migrate-fsdp1-fsdp2
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    PACKAGES,
    Left,
    Program,
    Respelling,
    Step,
    codemod,
    settings_changes,
    settings_left,
    settings_of,
    unread,
)

from .._common.prepared import prepared_together
from .commands import in_commands
from .lightning import as_respelling, of_the_cli


@codemod(frameworks=True)
def rewrite(program: Program) -> Iterator[Step | Respelling | Left]:
    """Settings files and commands that ask for FSDP1."""
    yield from in_commands(program)
    yield from of_the_cli(program)
    second = False
    for text in program.texts:
        asked = settings_of(text)
        if asked is None or asked.version == 2 or asked.framework == "Lightning":
            continue
        older = unread(PACKAGES.get(asked.framework, ""), program.options.limits)
        changes = settings_changes(text) if older is None else [settings_left(asked, *older)]
        made = [as_respelling(text, one) for one in changes]
        yield from made
        second |= asked.framework == "accelerate" and any(one.changes for one in made)
    if second:
        yield from prepared_together(program.sources)
