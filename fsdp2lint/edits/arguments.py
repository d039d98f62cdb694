"""Edits of the arguments of a call, as they are written: commas, lines and comments keep their style."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from fsdp2lint.edits.changes import Change, Inner
from fsdp2lint.edits.commas import CommaList
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.text import Edit
from fsdp2lint.source.source import Source

Which = str | int | cst.Arg
"""An argument: its keyword, its position, or its node."""

Value = str | Callable[[Inner], str]


def argument(call: cst.CSTNode | None, position: int, name: str) -> cst.Arg | None:
    """The argument that is written in a call at ``position`` (-1: at none) or as ``name``."""
    starred = False
    for index, arg in enumerate(call.args if isinstance(call, cst.Call) else ()):
        starred = starred or arg.star != ""
        if arg.keyword is not None and arg.keyword.value == name:
            return arg
        if arg.keyword is None and index == position and not starred:
            return arg
    return None


@dataclass(slots=True, eq=False)
class _Work:
    """What becomes of the arguments of one call."""

    gone: set[int] = field(default_factory=set)
    names: dict[int, str] = field(default_factory=dict)
    values: dict[int, Value] = field(default_factory=dict)
    leading: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


class Arguments(Edit):
    """What becomes of the arguments of ``call``; each method returns the edit itself.

    What a method cannot do shows when the edit is resolved: the fix is then not made (``ValueError``).
    Edits of the same call by several fixes are made together.
    """

    def __init__(self, source: Source, call: cst.Call) -> None:
        self.source = source
        self.call = call
        self._steps: list[Callable[[_Work], None]] = []

    @property
    def group(self) -> Hashable:
        return "call", self.source, self.call

    def has(self, keyword: str) -> bool:
        """Whether ``keyword`` is given by name."""
        return any(a.keyword is not None and a.keyword.value == keyword for a in self.call.args)

    @property
    def open(self) -> bool:
        """Whether ``**kwargs`` are passed, which may hold any keyword."""
        return any(a.star == "**" for a in self.call.args)

    def add(self, keyword: str, value: str) -> Arguments:
        """A further argument ``keyword=value``; not possible beside ``**kwargs``, which may hold it."""
        self._steps.append(lambda work: self._add(work, keyword, value))
        return self

    def set(self, keyword: str, value: str) -> Arguments:
        """``keyword=value`` in place of what is given for it; added if nothing is."""
        return self.replace(keyword, value) if self.has(keyword) else self.add(keyword, value)

    def first(self, value: str) -> Arguments:
        """A further positional argument, before all others."""
        self._steps.append(lambda work: work.leading.append(value))
        return self

    def remove(self, which: Which) -> Arguments:
        """No such argument any more."""
        self._steps.append(lambda work: work.gone.add(self._index(which)))
        return self

    def rename(self, old: str, new: str) -> Arguments:
        """Another keyword for the same value."""
        self._steps.append(lambda work: self._name(work, self._index(old), new))
        return self

    def name(self, position: int, keyword: str) -> Arguments:
        """A positional argument given by keyword; those behind it must be named too."""
        self._steps.append(lambda work: self._name(work, self._index(position), keyword))
        return self

    def replace(self, which: Which, value: Value) -> Arguments:
        """Another value: text, or a function of the :class:`Inner` of the value as it is."""
        self._steps.append(lambda work: work.values.update({self._index(which): value}))
        return self

    def changes(self, together: Sequence[Edit]) -> list[Change]:
        work = _Work()
        for edit in together:
            if isinstance(edit, Arguments):
                for step in edit._steps:
                    step(work)
        work.added = list(dict.fromkeys(work.added))
        self._check(work)
        return list(_call_changes(self.layout, self.call, work))

    def _add(self, work: _Work, keyword: str, value: str) -> None:
        if self.open:
            raise ValueError(f"`{keyword}` may be among the keywords that are passed on already")
        if self.has(keyword):
            raise ValueError(f"`{keyword}` is given already")
        work.added.append(f"{keyword}={value}")

    def _name(self, work: _Work, index: int, keyword: str) -> None:
        if self.has(keyword) and not any(
            (named := self.call.args[i].keyword) and named.value == keyword for i in work.gone
        ):
            raise ValueError(f"`{keyword}` is given already")
        work.names[index] = keyword

    def _index(self, which: Which) -> int:
        args = self.call.args
        for index, arg in enumerate(args):
            if isinstance(which, int):
                if arg.star or arg.keyword is not None:
                    break
                if index == which:
                    return index
            elif arg is which or (arg.keyword is not None and arg.keyword.value == which):
                return index
        raise ValueError(f"the call has no argument {which!r}")

    def _check(self, work: _Work) -> None:
        names = [text.partition("=")[0] for text in work.added]
        if len(names) != len(set(names)):
            raise ValueError("a keyword is added with two values")
        named = False
        for index, arg in enumerate(self.call.args):
            if index not in work.gone:
                now = index in work.names or arg.keyword is not None or arg.star == "**"
                if named and not now and not arg.star:
                    raise ValueError("a positional argument would follow a keyword")
                named |= now


def _call_changes(layout: Layout, call: cst.Call, work: _Work) -> Iterator[Change]:
    """The changes of one call's arguments."""
    items = CommaList(layout, call.args, layout.span(call)[1] - 1, 2 * layout.depth(call) + 1)
    new = [*work.leading, *work.added]
    last = len(call.args) - 1
    gone = set(work.gone)
    if not call.args:
        if new:
            yield items.fill(new)
        return
    if len(gone) == len(call.args) and new:
        yield items.instead(0, new)
        yield from items.remove(gone - {0})
        return
    kept = [i for i in range(len(call.args)) if i not in gone]
    if work.leading:
        yield items.before(kept[0], work.leading)
    for index in kept:
        yield from _kept(layout, call, index, work)
    if work.added and last in gone and not items.alone(last):
        yield items.instead(last, work.added)
        gone.discard(last)
    elif work.added:
        yield from items.behind(kept[-1], work.added)
    yield from items.remove(gone)


def _kept(layout: Layout, call: cst.Call, index: int, work: _Work) -> Iterator[Change]:
    """A new keyword or a new value for an argument that stays."""
    arg = call.args[index]
    start, end = layout.span(arg)
    value, name = work.values.get(index), work.names.get(index)
    if value is not None:
        at = layout.span(arg.value)
        yield Change(*at, value, level=2 * layout.depth(arg.value))
    around = value is None and _needs_parentheses(arg, work, name)
    if name is not None and arg.keyword is not None:
        yield Change(*layout.span(arg.keyword), name, level=2 * layout.depth(arg.keyword))
    elif name is not None or around:
        yield Change(start, start, (f"{name}=" if name is not None else "") + "(" * around)
    if around:
        yield Change(end, end, ")")


def _needs_parentheses(arg: cst.Arg, work: _Work, name: str | None) -> bool:
    """Whether a value is bare only because nothing is beside it: ``sum(x for x in y)``."""
    if not isinstance(arg.value, cst.GeneratorExp | cst.NamedExpr) or arg.value.lpar:
        return False
    generator = isinstance(arg.value, cst.GeneratorExp)
    return name is not None or (generator and bool(work.leading or work.added))
