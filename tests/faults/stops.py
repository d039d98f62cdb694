"""Stop every command that writes at every one of its file-system events, in every way.

``python -m tests.faults.stops`` stops them all; ``--quick N`` takes only every Nth event of each way, and at least four of them;
``--only NAME`` is about one command, ``--way WAY`` and ``--event N`` about one stop. The exit code is 1 when a tree was left between before and after, when a byte
was lost, or when something was left behind after the next command.

The analysis is done once for each command. When its first event is about to happen, the process stands still
there and forks a child for each stop, which goes on from that point. So a stop costs milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

WAYS = ("kill", "torn", "term", "int", "full", "error")
"""SIGKILL, SIGKILL in the middle of a write, SIGTERM, SIGINT, ENOSPC from there on, EIO once."""

State = dict[str, bytes]


class Case(NamedTuple):
    """A command, and what it is run on."""

    words: tuple[str, ...]
    make: Callable[[Path], None]
    git: bool = False
    gone_meanwhile: tuple[str, ...] = ()
    """Files of a folder that is replaced as a whole: for a moment no folder has the name."""


class Chosen(NamedTuple):
    """The stops that are made of all that there are."""

    step: int = 1
    ways: tuple[str, ...] = WAYS
    only: tuple[int, ...] = ()

    def events(self, number: int, way: str, total: int) -> Sequence[int]:
        """At which of so many events the command is stopped in the way with a number."""
        if way not in self.ways:
            return ()
        step = min(
            self.step, max(1, total // 4)
        )  # the middle of a short command is stopped too: there its journal lies
        return self.only or range(1 + number % step, total + 1, step)


class Bad(NamedTuple):
    """A stop after which something is wrong."""

    event: int
    way: str
    why: str


class Outcome(NamedTuple):
    """What came of all stops of one command."""

    events: int
    stops: int
    recovered: int
    """Stops after which a journal was left to the next command."""
    bad: list[Bad]


# -- events -----------------------------------------------------------------------------------------------------


class Events:
    """Counts what changes the disk, and stops at one of them."""

    CHANGING = ("open", "write", "fsync", "replace", "rename", "link", "symlink", "unlink", "remove", "mkdir",
                "rmdir", "fchmod", "chmod", "ftruncate")  # fmt: skip
    NEED_ROOM = ("open", "write", "fsync", "link", "symlink", "mkdir", "Popen")

    def __init__(self, first: Callable[[], None]) -> None:
        self.first: Callable[[], None] | None = first
        self.seen = 0
        self.stop = -1
        self.way = ""
        self.at_each: Callable[[], None] = lambda: None
        self.on = True
        self.plain = {name: getattr(os, name) for name in self.CHANGING}
        for name in self.CHANGING:
            setattr(os, name, self._counting(name))
        sys.addaudithook(self._heard)

    def _counting(self, name: str) -> Callable[..., Any]:
        plain = self.plain[name]

        def counted(*given: Any, **more: Any) -> Any:
            if self.on and not (name == "open" and not _writes(given, more)):
                self._event(name, given)
            before, self.on = self.on, False
            try:
                return plain(*given, **more)
            finally:
                self.on = before

        return counted

    def _heard(self, event: str, given: tuple[Any, ...]) -> None:
        """Files that are opened by ``open``, and programs that are started."""
        if not self.on:
            return
        if (
            event == "open"
            and not isinstance(given[0], int)
            and given[1] is not None
            and set(str(given[1])) & set("wax+")
        ):
            self._event("open", given)
        elif event == "subprocess.Popen":
            self._event("Popen", given)

    def _event(self, name: str, given: tuple[Any, ...]) -> None:
        if self.first is not None and name == "Popen":
            return  # git was asked what there is
        if self.first is not None:
            self.on = False
            first, self.first = self.first, None
            first()
            self.on = True
        self.seen += 1
        self.on = False
        try:
            self.at_each()
            if self.seen == self.stop:
                self._stop(name, given)
            elif self.way == "full" and self.seen > self.stop >= 0 and name in self.NEED_ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            self.on = True

    def _stop(self, name: str, given: tuple[Any, ...]) -> None:
        if self.way == "torn" and name == "write":
            self.plain["write"](given[0], bytes(given[1])[: len(given[1]) // 2])
        if self.way in ("kill", "torn"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.way in ("term", "int"):
            signal.raise_signal(signal.SIGTERM if self.way == "term" else signal.SIGINT)
        if self.way == "error":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.way == "full" and name in self.NEED_ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _writes(given: tuple[Any, ...], more: dict[str, Any]) -> bool:
    flags = given[1] if len(given) > 1 else more.get("flags", 0)
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


# -- one command --------------------------------------------------------------------------------------------------


class Study:
    """All stops of one command, in a tree of its own."""

    def __init__(self, case: Case, folder: Path, chosen: Chosen) -> None:
        self.case = case
        self.tree = folder / "tree"
        self.pristine = folder / "pristine"
        self.home = folder / "home"
        self.report = folder / "report.json"
        self.said = folder / "said"
        self.chosen = chosen
        self.counted = -1
        self.may_be_gone = frozenset(case.gone_meanwhile)
        self.untouched = False
        """Whether every file is as it was made; of git's own files only git knows."""
        case.make(self.pristine)
        self.reset()
        self.before = self.state()
        self.after: State = {}

    def run(self) -> Outcome:
        """Run the command in a child that does the stops, and read what it found."""
        child = os.fork()
        if child == 0:
            _isolated(self._carry)
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"{self.case.words}: {self.said.read_text()}")
        raw = json.loads(self.report.read_text())
        events, stops, recovered, bad = raw
        return Outcome(events, stops, recovered, [Bad(*one) for one in bad])

    def _carry(self) -> int:
        os.environ["XDG_STATE_HOME"] = str(self.home)
        self._quiet()
        os.chdir(self.tree)
        self.events = Events(self._stand_still)
        code = _command(self.case.words)
        self.events.on = False
        if self.events.first is not None:
            raise RuntimeError(f"nothing was written: exit {code}: {self.said.read_text()}")
        os.write(self.counted, str(self.events.seen).encode())  # a child: it has done, or gave up
        return 0

    def _stand_still(self) -> None:
        """The first event: from here a child goes on for each stop, and this process never does."""
        total = self._in_child(-1, "")
        if total is None:
            return
        self.after = self.state()
        self._must(self.after != self.before, "the command changes nothing")
        self.reset()
        bad: list[Bad] = []
        stops = recovered = 0
        for number, way in enumerate(WAYS):
            for event in self.chosen.events(number, way, total):
                stopped = self._in_child(event, way)
                if stopped is None:
                    return
                stops += 1
                recovered += bool(self._journals())
                bad += [Bad(event, way, why) for why in self._wrong()]
                self.reset()
        if not recovered:
            bad.append(Bad(0, "kill", "no stop has left a journal: nothing was tested"))
        raw = json.dumps([total, stops, recovered, bad])
        self.report.write_text(raw)
        os._exit(0)

    def _in_child(self, event: int, way: str) -> int | None:
        """Go on in a child; its events when it has ended, None in the child itself."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self.events.stop, self.events.way = event, way
            self.events.at_each = self._look
            self.counted = writing
            return None
        os.close(writing)
        with os.fdopen(reading) as file:
            said = file.read()
        os.waitpid(child, 0)
        return int(said or 0)

    def _look(self) -> None:
        """A reader: each file is as it was, or as it is to be, at every event."""
        if not self.after:
            return
        for name, raw in self.before.items():
            now = _content(f"{self.tree}/{name}")
            if now is not None:
                self._must(now in (raw, self.after.get(name)), f"a reader sees half of {name}")
            elif not name.startswith("git ") and not name.endswith("/"):
                moved = self.after.get(name) is None or name in self.may_be_gone
                self._must(moved, f"a reader does not find {name}")

    def _must(self, right: bool, why: str) -> None:
        if not right:
            with open(self.said, "a") as file:
                file.write(f"BAD {why}\n")

    def _wrong(self) -> list[str]:
        """What is wrong after the next command."""
        bad = [line[4:] for line in self.said.read_text().splitlines() if line.startswith("BAD ")]
        self.said.write_text("")
        if self._journals():  # without one the next command has nothing to take back
            child = os.fork()
            if child == 0:
                self.events.on = False
                _isolated(lambda: _command(("config", "select")))
            os.waitpid(child, 0)
        said = self.said.read_text()
        if said.count("note: ") > 1 or "Traceback" in said:
            bad.append(f"the next command says: {said}")
        now = self.state()
        self.untouched = now == self.before and not self.case.git
        if now not in (self.before, self.after):
            which = sorted(n for n in {*now, *self.before} if now.get(n) != self.before.get(n))
            left = now.get("git left", b"").decode()
            bad.append(f"neither before nor after: {which} {left}")
        if self._journals():
            bad.append("a journal is left")
        self.said.write_text("")
        return bad

    def _journals(self) -> list[str]:
        folder = self.home / "fsdp2lint" / "journal"
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    def reset(self) -> None:
        """The tree as it was made."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        if self.untouched:
            return
        for name in os.listdir(self.tree) if self.tree.exists() else ():
            path = self.tree / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.copytree(self.pristine, self.tree, symlinks=True, dirs_exist_ok=True)

    def state(self) -> State:
        """Every file of the tree; of a repository what git says in place of its own files.

        The cache is left out: its entries are written in place, and prove themselves when they are read.
        """
        found: State = {}
        for folder, folders, names in os.walk(self.tree):
            folders[:] = [name for name in folders if name not in (".git", ".fsdp2lint_cache")]
            for name in (*names, *folders):
                path = Path(folder, name)
                inner = _no_time(str(path.relative_to(self.tree))) + "/" * path.is_dir()
                found[inner] = _content(str(path)) or b""
        if self.case.git:
            for words in (("log", "--all", "--format=%D %T %B"), ("status", "--porcelain")):
                done = subprocess.run(
                    ["git", *words], cwd=self.tree, capture_output=True, check=True
                )
                found[f"git {words[0]}"] = done.stdout
            left = [n for n in os.listdir(self.tree / ".git") if "lock" in n or "fsdp2lint" in n]
            found["git left"] = repr(left).encode()
        return found

    def _quiet(self) -> None:
        handle = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)


