"""The parts of the data that ranks take by their place, and the loops that walk them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Guard,
    Part,
    Rank,
    Trace,
    Value,
    of_world_size,
    options,
    parts_along,
)

from .data import loop_of

_WALKING = ("builtins.enumerate", "builtins.iter", "builtins.zip", "tqdm.tqdm", "tqdm.auto.tqdm")


def is_share(value: Value | None) -> bool:
    """Whether a value is every so-many-th element of something, from the rank on: ``files[rank::world_size]``.

    What was made as long as the ranks need it, by their number, gives all of them equally many.
    """
    return (
        isinstance(value, Part)
        and value.operation == "[:]"
        and len(value.operands) == 3
        and isinstance(value.operands[0], Rank)
        and isinstance(value.operands[2], Value)
        and of_world_size(value.operands[2])
        and not of_world_size(value.owner)
    )


def walks_of_shares(trace: Trace) -> Iterator[tuple[Called, cst.For]]:
    """The loops that make as many rounds as the share of their rank has elements, with the call that gives the rounds."""
    for called in trace.calls("builtins.range", *_WALKING):
        loop = _loop_over(called)
        if loop is not None and _counts_a_share(called) and not any(map(_divides, called.guards)):
            yield called, loop


def _counts_a_share(called: Called) -> bool:
    given = [one for value in called.arguments for one in options(value)]
    if called.name != "builtins.range":
        return any(map(is_share, given))
    if len(given) == 3 and isinstance(given[0], Rank):
        return of_world_size(given[2]) and not of_world_size(given[1])
    return any(map(_is_length_of_share, given))


def _is_length_of_share(value: Value) -> bool:
    return isinstance(value, Part) and value.key == ("len",) and is_share(value.owner)


def _divides(guard: Guard) -> bool:
    """Whether the script asks if something divides by the number of ranks: ``assert len(files) % world_size == 0``."""
    return any(p.operation == "%" and of_world_size(p) for p in parts_along(guard.test))


def _loop_over(called: Called) -> cst.For | None:
    """The loop that walks what a call returns."""
    loop = loop_of(called)
    return loop if loop is not None and loop.iter is called.at.node else None
