"""What a verification is made of, each part alone: no rank is started here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fsdp2lint.prove import ladder
from fsdp2lint.prove.compare import LOOSE, Options, _tolerance, _when
from fsdp2lint.prove.equality import apart, steps
from fsdp2lint.prove.equality.drawing import chart
from fsdp2lint.prove.equality.pairs import pair
from fsdp2lint.prove.equality.settled import counted_by_shard, settings_of_version_1
from fsdp2lint.prove.places import NoEntry, find, scripts
from fsdp2lint.rehearse import workfolder
from fsdp2lint.rehearse.outcome import (
    Call,
    Companion,
    Digest,
    RankReport,
    Step,
    packed,
    report_from,
)
from fsdp2lint.rehearse.recording.companions import _state
from fsdp2lint.rehearse.recording.gradients import round_otherwise
from fsdp2lint.rehearse.results import COPY, Checkpoint
from fsdp2lint.rehearse.standin.fsdp import _divided

ROOT = Path(__file__).resolve().parents[2]


def ranks(*losses: list[float], rates: tuple[float, ...] = (0.1,)) -> list[RankReport]:
    return [
        RankReport(rank, steps=[Step([loss], 2.0, list(rates)) for loss in each])
        for rank, each in enumerate(losses)
    ]


def test_the_first_difference_has_its_step_and_rank() -> None:
    before = ranks([3.0, 2.0, 1.0], [3.0, 2.5, 1.5])
    after = ranks([3.0, 2.0, 1.1], [3.0, 2.6, 1.5])
    losses, norms, rates, *_ = steps.compare(before, after, 0.0)
    assert [(d.step, d.rank, d.more) for d in losses.differences] == [(2, 1, 1)]
    assert losses.differences[0].message == (
        "the loss on rank 1 at step 2 is 2.5 in BEFORE and 2.6 in AFTER"
    )
    assert (losses.count, losses.identical) == (6, 4)
    assert norms.equal
    assert rates.equal
    # each rank has its part of the gradient
    assert steps.norm(before, 0) == 2.0


def test_a_tolerance_is_relative() -> None:
    before, after = ranks([1000.0]), ranks([999.99])
    assert not steps.compare(before, after, 1e-6)[0].equal
    loose = steps.compare(before, after, 1e-4)[0]
    assert loose.equal
    assert loose.relative == pytest.approx(1e-5)


def test_what_a_run_differs_from_itself_by_is_noise_from_that_step_on() -> None:
    before, again = ranks([2.0, 2.0, 2.0, 2.0]), ranks([2.0, 2.0, 2.002, 2.0])
    noise = steps.noise(before, again)
    assert noise["loss"] == pytest.approx([0, 0, 0, 0.001, 0.001, 0.001], rel=0.01)
    assert steps.compare(before, ranks([2.0, 2.0, 2.0, 2.007]), 1e-5, noise)[0].equal
    for losses, step in (([2.0, 2.002, 2.0, 2.0], 2), ([2.0, 2.0, 2.01, 2.0], 3)):
        found = steps.compare(before, ranks(losses), 1e-5, noise)[0].differences
        assert [one.step for one in found] == [step]
    # a rate is no sum
    faster = [RankReport(0, steps=[Step([2.0], 2.0, [0.1 + 1e-5 * (n > 1)]) for n in range(4)])]
    assert not steps.compare(before, faster, 0.0, noise)[2].equal


def test_of_several_backward_calls_the_first_that_differs_begins() -> None:
    def made(first: float, second: float, data: int) -> list[RankReport]:
        calls = [Call([Digest((1,), n)]) for n in (1, data)]
        return [RankReport(0, steps=[Step([first, second], 2.0, [0.1], calls)])]

    for after, begins in ((made(1.1, 1.2, 3), "loss"), (made(1.0, 1.2, 3), "data")):
        compared = steps.compare(made(1.0, 1.0, 2), after, 0.0)
        found = [one for each in compared for one in each.differences]
        assert {one.kind for one in found} == {"data", "loss"}
        assert min(found, key=_when).kind == begins


def test_gradients_are_rounded_alike_where_ranks_hold_the_same() -> None:
    one, other = (torch.nn.Parameter(torch.zeros(50)) for _ in range(2))
    for parameter in (one, other):
        parameter.grad = torch.full((50,), 3.0)
        round_otherwise([parameter], 7)
    assert one.grad is not None
    assert other.grad is not None
    assert torch.equal(one.grad, other.grad)
    apart = (one.grad / 3.0 - 1).abs()
    assert 1e-7 < float(apart.max()) < 1.1e-6


def test_losses_that_are_no_numbers_prove_nothing() -> None:
    before = [RankReport(0, steps=[Step([None]), Step([None])])]
    after = [RankReport(0, steps=[Step([None]), Step([1.0])])]
    losses = steps.compare(before, after, 0.1)[0]
    assert [d.step for d in losses.differences] == [2]
    assert (losses.identical, losses.unproven) == (
        0,
        "the loss on rank 0 at step 1 is not finite in either program",
    )
    assert "no finite number in BEFORE and 1 in AFTER" in losses.differences[0].message


def test_other_numbers_of_steps_and_of_backward_calls_and_of_groups() -> None:
    shorter = steps.compare(ranks([1.0, 1.0]), ranks([1.0]), 0.0)[0]
    assert [(d.kind, d.step) for d in shorter.differences] == [("steps", 2)]
    twice = [RankReport(0, steps=[Step([1.0, 1.0], 2.0, [0.1])])]
    fewer = steps.compare(twice, ranks([1.0]), 0.0)[0]
    assert fewer.differences[0].message == (
        "BEFORE calls backward twice on rank 0 for step 1, AFTER once"
    )
    rates = steps.compare(ranks([1.0], rates=(0.1, 0.2)), ranks([1.0]), 0.0)[2]
    assert "has 2 parameter groups in BEFORE and 1 in AFTER" in rates.differences[0].message
    lost = steps.compare(ranks([1.0], rates=(0.1, 0.2)), ranks([1.0], rates=(0.1, 0.3)), 0.0)[2]
    assert lost.differences[0].message == (
        "the learning rate of parameter group 1 on rank 0 at step 1 is 0.2 in BEFORE and 0.3 in AFTER"
    )


def test_checkpoints_of_one_name_or_of_one_step_belong_together() -> None:
    def made(*named: tuple[str, int]) -> list[Checkpoint]:
        return [Checkpoint(name, name, step) for name, step in named]

    before = made(("a.pt", 2), ("model.pt", 4), ("optimizer.pt", 4), ("last.pt", 6))
    after = made(("a.pt", 2), ("step4", 4))
    names = [([b.name for b in old], [a.name for a in new]) for old, new in pair(before, after)]
    assert names == [
        (["a.pt"], ["a.pt"]),
        (["model.pt", "optimizer.pt"], ["step4"]),
        (["last.pt"], []),
    ]


def test_curves_that_meet_share_a_sign() -> None:
    rows = "\n".join(chart([3.0, 2.0, 1.0], [3.0, 2.0, 2.0]))
    signs = [row.split("│")[-1].split("┤")[-1] for row in rows.splitlines()[:9]]
    drawn = "".join(signs)
    assert (drawn.count("●"), drawn.count("○"), drawn.count("×")) == (2, 1, 1)
    assert rows.splitlines()[0].lstrip().startswith("3 ┤●")
    assert chart([1.0], [1.0]) == []
    assert chart([None, None], [None]) == []


def test_the_ladder_is_as_high_as_it_holds() -> None:
    text, plan = ladder.rung(0, True), ladder.rung(2, None)
    assert ladder.reached([ladder.rung(3, True), text, plan]) == 3
    assert ladder.reached([text, ladder.rung(2, False), ladder.rung(3, True)]) == 0
    assert ladder.reached([ladder.rung(0, False)]) is None


def test_text_that_check_complains_about_is_not_on_the_ladder() -> None:
    rules = ROOT / "fixtures" / "rules" / "optimizer_before_shard"
    bad = ladder.text([str(rules / "bad_straight_line.py")])
    assert bad.state == "failed"
    assert "FSDP201" in bad.why
    assert ladder.text([str(rules / "good_groups_rebuilt.py")]).state == "reached"


def test_a_folder_is_run_by_its_entry(tmp_path: Path) -> None:
    for name in ("helpers.py", "run_it.py", "train.py"):
        guard = "if __name__ == '__main__':\n    pass\n" if name == "run_it.py" else "x = 1\n"
        (tmp_path / name).write_text(guard)
    assert Path(find(str(tmp_path)).target).name == "train.py"
    assert find(str(tmp_path)).folder == tmp_path.resolve()
    assert Path(find(str(tmp_path), entry="helpers.py").target).name == "helpers.py"
    (tmp_path / "train.py").unlink()
    assert Path(find(str(tmp_path)).target).name == "run_it.py"
    module = find(str(tmp_path), module="run_it")
    assert (module.target, module.module) == ("run_it", True)
    (tmp_path / "run_it.py").unlink()
    for arguments in ({}, {"entry": "gone.py"}, {"module": "gone"}):
        with pytest.raises(NoEntry):
            find(str(tmp_path), **arguments)
    with pytest.raises(NoEntry, match="--entry names a script in a folder"):
        find(str(tmp_path / "helpers.py"), entry="x.py")


def test_what_tools_keep_in_a_folder_is_no_part_of_the_program(tmp_path: Path) -> None:
    for name in ("train.py", "parts/model.py", ".fsdp2lint_backup/1/train.py", ".venv/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    found = scripts(find(str(tmp_path)))
    assert [Path(one).name for one in found] == ["model.py", "train.py"]


@pytest.mark.parametrize("factors", [(None, None), (None, None, "sum", "sum")])
def test_gradients_are_divided_in_releases_that_choose_no_operation(factors: Any) -> None:
    assert _divided(lambda: factors)() == factors


WRITING = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from fsdp2lint.rehearse.workfolder import protect
protect(os.getcwd())
Path(sys.argv[1]).write_text("new")  # a link of the user's own, elsewhere
print(Path("data/read.txt").read_text())
Path("data/read.txt").write_text("new")
with open("log.txt", "a") as log:
    log.write(" more")
os.makedirs("runs/one", exist_ok=True)
Path("runs/one/model.pt").write_bytes(b"weights")
os.remove("gone.txt")
"""


