"""One run over several projects: each file stands under the settings of its own."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsdp2lint.check import analysis, runner
from fsdp2lint.check.session import Session
from fsdp2lint.interpret import entries
from fsdp2lint.model.trace import Trace
from tests.config.test_config import LATE, found
from tests.support.running import invoke

NEWER = """\
from torch.distributed.fsdp import share_comm_ctx
from torch.distributed.checkpoint import FileSystemWriter  # fsdp2lint: ignore[FSDP259]
"""
"""What came with torch 2.10, and what was always there."""

PYPROJECT = "[project]\nname = 'x'\ndependencies = ['torch>={torch}']\n"

SAVED = LATE.replace("step()\n", 'step()\n    torch.save(model.state_dict(), "x.pt")\n')
"""FSDP201 and FSDP301."""


def projects(folder: Path, **texts: dict[str, str]) -> None:
    """Folders with their files."""
    for name, files in texts.items():
        (folder / name).mkdir()
        for file, text in files.items():
            (folder / name / file).write_text(text)


def config(torch: str, text: str) -> str:
    return f"{PYPROJECT.format(torch=torch)}[tool.fsdp2lint]\n{text}"


@pytest.fixture
def siblings(tmp_path: Path) -> Path:
    """Projects that ask for different rules and releases, and a folder that asks for nothing."""
    programs = {"late.py": LATE, "newer.py": NEWER, "saved.py": SAVED}
    projects(
        tmp_path,
        old={"pyproject.toml": config("2.6", "select = ['FSDP201', 'FSDP259']\n"), **programs},
        new={
            "pyproject.toml": config(
                "2.13", "[tool.fsdp2lint.per-file-ignores]\n'saved.py' = ['FSDP201']\n"
            ),
            **programs,
        },
        said={
            "fsdp2lint.toml": "target-torch = '2.7'\nselect = ['FSDP259', 'FSDP901']\n",
            **programs,
        },
        none=programs,
    )
    (tmp_path / ".git").mkdir()
    return tmp_path


EXPECTED = [
    "new/late.py:FSDP201",
    "new/newer.py:FSDP901",
    "new/saved.py:FSDP301",
    "none/late.py:FSDP201",
    "none/newer.py:FSDP901",
    "none/saved.py:FSDP201",
    "none/saved.py:FSDP301",
    "old/late.py:FSDP201",
    "old/newer.py:FSDP259",
    "old/saved.py:FSDP201",
    "said/newer.py:FSDP259",
    "said/newer.py:FSDP901",
]


def test_each_project_counts_for_its_own_files(siblings: Path) -> None:
    assert found(siblings) == EXPECTED
    alone = [
        f"{name}/{one}" for name in ("new", "none", "old", "said") for one in found(siblings / name)
    ]
    assert alone == EXPECTED


def test_one_configuration_for_all(siblings: Path) -> None:
    (siblings / "mine.toml").write_text("select = ['FSDP301']\n")
    assert found(siblings, "--config", "mine.toml") == [
        f"{name}/saved.py:FSDP301" for name in ("new", "none", "old", "said")
    ]
    assert found(siblings, "--target-torch", "2.13", "--select", "FSDP259") == []
    at_least = found(siblings, "--target-torch", "2.6", "--select", "FSDP259", "--isolated")
    assert at_least == [f"{name}/newer.py:FSDP259" for name in ("new", "none", "old", "said")]


def test_a_repository_without_a_configuration(tmp_path: Path) -> None:
    """The release is that of each file's own project; one that names none belongs to what is around it."""
    projects(
        tmp_path,
        a={"pyproject.toml": PYPROJECT.format(torch="2.13"), "x.py": NEWER},
        b={"requirements.txt": "torch==2.7.1\n", "x.py": NEWER},
        c={"setup.py": "setup(install_requires=['torch>=2.8', 'numpy'])\n", "x.py": NEWER},
        d={
            "setup.cfg": "[options]\ninstall_requires =\n    numpy\n    torch>=2.12\n",
            "x.py": NEWER,
        },
        e={"pyproject.toml": "[project]\nname = 'e'\n", "x.py": NEWER},
    )
    (tmp_path / ".git").mkdir()
    args = ("--select", "FSDP259")
    assert found(tmp_path, *args) == ["b/x.py:FSDP259", "c/x.py:FSDP259"]
    shown = invoke("check", "--show-settings", cwd=tmp_path).stdout
    targets = [line for line in shown.splitlines() if line.startswith("target-torch")]
    assert targets == [f'target-torch = "{one}"' for one in ("2.13", "2.7.1", "2.8", "2.12", "2.6")]
    (tmp_path / "requirements.txt").write_text("torch>=2.7\n")
    assert found(tmp_path, *args) == ["b/x.py:FSDP259", "c/x.py:FSDP259", "e/x.py:FSDP259"]
    assert found(tmp_path / "e", *args) == ["x.py:FSDP259"]


HELPER = """\
from torch.distributed.fsdp import fully_shard, share_comm_ctx


def shard(model):
    share_comm_ctx([model])
    return fully_shard(model)


x = 1  # fsdp2lint: ignore[FSDP203]
"""

MAIN = """\
import torch
from torch import nn
from torch.distributed.fsdp import share_comm_ctx
from lib.helper import shard


def main():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    shard(model)
    model(torch.ones(4)).sum().backward()
    optimizer.step()


main()
x = 1  # fsdp2lint: ignore[FSDP203]
"""


