"""One script, run under torchrun on this machine's CPU, and what there is to say about it."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fsdp2lint.rehearse import contract, workfolder
from fsdp2lint.rehearse.launch import Echo, Launch, Run, launch
from fsdp2lint.rehearse.outcome import RankReport, Request, Step, Violation


class CannotRun(Exception):
    """The rehearsal cannot begin; the text says why."""


@dataclass(frozen=True)
class Seen:
    """One optimizer step over all ranks; None where a number was not finite or not there."""

    loss: float | None
    """The sum of what rank 0 called ``backward`` on before the step."""
    mean: float | None
    """That sum's mean over the ranks."""
    norm: float | None
    """The norm of all gradients that the optimizer stepped with."""


@dataclass(frozen=True)
class Rehearsal:
    """A script's run and its judgment."""

    request: Request
    run: Run
    violations: list[Violation]
    notes: list[str]
    doubts: list[Violation] = field(default_factory=list)
    """What may be meant so, and is worth a look; the exit code is not changed by it."""

    @property
    def completed(self) -> bool:
        """Whether every rank ran as far as it should, and its process ended well."""
        ranks = self.run.ranks
        done = len(ranks) == self.request.nproc and all(rank.done for rank in ranks)
        return done and self.run.verdict == "over" and self.run.status == 0

    @property
    def exit_code(self) -> int:
        """0 clean, 1 the contract was broken, 2 the script could not be run to its end."""
        return 1 if self.violations else 0 if self.completed else 2

    @property
    def replaced(self) -> dict[str, int]:
        """What the stand-in replaced on rank 0, most frequent first."""
        counts: Counter[str] = Counter()
        for rank in self.run.ranks[:1]:
            counts.update(rank.replaced)
        return dict(counts.most_common())

    @property
    def steps(self) -> list[Seen]:
        """The steps that all ranks made."""
        return list(map(_seen, zip(*(rank.steps for rank in self.run.ranks), strict=False)))


def rehearse(
    request: Request, echo: Echo, run: Launch = launch, *, in_place: bool = True
) -> Rehearsal:
    """Run the script of a request and judge what happened.

    A request without a scratch folder gets one that is gone afterwards; unless ``in_place``, the script works
    there too, in links to the current folder. ``run`` starts the ranks.

    Raises:
        CannotRun: PyTorch, the script or a GPU for each rank is not there.
    """
    require_torch()
    if not request.module and not os.path.isfile(request.target):
        raise CannotRun(f"no such script: {request.target}")
    if request.device == "cuda" and (found := gpus()) < request.nproc:
        raise CannotRun(
            f"--device cuda takes one GPU for each of the {request.nproc} ranks, and PyTorch sees {found}"
        )
    if request.scratch:
        return _judged(request, run(request, echo))
    with tempfile.TemporaryDirectory(prefix="fsdp2lint-") as scratch:
        placed = msgspec.structs.replace(request, scratch=scratch)
        if in_place:
            return _judged(request, run(placed, echo))
        work = workfolder.make(Path.cwd(), Path(scratch).resolve() / "work")
        target = request.target if request.module else os.path.abspath(request.target)
        placed = msgspec.structs.replace(placed, target=target, folder=str(work), root=os.getcwd())
        rehearsal = _judged(request, run(placed, echo))
        rehearsal.notes.extend(_discarded(work))
        return rehearsal


def _discarded(work: Path) -> Iterator[str]:
    """What the script wrote into its folder."""
    names = sorted(map(str, workfolder.written(work)))
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        files = "file" if len(names) == 1 else "files"
        yield f"discarded the {files} that the script wrote: `{names[0]}`{more} (keep them with --in-place)"


def require_torch() -> None:
    """Raises CannotRun: PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise CannotRun("PyTorch is not installed: pip install 'fsdp2lint[verify]'")


def gpus() -> int:
    """How many GPUs PyTorch sees; another process asks, because this one never imports it."""
    asked = "import torch; print(torch.cuda.device_count())"
    answer = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=False
    )
    return int(answer.stdout) if answer.stdout.strip().isdigit() else 0


def _judged(request: Request, run: Run) -> Rehearsal:
    notes = [*_numbers(run.ranks), *([run.stalled] if run.stalled else ())]
    judged, doubts = contract.judge(run.ranks), contract.doubts(run.ranks)
    rehearsal = Rehearsal(request, run, judged, notes, doubts)
    if rehearsal.completed and not rehearsal.steps:
        notes.append("the script made no optimizer step: what training would show was not checked")
    notes.extend(_own_rows_wanted(run.ranks))
    return rehearsal


def _numbers(ranks: Sequence[RankReport]) -> Iterator[str]:
    """Steps whose loss is no number any more."""
    for rank in ranks:
        lost = [n for n, step in enumerate(rank.steps, 1) if None in step.losses]
        if lost:
            yield (
                f"the loss is not finite in {len(lost)} of {len(rank.steps)} steps, "
                f"first in step {lost[0]}: were all parameters initialised?"
            )
            return


_OF_A_FORM = (
    r"(Assertion|Index|Key|Type|Value|ZeroDivision)Error|'(int|float|str|list|dict)' object has no"
)
_PACKAGE = re.compile(r"made up: (\w+)$")
_MADE_UP = re.compile(
    r"made up: ((?:load_|from_)\w+\(.*|.+\.(?:jsonl?|ndjson|csv|tsv|txt|bin|npy|parquet))$"
)


def _own_rows_wanted(ranks: Sequence[RankReport]) -> Iterator[str]:
    """The way round, where an error may come of what was made up: data of another form, packages that do nothing."""
    dead = first_dead(ranks)
    if dead is None or not re.search(_OF_A_FORM, dead.error):
        return
    names = [match[1] for match in map(_MADE_UP.match, dead.replaced) if match]
    if names:
        shown = ", ".join(f"`{name}`" for name in names[:3])
        yield (
            f"data were made up ({shown}) and may not have the form that the script reads: give it a few rows of "
            "your own, or put them in place by --patch MODULE:FUNCTION"
        )
    packages = [match[1] for match in map(_PACKAGE.match, dead.replaced) if match]
    if packages and not names and re.search(r"AssertionError|\bNothing\b", dead.error):
        shown = ", ".join(f"`{name}`" for name in packages[:5])
        yield f"packages were made up and do nothing ({shown}): install what the script computes with"


def _seen(steps: Sequence[Step]) -> Seen:
    losses = [_sum(step.losses) for step in steps]
    squares = _sum([step.squares for step in steps])
    total = _sum(losses)
    return Seen(
        losses[0],
        None if total is None else total / len(losses),
        None if squares is None else math.sqrt(squares),
    )


def _sum(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None


def first_dead(ranks: Sequence[RankReport]) -> RankReport | None:
    """The rank whose own failure ended the run: an error before a death, either before a wait."""
    for how in ("raised", "died"):
        for rank in ranks:
            if rank.how == how:
                return rank
    return None
