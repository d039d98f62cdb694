"""Notebooks: found, checked, fixed, migrated, with nothing but the changed cells touched."""

from __future__ import annotations

import json
import subprocess
import sys
from difflib import unified_diff
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest

from fsdp2lint.source.documents import magics
from fsdp2lint.source.source import Source
from tests.cli.test_git import HELPER
from tests.support.notebooks import LATE, TRAIN, notebook, sources, written
from tests.support.running import invoke

HERE = "late.ipynb:cell 3:3:13"
UNSAFE = ("--fix", "--unsafe-fixes")


@pytest.fixture
def late(tmp_path: Path) -> Path:
    return written(tmp_path / "late.ipynb")


def codes(folder: Path, *args: str) -> list[tuple[str, int, int]]:
    shown = invoke("check", "-f", "json", *args, cwd=folder)
    return [(d["code"], d["cell"], d["location"]["row"]) for d in json.loads(shown.stdout)]


# -- where ---------------------------------------------------------------------------------------


def test_a_folder_is_searched_for_notebooks(late: Path) -> None:
    shown = invoke("check", "-f", "concise", cwd=late.parent)
    assert shown.returncode == 1
    assert shown.stdout.startswith(f"{HERE}: FSDP201 `optimizer` was built before")
    assert "on line 2 of cell 5" in shown.stdout


def test_the_cell_is_numbered_as_ruff_does(late: Path) -> None:
    written(late, [*LATE, ("code", "import os")])
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F401"]
    done = subprocess.run(
        [*ruff, "--output-format", "concise", late.name],
        cwd=late.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("late.ipynb:cell 6:1:8: F401")


def test_the_full_report_shows_the_cells_themselves(late: Path) -> None:
    said = invoke("check", "--color", "never", cwd=late.parent).stdout
    assert f" --> {HERE}\n" in said
    assert "3 | optimizer = torch.optim.AdamW(model.parameters())  # naïve\n" in said
    assert " --> late.ipynb:cell 5:2:1\n" in said
    assert "1 | files = !ls data\n" in said
    assert "2 | fully_shard(model)\n  + optimizer = torch" in said
    assert "magic" not in said


def test_the_formats_for_people_name_the_cell(late: Path) -> None:
    grouped = invoke("check", "-f", "grouped", cwd=late.parent).stdout
    assert grouped.startswith("late.ipynb:\n  cell 3:3:13 FSDP201")
    fixed = invoke("check", *UNSAFE, "--show-fixes", cwd=late.parent).stdout
    assert "  late.ipynb:cell 3:3: FSDP201" in fixed


def test_json_names_the_cell_everywhere(late: Path) -> None:
    (found,) = json.loads(invoke("check", "-f", "json", cwd=late.parent).stdout)
    assert (found["cell"], found["location"]) == (3, {"row": 3, "column": 13})
    assert [(r["cell"], r["location"]["row"]) for r in found["related"]] == [(5, 2)]
    edits = [(e["cell"], e["location"]["row"], e["content"]) for e in found["fix"]["edits"]]
    line = "optimizer = torch.optim.AdamW(model.parameters())  # naïve\n"
    assert edits == [(3, 3, ""), (5, 3, line)]


@pytest.mark.parametrize("lines", [True, False])
def test_services_get_the_line_of_the_file_and_the_cell_in_words(
    tmp_path: Path, lines: bool
) -> None:
    late = written(tmp_path / "late.ipynb", lines=lines)
    text = late.read_text(encoding="utf-8")
    line = text[: text.index("optimizer = torch")].count("\n") + 1

    def said(name: str) -> str:
        return invoke("check", "-f", name, cwd=tmp_path).stdout

    assert f"file=late.ipynb,line={line},endLine={line}::{HERE}: FSDP201" in said("github")
    (issue,) = json.loads(said("gitlab"))
    assert issue["location"]["positions"] == {"begin": {"line": line}, "end": {"line": line}}
    assert issue["description"].startswith("cell 3, line 3: `optimizer`")
    case = next(ElementTree.fromstring(said("junit")).iter("testcase"))
    assert "(cell 3, line 3, column 13)" in case.attrib["name"]
    (result,) = json.loads(said("sarif"))["runs"][0]["results"]
    (place,) = result["locations"]
    assert place["physicalLocation"]["region"] == {"startLine": line}
    assert place["logicalLocations"] == [{"name": "cell 3, line 3"}]
    assert "fixes" not in result, "its regions would be places of a cell, not of the file"


# -- fixing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "style",
    [
        {},
        {"indent": 2},
        {"indent": None, "separators": (",", ":")},
        {"ensure_ascii": True},
        {"lines": False},
        {"indent": "\t", "sort_keys": True},
    ],
    ids=str,
)
def test_only_the_changed_cells_change(tmp_path: Path, style: dict[str, Any]) -> None:
    late = written(tmp_path / "late.ipynb", **style)
    raw = late.read_text(encoding="utf-8").rstrip("\n")  # a last line without an end stays one
    late.write_text(raw, encoding="utf-8")
    nbformat.validate(json.loads(late.read_text(encoding="utf-8")))
    before = sources(late)
    assert invoke("check", *UNSAFE, cwd=tmp_path).returncode == 0
    moved = "optimizer = torch.optim.AdamW(model.parameters())  # naïve\n"
    wanted = list(before)
    wanted[2] = wanted[2].replace(moved, "")
    wanted[4] = wanted[4].replace("fully_shard(model)\n", f"fully_shard(model)\n{moved}")
    assert sources(late) == wanted
    cells = [(kind, text) for (kind, _), text in zip(LATE, wanted, strict=True)]
    assert late.read_text(encoding="utf-8") == notebook(cells, **style).rstrip("\n")
    nbformat.validate(json.loads(late.read_text(encoding="utf-8")))


