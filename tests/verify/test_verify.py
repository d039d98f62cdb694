"""``fsdp2lint verify``: from its command line, and faults on forked ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fsdp2lint.cli.verify import command
from fsdp2lint.prove import planning
from fsdp2lint.prove.compare import Options, Trial, Verification
from fsdp2lint.prove.places import find
from fsdp2lint.prove.words import as_json, rendered

from .scenes import ROOT, Ranks, forking

pytestmark = pytest.mark.ranks

PAIR = ROOT / "fixtures" / "verify" / "pair"
BEFORE, AFTER = PAIR / "fsdp1.py", PAIR / "fsdp2.py"


def verify(folder: Path, *words: object) -> tuple[int, str]:
    ran = subprocess.run(
        [sys.executable, "-m", "fsdp2lint", "verify", "-q", *map(str, words)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return ran.returncode, ran.stdout + ran.stderr * (ran.returncode > 1)


def test_both_do_the_same(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    words = ("--report", page, BEFORE, AFTER, "--", "--save", "model.pt")
    code, out = verify(tmp_path, *words)
    assert code == 0, out
    for what, number in (("losses", 8), ("gradient norms", 4), ("parameters", 16), ("buffers", 4)):
        assert any(f"{what} {number:6}  equal" in line for line in out.splitlines()), out
    assert "model.pt" in out
    assert "loss by step: ● both" in out
    assert "tolerance 1e-05 (FSDP1 and FSDP2 add up clipped norms in another order)" in out
    assert out.endswith("Equal: rung 3 of 4 (run on CPU).\n")
    # what they wrote stayed in folders of their own
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert "fully_shard" in page.read_text("utf-8")


def test_whose_fault_it_is(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('no data')\n"
        "import torch.distributed as dist\ndist.init_process_group('nccl')\ndist.barrier()\n"
    )
    (tmp_path / "fine.py").write_text("print('fine')\n")
    code, out = verify(tmp_path, "fine.py", "broken.py")
    assert code == 2
    assert "AFTER could not be run to its end:\nrank 1 raised at broken.py:3\n" in out
    assert "ValueError: no data" in out
    assert out.endswith("Not verified: AFTER failed.\n")


TRACKED = """
import json
import torch
import torch.distributed as dist
import wandb
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
torch.manual_seed(0)
model = torch.nn.Linear(8, 1).cuda()
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
wandb.init(project="p")
with open("rows.jsonl") as file:
    rows = [json.loads(line) for line, _ in zip(file, range(4))]
for row in rows:
    x = torch.full((2, 8), len(row["text"].strip()) / 100).cuda()
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_what_a_machine_lacks_is_made_up_alike_for_both(tmp_path: Path) -> None:
    (tmp_path / "before.py").write_text(TRACKED)
    (tmp_path / "after.py").write_text(
        TRACKED.replace("fully_shard(model)", "fully_shard(model.cuda())")
    )
    code, out = verify(tmp_path, "before.py", "after.py")
    assert code == 2
    assert "help: install `wandb`, or make it up: `--fake`" in out
    code, out = verify(tmp_path, "--fake", "before.py", "after.py")
    assert code == 0, out
    assert "\nmade up: wandb, rows.jsonl\n" in out
    assert "batches      8  equal, exactly" in out


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script works in links to what is in the current folder, which here is nothing."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with forking() as serving:
        yield serving


def trial(ranks: Ranks, before: Path = BEFORE, **options: Any) -> Trial:
    from fsdp2lint.prove.equality import apart

    settings = Options(**({"timeout": 600.0} | options))
    return Trial(find(str(before)), settings, run=ranks.launch, compare=apart.main)


def planted(folder: Path, *changes: tuple[str, str], name: str = "planted.py") -> Path:
    """AFTER with a fault, beside the module that it imports."""
    text = AFTER.read_text("utf-8")
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    shutil.copy(BEFORE, folder / BEFORE.name)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def kinds(found: Verification) -> dict[str, Any]:
    assert found.fault is None, rendered(found, colour=False)
    return {d.kind: (d.step, d.rank, d.name) for d in found.differences}


FAULTS: dict[str, tuple[list[tuple[str, str]], dict[str, Any]]] = {
    "no clip": (
        [("        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", "")],
        {"norm": (1, None, "")},
    ),
    "no broadcast": (
        [("        dist.broadcast(tensor, 0)\n", "        pass\n")],
        {"loss": (1, 0, "")},
    ),
    "optimizer first": (
        [
            (
                "    for block in model.blocks:\n",
                "    held = list(model.parameters())\n    for block in model.blocks:\n",
            ),
            ("torch.optim.AdamW(model.parameters(), lr=1e-2)", "torch.optim.AdamW(held, lr=1e-2)"),
        ],
        {"norm": (1, None, ""), "loss": (2, 0, "")},
    ),
}


