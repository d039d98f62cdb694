"""What AFTER lacks or does otherwise beside training: evaluation, data, logs, side files, optimizer and checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsdp2lint.prove.compare import Options, Trial, Verification
from fsdp2lint.prove.equality.files import Line, compare, compare_files, lines
from fsdp2lint.prove.equality.steps import compare as compare_steps
from fsdp2lint.prove.places import find
from fsdp2lint.prove.words import rendered
from fsdp2lint.rehearse.outcome import Clip, RankReport, Step

from .scenes import ROOT, Ranks, forking

PROGRAM = ROOT / "fixtures" / "verify" / "everything.py"

HARMFUL: dict[str, tuple[str, str, str, Any]] = {
    "evaluation with dropout": ("    model.eval()\n", "", "evaluation", (4, 0)),
    "no evaluation": ("    with torch.no_grad():\n        for tokens, labels in loader:", "    if 0:\n        for tokens, labels in loader:", "evaluation", (4, 0)),
    "metric of one rank": ("    dist.all_reduce(total)\n", "", "printed", (4, 0)),
    "count by batches": ("seen += tokens.numel()", "seen += len(tokens)", "printed", (1, 0)),
    "data of the first epoch": ("        sampler.set_epoch(epoch)\n", "", "data", (5, 0)),
    "decay of all": ('"weight_decay": 0.0}', '"weight_decay": 0.1}', "setting", None),
    "no file of the configuration": ('open("config.json", "w")', 'open("/dev/null", "w")', "file", None),
    "no average": ('            "ema": average.state_dict(),\n', "", "checkpoint", None),
    "limit that no norm reaches": ("clip_grad_norm_(model.parameters(), 1.0)", "clip_grad_norm_(model.parameters(), 1.5)", "clipping", (1, None)),
    "clipped by the largest value": ("clip_grad_norm_(model.parameters(), 1.0)", "clip_grad_norm_(model.parameters(), 1.0, norm_type=float('inf'))", "clipping", (1, None)),
    "training without dropout": ("    model.train()\n    model.reshard()", "    model.reshard()", "data", (5, 0)),
    "schedule that ends later": ("CosineAnnealingLR(optimizer, 8)", "CosineAnnealingLR(optimizer, 8, eta_min=1e-9)", "companion", (None, 0)),
    "a loader that keeps its last batch": ("sampler=sampler, drop_last=True", "sampler=sampler, drop_last=False", "companion", (None, 0)),
    "other precision of products": ("    torch.manual_seed(0)\n", "    torch.manual_seed(0)\n    torch.set_float32_matmul_precision('high')\n", "numerics", None),
    "no random numbers": ('            "python_rng": list(random.getstate()[1]),\n', "", "checkpoint", None),
}  # fmt: skip

HARMLESS = {
    "names": ("decayed", "with_decay"),
    "words of the log": ("step %d loss %.5f", "after %d steps: loss %.5f"),
    "more in the checkpoint": ('            "step": step,\n', '            "step": step,\n            "version": 2,\n'),
    "another key": ('"sampler": {"epoch"', '"data": {"epoch"'),
    "order of groups": (
        '[{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]',
        '[{"params": others, "weight_decay": 0.0}, {"params": decayed, "weight_decay": 0.1}]',
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with forking() as serving:
        yield serving


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def changed(folder: Path, name: str, old: str, new: str) -> Path:
    text = PROGRAM.read_text("utf-8")
    assert old in text, name
    path = folder / f"{name.replace(' ', '_')}.py"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def found_by(verification: Verification) -> dict[str, Any]:
    assert verification.fault is None, rendered(verification, colour=False)
    return {d.kind: d for d in verification.differences}


@pytest.mark.ranks
def test_harmful_changes_are_told_and_harmless_ones_are_not(ranks: Ranks, tmp_path: Path) -> None:
    from fsdp2lint.prove.equality import apart

    with Trial(
        find(str(PROGRAM)), Options(timeout=600.0), run=ranks.launch, compare=apart.main
    ) as runs:
        for name, (old, new, kind, place) in HARMFUL.items():
            found = found_by(runs.against(find(str(changed(tmp_path, name, old, new)))))
            assert kind in found, (name, found)
            if place is not None:
                assert (found[kind].step, found[kind].rank) == place, (name, found[kind].message)
        for name, (old, new) in HARMLESS.items():
            verification = runs.against(find(str(changed(tmp_path, name, old, new))))
            assert found_by(verification) == {}, name
            assert verification.exit_code == 0
        counts = {one.what: one.count for one in verification.compared}
        assert counts["batches"] == 16
        assert counts["evaluation"] == 16
        assert counts["other files"] == 2


GOES_ON = ROOT / "fixtures" / "verify" / "goes_on.py"

LOST: dict[str, tuple[str, str, str, str]] = {
    "average in a dictionary": ("averages[name].mul_(0.9)", "averages[name].mul_(0.8)", "value", "copy of "),
    "word in a side file": ('"activation": "tanh"', '"activation": "relu"', "file", "model.json"),
    "entry of a side file": (', "tied": False', "", "file", "model.json"),
    "every rank writes": ('        if rank == 0:\n            torch.save(', '        if True:\n            torch.save(', "file", "last.pt"),
}  # fmt: skip


@pytest.mark.ranks
def test_averages_side_files_and_writers_count(ranks: Ranks, tmp_path: Path) -> None:
    from fsdp2lint.prove.equality import apart

    text = GOES_ON.read_text("utf-8")
    options = Options(("--keep",), timeout=600.0)
    with Trial(find(str(GOES_ON)), options, run=ranks.launch, compare=apart.main) as runs:
        assert found_by(runs.against(find(str(GOES_ON)))) == {}
        for name, (old, new, kind, object_) in LOST.items():
            assert old in text, name
            path = tmp_path / f"{name.replace(' ', '_')}.py"
            path.write_text(text.replace(old, new), encoding="utf-8")
            found = runs.against(find(str(path))).differences
            assert any(d.kind == kind and object_ in d.message for d in found), (name, found)


@pytest.mark.ranks
def test_a_loss_may_be_accepted_by_name(ranks: Ranks, tmp_path: Path) -> None:
    from fsdp2lint.prove.equality import apart

    old, new, *_ = HARMFUL["no random numbers"]
    options = Options(timeout=600.0, accept_missing=("python_rng",))
    after = find(str(changed(tmp_path, "accepted", old, new)))
    with Trial(find(str(PROGRAM)), options, run=ranks.launch, compare=apart.main) as runs:
        verification = runs.against(after)
    assert verification.exit_code == 0
    assert "accepted by --accept-missing: AFTER does not save `python_rng`" in rendered(verification, colour=False)  # fmt: skip


@pytest.mark.ranks
def test_runs_without_finite_losses_prove_nothing(ranks: Ranks, tmp_path: Path) -> None:
    from fsdp2lint.prove.equality import apart

    old = "            loss = F.cross_entropy(model(tokens.cuda()), labels.cuda())\n"
    program = find(
        str(changed(tmp_path, "lost", old, old + "            loss = loss * float('nan')\n"))
    )
    with Trial(
        program, Options(timeout=600.0, steps=2), run=ranks.launch, compare=apart.main
    ) as runs:
        verification = runs.against(program)
    assert verification.exit_code == 2
    text = rendered(verification, colour=False)
    assert "Not verified: the loss on rank 0 at step 1 is not finite in either program" in text


def test_a_lost_clip_counts_below_its_limit_unless_others_means_clip() -> None:
    def run(*steps: tuple[float, float | None, float]) -> list[RankReport]:
        """Squares before clipping, the limit, squares after it."""
        made = [
            Step([1.0], after, clips=[] if limit is None else [Clip(None, limit, before)])
            for before, limit, after in steps
        ]
        return [RankReport(0, "ended", steps=made)]

    def told(before: list[RankReport], after: list[RankReport]) -> list[tuple[int | None, bool]]:
        every = [d for one in compare_steps(before, after, 0.0) for d in one.differences]
        return [(one.step, one.missing) for one in every if one.kind == "clipping"]

    below, above = (4.0, 3.0, 4.0), (16.0, 3.0, 9.0)
    assert told(run(below, below), run((4.0, None, 4.0), (4.0, None, 4.0))) == [(1, True)]
    assert told(run(below, above), run((4.0, None, 4.0), (9.0, None, 9.0))) == []
    assert told(run(below, above), run((4.0, None, 4.0), (16.0, None, 16.0))) == [(1, True)]
    assert told(run(below, above), run(below, above)) == []


@pytest.mark.parametrize(
    ("before", "after", "apart"),
    [
        ("loss 2.345", "loss 2.345", 0),
        ("loss 2.345", "loss 2.346", 1),
        ("[2026-01-02 03:04:05,678] step 3 loss 1.5 12.3 it/s 4.2GB", "[2026-01-02 04:04:05,678] step 3 loss 1.5 11.3 it/s 4.1GB", 0),
        ("step 3 loss 1.5 time 0.31", "step 3 loss 1.5 time 0.32", 0),
        ("50%|#####     | 1/2 [00:01<00:01,  1.20s/it]", "", 0),
        ("loss 2.5\r 7%|7   | 1.2k/16k [00:01<00:12, 900B/s]", "loss 2.5", 0),
        ("accuracy 50%", "", 1),
        ("step 3 loss 1.5", "3: loss=1.5", 0),
        ("step 3 loss 1.5", "", 1),
        ("", "step 3 loss 1.5", 0),
        ("no number here", "", 0),
        ("acc 0.75\nacc 0.5", "acc 0.75", 1),
        ("norm 0.1234567891234", "norm 0.1234567891235", 0),
    ],
)  # fmt: skip
def test_lines_are_compared_by_their_numbers(before: str, after: str, apart: int) -> None:
    old, new = (lines(text.encode()) for text in (before, after))
    assert len(list(compare(old, new, 0.0))) == apart


def test_files_in_a_renamed_folder_are_paired_and_others_are_missed(tmp_path: Path) -> None:
    works = tmp_path / "before", tmp_path / "after"
    for work, folder, number in zip(works, ("out", "runs"), (1, 2), strict=True):
        for file in (f"{folder}/best.json", f"{folder}/epoch/last.json"):
            (work / file).parent.mkdir(parents=True, exist_ok=True)
            (work / file).write_text(f'{{"value": {number}}}')
        for kept in ("logs/train.txt", "tables/train.txt"):
            (work / kept).parent.mkdir(exist_ok=True)
            (work / kept).write_text("1")
    (works[1] / "logs" / "train.txt").unlink()
    (works[1] / "logs" / "other.txt").write_text("1")
    found = compare_files(works, [], 0.0, frozenset())
    assert [(d.name, d.missing) for d in found.differences] == [
        ("logs/train.txt", True),
        ("out/best.json", False),
        ("out/epoch/last.json", False),
    ]


def test_files_of_a_run_are_paired_and_their_numbers_compared(tmp_path: Path) -> None:
    works = tmp_path / "before", tmp_path / "after"
    for work, day in zip(works, (1, 2), strict=True):
        (work / f"runs-{day}").mkdir(parents=True)
        (work / f"runs-{day}" / "metrics.csv").write_text(f"step,loss\n1,{day}.5\n")
        (work / "same.json").write_text("{}")
    (works[0] / "lost.txt").write_text("1")
    found = compare_files(works, [], 0.0, frozenset())
    assert [(d.name, d.missing) for d in found.differences] == [
        ("lost.txt", True),
        ("runs-1/metrics.csv", False),
    ]
    assert found.notes == []


def test_a_line_before_training_may_have_other_words_or_numbers_and_must_be_there() -> None:
    def early(*texts: str) -> list[Line]:
        text = "\n".join(texts).encode()
        return lines(text, began=len(text) + 1)

    before = early("parameters: 120", "Linear(in_features=8)")

    def gone(*after: str) -> list[str]:
        apart = compare(before, early(*after), 0.0)
        return [one.before.text for one in apart if one.after is None]

    assert gone("parameters: 240", "FSDPLinear(in_features=8)") == []
    assert gone("240 parameters", "Linear(in_features=8)") == []
    assert gone("Linear(in_features=8)") == ["parameters: 120"]


def test_what_a_library_says_of_version_1_before_training_may_go() -> None:
    said = b"settings: `version` = 1 is deprecated\nFSDP1 with 2 units\nparameters: 120"
    apart = compare(lines(said, began=len(said) + 1), [], 0.0)
    assert [one.before.text for one in apart] == ["parameters: 120"]
