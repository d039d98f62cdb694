"""What keeps the program fast, counted and not timed: imports, parses, steps, and what is let go."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import libcst as cst
import pytest

from fsdp2lint.check.runner import Batch, check
from fsdp2lint.config.settings import Settings
from fsdp2lint.interpret.entries import traces
from fsdp2lint.interpret.machine import MAX_STEPS, Machine
from fsdp2lint.model.basic_values import forget
from fsdp2lint.model.guards import Guard
from fsdp2lint.model.values import Part
from fsdp2lint.project.project import Project
from fsdp2lint.source.source import Source, Unreadable, parsing
from fsdp2lint.system.collector import no_collector
from tests.support.running import CLEAN, ROOT

HOOK = (
    "import sys, click; before = set(sys.modules)\n"
    "from fsdp2lint.cli import main\n"
    "sys.argv = ['fsdp2lint', 'check', 'plain.py']\n"
    "try: main()\n"
    "except SystemExit as e: assert e.code == 0, e.code\n"
    "print(*sorted(set(sys.modules) - before))\n"
)
"""What a hook does when a file without FSDP was changed; it prints the modules that this took."""

OURS = """
    check check.context check.coverage check.report check.runner check.session check.units
    cli cli.check cli.known cli.options cli.output cli.program cli.progress cli.sessions config config.files
    config.meant config.resolve config.settings model model.hints project project.links
    reporters reporters._paint reporters._summary reporters.full source source.prefilter
    system system.discover system.files system.gitignore system.home system.paint system.plain
"""
NOT_FOR_NOTHING = {
    "asyncio", "concurrent", "dataclasses", "difflib", "hashlib", "ipaddress", "json", "multiprocessing",
    "pathlib", "subprocess", "tempfile", "tokenize", "tomllib", "tomli", "urllib",
}  # fmt: skip
"""Modules of Python that cost as much as half of our own together."""


@pytest.mark.parametrize("state", ["", ".local/state/fsdp2lint"], ids=["new user", "used before"])
def test_what_a_file_without_fsdp_imports(tmp_path: Path, state: str) -> None:
    (tmp_path / "home" / state).mkdir(mode=0o700, parents=True)
    (tmp_path / "plain.py").write_text("import json\nx = 1\n")
    done = subprocess.run(
        [sys.executable, "-c", HOOK],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    loaded = done.stdout.splitlines()[-1].split()
    ours = {name.removeprefix("fsdp2lint.") for name in loaded if name.startswith("fsdp2lint.")}
    assert ours <= set(OURS.split())
    others = {name.partition(".")[0] for name in loaded} - {"fsdp2lint"}
    assert not others & NOT_FOR_NOTHING
    assert others <= sys.stdlib_module_names


HELPER = """

def metric_{n}(values, cfg):
    total = 0.0
    for value in values:
        if cfg.clip_{n} and value > cfg.limit:
            total += cfg.limit
        else:
            total += value
    if dist.get_rank() == 0:
        print("metric {n}", total / max(len(values), 1))
    return total
"""


def script(helpers: int) -> str:
    """A file with so many functions beside each other."""
    head = "import torch.distributed as dist\n" + CLEAN
    return head + "".join(HELPER.format(n=n) for n in range(helpers))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were parsed, each as often as it was."""
    names: list[str] = []
    plain = parsing.parse

    def parse(source: Source) -> object:
        names.append(Path(source.path).name)
        return plain(source)

    monkeypatch.setattr(parsing, "parse", parse)
    return names


def test_only_what_passed_the_prefilter_is_parsed(tmp_path: Path, parsed: list[str]) -> None:
    for number in range(30):
        (tmp_path / f"plain{number}.py").write_text("import torch\nx = 1\n")
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text(CLEAN)
    check(_all(tmp_path))
    assert sorted(parsed) == ["a.py", "b.py", "c.py"]


def test_a_library_that_only_tells_of_fsdp_is_not_parsed(tmp_path: Path, parsed: list[str]) -> None:
    """A docstring or a comment is no use of a word; a program may shard by what it imports."""
    (tmp_path / "model.py").write_text(
        '"""For FullyShardedDataParallel."""\nx = f()  # fully_shard\n'
    )
    (tmp_path / "use.py").write_text("import model\n" + CLEAN)
    (tmp_path / "train.py").write_text(
        '"""Trains with FullyShardedDataParallel."""\nif __name__ == "__main__": ...\n'
    )
    check(_all(tmp_path))
    assert sorted(parsed) == ["train.py", "use.py"]


def test_what_several_files_import_is_parsed_once(tmp_path: Path, parsed: list[str]) -> None:
    (tmp_path / "common.py").write_text("import torch\nimport a, b\ndef f(m): ...\n")
    for name in "ab":
        (tmp_path / f"{name}.py").write_text("import common\ncommon.f(1)\n" + CLEAN)
    check(_all(tmp_path))
    assert sorted(parsed) == ["a.py", "b.py", "common.py"]


def test_a_module_that_nobody_uses_is_not_parsed(tmp_path: Path, parsed: list[str]) -> None:
    for name in ("used", "unused"):
        (tmp_path / f"{name}.py").write_text("import torch\ndef f(m): ...\n")
    (tmp_path / "a.py").write_text("import used, unused\nused.f(1)\n" + CLEAN)
    check(Batch.of_files([str(tmp_path / "a.py")]))
    assert sorted(parsed) == ["a.py", "used.py"]


