"""The model is loaded before there is a process group: each rank loads all weights.

## What it does

Reports `from_pretrained` of transformers before `Accelerator()`, `PartialState()` or the arguments of a Trainer, in a script whose settings
say `fsdp_cpu_ram_efficient_loading: true`, and that starts no process group before.

## Why is this bad

transformers lets rank 0 alone load the weights only where a process group is there already. Without one each rank of a machine reads
the whole checkpoint into host memory: eight times 140 GB for a model of 70 billion parameters in 16 bits. The training is the same;
the host may run out of memory.

## Example

```diff
 # launched: fsdp_version 2, efficient_loading true
 import torch
 from accelerate import Accelerator
 from transformers import AutoModelForCausalLM

+accelerator = Accelerator()
 model = AutoModelForCausalLM.from_pretrained("gpt2")
-accelerator = Accelerator()
 optimizer = torch.optim.AdamW(model.parameters())
 model, optimizer = accelerator.prepare(model, optimizer)
```

The first line is what the settings of the launch say.

## Forms

- Found: a helper function that loads.
- Found: the arguments of a Trainer, behind the model.
- Not found: arguments that are parsed.
- Not found: a pipeline that loads its model.

## Known limits

The settings must be known, and say it themselves: accelerate's launcher sets it too where they are silent. Scripts that parse arguments
with `HfArgumentParser` before are left alone: that may build the arguments of a Trainer, which start the group.

## References

- https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/distributed/fsdp.py (`is_fsdp_enabled`)
- https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/modeling_utils.py
- https://huggingface.co/docs/accelerate/usage_guides/fsdp (`fsdp_cpu_ram_efficient_loading`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp2lint.api import Called, Finding, GroupStarted, Module, Trace, options, rule

_BEGINS = re.compile(
    r"accelerate\.(state\.)?(Accelerator|PartialState|AcceleratorState)"
    r"|transformers\.(\w+\.)*\w*TrainingArguments|trl\.(\w+\.)*\w+Config"
)
_MAY_BEGIN = re.compile(r"\.(parse_\w+|\w+_into_dataclasses|setup_distributed|init_\w+)")


@rule(code="FSDP612", group="suspicious", preview=True)
def check(trace: Trace) -> Iterator[Finding]:
    """Loads that come too early."""
    if not any(one.efficient_loading for one in trace.launches):
        return
    calls = list(trace.of(Called))
    begin = next((call for call in calls if _BEGINS.fullmatch(call.name)), None)
    if begin is None or any(_MAY_BEGIN.fullmatch(c.name) for c in calls if c.order < begin.order):
        return
    if any(started.order < begin.order for started in trace.of(GroupStarted)):
        return
    for call in calls:
        if call.order < begin.order and _loads_a_model(call):
            yield Finding(
                at=call,
                message=f"each rank loads all weights here: `{begin.name.rpartition('.')[2]}` starts the process group only later, "
                "and `fsdp_cpu_ram_efficient_loading` needs one",
                because=((begin, "the process group is started here"),),
            )


def _loads_a_model(call: Called) -> bool:
    found = call.name.startswith("transformers.") and call.name.endswith(".from_pretrained")
    return found and all(isinstance(one, Module) for one in options(call.result))
