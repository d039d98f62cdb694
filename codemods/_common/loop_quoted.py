"""Names inside quoted annotations: ``model: "FSDP"``, ``Optional["FSDP"]``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import Layout, Program, Source, walk

_CHAIN = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class Quoted:
    """A name in a quoted annotation: ``node`` is the string, ``start`` and ``end`` the offsets of the name."""

    source: Source
    node: cst.SimpleString
    start: int
    end: int


def quotations(program: Program, target: str) -> Iterator[Quoted]:
    """Every place in a quoted annotation that names ``target``."""
    for source in program.sources:
        for node in source.derived(_strings):
            start = Layout.of(source).span(node)[0]
            for found in _CHAIN.finditer(node.value):
                if program.meaning(source, node, found[0]) == target:
                    yield Quoted(source, node, start + found.start(), start + found.end())


def _strings(source: Source) -> tuple[cst.SimpleString, ...]:
    """The strings inside annotations."""
    annotations = (n for n in walk(source.tree) if isinstance(n, cst.Annotation))
    return tuple(n for one in annotations for n in walk(one) if isinstance(n, cst.SimpleString))