def test_what_is_written_stays_in_the_working_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "data").mkdir(parents=True)
    (home / "runs").mkdir()
    for name in ("data/read.txt", "log.txt", "gone.txt"):
        (home / name).write_text("old")
    work = workfolder.make(home, tmp_path / "work")
    (tmp_path / "theirs").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    ran = subprocess.run(
        [sys.executable, "-c", WRITING, str(tmp_path / "link")],
        cwd=work,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "old\n"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "theirs").read_text() == "new"
    assert {p.name for p in home.rglob("*") if p.is_file()} == {"read.txt", "log.txt", "gone.txt"}
    assert all(p.read_text() == "old" for p in home.rglob("*.txt"))
    assert sorted(map(str, workfolder.written(work))) == [
        "data/read.txt",
        "log.txt",
        "runs/one/model.pt",
    ]
    assert (work / "log.txt").read_text() == "old more"
    other = workfolder.make(home, tmp_path / "other")
    workfolder.carry(work, other)
    assert (other / "data" / "read.txt").read_text() == "new"
    assert (other / "runs" / "one" / "model.pt").read_bytes() == b"weights"
    assert (home / "data" / "read.txt").read_text() == "old"


def test_a_large_tree_is_linked_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workfolder, "LIMIT", 6)
    for name in "abcd":
        (tmp_path / "home" / name).mkdir(parents=True)
        (tmp_path / "home" / name / "file").touch()
    work = workfolder.make(tmp_path / "home", tmp_path / "home" / "scratch" / "work")
    assert [(work / name).is_symlink() for name in "abcd"] == [False, False, True, True]
    assert not (work / "scratch").exists()
    assert all((work / name / "file").exists() for name in "abcd")


