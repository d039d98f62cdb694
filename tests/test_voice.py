"""Words that this project has retired do not come back into anything that a user reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = ("fsdp2lint", "rules", "codemods")
PROSE = (
    *sorted(ROOT.glob("*.md")),
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if "reference" not in p.parts),
    *sorted(p for p in (ROOT / ".github").rglob("*") if p.suffix in (".md", ".yml")),
)

INSTEAD = {
    r"in sight": "resolved",
    r"out of sight": "unresolved",
    r"nobody|no one": "say what does not happen: `is never awaited`",
    r"(nothing|it|that|which|one|this) (is|are) (not )?said": "is reported",
    r"told": "reported, named, distinguished",
    r"asked of": "called on, requested by",
    r"hung into": "added to",
    r"(stands?|stood)(?!-| for\b| in for\b)": "is, is written",
    r"(comes?|came) to": "reaches, gives, was added to",
    r"ha(s|ve) been met": "say when it happens",
    r"(is|are) made (up )?of": "is built from, depends on",
    r"(script|program|file)'s own": "say where it is defined",
    r"goodbye": "say which message",
    r"grave": "severe",
    r"left to a person": "left for manual migration",
    r"what is (left|known|followed) of": "name it",
    r"shows? only in the run": "is known only at run time",
}
"""Patterns of whole words that are not written, with what to write instead."""

RETIRED = re.compile("|".join(rf"\b(?P<w{n}>{p})\b" for n, p in enumerate(INSTEAD)), re.IGNORECASE)
PAGES = {"rule", "codemod"}
HELP = {"command", "group"}


def decorators(node: ast.AST) -> set[str]:
    """The names by which a function is decorated: ``command`` for ``@click.command("check")``."""
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
        return set()
    called = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return {ast.unparse(function).rpartition(".")[2] for function in called}


def shown_docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """The docstrings that users read: pages of rules and codemods, and the help of commands."""
    named = {name for node in tree.body for name in decorators(node)}
    for node in (tree, *tree.body):
        shown = PAGES & named if node is tree else (PAGES | HELP) & decorators(node)
        first = node.body[0] if shown and hasattr(node, "body") else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            yield first.value


def shown_strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """All text of a file that can reach a user, with its line: its literals but for docstrings, and some of these."""
    loose = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    literals = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and n not in loose)
    for node in (*shown_docstrings(tree), *literals):
        if isinstance(node.value, str):
            yield node.lineno, node.value


VAGUE = re.compile(r"\b(in sight|out of sight|told)\b|\bstands\b(?! (in )?for\b)")
"""Words that meant several things each: no docstring has them, be it one that users never see."""


def retired(text: str, line: int = 1) -> Iterator[str]:
    """What a text says in retired words, with the line of each, and what to write instead."""
    for found in RETIRED.finditer(text):
        before = text[: found.start()].count("\n")
        instead = list(INSTEAD.values())[int(str(found.lastgroup)[1:])]
        yield f"{line + before}: {found[0]!r} in {text.splitlines()[before].strip()!r} (write: {instead})"


@pytest.mark.parametrize("folder", CODE)
def test_strings_of_the_program_use_no_retired_words(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{hit}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in shown_strings(ast.parse(path.read_text("utf-8")))
        for hit in retired(text, line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", CODE)
def test_docstrings_say_what_they_mean(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {vague[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for vague in VAGUE.finditer(str(node.value.value))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", PROSE, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_documents_use_no_retired_words(path: Path) -> None:
    found = [f"{path.relative_to(ROOT)}:{hit}" for hit in retired(path.read_text("utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ('raise Error(f"{name} is out of sight")', True),
        ('NAMES = {"key": "the script\'s own function"}', True),
        ('@rule(code="FSDP299")\ndef check(trace):\n    """Saves that nobody awaits."""\n', True),
        ('"""A page.\n\nWhat stands here.\n"""\n@codemod\ndef rewrite(program): ...\n', True),
        ('@click.command("check")\ndef check():\n    """Leave out what is less grave."""\n', True),
        ('def helper():\n    """What stands around a call."""\n', False),
        ('"""What stands around a call."""\nhelper("CPU stand-in")\n', False),
    ],
)
def test_the_words_are_looked_for_where_users_read(code: str, seen: bool) -> None:
    texts = shown_strings(ast.parse(code))
    assert any(retired_words for line, text in texts for retired_words in retired(text)) == seen
