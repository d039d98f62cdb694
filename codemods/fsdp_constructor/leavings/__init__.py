"""What settings of FSDP1 leave behind when the run chooses among them: strategies by name, fields nothing reads.

    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD     strategy: str = "FULL_SHARD"
    if strategy is ShardingStrategy.NO_SHARD:                    if strategy == "NO_SHARD":

A member of the enumeration says no more than its name once no constructor of FSDP1 reads it. Where code outside of the
project may still give a member, the function that makes arguments of it takes its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import starmap

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Container,
    Edit,
    External,
    InsertBefore,
    Layout,
    Left,
    Names,
    Program,
    Reference,
    Remove,
    Replace,
    Source,
    Splice,
    Step,
    Unimport,
    dotted,
    name_for,
    options,
    walk,
)

from ..._common.loop_quoted import quotations
from ..._common.names import function_scope
from ..._common.origins import origins, uses_of
from ..displays import given_by_callers
from ..dropped import unimports
from ..helpers import OPTIONS_OF_A_STRATEGY, STRATEGY
from ..site import NEEDLESS
from .tables import tables

NAMED = "the name of the strategy, as a string"
PREFETCH = "torch.distributed.fsdp.BackwardPrefetch"
UNCALLED = "removed with its function: nothing calls it any more"
UNREAD_ENTRY = "removed: FSDP2 has no such setting, and nothing reads the entry"
PREFETCH_NAMED = "its name, as a string: FSDP2 has no such setting"
_KEEPING = cst.DictElement | cst.Assign | cst.AnnAssign | cst.IfExp | cst.Return
"""What a member of an enumeration is in where it is only kept or chosen."""
UNREAD = "removed: FSDP2 has no such setting, and nothing reads the field"
_MEMBERS = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
_ASKED = re.compile(
    r"strateg\w*(\[[^\]]*\]|\(\))?\.(name|value)\b|str\([\w.]*strateg", re.IGNORECASE
)
Named = tuple[Source, cst.CSTNode, Edit]
"""A use of a member, and what is written for it."""
_NEEDLESS = ("backward_prefetch", *NEEDLESS)
"""Settings of FSDP1 for which FSDP2 has none."""


def leavings(program: Program, group: frozenset[Source]) -> Iterator[Step]:
    """Members of the enumeration of strategies as their names; no fields any more that only FSDP1 needs.

    ``group`` are files that imports join, none of which wraps by FSDP1 any more.
    """
    edits: dict[Source, list[Edit]] = {}
    accounts: list[Account] = []
    names, helpers = _names(program, group)
    for source, node, edit in names:
        edits.setdefault(source, []).append(edit)
        accounts.append(Account(source, node, "changed", NAMED))
    for function, (source, line) in helpers.items():
        edits[source].append(InsertBefore(source, function.body.body[1], line))
    for source, node, edit in _prefetches(program, group):
        edits.setdefault(source, []).append(edit)
        if isinstance(edit, Remove):
            why = UNCALLED if isinstance(edit.statement, cst.FunctionDef) else UNREAD_ENTRY
            accounts.append(Account(source, node, "dropped", why))
        else:
            accounts.append(Account(source, node, "changed", PREFETCH_NAMED))
    if edits:
        every = [edit for one in edits.values() for edit in one]
        yield Step((*every, *unimports(program, set(edits))), tuple(accounts))
    else:
        yield from tables(program, group, _MEMBERS)
    for source in program.sources:
        gone = list(_fields(program, source)) if source in group else []
        if gone:
            removed = [Remove(source, one, comments="lone") for one in gone]
            fields = [one for one in gone if not isinstance(one, cst.Expr)]
            said = tuple(Account(source, one, "dropped", UNREAD, own=True) for one in fields)
            yield Step((*removed, *unimports(program, {source})), said)


def in_annotations(program: Program) -> Iterator[Step]:
    """The classes of settings in annotations, where what they speak of has become a policy of FSDP2."""
    for old, new in _POLICIES.items():
        named = [(one.source, one.node) for one in program.references(old)]
        if not any(program.references(new)) or not all(starmap(_annotates, named)):
            continue  # where some are still made, the annotations may mean those
        if any(_ONLY_IN[old].search(source.text) for source in program.sources):
            continue  # settings that callers give stay what they are
        quoted = [*quotations(program, old)]
        places = dict.fromkeys((*named, *((one.source, one.node) for one in quoted)))
        for source, node in places:
            name = name_for(source, node, new)
            spans = [
                Splice(source, one.start, one.end, name.text) for one in quoted if one.node is node
            ]
            said = spans or (Replace(source, node, name.text),)
            account = Account(source, node, "changed", _POLICY)
            yield Step((*said, *name.edits, Unimport(source, old)), (account,))


def _annotates(source: Source, node: cst.CSTNode) -> bool:
    return any(isinstance(one, cst.Annotation) for one in Layout.of(source).ancestors(node))


_POLICY = "what this speaks of is a policy of FSDP2 now"
_POLICIES = {
    "torch.distributed.fsdp.MixedPrecision": "torch.distributed.fsdp.MixedPrecisionPolicy",
    "torch.distributed.fsdp.CPUOffload": "torch.distributed.fsdp.OffloadPolicy",
}


_ONLY_IN = {
    "torch.distributed.fsdp.MixedPrecision": re.compile(
        r"\.(buffer_dtype|cast_root_forward_inputs|keep_low_precision_grads)\b"
    ),
    "torch.distributed.fsdp.CPUOffload": re.compile(r"\.offload_params\b"),
}
"""Reads of what the policies of FSDP2 do not have."""


def fallbacks(program: Program) -> Iterator[Step]:
    """``FSDP = None`` where the import of FSDP1 fails, once nothing reads the name any more."""
    for source in program.sources:
        layout, names = Layout.of(source), Names.of(source)
        imported = {i.name: i for i in names.imports if i.target.startswith(_FSDP)}
        gone: dict[cst.CSTNode, cst.CSTNode] = {}
        for reference in program.named(source):
            target = layout.parents[reference.node]
            if isinstance(target, cst.AssignTarget) and dotted(reference.node) in imported:
                handled = any(isinstance(a, cst.ExceptHandler) for a in layout.ancestors(target))
                if handled and not _is_read(program, source, dotted(reference.node)):
                    gone[layout.parents[target]] = reference.node
        said = [Account(source, node, "dropped", UNREAD_NAME) for node in gone.values()]
        idle = {i.statement for i in imported.values() if not names.used(i.name, i.scope)}
        around = (a for one in gone for a in layout.ancestors(one))
        for tried in dict.fromkeys(a for a in around if isinstance(a, cst.Try)):
            blocks = (tried.body, *(one.body for one in tried.handlers))
            inside = [
                n for block in blocks for line in block.body for n in getattr(line, "body", ())
            ]
            whole = all(one in gone or one in idle for one in inside)
            removed = [tried] if whole else [one for one in inside if one in gone]
            edits: list[Edit] = [Remove(source, one, comments="lone") for one in removed]
            edits += [] if whole else unimports(program, {source})
            yield Step(tuple(edits), tuple(said))


def _is_read(program: Program, source: Source, name: str) -> bool:
    """Whether any file reads a name that one binds at its top."""
    word = re.compile(rf"\b{name}\b")
    return Names.of(source).used(name, source.tree) or any(
        word.search(other.text) for other in program.sources if other is not source
    )


UNREAD_NAME = "removed: nothing reads the name any more"
_FSDP = "torch.distributed.fsdp"
_FP8 = "transformer_engine.pytorch.distributed.prepare_te_modules_for_fsdp"
"""Transformer Engine's function for FSDP1, which asserts that it is given its wrapper
(transformer_engine/pytorch/distributed.py)."""


def foreign(program: Program) -> Iterator[Left]:
    """Functions of other libraries that take FSDP1's wrapper only."""
    for reference in program.references(_FP8):
        if isinstance(Layout.of(reference.source).parents[reference.node], cst.Call):
            why = "it raises for a model that is not FSDP1's"
            todo = (
                "take this away: it scatters the FP8 copies of weights with FSDP1's flat parameters"
            )
            yield Left(reference.source, reference.node, why, todo)


