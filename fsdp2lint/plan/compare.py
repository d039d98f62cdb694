"""What is planned differently after a change: groups, meshes, precision, and who trains what how."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from fsdp2lint.plan.data import Group, Model, Option, Plan, Unit
from fsdp2lint.system.plain import count

Kind = Literal["group", "mesh", "precision", "memory", "optimizer"]

_OWN_TO_FSDP1 = frozenset({"foreach", "fused", "capturable", "differentiable", "initial_lr"})
"""Options of a parameter group that change how it is computed, not what (``torch.optim``)."""


class Difference(msgspec.Struct, frozen=True):
    """One thing that is not as it was."""

    kind: Kind
    name: str
    """The parameter, unit or model that it is about."""
    before: str
    after: str

    @property
    def essential(self) -> bool:
        """Whether training may come out differently; memory against communication does not count."""
        return self.kind != "memory"

    @property
    def message(self) -> str:
        """The difference in words."""
        return f"{self.name}: was {self.before}; is {self.after}"


def compare_plans(before: Plan, after: Plan) -> list[Difference]:
    """How two plans differ; empty when the same parameters form the same groups and are trained alike.

    Groups of parameters that are not sharded are not compared: how they are bundled changes nothing.
    """
    if len(before.models) != len(after.models):
        counts = (count(len(plan.models), "model") for plan in (before, after))
        return [Difference("group", "sharded models", *counts)]
    found: list[Difference] = []
    for old, new in zip(before.models, after.models, strict=True):
        found += _groups(old, new)
        found += _settings(old, new)
    return [*found, *_optimizers(before, after)]


def _groups(old: Model, new: Model) -> Iterator[Difference]:
    before, after = _homes(old), _homes(new)
    for name in [*before, *(name for name in after if name not in before)]:
        was, now = before.get(name, _NOWHERE), after.get(name, _NOWHERE)
        if was.members != now.members:
            yield Difference("group", f"`{name}`", *_distinguished(was, now))


class _Home(NamedTuple):
    """Where a parameter belongs; groups are the same when they have the same members."""

    text: str
    members: frozenset[str] | None = None


_NOWHERE = _Home("not there")


def _homes(model: Model) -> dict[str, _Home]:
    loose = _Home("whole on every rank", frozenset())
    homes = {tensor.name: loose for tensor in model.loose}
    for unit in model.units:
        group = _Home(f"in the group of {_quoted(unit)}", _members(unit))
        homes |= {t.name: group if unit.shards > 1 else loose for t in unit.tensors}
    return homes


def _distinguished(was: _Home, now: _Home) -> tuple[str, str]:
    """The two places in words; a group that kept its name is shown with what joined or left it."""
    if was.text != now.text or was.members is None or now.members is None:
        return was.text, now.text
    changed = sorted(was.members ^ now.members)
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    among = f"`{changed[0]}`{more}"
    verbs = ("with", "without") if changed[0] in was.members else ("without", "with")
    return f"{was.text} {verbs[0]} {among}", f"{now.text} {verbs[1]} {among}"


def _settings(old: Model, new: Model) -> Iterator[Difference]:
    after = {_members(unit): unit for unit in new.units}
    questions: tuple[tuple[Kind, Callable[[Unit], str]], ...] = (
        ("mesh", _mesh),
        ("precision", _precision),
        ("memory", _freed),
    )
    for unit in old.units:
        other = after.get(_members(unit))
        if other is None:
            continue
        for kind, question in questions:
            was, now = question(unit), question(other)
            if was != now:
                yield Difference(kind, _quoted(unit), was, now)


def _members(unit: Unit) -> frozenset[str]:
    return frozenset(tensor.name for tensor in unit.tensors)


def _mesh(unit: Unit) -> str:
    return f"{count(unit.shards, 'shard')} in {count(unit.replicas, 'replica')}"


def _precision(unit: Unit) -> str:
    return f"computed in {unit.param_dtype}, reduced in {unit.reduce_dtype}"


def _freed(unit: Unit) -> str:
    return "freed after forward" if unit.reshard else "kept until backward"


def _optimizers(before: Plan, after: Plan) -> Iterator[Difference]:
    old, new = _trained(before), _trained(after)
    every = sorted({t.name for plan in (before, after) for u in plan.units for t in u.tensors})
    for name in every:
        was, now = old.get(name), new.get(name)
        if was is None and now is None:
            continue
        if was is None or now is None:
            texts = ("in no optimizer" if it is None else "in an optimizer" for it in (was, now))
            yield Difference("optimizer", f"`{name}`", *texts)
            continue
        for option in sorted(set(was) & set(now)):
            if not _same(was[option], now[option]):
                texts = (f"{option}={it[option]}" for it in (was, now))
                yield Difference("optimizer", f"`{name}`", *texts)
    strange = [sum(group.strangers for group in _all_groups(plan)) for plan in (before, after)]
    if strange[0] != strange[1]:
        counts = (count(number, "tensor") for number in strange)
        yield Difference("optimizer", "tensors trained that no model holds", *counts)


def _trained(plan: Plan) -> dict[str, dict[str, Option]]:
    """The options under which each parameter is trained, with the optimizer's class."""
    return {
        name: {k: v for k, v in group.options.items() if k not in _OWN_TO_FSDP1}
        | {"optimizer": optimizer.kind}
        for optimizer in plan.optimizers
        for group in optimizer.groups
        for name in group.names
    }


def _all_groups(plan: Plan) -> Iterable[Group]:
    return (group for optimizer in plan.optimizers for group in optimizer.groups)


def _same(was: Option, now: Option) -> bool:
    if isinstance(was, float) and isinstance(now, float):
        return math.isclose(was, now, rel_tol=1e-12)
    return was == now


def _quoted(unit: Unit) -> str:
    return f"`{unit.name}`" if unit.name else "the root"