def test_what_a_package_hands_on_is_not_parsed_before_it_is_used(
    tmp_path: Path, parsed: list[str]
) -> None:
    """Its second importer finds the package loaded, and is still promised what it imports."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from .used import f  # torch\nfrom .unused import g\nready = 1\n"
    )
    for name, function in (("used", "f"), ("unused", "g")):
        (package / f"{name}.py").write_text(f"import torch\ndef {function}(m): ...\n")
    (tmp_path / "a.py").write_text(
        "import package\nprint(package.ready)\nfrom package import f, g\nf(1)\n" + CLEAN
    )
    check(Batch.of_files([str(tmp_path / "a.py")]))
    assert sorted(parsed) == ["__init__.py", "a.py", "used.py"]


def test_functions_that_nobody_enters_are_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that another one imports, libcst gets what runs when it is loaded, and what is called."""
    texts: list[str] = []
    plain = cst.parse_module

    def parse(text: str) -> cst.Module:
        texts.append(text)
        return plain(text)

    monkeypatch.setattr(cst, "parse_module", parse)
    body = "".join(f"    print('line {{word}} {n}')\n" for n in range(40))
    (tmp_path / "lib.py").write_text(
        "import torch\n"
        + "".join(f"def {word}(m):\n{body.format(word=word)}" for word in ("called", "idle"))
    )
    (tmp_path / "a.py").write_text("import lib\nlib.called(1)\n" + CLEAN)
    check(Batch.of_files([str(tmp_path / "a.py")]))
    assert any("line called 7" in text for text in texts)
    assert not any("line idle 7" in text for text in texts)


def test_a_file_that_only_hands_names_on_is_not_parsed(tmp_path: Path, parsed: list[str]) -> None:
    """Where ``FSDP`` comes from is read off the import lines of the files between."""
    (tmp_path / "names.py").write_text("from origin import FSDP  # torch\n")
    (tmp_path / "origin.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    )
    (tmp_path / "use.py").write_text(
        "from names import FSDP\nx = 'FullyShardedDataParallel'\ndef f(m: FSDP): ...\n"
    )
    report = check(Batch.of_files([str(tmp_path / "use.py")]), Settings(select=("FSDP113",)))
    assert [d.rule.code for d in report.found] == ["FSDP113"]
    assert "origin.py" not in parsed


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many expressions were evaluated: ``steps["taken"]``."""
    counted: Counter[str] = Counter()
    plain = Machine.eval

    def counting(self: Machine, node: object) -> object:
        counted["taken"] += 1
        return plain(self, node)  # type: ignore[arg-type]

    monkeypatch.setattr(Machine, "eval", counting)
    return counted


def test_the_steps_grow_with_the_file(steps: Counter[str]) -> None:
    counts = []
    for helpers in (40, 80, 160, 320):
        steps.clear()
        list(traces(Project.of([Source("train.py", script(helpers))])))
        counts.append(steps["taken"])
    for before, after in pairwise(counts):
        assert after < 2.1 * before


def test_the_methods_of_a_class_share_its_ration(steps: Counter[str]) -> None:
    """A class of tests has a hundred methods, each of which runs the same long helper."""
    helper = "def helper(x):\n" + "    x = x + 1\n" * 500
    methods = "".join(f"    def test_{n}(self):\n        helper({n})\n" for n in range(100))
    list(traces(Project.of([Source("test.py", f"{helper}\nclass Tests:\n{methods}")])))
    assert steps["taken"] < MAX_STEPS


def test_long_files_are_parsed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser's memory grows with the longest text that it gets: a long file is never parsed at once."""
    one = (
        "def f{0}(a):\n    b = [a, {0}]  # why\n"
        + "    b.append(a + {0})\n" * 20
        + "    return b\n\n\n"
    )
    text = "".join(one.format(number) for number in range(150))
    lengths: list[int] = []
    plain = parsing._module

    def parsed(text: str) -> cst.Module:
        lengths.append(len(text))
        return plain(text)

    monkeypatch.setattr(parsing, "_module", parsed)
    tree = Source("long.py", text).tree
    assert len(text) > parsing.LONG
    assert max(lengths) < parsing.LONG / 4
    assert tree.deep_equals(cst.parse_module(text))
    broken = Source("long.py", text + "def g():\n    x = 1\n" * 20 + "    y = = 2\n")
    with pytest.raises(Unreadable) as problem:
        broken.tree  # noqa: B018  parsed here
    assert problem.value.line == broken.text.count("\n")


def test_runs_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many files there are, the values of one or two runs are in memory."""
    for number in range(6):
        (tmp_path / f"x{number}.py").write_text(f"import x{(number + 1) % 6}\n{CLEAN}")
    alive: list[int] = []

    def forgetting(since: int) -> None:
        forget(since)
        alive.append(sum(type(one) is Machine for one in gc.get_objects()))

    monkeypatch.setattr("fsdp2lint.interpret.entries.forget", forgetting)
    gc.collect()
    with no_collector():
        check(_all(tmp_path))
    assert len(alive) == 6
    assert max(alive) == 1


def test_values_go_without_the_collector(tmp_path: Path) -> None:
    """Nothing of a run is left when it is over, although its values, guards and scopes know each other."""
    for number in range(6):
        (tmp_path / f"x{number}.py").write_text(f"import x{(number + 1) % 6}\n{CLEAN}")
    gc.collect()
    with no_collector():
        before = _parts_alive()
        check(_all(tmp_path))
        assert _parts_alive() - before < 5


def _parts_alive() -> int:
    return sum(type(one) in (Part, Guard) for one in gc.get_objects())


def _all(folder: Path) -> Batch:
    return Batch.of_files(sorted(str(path) for path in folder.glob("*.py")))
