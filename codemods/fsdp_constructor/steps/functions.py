"""Classes derived from FSDP1 whose ``__init__`` only decides what FSDP1 is given: a function does that.

    class Sharded(FSDP):                                  def Sharded(module, policy):
        def __init__(self, module, policy):                   return FSDP(module, auto_wrap_policy=policy)
            super().__init__(module, auto_wrap_policy=policy)

Callers stay as they are; the call in the function is FSDP1's own, which the next round rewrites.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import dedent, indent

import libcst as cst

from fsdp2lint.api import Account, Layout, Program, Replace, Source, Step, dotted, walk

from ..derived import Derived, classes, uses

WHY = "a function of its name does what its `__init__` did"
_SELF = re.compile(r"\A\(\s*self\s*,?[ \t]*")
_NONE = re.compile(r"\)\s*->\s*None\s*:\Z")


def functions(program: Program) -> Iterator[Step]:
    """Such classes, where nothing is done with them but to call them."""
    for one in classes(program):
        init = _init(one)
        named = list(uses(program, one))
        if init is None or not any(_is_called(s, node) for s, node in named):
            continue
        if not all(_is_called(s, n) or isinstance(n, cst.ImportAlias) for s, n in named):
            continue
        text = _function(one, init)
        if text is not None:
            account = Account(one.source, one.node.bases[0], "changed", WHY)
            yield Step((Replace(one.source, one.node, text),), (account,))


def _is_called(source: Source, node: cst.CSTNode) -> bool:
    parent = Layout.of(source).parents[node]
    return isinstance(parent, cst.Call) and parent.func is node


def _init(one: Derived) -> cst.FunctionDef | None:
    """The ``__init__`` that is all that a class of the file adds, and that only leads to FSDP1's."""
    if one.own != ("__init__",) or one.node not in one.source.tree.body:
        return None
    if one.node.decorators or one.node.keywords:
        return None
    found = [n for n in one.node.body.body if isinstance(n, cst.FunctionDef)]
    init = next((n for n in found if n.name.value == "__init__"), None)
    if init is None or init.decorators:
        return None
    first = init.params.params[:1]
    func = _super(init)
    if not first or first[0].name.value != "self" or func is None:
        return None
    read = [n for n in walk(init.body) if isinstance(n, cst.Name) and n.value == "self"]
    mine = {n for n in walk(func) if isinstance(n, cst.Name)}
    returns = any(isinstance(n, cst.Return) for n in walk(init.body, into=False))
    asked = [n for n in walk(init.body) if isinstance(n, cst.Name) and n.value == "super"]
    return None if returns or len(asked) > 1 or any(n not in mine for n in read) else init


def _super(init: cst.FunctionDef) -> cst.Attribute | None:
    """The ``super().__init__`` that the last statement calls; None where it is not all that it does."""
    last = init.body.body[-1] if isinstance(init.body, cst.IndentedBlock) else None
    only = (
        last.body[0] if isinstance(last, cst.SimpleStatementLine) and len(last.body) == 1 else None
    )
    call = only.value if isinstance(only, cst.Expr) else None
    func = call.func if isinstance(call, cst.Call) else None
    if not isinstance(func, cst.Attribute) or func.attr.value != "__init__":
        return None
    asked = isinstance(func.value, cst.Call) and dotted(func.value.func) == "super"
    read = isinstance(call, cst.Call) and all(arg.star != "*" for arg in call.args)
    return func if asked and read else None


def _function(one: Derived, init: cst.FunctionDef) -> str | None:
    """The text of the function; None where its lines cannot be moved."""
    source, layout = one.source, Layout.of(one.source)
    documented = _is_text(one.node.body.body[0])
    func = _super(init)
    if func is None or (documented and _is_text(init.body.body[0])):
        return None
    after = layout.span(init.returns.annotation if init.returns is not None else init.params)[1]
    opened = source.text.index("(", layout.span(init.name)[1])
    colon = source.text.index(":", after) + 1
    body = layout.line_end(colon)
    head = source.text[opened:colon]
    if "#" in head or source.text[colon:body].strip():
        return None
    start, end = layout.span(func)
    base = source.code(one.node.bases[0].value)
    lines = f"{source.text[body:start]}return {base}{source.text[end : layout.span(init)[1]]}"
    if not _may_move(init):
        return None
    head = _NONE.sub("):", _SELF.sub("(", head)).replace("\n" + layout.unit, "\n")
    found = [f"def {one.node.name.value}{head}"]
    if documented:
        found.append(layout.unit + source.text[slice(*layout.span(one.node.body.body[0]))].strip())
    return "\n".join((*found, indent(dedent(lines).strip("\n"), layout.unit)))


def _may_move(init: cst.FunctionDef) -> bool:
    """Whether no string but the first statement goes over several lines: those would change."""
    first = set(walk(init.body.body[0])) if _is_text(init.body.body[0]) else set()
    strings = cst.SimpleString | cst.FormattedString
    others = (node for node in walk(init.body) if isinstance(node, strings) and node not in first)
    return not any(_quotes(node) for node in others)


def _quotes(string: cst.SimpleString | cst.FormattedString) -> bool:
    """Whether a string is in three quotes."""
    start = string.quote if isinstance(string, cst.SimpleString) else string.start
    return start.endswith(('"""', "'''"))


def _is_text(node: cst.CSTNode) -> bool:
    only = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
    return isinstance(only, cst.Expr) and isinstance(only.value, cst.SimpleString)
