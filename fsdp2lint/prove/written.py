"""What a run wrote: its checkpoints, and the other files in its working folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fsdp2lint.rehearse.outcome import RankReport
from fsdp2lint.rehearse.results import Checkpoint
from fsdp2lint.rehearse.workfolder import written

_NUMBER = re.compile(r"\d+")


@dataclass
class _Written:
    """Who wrote a checkpoint, and after how many steps."""

    step: int = 0
    ranks: set[int] = field(default_factory=set)


def paths(ranks: Sequence[RankReport]) -> list[str]:
    """Everything that the ranks of a run saved as a checkpoint."""
    return list(_all(ranks))


def checkpoints(
    ranks: Sequence[RankReport], work: Path, lies: Callable[[str], str]
) -> list[Checkpoint]:
    """The checkpoints that are still there; files that ranks wrote one each are one together.

    ``lies`` says where the content of a path is now.
    """
    families: dict[object, list[tuple[str, str, _Written]]] = {}
    for path, wrote in _all(ranks).items():
        if not os.path.exists(path):
            continue  # the script kept only the newest
        shown = os.path.relpath(path, work) if is_inside(path, work) else path
        one = next(iter(wrote.ranks)) if len(wrote.ranks) == 1 else None
        family = (wrote.step, _NUMBER.sub("*", shown))
        known = families.setdefault((family, "each") if one is not None else path, [])
        if any(wrote.ranks & other.ranks for _, _, other in known):
            known = families.setdefault(path, [])  # one rank writes several files of such a name
        known.append((path, shown, wrote))
    return [_checkpoint(members, lies) for members in families.values()]


def _checkpoint(members: list[tuple[str, str, _Written]], lies: Callable[[str], str]) -> Checkpoint:
    members = sorted(members, key=lambda member: min(member[2].ranks))
    first, *others = (lies(path) for path, _, _ in members)
    names = [shown for _, shown, _ in members]
    name = names[0] if not others else f"{names[0]} to {names[-1]}"
    return Checkpoint(first, name, members[0][2].step, tuple(others))


def writers(ranks: Sequence[RankReport], work: Path) -> dict[str, set[int]]:
    """The files that ranks write whole, by their names in the working folder, and the ranks that do."""
    found: dict[str, set[int]] = {}
    for rank in ranks:
        for saved in rank.saved:
            if saved.kind != "dcp":
                inside = is_inside(saved.path, work)
                name = os.path.relpath(saved.path, work) if inside else saved.path
                found.setdefault(name, set()).add(rank.rank)
    return found


def _all(ranks: Sequence[RankReport]) -> dict[str, _Written]:
    found: dict[str, _Written] = {}
    for rank in ranks:
        for saved in rank.saved:
            wrote = found.setdefault(saved.path, _Written())
            wrote.step = max(saved.step, wrote.step)
            wrote.ranks.add(rank.rank)
    return found


def is_inside(path: str, work: Path) -> bool:
    """Whether a path lies in a working folder."""
    return Path(path).is_relative_to(work)


def others(work: Path, known: Sequence[str]) -> list[Path]:
    """The files in a working folder that are none of the known checkpoints, relative to it."""
    told = [Path(path) for path in known]
    return [name for name in written(work) if not _among(work / name, told)]


def _among(path: Path, known: Sequence[Path]) -> bool:
    return any(path.is_relative_to(one) for one in known)
