"""The measure of ``benchmarks/accuracy`` on made-up clones, its manifest, and the numbers of the rule pages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.accuracy import (
    Accuracy,
    measured,
    recall_sentence,
    recalled,
    sentence,
)
from fsdp2lint.config.settings import DEFAULT_GROUPS
from tests.support.running import program

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "accuracy"
RULES = {rule.code: rule for rule in knowledge.rules()}

CLEAN = """\
from torch.distributed.fsdp import fully_shard


def train(model, batch):
    fully_shard(model)
    return model(batch)
"""
DIRECT = CLEAN.replace("model(batch)", "model.forward(batch)")
LINE = DIRECT.count("\n")
ENOUGH = 0.95


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    run = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, check=True)
    return run.stdout.decode().strip()


@pytest.fixture
def clones(tmp_path: Path) -> Path:
    """A folder with one clone; its first commit breaks the contract, its second does not."""
    clone = tmp_path / "clones" / "someone__something"
    clone.mkdir(parents=True)
    git(clone, "init", "-q")
    for text in (DIRECT, CLEAN):
        (clone / "train.py").write_text(text)
        git(clone, "add", ".")
        git(clone, "commit", "-q", "-m", "x")
    return clone.parent


def judged(clones: Path, back: int, line: int, rule: str = "FSDP203", verdict: bool = True) -> Any:
    commit = git(clones / "someone__something", "rev-parse", f"HEAD~{back}")
    place = {"repository": "someone/something", "commit": commit, "path": "train.py"}
    return {**place, "line": line, "rule": rule, "verdict": verdict, "reason": "for a test"}


def measure(clones: Path, rows: list[Any], *options: str) -> subprocess.CompletedProcess[str]:
    manifest = clones.parent / "manifest.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    where = ["--checkouts", str(clones), "--manifest", str(manifest)]
    command = [sys.executable, str(FOLDER / "measure.py"), *where, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_true_finding(clones: Path) -> None:
    run = measure(clones, [judged(clones, 1, LINE)])
    assert run.returncode == 0, run.stderr
    assert "FSDP203       1      1      0      0      100%  1" in run.stdout


def test_a_false_alarm(clones: Path) -> None:
    run = measure(clones, [judged(clones, 1, LINE, verdict=False)])
    assert run.returncode == 1
    assert "FSDP203       1      0      1      0        0%  1" in run.stdout


def test_a_mended_false_alarm_counts_for_nothing(clones: Path) -> None:
    run = measure(clones, [judged(clones, 0, 2, verdict=False)])
    assert run.returncode == 0
    assert "FSDP203       0      0      0      1         –  0" in run.stdout


def test_what_nobody_judged_and_what_is_gone(clones: Path) -> None:
    run = measure(clones, [judged(clones, 1, 1, "FSDP201")])
    assert run.returncode == 1
    assert "1 without a verdict" in run.stdout
    assert f"train.py:{LINE} FSDP203" in run.stdout
    assert "1 true ones no longer found" in run.stdout
    assert "train.py:1 FSDP201" in run.stdout


def test_results_are_kept(clones: Path, tmp_path: Path) -> None:
    rows = [judged(clones, 1, LINE)]
    kept = tmp_path / "kept"
    first = measure(clones, rows, "--results", str(kept))
    assert len(list(kept.iterdir())) == 1
    (clones / "someone__something").rename(clones / "elsewhere")
    assert measure(clones, rows, "--results", str(kept)).stdout == first.stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"repository": "no/body"}, "no/body: no clone at"),
        ({"commit": "0" * 40}, "someone/something: "),
        ({"lin": 3}, "manifest.jsonl:1: "),
        ({"verdict": "perhaps"}, "manifest.jsonl:1: "),
    ],
)
def test_what_is_missing_is_said(clones: Path, change: dict[str, Any], said: str) -> None:
    run = measure(clones, [{**judged(clones, 1, 1), **change}])
    assert run.returncode == 2
    assert run.stderr.startswith(said)
    assert run.stderr.count("\n") == 1


def test_a_site_is_judged_once(clones: Path) -> None:
    run = measure(clones, [judged(clones, 1, 1)] * 2)
    assert run.returncode == 2
    assert "judged twice" in run.stderr


def test_the_manifest() -> None:
    lines = (FOLDER / "manifest.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    keys = ["repository", "commit", "path", "line", "rule", "verdict", "reason"]
    assert all(list(row)[:7] == keys and row.keys() <= {*keys, "reported"} for row in rows)
    assert all(row["reported"] is not row["verdict"] for row in rows if "reported" in row)
    assert rows == sorted(rows, key=lambda row: [row[key] for key in keys])
    assert all(row["reason"] and len(row["commit"]) == 40 for row in rows)
    assert {row["rule"] for row in rows} <= RULES.keys()


def test_published_numbers_are_counted_from_the_manifest(tmp_path: Path) -> None:
    """They are what the command writes, to the byte: nobody edits them."""
    made = tmp_path / "accuracy.json"
    command = [sys.executable, str(FOLDER / "measure.py"), "--publish", "--published", str(made)]
    subprocess.run(command, check=True)
    package = ROOT / "fsdp2lint" / "catalogue" / "accuracy.json"
    assert package.read_text() == made.read_text(), f"run {' '.join(command[1:3])}"


def test_publishing_writes_down_what_is_reported(clones: Path, tmp_path: Path) -> None:
    rows = [
        judged(clones, 0, 2, verdict=False),
        judged(clones, 1, 1, "FSDP201"),
        judged(clones, 1, LINE),
        judged(clones, 1, LINE, "FSDP202"),
        {**judged(clones, 1, 1), "repository": "someone/unseen"},
    ]
    rows.sort(key=lambda row: list(row.values()))
    made = tmp_path / "accuracy.json"
    only = ["--repository", "someone/something"]
    measure(clones, rows, "--publish", "--published", str(made), *only)
    manifest = (clones.parent / "manifest.jsonl").read_text().splitlines()
    for row, line in zip(rows, manifest, strict=True):
        gone = row["rule"] in ("FSDP201", "FSDP202")
        assert json.loads(line) == (row | {"reported": False} if gone else row)
    one = {"judged": 2, "right": 2, "repositories": 2}
    assert json.loads(made.read_text()) == {"FSDP203": one}


def test_rules_of_the_default_set_are_right() -> None:
    default = {code for code, rule in RULES.items() if rule.group in DEFAULT_GROUPS}
    seen = {code: one.precision for code, one in measured().items() if code in default}
    assert {code: share for code, share in seen.items() if share < ENOUGH} == {}


def test_the_page_of_a_rule_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = program("rule", "FSDP203", cwd=tmp_path).stdout
    both = f"{sentence('FSDP203')}\n{recall_sentence(recalled()['FSDP203'])}"
    assert f"## Accuracy\n\n{both}\n" in shown
    told = json.loads(program("rule", "--all", "-f", "json", cwd=tmp_path).stdout)
    numbers = {one["code"]: one["accuracy"] for one in told if one["accuracy"]}
    assert numbers.keys() == measured().keys()
    planted = {one["code"]: one["recall"] for one in told if one["recall"]}
    assert planted == msgspec.to_builtins(recalled())
    seen = {
        "FSDP201": Accuracy(judged=8, right=6, repositories=1),
        "FSDP203": Accuracy(judged=20, right=15, repositories=2),
    }
    monkeypatch.setattr("fsdp2lint.catalogue.accuracy.measured", lambda: seen)
    assert sentence("FSDP201") == (
        "6 of 8 findings in 1 public repository were right, judged by hand."
    )
    assert sentence("FSDP203") == (
        "Precision 75%: 15 of 20 findings in 2 public repositories, judged by hand."
    )
    assert sentence("FSDP202") == "No finding on public code was judged yet."
    assert msgspec.to_builtins(seen["FSDP201"]) == {"judged": 8, "right": 6, "repositories": 1}
