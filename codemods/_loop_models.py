"""Which kinds of models a place of the training loop sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import libcst as cst

from fsdp2lint.api import (
    Clipped,
    Layout,
    Module,
    Program,
    Source,
    SyncPaused,
    Value,
    Wrapped,
    options,
    walk,
)

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
FSDP_MODULE = "torch.distributed.fsdp.FSDPModule"
DDP = "torch.nn.parallel.DistributedDataParallel"
DTENSOR = "torch.distributed.tensor.DTensor"

_ENGINES = (
    "accelerate.Accelerator",
    "deepspeed.initialize",
    "lightning.fabric.Fabric",
    "lightning.Fabric",
    "lightning.pytorch.Trainer",
    "lightning.Trainer",
    "pytorch_lightning.Trainer",
)
"""Whose objects wrap a model out of sight, or are one themselves."""


def wrapper(value: Value) -> str:
    """``fsdp1`` or ``ddp`` for what these have wrapped, ``plain`` for a module in sight, else ``unknown``."""
    one = value
    while isinstance(one, Wrapped):
        if one.by in ("fsdp1", "ddp"):
            return one.by
        one = one.of
    return "plain" if isinstance(one, Module) else "unknown"


def kinds(program: Program, values: Iterable[Value]) -> frozenset[str]:
    """The kinds of models of which something is asked that plain modules do not have.

    What comes from unseen code, or was wrapped out of sight, is of the kinds that the program makes.
    """
    found = {wrapper(one) for value in values for one in options(value)}
    if "unknown" in found or not found & {"fsdp1", "ddp"}:
        made = wrappers(program)
        if made:
            found = (found - {"unknown"}) | made
    return frozenset(found)


@lru_cache(maxsize=2)
def wrappers(program: Program) -> frozenset[str]:
    """``fsdp1`` and ``ddp``, as far as the program names them; nothing when an engine wraps its models."""
    if any(program.references(*_ENGINES)):
        return frozenset()
    found = set(program.wrappers & {"fsdp1", "ddp"})
    found |= {kind for kind, name in (("fsdp1", FSDP1), ("ddp", DDP)) if _named(program, name)}
    return frozenset(found)


def unseen_methods(program: Program, name: str) -> Iterator[tuple[Source, cst.Attribute]]:
    """Where a method that only wrappers have is asked of something whose origin is not seen.

    Neither does an event stand there, nor does the call lead into a function of the project.
    """
    seen = _followed(program)
    for source in program.sources:
        if name not in source.text:
            continue
        layout = Layout.of(source)
        imported = {r.node for r in program.named(source)}
        for node in walk(source.tree):
            if isinstance(node, cst.Attribute) and node.attr.value == name:
                call = layout.parents[node]
                target = call if isinstance(call, cst.Call) and call.func is node else node
                root = node.value
                while isinstance(root, cst.Attribute):
                    root = root.value
                own = isinstance(root, cst.Call) and source.code(root) == "super()"
                if target not in seen and node not in imported and not own:
                    if not isinstance(layout.parents[node], cst.AssignTarget):
                        yield source, node


@lru_cache(maxsize=2)
def _followed(program: Program) -> frozenset[cst.CSTNode]:
    """The calls whose meaning is known, and those that lead to where something happens."""
    found: set[cst.CSTNode] = set()
    for trace in program.traces:
        for event in trace:
            found.update(site.node for site in event.moment.calls)
            if isinstance(event, Clipped | SyncPaused):
                found.add(event.at.node)
    return frozenset(found)


def _named(program: Program, name: str) -> bool:
    return any(True for _ in program.references(name, f"{name}.*"))
