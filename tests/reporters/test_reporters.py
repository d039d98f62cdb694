"""What reports look like."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fsdp2lint.catalogue.findings import Fix
from fsdp2lint.catalogue.toolrules import UNANALYSABLE
from fsdp2lint.check.diagnostics import Diagnostic, Reason, Report, fingerprints
from fsdp2lint.reporters import View, formats, render
from fsdp2lint.reporters.github import step_summary
from fsdp2lint.source.source import Source
from tests.support.saying import (
    FORWARD,
    LEGACY,
    SCALER,
    TRAIN,
    mend,
    place,
    report,
    said,
    two_files,
)

ANSI = re.compile(r"\x1b\[[0-9;]*m")


FULL = """\
error[FSDP201] optimizer-before-shard: `optimizer` holds the parameters that `fully_shard(model)` replaces
 --> train.py:7:17
  |
6 |     model = Model(cfg)
7 |     optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
  |                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ (1)
8 |     shard(model)
  |     ------------ (2) in this call
9 |     train(model, optimizer)
  |
 --> parallel.py:5:5
  |
4 | def shard(model):
5 |     fully_shard(model)
  |     ------------------ (2) `model` is sharded here
  |
 = help: build the optimizer after the last `fully_shard`
  |
6 |     model = Model(cfg)
7 -     optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
8 |     shard(model)
  +     optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
9 |     train(model, optimizer)
  |
 = note: applied only with `--unsafe-fixes`: look at `lr`
 = explained by `fsdp2lint rule FSDP201`

