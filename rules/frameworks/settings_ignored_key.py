"""A key of the settings has no meaning in version 2 of FSDP.

## What it does

Reports keys of FSDP1 (`fsdp_use_orig_params`, `fsdp_backward_prefetch`, `fsdp_sync_module_states` and others) beside
`fsdp_version: 2`.

## Why is this bad

They do nothing, and a reader believes that they do.

## Example

```diff
 distributed_type: FSDP
 fsdp_config:
   fsdp_version: 2
-  fsdp_use_orig_params: true
```

## Forms

- Found: keys beside others.
- Found: a file of the Trainer.
- Not found: a dictionary in a script.

## Fix safety

Safe: the key is removed; a comment behind it stays.

## Known limits

A file that is used with both versions, `--fsdp_version` on the command line, needs them.

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/commands/to_fsdp2.py
- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/dataclasses.py
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import DROPPED_SETTINGS, Finding, Trace, bare_key, rule

from ._common.settings import found, removed, said


@rule(code="FSDP604", group="pedantic")
def check(trace: Trace) -> Iterator[Finding]:
    """Keys of FSDP1 beside version 2."""
    asked = trace.settings
    if asked is None or asked.version != 2 or asked.section is None:
        return
    for entry in asked.section:
        why = DROPPED_SETTINGS.get(bare_key(entry.name))
        if why is not None and not (
            asked.framework == "axolotl" and bare_key(entry.name) == "use_orig_params"
        ):
            message = f"{said(trace, entry)} has no effect: {why}"
            yield found(trace, entry, message, fix=removed(trace, asked, entry, "remove it"))
