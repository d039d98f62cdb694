"""A repository that wishes us ill: nothing of it is executed, nothing outside is touched, every report is valid."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from tests.cli.test_leaving import harmless
from tests.faults.hostile import NAMES, OLD, Hostile, build
from tests.faults.messages import Client, framed
from tests.support import forks
from tests.support.running import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links, pipes and such names")

LIMIT = 600
SCHEMA = json.loads((ROOT / "tests/reporters/sarif_subset.json").read_text())


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    made = build(tmp_path_factory.mktemp("hostile"))
    yield made
    assert not made.owned.exists()


@pytest.fixture
def made(tmp_path: Path) -> Hostile:
    return build(tmp_path)


def run(made: Hostile, *words: str, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    """The installed program: as for it, and unlike for ``python -m``, no module is imported from where we are.

    A ``fresh`` one imports all that it needs in the repository.
    """
    before = made.outside_now()
    given = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "PYTHON"))}
    if fresh:
        begin = (
            f"import sys; sys.path[0] = {str(ROOT)!r}; from fsdp2lint.__main__ import main; main()"
        )
        done = subprocess.run(
            [sys.executable, "-c", begin, *words],
            cwd=made.root,
            env=given,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=LIMIT,
            check=False,
        )
    else:
        done = forks.run(words, made.root, given, None, LIMIT, installed=True)
    assert not made.owned.exists(), f"{words}: something of the repository was executed"
    assert made.outside_now() == before, f"{words}: something outside was touched"
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 1, 2)
    return done


FORMATS = (
    "full",
    "concise",
    "grouped",
    "json",
    "json-lines",
    "sarif",
    "github",
    "gitlab",
    "junit",
    "coverage",
)


@pytest.mark.parametrize(
    "words",
    ["check -n --no-respect-gitignore .", "migrate .", "trace late.py", "baseline show", "config select", "rule FSDP201",
     "migrate-checkpoint checkpoint new.pt", "plan late.py", "init"],
)  # fmt: skip
def test_no_module_of_it_is_imported(made: Hostile, words: str) -> None:
    done = run(made, *words.split(), fresh=True)
    harmless(done.stdout + done.stderr)


@pytest.mark.parametrize("format_", FORMATS)
def test_every_report_is_valid(unchanged: Hostile, format_: str) -> None:
    done = run(unchanged, "check", "-n", "--no-respect-gitignore", "-f", format_, ".")
    assert done.returncode == 1, done.stderr
    assert "FSDP201" in done.stdout or format_ == "coverage"
    harmless(done.stderr)
    if format_ == "github":
        lines = done.stdout.splitlines()
        assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in lines)
        assert all(line.count("::") >= 2 for line in lines)
        return
    harmless(done.stdout)
    if format_ in ("json", "sarif", "gitlab", "coverage"):
        data = json.loads(done.stdout)
        if format_ == "sarif":
            jsonschema.validate(data, SCHEMA)
    elif format_ == "json-lines":
        assert all(json.loads(line) for line in done.stdout.splitlines())
    elif format_ == "junit":
        assert ElementTree.fromstring(done.stdout).findall(".//failure")


@pytest.mark.parametrize("format_", ["text", "markdown", "json", "html"])
def test_every_ledger_is_valid(unchanged: Hostile, format_: str) -> None:
    done = run(unchanged, "migrate", "-f", format_, ".")
    assert done.returncode == 1, done.stderr
    assert "FullyShardedDataParallel" in done.stdout
    harmless(done.stderr)
    if format_ == "html":
        assert "<b>&\"'" not in done.stdout
    else:
        harmless(done.stdout)
    if format_ == "json":
        json.loads(done.stdout)


@pytest.mark.parametrize(
    "words",
    ["check -n --changed", "check -n --staged", "check -n --since HEAD", "check", "check --diff", "check --show-files",
     "config select", "trace late.py", "check -v late.py", "migrate-checkpoint last.pt new", "migrate-checkpoint checkpoint new.pt"],
)  # fmt: skip
def test_what_only_reads(unchanged: Hostile, words: str) -> None:
    done = run(unchanged, *words.split())
    harmless(done.stdout + done.stderr)
    if words.startswith("migrate-checkpoint"):
        assert done.returncode == 2


@pytest.mark.parametrize("name", NAMES[:4])
def test_names_that_are_no_words_of_ours(unchanged: Hostile, name: str) -> None:
    book = json.dumps(
        {"version": 1, "findings": [{"file": name, "code": "FSDP201", "line": name, "count": 1}]}
    )
    (listed := unchanged.root.parent / "listed.json").write_text(book)
    for words in (
        ["trace", name], ["trace", "-f", "json", name], ["trace", "--coverage", name], ["plan", name],
        ["check", "-n", "-v", name], ["check", "-n", "--show-files", name], ["migrate", name],
        ["baseline", "show", "--baseline", str(listed)],
    ):  # fmt: skip
        done = run(unchanged, *words)
        harmless(done.stdout + done.stderr)
        assert done.stdout or words[0] == "plan"


def test_reports_in_files_are_as_harmless(made: Hostile) -> None:
    (made.root / os.fsdecode(b"n\xff.py")).write_text(OLD)
    formats = [name for name in FORMATS if name != "github"]
    run(
        made,
        "check",
        "-n",
        *(word for name in formats for word in ("-f", f"{name}=out/{name}")),
        ".",
    )
    formats += ["text", "markdown", "html"]
    kinds = [("text", "text"), ("markdown", "markdown"), ("html", "html"), ("json", "ledger")]
    run(
        made,
        "migrate",
        *(word for kind, name in kinds for word in ("-f", f"{kind}=out/{name}")),
        ".",
    )
    for name in (*formats, "ledger"):
        harmless((made.root / "out" / name).read_text("utf-8"))
    json.loads((made.root / "out" / "ledger").read_text())


@pytest.mark.parametrize(
    "words",
    ["check -n --fix --unsafe-fixes .", "check -n --add-ignore .", "migrate --write --allow-dirty .",
     "migrate --write --allow-dirty --allow-no-git .", "migrate --create-commits old.py", "baseline create", "init",
     "check -n --fix link.py hard.py folder", "check -n -f json=out/report.json ."],
)  # fmt: skip
def test_what_writes(made: Hostile, words: str) -> None:
    done = run(made, *words.split())
    harmless(done.stdout + done.stderr)


@pytest.mark.parametrize("name", ["deep", "patterns", "table", "bound"])
@pytest.mark.parametrize("command", ["check", "migrate"])
def test_settings_without_end_cost_one_line(unchanged: Hostile, name: str, command: str) -> None:
    done = run(unchanged, command, str(unchanged.settings / name))
    harmless(done.stdout + done.stderr)
    if command == "check":
        assert "FSDP201" in done.stdout  # all else is looked at
        assert done.stdout.count("error[FSDP903]") == (done.returncode == 2)
        assert done.stderr == ""
    else:
        assert done.stderr.count("\n") == (done.returncode == 2)


def test_the_language_server(made: Hostile) -> None:
    before = made.outside_now()
    client = Client(made.root, installed=True)
    client.begin(made.root)
    for name in ("late.py", "old.py"):
        item = {
            "uri": (made.root / name).as_uri(),
            "languageId": "python",
            "version": 1,
            "text": (made.root / name).read_text(),
        }
        client.says(
            framed(
                {
                    "jsonrpc": "2.0",
                    "method": "textDocument/didOpen",
                    "params": {"textDocument": item},
                }
            )
        )
        at = {"textDocument": {"uri": item["uri"]}, "position": {"line": 5, "character": 0}}
        assert "result" in client.asks("textDocument/hover", at)
    assert client.end() == 0
    client.kill()
    assert not made.owned.exists()
    assert made.outside_now() == before
