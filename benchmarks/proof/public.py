"""Public programs at pinned commits, rehearsed one after the other: which train, and what stops the rest.

    python benchmarks/proof/public.py FOLDER [NAME …] [--results FILE] [--limit SECONDS]

``FOLDER/OWNER+NAME`` holds the files of each repository of ``public.toml`` at its commit; what is missing is fetched from
GitHub. What a program requires is installed by pip into an environment of its own, ``FOLDER/.environments/…``, one for
each set of requirements, which has all other packages of the environment that runs this; where it asks for another release of
PyTorch, all packages of that in ``benchmarks/releases/releases.py``. A program runs as ``fsdp2lint rehearse --fake --steps 3`` with at most one more option. ``NAME`` picks those
whose repository or script contains it. ``--results`` keeps what was seen, one program a line, and leaves out those that
it holds. The exit code is 1 when a program does otherwise than the list expects.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "reach"))

sys.path.insert(0, str(ROOT / "benchmarks" / "releases"))

from reach import fetched  # noqa: E402
from releases import RELEASES, environment  # noqa: E402

LIST = Path(__file__).with_name("public.toml")
STEPS = 3
TRAINS = "trains"
TORCH = "torch==2.13.*"
"""The release that stays, whatever a program requires."""


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A public program and how it is started."""

    repository: str
    commit: str
    run: str
    """The command line in its folder: a script and its arguments, or a launcher's."""
    folder: str = "."
    nproc: int = 2
    option: str = ""
    """One option of ``rehearse`` beside ``--fake``."""
    requires: tuple[str, ...] = ()
    """What pip installs for it, beside PyTorch, transformers, accelerate and datasets."""
    torch: str = ""
    """The release of PyTorch that its authors ask for, where it is another."""
    expects: str = TRAINS
    """``trains``, or in plain words what stops it."""
    bug: str = ""
    """What is wrong in the program itself, where the run shows it: rules, then why."""

    @property
    def name(self) -> str:
        """The repository and the script or module."""
        words = shlex.split(self.run)
        at = next((n for n, word in enumerate(words) if word == "-m" or word.endswith(".py")), 0)
        if words[at] == "-m":
            return f"{self.repository} {words[at + 1]}"
        script = words[at]
        return f"{self.repository} {os.path.normpath(f'{self.folder}/{script}')}"