def _names(program: Program, group: frozenset[Source]) -> tuple[list[Named], Asking]:
    """What is written for each use of the enumeration; nothing where one of them needs more than a name.

    And the functions of the migration that code outside of the project may give a member, or the run any name.
    """
    found: list[Named] = []
    helpers: Asking = {}
    nothing: tuple[list[Named], Asking] = [], {}
    references = [r for r in program.references(STRATEGY, f"{STRATEGY}.*") if r.source in group]
    written = any(_makes_options(f) for f in map(_function_of, references) if f is not None)
    if not references or (program.framework and not written) or _is_given_away(program, group):
        return nothing
    if any(_ASKED.search(source.text) for source in group):
        return nothing
    by_name = any(_is_by_name(reference) for reference in references)
    chosen_here = by_name
    for reference in references:
        edit = _name(program, reference)
        if edit is None:
            return nothing
        found.append((reference.source, reference.node, edit))
        comparison = _comparison(reference)
        chosen_here |= comparison is None and reference.name != STRATEGY
        if comparison is None:
            continue
        function = function_scope(reference.source, comparison)
        makes_options = isinstance(function, cst.FunctionDef) and _makes_options(function)
        if _comes_from_others(program, reference.source, comparison):
            if not isinstance(function, cst.FunctionDef) or not makes_options:
                return nothing
            helpers[function] = reference.source, TAKEN_BY_NAME
        elif isinstance(function, cst.FunctionDef) and makes_options and by_name:
            if not all(name in reference.source.code(function) for name in _MEMBERS[1:]):
                continue  # it is known which it is given
            kept = any(_is_by_name(one) and _is_kept_by_name(one) for one in references)
            helpers[function] = reference.source, REFUSED_OR_NONE if kept else REFUSED
    found += _quoted(program, group, STRATEGY)
    return (found, helpers) if chosen_here or helpers else nothing


