"""Both classes where a project builds no model: a caller may pass one of FSDP1 or one of ``fully_shard``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    BOTH_CLASSES,
    Account,
    Called,
    Layout,
    Left,
    Program,
    Replace,
    Source,
    Step,
    name_for,
    walk,
)

from .._common.both_classes import STAYS, guards_fsdp1
from .._common.loop_models import FSDP1, FSDP_MODULE
from .._common.loop_text import text_of
from .apart import beside_fsdp2


def both_classes(program: Program) -> Iterator[Step | Left]:
    """FSDP1's class and FSDP2's in tests and annotations, but for what only FSDP1 has."""
    for reference in program.references(FSDP1):
        source, node = reference.source, reference.node
        parent = Layout.of(source).parents[node]
        if isinstance(parent, cst.ImportAlias | cst.Attribute):
            continue
        if guards_fsdp1(program, source, node):
            yield Step((), (Account(source, node, "preserved", STAYS),))
        elif beside_fsdp2(program, source, node) is not None or _is_beside(source, node):
            yield Step((), (Account(source, node, "changed", BOTH_CLASSES),))
        else:
            name = name_for(source, node, FSDP_MODULE)
            text = _with(source, node, name.text)
            yield Step(
                (Replace(source, node, text), *name.edits),
                (Account(source, node, "changed", BOTH_CLASSES),),
            )
    for events in program.sites(Called):
        called, call = events[0][1], events[0][1].at.node
        if called.name in (f"{FSDP1}.fsdp_modules", ".fsdp_modules") and isinstance(call, cst.Call):
            yield _listed(called.at.source, call)


def _is_beside(source: Source, node: cst.CSTNode) -> bool:
    """Whether both classes are in the same tuple, union or subscript."""
    layout = Layout.of(source)
    around = layout.parents[node]
    while isinstance(around, cst.Element | cst.Index | cst.SubscriptElement):
        around = layout.parents[around]
    if not isinstance(around, cst.Tuple | cst.BinaryOperation | cst.Subscript):
        return False
    return any(
        (isinstance(one, cst.Name) and one.value == "FSDPModule")
        or (isinstance(one, cst.Attribute) and one.attr.value == "FSDPModule")
        for one in walk(around)
    )


def _with(source: Source, node: cst.BaseExpression, other: str) -> str:
    """The class with the other beside it, as the place asks for several."""
    layout, text = Layout.of(source), text_of(source, node)
    parent = layout.parents[node]
    if isinstance(parent, cst.Element):
        return f"{text}, {other}"
    if isinstance(parent, cst.Arg):
        return f"({text}, {other})"
    around = layout.parents[layout.parents[parent]] if isinstance(parent, cst.Index) else parent
    if isinstance(around, cst.Subscript) and text_of(source, around.value).endswith("Union"):
        return f"{text}, {other}"
    return f"{text} | {other}"


def listed(model: str, classes: str) -> str:
    """The text of a list of those modules of a model that are of some classes."""
    one = "module" if re.search(r"\bm\b", model) else "m"
    return f"[{one} for {one} in {model}.modules() if isinstance({one}, {classes})]"


def _listed(source: Source, call: cst.Call) -> Step | Left:
    """The modules of both kinds in place of ``FSDP.fsdp_modules(model)``."""
    if len(call.args) != 1 or call.args[0].star or call.args[0].keyword is not None:
        why = "which of its modules are roots is known only when the program runs"
        return Left(source, call, why, "list the models that are sharded last")
    both = [name_for(source, call, one) for one in (FSDP1, FSDP_MODULE)]
    model, classes = text_of(source, call.args[0].value), ", ".join(one.text for one in both)
    text = listed(model, f"({classes})")
    edits = (Replace(source, call, text), *(edit for one in both for edit in one.edits))
    return Step(edits, (Account(source, call, "changed", BOTH_CLASSES),))
