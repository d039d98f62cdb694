"""``fsdp2lint rule`` and ``fsdp2lint trace``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.running import CLEAN, TOUR, program


def test_rule(tmp_path: Path) -> None:
    by_code = program("rule", "FSDP203", cwd=tmp_path).stdout
    assert by_code == program("rule", "direct-forward-call", cwd=tmp_path).stdout
    assert by_code.startswith("FSDP203 direct-forward-call (correctness)\n")
    assert "## Why is this bad" in by_code
    several = program("rule", "FSDP203", "FSDP901", "-f", "json", cwd=tmp_path)
    assert [one["code"] for one in json.loads(several.stdout)] == ["FSDP203", "FSDP901"]
    every = json.loads(program("rule", "--all", "-f", "json", cwd=tmp_path).stdout)
    assert [one["code"] for one in every] == sorted(one["code"] for one in every)
    assert {"FSDP201", "FSDP900"} <= {one["code"] for one in every}
    fixes = {one["code"]: one["fix"] for one in every}
    shown = ("FSDP201", "FSDP203", "FSDP210", "FSDP211", "FSDP901")
    assert [fixes[code] for code in shown] == ["unsafe", "safe", "sometimes-safe", None, "safe"]


def test_trace() -> None:
    shown = program("trace", TOUR / "train.py")
    assert shown.returncode == 0, shown.stderr
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    wanted = [
        "train.py:38 optimizer built over model.parameters()",
        "train.py:39 shard(model, mesh):",
        "parallel.py:13 sharded model",
        "train.py:48 backward",
    ]
    assert [line for line in lines if line in wanted] == wanted
    assert any(line.startswith("checkpoint.py:13 saved") and "rank == 0" in line for line in lines)


def test_trace_as_json() -> None:
    runs = json.loads(program("trace", TOUR / "train.py", "-f", "json").stdout)
    (run,) = (one for one in runs if one["entry"] == "__main__")
    assert not run["truncated"]
    sharded = next(one for one in run["events"] if one["text"] == "sharded model")
    assert sharded["kind"] == "Sharded"
    assert sharded["filename"].endswith("parallel.py")
    assert sharded["location"]["row"] == 13
    assert [call["text"] for call in sharded["calls"]] == ["main()", "shard(model, mesh)"]
    assert any(one["condition"] for one in run["events"])
    followed = json.loads(program("trace", "--coverage", "-f", "json", TOUR).stdout)
    assert any(one["filename"].endswith("train.py") for one in followed["programs"])


def test_trace_of_one_function() -> None:
    shown = program("trace", TOUR / "train.py", "shard")
    places = {
        line.split()[0].split(":")[0] for line in shown.stdout.splitlines()[1:] if line.strip()
    }
    assert "parallel.py" in places
    assert "backward" not in shown.stdout
    nothing = program("trace", TOUR / "train.py", "nowhere")
    assert nothing.returncode == 2
    assert "`nowhere`" in nothing.stderr


def test_trace_of_what_nobody_calls(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(CLEAN)
    lines = program("trace", "x.py", cwd=tmp_path).stdout.splitlines()
    assert lines[0] == "x.py, beginning with shard"
    assert lines[-2].split() == ["x.py:5", "sharded", "model.blocks"]
