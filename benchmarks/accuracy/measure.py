"""How often ``fsdp2lint check`` is right on public code: its findings against a manifest of judged ones.

python benchmarks/accuracy/measure.py [--checkouts DIR] [--repository OWNER/NAME] [--results DIR] [--publish]

``DIR/OWNER__NAME`` (or ``DIR/OWNER/NAME``) is a git clone of each repository. Every commit that the manifest
names is unpacked beside and checked with all rules. Shown are the precision of each rule, the findings that
nobody has judged, and the true ones that are no longer found. ``--results`` keeps what was found and reads it
instead of looking again; ``--publish`` writes into the manifest which of its sites are reported, and counts the numbers that the
pages of the rules show from it. Without ``--checkouts`` it only counts: after a line was added by hand.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from manifest import MANIFEST, BadManifest, Judged, Site, Snapshot, read, text

ROOT = Path(__file__).parent.parent.parent
PUBLISHED = ROOT / "fsdp2lint" / "catalogue" / "accuracy.json"
MAX_SIZE = 2_000_000
OWN_CODES = "FSDP9"
"""Findings about the text (a syntax error, an idle suppression): nothing to be wrong about."""


class Unseen(Exception):
    """A clone or a commit that is not there, or a run that went wrong."""


def found_in(checkouts: Path, snapshot: Snapshot) -> set[Site]:
    """What all rules report in the repository at the commit.

    Raises:
        Unseen: there is no such clone or commit, or the program failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        unpack(checkouts, snapshot, Path(folder))
        (Path(folder) / ".git").mkdir()  # where a repository ends decides which files speak for it
        return check(Path(folder))


def unpack(checkouts: Path, snapshot: Snapshot, folder: Path) -> None:
    """Put the files of the commit into the folder.

    Raises:
        Unseen: there is no such clone or commit.
    """
    owner, _, name = snapshot.repository.partition("/")
    clones = [checkouts / f"{owner}__{name}", checkouts / owner / name]
    clone = next((c for c in clones if c.is_dir()), None)
    if clone is None:
        raise Unseen(f"{snapshot.repository}: no clone at {clones[0]}")
    listed = _git(snapshot, clone, "ls-tree", "-r", "-l", "-z", snapshot.commit).decode()
    rows = [line.partition("\t") for line in listed.split("\0") if line]
    names = [name for kind, _, name in rows if _is_read(name) and _is_small(kind.split()[-1])]
    packed = _git(snapshot, clone, "--literal-pathspecs", "archive", snapshot.commit, "--", *names)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = [member for member in archive.getmembers() if member.isfile()]
        archive.extractall(folder, members=files, filter="data")


def _git(snapshot: Snapshot, clone: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(clone), *arguments]
    run = subprocess.run(command, capture_output=True, check=False)
    if run.returncode:
        said = " ".join(run.stderr.decode(errors="replace").split())
        raise Unseen(f"{snapshot.repository}: {said}")
    return run.stdout


def _is_read(name: str) -> bool:
    """Whether ``check`` reads a file of this name: code, settings, and what says which torch is wanted."""
    last = name.rpartition("/")[2]
    ends = (".py", ".toml", ".cfg", ".yaml", ".yml", ".json")
    return last.endswith(ends) or last.startswith(("requirements", "install", "Dockerfile"))


def _is_small(size: str) -> bool:
    """Whether a file is not too large for ``check``, and lies in the clone: one may leave large files out."""
    return size.isdigit() and int(size) <= MAX_SIZE


def check(folder: Path) -> set[Site]:
    """The findings of all rules below the folder.

    Raises:
        Unseen: the program failed.
    """
    options = [
        "--isolated",
        "--no-cache",
        "--preview",
        "--select",
        "ALL",
        "--output-format",
        "json",
    ]
    command = [sys.executable, "-m", "fsdp2lint", "check", *options, "."]
    run = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    if run.returncode not in (0, 1):
        raise Unseen(run.stderr.decode(errors="replace").strip())
    sites = (Site(f["filename"], f["location"]["row"], f["code"]) for f in json.loads(run.stdout))
    return {s for s in sites if not s.rule.startswith(OWN_CODES)}


@dataclass
class Score:
    """How often a rule was right, and in which repositories."""

    right: int = 0
    wrong: int = 0
    mended: int = 0
    """False alarms of the past, no longer reported."""
    repositories: set[str] = field(default_factory=set)

    @property
    def judged(self) -> int:
        """The reported sites that have a verdict."""
        return self.right + self.wrong

    @property
    def precision(self) -> float | None:
        """Of the reported sites the share that is true; None when there is none."""
        return self.right / self.judged if self.judged else None


