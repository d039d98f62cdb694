"""A script cut into cells says what it says as a file, and is fixed as a file is."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from fsdp2lint.check.runner import Batch, check, mend
from fsdp2lint.config.settings import Settings
from fsdp2lint.reporters import View, render
from fsdp2lint.source.reading import decode
from tests.rules.test_rules import ROOT
from tests.support.notebooks import notebook

EVERYTHING = Settings(select=("ALL",))


def scripts() -> Iterator[Path]:
    """One script of each rule."""
    for folder in sorted(p for p in ROOT.iterdir() if p.is_dir()):
        files = sorted(folder.glob("*.py"))
        yield from [f for f in files if "bad" in f.name][:1] or files[:1]


def cut(text: str) -> list[str]:
    """The text in pieces that end between two statements, each second one apart from its neighbours."""
    lines = text.splitlines(keepends=True)
    ends = sorted({node.end_lineno or 0 for node in ast.parse(text).body})
    rng = random.Random(len(text))
    borders = [0, *(e for e in ends[:-1] if rng.random() < 0.5), len(lines)]
    pieces = ["".join(lines[a:b]) for a, b in pairwise(borders)]
    return [piece.removesuffix("\n") for piece in pieces]


def said(text: str, path: str) -> list[tuple[str, int | None, int, int]]:
    raw = text.encode()
    found = json.loads(render("json", check(Batch.of_text(raw, path), EVERYTHING), View()))
    places = [(d["cell"], d["location"]["row"], d["location"]["column"]) for d in found]
    return [(d["code"], *place) for d, place in zip(found, places, strict=True)]


def fixed(text: str, path: str) -> list[str]:
    """The lines that are not empty after all fixes."""
    mended = mend(Batch.of_text(text.encode(), path), EVERYTHING, unsafe=True)
    changed = [new.encode(new.text).decode() for _, new in mended.changed]
    text = changed[0] if changed else text
    if path.endswith(".ipynb"):
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("script", list(scripts()), ids=lambda p: p.parent.name)
def test_cells_are_one_program(script: Path, tmp_path: Path) -> None:
    text = script.read_text(encoding="utf-8")
    pieces = cut(text)
    cells = [("code", piece) for piece in pieces]
    raw = notebook(cells)
    source = decode(raw.encode(), "x.ipynb")
    assert source.encode(source.text) == raw.encode()
    starts = [0]
    for piece in pieces:
        starts.append(starts[-1] + piece.count("\n") + 1)
    path = str(script.with_suffix(".ipynb"))  # beside what it imports
    plain = [(code, row, column) for code, _, row, column in said(text, str(script))]
    in_cells = [
        (code, starts[(cell or 1) - 1] + row, column) for code, cell, row, column in said(raw, path)
    ]
    assert in_cells == plain
    assert fixed(raw, path) == fixed(text, str(script))
