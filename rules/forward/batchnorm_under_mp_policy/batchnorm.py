"""Norms in groups of their own, without the precision policy of the module around them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fsdp2lint.api import Edit, Fix, InsertBefore, Module, Site, Trace, Value, name_for

from ..._common.fixes import call_of, first_argument, free_name, own_statement, path_text
from ..._common.shared import Shard, class_name, shards

_ATTRIBUTES = re.compile(r"(\.\w+)+\Z")
_POLICY = "mp_policy"


def grouped_apart(trace: Trace, shard: Shard, norms: Sequence[Value]) -> Fix | None:
    """A ``fully_shard`` for each of the norms, above the call whose group takes them.

    None where a norm could be sharded twice: the call is for the norm itself, or others inside are sharded too.
    """
    site = shard.event.at
    call = call_of(site)
    name = "" if call is None else path_text(site, first_argument(call))
    given = _arguments(site)
    if call is None or not name or given is None or own_statement(site) is None:
        return None
    together = [s.module for s in shards(trace) if s.event.at.node is site.node]
    if len(shard.event.modules) > 1 or any(norm in together for norm in norms):
        return None
    inner = [
        s.module
        for s in shards(trace)
        if s.event.at.node is not site.node and any(trace.inside(s.module, m) for m in together)
    ]
    rest, edits = given
    function = site.source.code(call.func)
    if inner:
        paths = [norm.words().removeprefix(shard.module.words()) for norm in norms]
        if len(together) > 1 or not all(isinstance(one, Module) for one in inner):
            return None
        if not all(_ATTRIBUTES.match(path) for path in paths):
            return None
        lines = [f"{function}({name}{path}{rest})" for path in dict.fromkeys(paths)]
    else:
        loop = free_name(site, "norm", "batch_norm", "module")
        classes = [name_for(site.source, site.node, c) for c in sorted(set(map(class_name, norms)))]
        edits += [edit for one in classes for edit in one.edits]
        said = ", ".join(one.text for one in classes)
        said = f"({said})" if len(classes) > 1 else said
        lines = [
            f"for {loop} in {name}.modules():",
            f"    if isinstance({loop}, {said}):",
            f"        {function}({loop}{rest})",
        ]
    edits.append(InsertBefore(site.source, site.node, "\n".join(lines)))
    return Fix(
        "give each BatchNorm a group of its own, without the policy",
        tuple(edits),
        "unsafe",
        "the norms compute in float32, which is slower, and what they train is another result",
    )


def _arguments(site: Site) -> tuple[str, list[Edit]] | None:
    """The further arguments of a ``fully_shard`` call without its policy, and the import that they need."""
    call = call_of(site)
    edits: list[Edit] = []
    text = ""
    for one in () if call is None else call.args[1:]:
        value = site.source.code(one.value)
        if one.star == "*":
            return None
        if one.star:
            plain = name_for(site.source, site.node, "torch.distributed.fsdp.MixedPrecisionPolicy")
            edits += plain.edits
            text += f', **{{**{value}, "{_POLICY}": {plain.text}()}}'
        elif one.keyword is None:
            return None
        elif one.keyword.value != _POLICY:
            text += f", {one.keyword.value}={value}"
    return text, edits
