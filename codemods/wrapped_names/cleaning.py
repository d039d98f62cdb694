"""Where a script takes the wrapper's prefix out of names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import Called, Layout, Loaded, Names, Program, Source, Value, options, walk

from .._common.loop_text import around, text_of

PREFIX = "_fsdp_wrapped_module"
HOME = "torch.distributed.fsdp._common_utils."
CONSTANTS = (f"{HOME}FSDP_PREFIX", f"{HOME}FSDP_WRAPPED_MODULE")
_ALONE = re.compile(r"\.?_fsdp_wrapped_module(\\?\.)?")
_IN_NAME = re.compile(r"_fsdp_wrapped_module\.|\._fsdp_wrapped_module\b|^_fsdp_wrapped_module$")


@dataclass(frozen=True, slots=True)
class Mention:
    """A string that holds the prefix, or a constant of torch that is it."""

    source: Source
    node: cst.CSTNode


@dataclass(frozen=True, slots=True)
class Cleaning:
    """A call that takes the prefix out of ``name``."""

    call: cst.Call
    name: cst.BaseExpression


def mentions(program: Program) -> Iterator[Mention]:
    """Every mention of the prefix that is no docstring."""
    for source in program.sources:
        if PREFIX not in source.text:
            continue
        parents = Layout.of(source).parents
        for node in walk(source.tree):
            if isinstance(node, cst.SimpleString | cst.FormattedStringText):
                if PREFIX in node.value and not isinstance(parents.get(node), cst.Expr):
                    yield Mention(source, node)
    for reference in program.references(*CONSTANTS):
        yield Mention(reference.source, reference.node)


def cleaning(program: Program, mention: Mention) -> Cleaning | None:
    """The call that a mention makes a cleaning: ``replace``, ``removeprefix`` or ``re.sub``."""
    layout = Layout.of(mention.source)
    arg = layout.parents[mention.node]
    call = layout.parents.get(arg)
    if not isinstance(call, cst.Call) or not isinstance(arg, cst.Arg) or not _is_alone(mention):
        return None
    place = list(call.args).index(arg)
    func = call.func
    if isinstance(func, cst.Attribute) and place == 0:
        method = func.attr.value
        if method == "replace" and len(call.args) == 2 and _is_empty(call.args[1].value):
            return Cleaning(call, func.value)
        if method == "removeprefix" and len(call.args) == 1:
            return Cleaning(call, func.value)
    if place == 0 and len(call.args) == 3 and _is_empty(call.args[1].value):
        if any(r.node is func and r.name == "re.sub" for r in program.named(mention.source)):
            return Cleaning(call, call.args[2].value)
    return None


def cleaned_only(program: Program, mention: Mention) -> cst.If | None:
    """The ``if "_fsdp_wrapped_module" in name:`` that does nothing but clean the name."""
    source, layout = mention.source, Layout.of(mention.source)
    test = layout.parents[mention.node]
    if not isinstance(test, cst.Comparison) or test.left is not mention.node:
        return None
    around = layout.parents[test]
    if not isinstance(around, cst.If) or around.orelse is not None or around.test is not test:
        return None
    if len(test.comparisons) != 1 or not isinstance(test.comparisons[0].operator, cst.In):
        return None
    name = text_of(source, test.comparisons[0].comparator)
    lines = around.body.body
    cleans = [_cleans(program, source, line, name) for line in lines]
    return around if lines and all(cleans) else None


def _cleans(program: Program, source: Source, line: cst.CSTNode, name: str) -> bool:
    """Whether a line is ``name = name.replace(prefix, "")``."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    statement = line.body[0]
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return False
    if text_of(source, statement.targets[0].target) != name:
        return False
    found = (cleaning(program, Mention(source, node)) for node in walk(statement.value))
    return any(
        one is not None and one.call is statement.value and text_of(source, one.name) == name
        for one in found
    )


def from_files(program: Program) -> set[cst.CSTNode]:
    """The calls of methods of names that come out of a file."""
    found: set[cst.CSTNode] = set()
    for trace in program.traces:
        results = {one for loaded in trace.of(Loaded) for one in options(loaded.result)}
        for called in trace.of(Called) if results else ():
            if called.receiver is not None:
                if any(_is_part(one, results) for one in options(called.receiver)):
                    found.add(called.at.node)
    return found


def from_the_same(program: Program, loaded: set[cst.CSTNode]) -> set[cst.CSTNode]:
    """The calls that clean names, and whether a run shows it or not, names out of the same file.

    Where a function cleans names of a loaded dictionary once, it does so wherever it goes through it.
    """
    cleanings = [(m, found) for m in mentions(program) if (found := cleaning(program, m))]
    of_files: dict[cst.CSTNode, set[str]] = {}
    for mention, found in cleanings:
        if found.call in loaded:
            function = around(mention.source, found.call)
            of_files.setdefault(function, set()).update(
                _roots(mention.source, found.name, function)
            )
    same = set(loaded)
    for mention, found in cleanings:
        function = around(mention.source, found.call)
        if of_files.get(function, set()) & _roots(mention.source, found.name, function):
            same.add(found.call)
    return same


def _roots(source: Source, name: cst.BaseExpression, function: cst.CSTNode) -> set[str]:
    """The names of a function from which an expression is taken, through the loops over them."""
    loops: dict[str, cst.BaseExpression] = {}
    for node in walk(function):
        if isinstance(node, cst.For | cst.CompFor):
            loops |= dict.fromkeys(_names(node.target), node.iter)
    bound = Names.of(source).bindings.get(function, {})
    found: set[str] = set()
    todo, seen = [*_names(name)], set[str]()
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        if one in loops:
            todo += _names(loops[one])
        elif one in bound:
            found.add(one)
    return found


def _names(node: cst.CSTNode) -> set[str]:
    """The names that an expression reads, those of attributes apart."""
    attributes = {n.attr for n in walk(node) if isinstance(n, cst.Attribute)}
    return {n.value for n in walk(node) if isinstance(n, cst.Name) and n not in attributes}


def _is_part(value: Value, wholes: Set[Value]) -> bool:
    """Whether a value is one of some others, or a part of one."""
    one: Value | None = value
    while one is not None:
        if one in wholes:
            return True
        one = one.owner
    return False


def is_text(node: cst.CSTNode) -> bool:
    """Whether a string is one that people read: it has words."""
    return isinstance(node, cst.SimpleString | cst.FormattedStringText) and " " in node.value


def without_prefix(node: cst.CSTNode) -> str:
    """A string as it is written, without the prefix; empty for the prefix alone and for constants."""
    if isinstance(node, cst.FormattedStringText):
        return _IN_NAME.sub("", node.value)
    if not isinstance(node, cst.SimpleString) or _is_alone_text(node):
        return ""
    quote = node.prefix + node.quote
    return f"{quote}{_IN_NAME.sub('', node.raw_value)}{node.quote}"


def _is_alone(mention: Mention) -> bool:
    node = mention.node
    return not isinstance(node, cst.SimpleString) or _is_alone_text(node)


def _is_alone_text(node: cst.SimpleString) -> bool:
    return bool(_ALONE.fullmatch(node.raw_value))


def _is_empty(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.SimpleString) and node.raw_value == ""
