"""Our own positions and import tables are what libcst's say."""

from __future__ import annotations

from pathlib import Path

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider

from fsdp2lint.ask.program import _by_libcst
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.names import Names, dotted
from fsdp2lint.project.bindings import bindings
from fsdp2lint.source.reading import read
from fsdp2lint.source.source import Range, Source
from tests.support.running import ROOT

FILES = sorted((ROOT / "fixtures" / "traces").rglob("*.py"))
EACH = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)

ODD = [
    "",
    "\n",
    "x = 1",
    "# only a comment",
    "if a:\r\n    b = (\r\n        1, # c\r\n    )\r\nelse: pass\r\n",
    "@d\n# between\n@e(1)\nclass A(B):\n\n    x: int = 1 ; y = 2\n",
    "x = \\\n    1\n\n\n\n# end\n",
    "def f(a, /, b=1, *, c): return f'{a!r:>{b}}' 'ü' + s\n",
    "\tx\n" and "while x:\n\tx -= 1\nelse:\n\tpass",
    "try:\n    pass\nexcept* E as e:\n    raise\nfinally:\n    del a, b\n",
    "match x:\n    case [1, *_] if y: pass\n    case {'a': b, **c}: pass\n",
]


def same_positions(source: Source) -> None:
    theirs = MetadataWrapper(source.tree, unsafe_skip_copy=True).resolve(PositionProvider)
    assert theirs
    for node, at in theirs.items():
        start, end = at.start, at.end
        expected = Range(start.line, start.column + 1, end.line, end.column + 1)
        assert source.range(node) == expected, type(node).__name__


@EACH
def test_positions(path: Path) -> None:
    same_positions(read(path))


@pytest.mark.parametrize("text", ODD)
def test_positions_of_odd_texts(text: str) -> None:
    same_positions(Source("x.py", text))


def test_a_node_of_another_tree_has_no_place() -> None:
    other = Source("y.py", "y = 2\n").tree
    assert Source("x.py", "\n\nx = 1\n").range(other.body[0]) == Range(1, 1, 1, 1)


IMPORTS = """\
import a, b.c, d.e as f
from tests import g
from ..h import i as j, k
from l import *
try:
    from m import n
except ImportError:
    n = None
    from o import n, p as q
else:
    import a as r
if x:
    from .s import *
for y in z:
    from t import u
def f():
    import v
    from w import *
class C:
    import v
with x:
    import a.deeper
match x:
    case 1:
        from t import w
"""


@pytest.mark.parametrize("path", [None, *FILES], ids=lambda path: getattr(path, "stem", "imports"))
def test_import_tables(path: Path | None) -> None:
    source = Source("x.py", IMPORTS) if path is None else read(path)
    ours, theirs = bindings(source.text), _by_libcst(source)
    assert ours is not None
    assert (ours.names, ours.stars) == (theirs.names, theirs.stars)
    assert ours.renamed <= ours.bound <= theirs.bound
    own, parents = Names.of(source), Layout.of(source).parents
    for name, nodes in own.bindings.get(own.tree, {}).items():
        for node in nodes:
            assign = parents.get(node)
            if isinstance(node, cst.AssignTarget) and isinstance(assign, cst.Assign):
                assert name in ours.bound
                if isinstance(node.target, cst.Name) and "." in dotted(assign.value):
                    assert name in ours.renamed


def test_a_text_that_is_too_new() -> None:
    assert bindings("from a import b\nx = (\n") is None
