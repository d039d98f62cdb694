"""`save_model` of a Trainer writes no weights under SHARDED_STATE_DICT.

## What it does

Reports `trainer.save_model()` where the `fsdp_config`, or the settings that the script is launched with, ask for SHARDED_STATE_DICT
and nothing sets the type to FULL_STATE_DICT before.

## Why is this bad

With FSDP the Trainer writes the model only where the type is FULL_STATE_DICT. With SHARDED_STATE_DICT the call returns
without a word and without a file, and the trained weights are in the last checkpoint's shards at best, which
`from_pretrained` cannot read.

## Example

```diff
 from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

 args = TrainingArguments(
     "out", fsdp="full_shard", fsdp_config={"fsdp_version": 2, "state_dict_type": "SHARDED_STATE_DICT"}
 )
 trainer = Trainer(model=AutoModelForCausalLM.from_pretrained("gpt2"), args=args)
 trainer.train()
+trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
 trainer.save_model("final")
```

## Forms

- Found: a helper function that trains and saves.
- Found: arguments that are set after they were parsed.
- Not found: settings in a file that the arguments name.

## Known limits

The type must be written in the script, or in the settings that it is launched with. Scripts in which `set_state_dict_type`
is called anywhere are left alone.

## References

- https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/trainer.py (`save_model`)
- https://huggingface.co/docs/transformers/fsdp
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, WeightsSkipped, rule


@rule(code="FSDP608", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Saves that write nothing."""
    if any("set_state_dict_type" in source.said for source in trace.sources):
        return
    for skipped in trace.of(WeightsSkipped):
        yield Finding(
            at=skipped,
            message=f"`save_model` writes no weights with {skipped.by}: set the type to FULL_STATE_DICT before it",
        )
