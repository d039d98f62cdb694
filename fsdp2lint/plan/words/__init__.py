"""Plans in words: one, or two side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from fsdp2lint.plan.compare import Difference, compare_plans
from fsdp2lint.plan.data import Amounts, Group, Plan, Transfer, Unit, amounts
from fsdp2lint.plan.words.wrappings import wrappings
from fsdp2lint.system.paint import Line

SHOWN = 20
"""So many differences are listed one by one."""

PADDED = 0.2
"""A group of which more than this share is padding is named."""
PIECE = 64 * 1024
"""Bytes that a rank sends for an all-gather, below which the latency of the network decides."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_WIDTH = 46
_COLUMN = 22


def rendered(plans: Sequence[Plan]) -> Iterator[Line]:
    """One plan, or the plans before and after a change with how they differ."""
    yield [(f"plan for {plans[0].world} ranks, bytes on rank 0", "strong")]
    if len(plans) > 1:
        yield [(_row("", ["before", "after"]), "dim")]
    for label, cells in rows(plans):
        yield [(_row(label, cells), "")]
    for title, lines in (("units", unit_lines), ("parameter groups", group_lines)):
        yield from _listed(title, [list(lines(plan)) for plan in plans])
    if len(plans) == 1:
        yield from _wrappings(plans[0])
    for plan in plans:
        yield from ([("  note: ", "note"), (note, "")] for note in plan.notes)
        yield from ([("  warning: ", "warning"), (waste, "")] for waste in wastes(plan))
    if len(plans) > 1:
        yield from _differences(compare_plans(plans[0], plans[1]))


def _wrappings(plan: Plan) -> Iterator[Line]:
    """Other groups of the same parameters, beside those of the script."""
    found = wrappings(plan)
    if len(found) > 1:
        heads = ("gathered at most", "all-gathers", "a rank sends at least")
        model = "the model" if len(plan.models) == 1 else "the largest model"
        title = f"fully_shard on parts of {model}".ljust(_WIDTH)
        yield [(f"  {title}", "strong"), ("".join(head.rjust(_COLUMN) for head in heads), "dim")]
    for one in found if len(found) > 1 else ():
        transfer = _transfer(Transfer(one.calls, one.size))
        label = f"    {one.name} ({one.groups} group{'s' * (one.groups > 1)})"
        cells = (size(one.gathered), transfer, size(one.piece))
        if len(label) > _WIDTH:
            yield [(label, "")]
            label = ""
        yield [(_row(label.removeprefix("  "), cells), "")]


def _listed(title: str, lists: list[list[str]]) -> Iterator[Line]:
    """A list for each plan; lists that are equal only once."""
    if len(lists) > 1 and lists[0] == lists[1]:
        del lists[1]
        title += " before and after"
    times = ("",) if len(lists) == 1 else (" before", " after")
    for lines, when in zip(lists, times, strict=True):
        yield [(f"  {title}{when}", "strong")]
        yield from ([("    " + line, "")] for line in lines)


def wastes(plan: Plan) -> Iterator[str]:
    """What so many ranks make worse: padding, and groups cut into pieces too small to send."""
    padded = [unit for unit in plan.units if unit.padding > PADDED * unit.stored]
    if padded:
        worst = max(padded, key=lambda unit: unit.padding / unit.stored)
        factor = worst.stored / max(worst.stored - worst.padding, 1)
        yield (
            f"`{worst.title}`{_others(padded)}: {factor:.1f} times the parameters are stored and sent, because "
            f"{worst.shards} shards are more than its tensors have rows"
        )
    small = [unit for unit in plan.units if unit.shards > 1 and unit.full < PIECE * unit.shards]
    if small:
        least = min(small, key=lambda unit: unit.full / unit.shards)
        yield (
            f"`{least.title}`{_others(small)}: each rank sends {size(-(-least.full // least.shards))} for an all-gather, "
            "so it takes as long as the network answers: shard larger groups, or over fewer ranks"
        )


def _others(units: Sequence[Unit]) -> str:
    return "" if len(units) == 1 else f" and {len(units) - 1} more groups"


def record(plan: Plan) -> dict[str, Any]:
    """A plan with its sums, for JSON."""
    told_plan: dict[str, Any] = msgspec.to_builtins(plan)
    sums = {"amounts": msgspec.to_builtins(amounts(plan)), "warnings": list(wastes(plan))}
    others = {"wrappings": msgspec.to_builtins(wrappings(plan))}
    return told_plan | sums | others


def rows(plans: Sequence[Plan]) -> list[tuple[str, list[str]]]:
    """The sums of each plan under the same labels; what is nought everywhere is left out."""
    sums = [amounts(plan) for plan in plans]
    found = []
    for label, value in _SUMS:
        cells = [value(total) for total in sums]
        if set(cells) != {"-"} or label in _ALWAYS:
            found.append((label, cells))
    return found