Found 1 error.
No safe fixes (1 with `--unsafe-fixes`).
"""


def test_full() -> None:
    assert render("full", report(two_files()), View()) == FULL


@pytest.mark.parametrize("format_", ["concise", "full", "grouped"])
def test_colours_are_only_added(format_: str) -> None:
    painted = render(format_, report(two_files()), View(colour=True))
    plain = render(format_, report(two_files()), View())
    assert ANSI.sub("", painted) == plain != painted


def test_colours_change_nothing_but_the_colours() -> None:
    painted = render("full", report(two_files()), View(colour=True))
    assert painted != FULL
    assert ANSI.sub("", painted) == FULL


def frame_of(text: str, *marked: str) -> list[str]:
    """The frame of a finding at the first of some stretches, the others being its proofs."""
    source = Source("x.py", text)
    found = said(source, marked[0])
    steps = tuple(Reason(place(source, m), f"about {m[:4]}") for m in marked[1:])
    lines = render("full", report(replace(found, because=steps)), View(quiet=True)).splitlines()
    bars = [n for n, line in enumerate(lines) if line.strip() == "|"]
    return lines[bars[0] + 1 : bars[-1]]


def test_a_gap_of_one_line_is_shown_and_a_larger_one_left_out() -> None:
    text = "".join(f"x{n} = {n}\n" for n in range(1, 30))
    shown = [
        line.split(" ")[0] or line.split(" ")[1] for line in frame_of(text, "x9 ", "x5 ", "x20 ")
    ]
    numbers = [n for n in shown if n.isdigit() or n == "..."]
    assert numbers == ["4", "5", "6", "7", "8", "9", "10", "...", "19", "20", "21"]


def test_a_span_of_several_lines_has_a_bar() -> None:
    assert frame_of("a = 1\nf(\n    x,\n)\nb = 2\n", "f(\n    x,\n)") == [
        "1 |   a = 1",
        "2 | / f(",
        "3 | |     x,",
        "4 | | )",
        "  | |_^",
        "5 |   b = 2",
    ]


def test_spans_of_several_lines_inside_each_other() -> None:
    text = "for x in y:\n    f(\n        x,\n    )\n    done()\n"
    assert frame_of(text, "f(\n        x,\n    )", text.rstrip()) == [
        "1 | /   for x in y:",
        "2 | | /     f(",
        "3 | | |         x,",
        "4 | | |     )",
        "  | | |_____^",
        "5 | |       done()",
        "  | |____________- about for",
    ]


def test_the_middle_of_a_long_span_is_left_out() -> None:
    text = "f(\n" + "    x,\n" * 30 + ")\n"
    shown = frame_of(text, text.rstrip())
    assert [line.split(" |")[0].strip() for line in shown] == [
        "1",
        "2",
        "3",
        "4",
        "5",
        "...",
        "31",
        "32",
        "",
    ]


@pytest.mark.parametrize(
    ("line", "bad", "shown"),
    [
        ("\tx = bad()", "bad", ["    x = bad()", "        ^^^"]),
        ("a\tbad", "bad", ["a   bad", "    ^^^"]),
        ("x = '模型', bad", "bad", ["x = '模型', bad", "            ^^^"]),
        ("x = 'e\u0301', bad", "bad", ["x = 'e\u0301', bad", "         ^^^"]),
        ("x = '\x1b[31m', bad", "bad", ["x = '\\x1b[31m', bad", "                ^^^"]),
    ],
)
def test_the_carets_stand_below(line: str, bad: str, shown: list[str]) -> None:
    frame = frame_of(line + "\n", bad)
    assert [text.partition(" | ")[2] for text in frame] == shown


def test_a_long_line_is_cut_around_what_is_marked() -> None:
    text, carets = frame_of("x = [" + "1, " * 200 + "bad" + ", 1" * 200 + "]\n", "bad")
    assert len(text) < 180
    start, end = carets.index("^"), carets.rindex("^") + 1
    assert text[start:end] == "bad"


def test_the_end_of_the_file_can_be_marked() -> None:
    source = Source("x.py", "f(\n")
    at = place(source, "f(")
    end = replace(at, range=replace(at.range, line=2, column=1, end_line=2, end_column=1))
    text = render("full", report(Diagnostic(UNANALYSABLE, "syntax error", end)), View())
    assert "--> x.py:2:1" in text


def test_a_file_without_text_has_no_frame() -> None:
    at = place(Source("gone.py", ""), "")
    text = render("full", report(Diagnostic(UNANALYSABLE, "cannot read the file", at)), View())
    assert " --> gone.py:1:1\n = explained by" in text


def test_a_point_in_the_order_of_the_text_has_no_number() -> None:
    source = Source("x.py", "one()\ntwo()\n")
    step = Reason(place(source, "one()"), "first", (), 1)
    found = replace(said(source, "two()"), order=2, because=(step,))
    assert "(1)" not in render("full", report(found), View())


def test_concise_and_grouped() -> None:
    source = Source("x.py", "\n\nbad(1)\nbad(2)\n")
    safe = replace(
        said(source, "bad(1)"), fix=Fix("mend", (mend(source, "bad(1)", "ok()"),), "safe")
    )
    both = report(safe, said(source, "bad(2)", SCALER))
    assert render("concise", both, View()) == (
        "x.py:3:1: FSDP203 [*] `bad(1)` is wrong\n"
        "x.py:4:1: FSDP228 `bad(2)` is wrong\n"
        "Found 1 error and 1 warning.\n"
        "[*] 1 fixable with `--fix`.\n"
    )
    assert render("grouped", both, View(quiet=True)) == (
        "x.py:\n  3:1 FSDP203 [*] `bad(1)` is wrong\n  4:1 FSDP228 `bad(2)` is wrong\n\n"
    )


@pytest.mark.parametrize(("unsafe", "star"), [(False, ""), (True, " [*]")])
def test_the_star_stands_where_the_fix_would_be_applied(unsafe: bool, star: str) -> None:
    line = render("concise", report(two_files()), View(unsafe=unsafe)).splitlines()[0]
    assert f"FSDP201{star} `optimizer`" in line


@pytest.mark.parametrize(
    ("files", "analysed", "said"),
    [
        (0, 0, "No Python files found; nothing was checked."),
        (1, 0, "No FSDP code found in 1 file; nothing was checked."),
        (9, 2, "No findings (FSDP in 2 of 9 files; no training program was found to follow)."),
    ],
)
def test_nothing_found(files: int, analysed: int, said: str) -> None:
    text = render("concise", Report(files=files, analysed=analysed), View())
    assert text == said + "\n"


def test_statistics() -> None:
    source = Source("x.py", "bad\nbad\nother\n")
    found = [said(source, "bad"), said(source, "bad", nth=1), said(source, "other", SCALER)]
    assert render("concise", report(*found), View(statistics=True)) == (
        "2  FSDP203  [ ]  direct-forward-call\n1  FSDP228  [ ]  sharded-grad-scaler\n"
    )


def test_json_has_ruffs_keys() -> None:
    (one,) = json.loads(render("json", report(two_files()), View()))
    assert one | {"fingerprint": "", "fix": None, "related": []} == {
        "code": "FSDP201",
        "name": "optimizer-before-shard",
        "severity": "error",
        "message": "`optimizer` holds the parameters that `fully_shard(model)` replaces",
        "filename": "train.py",
        "location": {"row": 7, "column": 17},
        "end_location": {"row": 7, "column": 65},
        "cell": None,
        "url": None,
        "note": None,
        "fix": None,
        "related": [],
        "fingerprint": "",
    }
    assert one["fix"]["applicability"] == "unsafe"
    assert [e["location"] for e in one["fix"]["edits"]] == [
        {"row": 7, "column": 1},
        {"row": 9, "column": 1},
    ]
    assert one["related"][0]["filename"] == "parallel.py"
    assert [c["location"]["row"] for c in one["related"][0]["calls"]] == [12, 8]


def test_the_edits_of_the_json_make_the_fix() -> None:
    (one,) = json.loads(render("json", report(two_files()), View()))
    lines = TRAIN.splitlines(keepends=True)
    for edit in reversed(one["fix"]["edits"]):
        first, last = edit["location"], edit["end_location"]
        head = "".join(lines[: first["row"] - 1]) + lines[first["row"] - 1][: first["column"] - 1]
        tail = lines[last["row"] - 1][last["column"] - 1 :] + "".join(lines[last["row"] :])
        lines = (head + edit["content"] + tail).splitlines(keepends=True)
    assert "".join(lines).index("shard(model)") < "".join(lines).index("AdamW")


def test_json_lines() -> None:
    both = report(two_files(), two_files())
    lines = render("json-lines", both, View()).splitlines()
    assert [json.loads(line) for line in lines] == json.loads(render("json", both, View()))


def test_names_that_are_not_utf8_can_be_written() -> None:
    found = said(Source("caf\udce9.py", "bad\n"), "bad")
    for name in formats():
        render(name, report(found), View()).encode("utf-8")


def test_fingerprints_survive_when_lines_move() -> None:
    before, after = Source("x.py", "bad\nbad\n"), Source("x.py", "\n\n    bad\nx = 1\nbad\n")
    marks = [fingerprints([said(s, "bad"), said(s, "bad", nth=1)]) for s in (before, after)]
    assert marks[0] == marks[1]
    assert len(set(marks[0])) == 2


def test_github() -> None:
    source = Source("a,b:c%.py", "note\nbad\nf(\n)\n")
    tall = replace(said(source, "f(\n)"), message="50% of\nit")
    found = report(said(source, "note", LEGACY), said(source, "bad", SCALER), tall)
    assert render("github", found, View()).splitlines() == [
        "::error title=fsdp2lint (FSDP203),file=a%2Cb%3Ac%25.py,line=3,endLine=4"
        "::a,b:c%25.py:3:1: FSDP203 50%25 of%0Ait",
        "::warning title=fsdp2lint (FSDP228),file=a%2Cb%3Ac%25.py,line=2,col=1,endLine=2,endColumn=4"
        "::a,b:c%25.py:2:1: FSDP228 `bad` is wrong",
        "::notice title=fsdp2lint (FSDP101),file=a%2Cb%3Ac%25.py,line=1,col=1,endLine=1,endColumn=5"
        "::a,b:c%25.py:1:1: FSDP101 `note` is wrong",
    ]


def test_the_table_for_the_workflow_page() -> None:
    found = replace(said(Source("x.py", "bad\n"), "bad"), message="a | b")
    assert "| x.py:1 | FSDP203 direct-forward-call | a \\| b |" in step_summary(
        report(found), View()
    )


def test_gitlab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CI_PROJECT_DIR", raising=False)
    found = report(
        said(Source("./pkg/x.py", "bad\nbad\n"), "bad"),
        said(Source("./pkg/x.py", "bad\nbad\n"), "bad", SCALER, 1),
        said(Source("./pkg/x.py", "note\n"), "note", LEGACY),
    )
    issues = json.loads(render("gitlab", found, View()))
    assert issues[0] | {"fingerprint": ""} == {
        "check_name": "FSDP203 direct-forward-call",
        "description": "`bad` is wrong",
        "severity": "major",
        "fingerprint": "",
        "location": {
            "path": "pkg/x.py",
            "positions": {"begin": {"line": 1, "column": 1}, "end": {"line": 1, "column": 4}},
        },
    }
    assert [one["severity"] for one in issues] == ["major", "minor", "info"]
    assert len({one["fingerprint"] for one in issues}) == 3
    monkeypatch.setenv("CI_PROJECT_DIR", str(Path.cwd() / "pkg"))
    assert json.loads(render("gitlab", found, View()))[0]["location"]["path"] == "x.py"


def test_junit() -> None:
    broken = Diagnostic(UNANALYSABLE, "syntax error", place(Source("y.py", "f(\n"), "f("))
    found = report(
        replace(said(Source("a<b>.py", "bad\n"), "bad"), message='it is "<bad>" & \x1b[31m worse'),
        replace(said(Source("a<b>.py", "note\n"), "note", LEGACY)),
        broken,
    )
    suites = ElementTree.fromstring(render("junit", found, View()))
    assert suites.attrib == {"name": "fsdp2lint", "tests": "3", "failures": "1", "errors": "1"}
    first, second = suites
    assert first.attrib["name"] == "a<b>.py"
    (failure,), (note,), (error,) = first[0], first[1], second[0]
    assert (failure.tag, failure.attrib["type"]) == ("failure", "FSDP203")
    assert failure.attrib["message"] == 'it is "<bad>" & \N{REPLACEMENT CHARACTER}[31m worse'
    assert (note.tag, error.tag) == ("system-out", "error")
    assert failure.text == f"a<b>.py:1:1: FSDP203 {failure.attrib['message']}"


def test_junit_has_a_case_that_passes() -> None:
    (suite,) = ElementTree.fromstring(render("junit", Report(files=3), View()))
    (case,) = suite
    assert (suite.attrib["tests"], list(case)) == ("1", [])


def test_formats_are_the_modules_of_the_folder() -> None:
    assert formats() == (
        "concise",
        "coverage",
        "full",
        "github",
        "gitlab",
        "grouped",
        "json",
        "json-lines",
        "junit",
        "sarif",
    )


def test_forward_is_an_error_and_migration_a_note() -> None:
    source = Source("x.py", "bad\n")
    assert report(said(source, "bad", FORWARD)).failing
    assert report(said(source, "bad", SCALER)).failing
    assert not report(said(source, "bad", LEGACY)).failing
