"""``StateDictType`` as a setting of the program: strings of the same names instead."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Account, Called, Edit, Layout, Program, Reference, Replace, Step

from .._common.loop_text import text_of
from .._common.states_asked import CONTEXT, FULL, KINDS, LOCAL, SETTER, SHARDED
from .._common.states_text import unimports

_WHY = "only the name of a kind of checkpoint now, which the program compares"

_KEPT = "kept: a setting of this program; the enumeration alone uses no FSDP1"


def kinds(program: Program) -> Iterator[Step]:
    """All members of ``StateDictType`` in the program, when each can become its name."""
    if any(True for _ in program.references(CONTEXT, SETTER)):
        return
    references = list(program.references(KINDS, f"{KINDS}.*"))
    if not references:
        return
    if any(called.name in (CONTEXT, SETTER) for _, called in program.of(Called)):
        return  # by way of a class that derives from FSDP1's
    found = [_instead(reference) for reference in references]
    if None in found or not any(_is_made(reference) for reference in references):
        kept = (Account(r.source, r.node, "preserved", _KEPT) for r in references)
        yield Step((), tuple(kept))
        return
    edits: list[Edit] = [edit for edit in found if edit is not None]
    for source in dict.fromkeys(reference.source for reference in references):
        edits += unimports(program, source)
    accounts = tuple(Account(r.source, r.node, "changed", _WHY) for r in references)
    yield Step(tuple(edits), accounts)


def _is_made(reference: Reference) -> bool:
    """Whether a setting may get its value here, and not only be compared: what comes from afar is no string."""
    parent = Layout.of(reference.source).parents[reference.node]
    compared = isinstance(parent, cst.Comparison | cst.ComparisonTarget)
    return not compared and not isinstance(parent, cst.Annotation)


def _instead(reference: Reference) -> Edit | None:
    """A string for a member, ``str`` for the class in an annotation, the key for ``StateDictType[key]``."""
    source, node = reference.source, reference.node
    parent = Layout.of(source).parents[node]
    if isinstance(_comparison(parent), cst.Is | cst.IsNot):
        return None  # two strings that are equal need not be one object
    member = reference.name.removeprefix(KINDS).removeprefix(".").removesuffix(".name")
    if member in (FULL, SHARDED, LOCAL):
        return Replace(source, node, f'"{member}"')
    if member:
        return None
    if isinstance(parent, cst.Annotation):
        return Replace(source, node, "str")
    if isinstance(parent, cst.Subscript) and parent.value is node and len(parent.slice) == 1:
        key = parent.slice[0].slice
        if isinstance(key, cst.Index):
            return Replace(source, parent, text_of(source, key.value))
    return None


def _comparison(node: cst.CSTNode) -> cst.CSTNode | None:
    """The operator that a side of a comparison is compared by."""
    if isinstance(node, cst.ComparisonTarget):
        return node.operator
    return node.comparisons[0].operator if isinstance(node, cst.Comparison) else None
