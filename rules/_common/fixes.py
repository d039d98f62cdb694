"""What the fixes of several rules are made of. Each gives None where the fix would not surely be right."""

from __future__ import annotations

import re

import libcst as cst

from fsdp2lint.api import Event, Fix, InsertBefore, Layout, Replace, Site, Trace, argument, walk

from .shared import Shard, shards

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[\d+\])*\Z")


def call_of(site: Site) -> cst.Call | None:
    """The call that an event happened at."""
    return site.node if isinstance(site.node, cst.Call) else None


def receiver_of(site: Site) -> cst.BaseExpression | None:
    """What the method of a call is called on: ``model`` in ``model.forward(x)``."""
    call = call_of(site)
    if call is None or not isinstance(call.func, cst.Attribute):
        return None
    return call.func.value


def path_text(site: Site, node: cst.CSTNode | None) -> str:
    """The text of a name or a path of attributes, which can be said again; else nothing."""
    text = "" if node is None else site.source.code(node)
    return text if _PATH.match(text) else ""


def first_argument(call: cst.Call) -> cst.BaseExpression | None:
    """The value of the first argument, when it is given by position."""
    if not call.args or call.args[0].star or call.args[0].keyword is not None:
        return None
    return call.args[0].value


def further_arguments(site: Site, call: cst.Call) -> str:
    """The text of all arguments but the first, to be said again behind another first one."""
    return "".join(
        f", {site.source.code(a.with_changes(comma=cst.MaybeSentinel.DEFAULT))}"
        for a in call.args[1:]
    )


def stands_alone(site: Site) -> cst.Expr | None:
    """The statement that is nothing but the call."""
    statement = Layout.of(site.source).parents.get(site.node)
    return statement if isinstance(statement, cst.Expr) else None


def own_statement(site: Site) -> cst.CSTNode | None:
    """The statement that is the call, or binds names to its value."""
    statement = Layout.of(site.source).parents.get(site.node)
    return statement if isinstance(statement, cst.Expr | cst.Assign | cst.AnnAssign) else None


def once(trace: Trace, shard: Shard) -> bool:
    """Whether a call of ``fully_shard`` shards one module only, whenever it runs."""
    return not any(
        s.event.at.node is shard.event.at.node and s.module is not shard.module
        for s in shards(trace)
    )


def sites_together(one: Event, other: Event) -> tuple[Site, Site]:
    """The two events, or the calls that lead to them, in the innermost function where both happen."""
    first, second = (*one.calls, one.at), (*other.calls, other.at)
    depth = 0
    while depth < min(len(first), len(second)) - 1 and first[depth].node is second[depth].node:
        depth += 1
    return first[depth], second[depth]


def statement_beside(block: cst.CSTNode, site: Site) -> cst.CSTNode | None:
    """The statement of ``block`` that a site is in."""
    layout = Layout.of(site.source)
    for around in (site.node, *layout.ancestors(site.node)):
        if isinstance(around, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            if layout.block(around) is block:
                return around
    return None


BOTH_BACKENDS = "cpu:gloo,cuda:nccl"


def with_both_backends(site: Site, title: str) -> Fix | None:
    """A backend for each device, where a process group is started with one that is written in the call."""
    given = argument(call_of(site), 0, "backend")
    if given is None or not isinstance(given.value, cst.SimpleString):
        return None
    edit = Replace(site.source, given.value, f'"{BOTH_BACKENDS}"')
    return Fix(title, (edit,), "safe")


def free_name(site: Site, *wanted: str) -> str:
    """The first of some names that the file does not use."""
    used = {n.value for n in walk(site.source.tree) if isinstance(n, cst.Name)}
    for name in wanted:
        if name not in used:
            return name
    return f"{wanted[-1]}_{len(used)}"


def loop_before(site: Site, call: cst.Call, items: str) -> InsertBefore:
    """A loop above a ``fully_shard`` call that shards the ``items`` with the same arguments."""
    name = free_name(site, "layer", "block", "child", "submodule")
    text = site.source.code(call.func)
    rest = further_arguments(site, call)
    return InsertBefore(site.source, site.node, f"for {name} in {items}:\n    {text}({name}{rest})")
