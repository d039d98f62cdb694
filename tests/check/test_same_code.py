"""After an edit that Python does not notice, what was found stands elsewhere and is not looked for again."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp2lint.check.same_code import moves
from tests.cli.test_git import HELPER, TRAIN
from tests.evidence.header import Fixture
from tests.support.mending import bad_fixtures
from tests.support.running import invoke

Counter = Callable[[], int]

CALLED = "\n\ndef late(model):\n    return model\n"


def shown(folder: Path, *more: str) -> str:
    """All that is known of a folder."""
    ran = invoke("check", "-f", "json", "-v", "-j1", *more, cwd=folder)
    assert ran.returncode in (0, 1), ran.stderr
    return ran.stdout + re.sub(r"[\d.]+ s\b", "", ran.stderr)


@pytest.fixture
def project(tmp_path: Path, analysed: Counter) -> Path:
    """A program and its helper, checked once."""
    (tmp_path / "train.py").write_text(TRAIN.format(module="helper"))
    (tmp_path / "helper.py").write_text(HELPER + CALLED)
    assert "FSDP201" in shown(tmp_path)
    assert analysed() == 1
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", "# what this is for\n\n"),
        ("", "\n\n\n"),
        ("def late", "# model, shard(), train\ndef late"),
        ("    return model\n", "\n    # not yet\n    return model  # as it came\n"),
        ("def late(model):", "def late(\n    model\n):"),
    ],
)
def test_nothing_is_analysed_again(project: Path, analysed: Counter, old: str, new: str) -> None:
    helper = project / "helper.py"
    text = helper.read_text()
    at = text.rindex(old) if old else 0
    helper.write_text(text[:at] + new + text[at + len(old) :])
    after = shown(project)
    assert analysed() == (1 if "(\n" in new else 0), "breaks of lines inside brackets are code"
    assert shown(project) == after == shown(project, "-n")
    helper.write_text(text)
    assert shown(project) == shown(project, "-n")


@pytest.mark.parametrize(
    "added",
    [
        "x = 1\n",
        "# fsdp2lint: ignore[FSDP201]\n",
        "'''a text'''\n",
        "use(  # what it is\n    1\n)\n",
        "def broken(:\n",
    ],
)
def test_what_may_matter_is_analysed_again(project: Path, analysed: Counter, added: str) -> None:
    helper = project / "helper.py"
    helper.write_text(helper.read_text() + added)
    after = shown(project)
    assert analysed() == 1
    assert after == shown(project, "-n")


def test_a_comment_beside_a_finding_is_analysed_again(project: Path, analysed: Counter) -> None:
    train = project / "train.py"
    train.write_text(train.read_text().replace("\n", "  # why\n").replace("(  # why", "("))
    assert shown(project) == shown(project, "-n")
    assert analysed() == 2


def test_a_comment_that_silences_goes_along_with_its_line() -> None:
    old = b"a = 1\n\n# fsdp2lint: ignore\nb = 2\n"
    assert moves(old, b"# more\n" + old) is not None
    assert moves(old, old.replace(b"ignore\n", b"ignore\n\n")) is None
    assert moves(old, old.replace(b"\n\n", b"\n\n\n")) is None
    assert moves(old, old.replace(b"ignore", b"ignore[FSDP201]")) is None


def test_places_of_tokens_move() -> None:
    found = moves(b"a = 1\nb = f(2)\n", b"a = 1  # one\n\n# two\nb = f(2)\n")
    assert found is not None
    assert found.spots[2, 5] == (4, 5)
    assert found.lines == {1: 1, 2: 4}
    assert found.shifts
    assert moves(b"a = '#'\n", b"a = '# b'\n") is None
    assert moves(b"if a:\n    b\nc\n", b"if a:\n    b\n    c\n") is None


FIXTURES = random.Random(5).sample(bad_fixtures(), 24)


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda one: one.path.stem)
def test_the_same_is_said_as_without_a_cache(fixture: Fixture, tmp_path: Path) -> None:
    """A law: whatever comments come and go, warm and cold say the same."""
    chance = random.Random(str(fixture.path.name))
    copies = [Path(shutil.copy(one, tmp_path)) for one in fixture.files]
    shown(tmp_path)
    for _ in range(3):
        file = chance.choice(copies)
        lines = file.read_text().splitlines(keepends=True)
        more = chance.choice(["# optimizer.step() follows\n", "\n", "    # FSDP: yield\n"])
        for at in sorted(chance.sample(range(len(lines) + 1), 2)):
            lines.insert(at, more)
        file.write_text("".join(lines))
        assert shown(tmp_path) == shown(tmp_path, "-n")
