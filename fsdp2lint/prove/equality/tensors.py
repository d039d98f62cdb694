"""Two tensors, or two sets of them by name, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch
from torch.distributed.tensor import DTensor

from fsdp2lint.prove.equality.reading import Later
from fsdp2lint.prove.equality.shards import Each, Part
from fsdp2lint.rehearse.results import Compared, Difference, Kind, relative

SLICE = 1 << 22
"""So many elements are compared at once, in double precision."""


Slack = Callable[[str], torch.Tensor | None]
"""For a parameter's name, how far each of its elements may be apart beyond the tolerance."""


class Sides:
    """Compares by name; differences go to ``compared``, the farthest apart first."""

    def __init__(
        self, compared: Compared, kind: Kind, rtol: float, slack: Slack = lambda _: None
    ) -> None:
        self._compared, self._kind, self._rtol, self._slack = compared, kind, rtol, slack
        self._found: list[Difference] = []
        self._excused: list[str] = []

    def compare(self, before: Mapping[str, Any], after: Mapping[str, Any], of: str = "") -> None:
        """Compare what both have, and say what only one has."""
        for name in before:
            if name in after:
                self._pair(f"{of}{name}", before[name], after[name], name)
        for here, there, missing in ((before, after, "AFTER"), (after, before, "BEFORE")):
            if alone := [name for name in here if name not in there]:
                more = f" and {len(alone) - 1} more" if len(alone) > 1 else ""
                message = f"{missing} has no `{of}{alone[0]}`{more}"
                self._say(message, f"{of}{alone[0]}", missing=missing == "AFTER")

    def lacks(self, name: str, message: str) -> None:
        """Say that AFTER does not have what BEFORE has under a name."""
        self._say(message, name, missing=True)

    def close(self) -> None:
        """Conclude: keep the worst difference and how many others there are."""
        if self._excused:
            first = f"elements of `{self._excused[0]}`"
            more = len(self._excused) - 1
            others = f" and of {more} more" if more else ""
            self._compared.notes.append(
                f"{first}{others} follow the rounding noise of their gradients, and only those "
                f"differ by more than {self._rtol:g}"
            )
        for missing in (False, True):
            found = [one for one in self._found if one.missing == missing]
            if found and not missing:
                worst = max(found, key=_badness)
                found = [msgspec.structs.replace(worst, more=len(found) - 1)]
            self._compared.differences += found

    def _pair(self, name: str, before: Any, after: Any, own: str) -> None:
        old, new = _alike(_read(before), _read(after))
        if isinstance(old, Each) and isinstance(new, Each):
            for rank, values in enumerate(zip(old.values, new.values, strict=False)):
                self._pair(f"{name} on rank {rank}", *values, "")
        self._compared.count += 1
        problem = _mismatch(old, new)
        if problem:
            self._say(f"`{name}` {problem}", name)
            return
        if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
            self._plain(name, old, new)
            return
        identical, apart = compare(old, new)
        self._compared.identical += identical
        if apart is not None and apart > self._rtol > 0:
            slack = self._slack(own)
            known = slack is not None and slack.shape == old.shape
            held = compare(old, new, slack)[1] if known else None
            if held is not None and held <= self._rtol:
                self._excused.append(name)
                return
        if apart is not None and math.isnan(apart):
            self._compared.unproven = f"`{name}` holds NaN in both programs"
            return
        if apart is None:
            self._say(f"`{name}` has NaN in other places", name)
            return
        self._compared.relative = max(self._compared.relative, apart)
        if apart > self._rtol:
            self._say(f"`{name}` differs by {apart:.2g} relative to its largest value", name, apart)

    def _plain(self, name: str, before: Any, after: Any) -> None:
        before, after = _number(before), _number(after)
        if isinstance(before, str) and isinstance(after, str):
            self._compared.identical += before == after
            if before != after:
                self._say(
                    f"`{name}` is {before[:60]!r} in BEFORE and {after[:60]!r} in AFTER", name
                )
        elif isinstance(before, float) and isinstance(after, float):
            if math.isnan(before) and math.isnan(after):
                self._compared.notes.append(f"`{name}` is NaN in both: not compared")
                return
            apart = 0.0 if before == after else relative(before, after)
            self._compared.identical += before == after
            if not apart <= self._rtol:
                self._say(
                    f"`{name}` is {before:.9g} in BEFORE and {after:.9g} in AFTER", name, apart
                )
        else:
            self._compared.count -= 1

    def _say(
        self, message: str, name: str, apart: float | None = None, *, missing: bool = False
    ) -> None:
        self._found.append(
            Difference(self._kind, message, name=name, relative=apart, missing=missing)
        )


