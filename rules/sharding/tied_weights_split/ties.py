"""Both ends of a tied weight in one call of ``fully_shard``."""

from __future__ import annotations

import re

import libcst as cst

from fsdp2lint.api import Fix, Layout, Remove, Replace, Site, Trace, Value

from ..._common.fixes import call_of, first_argument, path_text, stands_alone
from ..._common.shared import Shard, shards
from .._common.exposed import reads
from .._common.region import Region, leaves, region

_PATH = re.compile(r"""(\.\w+|\[\d+\]|\[(["'])\w+\2\])+\Z""")
_TITLE = "shard both ends in one call"
_NOTE = (
    "the weight stays gathered from the forward of the one to that of the other: both must compute"
)


def grouped(trace: Trace, one: Shard, other: Shard, ends: tuple[Value, Value]) -> Fix | None:
    """One call for what two shard now, the first of them the module of one end itself.

    None unless both are statements of one block with the same arguments, and nothing between binds their names.
    """
    early, late = (one, other) if one.order < other.order else (other, one)
    between = _between(trace, early, late)
    end = next((one for one in ends if not trace.inside(one, early.module)), None)
    if between is None or end is None or early.module not in ends:
        return None
    calls = {early.event.at.node: early.event, late.event.at.node: late.event}
    if any(calls.get(s.event.at.node, s.event) is not s.event for s in shards(trace)):
        return None  # one of them runs for other modules too
    if late.module is end:
        return _merged(trace, between, early, late)
    return _taken_out(between, early, late, end)


def _between(trace: Trace, early: Shard, late: Shard) -> Region | None:
    """The statements from the one call to the other."""
    found = region(trace, late.event, [early.event])
    if found is None or stands_alone(early.event.at) is None:
        return None
    layout = Layout.of(found.source)
    first, last = found.statements[0], found.statements[-1]
    for site, statement in ((early.event.at, first), (late.event.at, last)):
        if layout.line(layout.statement(site.node)) is not statement:
            return None
        if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
            return None
    return None if any(map(leaves, found.statements[1:-1])) else found


def _merged(trace: Trace, between: Region, early: Shard, late: Shard) -> Fix | None:
    """The second call's module in the first call, or the other way round."""
    if stands_alone(late.event.at) is None or _settings(early) != _settings(late):
        return None
    one, other = _handed(early.event.at), _handed(late.event.at)
    if not one or not other:
        return None
    inner = [s for s in shards(trace) if early.order < s.order < late.order]
    kept, gone = early.event.at, late.event.at
    if any(trace.inside(s.module, late.module) for s in inner) or not _still(between, -1):
        kept, gone = gone, kept
        if any(trace.inside(early.module, s.module) for s in inner) or not _still(between, 0):
            return None
    call = call_of(kept)
    handed = None if call is None else first_argument(call)
    if handed is None:
        return None
    text = f"[{', '.join(dict.fromkeys((*one, *other)))}]"
    edits = (Replace(kept.source, handed, text), Remove(gone.source, gone.node))
    return Fix(_TITLE, edits, "unsafe", _NOTE)


def _taken_out(between: Region, early: Shard, late: Shard, end: Value) -> Fix | None:
    """The end that a module around it would take, in the call of the other one."""
    whole, path = _handed(late.event.at), end.words().removeprefix(late.module.words())
    one = _handed(early.event.at)
    if len(whole) != 1 or not one or not _PATH.match(path) or not _still(between, -1):
        return None
    if not end.words().startswith(late.module.words()):
        return None
    apart = "reshard_after_forward"
    if _settings(early, apart) != _settings(late, apart):
        return None
    call = call_of(early.event.at)
    handed = None if call is None else first_argument(call)
    if handed is None:
        return None
    text = f"[{', '.join((*one, whole[0] + path))}]"
    return Fix(_TITLE, (Replace(early.event.at.source, handed, text),), "unsafe", _NOTE)


def _still(between: Region, place: int) -> bool:
    """Whether a statement at one end of the stretch means the same at the other end."""
    read = reads(between.statements[place])
    return not any(between.writes(one) & read for one in between.statements[1:-1])


def _handed(site: Site) -> list[str]:
    """The modules that a call is given, as they are written; none when one of them is no name or path."""
    call = call_of(site)
    given = None if call is None else first_argument(call)
    nodes: list[cst.BaseExpression | None] = [given]
    if isinstance(given, cst.List | cst.Tuple):
        nodes = [one.value for one in given.elements if isinstance(one, cst.Element)]
        if len(nodes) != len(given.elements):
            return []
    texts = [_text(site, one) for one in nodes]
    return texts if all(texts) else []


def _text(site: Site, node: cst.CSTNode | None) -> str:
    """A path, or one that ends in a key: ``self.parts["head"]``."""
    if isinstance(node, cst.Subscript):
        owner = path_text(site, node.value)
        text = site.source.code(node)
        return text if owner and _PATH.match(text.removeprefix(owner)) else ""
    return path_text(site, node)


def _settings(shard: Shard, *apart: str) -> set[str]:
    """The further arguments of a call, as they are written."""
    call = call_of(shard.event.at)
    return {
        shard.event.at.source.code(one.with_changes(comma=cst.MaybeSentinel.DEFAULT))
        for one in (call.args[1:] if call is not None else ())
        if one.keyword is None or one.keyword.value not in apart
    }
