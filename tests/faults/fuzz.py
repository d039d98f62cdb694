"""Give the program input that nobody would write, and hold it to its promises.

``python -m tests.faults.fuzz`` runs 10,000 inputs through ``check`` and 10,000 through what writes;
``--inputs N`` so many, ``--only LAW`` for one law, ``--seed N`` repeats a run, ``--corpus FOLDER`` spoils the
scripts of a folder too, ``--keep FOLDER`` keeps the inputs that break a law.

Each process takes up to 250 inputs and has a seed of its own, which is printed when something is wrong; a law
that is broken is shown with the smallest input that hypothesis finds (``--keep-going``: with every one). Each
command may use 10 s of CPU time and 500 MiB. Every tenth process is run twice, under another hash seed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.faults import inputs
from tests.faults.inputs import Input
from tests.support.running import ROOT

SECONDS = 10
MIB = 500
AT_ONCE = 250
"""Inputs of one process."""

TRAINED = b"import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(torch.nn.Linear(4, 4))\n"
"""A script that stands beside a settings file."""


class Broken(AssertionError):
    """A promise is not kept."""


class Said(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


class Cost:
    """The most that one command has taken in this process."""

    seconds = 0.0
    mib = 0.0


def run(*words: str) -> Said:
    """A command, within its time and memory.

    Raises:
        Broken: it raised, or took too much memory; too much time ends the process.
    """
    from fsdp2lint.cli.program import program

    started = time.process_time()
    _forget_memory()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        done = CliRunner().invoke(program, list(words), standalone_mode=False)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    Cost.seconds = max(Cost.seconds, time.process_time() - started)
    used = _memory()
    Cost.mib = max(Cost.mib, used)
    out, err = (raw.decode("utf-8") for raw in (done.stdout_bytes, done.stderr_bytes))
    if isinstance(done.exception, click.ClickException):
        return Said(2, out, f"Error: {done.exception.format_message()}")
    if done.exception is not None:
        raise Broken(f"{words}: {done.exception!r}") from done.exception
    if used > MIB:
        raise Broken(f"{words}: {used:.0f} MiB")
    code = done.return_value if isinstance(done.return_value, int) else 0
    return Said(code, out, err)


def sound(said: Said, *, may_refuse: bool = False) -> Said:
    """What a command may say of any input: findings, or one line, never that it failed."""
    whole = said.out + said.err
    if "Traceback" in said.err or "FSDP999" in whole or "itself failed" in whole:
        raise Broken(f"it failed: {_about_failure(whole)}")
    if re.search(r"^[\w-]+ failed: \w+", whole, re.MULTILINE):
        raise Broken(f"a codemod failed: {_about_failure(whole)}")
    if said.code not in (0, 1) and not may_refuse:
        raise Broken(f"exit code {said.code}: {said.err[-300:]}")
    return said


def _about_failure(text: str) -> str:
    lines = [line for line in text.splitlines() if "FSDP999" in line or "failed" in line]
    return " | ".join(lines)[:600] or text[-600:]


# -- laws -----------------------------------------------------------------------------------------------------------


def check(folder: Path, one: Input, more: bool) -> str:
    """The report is JSON, the same again, and the same out of the cache."""
    words = ("check", "-j1", "-f", "json", one.name)
    first = sound(run(*words, "-n"))
    json.loads(first.out)
    again = run(*words, "--cache-dir", "cache")
    if again != first:
        raise Broken(f"another report the second time: {_differing(first.out, again.out)}")
    if more and run(*words, "--cache-dir", "cache") != first:
        raise Broken("another report out of the cache")
    return first.out


def fix(folder: Path, one: Input, unsafe: bool) -> str:
    """The file becomes what ``--diff`` shows, and then stays as it is."""
    words = ("check", "-n", "-j1", one.name, *["--unsafe-fixes"] * unsafe)
    shown = sound(run(*words, "--diff"))
    sound(run(*words, "--fix", "-q"))
    changed = _kept(folder, one, shown.out)
    sound(run(*words, "--fix", "-q"))
    _must(changed == (folder / one.name).read_bytes(), "a second --fix changes more")
    return _digest(changed)


def migrate(folder: Path, one: Input, more: bool) -> str:
    """The same of ``migrate``."""
    words = ("migrate", one.name, *["--launch", "torchrun", "--checkpoints", "full"] * more)
    shown = sound(run(*words), may_refuse=True)
    done = run(*words, "--write", "--allow-no-git", "-q")
    if shown.code == 2 or done.code == 2:
        _must(
            shown.code == done.code,
            f"a dry run ends with {shown.code}, a real one with {done.code}",
        )
        _must((folder / one.name).read_bytes() == one.raw, "it is refused, and changed")
        return shown.err
    sound(done)
    changed = _kept(folder, one, shown.out)
    sound(run(*words, "--write", "--allow-no-git", "-q"))
    _must(changed == (folder / one.name).read_bytes(), "a second --write changes more")
    return _digest(changed)


def notebook(folder: Path, one: Input, more: bool) -> str:
    """Of a notebook nothing but the sources of its cells changes."""
    before = _without_sources(one.raw)
    found = check(folder, one, False)
    for law in (fix, migrate):
        inputs.written([one], folder)
        law(folder, one, more)
        _must(
            before == _without_sources((folder / one.name).read_bytes()),
            "more than sources changed",
        )
    return found


def configuration(folder: Path, one: Input, more: bool) -> str:
    """A settings file is migrated, or refused, or left alone; one of the tool is read, or refused in words."""
    (folder / "train.py").write_bytes(TRAINED)
    found = sound(run("check", "-n", "-j1", "-f", "json", "."), may_refuse=True)
    if one.name == "train.py":
        return found.out
    (folder / "train.py").unlink()
    words = ("migrate", ".", "-q")
    first = sound(run(*words), may_refuse=True)
    done = sound(run(*words, "--write", "--allow-no-git"), may_refuse=True)
    changed = (folder / one.name).read_bytes()
    if done.code == 2:
        _must(changed == one.raw, f"it is refused, and changed: {first.err}")
    _same_ends(one.raw, changed)
    sound(run(*words, "--write", "--allow-no-git"), may_refuse=True)
    _must(changed == (folder / one.name).read_bytes(), "a second --write changes more")
    return found.out + _digest(changed)


Law = Callable[[Path, Input, bool], str]

LAWS: dict[str, tuple[Law, Callable[[Sequence[str]], st.SearchStrategy[Input]]]] = {
    "check": (check, inputs.scripts),
    "fix": (lambda f, i, _: fix(f, i, False), inputs.scripts),
    "unsafe-fix": (lambda f, i, _: fix(f, i, True), inputs.scripts),
    "migrate": (migrate, inputs.scripts),
    "notebook": (notebook, inputs.notebooks),
    "settings": (configuration, lambda _: inputs.settings_files(inputs.settings_corpus())),
}
WRITING = {"fix": 0.2, "unsafe-fix": 0.3, "migrate": 0.3, "notebook": 0.1, "settings": 0.1}
"""What writes, and which part of the inputs each gets."""


def _kept(folder: Path, one: Input, diff: str) -> bytes:
    """The new bytes, of which all is as it was that the diff does not show."""
    changed = (folder / one.name).read_bytes()
    _same_ends(one.raw, changed)
    _must(changed == one.raw or bool(diff.strip()), "it changed what no diff shows")
    old, new = _text(one.raw), _text(changed)
    if old is None or new is None:
        _must(old is new or changed == one.raw, "what cannot be decoded was changed")
    elif one.name.endswith(".py"):
        if _plain(old) and _plain(new):
            _must(_patched(old, diff) == new, "it writes something else than its diff shows")
        if _parses(one.raw):
            _must(_parses(changed), "the new text does not parse")
    return changed


def _must(right: bool, why: str) -> None:
    if not right:
        raise Broken(why)


def _digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=8).hexdigest()


def _differing(one: str, other: str) -> str:
    pairs = zip(one.splitlines(), other.splitlines(), strict=False)
    return next((f"{a} / {b}" for a, b in pairs if a != b), f"{len(one)} / {len(other)} characters")


def _same_ends(old: bytes, new: bytes) -> None:
    """A file keeps its kind of line ends, its mark of the encoding and its last byte."""
    if old == new:
        return
    for end in (b"\r\n", b"\n"):
        usual = old.count(b"\n") == old.count(b"\r\n") * (end == b"\r\n")
        if usual and b"\n" in old and b"\0" not in old:
            _must(
                new.count(b"\n") == new.count(b"\r\n") * (end == b"\r\n"),
                "another kind of line ends",
            )
    _must(old[:3] == b"\xef\xbb\xbf" or new[:3] != b"\xef\xbb\xbf", "a mark of UTF-8 is new")
    _must(new[:3] == b"\xef\xbb\xbf" or old[:3] != b"\xef\xbb\xbf", "the mark of UTF-8 is gone")


def _text(raw: bytes) -> str | None:
    try:
        code, _ = tokenize.detect_encoding(BytesIO(raw).readline)
        return raw.decode(code)
    except (SyntaxError, UnicodeError, LookupError, ValueError):
        return None


def _plain(text: str) -> bool:
    """Whether a diff shows the text as it is: nothing in it is escaped on its way to a terminal."""
    lines = text.replace("\r\n", "").replace("\n", "").replace("\t", "")
    return lines.isprintable() and "::" not in text and "##[" not in text


_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NO_END = "\\ No newline at end of file"


def _patched(text: str, diff: str) -> str:
    """The text with the hunks of a diff applied, each where it says."""
    old, made, at = re.findall(r"[^\n]*\n|[^\n]+", text), list[str](), 0
    lines = diff.split("\n")
    while lines and not lines[0].startswith("--- a/"):
        lines.pop(0)
    del lines[:2]
    while lines and (hunk := _HUNK.fullmatch(lines[0])):
        lines.pop(0)
        start, less, more = int(hunk[1]), int(hunk[2] or 1), int(hunk[3] or 1)
        start -= bool(less)
        made += old[at:start]
        at = start
        while less or more:
            sign, line = lines[0][:1], lines.pop(0)[1:] + "\n"
            if lines and lines[0] == _NO_END:
                lines.pop(0)
                line = line.removesuffix("\n")
            if sign in (" ", "-"):
                _must(old[at] == line, f"the diff shows {line!r} where {old[at]!r} stands")
                at, less = at + 1, less - 1
            if sign in (" ", "+"):
                made.append(line)
                more -= 1
    return "".join(made + old[at:])


def _parses(raw: bytes) -> bool:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(raw)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


def _without_sources(raw: bytes) -> Any:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    cells = data.get("cells") if isinstance(data, dict) else None
    for cell in cells if isinstance(cells, list) else ():
        if isinstance(cell, dict):
            cell["source"] = None
    return data


def _forget_memory() -> None:
    """Have the kernel count the largest memory anew."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _memory() -> float:
    """MiB of the largest memory since, where the kernel says it."""
    with contextlib.suppress(OSError):
        said = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
        return int(said[1]) / 1024 if said else 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# -- one process ------------------------------------------------------------------------------------------------------


