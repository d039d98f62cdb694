"""Code knows how FSDP1 names what it wraps.

## What it does

Finds `_fsdp_wrapped_module` and `_flat_param` as attributes and in strings, `.module` of a wrapped model, `clean_tensor_name`.

## Why is this bad

`fully_shard` wraps nothing: modules and parameters keep their names, so that the attribute is missing and the replacing of a
prefix does nothing.

## Example

```diff
 from torch import nn


 def names(model: nn.Module) -> list[str]:
-    return [n.replace("_fsdp_wrapped_module.", "") for n, _ in model.named_parameters()]
+    return [n for n, _ in model.named_parameters()]
```

## Forms

- Found: the constant with the name.
- Found: the module inside a wrapper.
- Not found: the module inside of what may be a wrapper.

## Known limits

Docstrings are not searched.

## References

- `torch/distributed/fsdp/_common_utils.py`
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from ._common.fsdp1 import used


@rule(code="FSDP111", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """Code knows how FSDP1 names what it wraps."""
    yield from used(trace, "FSDP111")
