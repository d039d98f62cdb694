"""What sharded modules return, and whether a backward will come through it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fsdp2lint.api import Backward, Returned, Trace, Value

from ..._common.evaluation import keeps_no_gradients
from ..._common.shared import Shard, cases, sharded, shards, together, wrapped_by
from ..._common.tensors import has_root_above


def outputs(trace: Trace) -> Iterator[tuple[Returned, Shard, Value]]:
    """The forwards of modules that are groups of their own, each with what it can have returned.

    Only where gradients are kept and a backward is resolved.
    """
    if not trace.of(Backward):
        return
    for returned in trace.of(Returned):
        if keeps_no_gradients(returned) or wrapped_by(returned.module, "compile"):
            continue
        found = sharded(trace, returned, returned.module, itself=True)
        if found is None:
            continue
        for guards, value in cases(returned, returned.result):
            if not guards.impossible:
                yield returned, found[0], value


def unprepared(trace: Trace, lost: Iterable[Shard]) -> set[Value]:
    """The modules whose backward surely finds nothing prepared when the hooks of all ``lost`` ones are missing.

    A module inside a root is prepared by the prefetch of the next one that has its hook, so that one alone does no
    harm. A root needs its hook when nothing inside it has one.
    """
    groups = {shard.module: shard for shard in lost}
    inner = {module for module, shard in groups.items() if has_root_above(trace, shard)}
    alone = {
        module
        for module, shard in groups.items()
        if module not in inner
        and not any(
            s.module is not module
            and trace.inside(s.module, module)
            and together(s.guards, shard.guards)
            for s in shards(trace)
        )
    }
    return alone | (inner if len(inner) > 1 else set())
