"""Which tests surely come out differently on some rank, and what holds where a process has no others beside it."""

from __future__ import annotations

from fsdp2lint.api import Guards, Literal, MainRank, Not, Part, Rank, Trace, Value, once

_SCOPES = ("global", "local")


def decides(test: Value) -> bool:
    """Whether a test surely comes out differently on some rank: a rank against a constant."""
    if isinstance(test, Not):
        return decides(test.test)
    if isinstance(test, MainRank):
        return test.scope in _SCOPES
    return (
        isinstance(test, Part)
        and _is_place(test.owner)
        and len(test.operands) == 1
        and isinstance(test.operands[0], Literal)
        and _some_only(test.operation, test.operands[0].value)
    )


def _is_place(value: Value | None) -> bool:
    """Whether a number is that of a rank, or of its place in the groups of so many: `rank // tensor_parallel`."""
    if isinstance(value, Part) and value.operation in ("//", "%"):
        if isinstance(value.operands[0], Literal):
            return False
        value = value.owner
    return isinstance(value, Rank) and value.scope in _SCOPES


def _some_only(operator: object, number: object) -> bool:
    """Whether comparing a rank with a number tells ranks apart: no rank is below 0."""
    if not isinstance(number, int):
        return False
    return number >= {"==": 0, "<": 1, ">=": 1, ">": 0, "<=": 0}.get(str(operator), number + 1)


def without_group(trace: Trace, guards: Guards) -> bool:
    """Whether this holds only where a run makes no process group: under what excludes each place that makes one."""
    made = _group_made(trace)
    return bool(made) and all(guards.excludes(one) for one in made)


@once
def _group_made(trace: Trace) -> list[Guards]:
    """Under what each place makes a process group."""
    return [one.guards for one in trace.calls("torch.distributed.init_process_group")]
