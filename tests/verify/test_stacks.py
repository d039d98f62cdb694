"""What stacks say: whose frames they are, who waits, and which rule that breaks."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fsdp2lint.rehearse.contract.collectives import across
from fsdp2lint.rehearse.demand import ANSWERED, ask
from fsdp2lint.rehearse.launch import Run, Verdict, _dumped, _is_ready
from fsdp2lint.rehearse.outcome import (
    Frame,
    How,
    RankReport,
    Request,
    Spot,
    Violation,
    packed,
    report_from,
)
from fsdp2lint.rehearse.rehearse import Rehearsal
from fsdp2lint.rehearse.stacks import main_thread, own, own_frames, waits

LIBRARY = sysconfig.get_path("purelib")
DUMP = f"""Fatal Python error: Aborted

Thread 0x00007f01 (most recent call first):
  File "{LIBRARY}/torch/other.py", line 5 in wait
Current thread 0x00007f02 (most recent call first):
  File "{LIBRARY}/torch/distributed/distributed_c10d.py", line 99 in broadcast
  File "/home/me/train.py", line 12 in save
  File "/home/me/train.py", line 30 in <module>
  File "<frozen runpy>", line 88 in _run_code
"""

SCRIPT = """
def train(rank, model):
    if rank == 0:
        save(model)
    model.step()

def stop(rank, model):
    if rank == 0:
        return
    save(model)

if __name__ == "__main__":
    train(0, None)
    stop(0, None)
"""


def test_the_main_thread_is_the_last_of_a_dump() -> None:
    frames = main_thread(DUMP)
    assert [frame.function for frame in own_frames(frames)] == ["<module>", "save"]
    assert waits(frames)
    assert not waits(frames[:-1])


@pytest.mark.parametrize(
    ("file", "answer"),
    [
        (f"{LIBRARY}/torch/nn/modules/module.py", False),
        (f"{sysconfig.get_path('stdlib')}/json/__init__.py", False),
        ("<string>", False),
        ("/home/me/train.py", True),
    ],
)
def test_whose_file_it_is(file: str, answer: bool) -> None:
    assert own(file) == answer


def report(script: Path, rank: int, how: How, *lines: tuple[str, int]) -> RankReport:
    frames = [Frame(Spot(str(script), line), function) for function, line in lines]
    return RankReport(rank, how, frames=frames)


@pytest.mark.parametrize(
    ("first", "second", "code", "line"),
    [
        ([("<module>", 13), ("train", 4)], [("<module>", 13), ("train", 5)], "FSDP401", 4),
        ([("<module>", 14)], [("<module>", 14), ("stop", 10)], "FSDP402", 10),
    ],
)
def test_which_rule_a_deadlock_breaks(
    tmp_path: Path,
    first: list[tuple[str, int]],
    second: list[tuple[str, int]],
    code: str,
    line: int,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    ended = code == "FSDP402"
    ranks = [
        report(script, 0, "ended" if ended else "hung", *([] if ended else first)),
        report(script, 1, "hung", *second),
    ]
    (found,) = across(ranks)
    assert (found.code, found.at) == (code, Spot(str(script), line))


def test_nothing_is_said_when_a_rank_failed_or_all_are_at_one_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    failed = [report(script, 0, "raised", ("train", 4)), report(script, 1, "hung", ("train", 5))]
    assert list(across(failed)) == []
    together = [report(script, rank, "hung", ("train", 5)) for rank in range(2)]
    assert list(across(together)) == []
    slow = [report(script, 0, "busy", ("train", 4)), report(script, 1, "hung", ("train", 5))]
    assert list(across(slow)) == []


def test_reports_travel_through_json() -> None:
    told = report(Path("train.py"), 1, "raised", ("main", 3))
    told.facts = {"Replicas": {"0:w": {"digest": "00", "at": None}}}
    assert report_from(packed(told)) == told


@pytest.mark.parametrize(
    ("verdict", "status", "how", "code"),
    [
        ("over", 0, "ended", 0),
        ("over", 0, "stopped", 0),
        ("over", 1, "ended", 2),  # it died on its way out
        ("timeout", -9, "ended", 2),  # a background thread never came back
        ("over", 1, "raised", 2),
    ],
)
def test_the_exit_code(verdict: Verdict, status: int, how: How, code: int) -> None:
    run = Run(verdict, [RankReport(rank, how) for rank in range(2)], status)
    assert Rehearsal(Request("train.py", ""), run, [], []).exit_code == code
    broken = [Violation("FSDP201", "wrong")]
    assert Rehearsal(Request("train.py", ""), run, broken, []).exit_code == 1


def test_a_stack_that_was_cut_off_does_not_hide_the_one_before(tmp_path: Path) -> None:
    inner = f'Current thread 0x1 (most recent call first):\n  File "{LIBRARY}/torch/distributed/x.py", line 3 in wait\n'
    script = '  File "/home/me/train.py", line 7 in <module>\n'
    for text in (inner + script + ANSWERED, inner + script + ANSWERED + inner, inner + script):
        (tmp_path / "rank1.dump").write_text(text)
        assert [frame.at.line for frame in _dumped(tmp_path, 1)] == [7, 3]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only where there is /proc")
@pytest.mark.parametrize(("script", "ready"), [("while True: pass", True), ("input()", False)])
def test_who_waits_for_a_core_is_ready_to_work(script: str, ready: bool) -> None:
    """However little of a core it gets: a rank of a crowded machine does not hang."""
    started = f"print('begun', flush=True)\n{script}"
    with subprocess.Popen(
        [sys.executable, "-c", started], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while _is_ready(process.pid) is not ready:  # it is on its way to `input` or out of `print`
            assert process.poll() is None
        process.kill()


ANSWERING = """
import ctypes, sys
from pathlib import Path
from fsdp2lint.rehearse.demand import answer
folder = Path(sys.argv[1])
answer(folder / "pipe", (folder / "dump").open("w"))

def work():
    print("ready", flush=True)
    while not (folder / "over").exists():
        pass

def keep_the_lock():
    print("ready", flush=True)
    while not (folder / "over").exists():
        ctypes.PyDLL(None).sleep(60)  # the signal ends it

{call}()
"""


@pytest.mark.parametrize(("call", "times"), [("work", 300), ("keep_the_lock", 1)])
def test_a_process_that_works_or_keeps_the_lock_says_where(
    tmp_path: Path, call: str, times: int
) -> None:
    command = [sys.executable, "-c", ANSWERING.format(call=call), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(times):
            ask({0: process.pid}, lambda _, kind: tmp_path / kind)
        said = main_thread((tmp_path / "dump").read_text())
        assert call in [frame.function for frame in said]
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
