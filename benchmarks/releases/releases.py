"""What runs under other releases of PyTorch than the one that the tests are pinned to.

    python benchmarks/releases/releases.py 2.7.1 2.9.1 [--folder VENVS] [--only evidence] [--jobs 2] [--sample] [--programs FOLDER]

For each release: a virtual environment of its own below VENVS (kept there), with the project and its test tools; then, of each rule
whose damage a CPU shows, one bad script; the tests that start ranks, in three groups (the evidence of the rules; the codemods and migrated projects; `rehearse`, `verify` and
`plan`), the mutants of ``benchmarks/proof/mutants.py``, and ten public programs that need nothing but PyTorch, with their
trees in FOLDER (``benchmarks/proof/public.py``). Prints a row of Markdown, and what fails, with the first line of why.

``--sample`` runs, of each file of tests, one test of sixty and at least one, and each third mutant of one program: about ten
minutes on two cores, beside the installation. A release takes 5 to 7 GB on disk: on PyPI there are only builds with CUDA,
which run on a CPU, too. The interpreter that runs this is the one that the environments get.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.evidence.header import fixtures  # noqa: E402

TOOLS = ("numpy", "safetensors", "pytest>=8.2", "pytest-xdist>=3", "hypothesis>=6", "setuptools")
RELEASES = Path.home() / ".cache" / "fsdp2lint-torch"
"""Where their environments are."""
ONE_OF = 60
"""Of so many tests of a file, a sample has one."""
SAMPLED_MUTANTS = ("everything", "--every", "3")
PROGRAMS = (
    "pytorch/examples distributed/FSDP2/example.py",
    "pytorch/examples distributed/tensor_parallelism/fsdp_tp_example.py",
    "anyadontfly/fsdp_lifespan_tracking fsdp1/train.py",
    "anyadontfly/fsdp_lifespan_tracking fsdp2/train.py",
    "ibrahimssd/distributed-training-best-practices examples/03_fsdp_large_model.py",
    "jindajia/fsdp2 train.py",
    "marked23/fsdp2-minimal-rocm train.py",
    "shivangraval50/distributed-training-lab train_fsdp.py",
    "smile2game/leet-fsdp demo.py",
    "Arvid-pku/CS512-FSDP run_fsdp.py",
)
"""Five of FSDP1 and five of FSDP2; all train under the release of the tests."""

Fates = dict[str, str]
"""What became of each test or program: ``passed``, ``skipped``, or ``failed: `` and why, in a line."""


def environment(release: str, folder: Path) -> Path:
    """The interpreter of the environment for a release, which is made where it is not there."""
    python = folder / f"torch-{release}" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        subprocess.run([*pip, f"torch=={release}", *TOOLS], check=True)
        subprocess.run([*pip, "--editable", str(ROOT)], check=True)
    return python


def ran(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of this project under an interpreter."""
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [str(python), *words]
    return subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )


