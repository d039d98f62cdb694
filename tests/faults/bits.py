"""Flip every bit of every kind of file that the cache holds: none is believed, no report is another.

``python -m tests.faults.bits`` flips them all, ``--every N`` only those of every Nth byte. Each flip is read as a
run would read it, and must count as missing; for one in ``--check`` of them (1,000) the whole of ``check`` is run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from fsdp2lint import __version__
from fsdp2lint.check.cache import Cache, Question
from fsdp2lint.cli.sessions import CACHE_FOLDER
from fsdp2lint.system.home import SECRET, own_folder
from tests.cli.test_git import HELPER, TRAIN
from tests.config.test_config import LATE
from tests.support.running import invoke


class Flips(NamedTuple):
    """What came of the bits of one file."""

    name: str
    size: int
    flipped: int
    checked: int
    """For how many of them ``check`` was run."""
    bad: list[str]


def fill(folder: Path) -> str:
    """A project of which every kind of entry is kept, by every command that keeps any; its report."""
    long_ago = time.time() - 100
    for number in range(70):
        file = folder / f"x{number}.py"
        file.write_text("x = 1\n")
        os.utime(file, (long_ago, long_ago))
    (folder / "train.py").write_text(TRAIN.format(module="helper"))
    (folder / "helper.py").write_text(HELPER)
    cell: dict[str, object] = {
        "cell_type": "code",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": LATE,
    }
    book = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "book.ipynb").write_text(json.dumps(book))
    (folder / "notes.md").write_text(f"```python\n{LATE}```\n")
    settings = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_sharding_strategy: FULL_SHARD\n"
    (folder / "accelerate.yaml").write_text(settings)
    invoke("check", "-j1", "notes.md", cwd=folder)
    invoke("check", "-j1", "--diff", cwd=folder)
    invoke("baseline", "create", "--baseline", "elsewhere.json", cwd=folder)
    return report(folder)


def report(folder: Path) -> str:
    """What ``check`` prints, and its exit code."""
    done = invoke("check", "-j1", "-f", "json", cwd=folder)
    return f"{done.returncode} {done.stdout} {done.stderr}"


def entries(folder: Path) -> list[Path]:
    """Every file that the commands have kept, whatever its kind: the list is that of the folder."""
    found = [path for path in (folder / CACHE_FOLDER).rglob("*") if path.is_file()]
    return sorted(path for path in found if path.parent.name == __version__)


def kinds(folder: Path) -> dict[str, set[str]]:
    """The kinds of entries that the commands keep, as the cache itself is asked for them, each with its files."""
    asked: dict[str, set[str]] = {}
    write, put = Cache._write, Cache.put

    def written(cache: Cache, name: str, raw: bytes) -> None:
        asked.setdefault(current[-1] if current else name.partition("-")[0], set()).add(name)
        write(cache, name, raw)

    def kept(cache: Cache, question: Question, *given: Any) -> None:
        current.append(question.kind)
        put(cache, question, *given)
        current.pop()

    current: list[str] = []
    with mock.patch.object(Cache, "_write", written), mock.patch.object(Cache, "put", kept):
        fill(folder)
    return asked


def flip(folder: Path, wanted: str, every: int, check: int) -> Iterator[Flips]:
    """Flip the bits of each entry of a project, and of the secret by which entries are proven."""
    home = own_folder()
    assert home is not None
    os.chdir(folder)
    store = Cache(CACHE_FOLDER)
    for path in (*entries(folder), Path(home, SECRET)):
        kept, bad, count, checked = path.read_bytes(), list[str](), 0, 0
        for at in range(0, len(kept), every):
            for bit in range(8):
                _put(path, at, kept[at] ^ 1 << bit)
                count += 1
                if path.name != SECRET and store._read(path.name) is not None:
                    bad.append(f"bit {bit} of byte {at} is believed")
                if count % check == 1 % check:
                    checked += 1
                    if report(folder) != wanted:
                        bad.append(f"bit {bit} of byte {at} changes the report")
                    path.write_bytes(kept)  # it was made anew
            _put(path, at, kept[at])
        yield Flips(path.name, len(kept), count, checked, bad)


def _put(path: Path, at: int, byte: int) -> None:
    handle = os.open(path, os.O_WRONLY)
    os.pwrite(handle, bytes([byte]), at)
    os.close(handle)


def main() -> int:
    """Flip them and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, metavar="N")
    parser.add_argument("--check", type=int, default=1_000, metavar="N")
    given = parser.parse_args()
    flipped = checked = bad = 0
    quick = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fsdp2lint-bits-", dir=quick) as work:
        os.environ["XDG_STATE_HOME"] = str(Path(work) / "home")
        folder = Path(work) / "project"
        folder.mkdir()
        wanted = fill(folder)
        for one in flip(folder, wanted, given.every, given.check):
            flipped, checked, bad = flipped + one.flipped, checked + one.checked, bad + len(one.bad)
            print(
                f"{one.name:40}{one.size:8} bytes{one.flipped:9} flips{one.checked:6} checked{len(one.bad):5} bad"
            )
            for line in one.bad[:10]:
                print(f"    {line}")
        os.chdir("/")
    print(f"{flipped} flips, {checked} times checked, {bad} bad")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
