"""How much of public FSDP2 code ``fsdp2lint check`` follows: calls in the text against what the analysis knows of them.

python benchmarks/reach/reach.py --checkouts DIR [--repository OWNER/NAME]

``DIR/OWNER+NAME`` holds the files of each repository of ``repositories.toml`` at its commit; what is missing is
fetched from GitHub. Counted are, tests left out, the calls of ``fully_shard``, the steps of optimizers in files
about FSDP, and the calls that take, save or load state dicts and distributed checkpoints. A sharding call counts
when the class of its module is known, a step or a state when its model is one that the same run shards.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
LIST = HERE / "repositories.toml"

Site = tuple[str, int]

_TEST = re.compile(r"(^|/)tests?(/|_)|(^|/)test_|_test\.py$|conftest")
_CHECKPOINT = re.compile(
    r"(^|\.)(dcp|dist_cp|checkpoint|DCP|DistCP|dist_checkpoint)"
    r"\.(save|load|async_save|save_state_dict|load_state_dict)$"
)
_STATE = re.compile(r"^((get|set)_(model|optimizer)_state_dict|(get|set)_state_dict)$")
_OPTIMIZER = re.compile(r"optim|opt\b|scaler")
_ABOUT = ("fully_shard", "DTensor", "distributed.checkpoint")


class Share(NamedTuple):
    """So many of all calls of a kind."""

    followed: int
    every: int

    def __str__(self) -> str:
        return f"{self.followed} of {self.every}" if self.every else "-"


class Row(NamedTuple):
    """What was followed of a repository."""

    name: str
    shards: Share
    steps: Share
    states: Share
    programs: Share
    seconds: float


def sites(folder: Path) -> dict[str, set[Site]]:
    """The calls of each kind in the text of a repository."""
    found: dict[str, set[Site]] = {"shards": set(), "steps": set(), "states": set()}
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if _TEST.search(name):
            continue
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (SyntaxError, ValueError, OSError):
            continue
        if any(word in text for word in _ABOUT) or "fsdp" in text.lower():
            for kind, line in _calls(tree):
                found[kind].add((name, line))
    return found


def _calls(tree: ast.Module) -> Iterator[tuple[str, int]]:
    sharding = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch")
        for alias in node.names
        if alias.name == "fully_shard"
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        called = ast.unparse(node.func)
        last = called.rpartition(".")[2]
        if called in sharding or called.endswith("fsdp.fully_shard"):
            yield "shards", node.lineno
        elif last == "step" and _OPTIMIZER.search(called.lower()):
            yield "steps", node.lineno
        elif _CHECKPOINT.search(called) or (_STATE.match(last) and not called.startswith("self.")):
            yield "states", node.lineno


def measured(name: str, folder: Path) -> Row:
    """Check a repository and compare what was followed with what stands in it."""
    started = time.perf_counter()
    coverage = _coverage(folder)
    seconds = time.perf_counter() - started
    programs = [one for one in coverage["programs"] if not _TEST.search(one["filename"])]
    counted = {}
    for kind, every in sites(folder).items():
        key = "resolved" if kind == "shards" else "linked"
        known = {
            (seen["filename"], seen["line"]) for one in programs for seen in one[kind] if seen[key]
        }
        counted[kind] = Share(len(known & every), len(every))
    begun = [one for one in programs if one["begins"] and (one["shards"] or one["steps"])]
    whole = Share(sum(one["followed"] for one in begun), len(begun))
    return Row(name, **counted, programs=whole, seconds=seconds)


def _coverage(folder: Path) -> Any:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "coverage.json"
        options = ["--no-cache", "--isolated", "--exit-zero", "-q", "-f", f"coverage={out}"]
        command = [sys.executable, "-m", "fsdp2lint", "check", *options, "."]
        subprocess.run(command, cwd=folder, check=True)
        return json.loads(out.read_text())


def fetched(name: str, commit: str, checkouts: Path) -> Path:
    """The folder of a repository at a commit."""
    folder = checkouts / name.replace("/", "+")
    if not folder.is_dir():
        folder.mkdir(parents=True)
        for arguments in (
            ["init", "-q"],
            ["fetch", "-q", "--depth", "1", f"https://github.com/{name}", commit],
            ["checkout", "-q", "FETCH_HEAD"],
        ):
            subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


def total(rows: list[Row]) -> Row:
    """All repositories together."""

    def summed(kind: str) -> Share:
        shares: list[Share] = [getattr(row, kind) for row in rows]
        return Share(sum(s.followed for s in shares), sum(s.every for s in shares))

    kinds = {kind: summed(kind) for kind in ("shards", "steps", "states", "programs")}
    return Row("together", **kinds, seconds=sum(row.seconds for row in rows))


def table(rows: list[Row]) -> str:
    """The rows in markdown."""
    head = (
        "| repository | sharded modules known | steps linked | states linked | programs followed |"
    )
    lines = [head, "|---|---|---|---|---|"]
    for row in [*rows, total(rows)]:
        cells = (row.name, row.shards, row.steps, row.states, row.programs)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    whole = total(rows)
    shares = [(whole.shards, "sharded"), (whole.steps, "steps"), (whole.states, "states")]
    percent = ", ".join(f"{word} {100 * s.followed / max(s.every, 1):.0f} %" for s, word in shares)
    return "\n".join([*lines, "", f"{percent}; {whole.seconds:.0f} s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--repository", action="append")
    asked = parser.parse_args()
    kinds = tomllib.loads(LIST.read_text())
    wanted = {name: commit for one in kinds.values() for name, commit in one.items()}
    rows = []
    for name, commit in wanted.items():
        if not asked.repository or name in asked.repository:
            rows.append(measured(name, fetched(name, commit, asked.checkouts)))
            print(rows[-1], file=sys.stderr, flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
