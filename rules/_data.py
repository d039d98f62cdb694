"""Loaders of data and the loops that walk them."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import Backward, Event, Iterated, Layout, Trace, Value

LOADER = "torch.utils.data.DataLoader"
_WALKS = ("builtins.enumerate", "tqdm.tqdm", "tqdm.auto.tqdm", "builtins.iter")


def out_of_sight(trace: Trace, value: Value) -> bool:
    """Whether a value, or what holds it, was handed to code that cannot be followed."""
    return next(trace.escapes(value), None) is not None


def walks(trace: Trace, loader: Value) -> list[Event]:
    """Where loops over a loader begin."""
    found: list[Event] = [i for i in trace.of(Iterated) if i.over is loader]
    found += [c for c in trace.calls(*_WALKS) if c.arguments and c.arguments[0] is loader]
    return found


def trains(trace: Trace, walk: Event) -> bool:
    """Whether a backward happens in the loop over what is walked."""
    loop = loop_of(walk)
    return loop is not None and any(
        any(a is loop for a in Layout.of(site.source).ancestors(site.node))
        for backward in trace.after(walk, Backward)
        for site in (*backward.moment.calls, backward.at)
        if site.source is walk.at.source
    )


def loop_of(walk: Event) -> cst.For | None:
    """The loop whose iterable a walk stands in."""
    for around in Layout.of(walk.at.source).ancestors(walk.at.node):
        if isinstance(around, cst.For):
            return around
        if isinstance(around, cst.BaseStatement):
            return None
    return None
