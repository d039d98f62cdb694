"""What is measured, against what, and which ratio is wanted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clocks import Clock, inside, running
from scripts import PLAIN, script

SHORT, LONG, LONGER = 1_000, 8_000, 10_000
"""Lines of the scripts whose times are compared."""

ANALYSIS = """\
import gc, sys, time
from pathlib import Path
from fsdp2lint.source.prefilter import relevant
from fsdp2lint.check.runner import Batch, check
import fsdp2lint.check.analysis, libcst
from fsdp2lint.catalogue import knowledge
knowledge.rules()
gc.disable()
sys.setrecursionlimit(12_000)
files = [(str(p), p.read_bytes()) for p in sorted(Path({folder!r}).rglob("*.py"))]
files = [(path, raw) for path, raw in files if relevant(raw)]
libcst.parse_module("x = 1")
check(Batch.of_text({warming!r}.encode(), "x.py"))
began = time.process_time()
for path, raw in files:
    {action}
print(time.process_time() - began)
"""

PREFILTER = """\
import time
from fsdp2lint.system.discover import Exclusion, discover
from fsdp2lint.source.prefilter import sift
began = time.process_time()
list(sift(discover([{folder!r}], Exclusion())))
print(time.process_time() - began)
"""


@dataclass(frozen=True)
class Row:
    """One line of the table: ``ours`` divided by ``theirs`` is to be at most (or at least) ``target``.

    A row without a target is there to be read.
    """

    group: str
    what: str
    against: str
    ours: Clock
    theirs: Clock
    target: float | None = None
    faster: bool = False
    """Whether the ratio says how many times faster ours is, and the target is the least."""


@dataclass(frozen=True)
class Bench:
    """The programs and the files."""

    trees: dict[str, Path]
    work: Path
    """A folder to write scripts and caches into."""
    torchfix: Path | None

    def rows(self) -> Iterator[Row]:
        """All rows, in the order of the table."""
        yield from self._whole_trees()
        yield from self._single_files()
        yield from self._inside()
        yield from self._warm()

    def commands(self) -> dict[str, list[str]]:
        """The runs whose memory is looked at."""
        long = self._script(LONGER)
        found = {f"{name}, whole tree": self._check(tree) for name, tree in self.trees.items()}
        found |= {f"{name}, -j 1": self._check(t, "-j1") for name, t in self.trees.items()}
        return {**found, f"a script of {LONGER:,} lines": self._check(long)}

    # -- the rows --------------------------------------------------------------------------------

    def _whole_trees(self) -> Iterator[Row]:
        sparse, dense = self.trees["transformers"], self.trees["torchtitan"]
        for rules, target in ((("--select", "F"), 4.5), ((), 2.0)):
            yield self._beside_ruff("few files relevant", sparse, rules, target)
        yield self._beside_ruff("dense", dense, ("--select", "F"), 25.0)
        if self.torchfix is not None:
            tree = self.trees["accelerate"]
            theirs = running([str(self.torchfix), str(tree)])
            yield Row(
                "trees", "whole tree (accelerate)", "TorchFix",
                running(self._check(tree)), theirs, 30.0, faster=True,
            )  # fmt: skip

    def _beside_ruff(self, what: str, tree: Path, rules: tuple[str, ...], target: float) -> Row:
        name = "ruff " + (" ".join(rules) or "(default rules)")
        theirs = running(_program("ruff", "check", "--no-cache", "--isolated", *rules, str(tree)))
        said = f"whole tree, {what} ({tree.name})"
        return Row("trees", said, name, running(self._check(tree)), theirs, target)

    def _single_files(self) -> Iterator[Row]:
        plain = self.work / "plain.py"
        plain.write_text(PLAIN)
        nothing, start = _python("pass"), running(_program("fsdp2lint", "--version"))
        yield Row("files", "start-up (--version)", "python -c pass", start, nothing)
        one = running(self._check(plain))
        yield Row("files", "one irrelevant file", "import click", one, _python("import click"), 1.2)
        for lines, target in ((SHORT, 2.5), (LONGER, None)):
            ours = running(self._check(self._script(lines)))
            said = f"one file of {lines:,} lines"
            yield Row("files", said, "import libcst", ours, _python("import libcst"), target)
        long, short = (running(self._check(self._script(n))) for n in (LONG, SHORT))
        yield Row("files", f"{LONG:,} lines", f"{SHORT:,} lines", long, short, 12.0)

    def _inside(self) -> Iterator[Row]:
        tree = str(self.trees["transformers"])
        grep = running(
            ["grep", "-rlE", "--include=*.py", "fully_shard|FullyShardedDataParallel|"
             "distributed.fsdp|_composable.fsdp|d.checkpoint|distributed import checkpoint", tree]
        )  # fmt: skip
        sift = inside(sys.executable, PREFILTER.format(folder=tree))
        yield Row("inside", "prefilter alone (transformers)", "grep -rlE", sift, grep, 2.0)
        short = self.work / "script"
        short.mkdir(exist_ok=True)
        (short / "train.py").write_text(script(SHORT))
        for folder in (short, self.trees["torchtitan"]):
            said = f"each relevant file alone ({folder.name})"
            ours = _analysis(folder, "check(Batch.of_text(raw, 'x/' + path.replace('/', '_')))")
            theirs = _analysis(folder, "libcst.parse_module(raw)")
            yield Row("inside", said, "parse_module", ours, theirs, 3.0)

    def _warm(self) -> Iterator[Row]:
        for name in ("transformers", "torchtitan"):
            tree, cache = str(self.trees[name]), str(self.work / "cache")
            kept = _program(
                "fsdp2lint", "check", "--isolated", "-q", "--cache-dir", f"{cache}/ours", tree
            )
            theirs = _program(
                "ruff", "check", "-q", "--isolated", "--cache-dir", f"{cache}/ruff", tree
            )
            said = f"warm, nothing changed ({name})"
            yield Row("warm", said, "ruff's warm run", running(kept), running(theirs), 2.2)

    def _check(self, path: Path, *options: str) -> list[str]:
        """A run without a cache and without the configuration of the machine."""
        return _program(
            "fsdp2lint", "check", "--no-cache", "--isolated", "-f", "concise", *options, str(path)
        )

    def _script(self, lines: int) -> Path:
        path = self.work / f"train_{lines}.py"
        path.write_text(script(lines))
        return path


def _program(name: str, *arguments: str) -> list[str]:
    """A command of the environment that runs this."""
    return [str(Path(sys.executable).parent / name), *arguments]


def _python(code: str) -> Clock:
    return running([sys.executable, "-c", code])


def _analysis(folder: Path, action: str) -> Clock:
    code = ANALYSIS.format(folder=str(folder), action=action, warming=script(60))
    return inside(sys.executable, code)
