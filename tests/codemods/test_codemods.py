"""Every codemod on its fixtures: the text that comes out, the account of it, and that it is done in one go.

A case is a folder ``fixtures/codemods/<codemod>/<case>/`` with ``before.py`` and ``after.py``, or with the
folders ``before/`` and ``after/``, and ``ledger.txt``. A first line ``# options: …`` in (the first file
of) ``before`` gives flags of ``migrate``. ``pytest --bless`` writes ``after`` and ``ledger.txt``
for the author to read.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fsdp2lint.ask.program import Options
from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.declare import CODEMOD_SECTIONS, Codemod
from fsdp2lint.migrate.engine import Migration, migrate
from fsdp2lint.migrate.ledger import Entry
from fsdp2lint.source.reading import read as read_source
from fsdp2lint.source.source import Source
from tests.support.examples import example

FIXTURES = Path(__file__).parents[2] / "fixtures" / "codemods"
CASES = sorted(p for p in FIXTURES.glob("*/*") if p.is_dir())
EACH_CASE = pytest.mark.parametrize("case", CASES, ids=lambda p: f"{p.parent.name}/{p.name}")
EACH_CODEMOD = pytest.mark.parametrize("codemod", knowledge.codemods(), ids=lambda c: c.name)


def files(root: Path) -> list[Path]:
    """The files of one side of a case."""
    single = root.with_suffix(".py")
    return [single] if single.is_file() else sorted(root.rglob("*.py"))


def read(root: Path) -> tuple[Source, ...]:
    """The sources of one side of a case."""
    return tuple(read_source(path) for path in files(root))


def texts(root: Path) -> tuple[Source, ...]:
    """The files of one side of a case that are no Python."""
    found = sorted(p for p in root.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc"))
    return tuple(Source(str(path), path.read_text("utf-8")) for path in found)


def options_of(sources: tuple[Source, ...]) -> Options:
    """The options that the first line of a case asks for."""
    first = sources[0].text.partition("\n")[0]
    options = Options()
    words = first.partition("# options:")[2].split()
    while words:
        flag = words.pop(0)
        if flag == "--async-save":
            options = replace(options, async_save=True)
        elif flag == "--target-torch":
            major, minor = words.pop(0).split(".")
            options = replace(options, target_torch=(int(major), int(minor)))
        elif flag == "--checkpoints":
            options = replace(options, checkpoints="full" if words.pop(0) == "full" else "dcp")
        elif flag == "--launch":
            options = replace(options, launch="keep" if words.pop(0) == "keep" else "torchrun")
    return options


def alone(codemod: Codemod, root: Path) -> Migration:
    """What one codemod makes of one side of a case."""
    sources = read(root)
    roots = [Path(sources[0].path).parent]
    options = options_of(sources)
    return migrate(sources, [codemod], roots, options, whole=False, texts=texts(root))


def codemod_of(case: Path) -> Codemod:
    return next(c for c in knowledge.codemods() if c.name == case.parent.name.replace("_", "-"))


def told(entry: Entry, case: Path) -> str:
    path = Path(entry.path).relative_to(case).as_posix()
    todo = f" TODO {entry.todo}" if entry.todo else ""
    why = entry.why.replace(f"{case}/", "")
    where = f"{path}:{entry.line}:{entry.column}"
    return f"{where} {entry.kind} {entry.symbol}: {entry.fate}: {why}{todo}\n"


@EACH_CASE
def test_what_comes_out(case: Path, request: pytest.FixtureRequest) -> None:
    made = alone(codemod_of(case), case / "before")
    assert made.failures == []
    ledger = "".join(told(e, case) for e in made.ledger.entries if e.fate != "open")
    if request.config.getoption("--bless"):
        bless(case, made, ledger)
    expected = (*read(case / "after"), *texts(case / "after"))
    wanted = {Path(s.path).relative_to(case).as_posix(): s.text for s in expected}
    got = {
        Path(s.path).relative_to(case).as_posix().replace("before", "after", 1): s.text
        for s in made.after
    }
    assert got == wanted
    assert ledger == (case / "ledger.txt").read_text("utf-8")


@EACH_CASE
def test_the_line_ends_of_the_file_stay(case: Path) -> None:
    """Whatever comes in, also what is copied from several lines, ends them as the file does."""
    sources = read(case / "before")
    if any("\r" in one.text for one in sources):
        pytest.skip("it has line ends of Windows already")
    windows = [one.with_text(one.text.replace("\n", "\r\n")) for one in sources]
    roots = [Path(sources[0].path).parent]
    known = texts(case / "before")
    options = options_of(sources)
    made = migrate(windows, [codemod_of(case)], roots, options, whole=False, texts=known)
    wanted = {Path(s.path).relative_to(case).as_posix(): s.text for s in read(case / "after")}
    for one in made.after:
        if one.path.endswith(".py"):
            path = Path(one.path).relative_to(case).as_posix().replace("before", "after", 1)
            assert one.text == wanted[path].replace("\n", "\r\n")


def bless(case: Path, made: Migration, ledger: str) -> None:
    if (case / "after").is_dir():
        shutil.rmtree(case / "after")
    for source in made.after:
        path = Path(source.path).relative_to(case).as_posix().replace("before", "after", 1)
        (case / path).parent.mkdir(parents=True, exist_ok=True)
        (case / path).write_text(source.text, "utf-8")
    (case / "ledger.txt").write_text(ledger, "utf-8")


@EACH_CASE
def test_it_changes_nothing_again(case: Path) -> None:
    assert alone(codemod_of(case), case / "after").changed == []


@EACH_CODEMOD
def test_the_page(codemod: Codemod) -> None:
    headings = [line[3:] for line in codemod.page.splitlines() if line.startswith("## ")]
    assert tuple(headings) == CODEMOD_SECTIONS
    assert codemod.summary.endswith(".")
    before, after = example(codemod.section("Example"))
    sources = (Source("train.py", before.text),)
    made = migrate(sources, [codemod], (), options_of(sources), whole=False)
    assert made.failures == []
    assert made.after[0].text == after.text


@EACH_CODEMOD
def test_a_codemod_has_fixtures(codemod: Codemod) -> None:
    assert list((FIXTURES / codemod.name.replace("-", "_")).glob("*/ledger.txt"))
