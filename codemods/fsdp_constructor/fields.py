"""Keywords in a dictionary that a class keeps in a field: the call asks for each entry when it runs.

    class Base:                                            fully_shard(
        settings = {"sharding_strategy": FULL_SHARD}           model, **sharding_options(self.settings["sharding_strategy"])
                                                           )
    FSDP(model, **self.settings)

Whoever sets an entry for one run (``base.settings["sharding_strategy"] = …``) sets it for the calls as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import libcst as cst

from fsdp2lint.api import Layout, Names, Program, Source, dotted, scope_of, walk

from .._common.origins import Origin, origins
from .chosen import given_to_field
from .displays import additions, entries_of, is_keywords


@dataclass(frozen=True)
class Entry:
    """An entry of a field: the node that writes it, all expressions that it can be."""

    node: cst.CSTNode
    kept: tuple[Origin, ...]
    is_read: bool
    """Whether the program asks for it by its key."""
    said: str = ""
    """How the call asks for it, if not by its key."""


Field = dict[str, Entry]

_FOR_THE_CALL = frozenset(
    {
        "module",
        "auto_wrap_policy",
        "fsdp_auto_wrap_policy",
        "param_init_fn",
        "ignored_modules",
        "ignored_states",
        "process_group",
        "device_mesh",
    }
)
"""Arguments that are more than a value to ask for."""


def field_of(program: Program, node: cst.BaseExpression) -> Field | None:
    """The entries of the one dictionary that a field of this name holds; None where more is done with it."""
    if not isinstance(node, cst.Attribute) or not dotted(node):
        return None
    found: Field | None = program.derived(_field, node.attr.value)
    return found


def display_of_field(program: Program, node: cst.BaseExpression) -> Origin | None:
    """The one dictionary that a field of this name holds, where calls only take it as ``**self.name``."""
    if not isinstance(node, cst.Attribute) or dotted(node.value) != "self":
        return None
    found: Origin | None = program.derived(_display, node.attr.value)
    return found


def _display(program: Program, name: str) -> Origin | None:
    displays: list[Origin] = []
    for source in program.sources:
        for node in walk(source.tree) if name in source.text else ():
            value = given_to_field(source, node, name)
            if value is not None:
                displays.append(Origin(source, value))
            elif _may_do_more(node, name):
                return None
            elif _names_field(node, name):
                parent = Layout.of(source).parents[node]
                spread = is_keywords(Layout.of(source), parent)
                set_here = isinstance(parent, cst.AssignTarget | cst.AnnAssign)
                if not (spread or set_here) or dotted(node.value) != "self":
                    return None
    if len(displays) != 1 or displays[0].node is None:
        return None
    if entries_of(displays[0].node):
        return displays[0]
    made = origins(program, displays[0].source, displays[0].node)  # by a function that returns it
    if len(made) != 1 or made[0].node is None or made[0].source not in program.sources:
        return None
    whole = entries_of(made[0].node) and additions(made[0].source, made[0].node) is not None
    return made[0] if whole else None


_PLAIN_CALLS = ("partial", "dict", "set", "current_device")


def means_the_same(source: Source, display: cst.BaseExpression, call: cst.CSTNode) -> bool:
    """Whether the entries of a dictionary, which do nothing, mean the same in another method of its class."""
    layout, names = Layout.of(source), Names.of(source)
    around = list(layout.ancestors(call))
    owner = next((one for one in layout.ancestors(display) if isinstance(one, cst.ClassDef)), None)
    if owner is None or owner not in around:
        return False
    here, there = scope_of(layout.ancestors(display)), scope_of(layout.ancestors(call))
    for node in walk(display):
        if isinstance(node, cst.Call):
            made = dotted(node.func).rpartition(".")[2]
            if not made[:1].isupper() and made not in _PLAIN_CALLS:
                return False
        if isinstance(node, cst.Name) and node.value != "self":
            parent = layout.parents[node]
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                continue
            if isinstance(parent, cst.Arg) and parent.keyword is node:
                continue
            home = names.owner(node.value, here)
            if home not in (source.tree, None) or names.owner(node.value, there) is not home:
                return False
    return True


def _field(program: Program, name: str) -> Field | None:
    displays: list[tuple[Source, cst.BaseExpression]] = []
    writes: list[tuple[str, Origin]] = []
    read: set[str] = set()
    for source in program.sources:
        if name not in source.text:
            continue
        for node in walk(source.tree):
            value = given_to_field(source, node, name)
            if value is not None:
                displays.append((source, _default(value)))
            elif _may_do_more(node, name):
                return None
            elif _names_field(node, name):
                use = _use(source, node)
                if use is None:
                    return None
                writes += [(key, one) for key, one in use if one is not None]
                read |= {key for key, one in use if one is None}
    entries = entries_of(displays[0][1]) if len(displays) == 1 else None
    if not entries or not {key for key, _ in writes} <= {key for key, _, _ in entries}:
        return None
    if any(key in _FOR_THE_CALL for key, _, _ in entries):
        return None
    home = displays[0][0]
    return {
        key: Entry(
            node, (Origin(home, value), *(one for k, one in writes if k == key)), key in read
        )
        for key, node, value in entries
    }


def _names_field(node: cst.CSTNode, name: str) -> TypeGuard[cst.Attribute]:
    """Whether a node names a field of some object: not `torch.distributed.fsdp`."""
    named = isinstance(node, cst.Attribute) and node.attr.value == name
    return named and not dotted(node).startswith("torch.")


def _default(value: cst.BaseExpression) -> cst.BaseExpression:
    """What a field of a dataclass is at first: ``field(default_factory=lambda: …)``."""
    if isinstance(value, cst.Call) and dotted(value.func).rpartition(".")[2] == "field":
        for arg in value.args:
            named = arg.keyword is not None and arg.keyword.value == "default_factory"
            if named and isinstance(arg.value, cst.Lambda):
                return arg.value.body
    return value


def _may_do_more(node: cst.CSTNode, name: str) -> bool:
    """Whether a field of this name may be set or asked for in another way."""
    if isinstance(node, cst.FunctionDef):
        return node.name.value == name
    if isinstance(node, cst.Arg):
        return node.keyword is not None and node.keyword.value == name
    return isinstance(node, cst.SimpleString) and node.evaluated_value == name


def _use(source: Source, field: cst.Attribute) -> list[tuple[str, Origin | None]] | None:
    """The key that is read where a field is named, or written with what; None where more is done with it."""
    layout = Layout.of(source)
    parent = layout.parents[field]
    if isinstance(parent, cst.Arg | cst.StarredDictElement):
        return [] if is_keywords(layout, parent) else None
    if isinstance(parent, cst.AssignTarget):
        return []
    if not isinstance(parent, cst.Subscript) or len(parent.slice) != 1:
        return None
    index = parent.slice[0].slice
    key = index.value if isinstance(index, cst.Index) else None
    if not isinstance(key, cst.SimpleString):
        return None
    around = layout.parents[parent]
    if isinstance(around, cst.AugAssign | cst.Del):
        return None
    assign = layout.parents[around]
    written = isinstance(around, cst.AssignTarget) and isinstance(assign, cst.Assign)
    value = assign.value if written and isinstance(assign, cst.Assign) else None
    return [(str(key.evaluated_value), Origin(source, value) if written else None)]
