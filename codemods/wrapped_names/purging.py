"""Scripts that free by hand what FSDP1 has gathered, or start it by hand: FSDP2 has a method, or does it itself.

    for unit in FSDP.fsdp_modules(model):                  for unit in FSDP.fsdp_modules(model):
        handle = unit._handle                                  unit.reshard()
        if handle:
            _reshard(unit, handle, True)

    if is_unit(module):                                    if is_unit(module):
        _reshard(module, module._handle, True)                 module.reshard()

Facts (2.13): ``_runtime_utils._reshard`` frees the gathered parameters of a unit, as ``FSDPModule.reshard``
does, which leaves a unit alone that holds none (``_fully_shard.py``, ``_fsdp_param_group.py``);
``_lazy_init`` prepares a root for its first forward, where ``_fsdp_state.py`` has ``_lazy_init`` of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Account,
    Edit,
    InsertBefore,
    Layout,
    Program,
    Reference,
    Remove,
    Source,
    Step,
    dotted,
    walk,
)

from .._common.loop_models import FSDP_MODULE
from .._common.loop_text import around, text_of
from .._common.shared import unimports

_RUNTIME = "torch.distributed.fsdp._runtime_utils."
RESHARD, LAZY_INIT = f"{_RUNTIME}_reshard", f"{_RUNTIME}_lazy_init"
_UNITS = "torch.distributed.fsdp.FullyShardedDataParallel.fsdp_modules"
FREED = "`reshard()` frees what a unit has gathered, and does nothing where it holds none"
STARTED = "the first forward of the root prepares it"


def purging(program: Program) -> Iterator[Step]:
    """Loops and statements that call ``_reshard``, and statements that call ``_lazy_init``."""
    seen: set[cst.CSTNode] = set()
    for reference in program.references(RESHARD, LAZY_INIT):
        source, statement = reference.source, _statement(reference)
        if statement is None:
            continue
        if reference.name == LAZY_INIT:
            account = Account(source, statement, "dropped", STARTED)
            yield Step((Remove(source, statement), *_unused(program, source)), (account,))
            continue
        loop = next(
            (n for n in Layout.of(source).ancestors(statement) if isinstance(n, cst.For)), None
        )
        if loop is not None and _only_purges(program, source, loop):
            if loop not in seen:
                seen.add(loop)
                yield _freed(program, source, list(loop.body.body), dotted(loop.target))
        elif (found := _purged_beside(source, statement)) is not None:
            if found[0] not in seen:
                seen.add(found[0])
                yield _freed(program, source, found, text_of(source, _unit(statement)))


def _statement(reference: Reference) -> cst.Expr | None:
    """The statement that is nothing but a call of what is named."""
    parents = Layout.of(reference.source).parents
    call = parents[reference.node]
    statement = parents.get(call)
    called = isinstance(call, cst.Call) and call.func is reference.node
    return statement if called and isinstance(statement, cst.Expr) else None


def _unit(statement: cst.Expr) -> cst.BaseExpression:
    """What the call of a statement is given first."""
    return cst.ensure_type(statement.value, cst.Call).args[0].value


def _freed(program: Program, source: Source, lines: list[cst.CSTNode], unit: str) -> Step:
    accounts = tuple(Account(source, line, "changed", FREED) for line in lines)
    new = InsertBefore(source, lines[0], f"{unit}.reshard()")
    gone = (Remove(source, line, comments=True) for line in lines)
    return Step((new, *gone, *_unused(program, source)), accounts)


def _unused(program: Program, source: Source) -> Iterator[Edit]:
    for name in (RESHARD, LAZY_INIT):
        yield from unimports(program, source, name)


def _only_purges(program: Program, source: Source, loop: cst.For) -> bool:
    """Whether a loop over units asks FSDP1 for what each holds, frees it, and does nothing else."""
    if not isinstance(loop.target, cst.Name) or loop.orelse is not None:
        return False
    if not isinstance(loop.body, cst.IndentedBlock) or not _over_units(program, source, loop.iter):
        return False
    unit = loop.target.value
    bound = {unit, *_bound(loop.body)}
    resharding = {r.node for r in program.named(source) if r.name == RESHARD}
    frees = {n for n in walk(loop.body) if isinstance(n, cst.Call) and n.func in resharding}
    if not all(call.args and text_of(source, call.args[0].value) == unit for call in frees):
        return False
    quiet = all(_is_quiet(line, bound, frees) for line in loop.body.body)
    inside = set(walk(loop))
    function = around(source, loop)
    used = (n for n in walk(function) if isinstance(n, cst.Name) and n not in inside)
    return quiet and not any(name.value in bound - {unit} for name in used)


def _purged_beside(source: Source, statement: cst.Expr) -> list[cst.CSTNode] | None:
    """The statement that frees one unit, and those above it that only get ready what it is given."""
    if not isinstance(statement.value, cst.Call) or not statement.value.args:
        return None
    if not isinstance(_unit(statement), cst.Name):
        return None
    unit = text_of(source, _unit(statement))
    layout = Layout.of(source)
    body = list(layout.block(statement).body)  # type: ignore[attr-defined]
    last = body.index(layout.line(statement))
    frees = {statement.value}
    first = last
    bound = {unit, *(name for line in body[: last + 1] for name in _bound(line))}
    for index in range(last, -1, -1):
        goes_on = any(isinstance(n, cst.Continue) for n in walk(body[index]))
        if goes_on or unit in _bound(body[index]) or not _is_quiet(body[index], bound, frees):
            break
        first = index
    found = body[first : last + 1]
    ready = {name for line in found for name in _bound(line)}
    inside = {node for line in found for node in walk(line)}
    function = around(source, statement)
    used = (n for n in walk(function) if isinstance(n, cst.Name) and n not in inside)
    made_elsewhere = _bound(function) - ready - {unit}
    given = {n.value for n in inside if isinstance(n, cst.Name)}
    return None if given & made_elsewhere or any(n.value in ready for n in used) else found


def _over_units(program: Program, source: Source, what: cst.BaseExpression) -> bool:
    named = {r.name for r in program.named(source) if r.node in set(walk(what))}
    asked = isinstance(what, cst.ListComp | cst.GeneratorExp) and FSDP_MODULE in named
    return asked or (isinstance(what, cst.Call) and _UNITS in named)


def _bound(block: cst.CSTNode) -> set[str]:
    targets: list[cst.CSTNode] = []
    for node in walk(block):
        if isinstance(node, cst.Assign):
            targets += [one.target for one in node.targets]
        elif isinstance(node, cst.AnnAssign):
            targets.append(node.target)
    return {dotted(target) for target in targets}


def _is_quiet(line: cst.CSTNode, bound: set[str], frees: set[cst.Call]) -> bool:
    """Whether a statement only asks the unit, or what was got from it, and frees."""
    if isinstance(line, cst.SimpleStatementLine):
        return all(_is_quiet(one, bound, frees) for one in line.body)
    if isinstance(line, cst.IndentedBlock | cst.Else):
        block = line.body if isinstance(line, cst.Else) else line
        return all(_is_quiet(one, bound, frees) for one in block.body)
    if isinstance(line, cst.If):
        rest = line.orelse is None or _is_quiet(line.orelse, bound, frees)
        return rest and _is_quiet(line.body, bound, frees) and _asks(line.test, bound)
    if isinstance(line, cst.Assign):
        plain = all(isinstance(one.target, cst.Name) for one in line.targets)
        return plain and _asks(line.value, bound)
    if isinstance(line, cst.AnnAssign):
        return isinstance(line.target, cst.Name) and _asks(line.value, bound)
    if isinstance(line, cst.Expr):
        return line.value in frees
    return isinstance(line, cst.Continue | cst.Pass)


def _asks(node: cst.BaseExpression | None, bound: set[str]) -> bool:
    """Whether an expression calls nothing but private methods of what was got from the unit."""
    for one in walk(node) if node is not None else ():
        if isinstance(one, cst.Call):
            func = one.func
            private = isinstance(func, cst.Attribute) and func.attr.value.startswith("_")
            if not private and dotted(func) not in ("hasattr", "getattr", "len", "bool"):
                return False
    read = {n.value for n in walk(node) if isinstance(n, cst.Name)} if node is not None else set()
    return bool(read & bound) or read <= {"True", "False", "None"}