def test_what_is_written_into_a_linked_folder_stays_out_of_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workfolder, "LIMIT", 1)
    deep = tmp_path / "home" / "runs" / "one"
    deep.mkdir(parents=True)
    (deep / "kept.txt").write_text("old")
    (deep / "gone.txt").write_text("old")
    work = workfolder.make(tmp_path / "home", tmp_path / "work")
    assert (work / "runs").is_symlink()
    script = (
        "import os; from fsdp2lint.rehearse.workfolder import protect; protect(os.getcwd())\n"
        "open('runs/one/kept.txt', 'a').write(' more'); os.remove('runs/one/gone.txt')\n"
        "os.makedirs('runs/two/three'); open('runs/two/three/new.txt', 'w').write('new')\n"
    )
    subprocess.run(
        [sys.executable, "-c", script], cwd=work, env={"PYTHONPATH": str(ROOT)}, check=True
    )
    assert {p.name: p.read_text() for p in (tmp_path / "home").rglob("*.txt")} == {
        "kept.txt": "old",
        "gone.txt": "old",
    }
    assert sorted(map(str, workfolder.written(work))) == [
        "runs/one/kept.txt",
        "runs/two/three/new.txt",
    ]


def test_what_lies_outside_is_kept_as_it_was(tmp_path: Path) -> None:
    file, folder = tmp_path / "model.pt", tmp_path / "dcp"
    file.write_text("first")
    folder.mkdir()
    (folder / ".metadata").write_text("first")
    outside = workfolder.Outside(tmp_path / "kept")
    outside.keep([str(file), str(folder), str(tmp_path / "gone")])
    file.write_text("second")
    (folder / "more").touch()
    assert outside.kept[str(file)].read_text() == "first"
    outside.restore()
    assert file.read_text() == "first"
    assert [p.name for p in folder.iterdir()] == [".metadata"]