def test_a_planted_fault_shows_at_its_step(ranks: Ranks, tmp_path: Path) -> None:
    with trial(ranks) as runs:
        for name, (changes, expected) in FAULTS.items():
            found = runs.against(find(str(planted(tmp_path, *changes))))
            assert found.exit_code == 1
            seen = kinds(found)
            assert {kind: seen.get(kind) for kind in expected} == expected, name
            assert seen["value"][2], "a parameter is named"
            text = rendered(found, colour=False)
            assert "<- first difference" in text
            assert text.endswith("Not equal.\n")


RESUME = (("--save", "ck.pt", "--steps", "3"), ("--load", "ck.pt", "--steps", "5"))


def test_an_old_checkpoint_goes_on_as_it_did(ranks: Ranks, tmp_path: Path) -> None:
    lost = [
        ('    schedule.load_state_dict(entry["schedule"])\n', ""),
        ('        optim_state_dict=entry["optimizer"],\n', "        optim_state_dict={},\n"),
        ("        model,\n        optimizer,\n", "        model,\n        (),\n"),
    ]
    with trial(ranks, resume=RESUME) as runs:
        found = runs.against(find(str(AFTER)))
        assert kinds(found) == {}
        assert [len(rank.steps) for rank in found.before.run.ranks] == [2, 2]
        found = runs.against(find(str(planted(tmp_path, *lost))))
        assert kinds(found)["rate"] == (1, 0, "")
        (rate,) = (d for d in found.differences if d.kind == "rate")
        assert (rate.before, rate.after) == (0.005, 0.01)


def test_it_goes_on_from_its_own_checkpoint_too(ranks: Ranks, tmp_path: Path) -> None:
    lost = (
        "schedule.state_dict(),",
        "{**schedule.state_dict(), '_last_lr': [0.1], 'last_epoch': 0},",
    )
    unread = ('            "step": step,', '            "at": step,')
    with trial(ranks, resume=RESUME) as runs:
        found = runs.against(find(str(AFTER)))
        assert "AFTER goes on from its own checkpoint in the same way" in found.notes
        found = runs.against(find(str(planted(tmp_path, lost))))
        assert kinds(found)["rate"] is None or kinds(found)
        assert found.notes[0].startswith("this is AFTER resumed from its own checkpoint")
        found = runs.against(find(str(planted(tmp_path, unread))))
        assert found.fault == "AFTER"
        assert found.notes[0].startswith("this is AFTER resumed from its own checkpoint")


def test_absolute_paths_are_compared_too(ranks: Ranks, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    after = planted(
        tmp_path,
        ("schedule, step + 1, options.save)", "schedule, step + 1 + (step == 3), options.save)"),
    )
    with trial(ranks, arguments=("--save", str(path))) as runs:
        found = runs.against(find(str(after)))
    assert [note for note in found.notes if "absolute path" in note]
    assert kinds(found) == {"checkpoint": (None, None, "step")}


def test_two_that_do_not_train_are_not_equal(ranks: Ranks) -> None:
    Path("idle.py").write_text("print('usage: train.py --go')\n")
    with trial(ranks, Path("idle.py")) as runs:
        found = runs.against(find("idle.py"))
    assert found.exit_code == 2
    text = rendered(found, colour=False)
    assert "3 run on CPU: not tried" in text
    assert "Not verified: neither program made an optimizer step or wrote a checkpoint" in text


def test_one_that_makes_fewer_steps_is_different(ranks: Ranks, tmp_path: Path) -> None:
    shorter = planted(tmp_path, ("range(first, options.steps)", "range(first, options.steps - 1)"))
    with trial(ranks) as runs:
        found = runs.against(find(str(shorter)))
    assert found.exit_code == 1
    (difference,) = (d for d in found.differences if d.kind == "steps")
    assert difference.step == 4
    assert "on rank 0 BEFORE makes 4 optimizer steps and AFTER 3" in difference.message


HALF = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("nccl")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3))).cuda()
fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(16):
    torch.manual_seed(2 * step + dist.get_rank())
    model(torch.randn(8, 32).cuda()).float().square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_what_half_precision_makes_of_rounding_is_measured(ranks: Ranks, tmp_path: Path) -> None:
    before, rounded, wrong = (tmp_path / f"{name}.py" for name in ("before", "rounded", "wrong"))
    before.write_text(HALF)
    steps = "    optimizer.step()\n"
    scaled = (
        "    for p in model.parameters():\n"
        "        g = p.grad.to_local()\n"
        "        g.mul_(1 + {} * torch.randn_like(g))\n"
    )
    rounded.write_text(HALF.replace(steps, scaled.format("3e-7") + steps))
    wrong.write_text(HALF.replace(steps, scaled.format("(3e-7 if step != 9 else 0.5)") + steps))
    with trial(ranks, before) as runs:
        found = runs.against(find(str(rounded)))
        assert found.exit_code == 0, rendered(found, colour=False)
        losses = next(one for one in found.compared if one.what == "losses")
        assert losses.relative > found.rtol
        assert found.notes[-1].startswith("BEFORE ran once more with other last bits")
        found = runs.against(find(str(wrong)))
        assert found.differences[0].step == 10, rendered(found, colour=False)


