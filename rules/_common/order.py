"""What cannot follow on what, whatever is known of the tests between."""

from __future__ import annotations

from functools import lru_cache

import libcst as cst

from fsdp2lint.api import Event, Layout, Site, Source


def returned_from(earlier: Event, later: Event) -> bool:
    """Whether the function in which both happen returns with the earlier one: it never comes to the later."""
    paths = [(*one.calls, one.at) for one in (earlier, later)]
    for mine, theirs in zip(*paths, strict=False):
        if mine.node is not theirs.node:
            left = _around(mine, cst.Return)
            if left is None or stands_in(theirs, cst.Finally):
                return False
            if _function(mine) is not _function(theirs):  # a framework calls both from one place
                return False
            return all(left is not above for above in _above(theirs))
    return False


def stands_in(site: Site, kind: type[cst.CSTNode]) -> bool:
    """Whether a statement of a kind is around a site, within its function."""
    return _around(site, kind) is not None


def _around(site: Site, kind: type[cst.CSTNode]) -> cst.CSTNode | None:
    for around in (site.node, *_above(site)):
        if isinstance(around, cst.FunctionDef | cst.Lambda):
            return None
        if isinstance(around, kind):
            return around
    return None


def _function(site: Site) -> cst.CSTNode | None:
    functions = (n for n in _above(site) if isinstance(n, cst.FunctionDef | cst.Lambda))
    return next(functions, None)


def _above(site: Site) -> tuple[cst.CSTNode, ...]:
    return _ancestors(site.source, site.node)


@lru_cache(maxsize=4096)
def _ancestors(source: Source, node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    return tuple(Layout.of(source).ancestors(node))
