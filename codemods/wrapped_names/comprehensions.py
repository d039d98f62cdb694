"""Comprehensions that only hand on what they go through."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import Edit, Layout, Names, Replace, Source, Splice, scope_of

from .._common.loop_text import text_of

_MAKERS = {cst.ListComp: "list", cst.SetComp: "set"}
_TAKERS = "list tuple set frozenset sorted sum min max any all enumerate dict zip".split()
"""Builtins that go through any iterable that they are given."""


def all_of(source: Source, side: cst.CSTNode) -> Edit | None:
    """What stands for a comprehension that leaves out the parts that are one side of ``part != prefix``.

    ``[p for p in parts if p != prefix]`` becomes ``list(parts)`` when no part is the prefix any more.
    """
    layout = Layout.of(source)
    test = layout.parents[side] if isinstance(side, cst.ComparisonTarget) else None
    kept = layout.parents[test] if isinstance(test, cst.Comparison) else None
    if not isinstance(test, cst.Comparison) or not isinstance(kept, cst.CompIf):
        return None
    loop = layout.parents[kept]
    plain = len(test.comparisons) == 1 and isinstance(test.comparisons[0].operator, cst.NotEqual)
    if not plain or not isinstance(loop, cst.CompFor) or list(loop.ifs) != [kept]:
        return None
    holder = layout.parents[loop]
    if not isinstance(loop.target, cst.Name) or text_of(source, test.left) != loop.target.value:
        return None
    if not isinstance(holder, cst.ListComp | cst.SetComp | cst.GeneratorExp):
        return None
    name = loop.target.value
    if text_of(source, holder.elt) != name or loop.inner_for_in or loop.asynchronous:
        return None
    return _whole(source, holder, loop)


def plainer(source: Source, element: cst.CSTNode, name: str) -> Edit | None:
    """The replacement of the comprehension that ``element`` fills, when it shall be ``name`` itself.

    ``[f(n) for n in names]`` becomes ``list(names)``; a generator that a call or a loop goes through, what it goes through.
    """
    layout = Layout.of(source)
    comprehension = layout.parents[element]
    if not isinstance(comprehension, cst.ListComp | cst.SetComp | cst.GeneratorExp):
        return None
    loop = comprehension.for_in
    if comprehension.elt is not element or loop.ifs or loop.inner_for_in or loop.asynchronous:
        return None
    if not isinstance(loop.target, cst.Name) or loop.target.value != name:
        return None
    return _whole(source, comprehension, loop)


def _whole(
    source: Source,
    comprehension: cst.ListComp | cst.SetComp | cst.GeneratorExp,
    loop: cst.CompFor,
) -> Edit | None:
    """What a comprehension goes through, in its place."""
    layout = Layout.of(source)
    over = text_of(source, loop.iter)
    if not isinstance(comprehension, cst.GeneratorExp):
        maker = _MAKERS[type(comprehension)]
        own = Names.of(source).owner(maker, scope_of(layout.ancestors(comprehension)))
        return Replace(source, comprehension, f"{maker}({over})") if own is None else None
    if not _goes_through(layout.parents[comprehension], layout, source):
        return None
    return Splice(source, *layout.whole(comprehension), over)


def _goes_through(holder: cst.CSTNode, layout: Layout, source: Source) -> bool:
    """Whether a call or a loop does nothing with a generator but go through it."""
    if isinstance(holder, cst.For | cst.CompFor):
        return True
    call = layout.parents[holder] if isinstance(holder, cst.Arg) else None
    if not isinstance(call, cst.Call) or holder not in call.args:
        return False
    if isinstance(call.func, cst.Attribute):
        return call.func.attr.value == "join" and isinstance(call.func.value, cst.SimpleString)
    return source.code(call.func) in _TAKERS