def test_lines_that_stay_keep_their_spelling(tmp_path: Path) -> None:
    late = written(tmp_path / "late.ipynb")
    raw = late.read_text(encoding="utf-8")
    mixed = raw.replace("for file in files", "for file in \\u0066iles").replace("/", "\\/")
    late.write_text(mixed.replace("\n", "\r\n"), encoding="utf-8", newline="")
    before = late.read_bytes().decode()
    assert invoke("check", *UNSAFE, cwd=tmp_path).returncode == 0
    changed = [
        line
        for line in unified_diff(
            before.split("\r\n"), late.read_bytes().decode().split("\r\n"), n=0
        )
        if not line.startswith(("---", "+++", "@@"))
    ]
    moved = '"optimizer = torch.optim.AdamW(model.parameters())  # naïve\\n"'
    head = '    "model = nn.Linear(4, 4)\\n"'
    assert changed == [f"-{head},", f"-    {moved}", f"+{head}", f"+    {moved},"]


def test_an_import_goes_to_a_cell_with_imports(tmp_path: Path) -> None:
    cells = [
        (
            "code",
            "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
        ),
        ("code", "model = FSDP(torch.nn.Linear(4, 4))\n!nvidia-smi"),
    ]
    old = written(tmp_path / "old.ipynb", cells)
    shown = invoke("migrate", "--write", "--allow-dirty", old.name, "-f", "json", cwd=tmp_path)
    ledger = json.loads(shown.stdout)
    assert ledger["complete"]
    assert {(one["cell"], one["location"]["row"]) for one in ledger["occurrences"]} == {
        (1, 2),
        (2, 1),
    }
    first, second = sources(old)
    assert first == "import torch\nfrom torch.distributed.fsdp import fully_shard"
    assert second == "model = fully_shard(torch.nn.Linear(4, 4))\n!nvidia-smi"


def test_the_diff_and_the_account_of_a_migration_name_cells(tmp_path: Path) -> None:
    wrap = "from torch.distributed.fsdp import FullyShardedDataParallel\nm = FullyShardedDataParallel(m)"
    written(tmp_path / "old.ipynb", [("markdown", "x"), ("code", "m = f()"), ("code", wrap)])
    shown = invoke("migrate", "old.ipynb", "--color", "never", cwd=tmp_path)
    assert "--- a/old.ipynb:cell 3\n+++ b/old.ipynb:cell 3\n" in shown.stdout
    assert "  cell 3:2  " in shown.stdout
    page = invoke("migrate", "old.ipynb", "-f", "markdown", cwd=tmp_path).stdout
    assert "| old.ipynb | cell 3:2 |" in page


def test_standard_input_and_the_diff(late: Path) -> None:
    text = late.read_text(encoding="utf-8")
    given = {"cwd": late.parent, "text": text}
    shown = invoke("check", "-f", "concise", "-", "--stdin-filename", "late.ipynb", **given)  # type: ignore[arg-type]
    assert shown.stdout.startswith(f"{HERE}: FSDP201")
    diff = invoke("check", "--diff", "--unsafe-fixes", cwd=late.parent).stdout
    assert "--- a/late.ipynb:cell 5\n+++ b/late.ipynb:cell 5\n" in diff
    assert "\n files = !ls data\n" in diff
    assert late.read_text(encoding="utf-8") == text
    fixed = invoke("check", *UNSAFE, "-", "--stdin-filename", "late.ipynb", **given)  # type: ignore[arg-type]
    invoke("check", *UNSAFE, cwd=late.parent)
    assert fixed.stdout == late.read_text(encoding="utf-8")