def test_nothing_of_it_imports_pytorch() -> None:
    code = (
        "import sys, json\n"
        "import fsdp2lint.prove.compare, fsdp2lint.prove.words\n"
        "print(json.dumps('torch' in sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout) is False


ARGUMENTS = "out/checkpoint-2/training_args.bin"
OLD = {
    "fsdp_config.version": 1,
    "fsdp_plugin_args.fsdp_version": 1,
    "fsdp_plugin_args.use_orig_params": True,
    "fsdp_plugin_args.cpu_offload": False,
    "learning_rate": 1e-3,
}
NEW = {
    "fsdp_config.version": 2,
    "fsdp_plugin_args.fsdp_version": 2,
    "fsdp_plugin_args.cpu_offload": True,
}


def test_saved_arguments_may_say_version_2_and_lack_what_it_has_not() -> None:
    settled = settings_of_version_1(ARGUMENTS, OLD, NEW)
    assert list(settled) == [*OLD][:3]
    assert settled["fsdp_plugin_args.use_orig_params"].startswith("version 2 always keeps")


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("model.pt", OLD, NEW),
        (ARGUMENTS, OLD, OLD),
        (ARGUMENTS, {"fsdp_config.version": 2}, {"fsdp_config.version": 1}),
        (ARGUMENTS, {"fsdp_config.transformer_layer_cls_to_wrap": "A"}, {}),
        (ARGUMENTS, {"use_orig_params": True, "lr": 1}, {"lr": 2}),
    ],
)
def test_other_entries_are_differences(
    file: str, before: dict[str, object], after: dict[str, object]
) -> None:
    assert settings_of_version_1(file, before, after) == {}


