"""``fsdp2lint migrate`` as a user meets it: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate import show
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source
from tests.support.running import program

CLIP = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(nn.Linear(8, 8))
model(torch.randn(4, 8)).sum().backward()
model.clip_grad_norm_(1.0)  # all ranks
"""

FRAMEWORK = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin

options = {}
accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(**options))
"""

FLAT = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

model = FSDP(nn.Linear(8, 8))
with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
    flat = model.state_dict()
    torch.save(flat, "shard.pt")
"""

LEFT = "    # TODO(fsdp2lint): use get_model_state_dict(model, options=StateDictOptions(...))\n"

ONLY = ("--only", "clip-grad-norm")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(CLIP)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    name = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", *name, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def repository(tree: Path) -> Path:
    git(tree, "init", "--quiet")
    git(tree, "config", "user.name", "t")
    git(tree, "config", "user.email", "t@example.org")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "begin")
    return tree


def test_it_shows_and_writes_nothing(tree: Path) -> None:
    shown = program("migrate", *ONLY, cwd=tree)
    assert "-model.clip_grad_norm_(1.0)  # all ranks\n" in shown.stdout
    assert "+nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # all ranks\n" in shown.stdout
    assert (tree / "train.py").read_text() == CLIP
    assert shown.returncode == 1  # the wrapper itself was not asked for
    assert "1 file would change; nothing was written. Apply with `--write`." in shown.stdout
    assert "not everything is accounted for" in shown.stdout


def test_write_and_again(tree: Path) -> None:
    program("migrate", *ONLY, "--write", cwd=tree)
    text = (tree / "train.py").read_text()
    assert text == CLIP.replace(
        "model.clip_grad_norm_(1.0)", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    )
    again = program("migrate", *ONLY, "--write", cwd=tree)
    assert (tree / "train.py").read_text() == text
    assert "@@" not in again.stdout


def test_what_is_written_keeps_encoding_line_ends_and_mode(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    raw = ("# -*- coding: latin-1 -*-\n# für alle\n" + CLIP).replace("\n", "\r\n").encode("latin-1")
    file.write_bytes(raw)
    file.chmod(0o750)
    program("migrate", *ONLY, "--write", file)
    new = file.read_bytes()
    assert b"f\xfcr alle\r\n" in new
    assert b"nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # all ranks\r\n" in new
    assert new.count(b"\n") == new.count(b"\r\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o750


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_all_files_or_none(tree: Path) -> None:
    other = tree / "other.py"
    other.write_text(CLIP)
    other.chmod(0o444)
    shown = program("migrate", *ONLY, "--write", cwd=tree)
    assert shown.returncode == 2
    assert "other.py: not written, the file is read-only" in shown.stderr
    assert "files changed" not in shown.stdout
    assert (tree / "train.py").read_text() == CLIP


def test_a_dirty_tree_is_refused(repository: Path) -> None:
    (repository / "train.py").write_text(CLIP + "x = 1\n")
    shown = program("migrate", *ONLY, "--write", cwd=repository)
    assert shown.returncode == 2
    assert "has uncommitted changes (M train.py)" in shown.stderr
    assert (repository / "train.py").read_text() == CLIP + "x = 1\n"
    allowed = program("migrate", *ONLY, "--write", "--allow-dirty", cwd=repository)
    assert allowed.returncode == 1
    assert "nn.utils.clip_grad_norm_" in (repository / "train.py").read_text()


def test_the_commit_of_some_codemods(repository: Path) -> None:
    program("migrate", *ONLY, "--create-commits", cwd=repository)
    log = git(repository, "log", "--format=%s", "-1").strip()
    assert log == "fsdp2lint: FSDP2 for FSDP1"
    assert "train.py:7 clip_grad_norm_ changed:" in git(repository, "log", "--format=%b", "-1")
    assert git(repository, "status", "--porcelain") == ""


def test_commits_need_a_repository(tree: Path) -> None:
    shown = program("migrate", "--create-commits", cwd=tree)
    assert shown.returncode == 2
    assert "--create-commits needs all files in one git repository" in shown.stderr


def test_check_says_whether_something_would_change(tree: Path) -> None:
    assert program("migrate", *ONLY, "--check", "-q", cwd=tree).returncode == 1
    assert (tree / "train.py").read_text() == CLIP
    (tree / "train.py").write_text("import torch\n")
    assert program("migrate", "--check", cwd=tree).returncode == 0


def test_interactively(tree: Path) -> None:
    no = program("migrate", *ONLY, "--write", "-i", cwd=tree, text="n\n")
    assert "Apply clip-grad-norm?" in no.stderr
    assert (tree / "train.py").read_text() == CLIP
    program("migrate", *ONLY, "--write", "-i", cwd=tree, text="y\n")
    assert "nn.utils.clip_grad_norm_" in (tree / "train.py").read_text()


def test_what_is_left_is_said_in_the_text_and_in_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FRAMEWORK)
    shown = program("migrate", "--write", cwd=tmp_path)
    assert shown.returncode == 1
    text = (tmp_path / "train.py").read_text()
    todo = "# TODO(fsdp2lint): set `fsdp_version=2` in the plugin or the config file\n"
    assert text == FRAMEWORK.replace("accelerator = ", todo + "accelerator = ")
    again = program("migrate", "--write", cwd=tmp_path)
    assert (tmp_path / "train.py").read_text() == text
    assert "1 is left for manual migration. Nothing changes." in again.stdout
    assert "an earlier run" in again.stdout
    assert "train.py:4" in again.stdout


def test_a_fix_does_not_rewrite_half_of_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FLAT)
    assert program("migrate", "--write", cwd=tmp_path).returncode == 1
    text = (tmp_path / "train.py").read_text()
    assert "fully_shard" not in text
    assert text.endswith(FLAT.partition(":\n")[2].replace("    flat", LEFT + "    flat"))