# -- everything that works on files works on notebooks -------------------------------------------


def test_comments_silence_in_cells(tmp_path: Path) -> None:
    quiet = [(k, t.replace("# naïve", "# fsdp2lint: ignore[FSDP201]")) for k, t in LATE]
    written(tmp_path / "late.ipynb", quiet)
    assert codes(tmp_path) == []
    unused = written(
        tmp_path / "late.ipynb", [*quiet, ("code", "x = 1  # fsdp2lint: ignore[FSDP203]")]
    )
    assert codes(tmp_path) == [("FSDP901", 6, 1)]
    assert invoke("check", "--fix", cwd=tmp_path).returncode == 0
    assert sources(unused)[-1] == "x = 1"


def test_a_comment_at_the_end_of_a_cell_says_nothing_of_the_next(tmp_path: Path) -> None:
    above = LATE[1][1] + "\n# fsdp2lint: ignore[FSDP201]"
    written(tmp_path / "late.ipynb", [LATE[0], ("code", above), *LATE[2:]])
    assert codes(tmp_path) == [("FSDP901", 2, 7), ("FSDP201", 3, 3)]


def test_comments_are_added_in_cells(late: Path) -> None:
    shown = invoke("check", "--add-ignore=known", cwd=late.parent)
    assert shown.stdout == "Silenced 1 finding in 1 file.\n"
    assert sources(late)[2].endswith("# naïve  # fsdp2lint: ignore[FSDP201] -- known\n")
    assert codes(late.parent) == []


def test_a_baseline_knows_findings_in_cells(late: Path) -> None:
    assert "1 added" in invoke("baseline", "create", cwd=late.parent).stdout
    written(late, [("code", "x = 1\n"), *LATE])
    assert codes(late.parent) == []


def test_results_are_kept_and_the_bytes_are_the_same(late: Path) -> None:
    first = invoke("check", cwd=late.parent).stdout
    second = invoke("check", cwd=late.parent).stdout
    assert first == second
    assert "cell 3:3:13" in second
    written(late, [*LATE[:2], ("code", "# one more line\nmodel = None\n"), *LATE[2:]])
    assert codes(late.parent) == [("FSDP201", 4, 3)]


def test_processes_give_the_same_bytes(tmp_path: Path) -> None:
    filler = ("code", "".join(f"value_{n} = torch.ones({n})\n" for n in range(4000)))
    for name in ("one", "two", "three"):
        written(tmp_path / f"{name}.ipynb", [*LATE, filler])
    alone = invoke("check", "-n", "-j", "1", cwd=tmp_path).stdout
    assert alone.count("FSDP201") == 4, "once each, and where the rule is explained"
    assert invoke("check", "-n", "-j", "3", cwd=tmp_path).stdout == alone


def test_exclusion_and_settings_count(late: Path) -> None:
    assert codes(late.parent, "--exclude", "*.ipynb") == []
    assert codes(late.parent, "--per-file-ignores", "*.ipynb:FSDP2") == []
    (late.parent / ".ipynb_checkpoints").mkdir()
    written(late.parent / ".ipynb_checkpoints" / "late-checkpoint.ipynb")
    assert invoke("check", "--show-files", cwd=late.parent).stdout == "late.ipynb\n"


