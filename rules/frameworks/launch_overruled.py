"""The script says something else of FSDP than the settings that it is launched with.

## What it does

Reports a `FullyShardedDataParallelPlugin`, or the `fsdp_config` of a Trainer's arguments, whose version, type of state dicts,
`reshard_after_forward` or offloading is not that of the file which `accelerate launch` gives to the script; and an `Accelerator` whose
`mixed_precision` is another one.

## Why is this bad

The script counts, and the file does not: accelerate reads what the launcher sets only where the plugin leaves something open, and with
`fsdp` the Trainer builds a plugin of its own. Who reads or changes the file believes that the job shards, and writes checkpoints, in
another way than it does.

## Example

```diff
 # launched: fsdp_version 2
 from accelerate import Accelerator, FullyShardedDataParallelPlugin

-plugin = FullyShardedDataParallelPlugin(fsdp_version=1)
+plugin = FullyShardedDataParallelPlugin()
 accelerator = Accelerator(fsdp_plugin=plugin)
```

The first line is what the settings of the launch say.

## Forms

- Found: a precision that is not the launch's.
- Found: a plugin that a helper function makes.
- Not found: arguments that are read from another file.

## Known limits

The settings must be known: a command names them with the script, or they lie alone beside it. They are compared only where the file sets
them. Who wants a script that is independent of its launch may mean it: that is why this is
a warning.

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/dataclasses.py (`FullyShardedDataParallelPlugin.__post_init__`)
- https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/training_args.py (`_process_fsdp_args`)
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from fsdp2lint.api import Finding, Overruled, Trace, rule


@rule(code="FSDP611", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Settings of the script that replace those of the launch."""
    for one in trace.of(Overruled):
        file = os.path.basename(one.settings) or "the launch"
        message = f"`{one.name}` is {one.script} here and {one.launch} in {file}: {one.by} counts, and the file has no effect"
        yield Finding(at=one, message=message)
