"""Which files are looked at, and which of them are parsed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp2lint.check.runner import Batch, check
from fsdp2lint.config.files import Config
from fsdp2lint.config.resolve import exclusion
from fsdp2lint.source.prefilter import MAX_BYTES, relevant, sift, written
from fsdp2lint.system.discover import EXCLUDED, PACKAGES, Exclusion, NoSuchPath, discover

ROOT = Path(__file__).parents[2]
MARKED = "from torch.distributed.fsdp import fully_shard\n"


def tree(folder: Path, *names: str) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")


def names(folder: Path, *paths: str, **options: object) -> list[str]:
    found = discover([str(folder / p) for p in paths or (".",)], Exclusion(**options))  # type: ignore[arg-type]
    return [os.path.relpath(f, folder).replace(os.sep, "/") for f in found]


def test_python_files_below_a_folder_in_order(tmp_path: Path) -> None:
    tree(tmp_path, "b.py", "a.py", "pkg/c.py", "notes.txt", "pkg/data.json", "gui.pyw")
    assert names(tmp_path) == ["a.py", "b.py", "gui.pyw", "pkg/c.py"]


def test_the_current_folder_is_not_spelled_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, "a.py", "pkg/b.py")
    monkeypatch.chdir(tmp_path)
    assert discover(["."], Exclusion()) == ["a.py", os.path.join("pkg", "b.py")]


def test_a_file_passed_twice_is_looked_at_once(tmp_path: Path) -> None:
    tree(tmp_path, "a.py")
    assert names(tmp_path, "a.py", ".", "./a.py") == ["a.py"]


@pytest.mark.parametrize("folder", EXCLUDED)
def test_default_excludes(tmp_path: Path, folder: str) -> None:
    tree(tmp_path, f"{folder}/a.py", f"pkg/{folder}/b.py", "c.py")
    assert names(tmp_path) == ["c.py"]


@pytest.mark.parametrize("folder", sorted(PACKAGES))
def test_a_package_of_such_a_name_is_code(tmp_path: Path, folder: str) -> None:
    tree(tmp_path, "engine/__init__.py", f"engine/{folder}/a.py", f"{folder}/__init__.py")
    tree(tmp_path, f"engine/inner/{folder}/lib/b.py", f"{folder}/lib/{folder}/c.py")
    assert sorted(names(tmp_path)) == sorted(
        [f"{folder}/__init__.py", "engine/__init__.py", f"engine/{folder}/a.py"]
    )


def test_a_package_is_left_out_when_the_user_says_so(tmp_path: Path) -> None:
    tree(tmp_path, "engine/__init__.py", "engine/dist/__init__.py", "engine/build/__init__.py")
    config = Config(str(tmp_path), given={"extend-exclude": ("dist",)})
    left = discover([str(tmp_path)], exclusion(config, {}))
    assert [os.path.relpath(one, tmp_path) for one in left] == [
        "engine/__init__.py",
        "engine/build/__init__.py",
    ]


def test_a_named_file_is_looked_at_although_its_folder_is_excluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, "build/a.py")
    monkeypatch.chdir(tmp_path)
    assert names(tmp_path, "build/a.py") == ["build/a.py"]
    assert names(tmp_path, "build/a.py", force=True) == []


def test_the_folder_around_everything_is_not_excluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path, "build/repo/a.py", "build/repo/dist/b.py")
    monkeypatch.chdir(tmp_path / "build" / "repo")
    absolute = [str(tmp_path / "build/repo" / name) for name in ("a.py", "dist/b.py")]
    assert discover(absolute, Exclusion(force=True)) == absolute[:1]


def test_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "a.py", "a_test.py", "gen/x.py", "gen/keep/y.py", "other/gen/z.py")
    monkeypatch.chdir(tmp_path)
    assert names(tmp_path, patterns=["*_test.py", "gen/x.py"]) == [
        "a.py",
        "gen/keep/y.py",
        "other/gen/z.py",
    ]
    assert names(tmp_path, patterns=["gen"]) == ["a.py", "a_test.py"]


def test_a_script_without_the_suffix_can_be_named(tmp_path: Path) -> None:
    tree(tmp_path, "train")
    assert names(tmp_path) == []
    assert names(tmp_path, "train") == ["train"]


def test_gitignore(tmp_path: Path) -> None:
    (tmp_path / ".git" / "info").mkdir(parents=True)
    (tmp_path / ".git" / "info" / "exclude").write_text("private.py\n")
    (tmp_path / ".gitignore").write_text("out/\n*_pb2.py\n/top.py\n!keep_pb2.py\n")
    tree(tmp_path, "a.py", "out/b.py", "x_pb2.py", "keep_pb2.py", "top.py", "pkg/top.py")
    tree(tmp_path, "private.py", "pkg/local.py", "pkg/out.py", "pkg/other_pb2.py")
    (tmp_path / "pkg" / ".gitignore").write_text("local.py\n!other_pb2.py\n")
    assert names(tmp_path) == [
        "a.py",
        "keep_pb2.py",
        "pkg/other_pb2.py",
        "pkg/out.py",
        "pkg/top.py",
    ]
    assert "out/b.py" in names(tmp_path, gitignore=False)


def test_gitignore_with_a_pattern_that_means_nothing(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("out/\n**/x[strategy-9]\n*_pb2.py\n")
    tree(tmp_path, "a.py", "out/b.py", "x_pb2.py")
    assert names(tmp_path) == ["a.py"]


def test_gitignore_above_the_folder_counts_up_to_the_repository(tmp_path: Path) -> None:
    tree(tmp_path, "repo/pkg/a.py", "repo/pkg/b.py")
    (tmp_path / ".gitignore").write_text("a.py\n")
    (tmp_path / "repo" / ".gitignore").write_text("pkg/b.py\n")
    (tmp_path / "repo" / ".git").mkdir()
    assert names(tmp_path, "repo/pkg") == ["repo/pkg/a.py"]


def test_a_named_file_is_looked_at_although_git_ignores_it(tmp_path: Path) -> None:
    tree(tmp_path, "a.py")
    (tmp_path / ".gitignore").write_text("a.py\n")
    assert names(tmp_path, "a.py") == ["a.py"]


def test_links(tmp_path: Path) -> None:
    tree(tmp_path, "pkg/a.py")
    (tmp_path / "pkg" / "round").symlink_to(tmp_path / "pkg", target_is_directory=True)
    (tmp_path / "self.py").symlink_to(tmp_path / "self.py")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "alias.py").symlink_to(tmp_path / "pkg" / "a.py")
    assert names(tmp_path) == ["alias.py", "pkg/a.py"]


def test_a_linked_folder_can_be_named(tmp_path: Path) -> None:
    tree(tmp_path, "real/a.py")
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    assert names(tmp_path, "link") == ["link/a.py"]


@pytest.mark.skipif(sys.platform != "linux", reason="other file systems refuse such names")
def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    file = os.fsencode(tmp_path) + b"/caf\xe9.py"
    Path(os.fsdecode(file)).write_text(MARKED + "def broken(:\n")
    report = check(Batch.of_files(discover([str(tmp_path)], Exclusion())))
    assert [d.rule.code for d in report.found] == ["FSDP900"]
    assert report.found[0].place.path.endswith("caf\\xe9.py")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert names(tmp_path) == []
    with pytest.raises(NoSuchPath, match="neither a file nor a folder"):
        names(tmp_path, "pipe.py")


@pytest.mark.parametrize("path", ["gone", "gone.py", "nul\0byte"])
def test_a_path_that_is_not_there(tmp_path: Path, path: str) -> None:
    with pytest.raises(NoSuchPath):
        names(tmp_path, path)


@pytest.mark.parametrize(
    "text",
    [
        "from torch.distributed.fsdp import FSDPModule",
        "import torch.distributed.fsdp as fsdp",
        "from torch.distributed import fsdp; fsdp.fully_shard(model)",
        "from torch.distributed._composable.fsdp import FSDPModule",
        "import torch.distributed.checkpoint as dcp",
        "from torch.distributed import checkpoint as dcp",
        "from torch.distributed._shard.checkpoint import save_state_dict",
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
    ],
)
def test_relevant(text: str) -> None:
    assert relevant(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "import torch.distributed as dist",
        "from torch.utils.checkpoint import checkpoint",
        "from torch.nn.parallel import DistributedDataParallel as DDP",
        "class SimpleFSDP: ...",
    ],
)
def test_not_relevant(text: str) -> None:
    assert not relevant(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "from torch.distributed.fsdp import FSDPModule  # it's here",
        "s = '#'; fully_shard(model)",
        "s = 'an escaped \\\\'; fully_shard(model)",
        '''def f(x): """Doc."""; fully_shard(x)''',
        "module = import_module('torch.distributed.fsdp')",
        "from torch.distributed._tensor import DTensor  # as fully_shard makes",
        'def f(model: "FullyShardedDataParallel"): ...',
    ],
)
def test_written(text: str) -> None:
    assert written(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "x = 1  # then fully_shard(model)",
        '"""The \\"FullyShardedDataParallel\\" of\n\ntorch.distributed.fsdp."""',
        "def f():\n    '''Don't call fully_shard.'''",
    ],
)
def test_only_told(text: str) -> None:
    assert relevant(text.encode())
    assert not written(text.encode())


def test_every_bad_fixture_is_relevant() -> None:
    """Each rule's fixtures pass the prefilter; one of several files does as a folder."""
    folders = [f for f in (ROOT / "fixtures" / "rules").iterdir() if any(f.rglob("*.py"))]
    assert folders
    for folder in folders:
        for part in folder.iterdir():
            files = sorted(part.rglob("*.py")) if part.is_dir() else [part]
            texts = [f.read_bytes() for f in files if f.suffix == ".py"]
            if any(b"# expect:" in text for text in texts):
                assert any(relevant(text) for text in texts), part


