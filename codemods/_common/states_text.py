"""How the calls that take and restore state dicts are written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp2lint.api import Edit, Layout, Names, Program, Source, Unimport, dotted, name_for, walk

from .names import function_scope
from .origins import meaning

HOME = "torch.distributed.checkpoint.state_dict"

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*|\[(\d+|\"\w+\"|'\w+')\])*\Z")
_OPTIONS = re.compile(r"\A(options=[\w.]+\()(.*)\)\Z")
_CONTEXT = ".state_dict_type"
_FSDP1 = "torch.distributed.fsdp."
_CLASSES = (_FSDP1 + "FullyShardedDataParallel", _FSDP1 + "FSDPModule")
_KINDS = (
    "StateDictType StateDictConfig FullStateDictConfig ShardedStateDictConfig LocalStateDictConfig"
    " OptimStateDictConfig FullOptimStateDictConfig ShardedOptimStateDictConfig"
    " LocalOptimStateDictConfig StateDictSettings OptimStateKeyType"
).split()
OF_STATES = frozenset(_FSDP1 + kind for kind in _KINDS)
"""The names of FSDP1 that have to do with nothing but state dicts."""


def starred(call: cst.Call) -> bool:
    """Whether arguments are handed on that the call does not name."""
    return any(arg.star for arg in call.args)


def is_path(source: Source, node: cst.CSTNode) -> bool:
    """Whether a node is a name, or attributes and constant entries of one: it can be said again."""
    return bool(_PATH.match(source.code(node)))


def can_be_said(source: Source, node: cst.CSTNode) -> bool:
    """Whether an expression can be said again in another place of its function: it does nothing, on one line."""
    return "\n" not in source.code(node) and not any(isinstance(n, _DOING) for n in walk(node))


_DOING = (
    cst.Call
    | cst.Await
    | cst.Yield
    | cst.NamedExpr
    | cst.Lambda
    | cst.BaseComp
    | cst.FormattedString
)


def function_of(source: Source, node: cst.CSTNode) -> cst.CSTNode:
    """The function, or the module, that a node is in."""
    around = Layout.of(source).ancestors(node)
    return next((a for a in around if isinstance(a, cst.FunctionDef | cst.Lambda)), source.tree)


def fitted(
    source: Source,
    node: cst.CSTNode,
    head: str,
    arguments: Iterable[str],
    *,
    inserted: bool = False,
    lead: int = 0,
    around: str = "",
) -> str:
    """``head(arguments)`` for the place of ``node``: on one line if it fits, else one step deeper.

    ``around`` is a function that is called with that. Text that is ``inserted`` as a statement, behind ``lead`` characters, is indented when it comes to its place.
    """
    layout = Layout.of(source)
    start, end = layout.whole(node)
    saved = len(layout.unit) * _contexts_around(layout, node)
    before = source.text[layout.line_start(start) : start]
    behind = source.text[end : layout.line_end(end)].split("#")[0].rstrip()
    parts = list(arguments)
    said = ", ".join(parts)
    bare = f"{head}({said})"
    one = f"{around}({bare})" if around else bare
    length = len(before) + lead + len(one) + len(behind) - saved
    alone = len(parts) == 1 and not around
    nested = not around and any(before.count(a) > before.count(b) for a, b in ("()", "[]", "{}"))
    if "\n" not in one and (alone or length <= _limit(source) or nested):
        return one  # a line is broken at its outermost brackets, when all of it is written
    indent = before[: len(before) - len(before.lstrip())]
    room = _limit(source) - len(indent) - len(layout.unit) + saved
    newline, indent = ("\n", "") if inserted else (layout.newline, indent)
    line = newline + indent
    inner = line + layout.unit
    if "\n" in one:
        return _over_lines(one, head, parts, line, inner, around)
    if not around:
        return _broken(head, parts, line, inner, room)
    if len(bare) > room and len(parts) > 1:
        bare = _broken(head, parts, inner, inner + layout.unit, room - len(layout.unit))
    return f"{around}({inner}{bare}{line})"


def _over_lines(one: str, head: str, parts: list[str], line: str, inner: str, around: str) -> str:
    """The call with arguments that are on several lines: each begins on a line of its own."""
    if around or any(mark in one for mark in ('"""', "'''")):
        return one
    if len(parts) == 1:
        return f"{head}({_from_margin(parts[0]).replace(chr(10), line)})"
    said = (_from_margin(part).replace("\n", inner) for part in parts)
    return f"{head}({''.join(f'{inner}{part},' for part in said)}{line})"


def _from_margin(text: str) -> str:
    """An expression over several lines as it is where its last line is not indented."""
    lines = text.replace("\r\n", "\n").split("\n")
    margin = lines[-1][: len(lines[-1]) - len(lines[-1].lstrip())]
    return "\n".join([lines[0], *(line.removeprefix(margin) for line in lines[1:])])


