"""Names, code and messages of others on their way to a terminal or a CI."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdp2lint.system.plain import lines, no_command, one_line
from tests.support.running import program

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="such names do not exist there")
FORMATS = (
    "full", "concise", "grouped", "json", "json-lines", "sarif", "github", "gitlab", "junit"
)  # fmt: skip
HOSTILE = "evil\n::error title=owned::gone\x1b[31m\x9b2J\u202e.py"
CODE = (
    "import torch.distributed.fsdp\n"
    "x = 1  # fsdp2lint: ignore[FSDP203] -- \x1b]0;owned\x07 ##[error]no\n"
    "y = 2  # fsdp2lint: ignore[FSDP\x1b[2J]\n"
)
OLD = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "import torch\nmodel = FSDP(torch.nn.Linear(4, 4))  # ##[error]no \x1b[2J\n"
)


def harmless(text: str) -> None:
    """No line is a command, no control character is left."""
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "\u202e" not in text
    for line in text.splitlines():
        assert not line.lstrip().startswith("::"), line
        assert "##[" not in line, line


@POSIX
@pytest.mark.parametrize("format_", FORMATS)
def test_no_format_passes_on_what_a_terminal_or_a_ci_obeys(tmp_path: Path, format_: str) -> None:
    (tmp_path / HOSTILE).write_text(CODE)
    done = program("check", "-n", "-f", format_, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    text = done.stdout
    if format_ == "github":
        assert text.startswith("::")
        assert "\n::error title=owned" not in text
        text = "\n".join(line.lstrip(":") for line in text.splitlines())
    harmless(text + done.stderr)
    if format_ in ("json", "sarif", "gitlab"):
        assert json.loads(done.stdout)
    if format_ == "junit":
        assert ElementTree.fromstring(done.stdout)


@POSIX
@pytest.mark.parametrize(
    "words", ["migrate", "migrate -f markdown", "migrate -f json", "check --diff", "check --show-files",
              "check gone.py", "migrate --write -q --allow-no-git", "baseline create", "check --statistics"]
)  # fmt: skip
def test_no_command_passes_it_on(tmp_path: Path, words: str) -> None:
    (tmp_path / HOSTILE).write_text(CODE + OLD)
    done = program(*words.split(), cwd=tmp_path)
    assert "Traceback" not in done.stderr
    harmless(done.stdout + done.stderr)


@given(st.text(alphabet=st.sampled_from("a:#[ \n\r\t\x1b\x9b\u202e\x00")))
def test_text_on_its_way_out(text: str) -> None:
    harmless(no_command(one_line(text)))
    harmless(no_command(lines(text)))
    assert "\n" not in one_line(text)
    assert one_line(one_line(text)) == one_line(text)


INTERRUPTED_AT = (
    "fsdp2lint.cli", "fsdp2lint.cli.program", "click", "fsdp2lint.cli.options", "fsdp2lint.check.session",
    "fsdp2lint.check.analysis", "libcst",
)  # fmt: skip


@POSIX
@pytest.mark.parametrize("module", INTERRUPTED_AT)
def test_an_interrupt_while_it_starts(tmp_path: Path, module: str) -> None:
    """Ctrl-C at the very moment at which a module is imported, however fast the machine is."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "def heard(event, given):\n"
        f"    if event == 'import' and given[0] == {module!r}:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.addaudithook(heard)\n"
    )
    (tmp_path / "x.py").write_text(CODE)
    done = subprocess.run(
        [sys.executable, "-m", "fsdp2lint", "check", "-n", "x.py"],
        cwd=tmp_path,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        preexec_fn=_listening,
    )
    assert (done.returncode, done.stdout) in ((-2, ""), (130, ""))
    assert done.stderr.strip() in ("", "interrupted")


def _listening() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.default_int_handler)


def _environment(first: Path) -> dict[str, str]:
    import os

    from tests.support.running import ROOT

    return os.environ | {"PYTHONPATH": os.pathsep.join((str(first), str(ROOT)))}
