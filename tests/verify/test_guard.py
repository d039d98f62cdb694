"""``guard`` in a run of one's own sees what ``rehearse`` sees of what came before its call."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fsdp2lint.rehearse import contract  # noqa: E402
from fsdp2lint.rehearse.contract import training  # noqa: E402
from fsdp2lint.rehearse.contract.emptied import Mark, is_marked, marking  # noqa: E402
from fsdp2lint.rehearse.contract.guarding import patience  # noqa: E402
from fsdp2lint.rehearse.outcome import Frame, RankReport, Request, Spot  # noqa: E402

from .scenes import LIMIT, ROOT, Ranks, forking, runs_here  # noqa: E402

pytestmark = pytest.mark.ranks

RULES = ROOT / "fixtures" / "rules"
HARNESS = Path(__file__).parent / "scripts" / "guarding.py"
CODES = {
    "buffers_not_reinitialized": "FSDP217",
    "meta_never_initialized": "FSDP251",
    "ranks_initialize_differently": "FSDP232",
}
TWO_MODELS = {"good_initialised_later.py": 2}
"""How many models a script shards and calls on their own, where it is not one."""
SCRIPTS = [
    (path / "main.py" if path.is_dir() else path, code if path.name.startswith("bad") else None)
    for rule, code in CODES.items()
    for path in sorted((RULES / rule).iterdir())
    if path.name.startswith(("bad", "good"))
]
CASES = [(script, code) for script, code in SCRIPTS if runs_here(script)]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with forking() as serving:
        yield serving


@pytest.mark.parametrize(
    ("script", "code"), CASES, ids=[str(script.relative_to(RULES)) for script, _ in CASES]
)
def test_what_came_before_the_call(
    ranks: Ranks, tmp_path: Path, script: Path, code: str | None
) -> None:
    out = tmp_path / "found"
    request = Request(
        str(HARNESS),
        str(tmp_path),
        arguments=(str(script), str(out)),
        timeout=LIMIT,
        folder=str(tmp_path),
    )
    run = ranks.launch(request, lambda _: None)
    assert [rank.error for rank in run.ranks] == ["", ""]
    for rank in range(2):
        guards, found = json.loads(Path(f"{out}{rank}").read_text())
        assert guards == TWO_MODELS.get(script.name, 1)
        assert [one for one, _ in found] == ([code] if code else [])
    lines = {(v.code, v.at.line if v.at else 0) for v in contract.judge(run.ranks)}
    assert lines == {(one, line) for one, line in found}
    if code and re.search("# expect: FSDP251", script.read_text("utf-8")):
        assert f"# expect: {code}" in script.read_text("utf-8").splitlines()[found[0][1] - 1]


class Model:
    """A watch of one model in a real run."""

    thorough = False

    def __init__(self, model: Any) -> None:
        self.model = model
        self.built: dict[int, object] = {}

    def models(self) -> list[Any]:
        return [self.model]

    def trainable(self) -> Iterator[tuple[Any, str, Any]]:
        for name, parameter in self.model.named_parameters():
            yield self.model, name, parameter


@pytest.mark.parametrize("steps", [3, 8])
def test_what_is_trained_late_is_seen_without_a_look_at_each_step(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2, bias=False) for name in "abc"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch: Any = Model(model)
    check = training.Training(watch, lambda violation: None)
    check.install()
    looks: set[int] = set()
    step, whole = 0, training._sample

    def sample(parameter: Any) -> Any:
        looks.add(step)
        return whole(parameter)

    monkeypatch.setattr(training, "_sample", sample)
    for step in range(1, steps + 1):
        used = "ab" if step == 3 else "a"
        sum(model[name](torch.ones(1, 2)).sum() for name in used).backward()
        check.before_step(optimizer, None)
        optimizer.step()
        check.after_step(optimizer, None)
        optimizer.zero_grad()
    check.at_end("ended")
    told = [doubt.message for doubt in check.doubts([check.facts()])]
    assert told == ["1 of 3 trainable tensors in `SGD` got no gradient in any step: c.weight"]
    assert looks == ({1, 2, 3} if steps == 3 else {1, 2, 4, 8}), "in the end, too"


@pytest.mark.parametrize("name", ["float64", "float16", "bfloat16", "int64"])
def test_a_mark_is_gone_with_the_first_value(name: str) -> None:
    dtype = getattr(torch, name)
    marks: list[Mark] = []
    with torch.device("meta"):
        module = torch.nn.Module()
        module.inner = torch.nn.Module()
        module.inner.register_buffer("table", torch.zeros(3, dtype=dtype))
    marking(torch.nn.Module.to_empty, marks.append)(module, device="cpu")
    (mark,) = marks
    assert (mark.kind, mark.name, mark.own) == ("buffer", "inner.table", "table")
    assert mark.empty()
    module.inner.table[1] = 0
    assert not mark.empty()
    assert not is_marked(torch.zeros(3, dtype=dtype))
    del module
    assert not mark.empty()


PATIENT = """
import pathlib, sys, threading, time, types, warnings
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from fsdp2lint.rehearse import guard
from fsdp2lint.rehearse.contract.guarding import patience

