"""What only a terminal gets: colours, links, and a line that tells of progress."""

from __future__ import annotations

import io
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fsdp2lint.cli.sessions import Progress
from tests.config.test_config import LATE
from tests.support.running import ROOT, invoke

ESCAPES = re.compile(r"\x1b\[[0-9;]*[mK]|\x1b\]8;[^\x1b]*\x1b\\|\r")


def on_a_terminal(folder: Path, *args: str, term: str = "xterm-256color") -> tuple[int, str]:
    """The exit code and all that a terminal is sent."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "fsdp2lint", "check", *args],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
        | {"PYTHONPATH": str(ROOT), "TERM": term, "PYTHONUTF8": "1"},
    )
    os.close(theirs)
    parts: list[bytes] = []
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 1.0)[0]:
            try:
                parts.append(os.read(ours, 65536))
            except OSError:
                break  # nobody holds the other end any more
            if not parts[-1]:
                break
    os.close(ours)
    return running.wait(timeout=60), b"".join(parts).decode()


def test_a_terminal_gets_colours_and_links(tmp_path: Path) -> None:
    (tmp_path / "a b.py").write_text(LATE)
    code, sent = on_a_terminal(tmp_path)
    assert code == 1
    assert "\x1b[1;31merror[FSDP201]" in sent
    assert f"file://{tmp_path}/a%20b.py\x1b\\a b.py:8:17\x1b]8;;\x1b\\" in sent
    plain = invoke("check", "--color", "never", cwd=tmp_path).stdout
    shown = re.sub(r"^analysing .*?(?=error)", "", ESCAPES.sub("", sent), flags=re.DOTALL)
    assert shown == plain


def test_a_dumb_terminal_gets_plain_text(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(LATE)
    _, sent = on_a_terminal(tmp_path, term="dumb")
    assert "error[FSDP201]" in sent
    assert "\x1b" not in sent


def test_a_file_gets_none(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(LATE)
    shown = invoke("check", cwd=tmp_path)
    assert "\x1b" not in shown.stdout + shown.stderr
    forced = invoke("check", "--color", "always", cwd=tmp_path)
    assert "\x1b[" in forced.stdout
    assert "\x1b]8" not in forced.stdout


def test_progress_waits_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("fsdp2lint.cli.sessions.time.perf_counter", lambda: now)
    stream = io.StringIO()
    line = Progress(stream, width=30)
    line("early.py")
    assert stream.getvalue() == ""
    now += 1
    line("a/rather/long/path/to/some/file.py")
    line("too soon after that.py")
    assert stream.getvalue() == "\r\x1b[Kanalysing …th/to/some/file.py"
    assert len(stream.getvalue().removeprefix("\r\x1b[K")) < 30
    line("")
    assert stream.getvalue().endswith("\r\x1b[K")
    before = stream.getvalue()
    line.close()
    assert stream.getvalue() == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
@pytest.mark.parametrize("format_", ["concise", "sarif"])
def test_a_full_disk(tmp_path: Path, format_: str) -> None:
    (tmp_path / "x.py").write_text(LATE)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fsdp2lint", "check", "-f", format_],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            check=False,
            timeout=600,
        )
    assert done.returncode == 2
    assert done.stderr == "Error: the output cannot be written: No space left on device\n"
    shown = invoke("check", "-o", "/dev/full", cwd=tmp_path)
    assert (shown.returncode, "No space left" in shown.stderr) == (2, True)