def size(number: int | None) -> str:
    """Bytes as people say them; ``?`` for what is not known."""
    if number is None:
        return "?"
    if not number:
        return "-"
    power = min((number.bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{number} B" if power == 0 else f"{number / 1024**power:.2f} {_UNITS[power]}"


def unit_lines(plan: Plan) -> Iterator[str]:
    """The units, those that differ only by a number in their name together."""
    alike: dict[tuple[object, ...], list[Unit]] = {}
    for number, model in enumerate(plan.models):
        for unit in model.units:
            pattern = _NUMBER.sub("*", unit.title)
            shape = msgspec.structs.replace(unit, name=pattern, tensors=())
            alike.setdefault((number, shape, len(unit.tensors)), []).append(unit)
    for number, model in enumerate(plan.models):
        if len(plan.models) > 1:
            yield f"{model.kind}:"
        for (where, _, _), units in alike.items():
            if where == number:
                yield _unit_line(units)


def _unit_line(units: list[Unit]) -> str:
    unit = units[0]
    name = unit.title if len(units) == 1 else f"{len(units)}x {_NUMBER.sub('*', unit.title)}"
    mesh = f"1/{unit.shards}" + (f" in {unit.replicas} replicas" if unit.replicas > 1 else "")
    kept = "" if unit.shards == 1 else ", freed after forward" if unit.reshard else ", kept"
    dtypes = unit.param_dtype
    if unit.reduce_dtype != unit.param_dtype:
        dtypes += f", reduced in {unit.reduce_dtype}"
    count = f"{len(unit.tensors)} parameter{'' if len(unit.tensors) == 1 else 's'}"
    return f"{name}: {count}, {size(unit.full)} whole, {mesh}{kept}, {dtypes}"


def group_lines(plan: Plan) -> Iterator[str]:
    """The groups of the optimizers, with the options in which those of one optimizer differ, and lr."""
    for optimizer in plan.optimizers:
        for group in optimizer.groups:
            shown = [
                f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
                for key, value in group.options.items()
                if key in ("lr", "weight_decay") or _varies(key, optimizer.groups)
            ]
            stray = f" and {group.strangers} that no model holds" if group.strangers else ""
            count = f"{len(group.names)} parameters{stray}"
            yield f"{optimizer.kind}: {count}, {', '.join(shown)}"


def _varies(key: str, groups: Sequence[Group]) -> bool:
    return len({repr(group.options.get(key)) for group in groups}) > 1


def alike(differences: Sequence[Difference]) -> list[Difference]:
    """Each change once, with the first that it befell and how many others."""
    names: dict[Difference, list[str]] = {}
    for difference in differences:
        names.setdefault(msgspec.structs.replace(difference, name=""), []).append(difference.name)
    return [
        msgspec.structs.replace(change, name=_first_of(befallen))
        for change, befallen in names.items()
    ]


def _first_of(names: list[str]) -> str:
    others = len(names) - 1
    return names[0] + (f" and {others} other{'' if others == 1 else 's'}" if others else "")


def _differences(differences: list[Difference]) -> Iterator[Line]:
    changes = alike(differences)
    if not any(change.essential for change in changes):
        yield [("  the same parameters form the same groups and are trained alike", "strong")]
    for change in changes[:SHOWN]:
        role = "error" if change.essential else "note"
        yield [(f"  {change.kind}: ", role), (change.message, "")]
    if len(changes) > SHOWN:
        yield [(f"  and {len(changes) - SHOWN} more differences", "dim")]


def _row(label: str, cells: Iterable[str]) -> str:
    return "  " + label.ljust(_WIDTH) + "".join(cell.rjust(_COLUMN) for cell in cells)


def _transfer(transfer: Transfer) -> str:
    return f"{transfer.calls}x, {size(transfer.size)}" if transfer.calls else "-"


def _activations(sums: Amounts, which: str) -> str:
    return "-" if sums.activations is None else size(getattr(sums.activations, which))


_ALWAYS = frozenset({"parameters", "gradients", "optimizer state"})
_SUMS: tuple[tuple[str, Callable[[Amounts], str]], ...] = (
    ("parameters", lambda it: size(it.parameters)),
    ("  of these padding", lambda it: size(it.padding)),
    ("parameters outside units, and buffers", lambda it: size(it.replicated)),
    ("gradients", lambda it: size(it.gradients)),
    ("optimizer state", lambda it: size(it.optimizer)),
    ("gathered, kept until backward", lambda it: size(it.kept)),
    ("gathered, the largest of the others", lambda it: size(it.largest)),
    ("activations, kept for backward", lambda it: _activations(it, "kept")),
    ("  at their peak", lambda it: _activations(it, "peak")),
    ("a step at most", lambda it: "-" if it.together is None else size(it.together)),
    ("all-gather per forward and backward", lambda it: _transfer(it.traffic.gathered)),
    ("reduce-scatter per backward", lambda it: _transfer(it.traffic.scattered)),
    ("all-reduce per backward", lambda it: _transfer(it.traffic.reduced)),
)
