"""The sizes of the parallelism settings do not multiply to the number of processes.

## What it does

Multiplies `dp_replicate_size`, `dp_shard_size`, `tp_size` and `cp_size` of accelerate's `parallelism_config` and
compares the product with `num_processes` of the same file.

## Why is this bad

accelerate raises a ValueError when the Accelerator is built, on every rank.

## Example

```diff
 distributed_type: FSDP
 fsdp_config:
   fsdp_version: 2
 num_processes: 16
 parallelism_config:
   parallelism_config_dp_replicate_size: 2
-  parallelism_config_dp_shard_size: 4
+  parallelism_config_dp_shard_size: 8
```

## Known limits

`accelerate launch --num_processes` counts in place of the file and is not seen: that is why this is a warning.

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/parallelism_config.py
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from fsdp2lint.api import Finding, SettingsMapping, Trace, plain, rule

from ._common.settings import found

_SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")


@rule(code="FSDP606", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """A product that is not the number of processes."""
    asked = trace.settings
    if asked is None or asked.framework != "accelerate" or asked.version != 2:
        return
    entry, processes = asked.top.get("parallelism_config"), asked.top.value("num_processes")
    if entry is None or not isinstance(entry.value, SettingsMapping) or type(processes) is not int:
        return
    sizes = {name: _size(entry.value, name) for name in (*_SIZES, "sp_size")}
    if any(type(size) is not int for size in sizes.values()) or sizes["sp_size"] != 1:
        return
    product = prod(sizes[name] for name in _SIZES)
    if product not in (1, processes) and processes > 0:
        words = " x ".join(str(sizes[n]) for n in _SIZES if sizes[n] != 1)
        message = f"the sizes multiply to {words} = {product}, but `num_processes` is {processes}"
        yield found(
            trace,
            entry,
            message.replace(f"{words} = ", "" if " x " not in words else f"{words} = "),
        )


def _size(section: SettingsMapping, name: str) -> int:
    """A size; 1 when it is not set."""
    for key in (f"parallelism_config_{name}", name):
        entry = section.get(key)
        if entry is not None:
            value = plain(entry.value)
            return value if type(value) is int else -1
    return 1
