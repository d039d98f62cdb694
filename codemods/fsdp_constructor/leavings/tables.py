"""Tables that map the name of each strategy to itself, once a strategy is its name: they go.

    strategies = {"FULL_SHARD": "FULL_SHARD", "NO_SHARD": "NO_SHARD"}
    strategy = strategies[args.strategy]                                  strategy = args.strategy

Only where the command line refuses other names (``choices``): so did the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Edit, Layout, Names, Program, Remove, Replace, Source, Step, dotted, walk

from ..._common.names import function_scope

_IDENTITY = re.compile(r"""(["'])(_?[A-Z_0-9]+)\1\s*:\s*(["'])\2\3""")


def tables(program: Program, group: frozenset[Source], members: tuple[str, ...]) -> Iterator[Step]:
    """Each such table in some files that is only asked for what an option of the command line gives."""
    for source in program.sources:
        if source not in group or not _IDENTITY.search(source.text):
            continue
        for node in walk(source.tree):
            if isinstance(node, cst.Assign) and len(node.targets) == 1:
                names = _names(node.value)
                if names and names <= set(members):
                    edits = list(_without(program, source, node, names))
                    if edits:
                        yield Step((Remove(source, node, comments="lone"), *edits), ())


def _names(table: cst.BaseExpression) -> set[str]:
    """The names that a dictionary maps to themselves; none where it does more."""
    if not isinstance(table, cst.Dict):
        return set()
    found: set[str] = set()
    for one in table.elements:
        key = one.key if isinstance(one, cst.DictElement) else None
        if not isinstance(key, cst.SimpleString) or not isinstance(one.value, cst.SimpleString):
            return set()
        if key.evaluated_value != one.value.evaluated_value:
            return set()
        found.add(str(key.evaluated_value))
    return found


def _without(
    program: Program, source: Source, table: cst.Assign, names: set[str]
) -> Iterator[Edit]:
    """The key in place of each question to the table; nothing where one of its uses is something else."""
    layout, target = Layout.of(source), table.targets[0].target
    if not isinstance(target, cst.Name):
        return
    scope, edits = function_scope(source, table), list[Edit]()
    word = re.compile(rf"\b{target.value}\b")
    if scope is source.tree and any(
        word.search(o.text) for o in program.sources if o is not source
    ):
        return
    if not isinstance(scope, cst.FunctionDef | cst.Module):
        return
    if len(Names.of(source).bindings.get(scope, {}).get(target.value, ())) != 1:
        return
    for use in walk(scope):
        if not isinstance(use, cst.Name) or use.value != target.value or use is target:
            continue
        asked = layout.parents[use]
        key = _key(asked) if isinstance(asked, cst.Subscript) and asked.value is use else None
        if key is None or not _gives_only(program, key.attr.value, names):
            return
        edits.append(Replace(source, asked, source.code(key)))
    yield from edits


def _key(asked: cst.Subscript) -> cst.Attribute | None:
    """The field of parsed arguments that a table is asked for."""
    index = asked.slice[0].slice if len(asked.slice) == 1 else None
    key = index.value if isinstance(index, cst.Index) else None
    return key if isinstance(key, cst.Attribute) and dotted(key) else None


def _gives_only(program: Program, field: str, names: set[str]) -> bool:
    """Whether the one option of the project with this name takes these names and no others."""
    return bool(taken := choices_of(program, field)) and taken <= names


def choices_of(program: Program, field: str) -> set[str]:
    """The texts that the one option of the project with this name takes; none where it may be something else."""
    options = [
        call
        for source in program.sources
        if "add_argument" in source.text
        for call in walk(source.tree)
        if isinstance(call, cst.Call) and _is_option(call, field)
    ]
    if len(options) != 1 or any(_sets(program, field)):
        return set()
    given = {a.keyword.value: a.value for a in options[0].args if a.keyword is not None}
    choices = given.get("choices")
    if not isinstance(choices, cst.List | cst.Tuple | cst.Set):
        return set()
    default = [given["default"]] if "default" in given else []
    if not default and dotted(given.get("required", cst.Name("False"))) != "True":
        return set()
    taken = [*(one.value for one in choices.elements), *default]
    texts = {str(one.evaluated_value) for one in taken if isinstance(one, cst.SimpleString)}
    return texts if all(isinstance(one, cst.SimpleString) for one in taken) else set()


def _is_option(call: cst.Call, field: str) -> bool:
    """Whether a call is ``parser.add_argument`` for this field of what is parsed."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "add_argument":
        return False
    said = [a.value for a in call.args if a.keyword is None or a.keyword.value == "dest"]
    texts = [str(one.evaluated_value) for one in said if isinstance(one, cst.SimpleString)]
    return any(text.lstrip("-").replace("-", "_") == field for text in texts)


def _sets(program: Program, field: str) -> Iterator[bool]:
    """Whether an attribute of this name is set anywhere by the code."""
    for source in program.sources:
        for node in walk(source.tree) if field in source.text else ():
            if isinstance(node, cst.AssignTarget) and isinstance(node.target, cst.Attribute):
                yield node.target.attr.value == field
