"""Input that nobody would write by hand: scripts, notebooks and settings, spoilt as hypothesis draws it.

What is spoilt are the fixtures, and files of a folder that one names: so much of it still means something, and the
faults lie deep in the program and not only in the parser.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.support.running import ROOT

Draw = Callable[[st.SearchStrategy[Any]], Any]

MAX_LINES = 500


class Input(NamedTuple):
    """A file, and how it came about."""

    name: str
    raw: bytes
    how: str


MODERN = (
    "type Alias[T] = list[T]",
    "def generic[T: (int, str), *Ts, **P](x: T, *a: *Ts, **k: P.kwargs) -> T: return x",
    "class Box[T = int]: value: T",
    'print(f"{f"{1 + 1}"!r:>{10}}" f"{x = }" rf"\\{y}")',
    'print(f"{\n    model\n}")',
    "match model:\n    case FSDP(module=m) if m: pass\n    case [1, *rest] | {'a': _, **more}: pass\n    case _: pass",
    "try: pass\nexcept* (ValueError, TypeError) as group: raise",
    "async def main():\n    async with a as b, c: [x async for x in b if await x]\n    return await fully_shard(model)",
    "with (open('a') as a, open('b') as b,): pass",
    "print((n := 10), *[lambda *, k=1, **q: (yield)])",
    "def f(a, /, b, *, c): nonlocal_ = a; del b, c",
    "for x in *a, *b: print(x, end='')\nelse: x: int = 3",
    "@(lambda f: f)\nclass A(B, metaclass=M, **k): ...",
    "global model; model = model",
    "x = 0xFFFF_FFFF, 1_000j, 0o17, 1e400, ..., b'\\xff', '\\N{BULLET}'",
    "while True:\n    if fully_shard(model): continue\n    break",
    "from . import (a as b, c,)\nfrom .. import *\nimport a.b.c as d",
    "return",
    "yield from model",
    "assert model, 'x'; raise",
    "if x: pass\nelif y: pass\nelse: fully_shard(model)",
    "model = model.to(device) if rank == 0 else (lambda m: m)(model)",
)
"""Statements of every kind, Python 3.12 and 3.13 included; some are wrong where they come to stand."""

PIECES = (
    "fully_shard(model)", "FSDP(model, device_mesh=mesh)", "lambda: model", "[*model, *model]", "{**kwargs}", "None", "...",
    "-1", "10**400", "1" * 400, "''", "f'{model!r}'", "model[...]", "model[1:2, ::3]", "(yield)", "await model", "(x := 1)",
    "model if model else model", "not model", "model @ model", "*args", "**kwargs", "x=1", "getattr(model, 'layers')",
    "self", "super().forward", "type(model)", "[m for m in model for n in m if n]", "{a: b for a, b in c}", "torch.nn.Linear(4, 4)",
    "nn.ModuleList([model] * 3)", "model.state_dict()", "dist.get_rank() == 0", "os.environ['RANK']", "__import__('os')",
)  # fmt: skip
"""Expressions that come to stand where another was."""

ODD = (
    "\0", "\f", "\v", "\ufeff", "\u2028", "\x85", "\x1b[31m", "\u202e", "é", "𝔪odel", "ﬁ", "\t", "\\\n", "\\", ";", "#", "'''",
    '"""', "'", "(", ")", "[", "}", ":", ",", "=", "\r", "\n", " ", "\ud800", "::error::x", "${{ x }}", "%%", "!", "?", "`", "$",
)  # fmt: skip

COMMENTS = (
    "# fsdp2lint: ignore", "# fsdp2lint: ignore[FSDP201]", "# fsdp2lint: ignore[FSDP203, nothing] because", "# fsdp2lint: off",
    "# fsdp2lint: file-ignore[FSDP2]", "# fsdp2lint: ignore[", "# noqa", "# noqa: FSDP201,E501", "# fmt: off", "# type: ignore[x]",
    "# TODO(fsdp2lint): what", "# -*- coding: latin-1 -*-", "# fsdp2lint: \x1b[2J",
)  # fmt: skip

HEADS = (
    "def outer(model, rank):", "class Outer(nn.Module):", "if rank == 0:", "for _ in range(3):", "while model:", "try:",
    "with torch.no_grad():", "async def outer():", "match x:\n    case 1:", "if __name__ == '__main__':", "else:", "except:",
)  # fmt: skip

_WORD = re.compile(r"\w+")


class Corpus(list[str]):
    """Texts to spoil; hypothesis shows strategies, and would show all of them."""

    def __repr__(self) -> str:
        return f"<{len(self)} texts>"


def corpus(more: Sequence[str] = ()) -> Corpus:
    """The scripts of the fixtures, and those below further folders."""
    found = Corpus()
    for top in (ROOT / "fixtures", *map(Path, more)):
        for path in sorted(top.rglob("*.py")):
            raw = path.read_bytes()
            if raw.count(b"\n") <= MAX_LINES * 2 // 3:
                found.append(raw.decode("utf-8", "replace"))
    return found


# -- scripts ------------------------------------------------------------------------------------------------------


def _line(draw: Draw, lines: Sequence[str]) -> int:
    return int(draw(st.integers(0, max(0, len(lines) - 1))))


def _few(draw: Draw, most: int = 8) -> int:
    return int(draw(st.integers(1, most)))


def _margin(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _cut(draw: Draw, lines: list[str], _: Sequence[str]) -> None:
    at = _line(draw, lines)
    del lines[at : at + _few(draw)]


def _copy(draw: Draw, lines: list[str], _: Sequence[str]) -> None:
    at, to = _line(draw, lines), _line(draw, lines)
    lines[to:to] = lines[at : at + _few(draw)]


def _swap(draw: Draw, lines: list[str], _: Sequence[str]) -> None:
    if lines:
        one, other = _line(draw, lines), _line(draw, lines)
        lines[one], lines[other] = lines[other], lines[one]


def _splice(draw: Draw, lines: list[str], every: Sequence[str]) -> None:
    others = draw(st.sampled_from(every)).split("\n")
    at, to = _line(draw, others), _line(draw, lines)
    lines[to:to] = others[at : at + _few(draw, 40)]


def _insert(draw: Draw, lines: list[str], _: Sequence[str]) -> None:
    at = _line(draw, lines)
    margin = _margin(lines[at]) if lines else ""
    lines[at:at] = [margin + one for one in draw(st.sampled_from(MODERN)).split("\n")]


def _comment(draw: Draw, lines: list[str], _: Sequence[str]) -> None:
    at = _line(draw, lines)
    if lines:
        lines[at] += "  " * draw(st.booleans()) + draw(st.sampled_from(COMMENTS))


def _wrap(draw: Draw, lines: list[str], _: Sequence[str]) -> None:
    at = _line(draw, lines)
    head = draw(st.sampled_from(HEADS)).split("\n")
    margin = _margin(lines[at]) if lines else ""
    step = draw(st.sampled_from(["    ", "\t", "  ", " \t"]))
    end = min(len(lines), at + _few(draw, 60))
    lines[at:end] = [margin + one for one in head] + [
        step * len(head) + one for one in lines[at:end]
    ]


def _indent(draw: Draw, lines: list[str], _: Sequence[str]) -> None:
    at = _line(draw, lines)
    less = draw(st.booleans())
    for n in range(at, min(len(lines), at + _few(draw))):
        lines[n] = lines[n][1:] if less else "  " + lines[n]


def _put(draw: Draw, lines: list[str], _: Sequence[str]) -> None:
    """Another expression in place of a word."""
    at = _line(draw, lines)
    words = list(_WORD.finditer(lines[at])) if lines else []
    if words:
        word = draw(st.sampled_from(words))
        lines[at] = (
            lines[at][: word.start()] + draw(st.sampled_from(PIECES)) + lines[at][word.end() :]
        )


def _rename(draw: Draw, lines: list[str], every: Sequence[str]) -> None:
    """A word of another script in place of one, everywhere."""
    words = _WORD.findall("\n".join(lines))
    others = _WORD.findall(draw(st.sampled_from(every)))
    if words and others:
        word, new = draw(st.sampled_from(words)), draw(st.sampled_from(others))
        lines[:] = re.sub(rf"\b{word}\b", new, "\n".join(lines)).split("\n")


def _odd(draw: Draw, lines: list[str], _: Sequence[str]) -> None:
    at = _line(draw, lines)
    if lines:
        to = draw(st.integers(0, len(lines[at])))
        lines[at] = lines[at][:to] + draw(st.sampled_from(ODD)) + lines[at][to:]


def _end(draw: Draw, lines: list[str], _: Sequence[str]) -> None:
    at = _line(draw, lines)
    if lines:
        lines[at:] = [lines[at][: draw(st.integers(0, len(lines[at])))]]


def _deep(draw: Draw, lines: list[str], _: Sequence[str]) -> None:
    at, count = _line(draw, lines), draw(st.sampled_from([20, 99, 150, 700, 3000]))
    make = draw(
        st.sampled_from(
            [
                lambda n: "(" * n + "model" + ")" * n,
                lambda n: "[" * n + "]" * n,
                lambda n: "model" + ".a" * n,
                lambda n: "model" + "()" * n,
                lambda n: "x" + " + x" * n,
                lambda n: "lambda: " * n + "x",
                lambda n: "not " * n + "x",
                lambda n: "x if x else " * n + "x",
                lambda n: "{" + "'a': 1, " * n + "}",
                lambda n: "f'" + "{x}" * n + "'",
                lambda n: "'" + "a" * 20 * n + "'",
                lambda n: "x = " * n + "1",
                lambda n: "fully_shard(model); " * n + "x",
            ]
        )
    )
    margin = _margin(lines[at]) if lines else ""
    lines[at:at] = [margin + make(count)]


def _blocks(draw: Draw, lines: list[str], _: Sequence[str]) -> None:
    """Statements nested deeply, each in another."""
    at, count = _line(draw, lines), draw(st.sampled_from([5, 19, 60, 99]))
    head = draw(
        st.sampled_from(["if x:", "for x in y:", "while x:", "with x:", "def f():", "class A:"])
    )
    lines[at:at] = [" " * n + head for n in range(count)] + [" " * count + "fully_shard(model)"]


_CHANGES = (
    _cut, _copy, _swap, _splice, _splice, _insert, _insert, _comment, _wrap, _wrap, _indent, _put, _put, _put, _rename, _rename,
    _odd, _end, _deep, _blocks,
)  # fmt: skip
_ENDS = ("\n", "\n", "\n", "\r\n", "\r\n", "\r", "mixed")
_CODES = ("utf-8",) * 8 + (
    "utf-8-sig", "latin-1", "cp1252", "utf-16", "utf-32", "ascii", "shift_jis", "iso-2022-jp", "utf-7", "rot13", "no-such", "hex",
)  # fmt: skip


@st.composite
def texts(draw: Draw, every: Sequence[str]) -> tuple[str, str]:
    """A script with up to six changes; what they are."""
    lines = draw(st.sampled_from(every)).split("\n")
    how = []
    for _ in range(draw(st.integers(0, 6))):
        change = draw(st.sampled_from(_CHANGES))
        change(draw, lines, every)
        how.append(change.__name__.strip("_"))
    return "\n".join(lines[:MAX_LINES]), " ".join(how)


@st.composite
def scripts(draw: Draw, every: Sequence[str], name: str = "train.py") -> Input:
    """A script as bytes: with ends of lines, an encoding, and sometimes with bytes that are wrong."""
    text, how = draw(texts(every))
    raw, more = encoded(draw, text)
    return Input(name, raw, f"{how} {more}")


def encoded(draw: Draw, text: str) -> tuple[bytes, str]:
    """A text as bytes, and how."""
    end, code = draw(st.sampled_from(_ENDS)), draw(st.sampled_from(_CODES))
    if end == "mixed":
        made = "".join(("\n", "\r\n", "\r")[n % 3] if c == "\n" else c for n, c in enumerate(text))
    else:
        made = text.replace("\n", end)
    if code not in ("utf-8", "utf-8-sig") and draw(st.booleans()):
        made = f"# -*- coding: {code} -*-" + ("\n" if end == "mixed" else end) + made
    try:
        raw = made.encode(code, "backslashreplace")
    except (LookupError, UnicodeError):  # rot13 is none for bytes, and no-such is none at all
        raw = made.encode("utf-8", "surrogatepass")
    if raw and draw(st.integers(0, 9)) == 9:
        at = draw(st.integers(0, len(raw) - 1))
        raw = raw[:at] + bytes([raw[at] ^ 1 << draw(st.integers(0, 7))]) + raw[at + 1 :]
        code += " flipped"
    return raw, f"{end!r} {code}"


# -- notebooks ------------------------------------------------------------------------------------------------------

_MAGICS = (
    "%matplotlib inline",
    "!pip install torch",
    "%%time",
    "%%bash",
    "x = !ls",
    "model?",
    "%%writefile train.py",
    "%run a.py",
)


@st.composite
def notebooks(draw: Draw, every: Sequence[str]) -> Input:
    """A script cut into cells, with outputs, metadata and magics; sometimes no notebook any more."""
    text, how = draw(texts(every))
    lines = text.split("\n")
    cells: list[Any] = []
    while lines:
        take = _few(draw, 25)
        part, lines = lines[:take], lines[take:]
        if draw(st.integers(0, 5)) == 0:
            part.insert(_line(draw, part), draw(st.sampled_from(_MAGICS)))
        source = "\n".join(part)
        kind = draw(st.sampled_from(["code"] * 6 + ["markdown", "raw", "other"]))
        cell: dict[str, Any] = {"cell_type": kind, "metadata": {"tags": ["é", "\u2028"]}}
        if kind == "code":
            cell |= {
                "execution_count": 3,
                "outputs": [{"output_type": "stream", "text": ["fully_shard\n"]}],
            }
        cell["source"] = source.splitlines(keepends=True) if draw(st.booleans()) else source
        cells.append(cell)
    if draw(st.integers(0, 7)) == 0:
        cells.append(
            draw(
                st.sampled_from([None, 3, {}, {"source": 5}, {"cell_type": "code", "source": [1]}])
            )
        )
    data = {
        "cells": cells,
        "metadata": draw(_METADATA),
        "nbformat": draw(st.sampled_from([4, 4, 4, 3, "4"])),
        "nbformat_minor": 5,
    }
    made = json.dumps(
        data, indent=draw(st.sampled_from([None, 1, 2, "\t"])), ensure_ascii=draw(st.booleans())
    )
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(made) - 1))
        made = made[:at] + draw(st.sampled_from([*ODD, ""])) + made[at + 1 :]
        how += " no json"
    raw = made.encode("utf-8", "surrogatepass") + b"\n" * draw(st.integers(0, 1))
    return Input("train.ipynb", raw, f"notebook {how}")


_METADATA = st.sampled_from(
    [
        {},
        {"kernelspec": {"display_name": "p", "language": "python", "name": "p"}},
        {"kernelspec": {"language": "julia"}},
        {"language_info": {"name": "python"}},
        {"kernelspec": 3},
        [],
    ]
)


# -- settings -------------------------------------------------------------------------------------------------------

_VALUES = (
    "true", "1", "-1", "1e400", '"x"', "''", "[]", "{}", "null", "~", "2026-01-01", "[1, [2, [3]]]", "&a [*a]", "*a", "!!python/object:os.system x",
    "|\n  text", ">-\n  text", '"\\u2028"', "FULL_SHARD", "NO_SHARD", "TRANSFORMER_BASED_WRAP", "0x10", "1_000", "é", "9" * 500, "{a: {b: {c: d}}}",
)  # fmt: skip


def settings_corpus() -> list[tuple[str, str]]:
    """The settings files of the fixtures, with their names."""
    found = []
    for end in ("*.yaml", "*.yml", "*.json", "*.toml"):
        for path in sorted((ROOT / "fixtures").rglob(end)):
            if path.stat().st_size < 20_000:
                found.append((path.name, path.read_text("utf-8")))
    own = "[tool.fsdp2lint]\nselect = ['ALL']\ntarget-torch = '2.7'\nextend-exclude = ['a/**']\n"
    own += "[tool.fsdp2lint.per-file-ignores]\n'x*.py' = ['FSDP2']\n[project]\ndependencies = ['torch>=2.4']\n"
    found.append(("pyproject.toml", own))
    found.append(("fsdp2lint.toml", own.replace("tool.fsdp2lint", "x").replace("[x]\n", "")))
    found.append((".gitignore", "*.pyc\n/build/\n!keep\n**/x[0-9]\n"))
    found.append(("requirements.txt", "torch>=2.4,<3\n-r more.txt\ntransformers==5.*\n"))
    return found


@st.composite
def settings_files(draw: Draw, every: Sequence[tuple[str, str]]) -> Input:
    """A file that frameworks or the tool itself are set up by."""
    name, text = draw(st.sampled_from(every))
    lines, others, how = text.split("\n"), [other for _, other in every], []
    changes = (
        _cut,
        _copy,
        _swap,
        _splice,
        _odd,
        _end,
        _indent,
        _rename,
        _comment,
        _value,
        _value,
        _value,
    )
    for _ in range(draw(st.integers(0, 5))):
        change = draw(st.sampled_from(changes))
        change(draw, lines, others)
        how.append(change.__name__.strip("_"))
    raw, more = encoded(draw, "\n".join(lines))
    return Input(name, raw, f"settings {' '.join(how)} {more}")


def _value(draw: Draw, lines: list[str], _: Sequence[str]) -> None:
    """Another value behind a key."""
    at = _line(draw, lines)
    head, colon, _rest = lines[at].partition(":") if lines else ("", "", "")
    if not colon:
        head, colon, _rest = lines[at].partition("=") if lines else ("", "", "")
    if colon:
        lines[at] = f"{head}{colon} {draw(st.sampled_from(_VALUES))}"


def written(inputs: Sequence[Input], folder: Path) -> None:
    """The files, alone in a folder."""
    for name in os.listdir(folder):
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    for one in inputs:
        (folder / one.name).write_bytes(one.raw)
