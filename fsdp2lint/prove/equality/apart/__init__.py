"""A process of its own that compares tensors: ``python -m fsdp2lint.prove.equality.apart TASK OUT``."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from fsdp2lint.prove.equality.apart.checkpoints import BOOKKEEPING, compare_checkpoints, paired
from fsdp2lint.prove.equality.contents import Contents
from fsdp2lint.prove.equality.reading import Unreadable, read
from fsdp2lint.prove.equality.tensors import Sides, Slack
from fsdp2lint.rehearse.results import (
    BUILD,
    COPY,
    Build,
    Checkpoint,
    Compared,
    Difference,
    Kind,
    Task,
)

SAFETY = 4.0
FLOOR = 0.1
"""Of the largest gradient of a whole model: what the error of a tensor is at least."""

ADDED_UP = 10.0
"""So many gradients a momentum adds up."""

SAMPLE = 4096
"""So many elements of a parameter tell models of the same names apart."""


Settings = dict[str, dict[str, float]]
"""By parameter: the settings of its group, the group's number, steps made."""


@dataclass(eq=False)
class Model:
    """The final values of one model."""

    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    peaks: dict[str, torch.Tensor] = field(default_factory=dict)
    states: dict[str, torch.Tensor] = field(default_factory=dict)
    """What its optimizer keeps of each parameter, by ``parameter: slot``."""

    @property
    def is_trained(self) -> bool:
        """Whether any of its parameters ever had a gradient."""
        return any(bool(peak.any()) for peak in self.peaks.values())


def main(task: Path, out: Path) -> None:
    """Compare what the task names and write the results."""
    work = msgspec.json.decode(task.read_bytes(), type=Task)
    before, after = map(load, work.finals)
    noise = Noise(before, work.rtol, work.reach)
    slack, rtol = noise.slack, max(work.rtol, work.noise)
    results = compare_models(before, after, rtol, slack, noise.of_state)
    builds = [_build(folder) for folder in work.finals]
    copies = [load_copies(folder) for folder in work.finals]
    results.append(compare_copies(copies[0], copies[1], rtol, slack))
    results.append(compare_settings(builds[0], builds[1], work.rtol))
    names = [order for build in builds for order in build.orders]
    shapes = {n: t.shape for m in (*before, *after) for n, t in m.parameters.items()}
    buffers = {name for model in (*before, *after) for name in model.buffers}
    layouts = {unit: made for build in builds for unit, made in build.layouts.items()}
    for old, new in work.pairs:
        found = compare_checkpoints(
            old, new, names, shapes, buffers, rtol, slack, layouts, noise.of_state
        )
        if any(one.missing for one in found.differences):
            held = _elsewhere(work, old, new)
            found.differences = [
                one for one in found.differences if not (one.missing and one.name in held)
            ]
        results.append(found)
    out.write_bytes(msgspec.json.encode(results))


def _elsewhere(
    work: Task, before: Sequence[Checkpoint], after: Sequence[Checkpoint]
) -> Collection[str]:
    """What AFTER keeps beside weights and optimizers in other checkpoints of the same step."""
    contents = Contents()
    for _, new in work.pairs:
        for one in new:
            if one not in after and before and one.step == before[0].step:
                with contextlib.suppress(Unreadable, OSError):
                    contents.sort(read(one.path), ())
    return contents.others.keys()


def load(folder: str) -> list[Model]:
    """The models whose values were written to a folder, mapped into memory."""
    models: dict[str, Model] = {}
    for file in sorted(Path(folder).glob("[0-9]*.pt")):
        held: Mapping[str, Any] = torch.load(file, "cpu", mmap=True)
        model = models.setdefault(file.name.partition("-")[0], Model())
        model.parameters |= held["parameters"]
        model.buffers |= held["buffers"]
        model.peaks |= held["peaks"]
        model.states |= held["states"]
    return list(models.values())


