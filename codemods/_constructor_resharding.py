"""A choice between full sharding and sharding of gradients as the bool that ``fully_shard`` takes.

``FULL_SHARD`` and ``SHARD_GRAD_OP`` become True and False where they are written, when nothing else
reads them; else the strategy is compared where the model is sharded.
"""

from __future__ import annotations

import re
from textwrap import dedent

import libcst as cst

from fsdp2lint.api import Layout, Names, Program, Replace, Source, dotted, scope_of

from ._constructor_helpers import STRATEGY
from ._constructor_names import function_scope, uses
from ._constructor_origins import meaning, table_of
from ._constructor_site import Argument, Construction

_WORDS = {f"{STRATEGY}.FULL_SHARD": "True", f"{STRATEGY}.SHARD_GRAD_OP": "False"}
RESHARD = "reshard_after_forward"

Written = dict[cst.BaseExpression, tuple[Source, str]]
"""The members of the enumeration that a choice is written with, and the bools in their place."""


def resharding(site: Construction, argument: Argument) -> str:
    """The text of ``reshard_after_forward`` for a strategy that the run chooses."""
    value, found = argument.value, Written()
    if argument.said or argument.home or not _only_chooses(site, value, found):
        text = site.flat(value)
        text = text if re.fullmatch(r"[\w.\[\]\"']+", text) else f"({text})"
        return f"{text} is not {site.name(STRATEGY)}.SHARD_GRAD_OP"
    inside = {node for node in found if site.call in Layout.of(site.source).ancestors(node)}
    for node, (source, word) in found.items():
        if node not in inside:
            site.elsewhere[node] = (Replace(source, node, word),)
            site.account(node, "changed", "the bool that `fully_shard` takes", source)
    if isinstance(value, cst.Name):
        return _renamed(site, value)
    return _with_words(site, value, {node: found[node][1] for node in inside})


def _only_chooses(site: Construction, node: cst.BaseExpression, found: Written) -> bool:
    """Whether an expression is a choice between the two members, which is read nowhere else."""
    return _chooses(site, site.source, node, found)


def _chooses(site: Construction, source: Source, node: cst.BaseExpression, found: Written) -> bool:
    name = meaning(site.program, source, node)
    word = "True" if dotted(node) == "None" else _WORDS.get(name)
    if word is not None:
        found[node] = source, word
        return source in site.program.sources and node not in site.fixed
    if isinstance(node, cst.IfExp):
        sides = (node.body, node.orelse)
        return all(_chooses(site, source, side, found) for side in sides)
    table = table_of(site.program, source, node)
    if table is not None:
        other, display = table
        assert isinstance(node, cst.Subscript)
        if isinstance(node.value, cst.Name) and not _is_read_once(site.program, other, display):
            return False
        return all(
            isinstance(one, cst.DictElement) and _chooses(site, other, one.value, found)
            for one in display.elements
        )
    if isinstance(node, cst.Name) and source is site.source:
        return _is_local(site, node) and all(
            _chooses(site, source, value, found) for value in _bound(source, node)
        )
    return False


def _is_local(site: Construction, name: cst.Name) -> bool:
    """Whether a name is a plain variable of the function, which is read here alone."""
    names, source = Names.of(site.source), site.source
    scope = names.owner(name.value, scope_of(Layout.of(source).ancestors(name)))
    if scope is not site.scope or uses(source, name) != 1:
        return False
    if scope is source.tree and _is_imported(site.program, source, name.value):
        return False
    bound = names.bindings[scope][name.value]
    parents = (Layout.of(source).parents.get(one) for one in bound)
    return all(isinstance(one, cst.Assign) and len(one.targets) == 1 for one in parents) and all(
        isinstance(getattr(one, "target", None), cst.Name) for one in bound
    )


def _bound(source: Source, name: cst.Name) -> list[cst.BaseExpression]:
    names, layout = Names.of(source), Layout.of(source)
    scope = names.owner(name.value, scope_of(layout.ancestors(name)))
    assert scope is not None
    assigns = (layout.parents[one] for one in names.bindings[scope][name.value])
    return [one.value for one in assigns if isinstance(one, cst.Assign)]


def _renamed(site: Construction, name: cst.Name) -> str:
    """The name of a variable that holds the bool now."""
    names, source = Names.of(site.source), site.source
    scope = names.owner(name.value, scope_of(Layout.of(source).ancestors(name)))
    assert scope is not None
    better = site.free(RESHARD, "reshard")
    for one in names.bindings[scope][name.value]:
        target = getattr(one, "target", one)
        site.elsewhere[target] = (Replace(source, target, better),)
    return better


def _is_read_once(program: Program, source: Source, display: cst.Dict) -> bool:
    """Whether the name of a table is read at one place of the program."""
    assign = Layout.of(source).parents.get(display)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
    if isinstance(assign, cst.AnnAssign):
        target = assign.target
    if not isinstance(target, cst.Name) or function_scope(source, display) is not source.tree:
        return isinstance(target, cst.Name) and uses(source, target) == 1
    return uses(source, target) == 1 and not _is_imported(program, source, target.value)


def _is_imported(program: Program, source: Source, name: str) -> bool:
    """Whether another file of the program takes a name from this one."""
    return any(
        program.comes_from(other, one, source, name)
        for other in program.sources
        if other is not source and name in other.text
        for one in Names.of(other).imports
    )


def _with_words(
    site: Construction, value: cst.BaseExpression, words: dict[cst.BaseExpression, str]
) -> str:
    """The text of an expression with the bools in it; a comparison alone where that says the same."""
    if isinstance(value, cst.IfExp) and set(words) == {value.body, value.orelse}:
        test = site.text(value.test)
        if isinstance(value.test, cst.Comparison):
            if words[value.body] == "True" and words[value.orelse] == "False":
                return test
            if words[value.body] == "False" and words[value.orelse] == "True":
                return f"not ({test})"
    start, end = site.layout.whole(value)
    text, at = "", start
    for node in sorted(words, key=lambda one: site.layout.span(one)[0]):
        first, last = site.layout.span(node)
        text += site.source.text[at:first] + words[node]
        at = last
    text += site.source.text[at:end]
    line = " ".join(text.split())
    if len(line) < 60 and "#" not in text:
        return line.replace("{ ", "{").replace(", }", "}").replace("( ", "(").replace(" )", ")")
    head, _, rest = text.partition("\n")
    return f"{head}\n{dedent(rest)}" if rest else text
