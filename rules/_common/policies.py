"""What a `MixedPrecisionPolicy` asks for, as far as it is known."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Either, External, Guards, Instance, Trace, Value

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


def dtypes_of(policy: Value | None, name: str, here: Guards) -> list[tuple[Guards, str]]:
    """The dtypes that a policy may be given at a point, each with what holds where it is; none when one is not known.

    Settings name them: ``{"bf16": torch.bfloat16, "fp16": torch.float16}[args.dtype]``.
    """
    value = None if policy is None else policy.part(f".{name}")
    given = value.options if isinstance(value, Either) else ((here, value),)
    found = [(here.and_(guards), one) for guards, one in given if together(guards, here)]
    named = [(guards, one.name) for guards, one in found if isinstance(one, External)]
    return named if len(named) == len(found) else []


def low_of(policy: Value | None, name: str, here: Guards) -> tuple[str, Guards] | None:
    """The low dtype that a policy is given at a point, on every path or on one, and what holds there."""
    given = dtypes_of(policy, name, here)
    low = [(guards, dtype) for guards, dtype in given if dtype in LOW]
    if not low:
        return None
    return low[0][1], here if len(low) == len(given) else low[0][0]


def around(trace: Trace, shard: Shard) -> Iterator[Shard]:
    """The shardings of modules around that of an inner one."""
    for other in shards(trace):
        outer = other.module is not shard.module and trace.inside(shard.module, other.module)
        if outer and together(other.guards, shard.guards):
            yield other