@dataclass
class Report:
    """The findings of some snapshots beside their verdicts."""

    scores: dict[str, Score] = field(default_factory=dict)
    unjudged: list[tuple[Snapshot, Site]] = field(default_factory=list)
    gone: list[Judged] = field(default_factory=list)

    def add(self, snapshot: Snapshot, found: set[Site], judged: Iterable[Judged]) -> None:
        """Count the findings of one snapshot."""
        known = {one.site: one for one in judged}
        self.unjudged += [(snapshot, site) for site in sorted(found - known.keys())]
        for site, one in sorted(known.items()):
            score = self.scores.setdefault(site.rule, Score())
            if site not in found:
                score.mended += not one.verdict
                self.gone += [one] if one.verdict else []
                continue
            score.right += one.verdict
            score.wrong += not one.verdict
            score.repositories.add(snapshot.repository)


def lines(report: Report) -> Iterable[str]:
    """The report as text."""
    yield f"{'rule':8} {'judged':>6} {'right':>6} {'wrong':>6} {'mended':>6} {'precision':>9}  repositories"
    for rule, s in sorted(report.scores.items()):
        share = "–" if s.precision is None else f"{s.precision:.0%}"
        numbers = f"{s.judged:6} {s.right:6} {s.wrong:6} {s.mended:6} {share:>9}"
        yield f"{rule:8} {numbers}  {len(s.repositories)}"
    yield f"\n{len(report.unjudged)} without a verdict"
    for snapshot, site in report.unjudged:
        yield _line(snapshot, site)
    yield f"\n{len(report.gone)} true ones no longer found"
    for one in report.gone:
        yield _line(one.snapshot, one.site)


def _line(snapshot: Snapshot, site: Site) -> str:
    place = f"{snapshot.repository}@{snapshot.commit[:10]} {site.path}:{site.line}"
    return f"  {place} {site.rule}"


def seen_again(judged: Iterable[Judged], found: Mapping[Snapshot, set[Site]]) -> list[Judged]:
    """The judged sites; those of the snapshots that were looked at say whether they are reported."""
    return [
        msgspec.structs.replace(one, reported=_unlike(one, found[one.snapshot]))
        if one.snapshot in found
        else one
        for one in judged
    ]


def _unlike(one: Judged, found: set[Site]) -> bool | None:
    """Whether a site is reported, where the verdict does not say so already."""
    is_reported = one.site in found
    return None if is_reported is one.verdict else is_reported


def published(judged: Iterable[Judged]) -> bytes:
    """The numbers that go with the package: reported sites and repositories of each rule, and how many are right."""
    rules: dict[str, Score] = {}
    for one in judged:
        if one.is_reported:
            score = rules.setdefault(one.rule, Score())
            score.right += one.verdict
            score.wrong += not one.verdict
            score.repositories.add(one.repository)
    numbers = {
        rule: {"judged": s.judged, "right": s.right, "repositories": len(s.repositories)}
        for rule, s in sorted(rules.items())
    }
    return msgspec.json.format(msgspec.json.encode(numbers), indent=2) + b"\n"


class Kept:
    """Findings kept in a folder, one file for each snapshot."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def found_in(self, checkouts: Path, snapshot: Snapshot) -> set[Site]:
        """What is kept for the snapshot, else what is found now.

        Raises:
            Unseen: as :func:`found_in`.
        """
        if self.folder is None:
            return found_in(checkouts, snapshot)
        name = f"{snapshot.repository.replace('/', '__')}@{snapshot.commit}.json"
        path = self.folder / name
        if path.is_file():
            return set(msgspec.json.decode(path.read_bytes(), type=list[Site]))
        found = found_in(checkouts, snapshot)
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(sorted(found)))
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a finding has no verdict, is false, or is gone, 2 when something is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkouts", type=Path, metavar="DIR")
    parser.add_argument("--repository", metavar="OWNER/NAME", help="only this one")
    parser.add_argument("--results", type=Path, metavar="DIR", help="keep and reuse what is found")
    parser.add_argument("--manifest", type=Path, default=MANIFEST, metavar="FILE")
    parser.add_argument(
        "--publish", action="store_true", help="write the numbers of the rule pages"
    )
    parser.add_argument("--published", type=Path, default=PUBLISHED, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.checkouts is None and not asked.publish:
        parser.error("--checkouts is missing")
    report = Report()
    seen: dict[Snapshot, set[Site]] = {}
    try:
        judged = read(asked.manifest)
        if asked.checkouts is None:
            asked.published.write_bytes(published(judged))
            return 0
        wanted = [j for j in judged if asked.repository in (None, j.repository)]
        if not wanted:
            raise Unseen(f"{asked.manifest} has no site in {asked.repository}")
        for snapshot in sorted({one.snapshot for one in wanted}):
            found = Kept(asked.results).found_in(asked.checkouts, snapshot)
            report.add(snapshot, found, [j for j in wanted if j.snapshot == snapshot])
            seen[snapshot] = found
    except (BadManifest, Unseen, OSError) as wrong:
        print(wrong, file=sys.stderr)
        return 2
    print("\n".join(lines(report)))
    if asked.publish:
        judged = seen_again(judged, seen)
        asked.manifest.write_text(text(judged), "utf-8")
        asked.published.write_bytes(published(judged))
    wrong_ones = sum(score.wrong for score in report.scores.values())
    return 1 if report.unjudged or report.gone or wrong_ones else 0


if __name__ == "__main__":
    sys.exit(main())
