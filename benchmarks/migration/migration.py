"""Public FSDP1 repositories, migrated: ``python benchmarks/migration/migration.py --checkouts DIR`` prints a table.

``DIR/OWNER+NAME`` holds the files of each repository of ``repositories.toml`` at its commit; what is missing is fetched
from GitHub. Each is copied and migrated in the copy, twice. Counted are the uses of FSDP1 and their fates, changed files that
do not compile, names of a changed file that nothing binds any more, files that a second run changes, and what ``check`` finds
of the group *correctness* in the copy and did not find before, but for what the ledger says of FSDP1 too. ``--keep FOLDER`` keeps a
diff and a ledger for each, to be read.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "reach"))

from reach import fetched  # noqa: E402

LIST = Path(__file__).with_name("repositories.toml")
FATES = ("preserved", "changed", "dropped", "manual")
LINES = 8
"""So many lines of a diff stand around a change."""


class Row(NamedTuple):
    """What became of a repository."""

    name: str
    fates: dict[str, int]
    files: int
    lines: int
    """Lines that the diff adds and removes."""
    broken: int
    """Changed files that do not compile, and names that nothing binds in one and something bound before."""
    again: int
    """Files that a second run changes."""
    found: int
    """Findings of the group *correctness* after the migration beyond those before."""
    cpu: float

    @property
    def sites(self) -> int:
        """All uses of FSDP1."""
        return sum(self.fates.values())

    @property
    def cells(self) -> str:
        """The row of the table."""
        fates = " | ".join(str(self.fates.get(fate, 0)) for fate in FATES)
        checks = f"{self.broken} | {self.again} | {self.found}"
        return f"| {self.name} | {self.sites} | {fates} | {self.files} | {self.lines} | {checks} | {self.cpu:.0f} |"


HEAD = (
    "| repository | uses of FSDP1 | preserved | changed | dropped | manual | files | lines | broken | second run | new findings"
    " | CPU s |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def migrated(name: str, origin: Path, keep: Path | None) -> Row:
    """Migrate a copy of a repository and look at it."""
    with tempfile.TemporaryDirectory() as scratch:
        before, after = Path(scratch) / "before", Path(scratch) / "after"
        for copy in (before, after):
            shutil.copytree(origin, copy, ignore=shutil.ignore_patterns(".git"), symlinks=True)
        started = _cpu()
        ledger = _tool(after, "migrate", "-q", "--write", "--allow-no-git", "-f", "json")
        cpu = _cpu() - started
        diff = _diff(before, after)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{origin.name}.diff").write_text(diff)
            rows = json.dumps(ledger["occurrences"], indent=1)
            (keep / f"{origin.name}.json").write_text(rows)
        again = _tool(after, "migrate", "-q", "-f", "json")
        changed = sorted(
            path.relative_to(after)
            for path in after.rglob("*")
            if path.is_file()
            and path.read_bytes() != (before / path.relative_to(after)).read_bytes()
        )
        new = _findings(after) - _findings(before) - _known(ledger["occurrences"])
        if keep is not None:
            text = "\n".join(" ".join(map(str, one)) for one in sorted(new))
            (keep / f"{origin.name}.check").write_text(text)
        return Row(
            name,
            dict(Counter(one["fate"] for one in ledger["occurrences"])),
            len(changed),
            sum(
                line.startswith(("+", "-")) and line[:3] not in ("+++", "---")
                for line in diff.splitlines()
            ),
            sum(_broken(before / path, after / path) for path in changed if path.suffix == ".py"),
            len(again["changed"]),
            new.total(),
            cpu,
        )


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tool(folder: Path, command: str, *options: str) -> Any:
    run = [sys.executable, "-m", "fsdp2lint", command, *options, "--isolated", "."]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def _diff(before: Path, after: Path) -> str:
    run = ["git", "diff", "--no-index", "--no-color", f"-U{LINES}", before.name, after.name]
    return subprocess.run(
        run, cwd=before.parent, capture_output=True, text=True, check=False
    ).stdout


def _findings(folder: Path) -> Counter[tuple[str, str]]:
    """The findings of the group correctness by rule and file."""
    report = _tool(folder, "check", "--no-cache", "-f", "json", "--select", "correctness")
    return Counter((one["code"], one["filename"]) for one in report)


def _known(ledger: list[Any]) -> Counter[tuple[str, str]]:
    """The findings that a ledger says of FSDP1 as well."""
    said = (one for one in ledger if one["why"].startswith("as under FSDP1"))
    return Counter((one["why"][-8:-1], one["filename"]) for one in said)


def _broken(before: Path, after: Path) -> int:
    """1 for a file that no longer compiles, else how many names it lost."""
    try:
        old = ast.parse(before.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return 0
    try:
        new = ast.parse(after.read_text(encoding="utf-8"))
        compile(new, str(after), "exec")
    except (SyntaxError, ValueError):
        return 1
    return len(_unbound(new) - _unbound(old))


def _unbound(tree: ast.Module) -> set[str]:
    """Names that a file reads and binds nowhere."""
    read, bound = set(), set(dir(builtins))
    for node in ast.walk(tree):
        match node:
            case ast.Name(name, ast.Load()):
                read.add(name)
            case ast.Name(name) | ast.arg(name):
                bound.add(name)
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.alias(name, asname):
                bound.add(asname or name.partition(".")[0])
            case _:
                pass
    return read - bound


def total(rows: list[Row]) -> Row:
    """All repositories together."""
    fates: Counter[str] = Counter()
    for row in rows:
        fates.update(row.fates)
    sums = [sum(getattr(row, kind) for row in rows) for kind in Row._fields[2:]]
    return Row("together", dict(fates), *sums)


def main() -> None:
    """Print a row for each repository, then their sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--repository", action="append")
    parser.add_argument("--keep", type=Path, help="a folder for the diffs and the ledgers")
    asked = parser.parse_args()
    print(HEAD, flush=True)
    rows = []
    for name, commit in tomllib.loads(LIST.read_text())["repositories"].items():
        if not asked.repository or name in asked.repository:
            rows.append(migrated(name, fetched(name, commit, asked.checkouts), asked.keep))
            print(rows[-1].cells, flush=True)
    print(total(rows).cells)
    together = total(rows)
    manual = together.fates.get("manual", 0)
    print(f"\nWithout a person: {100 * (1 - manual / max(together.sites, 1)):.1f} %")


if __name__ == "__main__":
    main()
