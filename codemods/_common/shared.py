"""What several codemods need: functions written into the script, and imports that go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count, pairwise

import libcst as cst

from fsdp2lint.api import (
    NEWLINE,
    Edit,
    InsertAfter,
    InsertBefore,
    Layout,
    Name,
    Names,
    Program,
    Source,
    Unimport,
    canonical,
    name_for,
)

Naming = Callable[[str], str]
"""How a dotted name is written at the place of a function."""

_FSDP = "torch.distributed.fsdp."

Build = Callable[[str, Naming], str]
"""The text of a function, made of the function's name and how other names are written."""

_INSTEAD = {
    "broadcast_from_rank0": ("send_from_rank0",),
    "clip_grad_norm_": ("clip_sharded_grad_norm",),
    "full_params": ("whole_params",),
    "hybrid_mesh": ("mesh_of_groups",),
    "no_sync": ("without_sync", "keep_gradients_back"),
    "shard_by_policy": ("shard_units",),
    "sharding_options": ("strategy_options",),
}
"""What such a function is called where the file has something else of its first name."""


def dots_of(target: str) -> int:
    """How many dots the name of something may have: meshes are imported rather than spelled out."""
    return 1 if ".device_mesh." in target else 2


@dataclass(eq=False)
class Helpers:
    """The functions that the calls of one file need: each once, above the first call that needs one."""

    source: Source
    place: cst.CSTNode
    """The statement of the file above which they come."""
    texts: dict[str, str] = field(default_factory=dict)
    edits: list[Edit] = field(default_factory=list)
    locals: set[str] = field(default_factory=set)
    """The names of functions that calls of this file have defined beside themselves."""
    beside: dict[cst.CSTNode, set[str]] = field(default_factory=dict)
    """The names bound above each statement for calls in it, which read them after all of them are bound."""
    devices: dict[cst.CSTNode, str] = field(default_factory=dict)
    """The device that the code before each call sets."""
    several_of_dictionaries: bool = False
    """Whether several calls of the file take their keywords out of dictionaries from elsewhere."""

    @classmethod
    def above(cls, source: Source, node: cst.CSTNode) -> Helpers:
        """For a file: above the function or class that ``node`` is in, or below the file's imports."""
        around = (node, *Layout.of(source).ancestors(node))
        place = next(n for n, outer in pairwise(around) if outer is source.tree)
        return cls(source, place)

    def add(self, wanted: str, build: Build) -> str:
        """The name of such a function, which may be there already."""
        numbered = (f"{wanted}_{number}" for number in count(2))
        for name in chain((wanted, *_INSTEAD.get(wanted, ())), numbered):
            edits: list[Edit] = []
            used: set[str] = set()

            def named(target: str, into: list[Edit] = edits, used: set[str] = used) -> str:
                text = self._name(target, into)
                used.add(text)
                return text

            text = stepped(build(name, named), Layout.of(self.source).unit)
            if name in used:  # the function would hide what it calls
                continue
            if text in self.source.text.replace("\r\n", "\n") or self.texts.get(name) == text:
                return name
            if name not in self.texts and not self._bound(name):
                self.texts[name] = text
                self.edits += edits
                return name
        raise AssertionError("names are counted without end")

    def all_edits(self) -> list[Edit]:
        """The functions and what they import."""
        if not self.texts:
            return []
        text = "\n\n\n".join(self.texts.values())
        last = self._last_import()
        if isinstance(self.place, cst.FunctionDef | cst.ClassDef) or last is None:
            above = "\n" * self._blank_lines_missing_above()
            return [*self.edits, InsertBefore(self.source, self.place, f"{above}{text}\n\n\n")]
        gap = "\n" * (2 - self._blank_lines_below(last))
        return [*self.edits, InsertAfter(self.source, last, f"\n\n{text}\n{gap}")]

    def _last_import(self) -> cst.CSTNode | None:
        """The last import of the file above the place."""
        found: cst.CSTNode | None = None
        for line in self.source.tree.body:
            if line is self.place:
                break
            if isinstance(line, cst.SimpleStatementLine):
                if isinstance(line.body[0], cst.Import | cst.ImportFrom):
                    found = line
        return found

    def _blank_lines_below(self, line: cst.CSTNode) -> int:
        layout = Layout.of(self.source)
        below = layout.bottom(line)
        blank = self.source.text[below : layout.blank_below(below)]
        return min(2, len(NEWLINE.findall(blank)))

    def _blank_lines_missing_above(self) -> int:
        layout = Layout.of(self.source)
        top = layout.comments_above(self.place)
        start = layout.blank_above(top)
        blank = len(NEWLINE.findall(self.source.text[start:top]))
        return 2 - min(blank, 2) if start else 0

    def _name(self, target: str, edits: list[Edit]) -> str:
        found = name_at(self.source, self.place, target)
        edits += found.edits
        return found.text

    def _bound(self, name: str) -> bool:
        names = Names.of(self.source)
        return name in names.bindings.get(self.source.tree, {}) or name in names.uses


def name_at(source: Source, node: cst.CSTNode, target: str, alias: str = "") -> Name:
    """How a name of another module is written at a node: as the file has it, from whichever of its homes."""
    found = name_for(source, node, target, alias=alias, dots=dots_of(target))
    for one in Names.of(source).imports if found.edits else ():
        if one.target.startswith(_FSDP) and canonical(one.target) == target:
            other = name_for(source, node, one.target, dots=dots_of(target))
            if not other.edits:
                return other
    return found


def stepped(text: str, unit: str) -> str:
    """Text that is indented by four spaces, indented by the file's own unit."""
    if unit == "    ":
        return text
    lines = []
    for line in text.split("\n"):
        bare = line.lstrip(" ")
        steps, rest = divmod(len(line) - len(bare), 4)
        lines.append(unit * steps + " " * rest + bare)
    return "\n".join(lines)


def unimports(program: Program, source: Source, target: str) -> Iterator[Unimport]:
    """No import of ``target`` any more that nothing uses, in this file or through it in another.

    A file that has the name from another of the project loses that import.
    """
    for one in Names.of(source).imports:
        if program.meaning(source, one.alias, one.name) != target:
            continue
        if not any(_takes(program, other, source, one.name) for other in program.sources):
            yield Unimport(source, one.loads)


def _takes(program: Program, other: Source, source: Source, name: str) -> bool:
    """Whether ``other`` imports ``name`` from ``source``."""
    if other is source or name not in other.text:
        return False
    return any(program.comes_from(other, one, source, name) for one in Names.of(other).imports)
