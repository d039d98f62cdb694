"""The manifest: findings of ``fsdp2lint check`` on public code, each judged by hand.

``manifest.jsonl`` holds one site a line, sorted. ``verdict`` says whether the finding is true there: what the
rule's page says does happen. A true finding is reported and a false one is mended, unless ``reported`` says otherwise:
``measure.py --publish`` writes that down for what it has looked at. The published numbers are counted from this file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

MANIFEST = Path(__file__).parent / "manifest.jsonl"


class Snapshot(msgspec.Struct, frozen=True, order=True):
    """A repository (``owner/name``) at a commit."""

    repository: str
    commit: str


class Site(msgspec.Struct, frozen=True, order=True):
    """Where a rule speaks; several findings of one rule on one line are one site."""

    path: str
    line: int
    rule: str


class Judged(
    msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A site with its verdict."""

    repository: str
    commit: str
    path: str
    line: int
    rule: str
    verdict: bool
    reason: str
    reported: bool | None = None
    """Whether the program reports it; None where that is what the verdict says."""

    @property
    def is_reported(self) -> bool:
        """Whether the program reports it, as far as was last seen."""
        return self.verdict if self.reported is None else self.reported

    @property
    def snapshot(self) -> Snapshot:
        """What has to be looked at to see the site."""
        return Snapshot(self.repository, self.commit)

    @property
    def site(self) -> Site:
        """The site without the verdict."""
        return Site(self.path, self.line, self.rule)


class BadManifest(Exception):
    """A line that is no judged site, or a site that is judged twice."""


def read(path: Path = MANIFEST) -> list[Judged]:
    """The judged sites of a manifest.

    Raises:
        BadManifest: a line is not as it should be, or a site stands there twice.
    """
    found: dict[tuple[Snapshot, Site], Judged] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            one = msgspec.json.decode(line, type=Judged)
        except msgspec.DecodeError as wrong:
            raise BadManifest(f"{path.name}:{number}: {wrong}") from wrong
        key = (one.snapshot, one.site)
        if key in found:
            raise BadManifest(f"{path.name}:{number}: {one.path}:{one.line} is judged twice")
        found[key] = one
    return list(found.values())


def text(judged: Iterable[Judged]) -> str:
    """The manifest of these sites, in its order."""
    return "".join(msgspec.json.encode(one).decode() + "\n" for one in sorted(judged))
