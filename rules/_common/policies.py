"""What a `MixedPrecisionPolicy` asks for, as far as it is known."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import External, Instance, Trace, Value

from .shared import Shard, class_name, shards, together

LOW = ("torch.bfloat16", "torch.float16", "torch.half")


def policy_of(shard: Shard) -> Value | None:
    """The mixed-precision policy that a module is sharded with; None when there is none or it is not known."""
    given = shard.event.options.get("mp_policy")
    if isinstance(given, Instance) and class_name(given).endswith(".MixedPrecisionPolicy"):
        return given
    return None


def dtype_of(policy: Value | None, name: str) -> str | None:
    """The dtype that a policy is given for `param_dtype`, `reduce_dtype` or `output_dtype`, by its full name."""
    if policy is None:
        return None
    value = policy.part(f".{name}")
    return value.name if isinstance(value, External) else None


def around(trace: Trace, shard: Shard) -> Iterator[Shard]:
    """The shardings of modules around that of an inner one."""
    for other in shards(trace):
        outer = other.module is not shard.module and trace.inside(shard.module, other.module)
        if outer and together(other.guards, shard.guards):
            yield other