def _badness(difference: Difference) -> float:
    return float("inf") if difference.relative is None else difference.relative


def _read(leaf: Any) -> Any:
    if isinstance(leaf, Part):
        whole = leaf.whole()
        return leaf if whole is None else whole
    return leaf.read() if isinstance(leaf, Later) else leaf


def _number(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    return float(value) if isinstance(value, bool | int | float) else value


def _alike(before: Any, after: Any) -> tuple[Any, Any]:
    """What ranks have of one side's tensor as the tensor, where the other side has it whole."""
    if isinstance(before, Each) and isinstance(after, torch.Tensor):
        whole = before.whole(after.shape)
        return (before if whole is None else whole), after
    if isinstance(after, Each) and isinstance(before, torch.Tensor):
        whole = after.whole(before.shape)
        return before, (after if whole is None else whole)
    return before, after


def _mismatch(before: Any, after: Any) -> str:
    if isinstance(before, Each) and isinstance(after, Each):
        counts = len(before.values), len(after.values)
        return (
            ""
            if counts[0] == counts[1]
            else f"is of {counts[0]} ranks in BEFORE, of {counts[1]} in AFTER"
        )
    for side, leaf in (("BEFORE", before), ("AFTER", after)):
        if isinstance(leaf, Each):
            return f"is not the same on all ranks in {side}"
        if isinstance(leaf, DTensor | Part):
            return f"is a sharded tensor in {side}: not all parts of it were saved"
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return ""
    if before.shape != after.shape:
        return f"has shape {tuple(before.shape)} in BEFORE and {tuple(after.shape)} in AFTER"
    if before.dtype != after.dtype:
        return f"is {before.dtype} in BEFORE and {after.dtype} in AFTER"
    return ""


def compare(
    before: torch.Tensor, after: torch.Tensor, slack: torch.Tensor | None = None
) -> tuple[bool, float | None]:
    """Whether two tensors are equal bit for bit, and how far apart they are otherwise.

    The distance is that of the elements farthest apart, less the slack of each, relative to the largest
    element of both; None when one has a number where the other has none, NaN when both have NaN.
    """
    distance = largest = 0.0
    identical = True
    spare = _slices(torch.zeros_like(before) if slack is None else slack)
    for old, new, free in zip(_slices(before), _slices(after), spare, strict=True):
        if torch.equal(old, new):
            largest = max(largest, _largest(old))
            continue
        identical = False
        numbers = old.isfinite()
        if not torch.equal(numbers, new.isfinite()):
            return False, None
        endless = old[~numbers], new[~numbers]
        if not torch.equal(*endless):
            both = bool((endless[0].isnan() == endless[1].isnan()).all())
            return False, math.nan if both and bool(endless[0].isnan().any()) else None
        old, new = old[numbers].double(), new[numbers].double()
        if old.numel():
            apart = (old - new).abs() - free[numbers].double()
            distance = max(distance, float(apart.max()), 0.0)
            largest = max(largest, _largest(old), _largest(new))
    return identical, distance / largest if largest else distance


def _slices(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    return torch.split(tensor.detach().reshape(-1), SLICE)


def _largest(tensor: torch.Tensor) -> float:
    numbers = tensor[tensor.isfinite()] if tensor.is_floating_point() else tensor
    return float(numbers.double().abs().max()) if numbers.numel() else 0.0
