"""Laws of edits over generated files: what no edit touches stays, byte for byte."""

from __future__ import annotations

import io
import tokenize

import libcst as cst
from hypothesis import given
from hypothesis import strategies as st

from fsdp2lint.edits.apply import combine, compose, resolve
from fsdp2lint.edits.changes import Span, apply
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.statements import InsertAfter, InsertBefore, Move, Remove, Wrap
from fsdp2lint.edits.text import Edit, Replace, Rewrite
from fsdp2lint.source.source import Source
from fsdp2lint.source.walk import walk

SMALL = (
    "a()",
    "b = c",
    "d.e(f, g=(h))",
    'i = """j\n  k"""',
    "l = 'm' \\\n  'n'",
    "return",
    "o(\n 1,  # p\n)",
)
HEADS = (
    "if q:",
    "for r in s:",
    "while t:",
    "with u as v:",
    "def w(x, y=1):",
    "@z\nclass aa:",
    "try:",
)


@st.composite
def blocks(draw: st.DrawFn, depth: int = 0) -> list[str]:
    """The lines of a block."""
    unit = draw(st.sampled_from(("    ", "\t", "  ")))
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        lines += draw(st.sampled_from(([], [], [""], ["# note"], ["", "# one", "# two"])))
        if depth < 2 and draw(st.booleans()):
            head = draw(st.sampled_from(HEADS))
            if draw(st.booleans()):
                lines.append(f"{head} {draw(st.sampled_from(SMALL[:3]))}; bb  # why")
            else:
                lines.append(head)
                lines += [unit + one if one else one for one in draw(blocks(depth + 1))]
            lines += ["finally: cc()"] if head == "try:" else []
        else:
            some = draw(st.lists(st.sampled_from(SMALL), min_size=1, max_size=3))
            lines.append("; ".join(some) + draw(st.sampled_from(("", ";", "  # end"))))
    return [part for line in lines for part in _physical(line)]


def _physical(line: str) -> list[str]:
    """Only first lines are indented: what follows stands inside a string, brackets or a decorator."""
    first, *rest = line.split("\n")
    if first == "@z":
        return [first, *rest]
    return ["\n".join((first, *rest))]


@st.composite
def sources(draw: st.DrawFn) -> Source:
    """A file of any newline, with and without an end to its last line."""
    newline = draw(st.sampled_from(("\n", "\r\n")))
    text = "\n".join(("def main():", *("    " + one if one else one for one in draw(blocks()))))
    text = draw(st.sampled_from(("", "#!sh\n", "'''doc'''\n"))) + text
    text += draw(st.sampled_from(("", "\n", "\n# foot\n")))
    return Source("a.py", text.replace("\n", newline))


def statements(source: Source) -> list[cst.CSTNode]:
    """All statements."""
    kinds = cst.BaseSmallStatement | cst.BaseCompoundStatement
    return [node for node in walk(source.tree) if isinstance(node, kinds)]


def comments(text: str) -> list[str]:
    """The comments, sorted."""
    tokens = tokenize.generate_tokens(io.StringIO(text, newline="").readline)
    return sorted(token.string for token in tokens if token.type == tokenize.COMMENT)


def after(source: Source, *edits: Edit) -> str:
    """The text after the edits, which parses and is given back by the parser."""
    text = apply(source.text, resolve(edits).get(source, ()))
    assert Source("a.py", text).tree.code == text
    return text


@given(sources(), st.data())
def test_replacing_names_changes_nothing_else(source: Source, data: st.DataObject) -> None:
    names = [n for n in walk(source.tree) if isinstance(n, cst.Name)]
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=5))
    layout = Layout.of(source)
    spans = sorted(layout.span(name) for name in chosen)
    pieces, at = [], 0
    for start, end in spans:
        pieces += [source.text[at:start], "new_name"]
        at = end
    edits = [Replace(source, name, "new_name") for name in chosen]
    assert after(source, *edits) == "".join((*pieces, source.text[at:]))


@given(sources(), st.data())
def test_an_identity_at_any_node_is_no_edit(source: Source, data: st.DataObject) -> None:
    nodes = [n for n in walk(source.tree) if isinstance(n, cst.BaseExpression)]
    chosen = data.draw(st.lists(st.sampled_from(nodes), unique=True, max_size=4))
    assert resolve([Rewrite(source, node, lambda new: new.text) for node in chosen]) == {}


@given(sources(), st.data(), st.booleans())
def test_an_insertion_only_inserts(source: Source, data: st.DataObject, below: bool) -> None:
    node = data.draw(st.sampled_from(statements(source)))
    kind = InsertAfter if below else InsertBefore
    text = after(source, kind(source, node, "inserted()"))
    assert comments(text) == comments(source.text)
    lines = text.split(Layout.of(source).newline)
    assert [line.strip() for line in lines].count("inserted()") == 1
    there = iter("".join(text.split()))
    assert all(
        character in there for character in "".join(source.text.split()) if character not in ";\\"
    )


@given(sources(), st.data())
def test_a_removal_keeps_the_comments_of_others(source: Source, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(statements(source)), unique=True, max_size=4))
    outcome = combine([(Remove(source, node),) for node in chosen])
    text = outcome.texts.get(source, source.text)
    assert Source("a.py", text).tree.code == text
    assert not set(comments(text)) - set(comments(source.text))
    if text:
        assert text.endswith(("\n", "\r")) == source.text.endswith(("\n", "\r"))


@given(sources(), st.data())
def test_a_wrapped_statement_is_the_same_statement(source: Source, data: st.DataObject) -> None:
    node = data.draw(st.sampled_from(statements(source)))
    text = after(source, Wrap(source, node, "if wrapped:"))
    assert comments(text) == comments(source.text)
    assert "if wrapped:" in text


@given(sources(), st.data())
def test_a_moved_statement_keeps_its_comments(source: Source, data: st.DataObject) -> None:
    node = data.draw(st.sampled_from(statements(source)))
    layout = Layout.of(source)
    block = layout.block(node)
    others = [n for n in statements(source) if n is not node and layout.block(n) is block]
    if others:
        target = data.draw(st.sampled_from(others))
        text = after(source, Move(source, node, after=target))
        assert comments(text) == comments(source.text)


def spans(data: st.DataObject, text: str) -> list[Span]:
    """Replacements of a text that do not overlap."""
    marks = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    marks = marks[: len(marks) // 2 * 2]
    return [
        Span(a, b, data.draw(st.text("xyz", max_size=3)))
        for a, b in zip(marks[::2], marks[1::2], strict=True)
    ]


@given(st.text("abc", max_size=12), st.data())
def test_composed_replacements_do_what_the_two_do(text: str, data: st.DataObject) -> None:
    first = spans(data, text)
    middle = apply(text, first)
    second = spans(data, middle)
    assert apply(text, compose(text, first, second)) == apply(middle, second)
