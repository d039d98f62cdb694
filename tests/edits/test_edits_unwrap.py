"""Edits that dissolve a `with`: the body moves out, comments and formatting stay."""

from __future__ import annotations

import ast

import libcst as cst
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdp2lint.edits.apply import combine, resolve
from fsdp2lint.edits.changes import Conflict
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.statements import InsertAfter, InsertBefore, Remove, Unwrap, Wrap
from fsdp2lint.edits.text import Replace
from fsdp2lint.source.source import Source
from fsdp2lint.source.walk import walk
from tests.edits.test_edits_laws import after, comments, sources, statements
from tests.support.editing import edited, find

DISSOLVED = [
    ("with a:\n    b()\n", "b()\n", "x\nb()\n"),
    ("with a:\n    b()", "b()", "x\nb()"),
    ("with a: b(); c()  # t\nd\n", "b(); c()  # t\nd\n", None),
    ("with a:  # why\n    b()\n", "# why\nb()\n", "x  # why\nb()\n"),
    ("with (\n    # p\n    a  # q)\n):\n    b()\n", "# p\n# q)\nb()\n", "# p\n# q)\nx\nb()\n"),
    ("# up\nwith a:\n\n    # c\n    b()\n    # foot\nd\n", "# up\n# c\nb()\n# foot\nd\n", None),
    (
        "if y:\r\n\twith a:\r\n\t\tif b:\r\n\t\t\tc()\r\n\r\n\t\td()\r\n",
        "if y:\r\n\tif b:\r\n\t\tc()\r\n\r\n\td()\r\n",
        "if y:\r\n\tx\r\n\tif b:\r\n\t\tc()\r\n\r\n\td()\r\n",
    ),
    (
        'with a:\n    b = """\n    s\n"""\n    c(\n  1,\n        2,\n    )\n',
        'b = """\n    s\n"""\nc(\n  1,\n    2,\n)\n',
        None,
    ),
    ("with a:\n    @d\n    def f():\n        return 1\n", "@d\ndef f():\n    return 1\n", None),
]

ITEMS = [
    ("with a, b():\n    c()\n", "b()", "with a:\n    c()\n"),
    ("with b(), a as d:\n    c()\n", "b()", "with a as d:\n    c()\n"),
    ("with a, b() as d, e:\n    c()\n", "b() as d", "with a, e:\n    c()\n"),
    ("with (a, b()): c()\n", "b()", "with (a): c()\n"),
    (
        "with (\n    a,  # )\n    b(),  # y\n    c,\n):\n    d()\n",
        "b()",
        "with (\n    a,  # )\n    c,\n):\n    d()\n",
    ),
]


def block(source: Source) -> cst.With:
    """The first `with`."""
    return next(node for node in walk(source.tree) if isinstance(node, cst.With))


@pytest.mark.parametrize(("text", "bare", "instead"), DISSOLVED)
def test_a_with_goes_from_around_its_statements(text: str, bare: str, instead: str | None) -> None:
    source = Source("a.py", text)
    assert edited(source, Unwrap(source, block(source))) == bare
    if instead is not None:
        assert edited(source, Unwrap(source, block(source), "x")) == instead


@pytest.mark.parametrize(("text", "item", "after"), ITEMS)
def test_only_one_of_several_items_goes(text: str, item: str, after: str) -> None:
    source = Source("a.py", text)
    node = block(source)
    gone = next(i for i in node.items if text[slice(*Layout.of(source).span(i))] == item)
    assert edited(source, Unwrap(source, node, item=gone)) == after
    assert edited(source, Unwrap(source, node, "x", item=gone)) == f"x\n{after}"


def test_the_only_item_is_the_whole_with() -> None:
    source = Source("a.py", "with a:\n    b()\n")
    assert edited(source, Unwrap(source, block(source), "x", item=block(source).items[0])) == (
        "x\nb()\n"
    )


def test_edits_inside_and_beside_are_made_too() -> None:
    source = Source("a.py", "with a(p):\n    # c\n    b(1)\n    d()\ne\n")
    node = block(source)
    unwrap = Unwrap(source, node, lambda new: f"s({new(find(source, 'p'))})")
    assert (
        edited(
            source,
            unwrap,
            Replace(source, find(source, "p"), "q"),
            Replace(source, find(source, "1"), "2"),
            InsertBefore(source, find(source, "b(1)"), "first()"),
            Remove(source, find(source, "d()")),
            InsertAfter(source, node, "last()"),
        )
        == "s(q)\nfirst()\n# c\nb(2)\nlast()\ne\n"
    )


def test_nested_blocks_go_together() -> None:
    source = Source("a.py", "with a:\n    with b:\n        c()\n")
    outer = block(source)
    inner = outer.body.body[0]
    assert isinstance(inner, cst.With)
    assert edited(source, Unwrap(source, outer, "x"), Unwrap(source, inner, "y")) == "x\ny\nc()\n"


def test_what_two_fixes_ask_for_is_made_once() -> None:
    source = Source("a.py", "with a:\n    b()\n")
    outcome = combine([[Unwrap(source, block(source), "x")], [Unwrap(source, block(source), "x")]])
    assert outcome.texts == {source: "x\nb()\n"}
    assert not outcome.left


def test_a_with_does_not_go_twice() -> None:
    source = Source("a.py", "with a:\n    b()\n")
    node = block(source)
    with pytest.raises(Conflict):
        resolve([Remove(source, node), Unwrap(source, node)])
    with pytest.raises(Conflict):
        resolve([Unwrap(source, node, "x"), Unwrap(source, node, "y")])


def test_what_cannot_go() -> None:
    source = Source("a.py", "async def f():\n    async with a:\n        b()\n")
    node = block(source)
    with pytest.raises(ValueError, match="plain"):
        Unwrap(source, node)
    other = Source("b.py", "with a:\n    b()\nwith c: d()\n")
    with pytest.raises(ValueError, match="item"):
        Unwrap(other, block(other), item=cst.WithItem(cst.Name("a")))


class _Dissolve(ast.NodeTransformer):
    """Puts the statements of every `with` in its place."""

    def visit_With(self, node: ast.With) -> list[ast.stmt]:
        self.generic_visit(node)
        return node.body


@given(sources())
def test_any_with_can_go(source: Source) -> None:
    blocks = [node for node in walk(source.tree) if isinstance(node, cst.With)]
    text = after(source, *(Unwrap(source, node) for node in blocks))
    assert comments(text) == comments(source.text)
    assert ast.dump(ast.parse(text)) == ast.dump(_Dissolve().visit(ast.parse(source.text)))


@given(sources(), st.data())
def test_what_was_wrapped_can_be_unwrapped(source: Source, data: st.DataObject) -> None:
    node = data.draw(st.sampled_from(statements(source)))
    wrapped = Source("a.py", after(source, Wrap(source, node, "with wrapped:")))
    added = next(n for n in walk(wrapped.tree) if isinstance(n, cst.With) and _is_added(n))
    text = after(wrapped, Unwrap(wrapped, added))
    assert comments(text) == comments(source.text)
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(source.text))


def _is_added(node: cst.With) -> bool:
    item = node.items[0].item
    return isinstance(item, cst.Name) and item.value == "wrapped"
