"""Results that are kept, and when they are good no longer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp2lint import __version__
from fsdp2lint.check import cache
from fsdp2lint.check.cache import Cache, Question
from fsdp2lint.cli.sessions import CACHE_FOLDER
from fsdp2lint.config.settings import Settings
from fsdp2lint.system import files
from tests.cli.test_git import HELPER, TRAIN
from tests.config.test_config import LATE
from tests.support import notebooks
from tests.support.running import CLEAN, ROOT, invoke, misconfigured, program

UNUSED = "x = 1  # fsdp2lint: ignore[FSDP203]\n"

Counter = Callable[[], int]


@pytest.fixture
def project(tmp_path: Path, analysed: Counter) -> Path:
    """A program and its helper, checked once."""
    (tmp_path / "train.py").write_text(TRAIN.format(module="helper"))
    (tmp_path / "helper.py").write_text(HELPER)
    assert check(tmp_path) == ["train.py:FSDP201"]
    assert analysed() == 1
    return tmp_path


def check(folder: Path, *args: str) -> list[str]:
    shown = invoke("check", "-f", "json", "-j1", *args, cwd=folder)
    assert shown.returncode in (0, 1), shown.stderr
    return [f"{one['filename']}:{one['code']}" for one in json.loads(shown.stdout)]


def test_nothing_changed(project: Path, analysed: Counter) -> None:
    assert check(project) == ["train.py:FSDP201"]
    assert analysed() == 0


@pytest.mark.parametrize(
    "format_", ["full", "concise", "json", "sarif", "gitlab", "junit", "github"]
)
def test_what_is_kept_looks_the_same(project: Path, analysed: Counter, format_: str) -> None:
    (project / "more.py").write_text(CLEAN + UNUSED + LATE)
    texts = {invoke("check", "-f", format_, *n, cwd=project).stdout for n in ((), (), ("-n",))}
    assert len(texts) == 1
    assert analysed() == 1 + 2  # what is new, and without the cache both


def test_the_statistics_of_a_warm_run_are_the_same(project: Path) -> None:
    runs = {
        invoke("check", "-v", cwd=project).stderr.partition(" s\n")[0].rpartition(",")[0]
        for _ in range(2)
    }
    assert len(runs) == 1


def test_a_folder_that_is_imported(project: Path, analysed: Counter) -> None:
    (project / "parts").mkdir()
    (project / "train.py").write_text("import parts\n" + TRAIN.format(module="helper"))
    assert check(project) == check(project) == ["train.py:FSDP201"]
    assert analysed() == 1


def test_an_analysed_file_changes(project: Path, analysed: Counter) -> None:
    (project / "helper.py").write_text(HELPER + UNUSED)
    assert check(project) == ["helper.py:FSDP901", "train.py:FSDP201"]
    assert analysed() == 1


def test_an_imported_file_changes(tmp_path: Path, analysed: Counter) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(module="helper") + "# fully_shard\n")
    (tmp_path / "helper.py").write_text("from torch_tools import shard\n")
    assert check(tmp_path, "train.py") == []
    (tmp_path / "helper.py").write_text(HELPER)
    assert check(tmp_path, "train.py") == ["train.py:FSDP201"]
    assert analysed() == 2


def test_an_imported_file_appears_and_goes(tmp_path: Path, analysed: Counter) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(module="helper") + "# fully_shard\n")
    assert check(tmp_path, "train.py") == []
    (tmp_path / "helper.py").write_text(HELPER)
    assert check(tmp_path, "train.py") == ["train.py:FSDP201"]
    (tmp_path / "helper.py").unlink()
    assert check(tmp_path, "train.py") == []
    assert analysed() == 3


def test_another_file_changes(project: Path, analysed: Counter) -> None:
    (project / "other.py").write_text(CLEAN)
    assert check(project) == ["train.py:FSDP201"]
    (project / "plain.py").write_text("x = 1\n")
    assert check(project) == ["train.py:FSDP201"]
    assert analysed() == 1


def test_settings_change(project: Path, analysed: Counter) -> None:
    assert check(project, "--ignore", "FSDP201") == []
    (project / "fsdp2lint.toml").write_text("ignore = ['FSDP201']\n")
    assert check(project) == []
    (project / "fsdp2lint.toml").write_text("[knowledge]\nshards = ['helper.shard']\n")
    assert check(project) == ["train.py:FSDP201"]
    assert analysed() == 2  # the second asks for the same as the first


def test_what_was_passed_matters(project: Path, analysed: Counter) -> None:
    (project / "helper.py").write_text(HELPER + UNUSED)
    assert check(project, "train.py") == ["train.py:FSDP201"]
    assert check(project, "./train.py", "helper.py") == ["helper.py:FSDP901", "train.py:FSDP201"]


def test_the_tool_changes(
    project: Path, analysed: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "tool_mark", lambda: "another")
    check(project)
    assert analysed() == 1


def test_the_mark_of_the_tool_knows_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsdp2lint

    marks = set()
    (tmp_path / "a" / "sub").mkdir(parents=True)
    monkeypatch.setattr(fsdp2lint, "__path__", [str(tmp_path / "a")])
    for name, text in (("a/x.py", ""), ("a/x.py", "1"), ("a/sub/y.py", ""), ("a/z.txt", "")):
        (tmp_path / name).write_text(text)
        marks.add(cache.tool_mark.__wrapped__())
    assert len(marks) == 3


def test_entries_that_are_broken(project: Path, analysed: Counter) -> None:
    (folder,) = (f for f in (project / CACHE_FOLDER).iterdir() if f.is_dir())
    for entry in folder.iterdir():
        for raw in (b"", b"\xff\x00garbage", entry.read_bytes()[:-9]):
            entry.write_bytes(raw)
            assert check(project) == ["train.py:FSDP201"]
    assert analysed() > 0


def entries(project: Path) -> list[Path]:
    """Every file that holds something kept, of each kind."""
    folder = project / CACHE_FOLDER / __version__
    found = sorted(folder.iterdir())
    kinds = {path.name.partition("-")[0] for path in found}
    assert {"files", "rules"} < kinds
    assert len(kinds) >= 4  # a plan and a report besides
    return found


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A project of which every kind of entry is kept."""
    long_ago = time.time() - 100
    for number in range(70):
        (tmp_path / f"x{number}.py").write_text("x = 1\n")
        os.utime(tmp_path / f"x{number}.py", (long_ago, long_ago))
    (tmp_path / "train.py").write_text(TRAIN.format(module="helper"))
    (tmp_path / "helper.py").write_text(HELPER)
    assert check(tmp_path) == ["train.py:FSDP201"]
    return tmp_path


