"""The kind of a state dict is chosen in the way of FSDP1.

## What it does

Finds `state_dict_type`, `set_state_dict_type`, `StateDictType` and the configuration classes that go with them.

## Why is this bad

They belong to the wrapper; on a sharded model the context ends with `KeyError: None`. FSDP2 takes the options with each
call by `StateDictOptions`. They are deprecated since torch 2.4.

## Example

```diff
-import torch
-import torch.distributed as dist
-from torch import nn
-from torch.distributed.fsdp import StateDictType
+from torch.distributed.checkpoint.state_dict import StateDictOptions

-kind = StateDictType.FULL_STATE_DICT
+kind = StateDictOptions(full_state_dict=True, cpu_offload=True)
```

## Forms

- Found: the context with a configuration.
- Not found: a name that `getattr` is given.

## Known limits

None known.

## References

- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`state_dict_type`)
- `torch/distributed/checkpoint/state_dict.py` (`StateDictOptions`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from ._common.fsdp1 import used


@rule(code="FSDP104", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """The kind of a state dict is chosen in the way of FSDP1."""
    yield from used(trace, "FSDP104")