class Chunk(NamedTuple):
    """What one process does."""

    law: str
    seed: int
    inputs: int
    keep_going: bool
    corpus: tuple[str, ...]


def work(chunk: Chunk, folder: Path) -> None:
    """Run the inputs of a chunk in a folder; what came of it goes to ``result.json`` beside it."""
    law, make = LAWS[chunk.law]
    tree = folder / "tree"
    tree.mkdir()
    os.environ["XDG_STATE_HOME"] = str(folder / "home")
    os.chdir(tree)
    every = inputs.corpus(chunk.corpus)
    found: dict[str, str] = {}
    broken: list[tuple[str, str, str]] = []

    @seed(chunk.seed)
    @settings(
        max_examples=chunk.inputs,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=False,
    )
    @given(make(every), st.booleans())
    def each(one: Input, more: bool) -> None:
        key = _digest(one.raw)
        (folder / "last").write_bytes(one.raw)
        (folder / "last.txt").write_text(f"{one.name} {more} {one.how}", errors="replace")
        shutil.rmtree(tree / "cache", ignore_errors=True)
        inputs.written([one], tree)
        try:
            found[key] = _digest(law(tree, one, more).encode("utf-8", "surrogatepass"))
        except Broken as error:
            found[key] = "broken"
            broken.append((str(error), f"{one.name} {more} {one.how}", one.raw.hex()))
            if not chunk.keep_going:
                del broken[:-1]  # the last is the smallest
                raise

    inputs.written([Input("train.py", TRAINED, "")], tree)
    law(tree, Input("train.py", TRAINED, ""), False)  # what is imported once is nobody's cost
    Cost.seconds = Cost.mib = 0.0
    with contextlib.suppress(Broken), contextlib.redirect_stdout(None):
        each()
    said = {"found": found, "broken": broken, "seconds": Cost.seconds, "mib": Cost.mib}
    (folder / "result.json").write_text(json.dumps(said))