EXPLAINED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


dist.init_process_group("nccl")
torch.manual_seed(0)
model = nn.Sequential(*(Layer() for _ in range(3))).cuda()
policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
for layer in model:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(2):
    torch.manual_seed(2 * step + dist.get_rank())
    x = model(torch.randn(8, 8).cuda())
    loss = x.float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    shown = loss.detach()
    dist.all_reduce(shown, op=dist.ReduceOp.AVG)
    print(step, shown.item())
dist.destroy_process_group()
"""

CAUSES = {
    "a module": (
        ("torch.relu(self.up(x))", "torch.tanh(self.up(x))"),
        "`0.down` (Linear) is the first module whose output differs",
        ("return x +", "return x +"),
    ),
    "a type": (
        (
            "    fully_shard(layer, mp_policy=policy)",
            "    other = MixedPrecisionPolicy(torch.float32, torch.float32)\n"
            "    fully_shard(layer, mp_policy=policy if layer is model[0] else other)",
        ),
        "`1.up` (Linear) returns bfloat16 in BEFORE and float32 in AFTER",
        ("return x +", "return x +"),
    ),
    "how gradients are reduced": (
        (
            "MixedPrecisionPolicy(torch.bfloat16, torch.float32)",
            "MixedPrecisionPolicy(torch.bfloat16)",
        ),
        "computed in bfloat16, reduced in float32 in BEFORE, computed in bfloat16, reduced in bfloat16 in AFTER",
        ("loss.backward()", "loss.backward()"),
    ),
    "the loss": (
        ("x.float().square().mean()", "x.float().abs().mean()"),
        "all modules of the model return the same: the programs compute other losses from that",
        ("loss.backward()", "loss.backward()"),
    ),
    "a collective": (
        ("dist.ReduceOp.AVG", "dist.ReduceOp.SUM"),
        "all_reduce(AVG) of float32 () over ranks 0, 1 at before.py:33 in BEFORE, "
        "all_reduce(SUM) of float32 () over ranks 0, 1 at planted.py:33 in AFTER",
        (),
    ),
    "a collective that is gone": (
        ("    dist.all_reduce(shown, op=dist.ReduceOp.AVG)\n", ""),
        "only BEFORE calls all_reduce(AVG) of float32 () over ranks 0, 1 at before.py:33, AFTER does not",
        (),
    ),
}


def test_the_first_difference_has_a_cause(ranks: Ranks, tmp_path: Path) -> None:
    before = tmp_path / "before.py"
    before.write_text(EXPLAINED)
    with trial(ranks, before) as runs:
        for name, (change, cause, lines) in CAUSES.items():
            after = tmp_path / "planted.py"
            assert change[0] in EXPLAINED
            after.write_text(EXPLAINED.replace(*change))
            found = runs.against(find(str(after)))
            text = rendered(found, colour=False)
            first = found.differences[0]
            assert any(cause in one for one in first.causes), (name, text)
            assert not any(one.causes for one in found.differences[1:])
            shown = [
                file.read_text().splitlines()[at.line - 1]
                for file, at in zip((before, after), first.lines, strict=True)
                if at
            ]
            assert len(shown) == len(lines), (name, text)
            assert all(word in line for word, line in zip(lines, shown, strict=True)), (name, text)
            assert cause in text


def test_a_gradient_that_is_not_there_differs(ranks: Ranks, tmp_path: Path) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(EXPLAINED)
    after.write_text(EXPLAINED.replace("(self.up(x)))", "(self.up(x)).detach())"))
    with trial(ranks, before) as runs:
        first = runs.against(find(str(after))).differences[0]
    assert first.message.startswith("the gradient of `2.up.")
    assert first.message.endswith(" and 0 in AFTER")
    assert first.step == 1


def test_tensors_of_other_kinds_are_not_noted_inside_of_models() -> None:
    """An encoder in evaluation hands nested ones from layer to layer."""
    torch = pytest.importorskip("torch")
    from fsdp2lint.rehearse.recording.calls import Results

    model = torch.nn.Identity()
    results = Results(model)
    results.note(model, torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    results.note(model, torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))
    results.note(model, torch.ones(2, dtype=torch.complex64))
    assert results.found == []
    results.note(model, {"a": None, "b": [torch.ones(3, dtype=torch.bfloat16)]})
    assert [(one.name, one.dtype) for one in results.found] == [("", "bfloat16")]


STORED = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.state_dict import get_model_state_dict
state = {"model": get_model_state_dict(model), "step": 2}
dcp.save(state, storage_writer=FsspecWriter("memory://runs/first"))
state["step"] = 0
dcp.load(state, storage_reader=FsspecReader(path="memory://runs/first"))
print("step", state["step"])
"""


