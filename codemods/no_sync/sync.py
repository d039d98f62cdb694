"""The block of a `no_sync()`, and whether its model is FSDP1's wherever the block is reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    PausedBlock,
    Program,
    Source,
    SyncPaused,
    Trace,
    Wrapped,
    Wrapping,
    options,
    paused_block,
    wrappers_around,
)

Paused = tuple[Trace, SyncPaused]


def block_of(program: Program, source: Source, call: cst.Call) -> PausedBlock | None:
    """The ``with`` that a ``no_sync()`` call is for."""
    return paused_block(source, call, lambda node: _does_nothing(program, source, node))


def _does_nothing(program: Program, source: Source, node: cst.BaseExpression) -> bool:
    """Whether an expression is ``nullcontext()``."""
    if not isinstance(node, cst.Call) or node.args:
        return False
    named = (r for r in program.named(source) if r.node is node.func)
    return any(r.name == "contextlib.nullcontext" for r in named)


def always_wrapped(program: Program, block: PausedBlock, events: Sequence[Paused]) -> bool:
    """Whether the model is FSDP1's also where the script takes ``nullcontext()``, for all that is seen."""
    if block.other is None:
        return True
    for trace, paused in events:
        wrappings = list(_wrappings(program, trace, paused))
        if not wrappings:
            return False
        for called in trace.calls("contextlib.nullcontext"):
            if called.at.node is block.other and not any(
                called.guards.implies(w.guards) for w in wrappings
            ):
                return False
    return True


def _wrappings(program: Program, trace: Trace, paused: SyncPaused) -> Iterator[Wrapping]:
    """Where the model was wrapped; where it comes from unseen code, all that are never left out."""
    found = [w for w in trace.of(Wrapping) if w.by == "fsdp1"]
    mine = [w for w in found if _holds(paused, w)]
    if mine:
        yield from mine
    elif not any(isinstance(one, Wrapped) for one in options(paused.module)):
        everywhere = [w for _, w in program.of(Wrapping) if w.by == "fsdp1"]
        if everywhere and not any(list(w.guards) for w in everywhere):
            yield from everywhere


def _holds(paused: SyncPaused, wrapping: Wrapping) -> bool:
    around = (wrapper for one in options(paused.module) for wrapper in wrappers_around(one))
    return any(one is wrapping.result for one in around)