def test_formats(tree: Path) -> None:
    shown = program(
        *("migrate", *ONLY, "-q", "-f", "json", "-f", "markdown=l.md", "-f", "html=l.html"),
        cwd=tree,
    )
    data = json.loads(shown.stdout)
    assert sum(data["sums"].values()) == len(data["occurrences"])
    assert data["sums"]["changed"] == 1
    assert data["changed"] == ["train.py"]
    (new,) = data["files"]
    program("migrate", *ONLY, "-q", "--write", "--allow-dirty", "--allow-no-git", cwd=tree)
    assert (new["filename"], new["text"]) == ("train.py", (tree / "train.py").read_text())
    assert "\n+++ " in new["diff"]
    table = (tree / "l.md").read_text()
    assert "| train.py | 7 | `clip_grad_norm_` | changed |" in table
    page = (tree / "l.html").read_text()
    assert "://" not in page.partition("<section")[0]
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "clip_grad_norm_" in page
    assert "<dt>changed</dt><dd>1</dd>" in page


class Balanced(HTMLParser):
    """Fails on a tag that is closed and was not the last to be opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "clip-gradnorm"], "did you mean `clip-grad-norm`?"),
        (["-f", "markdwn"], "did you mean `markdown`?"),
        (["-f", "json", "-f", "text"], "two reports go to standard output"),
        (["--target-torch", "new"], "`new` is not a torch version"),
        (["nowhere"], "nowhere: No such file or directory"),
    ],
)
def test_bad_input(tree: Path, words: list[str], said: str) -> None:
    shown = program("migrate", *words, cwd=tree)
    assert shown.returncode == 2
    assert said in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_file_that_cannot_be_read_is_said(tree: Path) -> None:
    (tree / "broken.py").write_text("from torch.distributed.fsdp import fully_shard\ndef f(:\n")
    shown = program("migrate", *ONLY, "-q", cwd=tree)
    assert shown.returncode == 1
    assert "broken.py: not migrated, line 2:" in shown.stderr


def test_not_all_is_migrated_where_a_file_could_not_be_read(tmp_path: Path) -> None:
    use = "from torch import nn\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(nn.Linear(8, 8))\n"
    (tmp_path / "x.py").write_text(use)
    words = ("migrate", "--write", "--allow-no-git")
    assert "All FSDP1 code is migrated; 1 file changed." in program(*words, cwd=tmp_path).stdout
    (tmp_path / "x.py").write_text(use)
    (tmp_path / "y.py").write_text(f"{use}def f(:\n")
    shown = program(*words, cwd=tmp_path).stdout
    assert "1 file changed." in shown
    assert "All FSDP1 code is migrated" not in shown


def test_nothing_of_fsdp1(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import torch\n")
    shown = program("migrate", cwd=tmp_path)
    assert shown.returncode == 0
    assert "No FSDP1 code found." in shown.stdout


def test_fairscales_wrapper_is_another_one(tmp_path: Path) -> None:
    names = (
        "for n, _ in model.named_parameters():\n    print(n.replace('_fsdp_wrapped_module.', ''))\n"
    )
    text = CLIP.replace("torch.distributed.fsdp", "fairscale.nn") + names
    (tmp_path / "train.py").write_text(text)
    shown = program("migrate", "--write", cwd=tmp_path)
    assert shown.returncode == 0
    assert (tmp_path / "train.py").read_text() == text


def test_torch_is_not_imported(tree: Path) -> None:
    code = (
        "import sys, fsdp2lint.cli.migrate as m; "
        "m.command.main(['train.py'], standalone_mode=False); assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_on_a_terminal_long_reasons_go_on_under_their_beginning() -> None:
    text = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as F\nm = F(torch.nn.Linear(4, 4))\n"
    text += "n = m.clip_grad_norm_(1.0)\nprint(n)\n"
    migration = migrate((Source("a.py", text),), knowledge.codemods())
    plain, wide = show.render(migration, "text"), show.render(migration, "text", 90)
    rows = [line for line in wide.splitlines() if line.startswith("  ")]
    assert max(map(len, rows)) <= 90 < max(map(len, plain.splitlines()))
    assert " ".join(wide.split()) == " ".join(plain.split())
    assert "clip_grad_norm_" in wide, wide
    column = next(row for row in rows if "clip_grad_norm_" in row).index("the same norm")
    assert any(row[:column].isspace() and row[column] != " " for row in rows)
    assert show.render(migration, "text", 40) == plain, "no room"


def test_an_import_that_nothing_uses_in_the_end_does_not_come() -> None:
    text = (
        "import torch\n"
        "from torch import nn\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "from torch.distributed.fsdp import MixedPrecision\n"
        "from torch.distributed.fsdp.wrap import enable_wrap, wrap\n"
        "\n"
        "policy = MixedPrecision(param_dtype=torch.bfloat16)\n"
        "with enable_wrap(wrapper_cls=FSDP, mixed_precision=policy):\n"
        "    model = wrap(wrap(nn.Linear(8, 8)))\n"
    )
    done = migrate((Source("train.py", text),), knowledge.codemods())
    assert done.failures == []
    assert "fully_shard" in done.after[0].text
    assert "dataclasses" not in done.after[0].text


def test_a_todo_of_an_earlier_run_keeps_the_exit_code_at_1(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\ndef main():\n    # TODO(fsdp2lint): shard the teacher too\n    train()\n"
    )
    (tmp_path / "train.py").write_text(text)
    shown = program("migrate", cwd=tmp_path)
    assert shown.returncode == 1
    assert "still in the code: train.py:5" in shown.stdout


def test_outside_git_a_backup_is_made_and_named(tree: Path) -> None:
    shown = program("migrate", *ONLY, "--write", "-q", cwd=tree)
    folder = shown.stdout.partition("Backup of the 1 file: ")[2].split()[0]
    assert (tree / folder / "train.py").read_text() == CLIP
    assert (tree / "train.py").read_text() != CLIP
    (tree / "train.py").write_text(CLIP)
    alone = program("migrate", *ONLY, "--write", "--allow-no-git", "-q", cwd=tree)
    assert "1 file changed." in alone.stdout
    assert "Backup" not in alone.stdout
    assert len(list((tree / ".fsdp2lint_backup").iterdir())) == 1


def test_git_needs_no_backup(repository: Path) -> None:
    shown = program("migrate", *ONLY, "--write", "-q", cwd=repository)
    assert "Backup" not in shown.stdout
    assert git(repository, "status", "--porcelain") == " M train.py\n"


def test_the_reports_say_what_verify_found(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is written when it is known whether the program trains the same."""
    from click.testing import CliRunner

    from fsdp2lint.cli import migrate as command
    from fsdp2lint.prove import migration as proof

    monkeypatch.chdir(tree)
    found = {0: "they agree", 1: "they differ, so nothing was written", 2: "could not run"}
    for code, said in found.items():
        monkeypatch.setattr(proof, "prove", lambda *_, code=code: code)
        words = [".", *ONLY, "--write", "--verify", "train.py", "-f", "html=page.html"]
        done = CliRunner().invoke(command.command, words, standalone_mode=False)
        assert done.exception is None
        assert said in (tree / "page.html").read_text()
        assert ((tree / "train.py").read_text() != CLIP) == (code == 0)
        (tree / "train.py").write_text(CLIP)


