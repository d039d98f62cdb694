"""What runs under other releases of PyTorch than the one that the tests are pinned to.

    python benchmarks/releases/releases.py 2.7.1 2.9.1 [--folder VENVS] [--only evidence] [--jobs 2] [--sample]

For each release: a virtual environment of its own below VENVS (kept there), with the project and its test tools; then the
tests that start ranks, in three groups: the evidence of the rules, the codemods and migrated projects, and `rehearse`, `verify`,
`plan`. Prints a row of Markdown for each group and the ids of the tests that fail, with the first line of why. ``--sample``
runs one test of forty. A release takes about 5 GB on disk: on PyPI there are only builds with CUDA, which run on a
CPU, too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

GROUPS = {
    "evidence": ("tests/rules/test_evidence.py", "tests/rules/test_evidence_fixed.py"),
    "codemods": ("tests/codemods", "tests/migrate"),
    "verify": ("tests/verify",),
}
TOOLS = ("numpy", "safetensors", "pytest>=8", "pytest-xdist>=3", "hypothesis>=6", "setuptools")


def environment(release: str, folder: Path) -> Path:
    """The interpreter of the environment for a release, which is made where it is not there."""
    python = folder / f"torch-{release}" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        subprocess.run([*pip, f"torch=={release}", *TOOLS], check=True)
        subprocess.run([*pip, "--editable", str(ROOT)], check=True)
    return python


def outcomes(python: Path, paths: tuple[str, ...], jobs: int, sample: bool) -> dict[str, str]:
    """What became of each test: ``passed``, ``skipped``, or why it failed, in a line."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [str(python), "-m", "pytest", "-q", "-n", str(jobs), "-m", "ranks", *paths]
        command += [f"--junitxml={report}", "-o", "junit_family=xunit1"]
        if sample:
            command.append("--sample-ranks")
        variables = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
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


def main() -> int:
    """Run the groups under each release, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("releases", nargs="+", metavar="RELEASE")
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache" / "fsdp2lint-torch")
    parser.add_argument("--only", choices=GROUPS, action="append", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sample", action="store_true")
    given = parser.parse_args()
    rows, failed = ["| torch | tests | passed | skipped | failed |", "|---|---|---|---|---|"], []
    for release in given.releases:
        python = environment(release, given.folder)
        for group in given.only or GROUPS:
            found = outcomes(python, GROUPS[group], given.jobs, given.sample)
            counts = Counter(fate.partition(":")[0] for fate in found.values())
            row = (release, group, *(str(counts[fate]) for fate in ("passed", "skipped", "failed")))
            rows.append(f"| {' | '.join(row)} |")
            print(rows[-1], flush=True)
            failed += [f"{release} {i}\n    {why}" for i, why in found.items() if ":" in why]
    print("\n".join(["", *failed, "", *rows]))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