passed, asked, main = [0.0], [], threading.get_ident()

def now():
    # the clock of the guard: much time passes where this rank waits, and however slow the machine is, none elsewhere
    asked.append(threading.get_ident() != main)
    frame, names = sys._current_frames()[main], set()
    while frame:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return passed[0] + 5.0 * bool(names & {"barrier", "all_reduce", "recv", "outlast"})

def let_pass(seconds):
    passed[0] += seconds
    before = sum(asked)
    while sum(asked) < before + 2 and not watched._patience._closed.is_set():
        time.sleep(0.01)

def outlast():
    while len(list(pathlib.Path().glob("said?"))) < 2: time.sleep(0.01)

def show(*told):
    shown(*told)
    pathlib.Path(f"said{dist.get_rank()}").touch()

patience.time = types.SimpleNamespace(monotonic=now, sleep=time.sleep)
shown, warnings.showwarning = warnings.showwarning, show
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = guard(model, optimizer, patience=0.2)
for _ in range(3):
    let_pass(0.15)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
watched.close()
let_pass(0.3)
watched = guard(model, optimizer, patience=0.2)
if dist.get_rank() == 1:
    outlast()
dist.barrier()
"""


def test_a_rank_that_waits_for_too_long_shows_where(ranks: Ranks, tmp_path: Path) -> None:
    script = tmp_path / "patient.py"
    script.write_text(PATIENT)
    request = Request(str(script), str(tmp_path), timeout=LIMIT, folder=str(tmp_path))
    run = ranks.launch(request, lambda _: None)
    assert [rank.how for rank in run.ranks] == ["ended", "ended"]
    lines = PATIENT.splitlines()
    waiting = next(n for n, line in enumerate(lines, 1) if "said?" in line)
    for rank, place in ((0, f"{len(lines)} in <module>"), (1, f"{waiting} in outlast")):
        said = run.errors[rank]
        assert said.count(f"no step for 0.2 s, rank {rank} is here:") == 1
        assert f'patient.py", line {place}' in said
        where = f"rank 0 waits in barrier at {script}:{len(lines)}; rank 1 is at {script}:{waiting}"
        assert f"ContractWarning: no step for 0.2 s: {where}" in said
        assert "FSDP4" not in said  # who works may be on the way


HUNG = PATIENT.replace(
    "    outlast()\ndist.barrier()", "    {other}\nelse:\n    dist.all_reduce(torch.ones(2))"
)


@pytest.mark.parametrize(
    ("other", "said_of"),
    [
        ("dist.recv(torch.ones(2), 0)", "FSDP401: rank 0 waits here for a collective that rank 1 does not enter"),
        ("watched.close(); time.sleep(60)", "FSDP401: rank 0 waits here, but rank 1 has left the script"),
    ],
)  # fmt: skip
def test_a_guard_names_the_rule_that_a_hang_breaks(
    ranks: Ranks, tmp_path: Path, other: str, said_of: str
) -> None:
    script = tmp_path / "hung.py"
    script.write_text(HUNG.replace("{other}", other))
    request = Request(str(script), str(tmp_path), timeout=LIMIT, folder=str(tmp_path))
    run = ranks.launch(request, lambda _: None)
    line = HUNG.splitlines().index("    dist.all_reduce(torch.ones(2))") + 1
    assert f"ContractWarning: {said_of} ({script}:{line})" in run.errors[0]


def test_ranks_that_wait_at_one_line_and_reduced_different_gradients() -> None:
    frames = [Frame(Spot("train.py", 9), "main")]
    facts = {"dp": {"most": 3, "fewer": {}}}, {"dp": {"most": 3, "fewer": {"last.weight": 2}}}
    ranks = [
        RankReport(n, "hung", "", frames, "reduce", facts={"meetings": one}) for n, one in enumerate(facts)
    ]  # fmt: skip
    text, violation = patience.reported(ranks, 600.0)
    assert (
        text
        == "no step for 600 s: rank 0 waits in reduce at train.py:9; rank 1 waits in reduce at train.py:9"
    )
    assert violation is not None
    assert violation.code == "FSDP412"
    assert violation.message.startswith("rank 1 has no gradient of last.weight")
    text, violation = patience.reported([*ranks, RankReport(2, "running")], 600.0)
    assert text.endswith("; rank 2 does not answer")
    assert violation is None
