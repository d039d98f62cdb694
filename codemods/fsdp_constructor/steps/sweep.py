"""What is left of FSDP1 when its constructor calls are gone: names bound to settings that nothing reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import libcst as cst

from fsdp2lint.api import (
    POSITIONS,
    SYMBOLS,
    Account,
    Arguments,
    Edit,
    Layout,
    Left,
    Names,
    Program,
    Remove,
    Replace,
    Source,
    Step,
    Unimport,
    dotted,
    name_for,
    scope_of,
    walk,
)

from ..._common.origins import defined_by, meaning
from ..chosen import is_idle_field
from ..displays import Write, entries_of, writes_of
from ..dropped import unimports
from ..given import given_to_others
from ..precision import FIELDS, NEW, OLD

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
ENABLE = "torch.distributed.fsdp.wrap.enable_wrap"
_PURE = frozenset(
    {
        "torch.cuda.current_device",
        "torch.device",
        "torch.distributed.fsdp.CPUOffloadPolicy",
        "torch.distributed.fsdp.MixedPrecisionPolicy",
        "int",
        "functools.partial",
        "builtins.dict",
        "builtins.set",
        "dict",
        "getattr",
        "set",
        "tuple",
    }
)
_OF_TEXTS = frozenset({"lower", "strip", "upper"})
"""Methods that spell a text in another way."""

Binding = cst.Assign | cst.AnnAssign
IsPure = Callable[[cst.BaseExpression], bool]

_SETTINGS = frozenset(
    name
    for name, symbol in SYMBOLS.items()
    if symbol.code in ("FSDP102", "FSDP103", "FSDP113") and not name.startswith(f"{FSDP1}.")
)
"""What only constructors take: policies, precision, strategies, offload."""


def sweep(program: Program) -> Iterator[Step | Left]:
    """Take away assignments of FSDP1's objects that nothing reads; make policies of what other settings there are."""
    wrapped = any(True for _ in program.references(FSDP1, ENABLE))
    wrapped |= any(".cast_root_forward_inputs" in source.text for source in program.sources)
    for source in program.sources:
        edits: list[Edit] = []
        accounts: list[Account] = []
        for node in walk(source.tree):
            if isinstance(node, cst.Assign | cst.AnnAssign) and _is_idle(program, source, node):
                edits += [
                    Remove(source, one, comments="lone") for one in (node, *_writes(source, node))
                ]
                accounts.append(Account(source, node, "dropped", "removed: no longer used"))
            elif isinstance(node, cst.Assign | cst.AnnAssign):
                edits += unread_entries(source, node, partial(_does_nothing, program, source))
            elif isinstance(node, cst.Call) and not wrapped and not _inside(source, node, edits):
                if meaning(program, source, node.func) == OLD:
                    edits += _as_policy(program, source, node, accounts)
        if edits:
            edits += unimports(program, {source})
            yield Step((*edits, *_homes(source, edits)), tuple(accounts))


def _homes(source: Source, edits: list[Edit]) -> Iterator[Edit]:
    """The imports of the modules that what goes was read from."""
    gone = [edit.statement for edit in edits if isinstance(edit, Remove)]
    read = {n.value for one in gone for n in walk(one) if isinstance(n, cst.Name)}
    for one in Names.of(source).imports:
        if one.name in read and one.loads.startswith("torch.distributed"):
            yield Unimport(source, one.loads)


def _inside(source: Source, node: cst.CSTNode, edits: list[Edit]) -> bool:
    """Whether a node is in a statement that goes, or in a dictionary that is written anew."""
    gone: set[cst.CSTNode] = {edit.statement for edit in edits if isinstance(edit, Remove)}
    gone |= {edit.node for edit in edits if isinstance(edit, Replace)}
    return any(around in gone for around in Layout.of(source).ancestors(node))