def _no_time(path: str) -> str:
    """The path of a backup without the moment at which it was made; torch names its files by themselves."""
    parts = path.split(os.sep)
    return os.sep.join("NOW" if part[:2] == "20" and part[8:9] == "-" else part for part in parts)


def _content(path: str) -> bytes | None:
    """What is in a file; of a checkpoint, in which torch writes numbers drawn at random, how long it is."""
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError:
        return None
    return str(len(raw)).encode() if path.endswith((".metadata", ".distcp", ".pt")) else raw


def _command(words: tuple[str, ...]) -> int:
    from fsdp2lint.cli.program import main

    sys.argv = ["fsdp2lint", *words]
    try:
        main()
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0


def _isolated(work: Callable[[], int]) -> NoReturn:
    """Do something in a forked child, which never comes back."""
    code = 9
    try:
        code = work()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


# -- the commands -------------------------------------------------------------------------------------------------

_FIXABLE = "import torch.distributed.fsdp\nx = {n}  # fsdp2lint: ignore[FSDP203]\n"
_OLD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main():
    model = FSDP(torch.nn.Linear(4, {n}))
    model.clip_grad_norm_(1.0)


if __name__ == "__main__":
    main()
"""
_LATE = """\
import torch
from torch.distributed.fsdp import fully_shard


