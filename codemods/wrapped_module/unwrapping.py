"""Branches that do nothing but take FSDP1's wrapper away: they go, for what they took is the module itself.

    while True:                                              while True:
        if isinstance(model, FSDP):                              if isinstance(model, DDP):
            model = model.module                                     model = model.module
        elif isinstance(model, DDP):                             else:
            model = model.module                                     break
        else:
            break

Kept, with ``model = model`` in it, such a branch would be taken again and again.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Account,
    Edit,
    Inner,
    Layout,
    Program,
    Remove,
    Rewrite,
    Source,
    Splice,
    Step,
)

from .._common.loop_classes import class_test
from .._common.loop_text import has_comment, text_of

_INSIDE = "_fsdp_wrapped_module"


def without_branch(
    program: Program, source: Source, node: cst.Attribute, why: str
) -> tuple[Step | None, bool]:
    """The step that takes away the branch in which ``model = node`` is all; and whether there is such a one."""
    branch = _branch(program, source, node)
    if branch is None:
        return None, False
    edits = tuple(_removed(source, branch, Layout.of(source).span(node)[1]))
    accounts = (Account(source, branch.test, "changed", why), Account(source, node, "changed", why))
    return (Step(edits, accounts) if edits else None), True


def _branch(program: Program, source: Source, node: cst.Attribute) -> cst.If | cst.While | None:
    """The ``if``, ``elif`` or ``while`` around, which asks for FSDP1 alone and only unwraps."""
    layout = Layout.of(source)
    small = layout.parents[node]
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return None
    block = layout.parents[layout.parents[small]]
    branch = layout.parents.get(block)
    if not isinstance(branch, cst.If | cst.While) or branch.body is not block:
        return None
    model = text_of(source, node.value)
    alone = len(block.body) == 1 and len(getattr(block.body[0], "body", ())) == 1
    if not alone or text_of(source, small.targets[0].target) != model:
        return None
    return branch if _asks_for_fsdp1(program, source, branch.test, model) else None


def _asks_for_fsdp1(program: Program, source: Source, test: cst.BaseExpression, model: str) -> bool:
    """``isinstance(model, FSDP)`` or ``hasattr(model, "_fsdp_wrapped_module")``."""
    found = class_test(program, source, test)
    if found is not None:
        return found.only_mine and text_of(source, found.subject) == model
    if not isinstance(test, cst.Call) or len(test.args) != 2:
        return False
    said = test.args[1].value
    return (
        isinstance(test.func, cst.Name)
        and test.func.value == "hasattr"
        and text_of(source, test.args[0].value) == model
        and isinstance(said, cst.SimpleString)
        and said.evaluated_value == _INSIDE
    )


def _removed(source: Source, branch: cst.If | cst.While, last: int) -> Iterator[Edit]:
    """The edits that take a branch out of its chain; none where a comment is in the way. Its code ends at ``last``."""
    layout = Layout.of(source)
    rest = branch.orelse
    is_elif = isinstance(layout.parents[branch], cst.If)
    if rest is None and not is_elif:
        yield Remove(source, branch)
    elif isinstance(branch, cst.While):
        return
    elif rest is None:
        start = layout.line_start(layout.span(branch)[0])
        yield Splice(source, start, layout.line_end(last), "")
    elif is_elif or isinstance(rest, cst.If):
        start, end = layout.span(branch)[0], layout.span(rest)[0]
        between = source.text[layout.line_end(last) : end]
        yield Splice(source, start, end - len(between.lstrip()), "")
        if not is_elif:
            yield Splice(source, end, end + len("el"), "")
    else:
        yield from _only_else(source, branch, rest)


def _only_else(source: Source, branch: cst.If, rest: cst.Else) -> Iterator[Edit]:
    """What is under ``else`` is there alone."""
    layout = Layout.of(source)
    lines = list(rest.body.body)
    if not isinstance(rest.body, cst.IndentedBlock):
        return
    if has_comment(source, layout.span(branch)[0], layout.span(lines[-1])[1]):
        return
    outer = layout.indentation(branch)
    indent = layout.indentation(layout.line(lines[0]))

    def build(inner: Inner) -> str:
        texts = (line for one in lines for line in (indent + inner(one)).split(layout.newline))
        shorter = (
            line.replace(indent, outer, 1) if line.startswith(indent) else line for line in texts
        )
        return layout.newline.join(shorter).lstrip()

    yield Rewrite(source, branch, build)
