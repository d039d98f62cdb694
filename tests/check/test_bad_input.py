"""What goes wrong outside of the program: one clear line, the right exit code, nothing half-written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp2lint.check.runner import Batch, check
from tests.config.test_config import LATE
from tests.support import forks
from tests.support.notebooks import written
from tests.support.running import ROOT, invoke, program

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs limits, pipes and signals")
UNUSED = "".join(f"x = {n}  # fsdp2lint: ignore[FSDP203]\n" for n in range(200))
OLD = (
    "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "model = FSDP(torch.nn.Linear(4, 4))\n" + "# more\n" * 400
)


def run(
    folder: Path, *args: str, limit: int = 0, ordinary: bool = False, **given: object
) -> subprocess.CompletedProcess[str]:
    """In a process of its own.

    In it no file gets longer than the limit: a disk that fills up. An ``ordinary`` one has no right to pass
    over the modes of files, whoever runs it.
    """

    def limited() -> None:
        import ctypes
        import resource

        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        if ordinary:
            drop, override = 24, 1  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE of <linux/prctl.h>
            ctypes.CDLL(None).prctl(drop, override, 0, 0, 0)

    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        forks.command(*args),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        stderr=subprocess.PIPE,
        check=False,
        timeout=600,
        preexec_fn=limited if limit or ordinary else None,
        **({"stdout": subprocess.PIPE} | given),
    )


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}


@POSIX
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
@pytest.mark.parametrize(
    "words",
    ["migrate old.py", "rule --all", "config --schema", "check --show-files", "check --diff", "--help",
     "check --fix -", "trace old.py"],
)  # fmt: skip
def test_whatever_is_printed_may_find_no_room(tmp_path: Path, words: str) -> None:
    (tmp_path / "old.py").write_text(OLD)
    (tmp_path / "x.py").write_text(UNUSED + "import torch.distributed.fsdp\n")
    with open("/dev/full", "wb") as full, open(tmp_path / "x.py", "rb") as typed:
        done = run(tmp_path, *words.split(), stdout=full, stdin=typed)
    said = "Error: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr.replace("Would fix 200 findings.\n", "")) == (2, said)


@POSIX
@pytest.mark.parametrize(
    "words", ["check --fix", "migrate --write --allow-no-git -q", "check --add-ignore"]
)
def test_a_disk_that_fills_up_while_files_are_written(tmp_path: Path, words: str) -> None:
    """The first would fit, the second does not: neither is written, and nothing else is left behind."""
    small = "import torch.distributed.fsdp\nx = 1  # fsdp2lint: ignore[FSDP203]\n"
    if "migrate" in words:
        small = OLD.replace("# more\n", "")
    (tmp_path / "a.py").write_text(LATE if "add" in words else small)
    (tmp_path / "b.py").write_text(OLD + LATE + UNUSED)
    before = files(tmp_path)
    done = run(tmp_path, *words.split(), limit=1500)
    assert done.returncode == 2, done.stdout
    assert done.stderr.endswith("b.py: not written, File too large\n")
    assert done.stderr.count("\n") == 1
    assert files(tmp_path) == before


@POSIX
@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("check -n -f sarif=out.sarif", "out.sarif"),
        ("check -n -f json -o out.json", "out.json"),
        ("migrate -f html=out.html .", "out.html"),
        ("baseline create", "fsdp2lint-baseline.json"),
    ],
)
def test_a_report_is_whole_or_not_there(tmp_path: Path, words: str, file: str) -> None:
    for n in range(20):
        (tmp_path / f"late{n}.py").write_text(LATE + OLD)
    before = files(tmp_path)
    done = run(tmp_path, *words.split(), limit=500)
    assert done.returncode == 2
    assert file in done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert files(tmp_path) == before


@pytest.mark.skipif(sys.platform != "linux", reason="takes a right from root that Linux knows")
@pytest.mark.parametrize("folder_too", [False, True])
@pytest.mark.parametrize(
    "words", ["check --fix", "check --add-ignore", "migrate --write --allow-no-git -q"]
)
def test_a_file_that_may_not_be_written(tmp_path: Path, words: str, folder_too: bool) -> None:
    """Neither it nor the one before it is changed; root is asked as anybody is."""
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(OLD + LATE + UNUSED)
    (tmp_path / "b.py").chmod(0o444)
    tmp_path.chmod(0o555 if folder_too else 0o755)
    before = files(tmp_path)
    done = run(tmp_path, *words.split(), ordinary=True)
    tmp_path.chmod(0o755)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.endswith("b.py: not written, the file is read-only\n")
    assert files(tmp_path) == before
    assert (tmp_path / "b.py").stat().st_mode & 0o777 == 0o444


@POSIX
@pytest.mark.parametrize("words", ["migrate .", "rule --all", "check -n -f json", "config"])
def test_a_reader_that_has_enough(tmp_path: Path, words: str) -> None:
    for n in range(100):
        (tmp_path / f"late{n}.py").write_text(LATE)
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as closed:
        done = run(tmp_path, *words.split(), stdout=closed)
    assert (done.returncode, done.stderr) == (141, "")


@POSIX
@pytest.mark.parametrize("words", ["check -n -j 2", "check -n -j 1", "migrate"])
def test_an_interrupt_ends_all_processes_without_a_word_of_python(
    tmp_path: Path, words: str
) -> None:
    running = amid_the_analysis(tmp_path, words)
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=600)
    assert (running.returncode, errors.strip()) == (130, "interrupted")
    assert is_gone(running.pid)


@POSIX
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("end", [os.kill, os.killpg])
def test_when_it_is_ended_so_are_its_processes(
    tmp_path: Path, jobs: int, end: Callable[[int, int], None]
) -> None:
    running = amid_the_analysis(tmp_path, f"check -n -j {jobs}")
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    while jobs > 1 and children.exists() and not children.read_text():
        time.sleep(0.05)
    end(running.pid, signal.SIGTERM)
    _, errors = running.communicate(timeout=600)
    assert (running.returncode % 128, errors) in ((15, ""), (-15 % 128, ""))
    assert is_gone(running.pid)


def is_gone(group: int) -> bool:
    """Whether no process of a group is left, after init had the time to bury them."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def amid_the_analysis(folder: Path, words: str) -> subprocess.Popen[str]:
    """The program in a group of its own, when it has begun to analyse files that take much longer."""
    shard, more = ("FSDP", OLD) if words == "migrate" else ("fully_shard", "")
    body = "".join(f"def part_{n}(model):\n    {shard}(model.layers[{n}])\n" for n in range(1200))
    for n in range(8):
        (folder / f"late{n}.py").write_text(
            LATE.replace("\n\ndef main", f"\n{more}{body}\n\ndef main", 1)
        )
    begun = folder / "begun"
    (folder / "hooks").mkdir()
    (folder / "hooks" / "sitecustomize.py").write_text(
        "import sys\n"
        "def hook(event, given):\n"
        "    if event == 'open' and str(given[0]).endswith('late0.py'):\n"
        f"        open({str(begun)!r}, 'w').close()\n"
        "sys.addaudithook(hook)\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-m", "fsdp2lint", *words.split()],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(folder / "hooks"), str(ROOT)))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not begun.exists() and running.poll() is None:
        time.sleep(0.02)
    time.sleep(0.2)
    return running


