"""How much of public FSDP2 code ``fsdp2lint check`` follows: calls in the text against what the analysis knows of them.

python benchmarks/reach/reach.py --checkouts DIR [--repository OWNER/NAME]

``DIR/OWNER+NAME`` holds the files of each repository of ``repositories.toml`` at its commit; what is missing is
fetched from GitHub. Counted are, tests left out, the calls of ``fully_shard``, the steps of optimizers in files
about FSDP, and the calls that take, save or load state dicts and distributed checkpoints. A sharding call counts
when the class of its module is known, a step or a state when its model is one that the same run shards.

Steps and states are counted twice: all of them, and those that a program which shards can come to. The second
leaves out the files that belong to no import closure with a call of ``fully_shard`` or of FSDP1's class in it:
single-device examples, scripts that convert checkpoints. No judgement goes into that, and what the program has
linked does not either; what a wide package imports stays in, and what is imported by a name of the run is not seen.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fsdp2lint.project.links import Finder
from fsdp2lint.system.files import Files

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


_SHARES = ("shards", "steps", "sharding_steps", "states", "sharding_states", "programs")


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
    sharding_steps: Share
    """Those in files that a program which shards can come to."""
    states: Share
    sharding_states: Share
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


def files_of_sharding_programs(folder: Path) -> set[str]:
    """The files in an import closure that holds a file which calls ``fully_shard`` or FSDP1's class."""
    finder = Finder([folder], Files())
    imports: dict[str, set[str]] = {}
    sharding = set()
    for path in folder.rglob("*.py"):
        name = path.relative_to(folder).as_posix()
        if not _TEST.search(name):
            led_to = finder.imported(path.read_bytes(), str(path.resolve()))
            imports[name] = {os.path.relpath(one, folder.resolve()) for one in led_to}
            if _shards(path):
                sharding.add(name)
    imported_by: dict[str, set[str]] = {}
    for name, others in imports.items():
        for other in others:
            imported_by.setdefault(other, set()).add(name)
    return _reached(imports, _reached(imported_by, sharding))


def _shards(path: Path) -> bool:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError):
        return False
    names = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch")
        for alias in node.names
        if alias.name == "FullyShardedDataParallel"
    }
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return bool(called & names) or any(kind == "shards" for kind, _ in _calls(tree))


def _reached(links: dict[str, set[str]], start: set[str]) -> set[str]:
    """What links lead to from a set, which is part of it."""
    found, todo = set(start), list(start)
    while todo:
        new = links.get(todo.pop(), set()) - found
        found |= new
        todo.extend(new)
    return found


def measured(name: str, folder: Path) -> Row:
    """Check a repository and compare what was followed with what stands in it."""
    started = time.perf_counter()
    coverage = _coverage(folder)
    seconds = time.perf_counter() - started
    programs = [one for one in coverage["programs"] if not _TEST.search(one["filename"])]
    counted = {}
    found = sites(folder)
    sharding = files_of_sharding_programs(folder)
    for kind, every in found.items():
        key = "resolved" if kind == "shards" else "linked"
        known = {
            (seen["filename"], seen["line"]) for one in programs for seen in one[kind] if seen[key]
        }
        counted[kind] = Share(len(known & every), len(every))
        if kind != "shards":
            there = {site for site in every if site[0] in sharding}
            counted[f"sharding_{kind}"] = Share(len(known & there), len(there))
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

    kinds = {kind: summed(kind) for kind in _SHARES}
    return Row("together", **kinds, seconds=sum(row.seconds for row in rows))


def table(rows: list[Row]) -> str:
    """The rows in markdown."""
    head = (
        "| repository | sharded modules known | steps linked | … of programs that shard "
        "| states linked | … of programs that shard | programs followed |"
    )
    lines = [head, "|---|---|---|---|---|---|---|"]
    for row in [*rows, total(rows)]:
        cells = (row.name, *(getattr(row, kind) for kind in _SHARES))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    whole = total(rows)
    shares = (
        (kind.replace("_", " of programs that shard: "), getattr(whole, kind)) for kind in _SHARES
    )
    percent = ", ".join(f"{word} {100 * s.followed / max(s.every, 1):.0f} %" for word, s in shares)
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