def test_options_of_verify_stand_before_the_script(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsdp2lint.prove import migration as proof

    asked: list[list[str]] = []

    def run(words: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        asked.append(words)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", run)
    proof.prove("--fake --steps 3 train.py --lr 1", str(tree), [], "{}")
    (words,) = asked
    assert words[3:8] == ["verify", "--fake", "--steps", "3", str(tree.resolve())]
    assert words[9:11] == ["--entry", "train.py"]
    assert words[-3:] == ["--", "--lr", "1"]
    with pytest.raises(proof.NoProof, match="no such script"):
        proof.prove("--fake gone.py", str(tree), [], "{}")


def test_the_imports_of_a_file_share_a_row(tmp_path: Path) -> None:
    extra = "from torch.distributed.fsdp import CPUOffload\nfrom torch.distributed.fsdp import BackwardPrefetch\n"
    (tmp_path / "train.py").write_text(CLIP.replace("\nmodel = ", f"{extra}\nmodel = "))
    shown = program("migrate", "-q", cwd=tmp_path)
    assert shown.stdout.count("removed: import no longer used") == 1
    assert "3 imports" in shown.stdout


def test_a_library_that_builds_no_model_is_told_what_its_code_accepts_now(tmp_path: Path) -> None:
    """Its callers may still pass FSDP1 models: neither their class nor their clipping is known here."""
    uses = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def is_sharded(model):\n    return isinstance(model, FSDP)\n"
    )
    (tmp_path / "library.py").write_text(uses)
    said = "the new code accepts models of FSDP1 and of `fully_shard`"
    shown = program("migrate", "library.py", cwd=tmp_path)
    assert said in shown.stdout
    assert "library.py:6" in shown.stdout
    builds = "\n\ndef build(model):\n    return FSDP(model)\n"
    (tmp_path / "library.py").write_text(uses + builds)
    assert said not in program("migrate", "library.py", cwd=tmp_path).stdout