def load_copies(folder: str) -> list[tuple[bool, Model]]:
    """What containers and other modules of a run hold of the weights, and whether each changed in the run."""
    files = sorted(Path(folder).glob(f"{COPY}-*.pt"))
    held = [torch.load(file, "cpu", mmap=True) for file in files]
    return [(moved, Model(parameters)) for moved, parameters in held]


def compare_copies(
    before: Sequence[tuple[bool, Model]],
    after: Sequence[tuple[bool, Model]],
    rtol: float,
    slack: Slack,
) -> Compared:
    """Averages and other copies of the weights, paired by their names and then by their values.

    Only those of BEFORE count that changed in the run: what was loaded from a checkpoint may live on in one program
    and not in the other. What has no partner is not compared.
    """
    compared = Compared("averages")
    sides = Sides(compared, "value", rtol, slack)
    left = list(after)
    for copy in (copy for moved, copy in before if moved):
        same = [one for one in left if one[1].parameters.keys() == copy.parameters.keys()]
        if same:
            partner = min(same, key=lambda one: (not one[0], _distance(copy, one[1])))
            left.remove(partner)
            sides.compare(copy.parameters, partner[1].parameters, "copy of ")
        else:
            compared.notes.append("AFTER has no copy of the weights where BEFORE has one")
    sides.close()
    return compared


def _build(folder: str) -> Build:
    """How the models of a run keep their parameters."""
    return msgspec.json.decode(Path(folder, BUILD).read_bytes(), type=Build)


class Noise:
    """How far elements may drift apart that follow the rounding noise of their gradients.

    Where two runs add up in another order, a gradient is off by about the tolerance times the largest
    gradient of its tensor; a tensor whose true gradient is nought, as a bias before a normalisation, has
    only the noise of the others. Adam divides a step by what the gradient was, so it moves an element by
    up to its whole learning rate where that error is all the gradient there is, and by its share elsewhere.
    """

    def __init__(self, models: Sequence[Model], rtol: float, reach: float) -> None:
        self._models, self._rtol, self._reach = models, rtol, reach
        peaks = [peak for model in models for peak in model.peaks.values() if peak.numel()]
        self._largest = max((float(peak.max()) for peak in peaks), default=0.0)

    def slack(self, name: str) -> torch.Tensor | None:
        """For each element of a parameter; None for one that is not known."""
        known = [model.peaks[name] for model in self._models if name in model.peaks]
        if not known or not known[0].numel():
            return known[0] if known else None
        peak = known[0].double()
        for other in known[1:]:  # a copy that follows the weights has none of its own
            peak = torch.maximum(peak, other.double()) if other.shape == peak.shape else peak
        error = self._rtol * max(SAFETY * float(peak.max()), FLOOR * self._largest)
        share = (error / peak).clamp(max=2.0)
        return torch.where(peak > 0, share * self._reach, torch.zeros_like(share))

    def of_state(self, name: str) -> torch.Tensor | None:
        """For each element that an optimizer keeps of a parameter: sums of gradients, or of their squares."""
        parameter, _, slot = name.rpartition(": ")
        known = [m.peaks[parameter] for m in self._models if parameter in m.peaks]
        if not known or not known[0].numel():
            return None
        peak = max(float(one.max()) for one in known)
        error = self._rtol * max(SAFETY * peak, FLOOR * self._largest)
        squared = "sq" in slot or "sum" in slot
        reach = error * 2 * max(peak, error) if squared else error
        return torch.full_like(known[0], ADDED_UP * reach)


def compare_settings(before: Build, after: Build, rtol: float) -> Compared:
    """How optimizers treat each trained parameter: settings, steps made, and which are in one group.

    As they were at the first step, where learning rates are compared step by step, and else as they are in the end.
    """
    first = _settings("setting", before.began, after.began, rtol, {*BOOKKEEPING, "group", "lr"})
    if first.differences:
        return first
    return _settings("optimizer", before.settings, after.settings, rtol, {*BOOKKEEPING, "group"})


