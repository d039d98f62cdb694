"""Settings files and commands of accelerate, the Trainer and axolotl ask for FSDP2, in its own keys.

## What it does

Writes `fsdp_version: 2` into YAML and JSON files that ask for FSDP1: accelerate's configuration, the `fsdp_config` of the
Trainer (in a file of its own or among the training arguments) and axolotl's recipes. `fsdp_sharding_strategy` becomes
`fsdp_reshard_after_forward`; a hybrid strategy of accelerate over several machines becomes its `parallelism_config`; keys
that version 2 ignores or refuses go. Where a file says no state-dict type, the one that version 1 means is written.
Comments, order, quotes and anchors stay, and files that say version 2 are left alone.

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
anchor, projects whose requirements allow only releases of accelerate or transformers that do not read `fsdp_version`, Lightning's
`FSDPStrategy` (FSDP2 needs a `configure_model`): then nothing of the file changes, and the ledger says
what to write. Of commands, the same strategies, those in a variable of the shell, and commands in documents. Templates, several
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
    Program,
    Respelling,
    codemod,
    settings_changes,
    settings_left,
    settings_of,
    unread,
)

from .commands import in_commands


@codemod(frameworks=True)
def rewrite(program: Program) -> Iterator[Respelling]:
    """Settings files and commands that ask for FSDP1."""
    yield from in_commands(program)
    for text in program.texts:
        asked = settings_of(text)
        if asked is None or asked.version == 2:
            continue
        older = unread(PACKAGES.get(asked.framework, ""), program.options.limits)
        changes = settings_changes(text) if older is None else [settings_left(asked, *older)]
        for one in changes:
            fate = "changed" if one.fate == "manual" else one.fate
            yield Respelling(
                text, one.start, one.end, one.text, one.what, one.why, one.todo, fate, "setting"
            )
