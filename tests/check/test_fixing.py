"""Fixing: rounds, guards, and files on disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
import pytest

from fsdp2lint.catalogue.findings import Fix, Safety
from fsdp2lint.check.fixing import MAX_ROUNDS, NotWritten, diff, fix, write
from fsdp2lint.edits.text import Edit, Replace, Rewrite, Splice
from fsdp2lint.source.reading import decode, read
from fsdp2lint.source.source import Source
from fsdp2lint.source.walk import walk


@dataclass(frozen=True)
class Said:
    """A finding, as far as fixing asks."""

    message: str
    fix: Fix | None


class Lint:
    """A linter with one rule: names in ``rename`` should be called otherwise."""

    def __init__(self, rename: dict[str, str], safety: Safety = "safe") -> None:
        self.rename = rename
        self.safety = safety
        self.runs = 0

    def __call__(self, sources: Sequence[Source]) -> list[Said]:
        self.runs += 1
        return [
            Said(
                node.value,
                Fix("rename", (Replace(source, node, self.rename[node.value]),), self.safety),
            )
            for source in sources
            for node in walk(source.tree)
            if isinstance(node, cst.Name) and node.value in self.rename
        ]


def test_fixes_are_made_until_nothing_is_left() -> None:
    lint = Lint({"a": "b", "b": "c"})
    result = fix([Source("a.py", "x = a  # a\n")], lint)
    assert result.after["a.py"].text == "x = c  # a\n"
    assert [f.message for f in result.made] == ["a", "b"]
    assert (lint.runs, result.findings, result.settled) == (3, [], True)


def test_a_clean_file_is_the_same_object() -> None:
    source = Source("a.py", "x = 1\r\n")
    result = fix([source], Lint({"a": "b"}))
    assert result.after["a.py"] is source
    assert (result.changed, result.diff()) == ([], "")


def test_fixes_that_chase_each_other_end() -> None:
    result = fix([Source("a.py", "a\n")], Lint({"a": "b", "b": "a"}))
    assert len(result.made) == MAX_ROUNDS
    assert not result.settled


@pytest.mark.parametrize(
    ("safety", "unsafe", "after"),
    [
        ("safe", False, "b\n"),
        ("unsafe", False, "a\n"),
        ("unsafe", True, "b\n"),
        ("shown", True, "a\n"),
    ],
)
def test_what_is_not_safe_needs_to_be_asked_for(safety: Safety, unsafe: bool, after: str) -> None:
    result = fix([Source("a.py", "a\n")], Lint({"a": "b"}, safety), unsafe=unsafe)
    assert result.after["a.py"].text == after
    assert len(result.findings) == (after == "a\n")


def _once(*fixes: Sequence[Edit]) -> list[Said]:
    return [Said(f"finding {i}", Fix("fix", tuple(edits), "safe")) for i, edits in enumerate(fixes)]


def test_a_fix_that_breaks_the_file_is_dropped_and_the_others_are_made() -> None:
    def lint(sources: Sequence[Source]) -> list[Said]:
        source = sources[0]
        names = [n for n in walk(source.tree) if isinstance(n, cst.Name) and n.value == "a"]
        return _once((Splice(source, 0, 0, "("),), *((Replace(source, n, "b"),) for n in names))

    result = fix([Source("a.py", "a + 1\n")], lint)
    assert result.after["a.py"].text == "b + 1\n"
    assert [(d.finding.message, "does not parse" in d.why) for d in result.dropped] == [
        ("finding 0", True)
    ]


def test_fixes_that_break_the_file_only_together() -> None:
    def lint(sources: Sequence[Source]) -> list[Said]:
        source = sources[0]
        if "#" in source.text:
            return []
        return _once((Splice(source, 0, 0, "#"),), (Splice(source, 1, 1, "\n ="),), ())

    result = fix([Source("a.py", "x= 1\n")], lint)
    assert result.after["a.py"].text == "#x= 1\n"
    assert [d.finding.message for d in result.dropped] == ["finding 1"]


def test_a_fix_is_all_or_nothing_across_files() -> None:
    def lint(sources: Sequence[Source]) -> list[Said]:
        one, two = sources
        return _once((Splice(one, 0, 1, "z"), Splice(two, 0, 1, ")")))

    result = fix([Source("a.py", "a\n"), Source("b.py", "b\n")], lint)
    assert not result.changed
    assert len(result.dropped) == 1


def test_only_the_files_given_are_changed() -> None:
    other = Source("other.py", "a\n")
    source = Source("a.py", "a\n")
    result = fix([source], lambda sources: _once((Replace(other, other.tree.body[0], "b"),)))
    assert not result.changed
    assert "not among the files" in result.dropped[0].why


def test_a_text_that_its_encoding_cannot_hold_is_dropped() -> None:
    source = decode(b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", "a.py")
    result = fix([source], lambda sources: _once((Splice(sources[0], 0, 0, "# \u20ac\n"),)))
    assert not result.changed
    assert "cannot be encoded" in result.dropped[0].why


RAW = [
    b"a\n",
    b"a\r\nb = 1\r\n",
    b"a",
    b"\xef\xbb\xbfa\n",
    b"# -*- coding: latin-1 -*-\na = '\xe9'\n",
    b"if x:\n\ta\n\n\n",
    "s = '\u2028'; a\n".encode(),
]


@pytest.mark.parametrize("raw", RAW)
def test_bytes_outside_the_edit_are_kept(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(raw)
    path.chmod(0o750)
    result = fix([read(path, "shown.py")], Lint({"a": "name"}))
    write(result.changed, {"shown.py": path})
    place = (
        raw.rindex(b"coding: latin-1 -*-\n") + 20
        if b"coding" in raw
        else raw.index(b"a", 3 if raw[0] > 127 else 0)
    )
    assert path.read_bytes() == raw[:place] + b"name" + raw[place + 1 :]
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert os.listdir(tmp_path) == ["a.py"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text("a\n")
    link = tmp_path / "a.py"
    link.symlink_to("real.py")
    write(fix([read(link)], Lint({"a": "b"})).changed)
    assert link.is_symlink()
    assert (tmp_path / "real.py").read_text() == "b\n"


def test_a_file_that_cannot_be_written_stops_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "a.py", tmp_path / "b.py"]
    for path in paths:
        path.write_text("a\n")
    result = fix([read(path) for path in paths], Lint({"a": "b"}))
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "b.py")
    with pytest.raises(NotWritten, match=r"b\.py: not written, the file is read-only"):
        write(result.changed)
    assert [path.read_text() for path in paths] == ["a\n", "a\n"]


def test_a_file_that_changed_meanwhile_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("a\n")
    result = fix([read(path)], Lint({"a": "b"}))
    path.write_text("a  # mine\n")
    with pytest.raises(NotWritten, match="not those that were analysed"):
        write(result.changed)
    assert path.read_text() == "a  # mine\n"


def test_diff() -> None:
    old = Source("p/a.py", "a\n\x0c\nb\r\nc")
    assert diff(old, old.text) == ""
    assert diff(old, "a\n\x0c\nB\r\nc") == (
        "--- a/p/a.py\n+++ b/p/a.py\n@@ -1,4 +1,4 @@\n a\n \x0c\n-b\r\n+B\r\n c\n\\ No newline at end of file\n"
    )


def test_a_rewrite_that_is_stable_is_not_made_again() -> None:
    def lint(sources: Sequence[Source]) -> list[Said]:
        node = sources[0].tree.body[0]
        return _once((Rewrite(sources[0], node, lambda new: new.text.replace("a", "b")),))

    result = fix([Source("a.py", "a\n")], lint)
    assert result.after["a.py"].text == "b\n"
    assert (len(result.made), result.settled) == (1, True)