def test_a_notebook_and_the_module_that_it_imports_belong_together(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(HELPER)
    use = "import torch\nimport helper\nmodel = torch.nn.Linear(4, 4)\n"
    use += "optimizer = torch.optim.AdamW(model.parameters())\n"
    written(
        tmp_path / "run.ipynb", [("code", use), ("code", "helper.shard(model)\noptimizer.step()")]
    )
    assert codes(tmp_path) == [("FSDP201", 1, 4)]
    assert codes(tmp_path, "run.ipynb") == [("FSDP201", 1, 4)], (
        "also when only the notebook is named"
    )


# -- what cannot be read -------------------------------------------------------------------------

CORRUPT: dict[str, tuple[str | bytes, str]] = {
    "not JSON": ("{ fully_shard", "not a notebook: expecting property name"),
    "cut": (notebook(LATE)[:-40], "not a notebook"),
    "a list": ('["fully_shard"]', "not a notebook: it has no `nbformat`"),
    "format 3": (
        '{"nbformat": 3, "worksheets": ["fully_shard"]}',
        "format 3: only format 4 is read",
    ),
    "no cells": ('{"nbformat": 4, "cells": "fully_shard"}', "`cells` is no list of cells"),
    "a cell without source": (
        '{"nbformat": 4, "cells": [{"cell_type": "code"}, "fully_shard"]}',
        "`cells` is no list of cells",
    ),
    "Julia": (notebook(LATE, language="julia"), "not a notebook of Python: its language is julia"),
    "Latin-1": (notebook(LATE).encode("latin-1"), "cannot decode the notebook"),
}


@pytest.mark.parametrize("case", CORRUPT)
def test_a_broken_notebook_is_said_in_one_line(tmp_path: Path, case: str) -> None:
    text, said = CORRUPT[case]
    file = tmp_path / "x.ipynb"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    shown = invoke("check", "-q", "-f", "concise", "--fix", cwd=tmp_path)
    assert shown.returncode == 1
    assert shown.stdout.count("\n") == 1
    assert shown.stdout.startswith("x.ipynb:")
    assert f" FSDP900 {said}" in shown.stdout or said in shown.stdout
    assert file.read_bytes() == (text if isinstance(text, bytes) else text.encode())
    migrated = invoke("migrate", "x.ipynb", cwd=tmp_path)
    assert "x.ipynb: not migrated, " in migrated.stderr
    assert said in migrated.stderr


def test_a_syntax_error_is_reported_in_its_cell(tmp_path: Path) -> None:
    written(tmp_path / "x.ipynb", [*LATE, ("code", "x = 1\ny = = 2")])
    shown = invoke("check", "-q", "-f", "concise", cwd=tmp_path)
    assert shown.stdout.startswith("x.ipynb:cell 6:2:5: FSDP900 syntax error")
    migrated = invoke("migrate", "x.ipynb", cwd=tmp_path)
    assert "x.ipynb: not migrated, line 2: in cell 6: syntax error" in migrated.stderr


def test_cells_in_another_language_are_left_alone(tmp_path: Path) -> None:
    text = notebook([*LATE, ("code", "SELECT fully_shard FROM models")])
    data = json.loads(text)
    data["cells"][-1]["metadata"] = {"vscode": {"languageId": "sql"}}
    (tmp_path / "x.ipynb").write_text(json.dumps(data))
    assert codes(tmp_path) == [("FSDP201", 3, 3)]


def test_a_notebook_without_code_is_fine(tmp_path: Path) -> None:
    written(tmp_path / "x.ipynb", [("markdown", "fully_shard"), ("code", "%%bash\nls")])
    assert codes(tmp_path) == []


# -- magics --------------------------------------------------------------------------------------

HIDDEN = {
    "%load_ext x": "_#:magic 0:",
    "if x:\n    !ls\n": "if x:\n    _#:magic 0:\n",
    "x = !ls -l": "x = _#:magic 0:",
    "a, b.c = %time f()": "a, b.c = _#:magic 0:",
    "!a \\\n  b \\\n  c\nx": "(_\n\n)#:magic 0:\nx",
    "model.forward??": "_#:magic 0:",
    "?len": "_#:magic 0:",
    "pip install torch": "_#:magic 0:",
    "y = (a\n  % b)": "y = (a\n  % b)",
    "y = a \\\n  % b": "y = a \\\n  % b",
    'y = """\n%x\n!ls"""\n!ls': 'y = """\n%x\n!ls"""\n_#:magic 0:',
    "x = 'it\\'s' # (\n%x": "x = 'it\\'s' # (\n_#:magic 0:",
    "x != y": "x != y",
    "f(x)  # why?": "f(x)  # why?",
    "pip = 1": "pip = 1",
}


@pytest.mark.parametrize("cell", HIDDEN)
def test_magics_are_hidden_and_come_back(cell: str) -> None:
    originals: list[str] = []
    hidden = magics.hidden(cell, originals)
    assert hidden == HIDDEN[cell]
    assert magics.shown(hidden, originals) == cell
    Source("x.py", hidden).tree  # noqa: B018  it parses


@pytest.mark.parametrize(
    "cell", ["%%bash\nls", "%%writefile a.py\nx", "\n%%html\n<b>", "%%python2\nx"]
)
def test_cells_of_other_programs_are_no_python(cell: str) -> None:
    assert not magics.is_python(cell)


def test_a_magic_moves_with_its_block(tmp_path: Path) -> None:
    """A statement that holds one is moved by a fix."""
    build = "if True:\n    optimizer = torch.optim.AdamW(model.parameters())\n    !ls\n    fully_shard(model)\n"
    train = TRAIN.replace("fully_shard(model)\n", "")
    cells = [*LATE[:2], ("code", "model = nn.Linear(4, 4)"), ("code", build), ("code", train)]
    file = written(tmp_path / "x.ipynb", cells)
    assert invoke("check", *UNSAFE, cwd=tmp_path).returncode == 0
    wanted = "if True:\n    !ls\n    fully_shard(model)\n    optimizer = torch.optim.AdamW(model.parameters())\n"
    assert sources(file)[3] == wanted
