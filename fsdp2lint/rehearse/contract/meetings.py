"""All ranks gather the same units, and reduce gradients of the same parameters, in one order (FSDP412).

``fully_shard`` reduces those parameters of a unit that have a gradient. Where a rank never used one, as an expert that none of
its tokens reached, its tensor is shorter; where a rank left out a whole unit, it meets the others with the next one. gloo ends the process,
NCCL waits, and tensors that are as long by chance mix parameters without a word. FSDP1 reduced all of a unit, and so does
``set_reduce_scatter_unused_params`` (PyTorch 2.13).

In a rehearsal each rank writes down every such collective before it takes part, so that the lists can be compared although it died
there. A guard counts, and compares the counts.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.outcome import Meeting, RankReport, Spot, Violation
from fsdp2lint.rehearse.stacks import here

MOST = 200_000
"""Collectives of a rank that are written down."""
_WAY_OUT = "use each parameter on every rank, or call `set_reduce_scatter_unused_params(True)` (PyTorch 2.13)"


class Meetings(Check):
    """Listens to the two functions by which units of ``fully_shard`` communicate."""

    def install(self) -> None:
        """Listen; and write to a file, where there is one."""
        self._counts: dict[str, Counter[str]] = {}
        """By process group and parameter, how often its gradient was reduced."""
        self._gathered: set[int] = set()
        self._numbers: dict[Meeting, int] = {}
        self._left = MOST
        self._log = -1
        if self.watch.log is not None:
            self._log = os.open(self.watch.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with contextlib.suppress(ImportError):
            from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

            from fsdp2lint.rehearse.contract.watch import replace_everywhere

            replace_everywhere(collectives.foreach_all_gather, self._gathering)
            replace_everywhere(collectives.foreach_reduce, self._reducing)

    def _gathering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def gather(parameters: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
            if id(parameters) not in self._gathered:
                self._gathered.add(id(parameters))
                counts = self._of(group)
                for one in parameters:
                    if one.sharded_param.requires_grad:
                        counts[_name(one)] += 0
            self._note("gathers", group, parameters)
            return original(parameters, group, *args, **kwargs)

        return gather

    def _reducing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def reduce(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            groups = [given["reduce_scatter_group"]]
            if given.get("all_reduce_grads", True):
                groups.append(given.get("all_reduce_group"))
            for group in groups:
                counts = self._of(group)
                for one in given["fsdp_params"]:
                    counts[_name(one)] += 1
                self._note("reduces", group, given["fsdp_params"])
            return original(*args, **kwargs)

        return reduce

    def _of(self, group: Any) -> Counter[str]:
        name = group.group_name if group is not None and group.size() > 1 else ""
        return self._counts.setdefault(name, Counter())

    def _note(self, kind: str, group: Any, parameters: Any) -> None:
        if self._log < 0 or not self._left or group is None or group.size() < 2:
            return
        self._left -= 1
        meeting = Meeting(kind, group.group_name, tuple(map(_name, parameters)), here())
        line: Any = self._numbers.get(meeting)
        if line is None:
            self._numbers[meeting] = len(self._numbers)
            at = meeting.at and [meeting.at.file, meeting.at.line]
            line = [kind, meeting.group, meeting.names, at]
        os.write(self._log, f"{json.dumps(line)}\n".encode())

    def facts(self) -> Any:
        """By process group: the most reductions of a parameter, and those of which there were fewer; nothing where all is written down."""
        found = {}
        for group, counts in self._counts.items():
            if group and counts and self._log < 0:
                most = max(counts.values())
                fewer = {name: count for name, count in counts.items() if count < most}
                found[group] = {"most": most, "fewer": fewer}
        return found

    @staticmethod
    def across(ranks: list[Any]) -> Iterator[Violation]:
        """Parameters whose gradient some rank of a group has reduced less often than another."""
        for group in dict.fromkeys(group for rank in ranks for group in rank):
            inside = [(number, rank[group]) for number, rank in enumerate(ranks) if group in rank]
            names = dict.fromkeys(name for _, one in inside for name in one["fewer"])
            counts = {n: {r: one["fewer"].get(n, one["most"]) for r, one in inside} for n in names}
            apart = [name for name in names if len(set(counts[name].values())) > 1]
            if apart:
                by_rank = counts[apart[0]]
                me, other = min(by_rank, key=by_rank.__getitem__), max(by_rank, key=by_rank.__getitem__)  # fmt: skip
                lacking = [name for name in apart if counts[name][me] < counts[name][other]]
                yield Violation("FSDP412", _lacks(me, other, lacking))


def read(path: Path) -> list[Meeting]:
    """What a rank has written down; its last line may be half."""
    kinds: list[Meeting] = []
    found: list[Meeting] = []
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            try:
                said = json.loads(line)
            except ValueError:
                break
            if isinstance(said, list):
                kind, group, names, at = said
                kinds.append(Meeting(kind, group, tuple(names), at and Spot(*at)))
            found.append(kinds[said] if isinstance(said, int) else kinds[-1])
    return found


def across(ranks: Sequence[RankReport]) -> Iterator[Violation]:
    """Where two ranks of a group met first with other parameters: it explains all that comes after."""
    for group in dict.fromkeys(meeting.group for rank in ranks for meeting in rank.meetings):
        lists = [(r.rank, [m for m in r.meetings if m.group == group]) for r in ranks]
        first, *others = [(rank, mine) for rank, mine in lists if mine] or [(0, [])]
        for other in others:
            pairs = zip(first[1], other[1], strict=False)
            apart = next(((a, b) for a, b in pairs if (a.kind, a.names) != (b.kind, b.names)), None)
            if apart is not None:
                yield _apart((first[0], apart[0]), (other[0], apart[1]))
                break


def _apart(one: tuple[int, Meeting], two: tuple[int, Meeting]) -> Violation:
    (rank, mine), (other, theirs) = sorted((one, two), key=lambda it: len(it[1].names))
    lacking = [name for name in theirs.names if name not in mine.names]
    if mine.kind == theirs.kind == "reduces" and len(lacking) < len(theirs.names):
        return Violation("FSDP412", _lacks(rank, other, lacking), mine.at or theirs.at)
    (rank, mine), (other, theirs) = one, two
    message = (
        f"rank {rank} {mine.kind} {_some(mine.names)} here, where rank {other} {theirs.kind} {_some(theirs.names)}: "
        "one of them left out a part of the model, so they wait, end, or mix parameters; let each sharded module "
        "compute on every rank, in forward and in backward"
    )
    because = ((theirs.at, f"rank {other} is here"),) if theirs.at else ()
    return Violation("FSDP412", message, mine.at or theirs.at, because)


def _lacks(me: int, other: int, names: Sequence[str]) -> str:
    return (
        f"rank {me} has no gradient of {_some(names)}, which rank {other} has: they reduce different tensors, so the run "
        f"hangs or ends, or gradients of different parameters are added up; {_WAY_OUT}"
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


def _name(parameter: Any) -> str:
    return str(parameter._param_fqn or parameter._module_info.param_name)
