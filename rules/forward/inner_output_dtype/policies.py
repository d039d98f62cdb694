"""The fix of an `output_dtype` on inner modules: it leaves their policy, and stays with the root's."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import Arguments, Called, Fix, InsertBefore, Trace, argument, name_for

from ..._common.fixes import call_of, free_name, own_statement, path_text
from ..._common.policies import around, policy_of
from ..._common.shared import Shard, shards

_TITLE = "leave `output_dtype` to the root"


def for_the_root_only(trace: Trace, shard: Shard) -> Fix | None:
    """Shard an inner module without `output_dtype`; None where the same call shards a root, or without a policy."""
    alike = (s for s in shards(trace) if s.event.at.node is shard.event.at.node)
    if not all(_inner(trace, s) and policy_of(s) is not None for s in alike):
        return None
    made = _made(trace, shard)
    dropped = None if made is None else _dropped(trace, made)
    return dropped or _replaced(shard)


def _inner(trace: Trace, shard: Shard) -> bool:
    return next(around(trace, shard), None) is not None


def _made(trace: Trace, shard: Shard) -> Called | None:
    """The call that made the policy of a sharding."""
    policy = policy_of(shard)
    return next((c for c in trace.of(Called) if c.result is policy), None)


def _dropped(trace: Trace, made: Called) -> Fix | None:
    """The argument away from a policy that the script itself makes, for inner modules and nothing else."""
    call, source = call_of(made.at), made.at.source
    if call is None or source is not trace.source or not trace.known(made.result):
        return None
    for other in shards(trace):
        theirs = _made(trace, other)
        if theirs is not None and theirs.at.node is call and not _inner(trace, other):
            return None
    which = argument(call, 2, "output_dtype")
    if which is None or (which.keyword is None and which is not call.args[-1]):
        return None
    return Fix(_TITLE, (Arguments(source, call).remove(which),), "safe")


def _replaced(shard: Shard) -> Fix | None:
    """A second policy without `output_dtype` for a call that is given the policy of others too."""
    call, source = call_of(shard.event.at), shard.event.at.source
    given = argument(call, -1, "mp_policy")
    if call is None or given is None:
        return None if call is None else _replaced_in_options(shard, call)
    replace = name_for(source, call, "dataclasses.replace")
    edit = Arguments(source, call).replace(
        given, lambda inner: f"{replace.text}({inner(given.value)}, output_dtype=None)"
    )
    return Fix(_TITLE, (edit, *replace.edits), "safe")


def _replaced_in_options(shard: Shard, call: cst.Call) -> Fix | None:
    """The same where the policy is among options that are passed on as ``**options``."""
    passed = [a for a in call.args if a.star == "**"]
    named = argument(call, -1, "mp_policy") is not None
    options = path_text(shard.event.at, passed[0].value) if len(passed) == 1 else ""
    if named or not options or shard.event.open:
        return None
    if own_statement(shard.event.at) is None:
        return None
    source, name = shard.event.at.source, free_name(shard.event.at, "inner", "inner_options")
    replace = name_for(source, call, "dataclasses.replace")
    policy = f'{replace.text}({options}["mp_policy"], output_dtype=None)'
    edits = (
        InsertBefore(source, call, f'{name} = {{**{options}, "mp_policy": {policy}}}'),
        Arguments(source, call).replace(passed[0], name),
        *replace.edits,
    )
    return Fix(_TITLE, edits, "safe")