def test_sift_reads_files_of_any_size(tmp_path: Path) -> None:
    small, empty, large = tmp_path / "s.py", tmp_path / "e.py", tmp_path / "l.py"
    small.write_text(MARKED)
    empty.write_text("")
    large.write_text("x = 1\n" * 600_000 + MARKED)
    sifted = dict(sift(map(str, (small, empty, large))))
    assert sifted == {str(small): small.read_bytes(), str(large): large.read_bytes()}


def test_a_generated_file_is_too_large(tmp_path: Path) -> None:
    file = tmp_path / "generated.py"
    file.write_text(MARKED + "x = 1\n" * (10_000_000 // 6))
    report = check(Batch.of_files([str(file)]))
    (finding,) = report.found
    assert finding.rule.code == "FSDP900"
    assert (
        finding.message
        == f"too large to be analysed: 10.0 MB, the limit is {MAX_BYTES / 1e6:.0f} MB"
    )


def test_a_large_file_without_markers_is_no_matter(tmp_path: Path) -> None:
    file = tmp_path / "generated.py"
    file.write_text("x = 1\n" * (10_000_000 // 6))
    assert check(Batch.of_files([str(file)])).found == []


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\x7fELF\0\0 fully_shard", "not Python source: the file holds NUL bytes"),
        (b"# fully_shard\nx = '\xff'\n", "cannot decode the file"),
        (b"# coding: klingon\nfully_shard\n", "cannot decode the file"),
        (b"fully_shard(\n", "syntax error"),
        (b"fully_shard" + b"(" * 5000, "nested too deeply"),
    ],
)
def test_what_cannot_be_analysed_is_said(tmp_path: Path, raw: bytes, message: str) -> None:
    file = tmp_path / "x.py"
    file.write_bytes(raw)
    (finding,) = check(Batch.of_files([str(file)])).found
    assert finding.rule.code == "FSDP900"
    assert finding.message.startswith(message)


def test_a_notebook_is_not_called_clean(tmp_path: Path) -> None:
    file = tmp_path / "x.ipynb"
    file.write_text('{"cells": [{"source": ["fully_shard(model)"]}]}')
    (finding,) = check(Batch.of_files([str(file)])).found
    assert finding.message.startswith("not a notebook")


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(MARKED)
    file.chmod(0)
    (finding,) = check(Batch.of_files([str(file)])).found
    assert finding.message.startswith("cannot read the file")


def test_a_file_that_vanished_is_said(tmp_path: Path) -> None:
    (finding,) = check(Batch.of_files([str(tmp_path / "gone.py")])).found
    assert finding.message == "cannot read the file: No such file or directory"


def test_nothing_heavy_is_imported_when_no_file_is_relevant(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "b.py")
    code = (
        "import sys; from fsdp2lint.cli import main\n"
        f"sys.argv = ['fsdp2lint', 'check', {str(tmp_path)!r}]\n"
        "try: main()\n"
        "except SystemExit as e: assert e.code == 0, e.code\n"
        "heavy = {'libcst', 'rich', 'torch', 'pathspec', 'msgspec', 'packaging', 'difflib'}\n"
        "loaded = {m for m in sys.modules if m.split('.')[0] in heavy or m.startswith('fsdp2lint.rules')}\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_torch_is_never_imported(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(MARKED + "fully_shard(model)\n")
    code = (
        "import sys; from fsdp2lint.check.runner import Batch, check\n"
        f"check(Batch.of_files([{str(tmp_path / 'a.py')!r}]))\n"
        "assert 'libcst' in sys.modules\n"
        "assert 'torch' not in sys.modules\n"
        "assert 'libcst.matchers' not in sys.modules and 'libcst.codemod' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
