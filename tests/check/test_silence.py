"""``--add-ignore``, and how our comments get along with ruff."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp2lint.check.add_ignores import silenced
from fsdp2lint.source.source import Source
from tests.config.test_config import LATE
from tests.support.notebooks import notebook
from tests.support.running import CLEAN, invoke
from tests.support.saying import FORWARD, OPTIMIZER, said


def after(text: str, reason: str = "") -> str:
    source = Source("x.py", text)
    found = [said(source, "bad", FORWARD, n) for n in range(text.count("bad"))]
    return silenced(source, found, reason)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("bad()\n", "bad()  # fsdp2lint: ignore[FSDP203]\n"),
        ("bad()", "bad()  # fsdp2lint: ignore[FSDP203]"),
        ("bad()   \r\nx\r\n", "bad()  # fsdp2lint: ignore[FSDP203]\r\nx\r\n"),
        ("x = f(\n    bad(),\n)\n", "x = f(\n    bad(),\n)  # fsdp2lint: ignore[FSDP203]\n"),
        ('bad("""\n""")\n', 'bad("""\n""")  # fsdp2lint: ignore[FSDP203]\n'),
        ("with bad():\n    pass\n", "with bad():  # fsdp2lint: ignore[FSDP203]\n    pass\n"),
        ("bad(); bad()\n", "bad(); bad()  # fsdp2lint: ignore[FSDP203]\n"),
        ("x = 1 + \\\n    bad()\n", "x = 1 + \\\n    bad()  # fsdp2lint: ignore[FSDP203]\n"),
        ("bad()  # why\n", "bad()  # why  # fsdp2lint: ignore[FSDP203]\n"),
        (
            "bad()  # fsdp2lint: ignore[FSDP201] -- x\n",
            "bad()  # fsdp2lint: ignore[FSDP201, FSDP203] -- x\n",
        ),
    ],
)
def test_where_the_comment_goes(before: str, expected: str) -> None:
    assert after(before) == expected


def test_a_reason() -> None:
    assert after("bad()\n", "it is\nfrozen") == (
        "bad()  # fsdp2lint: ignore[FSDP203] -- it is frozen\n"
    )


def test_several_rules_on_one_line() -> None:
    source = Source("x.py", "bad()\n")
    both = [said(source, "bad", OPTIMIZER), said(source, "bad", FORWARD)]
    assert silenced(source, both) == "bad()  # fsdp2lint: ignore[FSDP201, FSDP203]\n"


def test_add_ignore(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "clean.py").write_text(CLEAN)
    shown = invoke("check", "--add-ignore", "late.py", cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, "Silenced 1 finding in 1 file.\n")
    line = "    optimizer = torch.optim.AdamW(model.parameters())"
    assert f"{line}  # fsdp2lint: ignore[FSDP201]\n" in (tmp_path / "late.py").read_text()
    assert invoke("check", cwd=tmp_path).returncode == 0
    assert invoke("check", "--add-ignore", cwd=tmp_path).stdout.startswith("Silenced 0 findings")


def test_add_ignore_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    invoke("check", "--add-ignore=known since spring", ".", cwd=tmp_path)
    assert (
        "# fsdp2lint: ignore[FSDP201] -- known since spring\n" in (tmp_path / "late.py").read_text()
    )


def test_what_cannot_be_analysed_is_not_silenced(tmp_path: Path) -> None:
    broken = "import torch.distributed.fsdp\nf(\n"
    (tmp_path / "x.py").write_text(broken)
    assert invoke("check", "--add-ignore", cwd=tmp_path).returncode == 1
    assert (tmp_path / "x.py").read_text() == broken


@pytest.mark.parametrize("args", [("--fix",), ("--diff",), ("-",)])
def test_comments_are_not_added_on_the_side(tmp_path: Path, args: tuple[str, ...]) -> None:
    (tmp_path / "x.py").write_text(CLEAN)
    shown = invoke("check", "--add-ignore", *args, cwd=tmp_path, text="")
    assert (shown.returncode, "--add-ignore" in shown.stderr) == (2, True)


def ruff(folder: Path, *args: str, path: str = "x.py") -> subprocess.CompletedProcess[str]:
    found = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    if found is None:
        pytest.skip("ruff is not installed")
    return subprocess.run(
        [found, *args, "--isolated", "--no-cache", path],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


NATIVE = "x = 1  # fsdp2lint: ignore[FSDP201] -- frozen\n"
NOQA = "x = 1  # noqa: FSDP201\n"


def test_ruff_leaves_our_own_comments_alone(tmp_path: Path) -> None:
    """Whatever ruff checks, fixes and formats: the documented form is the one that survives.

    Only ERA001 takes a comment on a line of its own for code, as it does with other tools' comments; it
    shows that and never changes the file.
    """
    text = '"""A module."""\n\n' + NATIVE + "y = 2\n\n# fsdp2lint: file-ignore[FSDP301]\n"
    (tmp_path / "x.py").write_text(text)
    checked = ruff(tmp_path, "check", "--select", "ALL", "--ignore", "ERA001", "--fix")
    assert "fsdp2lint" not in checked.stdout, checked.stdout
    ruff(tmp_path, "format")
    assert (tmp_path / "x.py").read_text() == text


def test_ruff_takes_noqa_with_our_codes_away(tmp_path: Path) -> None:
    """RUF102 knows no FSDP codes; ``lint.external`` tells it. So ``noqa`` is read but not recommended."""
    (tmp_path / "x.py").write_text(NOQA)
    ruff(tmp_path, "check", "--select", "RUF102", "--preview", "--fix")
    assert "FSDP201" not in (tmp_path / "x.py").read_text()
    (tmp_path / "x.py").write_text(NOQA)
    external = ("--config", 'lint.external=["FSDP"]')
    ruff(tmp_path, "check", "--select", "RUF102,RUF100", "--preview", "--fix", *external)
    assert (tmp_path / "x.py").read_text() == NOQA


def test_we_leave_the_comments_of_ruff_alone(tmp_path: Path) -> None:
    text = CLEAN + "import os  # noqa: F401\nx = 1  # ruff: noqa: E501\n"
    (tmp_path / "x.py").write_text(text)
    assert invoke("check", "--fix", cwd=tmp_path).returncode == 0
    assert (tmp_path / "x.py").read_text() == text


LONG = LATE.replace(
    "model.parameters())",
    "model.parameters(), lr=1e-3, weight_decay=0.1)  # fsdp2lint: ignore[FSDP201] -- frozen, never stepped",
)


@pytest.mark.parametrize("at_the_end", [True, False])
def test_our_comments_count_after_ruff_has_formatted_the_statement(
    tmp_path: Path, at_the_end: bool
) -> None:
    """A statement that is too long is broken: its comment comes to stand on the last line of several."""
    text = LONG
    if not at_the_end:
        line = next(one for one in LONG.splitlines() if "fsdp2lint" in one)
        code, _, comment = line.partition("  # ")
        text = LONG.replace(line, f"    # {comment}\n{code}")
    (tmp_path / "late.py").write_text(text)
    assert invoke("check", cwd=tmp_path).returncode == 0
    ruff(tmp_path, "format", "--config", "line-length = 60", path=".")
    formatted = (tmp_path / "late.py").read_text()
    assert "AdamW(\n" in formatted
    assert "# fsdp2lint: ignore[FSDP201]" in formatted
    assert invoke("check", cwd=tmp_path).returncode == 0


def test_fixes_of_both_settle(tmp_path: Path) -> None:
    """Ours, then all of ruff's, over and over: in the end there is nothing to do for either."""
    text = (
        LONG
        + "x = 1  # noqa: F401  # fsdp2lint: ignore[FSDP203]\ny = 2  # fsdp2lint: ignore[FSDP201]\n"
    )
    file = tmp_path / "late.py"
    file.write_text(text)
    (tmp_path / "book.ipynb").write_text(notebook([("code", text), ("code", "!ls\nimport os")]))
    every = ("check", "--select", "ALL", "--ignore", "ERA001,INP001", "--unsafe-fixes", "--fix")
    seen = []
    for _ in range(4):
        invoke("check", "--fix", "--unsafe-fixes", cwd=tmp_path)
        ruff(tmp_path, *every, path=".")
        ruff(tmp_path, "format", path=".")
        seen.append([path.read_text() for path in sorted(tmp_path.glob("[bl]*.*"))])
    assert seen[-2] == seen[-1]
    for one in seen[-1]:
        assert one.count("fsdp2lint: ignore") == 1, (
            "those that silence nothing went, the other stays"
        )
        assert "noqa" not in one, "it silenced nothing: ruff's RUF100 took it away"
    assert invoke("check", cwd=tmp_path).returncode == 0