@POSIX
def test_names_that_are_no_text(tmp_path: Path) -> None:
    """Findings, fixes and migrations of files whose names are bytes."""
    for name, text in (
        (b"l\xe9.py", LATE),
        (b"u\xe9.py", UNUSED + "import torch.distributed.fsdp\n"),
    ):
        (Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))).write_text(text)
    book = Path(os.fsdecode(os.fsencode(tmp_path) + b"/n\xe9.ipynb"))
    written(book)
    for form in ("full", "concise", "json", "sarif", "github", "gitlab", "junit", "grouped"):
        done = program("check", "-f", form, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (1, ""), form
        assert "\\xe9" in done.stdout or "%5Cxe9" in done.stdout
    done = program("check", "-n", "--fix", "--unsafe-fixes", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Fixed 202 findings." in done.stdout
    assert program("migrate", cwd=tmp_path).returncode == 0


def test_a_file_that_is_gone_before_it_is_read(tmp_path: Path) -> None:
    (found,) = check(Batch.of_files([str(tmp_path / "gone.py")])).found
    assert (found.rule.code, found.message) == (
        "FSDP900",
        "cannot read the file: No such file or directory",
    )


def test_a_file_that_changes_while_it_is_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody else has written meanwhile stays."""
    from fsdp2lint.check import analysis

    file = written(tmp_path / "late.ipynb")
    plain = analysis.reports

    def slow(*args: Any) -> object:
        reports = plain(*args)
        file.write_text("{}")
        return reports

    monkeypatch.setattr(analysis, "reports", slow)
    shown = invoke("check", "-n", "--fix", "--unsafe-fixes", cwd=tmp_path)
    assert shown.returncode == 2
    assert (
        shown.stderr
        == "Error: late.ipynb: not written, its bytes are not those that were analysed\n"
    )
    assert file.read_text() == "{}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("check --config fsdp2lint.d", "fsdp2lint.d: Is a directory"),
        ("check --config gone.toml", "gone.toml: No such file or directory"),
        ("check --baseline fsdp2lint.d", "fsdp2lint.d: Is a directory"),
        ("check -o fsdp2lint.d", "fsdp2lint.d"),
        (
            "baseline create --baseline fsdp2lint.d/x/y.json",
            "y.json: not written, No such file or directory",
        ),
        ("check --stdin-filename x.py - other.py", "takes no other files"),
    ],
)
def test_folders_and_files_where_something_else_belongs(
    tmp_path: Path, words: str, said: str
) -> None:
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "fsdp2lint.d").mkdir()
    shown = invoke(*words.split(), cwd=tmp_path, text="")
    assert shown.returncode == 2
    assert said in shown.stderr
    assert shown.stderr.count("\n") == 1


def test_a_cache_that_cannot_be_is_none(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "cache").write_text("a file")
    shown = invoke("check", "--cache-dir", "cache", "-f", "json", cwd=tmp_path)
    assert [one["code"] for one in json.loads(shown.stdout)] == ["FSDP201"]
    assert shown.stderr == ""


def test_init_writes_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the new bytes are put in place."""
    (tmp_path / "pyproject.toml").write_bytes(b"[project]\r\nname = 'x'\r\n")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        shown = invoke("init", cwd=tmp_path)
        assert (shown.returncode, shown.stdout) == (2, "")
        assert shown.stderr == "Error: pyproject.toml: not written, No space left on device\n"
        assert [one.name for one in tmp_path.iterdir()] == ["pyproject.toml"]
        (tmp_path / "pyproject.toml").unlink()
        assert "fsdp2lint.toml" in invoke("init", cwd=tmp_path).stderr
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "pyproject.toml").write_bytes(b"[project]\r\nname = 'x'\r\n")
    assert invoke("init", cwd=tmp_path).returncode == 0
    assert b"\n" not in (tmp_path / "pyproject.toml").read_bytes().replace(b"\r\n", b"")


@POSIX
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("check <&-", 1),
        ("check >&-", 1),
        ("check 2>&-", 1),
        ("check - <&-", 0),
        ("rule FSDP201 >&-", 0),
    ],
)
def test_a_stream_that_is_closed(tmp_path: Path, words: str, code: int) -> None:
    """As daemons and some editors begin their programs."""
    (tmp_path / "x.py").write_text(LATE)
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m fsdp2lint {words}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
        timeout=600,
    )
    assert (done.returncode, done.stderr) == (code, "")


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is named is an error: nothing found is not the same as nothing there."""
    (tmp_path / "shut").mkdir()
    (tmp_path / "x.py").write_text(LATE)
    real = os.scandir

    def scandir(path: str) -> object:
        if os.path.basename(path) == "shut":
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    shown = invoke("check", "shut", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (2, "Error: shut: Permission denied\n")
    shown = invoke("migrate", cwd=tmp_path)
    assert shown.returncode == 0
    assert shown.stderr.startswith("shut: this folder could not be read: Permission denied\n")
    (tmp_path / "x.py").write_text("x = 1\n")
    shown = invoke("check", "-f", "concise", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (1, "")
    assert "shut:1:1: FSDP900 this folder could not be read: Permission denied\n" in shown.stdout


@POSIX
def test_a_current_folder_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(LATE)
    (tmp_path / "gone").mkdir()
    words = f"rmdir ../gone; {sys.executable} -m fsdp2lint check {tmp_path}"
    done = subprocess.run(
        ["sh", "-c", words],
        cwd=tmp_path / "gone",
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
        timeout=600,
    )
    said = "Error: the current folder does not exist any more\n"
    assert (done.returncode, done.stdout, done.stderr.endswith(said)) == (2, "", True)
    assert "Traceback" not in done.stderr
