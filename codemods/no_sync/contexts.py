"""A helper context manager in place of `no_sync()`, where a switch is not possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Account,
    Edit,
    Layout,
    Replace,
    Source,
    Step,
    name_for,
    walk,
)

from .._common.loop_models import FSDP_MODULE
from .._common.loop_text import text_of
from .._common.shared import Build, Helpers, Naming

WHY = "a helper context manager in this file switches the synchronisation off and on"


def by_helper(
    source: Source, sites: Sequence[cst.BaseExpression], ddp: bool, more: str = ""
) -> Step:
    """``no_sync(model)``, a function of the file, in place of ``model.no_sync()``.

    ``sites`` are calls of it, of a name that holds it, or the method where it is not called at once. What is
    held comes from another file when nothing in this one asks for it: then nothing changes here.
    """
    asked = [n for n in sites if not isinstance(n, cst.Call) or isinstance(n.func, cst.Attribute)]
    if len(asked) < len(sites):
        kept = (n for n in walk(source.tree) if _is_kept(source, n) and n not in asked)
        asked += (n for n in kept if isinstance(n, cst.Attribute))
    if not asked:
        return Step((), ())
    layout = Layout.of(source)
    helpers = Helpers.above(source, min(asked, key=lambda n: layout.span(n)[0]))
    name = helpers.add("no_sync", _pausing(ddp))
    edits: list[Edit] = []
    accounts = [Account(source, call, "changed", WHY + more) for call in sites]
    for node in asked:
        if isinstance(node, cst.Call):
            assert isinstance(node.func, cst.Attribute)
            model = text_of(source, node.func.value)
            edits.append(Replace(source, node, f"{name}({model})"))
        else:
            assert isinstance(node, cst.Attribute)
            partial = name_for(source, node, "functools.partial")
            model = text_of(source, node.value)
            edits += (Replace(source, node, f"{partial.text}({name}, {model})"), *partial.edits)
            accounts.append(Account(source, node, "changed", WHY + more))
    return Step((*edits, *helpers.all_edits()), tuple(accounts))


def by_name(source: Source, asked: cst.Call, ddp: bool) -> Step:
    """The same in place of ``getattr(model, "no_sync")``, with or without a default, called at once or not."""
    parents = Layout.of(source).parents
    around = parents[asked]
    called = isinstance(around, cst.Call) and around.func is asked
    place = around if isinstance(around, cst.Call) and called else asked
    helpers = Helpers.above(source, asked)
    name = helpers.add("no_sync", _pausing(ddp=False))
    model = text_of(source, asked.args[0].value)
    paused, edits = f"{name}({model})", [*helpers.all_edits()]
    if not called:
        partial = name_for(source, asked, "functools.partial")
        paused = f"{partial.text}({name}, {model})"
        edits += partial.edits
    if ddp or len(asked.args) > 2:
        sharded = name_for(source, asked, FSDP_MODULE)
        other = source.code(asked) if ddp else text_of(source, asked.args[2].value)
        paused += f" if isinstance({model}, {sharded.text}) else {other}{'()' * called}"
        edits += sharded.edits
        if not isinstance(parents[place], cst.Assign | cst.Return | cst.WithItem):
            paused = f"({paused})"
    edits.append(Replace(source, place, paused))
    return Step(tuple(edits), (Account(source, asked, "changed", WHY, own=True),))


def _is_kept(source: Source, node: cst.CSTNode) -> bool:
    """Whether a node is a ``no_sync`` that is not called at once."""
    if not isinstance(node, cst.Attribute) or node.attr.value != "no_sync":
        return False
    parent = Layout.of(source).parents[node]
    return not (isinstance(parent, cst.Call) and parent.func is node)


def _pausing(ddp: bool) -> Build:
    """A function that does for FSDP2 what ``no_sync`` did for FSDP1, and leaves DDP's as it is."""

    def build(name: str, named: Naming) -> str:
        return "\n".join(_lines(name, named, ddp))

    return build


def _lines(name: str, named: Naming, ddp: bool) -> Iterator[str]:
    yield f"@{named('contextlib.contextmanager')}"
    yield f"def {name}(model):"
    yield '    """Keep gradients back: no rank sends any in a backward inside the block."""'
    if ddp:
        yield f"    if not isinstance(model, {named(FSDP_MODULE)}):"
        yield "        with model.no_sync():"
        yield "            yield"
        yield "        return"
    yield "    model.set_requires_gradient_sync(False)"
    yield "    try:"
    yield "        yield"
    yield "    finally:"
    yield "        model.set_requires_gradient_sync(True)"
