"""Edits of expressions: replacing, rewriting, nesting, conflicts."""

from __future__ import annotations

import libcst as cst
import pytest

from fsdp2lint.edits.apply import combine, resolve
from fsdp2lint.edits.changes import Conflict, Inner
from fsdp2lint.edits.statements import Remove
from fsdp2lint.edits.text import Replace, Rewrite, Splice
from fsdp2lint.source.source import Source
from fsdp2lint.source.walk import walk
from tests.support.editing import call, edited, find


def test_replace_keeps_everything_around() -> None:
    source = Source("a.py", "x = (  # why\n    model.forward  # this\n)(y)  # end\n")
    after = edited(source, Replace(source, find(source, "forward"), "run"))
    assert after == source.text.replace("forward", "run")


def test_a_node_keeps_its_own_parentheses() -> None:
    source = Source("a.py", "f((a))\n")
    assert edited(source, Replace(source, call(source).args[0].value, "b")) == "f((b))\n"


def test_implicit_concatenation_is_one_node() -> None:
    source = Source("a.py", 'f(\n    "cpu:gloo,"  # cpu\n    "cuda:nccl",\n)\n')
    text = call(source).args[0].value
    assert isinstance(text, cst.ConcatenatedString)
    assert edited(source, Replace(source, text, '"gloo"')) == 'f(\n    "gloo",\n)\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = a.b\n", "x = (p or q).b\n"),
        ("x = a * 2\n", "x = (p or q) * 2\n"),
        ("x = not a\n", "x = not (p or q)\n"),
        ("x = a\n", "x = p or q\n"),
        ("x = f(a)\n", "x = f(p or q)\n"),
        ("x = (a).b\n", "x = (p or q).b\n"),
        ("x = y[a]\n", "x = y[p or q]\n"),
    ],
)
def test_a_looser_expression_gets_parentheses_where_it_needs_them(before: str, after: str) -> None:
    source = Source("a.py", before)
    assert edited(source, Replace(source, _name(source), "p or q")) == after


def _name(source: Source) -> cst.CSTNode:
    return next(n for n in walk(source.tree) if isinstance(n, cst.Name) and n.value == "a")


def test_rewrites_nest() -> None:
    source = Source("a.py", "FSDP(model, mixed_precision=MixedPrecision(torch.bfloat16))  # go\n")
    outer = call(source)
    inner = outer.args[1].value

    def build(new: Inner) -> str:
        return f"fully_shard({new(outer.args[0].value)}, mp_policy={new(inner)})"

    assert isinstance(inner, cst.Call)
    edits = (
        Rewrite(source, outer, build),
        Replace(source, inner.func, "MixedPrecisionPolicy"),
        Rewrite(source, inner.args[0].value, lambda new: new.text.replace("bfloat16", "float16")),
    )
    expected = "fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.float16))  # go\n"
    assert edited(source, *edits) == edited(source, *reversed(edits)) == expected


def test_a_child_that_stands_bare_gets_parentheses_elsewhere() -> None:
    source = Source("a.py", "sum(x for x in y)\n")
    outer = call(source)
    edit = Rewrite(source, outer, lambda new: f"f({new(outer.args[0].value)}, 1)")
    assert edited(source, edit) == "f((x for x in y), 1)\n"


def test_a_dropped_inner_edit_is_a_conflict() -> None:
    source = Source("a.py", "f(g(x))\n")
    outer = call(source)
    inner = Replace(source, find(source, "x"), "y")
    with pytest.raises(Conflict):
        resolve((Replace(source, outer, "z"), inner))
    left = combine([(inner,), (Replace(source, outer, "z"),)]).left
    assert [(one.index, one.again) for one in left] == [(1, True)]


def test_what_stands_in_a_removed_statement_goes_with_it() -> None:
    source = Source("a.py", "f(x)\ng(x)\n")
    first = find(source, "f(x)")
    gone = (Remove(source, first), Replace(source, call(source).args[0].value, "y"))
    assert edited(source, *gone) == "g(x)\n"
    assert [one.index for one in combine([gone[:1], gone[1:]]).left] == [1]


def test_the_first_of_two_that_conflict_wins_and_the_rest_goes_on() -> None:
    source = Source("a.py", "f(x)\ng(y)\n")
    fixes = [
        (Replace(source, find(source, "x"), "1"),),
        (Replace(source, find(source, "x"), "2"), Replace(source, find(source, "y"), "3")),
        (Replace(source, find(source, "g"), "h"),),
    ]
    outcome = combine(fixes)
    assert outcome.texts == {source: "f(1)\nh(y)\n"}
    assert [(one.index, one.again) for one in outcome.left] == [(1, True)]


def test_two_fixes_that_want_the_same_are_both_made() -> None:
    source = Source("a.py", "f(x)\n")
    outcome = combine([(Replace(source, find(source, "x"), "y"),) for _ in range(2)])
    assert outcome.texts == {source: "f(y)\n"}
    assert not outcome.left


def test_a_fix_touches_several_files() -> None:
    one, two = Source("a.py", "x\n"), Source("b.py", "y\n")
    edits = (Replace(one, find(one, "x"), "1"), Replace(two, find(two, "y"), "2"))
    assert combine([edits]).texts == {one: "1\n", two: "2\n"}


def test_an_edit_that_changes_nothing_is_no_edit() -> None:
    source = Source("a.py", "f( x )\r\n")
    same = (
        Replace(source, find(source, "x"), "x"),
        Rewrite(source, call(source).func, lambda new: new.text),
        Splice(source, 0, 0, ""),
    )
    assert resolve(same) == {}


def test_a_node_of_another_source_is_refused() -> None:
    source, other = Source("a.py", "x\n"), Source("b.py", "x\n")
    with pytest.raises(ValueError, match="not a node of"):
        resolve((Replace(source, find(other, "x"), "y"),))


@pytest.mark.parametrize("text", ["\x0cx = 1\n", "if x:\n    a\n\x0c    b\n"])
def test_a_file_that_the_parser_does_not_give_back_is_left_alone(text: str) -> None:
    source = Source("a.py", text)
    name = next(n for n in walk(source.tree) if isinstance(n, cst.Name))
    edit = Replace(source, name, "y")
    with pytest.raises(ValueError, match="does not reproduce"):
        resolve((edit,))
    assert [(one.index, one.again) for one in combine([(edit,)]).left] == [(0, False)]


def test_offsets_count_what_libcst_calls_a_line() -> None:
    source = Source("a.py", "s = '\u2028\x0b\x85'; x = 1\r\ny = '\x1c'; z = 2\r\n")
    after = edited(
        source, Replace(source, find(source, "1"), "3"), Replace(source, find(source, "2"), "4")
    )
    assert after == source.text.replace("1", "3").replace("2", "4")