def _settings(
    kind: Kind,
    before: Sequence[Settings],
    after: Sequence[Settings],
    rtol: float,
    without: Collection[str],
) -> Compared:
    compared = Compared("optimizer settings")
    sides = Sides(compared, kind, rtol)
    for old, new in paired(before, after, lambda one, other: len(one.keys() & other.keys())):
        if new is None:
            sides.lacks("optimizer", "AFTER steps fewer optimizers than BEFORE")
            continue
        if lost := [name for name in old if name not in new]:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            sides.lacks(lost[0], f"no optimizer of AFTER trains `{lost[0]}`{more}")
        for name in old.keys() & new.keys():
            mine = {k: v for k, v in old[name].items() if k not in without}
            sides.compare(mine, {k: new[name][k] for k in mine if k in new[name]}, f"{name}: ")
        sizes = [_sizes(one, old.keys() & new.keys()) for one in (old, new)]
        if sizes[0] != sizes[1]:
            told = [", ".join(str(len(group)) for group in each) for each in sizes]
            message = (
                f"the optimizer's groups hold {told[0]} parameters in BEFORE and {told[1]} in AFTER"
            )
            compared.differences.append(Difference(kind, message, name="groups"))
    sides.close()
    return compared


def _sizes(settings: Settings, among: Collection[str]) -> list[list[str]]:
    """The parameters of each group, in an order that is not that of the groups."""
    groups: dict[float, list[str]] = {}
    for name in sorted(among):
        groups.setdefault(settings[name]["group"], []).append(name)
    return sorted(groups.values())


def compare_models(
    before: Sequence[Model],
    after: Sequence[Model],
    rtol: float,
    slack: Slack,
    state_slack: Slack = lambda _: None,
) -> list[Compared]:
    """Parameters, buffers and optimizer states of models, paired by their names.

    Of models with the same names, as one that is trained and its average, those go together that are
    trained or not, and then those whose values are nearer: no order of theirs is the same in all runs.
    """
    parameters, buffers, kept = (
        Compared("parameters"),
        Compared("buffers"),
        Compared("optimizer state"),
    )
    held = Sides(kept, "optimizer", rtol, state_slack)
    values = Sides(parameters, "value", rtol, slack)
    states = Sides(buffers, "value", rtol)
    left = list(after)
    for model in before:
        if not left:
            values.lacks("model", "AFTER trains fewer models than BEFORE")
            break
        partner = _partner(model, left)
        left.remove(partner)
        values.compare(model.parameters, partner.parameters)
        states.compare(model.buffers, partner.buffers)
        held.compare(model.states, {n: v for n, v in partner.states.items() if n in model.states})
    if left:
        parameters.notes.append("AFTER trains more models than BEFORE")
    values.close()
    states.close()
    held.close()
    return [parameters, buffers, kept]


def _partner(model: Model, others: Sequence[Model]) -> Model:
    likeness = [_alike(model, other) for other in others]
    nearest = [o for o, how in zip(others, likeness, strict=True) if how == max(likeness)]
    if len(nearest) > 1:
        alike = [o for o in nearest if o.is_trained == model.is_trained] or nearest
        return min(alike, key=lambda other: _distance(model, other))
    return nearest[0]


def _distance(one: Model, other: Model) -> float:
    """How far apart the values of two models are, by the first elements of each parameter."""
    apart = 0.0
    for name, mine in one.parameters.items():
        theirs = other.parameters.get(name)
        if theirs is not None and theirs.shape == mine.shape and mine.is_floating_point():
            first, second = (t.flatten()[:SAMPLE].double() for t in (mine, theirs))
            apart += float((first - second).abs().sum())
    return apart


def _alike(one: Model, other: Model) -> float:
    every = one.parameters.keys() | other.parameters.keys()
    return len(one.parameters.keys() & other.parameters.keys()) / len(every) if every else 0.0