def _is_idle(program: Program, source: Source, assign: Binding) -> bool:
    """Whether a statement only binds an object of FSDP1 to a name that nothing reads."""
    if assign.value is None or not _is_old(program, source, assign.value):
        return False
    annotated = isinstance(assign, cst.AnnAssign)
    target = assign.target if isinstance(assign, cst.AnnAssign) else assign.targets[0].target
    if isinstance(assign, cst.Assign) and len(assign.targets) != 1:
        return False
    if isinstance(target, cst.Attribute):
        return not annotated and is_idle_field(program, target.attr.value, written=1)
    if not isinstance(target, cst.Name):
        return False
    names = Names.of(source)
    scope = names.owner(target.value, scope_of(Layout.of(source).ancestors(assign)))
    made = assign.value.func if isinstance(assign.value, cst.Call) else assign.value
    if scope is source.tree and meaning(program, source, made) == OLD:
        return False  # it stays beside those that are used, as a policy
    if isinstance(scope, cst.ClassDef) and annotated:
        return False  # a field
    if isinstance(scope, cst.ClassDef):
        inside = any(
            names.owner(target.value, at) is scope for at in names.uses.get(target.value, ())
        )
        return not inside and is_idle_field(program, target.value, written=0)
    if scope is None:
        return False
    reads = sum(names.owner(target.value, at) is scope for at in names.uses.get(target.value, ()))
    if reads != len(_writes(source, assign)) or target.value in names.exported:
        return False
    return scope is not source.tree or not _read_elsewhere(program, source, target.value)


def _writes(source: Source, assign: Binding) -> list[cst.Assign | cst.Expr]:
    """The statements that write arguments of FSDP1, and nothing else, into a dictionary of them."""
    if assign.value is None:
        return []
    found = writes_of(source, assign.value, assign) or []
    others = {one.statement for one in found if one.key not in POSITIONS}
    every = dict.fromkeys(w.statement for w in found)
    return [one for one in every if isinstance(one, cst.Assign | cst.Expr) and one not in others]


def _read_elsewhere(program: Program, source: Source, name: str) -> bool:
    """Whether another file may take a name of a module from it, be it one that only the run chooses."""
    for other in program.sources:
        if other is source or name not in other.text:
            continue
        names = Names.of(other)
        if any(program.comes_from(other, one, source, name) for one in names.imports):
            return True
        if "import *" in other.text or _may_read(other, names, name):
            return True
    return False


def _may_read(source: Source, names: Names, name: str) -> bool:
    """Whether a file reads an attribute of that name of what may be a module: no object's own, no field's."""
    for node in walk(source.tree):
        if isinstance(node, cst.Attribute) and node.attr.value == name:
            root, _, rest = dotted(node.value).partition(".")
            if root not in ("self", "cls") and (not rest or root in names.imports_of):
                return True
    return False


def _is_old(program: Program, source: Source, value: cst.BaseExpression) -> bool:
    """Whether an expression makes an object of FSDP1, or a dictionary of its arguments, and does nothing else."""
    if not _does_nothing(program, source, value):
        return False
    if any(_is_symbol(meaning(program, source, node)) for node in walk(value)):
        return True
    keys = []
    if isinstance(value, cst.Call) and dotted(value.func) == "dict":
        keys = [a.keyword.value for a in value.args if a.keyword is not None]
    elif isinstance(value, cst.Dict):
        found = (getattr(e, "key", None) for e in value.elements)
        keys = [str(k.evaluated_value) for k in found if isinstance(k, cst.SimpleString)]
    return bool(keys) and set(keys) <= set(POSITIONS)


def _does_nothing(program: Program, source: Source, value: cst.BaseExpression) -> bool:
    """Whether an expression makes objects of FSDP1 and plain ones, and has no effect."""
    return all(
        (meaning(program, source, call.func) or dotted(call.func)) in {*_SETTINGS, *_PURE}
        or (isinstance(call.func, cst.Attribute) and call.func.attr.value in _OF_TEXTS)
        or _only_makes_policies(program, source, call)
        for call in walk(value, into=False)
        if isinstance(call, cst.Call)
    )


def _only_makes_policies(program: Program, source: Source, call: cst.Call) -> bool:
    """Whether a function of the project does nothing but make a wrap policy or settings and return it."""
    found = defined_by(program, source, call.func) if isinstance(call.func, cst.Name) else []
    home, function = found[0] if len(found) == 1 else (source, None)
    if not isinstance(function, cst.FunctionDef):
        return False
    lines: list[cst.CSTNode] = []
    for line in function.body.body:
        lines += line.body if isinstance(line, cst.SimpleStatementLine) else (line,)
    for one in lines:
        if isinstance(one, cst.FunctionDef):
            continue
        plain = isinstance(one, cst.Expr) and isinstance(one.value, cst.BaseString)
        bound = isinstance(one, cst.Assign) and all(
            isinstance(t.target, cst.Name) for t in one.targets
        )
        if not (plain or bound or isinstance(one, cst.Return)):
            return False
        made = getattr(one, "value", None)
        inner = (
            [n for n in walk(made, into=False) if isinstance(n, cst.Call)]
            if made is not None
            else []
        )
        if any(
            (meaning(program, home, n.func) or dotted(n.func)) not in {*_SETTINGS, *_PURE}
            for n in inner
        ):
            return False
    return bool(lines)