def _quoted(program: Program, group: frozenset[Source], enumeration: str) -> Iterator[Named]:
    """What is written for an enumeration in quoted annotations."""
    for one in quotations(program, enumeration):
        if one.source in group:
            alone = one.node.raw_value == one.source.text[one.start : one.end]
            inside = Splice(one.source, one.start, one.end, "str")
            yield one.source, one.node, Replace(one.source, one.node, "str") if alone else inside


Asking = dict[cst.FunctionDef, tuple[Source, str]]
"""Functions of the migration, each with the line that it needs."""

REFUSED = f"""\
members = {_MEMBERS}
if strategy not in members:
    raise KeyError(strategy)""".replace("'", '"')
"""What the enumeration did with a name that is no member's."""
REFUSED_OR_NONE = REFUSED.replace("if strategy not", "if strategy is not None and strategy not")
"""The same where a variable may hold no name."""

TAKEN_BY_NAME = (
    'strategy = getattr(strategy, "name", strategy)  # members of FSDP1\'s enum have one'
)


def _function_of(reference: Reference) -> cst.FunctionDef | None:
    """The function that a use is in."""
    found = function_scope(reference.source, reference.node)
    return found if isinstance(found, cst.FunctionDef) else None


def _makes_options(function: cst.FunctionDef) -> bool:
    """Whether this is the function that the migration wrote to make arguments of a strategy."""
    return function.get_docstring() == OPTIONS_OF_A_STRATEGY


def is_uncalled(program: Program, source: Source, function: cst.FunctionDef) -> bool:
    """Whether nothing in the project names a function or a method; a decorator may have kept it."""
    name = function.name.value
    word = re.compile(rf"\b{name}\b")
    return (
        not isinstance(function_scope(source, function), cst.FunctionDef)
        and not function.decorators
        and sum(len(word.findall(one.text)) for one in program.sources) == 1
    )


def _prefetches(program: Program, group: frozenset[Source]) -> list[Named]:
    """The same for ``BackwardPrefetch``, where it is only kept in tables and fields, and nothing tests it."""
    found: list[Named] = []
    for reference in program.references(PREFETCH, f"{PREFETCH}.*"):
        source, layout = reference.source, Layout.of(reference.source)
        if source not in group:
            continue
        function = function_scope(source, reference.node)
        made = function if isinstance(function, cst.FunctionDef) else None
        if made and _only_gives(program, source, made) and is_uncalled(program, source, made):
            found.append((source, reference.node, Remove(source, made, comments=True)))
            continue
        parent, member = layout.parents[reference.node], reference.name.removeprefix(f"{PREFETCH}.")
        if member in ("BACKWARD_PRE", "BACKWARD_POST"):
            unread = _unread_entry(program, source, parent)
            if unread is not None:
                found.append((source, reference.node, Remove(source, unread, comments=True)))
                continue
            call = layout.parents[parent] if isinstance(parent, cst.Arg) else None
            if not isinstance(parent, _KEEPING) or call is not None:
                return []
            found.append((source, reference.node, Replace(source, reference.node, f'"{member}"')))
        elif any(isinstance(one, cst.Annotation) for one in layout.ancestors(reference.node)):
            found.append((source, reference.node, Replace(source, reference.node, "str")))
        else:
            return []
    return [*found, *_quoted(program, group, PREFETCH)] if found else []