@pytest.fixture
def joined(tmp_path: Path) -> Path:
    """Two projects of which one imports the other."""
    projects(
        tmp_path,
        lib={"pyproject.toml": PYPROJECT.format(torch="2.13"), "helper.py": HELPER},
        app={"pyproject.toml": PYPROJECT.format(torch="2.8"), "main.py": MAIN},
    )
    (tmp_path / ".git").mkdir()
    return tmp_path


JOINED = ["app/main.py:FSDP259", "app/main.py:FSDP201", "app/main.py:FSDP901"]
JOINED_TOO = ["lib/helper.py:FSDP901"]


def test_projects_that_import_each_other(joined: Path) -> None:
    assert found(joined) == [*JOINED, *JOINED_TOO]
    (joined / "app" / "pyproject.toml").write_text(PYPROJECT.format(torch="2.13"))
    (joined / "lib" / "pyproject.toml").write_text(PYPROJECT.format(torch="2.8"))
    assert found(joined) == [*JOINED[1:], "lib/helper.py:FSDP259", *JOINED_TOO]


def test_what_projects_share_is_followed_once(
    joined: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a trace goes when the last project has asked it: what rules noted in it does not hold it."""
    made: list[weakref.ref[Trace]] = []
    every = entries.traces

    def counted(*args: Any, **keywords: Any) -> Iterator[Trace]:
        for trace in every(*args, **keywords):
            made.append(weakref.ref(trace))
            yield trace
            del trace

    monkeypatch.setattr(analysis, "traces", counted)
    monkeypatch.chdir(joined)
    report = Session(["."]).check()
    places = {f"{d.place.path}:{d.rule.code}" for d in report.found}
    assert places == {*JOINED, *JOINED_TOO}
    assert len(made) == 2, "one for each file"
    assert not any(one() is not None for one in made)


def test_fixes_of_projects_that_import_each_other(joined: Path) -> None:
    shown = invoke("check", "--fix", "-f", "concise", cwd=joined)
    assert "Fixed 2 findings." in shown.stdout
    assert (joined / "app" / "main.py").read_text().endswith("main()\nx = 1\n")
    assert (joined / "lib" / "helper.py").read_text().endswith("x = 1\n")
    invoke("check", "--fix", "--unsafe-fixes", cwd=joined)
    assert found(joined) == JOINED[:1]


@pytest.mark.parametrize("format_", ["full", "json", "sarif", "gitlab"])
def test_the_same_bytes(siblings: Path, monkeypatch: pytest.MonkeyPatch, format_: str) -> None:
    """Whatever ``-j``, and from the cache as without it."""
    monkeypatch.setattr(runner, "WORTH_A_PROCESS", 0)
    projects(siblings, lib={"helper.py": HELPER}, app={"main.py": MAIN})
    (siblings / "lib" / "pyproject.toml").write_text(PYPROJECT.format(torch="2.13"))
    runs = [("-n", "-j1"), ("-n", "-j2"), ("-j2",), ("-j2",), ("-j1",)]
    texts = {invoke("check", "-f", format_, *run, cwd=siblings).stdout for run in runs}
    assert len(texts) == 1


def test_a_changed_requirement_is_no_old_result(siblings: Path) -> None:
    assert found(siblings) == EXPECTED
    (siblings / "old" / "pyproject.toml").write_text(config("2.13", "select = ['FSDP259']\n"))
    assert [one for one in found(siblings) if one.startswith("old")] == []
    assert [one for one in found(siblings) if not one.startswith("old")] == [
        one for one in EXPECTED if not one.startswith("old")
    ]


def test_a_wrong_selector_is_found_where_it_stands(siblings: Path) -> None:
    (siblings / "said" / "fsdp2lint.toml").write_text("select = ['FSDP2O1']\n")
    shown = invoke("check", "-f", "concise", cwd=siblings)
    assert (shown.returncode, shown.stderr) == (2, "")
    assert (
        "said/fsdp2lint.toml:1:1: FSDP903 `select`: unknown rule `FSDP2O1`, did you mean `FSDP201`?\n"
        in shown.stdout
    )
    assert json.loads(invoke("check", "-f", "json", "--isolated", cwd=siblings).stdout)


def test_a_package_without_init_is_that_of_the_own_project(tmp_path: Path) -> None:
    """Both have a package of the same name: each of them imports its own."""
    shard = """\
from torch.distributed.fsdp import fully_shard
from parts.options import policy


def shard(model):
    fully_shard(model, mp_policy=policy())


shard(torch.nn.Linear(4, 4))
"""
    options = "import torch\n\n\ndef policy():\n    return {}\n"
    for name, value in (("one", "None"), ("other", "torch.policy()")):
        (tmp_path / name / "parts").mkdir(parents=True)
        (tmp_path / name / "pyproject.toml").touch()
        (tmp_path / name / "parts" / "shard.py").write_text(f"import torch\n{shard}")
        (tmp_path / name / "parts" / "options.py").write_text(options.format(value))
    for order in (("one", "other"), ("other", "one")):
        assert found(tmp_path, "--select", "FSDP241", *order) == ["one/parts/shard.py:FSDP241"]