def test_what_goes_to_an_object_store_is_compared(ranks: Ranks, tmp_path: Path) -> None:
    """It stays in the working folders: each process would have a store in memory of its own."""
    pytest.importorskip("fsspec")
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    text = EXPLAINED.replace("dist.destroy", STORED + "dist.destroy")
    before.write_text(text)
    after.write_text(text.replace('"step": 2', '"step": 3'))
    with trial(ranks, before) as runs:
        found = runs.against(find(str(before)))
        assert found.exit_code == 0, rendered(found, colour=False)
        stored = next(one for one in found.compared if one.what == "stores/memory/runs/first")
        assert stored.count == stored.identical == 13
        found = runs.against(find(str(after)))
        assert "`step` is 2 in BEFORE and 3 in AFTER" in rendered(found, colour=False)
    assert not (tmp_path / "stores").exists()


def test_as_json_it_says_the_same(ranks: Ranks) -> None:
    with trial(ranks, steps=2) as runs:
        report = json.loads(as_json(runs.against(find(str(AFTER)))))
    assert (report["exit_code"], report["equal"], report["rung"]) == (0, True, 3)
    assert [len(report[side]["steps"]) for side in ("before", "after")] == [2, 2]
    assert [r["outcome"] for r in report["after"]["ranks"]] == ["stopped", "stopped"]
    counts = {c["what"]: c["count"] for c in report["compared"]}
    assert (counts["losses"], counts["gradient norms"], counts["learning rates"]) == (4, 2, 4)
    assert (counts["batches"], counts["evaluation"], counts["printed numbers"]) == (4, 0, 0)
    assert (counts["parameters"], counts["buffers"], counts["optimizer state"]) == (16, 4, 32)
    assert report["notes"] == [
        "no checkpoint was written: what comes after the last step was not run (--steps)"
    ]


def test_a_plan_that_differs_is_a_difference(tmp_path: Path) -> None:
    after = planted(tmp_path, ("    for block in model.blocks:\n        fully_shard(block)\n", ""))
    plans, rung = planning.planned(find(str(BEFORE)), find(str(after)), Options(), 8)
    assert [len(list(plan.units)) for plan in plans] == [3, 1]
    assert (rung.number, rung.state) == (2, "failed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gone.py", "x.py"], "no such file or folder: gone.py"),
        ([str(BEFORE), str(ROOT / "rules")], "name one with --entry"),
        ([str(BEFORE), str(AFTER), "--patch", "nothing"], "--patch takes MODULE:FUNCTION"),
        ([str(BEFORE), str(AFTER), "--resume", "'", "x"], "--resume: No closing quotation"),
        ([str(BEFORE), str(AFTER), "--steps", "0"], "'--steps': 0 is not in the range"),
        ([str(BEFORE), str(AFTER), "--nproc", "0"], "'--nproc': 0 is not in the range"),
        ([str(BEFORE), str(AFTER), "--report", "gone/x.html"], "--report: no such folder: gone"),
        ([str(BEFORE), str(AFTER), "--ledger", "gone.json"], "gone.json: No such file"),
        ([str(BEFORE), str(AFTER), "-m", "fsdp1"], "-m looks for `fsdp1` in a folder"),
    ],
)
def test_slips_of_the_command_line(words: Sequence[str], said: str) -> None:
    result = CliRunner().invoke(command, list(words))
    assert said in result.output
    assert "Traceback" not in result.output
    assert result.exit_code != 0


def test_without_pytorch_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(command, [str(BEFORE), str(AFTER)])
    assert "Error: PyTorch is not installed: pip install 'fsdp2lint[verify]'" in result.output