def looked_up(
    source: Source, enumeration: cst.BaseExpression
) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """``ShardingStrategy[name]`` or ``getattr(ShardingStrategy, name)`` around the enumeration, and the name."""
    parents = Layout.of(source).parents
    around = parents[enumeration]
    if isinstance(around, cst.Subscript) and around.value is enumeration and len(around.slice) == 1:
        index = around.slice[0].slice
        return (around, index.value) if isinstance(index, cst.Index) else None
    call = parents[around] if isinstance(around, cst.Arg) else None
    if isinstance(call, cst.Call) and dotted(call.func) == "getattr" and len(call.args) == 2:
        return (call, call.args[1].value) if call.args[0] is around else None
    return None


def _is_by_name(reference: Reference) -> bool:
    """Whether a member is looked up by its name, and given to a function or kept."""
    found = looked_up(reference.source, reference.node) if reference.name == STRATEGY else None
    if found is None:
        return False
    given = isinstance(Layout.of(reference.source).parents[found[0]], cst.Arg)
    return given or _is_kept_by_name(reference)


def _is_kept_by_name(reference: Reference) -> bool:
    """Whether this is ``strategy = ShardingStrategy[name]``; not where a name takes the place of itself."""
    source = reference.source
    found = looked_up(source, reference.node)
    assign = Layout.of(source).parents[found[0]] if found is not None else None
    if found is None or not isinstance(assign, cst.Assign):
        return False
    return not any(source.code(one.target) == source.code(found[1]) for one in assign.targets)


def _only_gives(program: Program, source: Source, function: cst.FunctionDef) -> bool:
    """Whether a function returns members of ``BackwardPrefetch``, or of a table of them, or None: it was there for FSDP1."""
    members = {r.node for r in program.named(source) if r.name.startswith(PREFETCH)}
    tables = {
        node.targets[0].target.value
        for node in walk(function.body)
        if isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Name)
        if not members.isdisjoint(walk(node.value))
    }
    returned = [one.value for one in walk(function.body) if isinstance(one, cst.Return)]
    given = [one for one in returned if one is not None and dotted(one) != "None"]
    return bool(given) and all(
        any(n in members or (isinstance(n, cst.Name) and n.value in tables) for n in walk(value))
        for value in given
    )


def _unread_entry(program: Program, source: Source, assign: cst.CSTNode) -> cst.CSTNode | None:
    """``kwargs["backward_prefetch"] = …`` of a dictionary that no call gets any more, or the ``if`` that holds no more."""
    target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
    if not isinstance(target, cst.Subscript) or not isinstance(target.value, cst.Name):
        return None
    said = re.compile(r"""["']backward_prefetch["']""")
    if sum(len(said.findall(one.text)) for one in program.sources) != 1:
        return None
    function, name = function_scope(source, target), target.value.value
    for node in walk(function):
        spread = isinstance(node, cst.Arg) and node.star == "**"
        spread |= isinstance(node, cst.StarredDictElement | cst.Return)
        if spread and getattr(getattr(node, "value", None), "value", "") == name:
            return None
    layout = Layout.of(source)
    around = layout.parents.get(layout.block(assign), assign)
    alone = isinstance(around, cst.If) and around.orelse is None and len(around.body.body) == 1
    asks = isinstance(around, cst.If) and any(isinstance(n, cst.Call) for n in walk(around.test))
    is_elif = isinstance(layout.parents.get(around), cst.If)
    return around if alone and not asks and not is_elif else assign


def _comparison(reference: Reference) -> cst.Comparison | None:
    """The comparison that a use is a side of, also through a tuple that has a name of its own."""
    source, layout = reference.source, Layout.of(reference.source)
    node: cst.CSTNode = reference.node
    around = layout.parents[node]
    if isinstance(around, cst.Element):
        node = layout.parents[around]
        around = layout.parents[node]
    if isinstance(around, cst.Assign) and isinstance(node, cst.Tuple):
        target = around.targets[0].target
        function = function_scope(source, around)
        for one in walk(function):
            if isinstance(one, cst.Name) and isinstance(target, cst.Name) and one is not target:
                if one.value == target.value:
                    node, around = one, layout.parents[one]
    if isinstance(around, cst.ComparisonTarget):
        around = layout.parents[around]
    return around if isinstance(around, cst.Comparison) else None


