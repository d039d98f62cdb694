"""Tests that ask for something that only FSDP1's wrapper has, as a test for ``FSDPModule``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Layout,
    Literal,
    Program,
    Replace,
    Source,
    Step,
    Trace,
    kinds,
    name_for,
)

from .loop_models import FSDP_MODULE
from .loop_text import text_of


def is_fsdp_module(source: Source, node: cst.CSTNode, model: str) -> tuple[str, Step]:
    """The test whether ``model`` is sharded, and what makes it mean that at ``node``."""
    name = name_for(source, node, FSDP_MODULE)
    return f"isinstance({model}, {name.text})", Step(name.edits, ())


def asked_by_name(
    program: Program, builtin: str, name: str
) -> Iterator[tuple[list[tuple[Trace, Called]], cst.Call, frozenset[str]]]:
    """Calls of ``hasattr`` or ``getattr`` that ask for ``name``, with the kinds of models they ask."""
    for events in program.sites(Called):
        called, call = events[0][1], events[0][1].at.node
        if called.name != f"builtins.{builtin}" or not isinstance(call, cst.Call):
            continue
        wanted = called.argument(1, "")
        if not isinstance(wanted, Literal) or wanted.value != name:
            continue
        asked = [e.argument(0, "") for _, e in events]
        found = kinds(program, [value for value in asked if value is not None])
        if "fsdp1" in found:
            yield events, call, found


def hasattr_steps(program: Program, name: str) -> Iterator[Step]:
    """``hasattr(model, name)`` of what FSDP1 wraps: DDP's models keep their answer."""
    for events, call, found in asked_by_name(program, "hasattr", name):
        source = events[0][1].at.source
        test, needed = is_fsdp_module(source, call, text_of(source, call.args[0].value))
        if len(call.args) != 2 or _asked_already(source, call, test):
            continue
        if name == "no_sync" and "ddp" in found:
            test = f"({test} or {source.code(call)})"
        why = f"modules that fully_shard has changed have no `{name}`: their class tells them"
        yield Step(
            (Replace(source, call, test), *needed.edits), (Account(source, call, "changed", why),)
        )


def _asked_already(source: Source, call: cst.Call, test: str) -> bool:
    """Whether the test is behind one for ``FSDPModule``: ``isinstance(m, FSDPModule) or hasattr(…)``."""
    parent = Layout.of(source).parents[call]
    return isinstance(parent, cst.BooleanOperation) and text_of(source, parent.left) == test