def _broken(head: str, parts: list[str], line: str, inner: str, room: int) -> str:
    """``head(parts)`` with its arguments on lines of their own, together if there is ``room``."""
    said = ", ".join(parts)
    if len(said) <= room:
        return f"{head}({inner}{said}{line})"
    deeper = inner + inner.removeprefix(line)
    parts = [_OPTIONS.sub(rf"\1{deeper}\2{inner})", p) if len(p) >= room else p for p in parts]
    return f"{head}({''.join(f'{inner}{part},' for part in parts)}{line})"


def chosen(
    source: Source,
    node: cst.CSTNode,
    one: str,
    test: str,
    other: str,
    *,
    inserted: bool = False,
) -> str:
    """``one if test else other`` for the place of ``node``, on three lines in parentheses."""
    layout = Layout.of(source)
    start = layout.whole(node)[0]
    before = source.text[layout.line_start(start) : start]
    indent = "\n" if inserted else layout.newline + before[: len(before) - len(before.lstrip())]
    inner = indent + layout.unit
    one = re.sub(r"\r?\n", inner, one)
    return f"({inner}{one}{inner}if {test}{inner}else {other}{indent})"


def asks_already(source: Source, call: cst.CSTNode, model: str) -> bool:
    """Whether a call is on a side of the question whether the model is sharded."""
    for around in Layout.of(source).ancestors(call):
        if isinstance(around, cst.If | cst.IfExp):
            test = source.code(around.test)
            if test.startswith(f"isinstance({model}, ") and test.endswith("FSDPModule)"):
                return True
    return False


def is_doubted(program: Program, source: Source, call: cst.CSTNode, model: str) -> bool:
    """Whether the function asks elsewhere whether this model is sharded: where the call is, it may be none."""
    found = False
    for node in walk(function_scope(source, call)):
        if isinstance(node, cst.If | cst.IfExp) and _asks(program, source, node.test, model):
            if any(inner is call for inner in walk(node.body)):
                return False
            found = True
    return found


def _asks(program: Program, source: Source, test: cst.CSTNode, model: str) -> bool:
    if not isinstance(test, cst.Call) or dotted(test.func) != "isinstance" or len(test.args) != 2:
        return False
    asked, cls = (arg.value for arg in test.args)
    return source.code(asked) == model and meaning(program, source, cls) in _CLASSES


def _contexts_around(layout: Layout, node: cst.CSTNode) -> int:
    """How many steps a node moves out when the ``state_dict_type`` contexts around it are gone."""
    around = (a for a in layout.ancestors(node) if isinstance(a, cst.With) and len(a.items) == 1)
    calls = (a.items[0].item for a in around)
    return sum(isinstance(c, cst.Call) and dotted(c.func).endswith(_CONTEXT) for c in calls)


def _limit(source: Source) -> int:
    """The line length that the file keeps: 88, or 100 when it has longer lines."""
    return 100 if sum(len(line) > 88 for line in source.lines) > 1 else 88


def options_for(
    source: Source, node: cst.CSTNode, switches: Iterable[str]
) -> tuple[str, tuple[Edit, ...]]:
    """``options=StateDictOptions(…)`` with these switches; empty without any."""
    said = ", ".join(switches)
    if not said:
        return "", ()
    name = name_for(source, node, f"{HOME}.StateDictOptions")
    return f"options={name.text}({said})", name.edits


def unimports(program: Program, source: Source) -> Iterator[Unimport]:
    """No import any more of what only state dicts needed, where nothing uses it."""
    for one in Names.of(source).imports:
        if program.origin(source, one.loads, one.statement) and _canonical(one.loads) in OF_STATES:
            yield Unimport(source, one.loads)


def _canonical(name: str) -> str:
    """The public name of something that is also found in the modules below ``torch.distributed.fsdp``."""
    return _FSDP1 + name.rpartition(".")[2] if name.startswith(_FSDP1) else name


def names_in(node: cst.CSTNode) -> set[str]:
    """All names that are in a node."""
    return {one.value for one in walk(node) if isinstance(one, cst.Name)}


def is_statement(source: Source, node: cst.CSTNode) -> bool:
    """Whether a node is all that a statement computes, so that its parts can be computed above it."""
    statement = Layout.of(source).parents[node]
    return isinstance(statement, cst.Expr | cst.Return | cst.Assign)


def free_name(source: Source, *wanted: str) -> str:
    """The first of these names that nothing in the file binds."""
    used = {name for bound in Names.of(source).bindings.values() for name in bound}
    return next((name for name in wanted if name not in used), f"{wanted[-1]}_{len(used)}")