def _comes_from_others(program: Program, source: Source, comparison: cst.Comparison) -> bool:
    """Whether code outside the project may give what is compared: the parameter of a function nobody here calls."""
    left = comparison.left
    function = function_scope(source, left)
    if not isinstance(left, cst.Name) or not isinstance(function, cst.FunctionDef):
        return False
    params = (*function.params.params, *function.params.kwonly_params)
    is_given = left.value in [one.name.value for one in params]
    if not is_given or given_by_callers(program, source, left):
        return False
    return any(one.node is None for one in origins(program, source, left))


def _name(program: Program, reference: Reference) -> Edit | None:
    source, node = reference.source, reference.node
    layout = Layout.of(source)
    parent = layout.parents[node]
    member = reference.name.removeprefix(STRATEGY).removeprefix(".")
    if _is_by_name(reference) and (found := looked_up(source, node)) is not None:
        return Replace(source, found[0], source.text[slice(*layout.whole(found[1]))])
    if not member:
        annotation = any(isinstance(one, cst.Annotation) for one in layout.ancestors(node))
        return Replace(source, node, "str") if annotation else None
    if member not in _MEMBERS:
        return None
    call = layout.parents[parent] if isinstance(parent, cst.Arg) else None
    if isinstance(call, cst.Call) and _is_foreign(program, source, call):
        return None
    if isinstance(parent, cst.ComparisonTarget):
        whole = layout.parents[parent]
        assert isinstance(whole, cst.Comparison)
        if isinstance(parent.operator, cst.Is | cst.IsNot):
            if len(whole.comparisons) > 1:
                return None
            sign = "==" if isinstance(parent.operator, cst.Is) else "!="
            end = layout.whole(whole.left)[1]
            return Splice(source, end, layout.whole(node)[1], f' {sign} "{member}"')
    elif isinstance(parent, cst.Comparison):
        asked = parent.comparisons[0].operator
        if isinstance(asked, cst.Is | cst.IsNot):
            return None
    return Replace(source, node, f'"{member}"')


def _is_foreign(program: Program, source: Source, call: cst.Call) -> bool:
    """Whether a call is one of something outside the project."""
    return any(one.node is call.func for one in program.named(source)) and not any(
        program.project.resolve(name, 0, source)
        for one in program.named(source)
        if one.node is call.func
        for name in (one.name.rpartition(".")[0],)
    )


def _is_given_away(program: Program, group: frozenset[Source]) -> bool:
    """Whether some run gives a member to something outside the project, in these files or in one that is only read."""
    others = frozenset(program.sources) - group
    return any(
        isinstance(one, External)
        and one.name.startswith(STRATEGY)
        and (called.name, one.name) != ("builtins.getattr", STRATEGY)
        for trace in program.traces
        for called in trace.of(Called)
        if called.name != "builtins.print" and not _asks_a_table(called)
        if called.at.source not in others
        for value in (*called.arguments, *called.keywords.values())
        for one in options(value)
    )


def _asks_a_table(called: Called) -> bool:
    """Whether this is ``table.get(key, default)`` of a dictionary of the script."""
    return called.name == ".get" and isinstance(called.receiver, Container)


def _fields(program: Program, source: Source) -> Iterator[cst.BaseSmallStatement]:
    """The fields of classes with the name of such a setting, which nothing in the project mentions."""
    if not any(name in source.text for name in _NEEDLESS):
        return
    for cls in walk(source.tree):
        if isinstance(cls, cst.ClassDef) and isinstance(cls.body, cst.IndentedBlock):
            lines = [one for one in cls.body.body if isinstance(one, cst.SimpleStatementLine)]
            small = [one.body[0] for one in lines if len(one.body) == 1]
            gone = [
                one
                for one in small
                if isinstance(one, cst.AnnAssign | cst.Assign) and _is_unread(program, one)
            ]
            if not gone or len(gone) == len(cls.body.body) or _is_made_by_position(program, cls):
                continue
            if not _bases_do_more(program, cls) and not _is_filled_by_name(program, cls.name.value):
                for one in gone:
                    yield from (one, *_docstring_below(small, one))


