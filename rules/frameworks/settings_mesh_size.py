"""The sizes of the parallelism settings do not multiply to the number of processes.

## What it does

Multiplies `dp_replicate_size`, `dp_shard_size`, `tp_size` and `cp_size` of accelerate's `parallelism_config` and
compares the product with `num_processes` of the same file. In a script, compares those of a `ParallelismConfig`, or of the settings
of its launch, with the `--num_processes` or `--nproc_per_node` of the command that launches it.

## Why is this bad

accelerate raises when the Accelerator is built, on every rank: a ValueError, or a RuntimeError for a mesh of more ranks than there are.

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

## Forms

- Found: tensor parallelism beside shards.
- Found: sizes in a script, and a launch with eight processes.
- Not found: a size from the environment.

## Known limits

`accelerate launch --num_processes` counts in place of the file's number: where each command that uses a file says one, the sizes are compared
with that, in the script. Another command may start another number of processes: that is why this is a warning. Commands that
differ in the number are left alone.

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/parallelism_config.py
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from fsdp2lint.api import Finding, SettingsMapping, SizesDiffer, Trace, plain, rule

from ._common.settings import found

_SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")


@rule(code="FSDP606", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """A product that is not the number of processes."""
    for one in trace.of(SizesDiffer):
        yield Finding(
            at=one, message=_differ(one.sizes, f"the command starts {one.processes} processes")
        )
    asked = trace.settings
    if asked is None or asked.framework != "accelerate" or asked.version != 2:
        return
    if trace.launches and all(one.processes is not None for one in trace.launches):
        return  # the commands say it in place of the file
    entry, processes = asked.top.get("parallelism_config"), asked.top.value("num_processes")
    if entry is None or not isinstance(entry.value, SettingsMapping) or type(processes) is not int:
        return
    sizes = {name: _size(entry.value, name) for name in (*_SIZES, "sp_size")}
    if any(type(size) is not int for size in sizes.values()) or sizes["sp_size"] != 1:
        return
    if prod(sizes[name] for name in _SIZES) not in (1, processes) and processes > 0:
        several = tuple(sizes[name] for name in _SIZES if sizes[name] != 1)
        yield found(trace, entry, _differ(several, f"`num_processes` is {processes}"))


def _differ(sizes: tuple[int, ...], number: str) -> str:
    product = " x ".join(map(str, sizes)) + " = " if len(sizes) > 1 else ""
    return f"the sizes multiply to {product}{prod(sizes)}, but {number}"


def _size(section: SettingsMapping, name: str) -> int:
    """A size; 1 when it is not set."""
    entry = section.get(f"parallelism_config_{name}")
    if entry is None:
        return 1
    value = plain(entry.value)
    return value if type(value) is int else -1
