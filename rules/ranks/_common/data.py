"""Loaders of data and the loops that walk them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import libcst as cst

from fsdp2lint.api import (
    Backward,
    Called,
    Event,
    Guards,
    Iterated,
    Layout,
    Site,
    Trace,
    Value,
    options,
)

from ..._common.loops import loops_around, loops_at

LOADERS = (
    "torch.utils.data.DataLoader",
    "torchdata.stateful_dataloader.StatefulDataLoader",
    "torchdata.stateful_dataloader.stateful_dataloader.StatefulDataLoader",
)
_WALKS = ("builtins.enumerate", "tqdm.tqdm", "tqdm.auto.tqdm", "builtins.iter", "builtins.zip")


def out_of_sight(trace: Trace, value: Value, way: Guards) -> bool:
    """Whether a value, or what holds it, was handed to code that cannot be followed on a path."""
    return any(not gone.guards.excludes(way) for gone in trace.escapes(value))


def walks(trace: Trace, loader: Value) -> list[Event]:
    """Where walks over a loader begin: loops, and ``iter(loader)``."""
    found: list[Event] = [i for i in trace.of(Iterated) if i.over is loader]
    found += [c for c in trace.calls(*_WALKS) if any(loader in options(v) for v in c.arguments)]
    return found


def trains(trace: Trace, walk: Event) -> bool:
    """Whether a backward happens in the loop over what is walked, or in one that asks for the ``next`` of it, as a
    method of a loader gives it, too.

    What a generator walks, the loops walk that ask the generator.
    """
    loop = loop_of(walk)
    if loop is not None and _backward_in(trace, walk, loop):
        return True
    if any(_backward_in(trace, walk, asking) for asking in _asking(walk)):
        return True
    if not isinstance(walk, Called):
        return False
    if walk.name not in _WALKS:  # the loader is asked for the next batch
        return any(_backward_in(trace, walk, around) for around in loops_around(walk)[:1])
    if walk.name != "builtins.iter":
        return False
    given = set(options(walk.result))
    return any(
        _backward_in(trace, walk, loop)
        for asked in trace.calls("builtins.next")
        if asked.arguments and not given.isdisjoint(options(asked.arguments[0]))
        for loop in loops_around(asked)[:1]
    )


def _asking(walk: Event) -> Iterator[cst.CSTNode]:
    """The loops that ask a generator of the project for what it walks: over it, or around ``next`` of it."""
    calls = walk.moment.calls
    for number, function in enumerate(walk.moment.inside[: len(calls)]):
        if "yield" in function.scope.source.code(function.node):
            asking = (loop for site in reversed(calls[: number + 1]) for loop in loops_at(site))
            yield from islice(asking, 1)
            over = _loop_over(calls[number])
            if over is not None:
                yield over


def _backward_in(trace: Trace, walk: Event, loop: cst.CSTNode) -> bool:
    return any(
        any(a is loop for a in Layout.of(site.source).ancestors(site.node))
        for backward in trace.after(walk, Backward)
        for site in (*backward.moment.calls, backward.at)
    )


def loop_of(walk: Event) -> cst.For | None:
    """The loop whose iterable a walk is in."""
    return _loop_over(walk.at)


def _loop_over(site: Site) -> cst.For | None:
    """The loop whose iterable a call is, or is in."""
    for around in Layout.of(site.source).ancestors(site.node):
        if isinstance(around, cst.For):
            return around
        if isinstance(around, cst.BaseStatement):
            return None
    return None
