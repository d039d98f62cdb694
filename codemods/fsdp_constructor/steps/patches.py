"""Functions that put something of their own in the place of a part of FSDP1.

    def fix_hook():                                       fix_hook()
        old = _runtime_utils._post_backward_hook
        def hook(state, handle): …
        _runtime_utils._post_backward_hook = hook

Facts (torch/distributed, 2.13): ``fully_shard`` has hooks and a state of its own. ``_fully_shard``,
``checkpoint`` and ``algorithms/_checkpoint`` use ``_common_utils``, ``_init_utils``, ``_shard_utils`` and
``_wrap_utils``; nothing outside FSDP1 uses its other private modules.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Account,
    Edit,
    Layout,
    Names,
    Program,
    Remove,
    Source,
    Step,
    Unimport,
    dotted,
    walk,
)

from ..._common.loop_insides import insides
from ..._common.origins import definitions, meaning
from ..derived import handed_on, still_wraps

_FSDP = "torch.distributed.fsdp."
_OF_OTHERS_TOO = tuple(
    f"{_FSDP}{name}." for name in ("_common_utils", "_init_utils", "_shard_utils", "_wrap_utils")
)
WHY = "it changes how FSDP1 works, which wraps no model any more: fully_shard has hooks of its own"
_QUIET = cst.Import | cst.ImportFrom | cst.Global | cst.Pass | cst.FunctionDef


def patches(program: Program) -> Iterator[Step]:
    """Functions that do nothing else go with their calls, once the program wraps no model by FSDP1."""
    if still_wraps(program):
        return
    parts = {
        left.node: left.source
        for left in insides(program, ())
        if not meaning(program, left.source, left.node).startswith(_OF_OTHERS_TOO)
    }
    for source in dict.fromkeys(parts.values()):
        for function in source.tree.body:
            if isinstance(function, cst.FunctionDef) and _only_patches(source, function, parts):
                calls = _calls(program, source, function)
                if calls is not None:
                    account = Account(source, function, "dropped", WHY)
                    yield Step(tuple(_away(source, function, calls)), (account,))


def _only_patches(
    source: Source, function: cst.FunctionDef, parts: dict[cst.CSTNode, Source]
) -> bool:
    """Whether all that a function does is to set parts of FSDP1."""
    if function.decorators or function.asynchronous or _takes(function):
        return False
    targets = [
        target.target
        for node in walk(function.body, into=False)
        if isinstance(node, cst.Assign)
        for target in node.targets
        if not isinstance(target.target, cst.Name)
    ]
    set_here = bool(targets) and all(target in parts for target in targets)
    return set_here and all(_is_quiet(line, source, function) for line in function.body.body)


def _takes(function: cst.FunctionDef) -> bool:
    given = function.params
    return bool(given.params or given.kwonly_params or given.posonly_params or given.star_kwarg)


def _is_quiet(line: cst.CSTNode, source: Source, function: cst.FunctionDef) -> bool:
    """Whether a statement binds names, asks a flag, or sets what is asked about elsewhere."""
    if isinstance(line, cst.SimpleStatementLine):
        return all(_is_quiet(one, source, function) for one in line.body)
    if isinstance(line, cst.If):
        quiet = all(_is_quiet(one, source, function) for one in line.body.body)
        return quiet and line.orelse is None and not _acts(line.test)
    if isinstance(line, cst.Return):
        return line.value is None
    if isinstance(line, cst.Assign):
        names = (t.target for t in line.targets if isinstance(t.target, cst.Name))
        return not _acts(line.value) and all(_is_own(source, function, n.value) for n in names)
    if isinstance(line, cst.Expr):
        return isinstance(line.value, cst.SimpleString)
    return isinstance(line, _QUIET)


def _acts(node: cst.CSTNode) -> bool:
    acting = cst.Call | cst.Await | cst.Yield | cst.NamedExpr | cst.Subscript
    return any(isinstance(one, acting) for one in walk(node))


def _is_own(source: Source, function: cst.FunctionDef, name: str) -> bool:
    """Whether a name is the function's, or a flag of the file that nothing else reads."""
    if name not in _shared(function):
        return True
    names = Names.of(source)
    mine = set(walk(function))
    flag = _flag(source, name)
    others = [
        node
        for node in walk(source.tree)
        if isinstance(node, cst.Name) and node.value == name and node not in mine
    ]
    return flag is not None and others == [flag.targets[0].target] and name not in names.exported


def _shared(function: cst.FunctionDef) -> set[str]:
    """The names of the file that a function binds."""
    said = (one for one in walk(function.body) if isinstance(one, cst.Global | cst.Nonlocal))
    return {item.name.value for one in said for item in one.names}


def _flag(source: Source, name: str) -> cst.Assign | None:
    """The statement of the file that binds a name to a constant."""
    for line in source.tree.body:
        for one in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(one, cst.Assign) and dotted(one.targets[0].target) == name:
                constant = dotted(one.value) in ("True", "False", "None")
                return one if constant and len(one.targets) == 1 else None
    return None


def _calls(
    program: Program, source: Source, function: cst.FunctionDef
) -> list[tuple[Source, cst.Expr]] | None:
    """The statements that call a function and do nothing else; None where it is named for more."""
    name = function.name.value
    found: list[tuple[Source, cst.Expr]] = []
    for other in program.sources:
        if name not in other.text:
            continue
        layout = Layout.of(other)
        for node in walk(other.tree):
            if not isinstance(node, cst.Name) or node.value != name or node is function.name:
                continue
            parent = layout.parents[node]
            if isinstance(parent, cst.ImportAlias):
                continue
            bound = list(definitions(program, other, name, other.tree))
            if bound and all(at is not function for _, at in bound):
                continue  # another function of that name
            statement = layout.parents.get(parent)
            called = isinstance(parent, cst.Call) and parent.func is node and not parent.args
            if not called or not isinstance(statement, cst.Expr):
                return None
            found.append((other, statement))
    public = name in Names.of(source).exported or any(handed_on(program, source, name))
    return None if public else found


def _away(
    source: Source, function: cst.FunctionDef, calls: list[tuple[Source, cst.Expr]]
) -> Iterator[Edit]:
    yield Remove(source, function, comments=True)
    for other, statement in calls:
        yield Remove(other, statement)
    for name in sorted(_shared(function)):
        if (flag := _flag(source, name)) is not None:
            yield Remove(source, flag)
    for other in dict.fromkeys([source, *(one for one, _ in calls)]):
        for one in Names.of(other).imports:
            inside = one.loads.startswith("torch.distributed.fsdp._")
            if inside or one.loads.endswith(f".{function.name.value}"):
                yield Unimport(other, one.loads)
