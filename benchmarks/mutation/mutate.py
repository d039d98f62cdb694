"""How many planted mistakes ``fsdp2lint check`` finds in public programs: its recall.

python benchmarks/mutation/mutate.py --checkouts DIR [--sample N] [--program NAME] [--operator NAME]
                                     [--results FILE] [--publish] [--list]

``DIR/OWNER__NAME`` (or ``DIR/OWNER/NAME``) is a git clone of each repository in ``programs.json``, or its files at the
commit that is named there. Each operator of ``operators.py`` plants one mistake at one place of one program. A mutant is
found when ``check`` then reports something that it did not report before, of a rule that the operator expects.
``--results`` keeps what was seen, one mutant a line, and leaves those out that it holds; ``--publish`` writes the numbers
of all results for the pages of the rules and the table of the guide.
"""

from __future__ import annotations

import argparse
import collections
import io
import json
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
import msgspec
from libcst.metadata import MetadataWrapper, PositionProvider
from operators import OPERATORS, Operator

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAMS = HERE / "programs.json"
PUBLISHED = ROOT / "fsdp2lint" / "catalogue" / "recall.json"
GUIDE = ROOT / "docs" / "guides" / "recall.md"
START, END = "<!-- measured -->", "<!-- end -->"
LIMIT = 300
"""Seconds for one check."""


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A public program: what is copied of a repository at a commit, and in which files mistakes are planted."""

    name: str
    repository: str
    commit: str
    paths: list[str]
    mutated: list[str]


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of one mutant."""

    program: str
    operator: str
    file: str
    line: int
    expected: list[str]
    new: list[str]
    """The rules of the findings that the program itself does not have."""
    found: bool


class Unseen(Exception):
    """A program that is not there, or a run that went wrong."""


