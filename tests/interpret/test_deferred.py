"""A tree whose function bodies are parsed later is the tree that libcst makes of the whole text."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import libcst as cst
import pytest

from fsdp2lint.interpret.entries import traces
from fsdp2lint.model.events import Called
from fsdp2lint.project.project import Project
from fsdp2lint.source import deferred
from fsdp2lint.source.deferred import outlined, says, unread
from fsdp2lint.source.source import Source

LAYOUTS = {
    "comments around": (
        "def f(a):  # head\n    # first\n\n    x = a\n    if x:\n        y\n\n        # deeper\n"
        "    # own\n# outer\n\nz = 1\n"
    ),
    "a shallow comment before a deeper one": (
        "def f(a):\n    if a:\n        y\n# shallow\n        # deep\n    # own\nz\n"
    ),
    "a comment left of the body": "def f():\n# left\n    x = 1\n\n\n\ndef g(): pass\n",
    "methods and nested functions": (
        "class A:\n    '''doc'''\n\n    @d\n    def f(self):\n        def g():\n            return 1\n"
        "        return g\n\n    async def h(self):\n        await x\n        async with y: pass\n"
    ),
    "under branches": (
        "try:\n  import a\nexcept E:\n  def f():\n      x\n      y\nelse:\n  if b:\n   def g():\n     z\n"
        "match q:\n  case 1:\n    def h():\n      yield 1\n"
    ),
    "a header of many lines": (
        "def f(\n    a,\n    b='''\n# no comment\n''',\n    # a comment\n) -> (\n    int\n):\n"
        "    # first\n    @dec\n    def g():\n        pass\n    return a\n"
    ),
    "a decorator of many lines": "def f():\n    @(\n        d\n    )\n    def g(): ...\n    return g\n",
    "one line, and a continued one": "def f(): return 1\ndef g():\\\n  return 2\nx = [f, g]\n",
    "windows": "def f(a):\r\n\tx = a\r\n\tif x:\r\n\t\treturn 1\r\n\r\nz = f\r\n",
    "no newline at the end": "def f(a):\n  x = '''\nabc\n'''\n  return x; y",
    "a comment at the end": "def f(a):\n  x = 1; y = 2  # c\n  # end",
}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every body is deferred, however short."""
    monkeypatch.setattr(deferred, "WORTH_DEFERRING", 0)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS)
def test_the_tree_becomes_that_of_the_whole_text(text: str) -> None:
    whole = cst.parse_module(text)
    tree = outlined(text, cst.parse_module) or whole
    _touch(tree)
    assert tree.deep_equals(whole)
    assert tree.code == text


@pytest.mark.usefixtures("eager")
def test_the_trees_of_our_own_files() -> None:
    folder = Path(__file__).parents[2] / "fsdp2lint" / "interpret"
    for path in sorted({*folder.rglob("*.py")} - {folder / "__init__.py"}):
        text = path.read_text(encoding="utf-8")
        tree = outlined(text, cst.parse_module)
        assert tree is not None
        _touch(tree)
        assert tree.deep_equals(cst.parse_module(text))


def _touch(node: cst.CSTNode) -> None:
    """Look into everything."""
    for field in fields(node):
        held = getattr(node, field.name)
        for one in held if isinstance(held, list | tuple) else [held]:
            if isinstance(one, cst.CSTNode):
                _touch(one)


@pytest.mark.usefixtures("eager")
def test_a_body_is_parsed_when_it_is_looked_into() -> None:
    parsed: list[str] = []

    def parse(text: str) -> cst.Module:
        parsed.append(text)
        return cst.parse_module(text)

    tree = outlined("def f():\n    one()\n\ndef g():\n    two()\n", parse)
    assert tree is not None
    f, g = (node for node in tree.body if isinstance(node, cst.FunctionDef))
    assert says(f.body, "one")
    assert not says(f.body, "yield")
    assert len(parsed) == 1
    assert tree.code_for_node(f.body.body[0]).strip() == "one()"
    assert len(parsed) == 2
    assert "two" not in "".join(parsed)
    assert not unread(g)
    assert "two" in parsed[2]


@pytest.mark.usefixtures("eager")
def test_a_body_that_libcst_cannot_parse_is_of_unknown_content(tmp_path: Path) -> None:
    """Python takes ``() if 0 else(lambda: ())``, libcst does not."""
    (tmp_path / "lib.py").write_text(
        "import torch\n\ndef odd():\n    x = () if 0 else(lambda: ())\n    return 1\n"
        "\ndef plain():\n    return torch.save({}, 'x')\n"
    )
    source = Source(str(tmp_path / "use.py"), "import lib\nprint(lib.odd())\nlib.plain()\n")
    names = [e.name for t in traces(Project.of([source])) for e in t.of(Called)]
    assert "torch.save" in names


@pytest.mark.parametrize("text", ["x = 1\n", "def f(:\n", "def f():\n\f    x\n", "def f():\r  x\r"])
def test_what_has_no_bodies_or_another_layout_is_parsed_at_once(text: str) -> None:
    assert outlined(text, cst.parse_module) is None