@pytest.mark.parametrize(
    ("file", "entry", "before", "after", "expected"),
    [
        ("out/trainer_state.json", "total_flos", 2390016.0, 4780032.0, True),
        ("out/trainer_state.json", "log_history[3].total_flos", 1001.0, 2000.0, True),
        ("out/trainer_state.json", "total_flos", 2390016.0, 2390017.0, False),
        ("out/trainer_state.json", "total_flos", 4780032.0, 2390016.0, False),
        ("out/trainer_state.json", "global_step", 1.0, 2.0, False),
        ("out/metrics.json", "total_flos", 1.0, 2.0, False),
    ],
)
def test_a_count_of_operations_by_shard(
    file: str, entry: str, before: float, after: float, expected: bool
) -> None:
    assert bool(counted_by_shard(file, entry, before, after, 2)) is expected


def test_a_resumed_run_goes_on_from_the_count_of_version_1() -> None:
    file, entry = "out/trainer_state.json", "total_flos"
    assert counted_by_shard(file, entry, 4780032.0, 7170048.0, 2, resumed=True)
    assert not counted_by_shard(file, entry, 4780032.0, 7170048.0, 2)
    assert not counted_by_shard(file, entry, 4780032.0, 9600000.0, 2, resumed=True)


def test_a_module_may_be_called_with_a_part_of_the_batch() -> None:
    x, y, z = Digest((4, 16), 1, 2.0), Digest((4, 4), 3, 4.0), Digest((4, 16), 9, 2.0)

    def given(*tensors: Digest) -> list[RankReport]:
        return [RankReport(0, steps=[Step([1.0], calls=[Call(given=list(tensors))])])]

    def batches(after: list[RankReport]) -> tuple[bool, list[str]]:
        found = next(c for c in steps.compare(given(y, x), after, 0.0) if c.what == "batches")
        return found.equal, found.notes

    equal, notes = batches(given(x))
    assert equal
    assert "1 of the 2 tensors" in notes[0]
    assert not batches(given(z))[0]
    assert not batches(given(x, x))[0]
    assert not batches(given(x, y, z))[0]


def test_a_warning_is_told_and_no_failure(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import torch\nfrom torch.distributed.checkpoint.state_dict import set_model_state_dict\n"
        "from torch.distributed.checkpoint.state_dict import StateDictOptions\n"
        "from torch.distributed.fsdp import fully_shard\n"
        "model = fully_shard(torch.nn.Linear(8, 8))\n"
        'whole = torch.load("model.pt")\n'
        "options = StateDictOptions(full_state_dict=True)\n"
        "set_model_state_dict(model, whole, options=options)\n"
    )
    rung = ladder.text([str(file)])
    assert (rung.state, "warns of FSDP314" in rung.why) == ("reached", True), rung.why


def test_a_report_may_hold_infinity() -> None:
    """As the best value of a scheduler that has seen none."""
    weight = torch.nn.Parameter(torch.zeros(1))
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD([weight], 0.1))
    numbers = dict(_state(plateau))
    assert numbers["best"] == "inf"
    report = RankReport(0, companions=[Companion("ReduceLROnPlateau", numbers)])
    assert report_from(packed(report)) == report


def test_values_that_lay_on_a_gpu_are_read_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    torch.save((True, {"weight": torch.ones(2)}), tmp_path / f"{COPY}-000-00.pt")
    kinds = {key: {"weight": torch.ones(2)} for key in ("parameters", "buffers", "peaks", "states")}
    torch.save(kinds, tmp_path / "000-00.pt")
    ((moved, copy),) = apart.load_copies(str(tmp_path))
    (model,) = apart.load(str(tmp_path))
    assert moved
    assert copy.parameters["weight"].tolist() == model.states["weight"].tolist() == [1.0, 1.0]


def test_gpus_may_add_in_another_order() -> None:
    runs: Any = (SimpleNamespace(run=SimpleNamespace(ranks=[])),) * 2
    assert _tolerance(Options(device="cuda"), runs) == (LOOSE, "GPUs may add in another order")
    assert _tolerance(Options(device="cuda", rtol=0.0), runs)[0] == 0.0
    assert _tolerance(Options(), runs)[0] == 0.0