@dataclass(frozen=True)
class Mutant:
    """One planted mistake."""

    program: Program
    operator: Operator
    file: str
    line: int
    text: str

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What tells it from others."""
        return self.program.name, self.operator.name, self.file, self.line


# -- programs --------------------------------------------------------------------------------------------------


def programs(path: Path = PROGRAMS) -> list[Program]:
    """The programs that mistakes are planted in."""
    return msgspec.json.decode(path.read_bytes(), type=list[Program])


def lay_out(checkouts: Path, program: Program, folder: Path) -> None:
    """Copy the files of a program into an empty folder.

    Raises:
        Unseen: there is no such clone, or no such commit in it.
    """
    owner, _, name = program.repository.partition("/")
    places = [
        checkouts / f"{owner}__{name}",
        checkouts / f"{owner}+{name}",
        checkouts / owner / name,
    ]
    place = next((one for one in places if one.is_dir()), None)
    if place is None:
        raise Unseen(f"{program.repository}: nothing at {places[0]}")
    if (place / ".git").exists() or (place / "HEAD").is_file():
        _unpack(place, program, folder)
        return
    for wanted in program.paths:
        source = place / wanted
        for one in [source] if source.is_file() else sorted(source.rglob("*.py")):
            target = folder / one.relative_to(place)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(one, target)


def _unpack(clone: Path, program: Program, folder: Path) -> None:
    command = ["git", "-C", str(clone), "archive", program.commit, "--", "*.py"]
    run = subprocess.run(command, capture_output=True, check=False)
    if run.returncode:
        raise Unseen(f"{program.repository}: {run.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(run.stdout)) as archive:
        kept = [one for one in archive.getmembers() if one.isfile() and _belongs(one.name, program)]
        archive.extractall(folder, members=kept, filter="data")


def _belongs(name: str, program: Program) -> bool:
    inside = any(path in (".", name) or name.startswith(f"{path}/") for path in program.paths)
    return inside and name.endswith(".py")


# -- mutants -----------------------------------------------------------------------------------------------------


def mutants(program: Program, folder: Path, operators: Sequence[Operator]) -> Iterator[Mutant]:
    """The mutants of a program that lies in a folder, in the order of its files and of the operators."""
    for file in program.mutated:
        path = folder / file
        if not path.is_file():
            raise Unseen(f"{program.name}: no file {file}")
        wrapper = MetadataWrapper(cst.parse_module(path.read_bytes().decode()), True)
        positions = wrapper.resolve(PositionProvider)
        for operator in operators:
            for place, changed in operator.find(wrapper.module):
                line = positions[place].start.line
                yield Mutant(program, operator, file, line, changed.code)


def findings(folder: Path) -> collections.Counter[tuple[str, str, str]]:
    """What all rules report below a folder, by rule, file and the text of the line.

    Raises:
        Unseen: the program failed, or took too long.
    """
    options = ["--isolated", "--no-cache", "--select", "ALL", "--output-format", "json"]
    command = [sys.executable, "-m", "fsdp2lint", "check", *options, "."]
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=LIMIT)
    except subprocess.TimeoutExpired as late:
        raise Unseen(f"check took more than {LIMIT} s") from late
    if run.returncode not in (0, 1):
        raise Unseen(run.stderr.decode(errors="replace").strip())
    found: collections.Counter[tuple[str, str, str]] = collections.Counter()
    for one in json.loads(run.stdout):
        lines = (folder / one["filename"]).read_text(encoding="utf-8").splitlines()
        row = one["location"]["row"]
        text = lines[row - 1].strip() if row <= len(lines) else ""
        found[one["code"], one["filename"], text] += 1
    return found


def judge(
    mutant: Mutant, folder: Path, before: collections.Counter[tuple[str, str, str]]
) -> Result:
    """Plant a mistake, check the program, and put the file back."""
    path = folder / mutant.file
    kept = path.read_bytes()
    try:
        path.write_bytes(mutant.text.encode())
        new = sorted({code for code, _, _ in findings(folder) - before})
    finally:
        path.write_bytes(kept)
    expected = list(mutant.operator.expected)
    found = any(code in expected for code in new)
    return Result(*mutant.key, expected, new, found)


# -- numbers -----------------------------------------------------------------------------------------------------


def recall(results: Iterable[Result]) -> dict[str, dict[str, int]]:
    """Of each rule: how many mistakes it was to find, how many it or a related rule found, in how many programs."""
    counted: dict[str, dict[str, int]] = {}
    places: dict[str, set[str]] = collections.defaultdict(set)
    for one in results:
        code = one.expected[0]
        row = counted.setdefault(code, {"planted": 0, "found": 0, "programs": 0})
        row["planted"] += 1
        row["found"] += one.found
        places[code].add(one.program)
        row["programs"] = len(places[code])
    return dict(sorted(counted.items()))


def table(results: Sequence[Result]) -> str:
    """The numbers for the guide."""
    found = sum(one.found for one in results)
    names = {one.program for one in results}
    lines = [
        f"{found} of {len(results)} mutants of {len(names)} programs were found ({found / len(results):.0%}).",
        "",
        "| operator | what it does | rules that count | planted | found |",
        "|---|---|---|---|---|",
    ]
    by_operator = collections.defaultdict(list)
    for one in results:
        by_operator[one.operator].append(one.found)
    for operator in OPERATORS:
        seen = by_operator.get(operator.name)
        if seen:
            rules = ", ".join(operator.expected)
            lines.append(
                f"| {operator.name} | {operator.says} | {rules} | {len(seen)} | {sum(seen)} |"
            )
    lines += ["", "| rule | planted | found | programs |", "|---|---|---|---|"]
    for code, row in recall(results).items():
        lines.append(f"| {code} | {row['planted']} | {row['found']} | {row['programs']} |")
    return "\n".join(lines)


def publish(results: Sequence[Result]) -> None:
    """Write the numbers for the pages of the rules and the table of the guide."""
    PUBLISHED.write_text(json.dumps(recall(results), indent=1) + "\n", encoding="utf-8")
    text = GUIDE.read_text(encoding="utf-8")
    head, tail = text.partition(START)[0], text.partition(END)[2]
    GUIDE.write_text(f"{head}{START}\n\n{table(results)}\n\n{END}{tail}", encoding="utf-8")


def known(path: Path | None) -> list[Result]:
    """The results of earlier runs."""
    if path is None or not path.is_file():
        return []
    return [msgspec.json.decode(line, type=Result) for line in path.read_bytes().splitlines()]


# -- the command -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--programs", type=Path, default=PROGRAMS)
    parser.add_argument("--program", action="append", default=[])
    parser.add_argument("--operator", action="append", default=[])
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--list", action="store_true", help="only name the mutants")
    asked = parser.parse_args(arguments)
    chosen = [o for o in OPERATORS if not asked.operator or o.name in asked.operator]
    results = known(asked.results)
    with tempfile.TemporaryDirectory() as work:
        drawn = _drawn(asked, chosen, Path(work))
        if asked.list:
            for mutant in drawn:
                print(*mutant.key)
            print(len(drawn), "mutants")
            return 0
        done = {(r.program, r.operator, r.file, r.line) for r in results}
        for result in _run([m for m in drawn if m.key not in done], Path(work)):
            results.append(result)
            if asked.results is not None:
                with asked.results.open("ab") as file:
                    file.write(msgspec.json.encode(result) + b"\n")
    print(table(results))
    if asked.publish:
        publish(results)
    return 0


def _drawn(asked: argparse.Namespace, chosen: Sequence[Operator], work: Path) -> list[Mutant]:
    """The mutants to look at; each program is laid out below ``work``."""
    every: list[Mutant] = []
    for program in programs(asked.programs):
        if asked.program and program.name not in asked.program:
            continue
        folder = work / program.name
        folder.mkdir()
        try:
            lay_out(asked.checkouts, program, folder)
            every += mutants(program, folder, chosen)
        except Unseen as error:
            print(error, file=sys.stderr)
    if asked.sample and asked.sample < len(every):
        some = random.Random(asked.seed).sample(range(len(every)), asked.sample)
        every = [every[index] for index in some]
    return every


def _run(todo: Sequence[Mutant], work: Path) -> Iterator[Result]:
    """Check the mutants, each against its program as it is."""
    before: dict[str, collections.Counter[tuple[str, str, str]]] = {}
    for mutant in todo:
        name, began = mutant.program.name, time.monotonic()
        try:
            if name not in before:
                before[name] = findings(work / name)
            result = judge(mutant, work / name, before[name])
        except Unseen as error:
            print(*mutant.key, error, file=sys.stderr)
            continue
        said = "found" if result.found else "missed"
        took = f"{time.monotonic() - began:.1f} s"
        print(said, *mutant.key, *result.new, took, file=sys.stderr, flush=True)
        yield result


if __name__ == "__main__":
    sys.exit(main())
