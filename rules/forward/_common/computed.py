"""Whether a module has computed already."""

from __future__ import annotations

from fsdp2lint.api import Forward, Registered, Trace, Value, unwrapped

from ..._common.shared import overlap


def computed_before(trace: Trace, forward: Forward, module: Value) -> bool:
    """Whether the module, or one in or around it, may have computed before."""
    if any(e.order < forward.order for e in trace.escapes(module)):
        return True
    hooked = {"call", "generate", *(r.method for r in trace.of(Registered))}
    return any(
        earlier.order < forward.order
        and earlier.how in hooked
        and not earlier.guards.excludes(forward.guards)
        and overlap(trace, unwrapped(earlier.module), module) is not None
        for earlier in trace.of(Forward)
    )