# -- all processes ------------------------------------------------------------------------------------------------------


class Run:
    """Processes side by side, until each law has had its inputs."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.bad = 0
        self.done: dict[str, set[str]] = {}
        self.compared = 0
        self.seconds: dict[str, float] = {}
        self.mib: dict[str, float] = {}

    def all(self, wanted: dict[str, int]) -> int:
        """Run them; how often a law was broken."""
        for law, count in wanted.items():
            started, number = time.monotonic(), 0
            known = self.done[law] = set()
            waiting = self._chunks(law)
            while len(known) < count and number * AT_ONCE < 4 * count:
                batch = [next(waiting) for _ in range(self.given.jobs)]
                short = max(4, -(-(count - len(known)) // len(batch)))
                batch = [one._replace(inputs=min(one.inputs, short)) for one in batch]
                number += len(batch)
                self._together(batch)
            print(
                f"{law:12}{len(known):7} inputs, at most {self.seconds.get(law, 0):4.1f} s and "
                f"{self.mib.get(law, 0):3.0f} MiB a command, {time.monotonic() - started:6.0f} s",
                flush=True,
            )
        print(f"{self.compared} inputs run again under another hash seed; {self.bad} broken laws")
        return self.bad

    def _chunks(self, law: str) -> Iterator[Chunk]:
        first, n = self.given.seed, 0
        while True:
            yield Chunk(law, first + n, AT_ONCE, self.given.keep_going, tuple(self.given.corpus))
            n += 1

    def _together(self, batch: Sequence[Chunk]) -> None:
        with contextlib.ExitStack() as stack:
            every = []
            for one in batch:
                for hashes in ("1", "2")[: 1 + (one.seed % 10 == 0)]:
                    folder = Path(stack.enter_context(_folder()))
                    every.append((one, folder, _started(one, folder, hashes)))
            results = [(one, self._ended(one, folder, process)) for one, folder, process in every]
        for (one, first), (other, second) in pairwise(results):
            if one.seed == other.seed:
                both = first.keys() & second.keys()
                self.compared += len(both)
                for key in sorted(both):
                    if first[key] != second[key]:
                        self._say(one, "another result under another hash seed", key, "")

    def _ended(self, one: Chunk, folder: Path, process: subprocess.Popen[bytes]) -> dict[str, str]:
        _, err = process.communicate()
        path = folder / "result.json"
        if not path.exists():
            why = f"the process ended with {process.returncode}: {err.decode()[-600:]}"
            if process.returncode == -signal.SIGPROF:
                why = f"more than {SECONDS} s of CPU time"
            last, raw = folder / "last.txt", folder / "last"
            if not last.exists():  # it did not come to its first input
                raise RuntimeError(why)
            self._say(one, why, last.read_text(), raw.read_bytes().hex())
            return {}
        result = json.loads(path.read_text())
        for why, how, raw in result["broken"]:
            self._say(one, why, how, raw)
        self.done[one.law].update(result["found"])
        self.seconds[one.law] = max(self.seconds.get(one.law, 0), result["seconds"])
        self.mib[one.law] = max(self.mib.get(one.law, 0), result["mib"])
        found: dict[str, str] = result["found"]
        return found

    def _say(self, one: Chunk, why: str, how: str, raw: str) -> None:
        self.bad += 1
        print(f"BROKEN {one.law}, seed {one.seed}: {why}\n    input: {how}", flush=True)
        if self.given.keep and raw:
            folder = Path(self.given.keep)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{one.law}-{one.seed}-{self.bad}-{how.split()[0]}").write_bytes(
                bytes.fromhex(raw)
            )
        elif raw and len(raw) < 4000:
            print(f"    {bytes.fromhex(raw)!r}")


def _folder() -> tempfile.TemporaryDirectory[str]:
    quick = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.TemporaryDirectory(
        prefix="fsdp2lint-fuzz-", dir=quick, ignore_cleanup_errors=True
    )


def _started(one: Chunk, folder: Path, hashes: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.fuzz", "--chunk", json.dumps([*one, str(folder)])],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hashes, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def main() -> int:
    """Run the laws and say what came of it; 1 when one is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=LAWS, action="append", default=[])
    parser.add_argument("--corpus", action="append", default=[], metavar="FOLDER")
    parser.add_argument("--keep", metavar="FOLDER")
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--chunk", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.chunk:
        law, number, count, keep_going, more, folder = json.loads(given.chunk)
        work(Chunk(law, number, count, keep_going, tuple(more)), Path(folder))
        return 0
    wanted = {"check": given.inputs} | {
        law: int(part * given.inputs) for law, part in WRITING.items()
    }
    print(f"seed {given.seed}", flush=True)
    return int(
        bool(Run(given).all({k: n for k, n in wanted.items() if k in (given.only or wanted)}))
    )


if __name__ == "__main__":
    sys.exit(main())