def _docstring_below(statements: Sequence[cst.CSTNode], field: cst.CSTNode) -> Iterator[cst.Expr]:
    """The string under a field that says what it is."""
    at = next(i for i, one in enumerate(statements) if one is field) + 1
    below = statements[at] if at < len(statements) else None
    if isinstance(below, cst.Expr) and isinstance(below.value, cst.BaseString):
        yield below


def _is_unread(program: Program, field: cst.AnnAssign | cst.Assign) -> bool:
    target = field.target if isinstance(field, cst.AnnAssign) else field.targets[0].target
    name = target.value if isinstance(target, cst.Name) else ""
    if name not in _NEEDLESS or any(isinstance(one, cst.Call) for one in walk(field)):
        return False
    word = re.compile(rf"\b{name}\b")
    said = [one.text for source in program.sources for one in source.comments]
    every = sum(len(word.findall(one.text)) for one in (*program.sources, *program.texts))
    return every - sum(len(word.findall(text)) for text in said) == 1


def _is_filled_by_name(program: Program, cls: str, known: tuple[str, ...] = ()) -> bool:
    """Whether a command line or a file may name the fields of a class: they reach it by ``**`` or through other code.

    ``replace(config, **options)``, ``Config(**options)``, ``HfArgumentParser(Config)``, ``@app.command`` above
    ``def main(config: Config)``, and the same of a class that has an object of this one in a field.
    """
    for source in program.sources:
        if cls not in source.text and "replace(" not in source.text:
            continue
        layout = Layout.of(source)
        for node in walk(source.tree):
            if isinstance(node, cst.Call) and dotted(node.func).rpartition(".")[2] == "replace":
                if any(arg.star == "**" for arg in node.args):
                    return True
            if not isinstance(node, cst.Name) or node.value != cls:
                continue
            around = list(layout.ancestors(node))
            if any(isinstance(one, cst.Annotation) for one in around):
                function = next((a for a in around if isinstance(a, cst.FunctionDef)), None)
                owner = next((a for a in around if isinstance(a, cst.ClassDef)), None)
                if function is not None and function.decorators:
                    return True
                if function is None and owner is not None and owner.name.value not in known:
                    if _bases_do_more(program, owner):
                        return True
                    if _is_filled_by_name(program, owner.name.value, (*known, cls)):
                        return True
                continue
            parent = around[0]
            if isinstance(parent, cst.Attribute):
                parent = around[1]
            call = parent if isinstance(parent, cst.Call) else None
            if call is not None and node in set(walk(call.func)):
                if any(arg.star == "**" for arg in call.args):
                    return True
            elif isinstance(parent, cst.Arg | cst.Element) and not _only_asks(layout, parent):
                return True
    return False


def _bases_do_more(program: Program, cls: cst.ClassDef) -> bool:
    """Whether a class has bases with methods, which may read the fields from a file, or unresolved bases."""
    for base in cls.bases:
        name = dotted(base.value).rpartition(".")[2]
        found = [
            one
            for source in program.sources
            for one in (walk(source.tree) if f"class {name}" in source.text else ())
            if isinstance(one, cst.ClassDef) and one.name.value == name and one is not cls
        ]
        if not found and name not in ("object", "ABC", "Generic", "Protocol"):
            return True
        methods = (n for one in found for n in one.body.body if isinstance(n, cst.FunctionDef))
        if any(not method.name.value.startswith("__") for method in methods):
            return True
        if any(_bases_do_more(program, one) for one in found):
            return True
    return False


def _only_asks(layout: Layout, part: cst.CSTNode) -> bool:
    """Whether an argument, perhaps in a tuple, is for what makes no object of a class, or one with its defaults."""
    if isinstance(part, cst.Arg) and part.keyword is not None:
        return part.keyword.value == "default_factory"
    call = next((a for a in layout.ancestors(part) if isinstance(a, cst.Call)), None)
    return call is not None and dotted(call.func) in ("isinstance", "issubclass", "fields")


def _is_made_by_position(program: Program, cls: cst.ClassDef) -> bool:
    """Whether the class is derived from, or called with arguments that have no names."""
    return any(
        isinstance(use, cst.ClassDef)
        or any(arg.keyword is None and arg.star != "**" for arg in use.args)
        for use in uses_of(program, cls)
    )