def _is_symbol(name: str) -> bool:
    return name == FSDP1 or any(name == s or name.startswith(f"{s}.") for s in _SETTINGS)


def _as_policy(
    program: Program, source: Source, call: cst.Call, accounts: list[Account]
) -> list[Edit]:
    """Settings that no constructor gets become a policy like those beside them."""
    given = isinstance(Layout.of(source).parents[call], cst.Arg)
    if given or any(arg.star for arg in call.args) or call in given_to_others(program):
        return []
    found = name_for(source, call, NEW)
    args = Arguments(source, call)
    for index, arg in enumerate(call.args):
        if (arg.keyword.value if arg.keyword is not None else FIELDS[index]) not in FIELDS[:2]:
            args.remove(arg)
    accounts.append(
        Account(source, call, "changed", "`MixedPrecisionPolicy` is its counterpart; unused here")
    )
    return [Replace(source, call.func, found.text), args, *found.edits]


def unread_entries(source: Source, statement: Binding, is_pure: IsPure) -> Iterator[Edit]:
    """Take the arguments of FSDP1 out of a dictionary of a function that is only asked for others.

    What became of them, the call that they were for has said.
    """
    value = statement.value
    entries = entries_of(value)
    asked = _asked(source, statement) if entries else None
    if value is None or not entries or asked is None:
        return
    dead = [
        node
        for key, node, given in entries
        if key in POSITIONS and key not in asked and is_pure(given)
    ]
    writes = writes_of(source, value, statement) or []
    gone = [w for w in writes if w.key in POSITIONS and w.key not in asked and is_pure(w.value)]
    yield from _shorter(source, value, dead)
    yield from _without(gone, writes, source)


def _asked(source: Source, statement: Binding) -> set[str] | None:
    """The keys for which the dictionary is asked; None where it is used in another way."""
    target = (
        statement.target if isinstance(statement, cst.AnnAssign) else statement.targets[0].target
    )
    value = statement.value
    if not isinstance(target, cst.Name) or value is None:
        return None
    layout, names = Layout.of(source), Names.of(source)
    scope = scope_of(layout.ancestors(statement))
    writes = writes_of(source, value, statement)
    if not isinstance(scope, cst.FunctionDef) or writes is None:
        return None
    asked = list(_keys_asked(layout, scope, target.value))
    reads = sum(names.owner(target.value, at) is scope for at in names.uses.get(target.value, ()))
    known = len({w.statement for w in writes}) + len(asked)
    return set(asked) if asked and reads == known else None


def _keys_asked(layout: Layout, scope: cst.CSTNode, name: str) -> Iterator[str]:
    """The keys of every ``name.get("key")``."""
    for node in walk(scope):
        call = layout.parents.get(node)
        if isinstance(node, cst.Attribute) and isinstance(call, cst.Call) and call.func is node:
            first = call.args[0].value if call.args else None
            if dotted(node) == f"{name}.get" and isinstance(first, cst.SimpleString):
                yield str(first.evaluated_value)


def _shorter(
    source: Source, display: cst.BaseExpression, dead: list[cst.CSTNode]
) -> Iterator[Edit]:
    """A display, or a call that takes them, without the entries."""
    if isinstance(display, cst.Call) and display.args and set(display.args) <= set(dead):
        yield Replace(source, display, f"{dotted(display.func)}()")
    elif isinstance(display, cst.Call) and any(arg in dead for arg in display.args):
        edit = Arguments(source, display)
        for arg in display.args:
            if arg in dead:
                edit.remove(arg)
        yield edit
    elif isinstance(display, cst.Dict) and any(e in dead for e in display.elements):
        kept = [e for e in display.elements if e not in dead]
        said = [source.text[slice(*Layout.of(source).span(e))] for e in kept]
        yield Replace(source, display, f"{{{', '.join(said)}}}")


def _without(gone: list[Write], writes: list[Write], source: Source) -> Iterator[Edit]:
    """The statements without what they write for nobody."""
    for statement in dict.fromkeys(w.statement for w in gone):
        mine = [w.node for w in gone if w.statement is statement]
        if len(mine) == sum(w.statement is statement for w in writes):
            yield Remove(source, statement, comments="lone")
        elif isinstance(statement.value, cst.Call):
            yield from _shorter(source, statement.value, mine)