class Seen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of a program."""

    name: str
    run: str
    steps: int
    seconds: float
    violations: list[str]
    stopped: str
    """The last words of an error, or how the run ended; empty where it trained."""

    @property
    def trains(self) -> bool:
        """Whether it made the steps that were asked for."""
        return self.steps >= STEPS


def programs() -> list[Program]:
    """All of the list."""
    return msgspec.convert(tomllib.loads(LIST.read_text())["program"], list[Program])


def python_with(program: Program, folder: Path) -> str:
    """The interpreter of an environment that has what a program requires, made where it is not there yet."""
    release = program.torch
    below = str(environment(release, RELEASES)) if release else sys.executable
    if not program.requires:
        return below
    names = [re.sub(r"\W+", "-", one) for one in sorted((*program.requires, release)) if one]
    here = folder / ".environments" / "+".join(names)
    python = here / "bin" / "python"
    ready = here / "ready"
    if not ready.is_file():
        subprocess.run([below, "-m", "venv", "--clear", "--symlinks", str(here)], check=True)
        held = next(here.glob("lib/python*/site-packages"))
        told = subprocess.run([below, "-c", "import sys; print(*sys.path, sep='\\n')"], check=True, capture_output=True, text=True)  # fmt: skip
        others = [path for path in told.stdout.splitlines() if Path(path).name == "site-packages"]
        (held / "others.pth").write_text("\n".join(others) + "\n")
        pinned = f"torch=={release}" if release else TORCH
        install = [str(python), "-m", "pip", "install", "-q", pinned, *program.requires]
        subprocess.run(install, check=True, stdout=sys.stderr)
        ready.touch()
    return str(python)


def rehearsed(program: Program, tree: Path, limit: float) -> Seen:
    """Run a program and read the report."""
    python = python_with(program, tree.parent)
    command = [python, "-m", "fsdp2lint", "rehearse", "--fake", "-f", "json", "-q"]
    command += ["--steps", str(STEPS), "--nproc", str(program.nproc), "--timeout", str(limit)]
    command += [*shlex.split(program.option), "--", *shlex.split(program.run)]
    started = time.monotonic()
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    try:
        ran = subprocess.run(
            command,
            cwd=tree / program.folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit + 60,
        )
        report = msgspec.json.decode(ran.stdout) if ran.stdout.startswith("{") else {}
        said = ran.stderr.strip().rpartition("\n")[2]
    except subprocess.TimeoutExpired:
        report, said = {}, f"no report within {limit + 60:.0f} s"
    steps = len(report.get("steps", ()))
    return Seen(
        program.name,
        program.run,
        steps,
        round(time.monotonic() - started, 1),
        sorted({one["code"] for one in report.get("violations", ())}),
        "" if steps >= STEPS else _stopped(report) or said,
    )


def _stopped(report: dict[str, Any]) -> str:
    """Why a run ended early, in one line."""
    ranks = report.get("ranks", [])
    for rank in ranks:
        if rank["outcome"] == "raised":
            words = " ".join(rank["error"].split())[:300]
            if not rank["frames"]:
                return words
            at = rank["frames"][-1]["at"]
            return f"{words} ({Path(at['file']).name}:{at['line']})"
    if report and report["verdict"] != "over":
        return f"{report['verdict']} after {report['seconds']:.0f} s"
    return " ".join(sorted({rank["outcome"] for rank in ranks}))


def table(held: list[tuple[Program, Seen]]) -> str:
    """One row a program, and what they are together."""
    lines = [
        "| program | steps | seconds | violations | what stopped it |",
        "|---|---|---|---|---|",
    ]
    for program, seen in held:
        why = "" if seen.trains else program.expects if program.expects != TRAINS else seen.stopped
        cells = (seen.name, seen.steps, f"{seen.seconds:.0f}", ", ".join(seen.violations), why)
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    trained = sum(seen.trains for _, seen in held)
    share = 100 * trained / max(len(held), 1)
    return "\n".join([*lines, "", f"{trained} of {len(held)} programs train ({share:.0f} %)."])


def known(path: Path | None) -> dict[tuple[str, str], Seen]:
    """What earlier runs saw, by name and command line."""
    if path is None or not path.is_file():
        return {}
    seen = [msgspec.json.decode(line, type=Seen) for line in path.read_bytes().splitlines()]
    return {(one.name, one.run): one for one in seen}


def measured(asked: argparse.Namespace) -> Iterator[tuple[Program, Seen]]:
    """Every program that is asked for, and what became of it."""
    before = known(asked.results)
    for program in programs():
        if asked.names and not any(name in program.name for name in asked.names):
            continue
        seen = before.get((program.name, program.run))
        if seen is None:
            tree = fetched(program.repository, program.commit, asked.folder)
            seen = rehearsed(program, tree, asked.limit)
            if asked.results is not None:
                with asked.results.open("ab") as file:
                    file.write(msgspec.json.encode(seen) + b"\n")
        said = "trains" if seen.trains else f"{seen.steps} steps: {seen.stopped}"
        print(seen.name, f"{seen.seconds:.0f} s", *seen.violations, said, file=sys.stderr, flush=True)  # fmt: skip
        yield program, seen


def main() -> int:
    """Rehearse, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for each program")
    held = list(measured(parser.parse_args()))
    print(table(held))
    return int(any(seen.trains != (program.expects == TRAINS) for program, seen in held))


if __name__ == "__main__":
    sys.exit(main())
