"""The program as a user meets it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running import CLEAN, ROOT, TOUR, program

UNUSED = "from torch.distributed.fsdp import fully_shard\nx = 1  # fsdp2lint: ignore[FSDP203]\n"
MENDED = "from torch.distributed.fsdp import fully_shard\nx = 1\n"


def test_version_and_help() -> None:
    for flag in ("-V", "--version"):
        assert program(flag).stdout.startswith("fsdp2lint 0.")
    for args in (["-h"], ["--help"], ["check", "-h"], ["rule", "--help"], ["trace", "-h"]):
        shown = program(*args)
        assert shown.returncode == 0
        assert shown.stdout.startswith("Usage: fsdp2lint")


def test_the_tour(tmp_path: Path) -> None:
    """The example of the README, each mistake where it is, through three files."""
    shown = program("check", TOUR, "-f", "concise")
    assert shown.returncode == 1, shown.stderr
    places = [line.split(": ")[0:2] for line in shown.stdout.splitlines() if ": FSDP" in line]
    found = {(Path(p).name.split(":")[0], code.split()[0]) for p, code in places}
    assert {
        ("train.py", "FSDP201"),
        ("train.py", "FSDP203"),
        ("train.py", "FSDP210"),
        ("checkpoint.py", "FSDP301"),
    } <= found


def test_findings_only_for_the_files_that_were_passed() -> None:
    shown = program("check", TOUR / "parallel.py", TOUR / "train.py", "-f", "json")
    names = {Path(one["filename"]).name for one in json.loads(shown.stdout)}
    assert names == {"train.py"}


def test_clean(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(CLEAN)
    shown = program("check", cwd=tmp_path)
    assert (shown.returncode, shown.stdout, shown.stderr) == (
        0,
        "No findings in what was followed (FSDP in 1 of 1 file).\n"
        "No training program leads to the 1 `fully_shard` call; the functions around were checked "
        "alone.\n",
        "",
    )
    assert program("check", "-q", cwd=tmp_path).stdout == ""


def test_an_empty_list_of_files_is_the_current_folder(tmp_path: Path) -> None:
    shown = program("check", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, "No Python files found; nothing was checked.\n")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["check", "gone"], "Error: gone: No such file or directory"),
        (["check", "--select", "FSDP2O3", "."], "did you mean `FSDP203`?"),
        (["check", "--ignore", "direct-forward-cal"], "did you mean `direct-forward-call`?"),
        (["check", "--target-torch", "new", "--select", "FSDP2"], "`new` is not a torch version"),
        (["check", "--selct", "x"], "--select"),
        (["check", "-f", "concis"], "did you mean `concise`?"),
        (["check", "-f", "json", "-f", "concise"], "two reports go to standard output"),
        (["check", "-", "x.py"], "`-` reads standard input and takes no other files"),
        (["check", "-f", "json=x.py/out.json"], "x.py"),
        (["chek"], "did you mean `check`?"),
        (["x.py"], "fsdp2lint check x.py"),
        (["rule", "FSDP2O3"], "did you mean `FSDP203`?"),
        (["rule"], "name a rule"),
        (["trace", "gone.py"], "gone.py: cannot read the file: No such file or directory"),
        (["trace", "broken.py"], "broken.py:2:"),
    ],
)
def test_slips(tmp_path: Path, args: list[str], said: str) -> None:
    (tmp_path / "x.py").write_text(CLEAN)
    (tmp_path / "broken.py").write_text("x = 1\nf(\n")
    shown = program(*args, cwd=tmp_path)
    assert shown.returncode == 2, shown.stdout
    assert said in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_syntax_error_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import torch.distributed.fsdp\nf(\n")
    shown = program("check", "-f", "concise", cwd=tmp_path)
    assert shown.returncode == 1
    assert shown.stdout.startswith("x.py:2:")
    assert "FSDP900 syntax error" in shown.stdout


def test_exit_zero(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(UNUSED)
    assert program("check", cwd=tmp_path).returncode == 1
    assert program("check", "--exit-zero", cwd=tmp_path).returncode == 0


def test_standard_input(tmp_path: Path) -> None:
    shown = program("check", "-", "-f", "concise", text=UNUSED, cwd=tmp_path)
    assert shown.stdout.startswith("-:2:28: FSDP901 [*]")
    named = program(
        "check", "-", "--stdin-filename", "a/b.py", "-f", "concise", text=UNUSED, cwd=tmp_path
    )
    assert named.stdout.startswith("a/b.py:2:28: FSDP901")


def test_standard_input_sees_the_files_beside_it() -> None:
    """The program says nothing of FSDP, what it imports does; the text need not be that on disk."""
    text = (TOUR / "train.py").read_text()
    named = ("--stdin-filename", TOUR / "train.py")
    shown = program("check", "-", *named, "-f", "json", text=text)
    assert {"FSDP201", "FSDP203"} <= {one["code"] for one in json.loads(shown.stdout)}
    called = text.replace("model.forward(", "model(")
    shown = program("check", "-", *named, "-f", "json", text=called)
    assert "FSDP203" not in {one["code"] for one in json.loads(shown.stdout)}
    fixed = program("check", "--fix", "-", *named, text=text)
    assert "loss = model(tokens" in fixed.stdout


def test_standard_input_that_is_excluded_is_left_alone(tmp_path: Path) -> None:
    args = ("--extend-exclude", "b.py", "--stdin-filename", "b.py", "--fix", "-")
    assert program("check", *args, text=UNUSED, cwd=tmp_path).stdout == MENDED
    shown = program("check", "--force-exclude", *args, text=UNUSED, cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, UNUSED)


def test_fix(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(UNUSED)
    shown = program("check", "--fix", "--show-fixes", "-f", "concise", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (
        0,
        "Fixed 1 finding.\n  x.py:2: FSDP901 unused-suppression\n",
    )
    assert file.read_text() == MENDED
    assert program("check", "--fix", cwd=tmp_path).stdout.startswith("No findings (")


def test_fix_of_standard_input(tmp_path: Path) -> None:
    shown = program("check", "--fix", "-", text=UNUSED, cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, MENDED)
    assert "Fixed 1 finding." in shown.stderr


@pytest.mark.parametrize("text", [CLEAN, "fully_shard(\n", "x = 1\n", ""])
def test_fix_echoes_what_it_does_not_change(tmp_path: Path, text: str) -> None:
    assert program("check", "--fix", "-", text=text, cwd=tmp_path).stdout == text


def test_fix_echoes_also_when_the_options_are_wrong(tmp_path: Path) -> None:
    shown = program("check", "--fix", "--select", "FSDP777", "-", text=UNUSED, cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (2, UNUSED)


def test_diff_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(UNUSED)
    shown = program("check", "--diff", cwd=tmp_path)
    assert shown.returncode == 1
    assert "-x = 1  # fsdp2lint: ignore[FSDP203]\n+x = 1\n" in shown.stdout
    assert shown.stderr == "Would fix 1 finding.\n"
    assert file.read_text() == UNUSED
    file.write_text(CLEAN)
    assert program("check", "--diff", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1  # type: ignore  # fsdp2lint: ignore[FSDP203]\n", "x = 1  # type: ignore\n"),
        ("x = 1  # fsdp2lint: ignore[FSDP203]  # keep\n", "x = 1  # keep\n"),
        ("# fsdp2lint: ignore[FSDP203] -- why\nx = 1\n", "x = 1\n"),
        (
            "def f():\n    # fsdp2lint: ignore[FSDP203, FSDP201]\n    x = 1\n",
            "def f():\n    x = 1\n",
        ),
        ("x = 1  # fsdp2lint: file-ignore[FSDP2, FSDP3]", "x = 1"),
        ("x = 1  # fsdp2lint: ignore[FSDP203]\r\ny = 2\r\n", "x = 1\r\ny = 2\r\n"),
        (
            "# fsdp2lint: disable[FSDP2]\nx = 1\n# fsdp2lint: enable[FSDP2]\n",
            "x = 1\n# fsdp2lint: enable[FSDP2]\n",
        ),
    ],
)
def test_unused_comments_are_removed_and_nothing_else(
    tmp_path: Path, before: str, after: str
) -> None:
    head = "import torch.distributed.fsdp\n"
    file = tmp_path / "x.py"
    file.write_bytes((head + before).encode())
    program("check", "--fix", cwd=tmp_path)
    assert file.read_bytes() == (head + after).encode()


def test_several_reports_in_one_run(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(UNUSED)
    shown = program(
        "check", "-f", "concise", "-f", "sarif=out/a.sarif", "-f", "json=b.json", cwd=tmp_path
    )
    assert "FSDP901" in shown.stdout
    assert json.loads((tmp_path / "out" / "a.sarif").read_text())["version"] == "2.1.0"
    assert json.loads((tmp_path / "b.json").read_text())[0]["code"] == "FSDP901"


def test_output_file_and_environment(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(UNUSED)
    shown = program("check", "-o", "out.txt", cwd=tmp_path, FSDP2LINT_OUTPUT_FORMAT="concise")
    assert shown.stdout == ""
    assert (tmp_path / "out.txt").read_text().startswith("x.py:2:28: FSDP901")


def test_github_writes_the_step_summary(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(UNUSED)
    page = tmp_path / "summary.md"
    page.write_text("before\n")
    shown = program("check", "-f", "github", cwd=tmp_path, GITHUB_STEP_SUMMARY=str(page))
    assert shown.stdout.startswith("::warning title=fsdp2lint (FSDP901),file=x.py,line=2,")
    assert page.read_text().startswith("before\n### fsdp2lint")
    assert "| x.py:2 | FSDP901 unused-suppression |" in page.read_text()


@pytest.mark.parametrize(
    ("args", "environment", "coloured"),
    [
        ([], {}, False),
        (["--color", "always"], {}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colours(
    tmp_path: Path, args: list[str], environment: dict[str, str], coloured: bool
) -> None:
    (tmp_path / "x.py").write_text(UNUSED)
    shown = program("check", *args, cwd=tmp_path, **environment)
    assert ("\x1b[" in shown.stdout) is coloured
    assert "silences nothing" in shown.stdout


def test_statistics(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(UNUSED)
    shown = program("check", "--statistics", cwd=tmp_path)
    assert shown.stdout == "1  FSDP901  [*]  unused-suppression\n"


def test_verbose(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(CLEAN)
    (tmp_path / "y.py").write_text("x = 1\n")
    assert program("check", "-v", cwd=tmp_path).stderr.startswith("2 files looked at, 1 analysed")


def test_lists_add_up(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(UNUSED)
    (tmp_path / "y.py").write_text(UNUSED)
    args = ["check", "--select", "FSDP203,FSDP201", "--select", "FSDP901", "-f", "concise"]
    assert "Found 2 warnings." in program(*args, cwd=tmp_path).stdout
    assert "Found 1 warning." in program(*args, "--extend-exclude", "y.py", cwd=tmp_path).stdout


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell with pipes")
def test_a_closed_pipe(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"x{number}.py").write_text(UNUSED)
    command = f"{sys.executable} -m fsdp2lint check . 2>err.txt | head -n 1"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    shown = subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert shown.stdout.startswith("warning[FSDP901]")
    assert (tmp_path / "err.txt").read_text() == ""


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_an_interrupt() -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "fsdp2lint", "check", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert running.stdin is not None
    running.stdin.write(
        "#" * 1_000_000
    )  # more than a pipe holds: when it is gone, the program reads
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=600)
    assert running.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors


def test_a_rule_that_raises_does_not_end_the_run(tmp_path: Path) -> None:
    """One finding for the rule, the others go on, exit code 2."""
    (tmp_path / "x.py").write_text(UNUSED)
    code = (
        "import sys; from dataclasses import replace; from fsdp2lint.catalogue import knowledge\n"
        "def check(trace): raise KeyError('oops')\n"
        "first, *others = knowledge.rules()\n"
        "rules = (replace(first, check=check), *others)\n"
        "knowledge.rules = lambda *plugins: rules\n"
        "from fsdp2lint.cli import main\n"
        "sys.argv = ['fsdp2lint', 'check', '-f', 'concise']\n"
        "main()\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert shown.returncode == 2, shown.stderr
    assert shown.stdout.count("FSDP999") == 1
    assert "failed on this file: KeyError: 'oops' (<string>:2)" in shown.stdout
    assert "FSDP901" in shown.stdout


def test_the_order_and_the_bytes_are_always_the_same(tmp_path: Path) -> None:
    shutil.copytree(TOUR, tmp_path / "tour")
    runs = {
        program("check", "tour", "-f", "json", cwd=tmp_path, PYTHONHASHSEED=str(n)).stdout
        for n in range(3)
    }
    assert len(runs) == 1