def main():
    model = torch.nn.Linear(4, {n})
    optimizer = torch.optim.AdamW(model.parameters())
    fully_shard(model)
    optimizer.step()


if __name__ == "__main__":
    main()
"""


def _six(text: str) -> Callable[[Path], None]:
    def make(tree: Path) -> None:
        for n in range(1, 7):
            file = tree / ("", "part")[n % 2] / f"file{n}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.format(n=n))

    return make


def _committed(text: str) -> Callable[[Path], None]:
    def make(tree: Path) -> None:
        _six(text)(tree)
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        for words in (("init", "-q", "--template="), ("config", "user.name", "x"), ("config", "user.email", "x@y"),
                      ("add", "."), (*who, "commit", "-qm", "all")):  # fmt: skip
            subprocess.run(["git", *words], cwd=tree, check=True, capture_output=True)

    return make


def _known(tree: Path) -> None:
    _six(_LATE)(tree)
    (tree / "fsdp2lint-baseline.json").write_text('{"version": 1, "findings": []}')


_SETTINGS = """\
compute_environment: LOCAL_MACHINE  # as the cluster has it
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_use_orig_params: true
  fsdp_forward_prefetch: {n}
num_processes: 8
"""


def _settings(tree: Path) -> None:
    tree.mkdir()
    for n in range(1, 4):
        (tree / f"accelerate{n}.yaml").write_text(_SETTINGS.format(n=n))


def _project(tree: Path) -> None:
    tree.mkdir()
    (tree / "pyproject.toml").write_text("[project]\nname = 'x'\n")


def _checkpoints(tree: Path) -> None:
    import torch
    from torch.distributed.checkpoint.state_dict_saver import save

    tree.mkdir()
    states = {"model": {"weight": torch.ones(4, 4)}}
    torch.save(states, tree / "file.pt")
    torch.save(states, tree / "other.pt")
    save(states, checkpoint_id=tree / "folder", no_dist=True)
    (tree / "folder" / "more.pt").write_text("a note of the user")


CASES = {
    "fix": Case(("check", "-n", "-j1", "-q", "--fix", "."), _six(_FIXABLE)),
    "add-ignore": Case(("check", "-n", "-j1", "--add-ignore", "."), _six(_LATE)),
    "report": Case(("check", "-n", "-j1", "-f", "json=out/report.json"), _six(_LATE)),
    "write": Case(("migrate", "-q", "--write", "."), _committed(_OLD), git=True),
    "write-outside-git": Case(("migrate", "-q", "--write", "."), _six(_OLD)),
    "commits": Case(("migrate", "-q", "--create-commits", "."), _committed(_OLD), git=True),
    "settings": Case(("migrate", "-q", "--write", "."), _settings),
    "baseline": Case(("baseline", "update", "."), _known),
    "init": Case(("init",), _project),
    "checkpoint-to-folder": Case(
        ("migrate-checkpoint", "--force", "file.pt", "folder"),
        _checkpoints,
        gone_meanwhile=("folder/.metadata", "folder/__0_0.distcp"),
    ),
    "checkpoint-to-file": Case(
        ("migrate-checkpoint", "--force", "folder", "other.pt"), _checkpoints
    ),
}


def warm_up() -> None:
    """Import what the commands import, so that no child has to."""
    import importlib

    from fsdp2lint.catalogue import knowledge
    from fsdp2lint.cli.program import COMMANDS

    knowledge.rules(), knowledge.codemods()
    for name in COMMANDS:
        importlib.import_module(f"fsdp2lint.cli.{name.replace('-', '_')}")


def study(name: str, chosen: Chosen) -> Outcome:
    """Stop one command."""
    with tempfile.TemporaryDirectory(prefix="fsdp2lint-stops-") as folder:
        return Study(CASES[name], Path(folder), chosen).run()


def main() -> int:
    """Stop the commands and say what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", type=int, default=1, metavar="N")
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--event", type=int, action="append", default=[])
    given = parser.parse_args()
    chosen = Chosen(given.quick, tuple(given.way or WAYS), tuple(given.event))
    warm_up()
    gc.freeze()  # or each child would copy what it only counts
    stops = bad = 0
    for name in given.only or CASES:
        started = time.monotonic()
        one = study(name, chosen)
        stops, bad = stops + one.stops, bad + len(one.bad)
        print(
            f"{name:22}{one.events:5} events{one.stops:6} stops{one.recovered:6} recovered"
            f"{len(one.bad):4} bad {time.monotonic() - started:7.1f} s",
            flush=True,
        )
        for event, way, why in one.bad[:20]:
            print(f"    {way} at event {event}: {why}")
    print(f"{stops} stops, {bad} bad")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
