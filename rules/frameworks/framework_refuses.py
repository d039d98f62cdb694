"""accelerate, the Trainer or Lightning raises here: FSDP does not go with what it is given.

## What it does

Reports calls of accelerate, the Trainer and Lightning that raise under FSDP: `Accelerator.prepare` with a model and without
its optimizer, or with two models, under FSDP2; `Accelerator.clip_grad_value_`; a `FullyShardedDataParallelPlugin` whose arguments are those of the other version; a model in which there is no class of a name that the settings or the plugin ask to
wrap; Lightning's `ModelParallelStrategy` (in the script, or in the file of its LightningCLI) with a LightningModule that has no `configure_model`, or with `precision="16-mixed"` or `"64-true"`; a Trainer whose arguments and `fsdp_config` both ask for activation
checkpointing; `save_only_model` beside `load_best_model_at_end` or beside SHARDED_STATE_DICT; a Trainer that gets an optimizer
by `optimizers=`.

## Why is this bad

The job ends on every rank, after it has waited for its machines. With FSDP1 it was right, and advised, to prepare the model
first and to build the optimizer then: with FSDP2 `prepare` replaces the parameters and needs the optimizer to exchange
them there.

## Example

```diff
 import torch
 from accelerate import Accelerator, FullyShardedDataParallelPlugin
 from torch import nn

 accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
-model = accelerator.prepare(nn.Linear(8, 8))
-optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters()))
+model = nn.Linear(8, 8)
+optimizer = torch.optim.AdamW(model.parameters())
+model, optimizer = accelerator.prepare(model, optimizer)
```

## Forms

- Found: the constructor of a trainer that prepares the two apart.
- Found: two models.
- Not found: `prepare_model`, which takes the model alone.
- Not found: a version that an option gives.

## Known limits

The version must be known: from the plugin, or from the settings that the script is launched with. A call below a
condition that names FSDP is left alone, and so is one with an object that may be an optimizer. Wrap classes are looked for only
in models whose layers are all known: a model of a library may have any. Only the Trainer refuses activation checkpointing that is asked for
twice. In a loop of accelerate, `gradient_checkpointing_enable()` beside `fsdp_activation_checkpointing: true` raises nothing and is not reported: with
checkpointing that is not reentrant, the default of transformers 5.23, each layer's forward runs as often as with accelerate's alone (measured).

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/accelerator.py (`prepare`, `clip_grad_value_`)
- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/fsdp_utils.py (`fsdp2_prepare_auto_wrap_policy`)
- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/dataclasses.py (`FullyShardedDataParallelPlugin.__post_init__`)
- https://github.com/Lightning-AI/pytorch-lightning/blob/2.6.6/src/lightning/pytorch/strategies/model_parallel.py (`setup`)
- https://github.com/Lightning-AI/pytorch-lightning/blob/2.6.6/src/lightning/pytorch/trainer/connectors/accelerator_connector.py (`_validate_precision_choice`)
- https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/trainer.py (`_validate_args`, `create_accelerator_and_postprocess`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Refused, Trace, rule


@rule(code="FSDP607", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Calls that raise."""
    for refused in trace.of(Refused):
        error = f"{'an' if refused.error[0] in 'AEIOU' else 'a'} {refused.error}"
        yield Finding(at=refused, message=f"{refused.by} raises {error} here: {refused.why}")
