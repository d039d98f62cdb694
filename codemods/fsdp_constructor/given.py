"""What objects of FSDP1 are given to besides its constructors, so that they must stay."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Class,
    Escaped,
    External,
    Instance,
    Layout,
    Partial,
    Program,
    Trace,
    Value,
    Wrapping,
    canonical,
    options,
)

from .._common.names import born
from .site import FSDP1, Construction

WRAP = "torch.distributed.fsdp.wrap."


def only_feeds_fsdp1(site: Construction, made: cst.CSTNode) -> bool:
    """Whether what a call makes is given to nothing but constructors of FSDP1, in any run."""
    return made not in given_to_others(site.program)


def given_to_others(program: Program) -> set[cst.CSTNode]:
    """The calls that make what is given to something else than constructors of FSDP1, in any run."""
    return program.derived(_given_to_others)


def _given_to_others(program: Program) -> set[cst.CSTNode]:
    given = (born(value) for trace in program.traces for value in _given_away(trace))
    return {at.node for at in given if at is not None}


def _given_away(trace: Trace) -> Iterator[Value]:
    """The values that other calls than FSDP1's get, and those that escape."""
    for called in trace.of(Called):
        if called.name not in _HARMLESS and not _is_for_fsdp1(called):
            for value in (*called.arguments, *called.keywords.values()):
                yield from options(value)
    for escaped in trace.of(Escaped):
        yield from options(escaped.value)
    yield from _kept_by_others(trace)


def _kept_by_others(trace: Trace) -> Iterator[Value]:
    """What objects of the project keep under a name that no function reads which gives it to FSDP1."""
    for value, holders in trace.memory.held_by.items():
        if isinstance(value, Partial | Instance) and born(value) is not None:
            for holder in holders:
                own = isinstance(holder, Instance) and isinstance(holder.cls, Class)
                if own and not _hands_on(trace, holder, value):
                    yield value


def _hands_on(trace: Trace, holder: Value, value: Value) -> bool:
    fields = {str(k) for k, v in trace.memory.entries(holder) if value in options(v)}
    for wrapping in trace.of(Wrapping):
        if any(value in options(one) for one in wrapping.options.values()):
            around = Layout.of(wrapping.at.source).ancestors(wrapping.at.node)
            function = next(
                (n for n in around if isinstance(n, cst.FunctionDef | cst.Module)), None
            )
            if function is not None:
                text = wrapping.at.source.code(function)
                if any(field in text for field in fields):
                    return True
    return False


def _is_for_fsdp1(called: Called) -> bool:
    """Whether this is ``functools.partial(FSDP, …)``."""
    first = called.arguments[0] if called.arguments else None
    fsdp1 = isinstance(first, External) and canonical(first.name) == FSDP1
    return called.name == "functools.partial" and fsdp1


_HARMLESS = frozenset(
    {
        "torch.distributed.fsdp.FullyShardedDataParallel",
        f"{WRAP}enable_wrap",
        f"{WRAP}wrap",
        "builtins.print",
        "builtins.isinstance",
        "builtins.dict",
    }
)
"""Calls that an object of FSDP1 may be given to although it becomes something else."""
