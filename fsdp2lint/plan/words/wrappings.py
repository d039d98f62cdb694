"""What other calls of ``fully_shard`` on the same model would gather and send: the same tensors in other groups.

The sizes follow FSDP2 (:mod:`fsdp2lint.plan.reading.fsdp2`): each tensor is cut and padded along its rows, a group is gathered
once in forward and, unless it is the root's, once more in backward.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from fsdp2lint.plan.data import Model, Plan, Tensor, Unit, amounts

LARGE = 0.5
"""A module outside of the blocks that holds more than this share of one is worth a group of its own."""

_NUMBERED = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class Wrapping(msgspec.Struct, frozen=True):
    """One way to group the parameters, and what it costs a rank in one forward and backward."""

    name: str
    groups: int
    gathered: int
    """Bytes of whole parameters at one time: the root's, and the two largest others."""
    calls: int
    """All-gathers."""
    size: int
    """What they bring."""
    piece: int
    """The least that a rank sends for one of them."""


def wrappings(plan: Plan) -> list[Wrapping]:
    """The plan's own grouping and others that fit the names of its largest sharded model; empty where nothing is sharded."""
    models = [one for one in plan.models if _sharded(one)]
    if not models:
        return []
    model = max(models, key=lambda one: sum(unit.full for unit in _sharded(one)))
    units = _sharded(model)
    found = [_as_it_is(msgspec.structs.replace(plan, models=(model,)))]
    shown = {frozenset(_members(unit.tensors) for unit in units)}
    tensors = [(tensor, unit) for unit in units for tensor in unit.tensors]
    for name, group in _groupings([tensor for tensor, _ in tensors]):
        groups: dict[str, list[tuple[Tensor, Unit]]] = {}
        for tensor, unit in tensors:
            groups.setdefault(group(tensor.name), []).append((tensor, unit))
        form = frozenset(_members(tuple(tensor for tensor, _ in held)) for held in groups.values())
        if form not in shown:
            shown.add(form)
            found.append(_other(name, groups))
    return found


def _sharded(model: Model) -> list[Unit]:
    return [unit for unit in model.units if unit.shards > 1]


def _members(tensors: tuple[Tensor, ...]) -> frozenset[str]:
    return frozenset(tensor.name for tensor in tensors)


def _as_it_is(plan: Plan) -> Wrapping:
    units = [unit for model in plan.models for unit in _sharded(model)]
    sums = amounts(plan)
    gathers = sums.traffic.gathered
    piece = min(unit.full // unit.shards for unit in units)
    gathered = sums.kept + sums.pair
    return Wrapping("as it is", len(units), gathered, gathers.calls, gathers.size, piece)


def _groupings(tensors: list[Tensor]) -> Iterator[tuple[str, Callable[[str], str]]]:
    """Names of ways to group, and the group that each gives a tensor by its name; empty for the root's."""
    yield "the whole model", lambda _: ""
    blocks = _blocks([tensor.name for tensor in tensors])
    if not blocks:
        return
    title = ", ".join(
        dict.fromkeys(f"`{block.rpartition('.')[0] or 'model'}.*`" for block in blocks)
    )

    def of_block(name: str) -> str:
        return next((block for block in blocks if name.startswith(f"{block}.")), "")

    def of_pair(name: str) -> str:
        block = of_block(name)
        above, _, number = block.rpartition(".")
        return f"{above}.{int(number) // 2 * 2}" if block else ""

    sizes = Counter[str]()
    for tensor in tensors:
        sizes[of_block(tensor.name) or tensor.name.rpartition(".")[0]] += math.prod(tensor.shape)
    block = max(sizes[block] for block in blocks)

    def of_large(name: str) -> str:
        own = name.rpartition(".")[0]
        return of_block(name) or (own if sizes[own] > LARGE * block else "")

    yield f"each of {title}", of_block
    yield f"each of {title}, and each large module beside them", of_large
    yield f"two of {title} together", of_pair


def _blocks(names: list[str]) -> list[str]:
    """The members of the outermost numbered lists that have several."""
    prefixes = {
        name[: match.end(1)] for name in names for match in [_NUMBERED.search(name)] if match
    }
    lists = Counter(prefix.rpartition(".")[0] for prefix in prefixes)
    several = (prefix for prefix in prefixes if lists[prefix.rpartition(".")[0]] > 1)
    return sorted(
        several, key=lambda prefix: (prefix.rpartition(".")[0], int(prefix.rpartition(".")[2]))
    )


def _other(name: str, groups: dict[str, list[tuple[Tensor, Unit]]]) -> Wrapping:
    full = {key: sum(_full(*one) for one in held) for key, held in groups.items()}
    others = sorted((size for key, size in full.items() if key), reverse=True)
    gathers = {key: 2 if key else 1 for key in full}
    return Wrapping(
        name,
        len(groups),
        full.get("", 0) + sum(others[:2]),
        sum(gathers.values()),
        sum(gathers[key] * size for key, size in full.items()),
        min(size // groups[key][0][1].shards for key, size in full.items()),
    )


def _full(tensor: Tensor, unit: Unit) -> int:
    """The bytes of a tensor while it is gathered, padding included."""
    rows, *rest = tensor.shape or (1,)
    computed = unit.param_dtype if "," not in unit.param_dtype else tensor.dtype
    padded = -(-rows // unit.shards) * unit.shards
    return padded * math.prod(rest) * _BYTES.get(computed, 4)