def test_no_flipped_bit_is_believed(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bit of every kind of file: the entry counts as missing. (Of a long one, those of some bytes.)"""
    monkeypatch.chdir(filled)
    store = Cache(CACHE_FOLDER)
    every = bool(os.environ.get("FSDP2LINT_EVERY_BIT"))
    for path in entries(filled):
        raw = path.read_bytes()
        assert store._read(path.name) == raw[32:]
        handle = os.open(path, os.O_WRONLY)
        places = [*range(0, len(raw), 1 + len(raw) // 4096), *range(64), len(raw) - 1]
        if every:
            places = list(range(len(raw)))
        for at in places:
            for bit in range(8) if every or len(raw) < 16_384 or at < 64 else (at % 8,):
                os.pwrite(handle, bytes([raw[at] ^ (1 << bit)]), at)
                assert store._read(path.name) is None, (path.name, at, bit)
            os.pwrite(handle, raw[at : at + 1], at)
        os.close(handle)
        assert store._read(path.name) == raw[32:]
        for length in range(0, len(raw), 1 + len(raw) // 512):
            path.write_bytes(raw[:length])
            assert store._read(path.name) is None
        path.write_bytes(raw)


def test_a_flipped_bit_changes_no_report(filled: Path) -> None:
    for path in entries(filled):
        raw = path.read_bytes()
        for at in (0, 31, 32, 33, len(raw) // 2, len(raw) - 1):
            path.write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
            assert check(filled) == ["train.py:FSDP201"], (path.name, at)


def test_an_entry_under_another_name_is_none(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean report in place of one with findings."""
    monkeypatch.chdir(filled)
    store = Cache(CACHE_FOLDER)
    one, other, *_ = entries(filled)
    one.write_bytes(other.read_bytes())
    assert store._read(one.name) is None
    assert check(filled) == ["train.py:FSDP201"]


def test_what_another_user_has_kept_is_none(
    project: Path, analysed: Counter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A cache that was packed with a project, or planted in it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert check(project) == ["train.py:FSDP201"]
    assert analysed() == 1
    assert check(project) == ["train.py:FSDP201"]
    assert analysed() == 0


def test_a_folder_that_the_user_names_can_be_carried_away(
    project: Path, analysed: Counter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for home, wanted in (("one", 1), ("other", 0)):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / home))
        assert check(project, "--cache-dir", "kept") == ["train.py:FSDP201"]
        assert analysed() == wanted


@pytest.mark.skipif(sys.platform == "win32", reason="modes and links")
def test_only_the_owner_reads_and_no_link_is_followed(project: Path, tmp_path: Path) -> None:
    for path in (*entries_of(project), tmp_path / CACHE_FOLDER):
        assert path.stat().st_mode & 0o077 == 0, path
    (outside := tmp_path / "outside").mkdir()
    for path in entries_of(project):  # an entry that is a link
        target = outside / path.name
        target.write_bytes(b"mine")
        path.unlink()
        path.symlink_to(target)
    assert check(project) == ["train.py:FSDP201"]
    assert {p.read_bytes() for p in outside.iterdir()} == {b"mine"}
    before = sorted(outside.iterdir())
    for link in (
        project / CACHE_FOLDER / __version__,
        project / CACHE_FOLDER,
    ):  # a folder that is one
        link.rename(tmp_path / f"moved-{link.name}")
        link.symlink_to(outside)
        assert check(project) == ["train.py:FSDP201"]
        link.unlink()
        (tmp_path / f"moved-{link.name}").rename(link)
    assert sorted(outside.iterdir()) == before


def entries_of(project: Path) -> list[Path]:
    return sorted((project / CACHE_FOLDER / __version__).iterdir())


def test_a_configuration_names_no_folder_outside_of_its_project(tmp_path: Path) -> None:
    (project := tmp_path / "project").mkdir()
    (project / "x.py").write_text(LATE)
    (project / "fsdp2lint.toml").write_text("cache-dir = '../kept'\n")
    (line,) = misconfigured(project)
    assert "fsdp2lint.toml:1: `cache-dir`" in line
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("flag", ["-n", "--no-cache"])
def test_without(project: Path, analysed: Counter, flag: str) -> None:
    assert check(project, flag) == ["train.py:FSDP201"]
    assert analysed() == 1


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.py").write_text(CLEAN)
    check(tmp_path)
    assert (tmp_path / CACHE_FOLDER / ".gitignore").read_text() == "*\n"
    for args, named in ((["--cache-dir", "a"], {}), ([], {"FSDP2LINT_CACHE_DIR": "b"})):
        invoke("check", *args, cwd=tmp_path, **named)
    (tmp_path / "fsdp2lint.toml").write_text("cache-dir = 'c'\n")
    invoke("check", cwd=tmp_path)
    assert all((tmp_path / name).is_dir() for name in "abc")


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(LATE)
    (tmp_path / CACHE_FOLDER).write_text("a file, not a folder")
    assert check(tmp_path) == ["x.py:FSDP201"]


def test_nothing_is_kept_of_files_without_fsdp(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("x = 1\n")
    check(tmp_path)
    assert not (tmp_path / CACHE_FOLDER).exists()


def test_many_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long_ago = time.time() - 100
    for number in range(100):
        (tmp_path / f"x{number}.py").write_text("x = 1\n")
        os.utime(tmp_path / f"x{number}.py", (long_ago, long_ago))
    check(tmp_path)
    reads: list[str] = []
    plain = files.read

    def reading(path: str) -> bytes:
        reads.append(path)
        return plain(path)

    monkeypatch.setattr("fsdp2lint.system.files.read", reading)
    (tmp_path / "x7.py").write_text(LATE)
    assert check(tmp_path) == ["x7.py:FSDP201"]
    assert {Path(p).name for p in reads if p.endswith(".py")} >= {"x7.py"}
    reads.clear()
    assert check(tmp_path) == ["x7.py:FSDP201"]
    assert {Path(p).name for p in reads if p.endswith(".py")} == {"x7.py"}


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path) -> None:
    """Within the clock's grain a second change of the same length leaves the same time."""
    store = Cache(str(tmp_path / "cache"))
    file = tmp_path / "x.py"
    file.write_text("x = 1\n")
    store.learn(str(file), b"x = 1\n", relevant=False)
    assert store.known(str(file)) is None


def test_too_many_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_ENTRIES", 3)
    store = Cache(str(tmp_path))
    for number in range(6):
        store.put(Question("unit", Settings(), [(str(number), "")]), {}, {}, b"")
    store.trim()
    assert len(list((tmp_path / __version__).iterdir())) == 3


def test_fixing_is_never_out_of_the_cache(project: Path) -> None:
    (project / "helper.py").write_text(HELPER + UNUSED)
    check(project)
    shown = invoke("check", "--fix", "-f", "concise", cwd=project)
    assert "Fixed 1 finding." in shown.stdout
    assert (project / "helper.py").read_text() == HELPER + "x = 1\n"
    assert check(project) == ["train.py:FSDP201"]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.py")).write_text(LATE)
    except OSError:
        pytest.skip("this file system refuses such names")
    for _ in range(2):
        assert check(tmp_path) == ["caf\\xe9.py:FSDP201"]


def test_settings_are_checked_without_libcst_the_second_time(tmp_path: Path) -> None:
    """A hook that is passed a file without FSDP, in a project that has a configuration."""
    (tmp_path / "x.py").write_text("x = 1\n")
    (tmp_path / "fsdp2lint.toml").write_text("select = ['FSDP2']\n")
    code = (
        "import sys; from fsdp2lint.cli import main\n"
        "sys.argv = ['fsdp2lint', 'check', 'x.py']\n"
        "try: main()\n"
        "except SystemExit as e: assert e.code == 0, e.code\n"
        "print('libcst' in sys.modules)\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        ).stdout.splitlines()[-1]
        for _ in range(2)
    ]
    assert said == ["True", "False"]


@pytest.mark.parametrize(
    "format_", ["full", "concise", "json", "sarif", "github", "gitlab", "junit"]
)
def test_a_warm_run_does_not_import_libcst(tmp_path: Path, format_: str) -> None:
    """In a fresh process, with findings to show."""
    (tmp_path / "train.py").write_text(TRAIN.format(module="helper"))
    (tmp_path / "helper.py").write_text(HELPER + UNUSED)
    program("check", cwd=tmp_path)
    code = (
        "import sys; from fsdp2lint.cli import main\n"
        f"sys.argv = ['fsdp2lint', 'check', '-f', {format_!r}]\n"
        "try: main()\n"
        "except SystemExit as e: assert e.code == 1, e.code\n"
        "heavy = {'libcst', 'rich', 'torch', 'pathspec'}\n"
        "loaded = {m for m in sys.modules if m.split('.')[0] in heavy or m.startswith('fsdp2lint.rules')}\n"
        "assert not loaded, sorted(loaded)[:5]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "FSDP901" in done.stdout


def test_blocks_of_documents_are_kept(tmp_path: Path, analysed: Counter) -> None:
    """Each by itself, while it stands where it stood; with what it imports."""
    (tmp_path / "helper.py").write_text(HELPER)
    program = "# shards by fully_shard\n" + TRAIN.format(module="helper")
    quoted = "".join(f"> {line}\n" for line in program.splitlines())
    guide = tmp_path / "guide.md"
    guide.write_text(f"# One\n\n> ```py\n{quoted}> ```\n\n```python\n{LATE}```\n")
    plain = document(tmp_path, "-n")
    assert plain.count("error[FSDP201]") == 2
    analysed()
    for wanted in (3, 0):  # two blocks and the helper
        assert document(tmp_path) == plain
        assert analysed() == wanted
    guide.write_text("# Above\n\n" + guide.read_text())
    moved = document(tmp_path)
    assert analysed() == 2
    assert moved == document(tmp_path, "-n") != plain
    analysed()
    guide.write_text(guide.read_text() + "\nBelow.\n")
    assert document(tmp_path) == moved
    assert analysed() == 0
    (tmp_path / "helper.py").write_text(HELPER.replace("fully_shard", "other"))
    assert document(tmp_path).count("error[FSDP201]") == 1
    assert analysed() == 3  # the second block knows the imports of the first
    assert "Fixed 1 finding." in document(tmp_path, "--fix", "--unsafe-fixes")
    assert guide.read_text().startswith("# Above\n\n# One\n")


def document(folder: Path, *args: str) -> str:
    return invoke("check", "-j1", "--extension", "md:markdown", *args, cwd=folder).stdout


def test_notebooks_are_kept(tmp_path: Path, analysed: Counter) -> None:
    notebooks.written(tmp_path / "n.ipynb")
    plain = invoke("check", "-n", cwd=tmp_path).stdout
    assert "n.ipynb:cell 3:3:13" in plain
    analysed()
    for wanted in (1, 0):
        assert invoke("check", cwd=tmp_path).stdout == plain
        assert analysed() == wanted


def test_kept_documents_take_no_parser(tmp_path: Path) -> None:
    (tmp_path / "guide.md").write_text(f"```python\n{LATE}```\n")
    notebooks.written(tmp_path / "n.ipynb")
    code = (
        "import sys; sys.argv = ['fsdp2lint', 'check', '--extension', 'md:markdown']\n"
        "from fsdp2lint.cli import main\n"
        "try: main()\n"
        "except SystemExit as e: print(e.code, 'libcst' in sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        ).stdout.splitlines()[-1]
        for _ in range(2)
    ]
    assert said == ["1 True", "1 False"]
