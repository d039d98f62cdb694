"""``CustomPolicy``: a function that says for each module whether it is a unit, and with which arguments.

Facts (torch/distributed/fsdp/wrap.py, 2.13): ``False`` and ``{}`` mean no; ``True`` means the arguments of
the root; a dictionary overrides some of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import Layout, Replace, Source, dotted, walk

from .._common.origins import defined_by, meaning, origins, returned
from .displays import entries_of
from .site import NEEDLESS, Construction

_DROPPED = {*NEEDLESS, "backward_prefetch", "device_id", "sync_module_states"}
_TESTS = ("isinstance", "bool", "any", "all", "issubclass", "hasattr", "callable")
_RESHARD = {"FULL_SHARD": "True", "SHARD_GRAD_OP": "False"}


@dataclass(frozen=True)
class Mapped:
    """A function that gives a module's own arguments: ``function`` is its text at the call."""

    function: str


def mapped(site: Construction, function: cst.BaseExpression) -> Mapped | str:
    """Rewrite the dictionaries that the function of a ``CustomPolicy`` returns; why it cannot be done, if so."""
    found = _definition(site, function)
    if found is None:
        return "the function of its policy cannot be resolved"
    source, node = found
    if source not in site.program.sources or not _is_only_this(site, node, function):
        return "the function of its policy is used elsewhere too"
    given = list(_given(site, source, node))
    if not all(one is not None and (_is_display(one) or is_yes_or_no(one)) for _, one in given):
        return "the function of its policy gives arguments that are not known"
    for source, display in given:
        if not isinstance(display, cst.Dict | cst.Call) or not _is_display(display):
            continue
        entries = entries_of(display)
        if entries is None:
            return "the function of its policy gives arguments that are not known"
        if not entries:
            continue  # an empty dictionary means no
        text = _arguments(site, source, display)
        if text is None:
            return "the function of its policy gives arguments that have no counterpart"
        site.elsewhere[display] = (Replace(source, display, text),)
    return Mapped(site.text(function))


def _definition(
    site: Construction, function: cst.BaseExpression
) -> tuple[Source, cst.FunctionDef | cst.Lambda] | None:
    if isinstance(function, cst.Lambda):
        return site.source, function
    if not isinstance(function, cst.Name):
        return None
    found = defined_by(site.program, site.source, function)
    if len(found) == 1 and isinstance(found[0][1], cst.FunctionDef):
        return found[0][0], found[0][1]
    return None


def _is_only_this(site: Construction, node: cst.CSTNode, function: cst.BaseExpression) -> bool:
    """Whether nothing but the policy calls the function."""
    if not isinstance(node, cst.FunctionDef) or not isinstance(function, cst.Name):
        return True
    used = [n for s in site.program.sources for n in _read(s, node.name.value)]
    return len(used) == 1


def _read(source: Source, name: str) -> Iterator[cst.CSTNode]:
    layout = Layout.of(source)
    for node in walk(source.tree):
        if isinstance(node, cst.Name) and node.value == name:
            parent = layout.parents[node]
            bound = isinstance(parent, cst.FunctionDef | cst.ImportAlias | cst.Param)
            if not bound and not (isinstance(parent, cst.Attribute) and parent.attr is node):
                yield node


def _given(
    site: Construction, source: Source, node: cst.FunctionDef | cst.Lambda
) -> Iterator[tuple[Source, cst.BaseExpression | None]]:
    """The expressions that a function returns, through names; None where the text does not say."""
    roots: list[cst.BaseExpression | None] = (
        [node.body] if isinstance(node, cst.Lambda) else returned(node)
    )
    for root in roots:
        for one in _sides(root) if root is not None else ():
            for origin in origins(site.program, source, one):
                changed = origin.node is not one and _is_written_to(node, one)
                yield origin.source, None if changed else origin.node


def _sides(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The expressions of which ``and`` and ``or`` take one."""
    if isinstance(node, cst.BooleanOperation):
        yield from _sides(node.left)
        yield from _sides(node.right)
    elif isinstance(node, cst.IfExp):
        yield from _sides(node.body)
        yield from _sides(node.orelse)
    else:
        yield node


def _is_written_to(function: cst.CSTNode, name: cst.BaseExpression) -> bool:
    """Whether a dictionary that a name holds is asked for its parts or its methods, which may change it."""
    return any(
        isinstance(one, cst.Subscript | cst.Attribute) and dotted(one.value) == dotted(name)
        for one in walk(function)
    )


def _is_display(node: cst.BaseExpression) -> bool:
    made = isinstance(node, cst.Call) and dotted(node.func) == "dict"
    return made or isinstance(node, cst.Dict)


def is_yes_or_no(node: cst.BaseExpression) -> bool:
    """Whether an expression surely gives no dictionary."""
    if isinstance(node, cst.Call):
        return dotted(node.func) in _TESTS
    if isinstance(node, cst.BooleanOperation):
        return is_yes_or_no(node.left) and is_yes_or_no(node.right)
    plain = isinstance(node, cst.Comparison) or dotted(node) in ("True", "False", "None")
    return plain or (isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not))


def _arguments(site: Construction, source: Source, display: cst.Dict | cst.Call) -> str | None:
    """The same arguments for ``fully_shard``; None when one has no counterpart."""
    said = []
    for name, node, value in entries_of(display) or ():
        if name in _DROPPED:
            site.account(node, "dropped", "fully_shard does not need it", source)
            continue
        one = _argument(site, source, name, value)
        if one is None:
            return None
        said.append(one)
        site.account(node, "changed", "the argument of fully_shard that stands for it", source)
    return f"{{{', '.join(said)}}}" if said else "True"


def _argument(
    site: Construction, source: Source, name: str, value: cst.BaseExpression
) -> str | None:
    if name != "sharding_strategy":
        return None
    kept = _RESHARD.get(meaning(site.program, source, value).rpartition(".")[2])
    return None if kept is None else f'"reshard_after_forward": {kept}'