def sampled(python: Path, paths: tuple[str, ...]) -> list[str]:
    """The ids of the tests of a sample, the same on each machine."""
    listed = ran(python, "-m", "pytest", "-q", "--collect-only", "-m", "ranks", *paths).stdout
    ids = [line for line in listed.splitlines() if "::" in line]
    chosen = []
    for _, group in groupby(ids, lambda one: one.partition("::")[0]):
        lots = sorted(group, key=lambda one: zlib.crc32(one.encode()))
        chosen += lots[: 1 + len(lots) // ONE_OF]
    return chosen


def tests(*paths: str) -> Callable[[Path, argparse.Namespace], Fates]:
    """Those of some folders that start ranks."""

    def fates(python: Path, asked: argparse.Namespace) -> Fates:
        return _tested(python, sampled(python, paths) if asked.sample else paths, asked.jobs)

    return fates


def rules(python: Path, asked: argparse.Namespace) -> Fates:
    """A rule passes where its first bad script shows what it claims."""
    first: dict[str, str] = {}
    for fixture in sorted(fixtures(), key=lambda one: one.name):
        if fixture.bad and fixture.shown:
            first.setdefault(fixture.path.parent.name, fixture.name)
    test = "tests/rules/test_evidence.py::test_a_fixture_shows_what_it_claims"
    return _tested(python, [f"{test}[{name}]" for name in first.values()], asked.jobs)


def _tested(python: Path, ids: Sequence[str], jobs: int) -> Fates:
    with tempfile.TemporaryDirectory() as folder:
        report, chosen = Path(folder, "report.xml"), Path(folder, "chosen")
        chosen.write_text("\n".join(ids))
        done = ran(
            *(python, "-m", "pytest", "-q", "-n", str(jobs), "-m", "ranks", f"@{chosen}"),
            *(f"--junitxml={report}", "-o", "junit_family=xunit1"),
        )
        if not report.exists():
            raise SystemExit(f"pytest ended without a report:\n{done.stdout}{done.stderr}")
        return {
            f"{case.get('file')}::{case.get('name')}": _fate(case)
            for case in ET.parse(report).getroot().iter("testcase")
        }


def _fate(case: ET.Element) -> str:
    for kind in ("failure", "error"):
        found = case.find(kind)
        if found is not None:
            said = (found.get("message") or found.text or kind).strip().splitlines()
            return f"failed: {said[0][:200]}"
    return "skipped" if case.find("skipped") is not None else "passed"


def mutants(python: Path, asked: argparse.Namespace) -> Fates:
    """Harmful changes pass where they are told, harmless ones where they are called equal."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "mutants.json")
        words = SAMPLED_MUTANTS if asked.sample else ()
        done = ran(python, "benchmarks/proof/mutants.py", *words, f"--json={report}")
        if not report.exists():
            return {"mutants.py": f"failed: {(done.stdout + done.stderr).strip()[-200:]}"}
        fates = {}
        for one in json.loads(report.read_text("utf-8")):
            is_right = one["outcome"] in (("different", "fails") if one["harmful"] else ("equal",))
            why = f"failed: {one['outcome']} {one['told'][:200]}"
            name = f"{one['program']} {one['operator']} {one['place']}"
            fates[name] = "passed" if is_right else why
        return fates or {"mutants.py": f"failed: {done.stdout.strip()[:200]}"}


def public(python: Path, asked: argparse.Namespace) -> Fates:
    """Programs pass that train."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results")
        words = ("benchmarks/proof/public.py", str(asked.programs), *PROGRAMS)
        done = ran(python, *words, f"--results={results}")
        if not results.exists():
            raise SystemExit(f"no public program ran:\n{done.stdout}{done.stderr}")
        seen = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
        return {
            one["name"]: f"failed: {one['stopped']}" if one["stopped"] else "passed" for one in seen
        }


PARTS: dict[str, Callable[[Path, argparse.Namespace], Fates]] = {
    "rules": rules,
    "evidence": tests("tests/rules/test_evidence.py", "tests/rules/test_evidence_fixed.py"),
    "codemods": tests("tests/codemods", "tests/migrate"),
    "verify": tests("tests/verify"),
    "mutants": mutants,
    "public": public,
}


def main() -> int:
    """Run the parts under each release, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("releases", nargs="+", metavar="RELEASE")
    cache = Path.home() / ".cache"
    parser.add_argument("--folder", type=Path, default=RELEASES)
    parser.add_argument("--programs", type=Path, default=cache / "fsdp2lint-programs")
    parser.add_argument("--only", choices=PARTS, action="append", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sample", action="store_true")
    asked = parser.parse_args()
    chosen = asked.only or list(PARTS)
    rows = [f"| torch | {' | '.join(chosen)} |", f"|{'---|' * (1 + len(chosen))}"]
    failed = []
    for release in asked.releases:
        python, cells = environment(release, asked.folder), []
        for part in chosen:
            found = PARTS[part](python, asked)
            counts = Counter(fate.partition(":")[0] for fate in found.values())
            cells.append(", ".join(f"{n} {fate}" for fate, n in sorted(counts.items())))
            print(f"{release} {part}: {cells[-1]}", flush=True)
            failed += [f"{release} {i}\n    {why}" for i, why in found.items() if ":" in why]
        rows.append(f"| {release} | {' | '.join(cells)} |")
    print("\n".join(["", *failed, "", *rows]))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
