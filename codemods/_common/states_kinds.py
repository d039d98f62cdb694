"""The kind of state dict that a place of the text needs, agreed among all the runs that come there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import libcst as cst

from fsdp2lint.api import (
    Edit,
    Layout,
    Names,
    Source,
    argument,
    dotted,
    name_for,
    scope_of,
    walk,
)

from .names import named_once
from .states_asked import FULL, KINDS, LOCAL, LOCAL_WHY, SHARDED, Asked
from .states_text import can_be_said, function_of, is_path


@dataclass(frozen=True, slots=True)
class Kind:
    """``name`` is the member of ``StateDictType``, empty when the run decides; ``switches`` the options.

    ``imports`` are what the switches need. ``on_cpu`` says that what they give still has to be gathered
    on the CPU of every rank.
    """

    name: str
    switches: tuple[str, ...]
    imports: tuple[Edit, ...] = ()
    on_cpu: bool = False

    def in_groups(self) -> Kind:
        """The same for a model of one group of ranks among several.

        FSDP1 leaves a state to the first rank of the group; with ``cpu_offload`` torch leaves it to the first
        of all ranks (torch/distributed/checkpoint/state_dict.py, ``_maybe_full_or_cpu_state_dict``).
        """
        if self.name == SHARDED:
            return self
        if self.on_cpu:
            return replace(self, switches=())
        return replace(self, switches=tuple(s for s in self.switches if "cpu_offload" not in s))


def agreed(
    source: Source,
    call: cst.CSTNode,
    found: Iterable[tuple[Asked, bool]],
    *,
    loads: bool = False,
) -> Kind | str:
    """The kind for a call that is reached with these questions, each with whether only rank 0 uses it.

    A text instead says why there is none. What is loaded lies where the program has put it.
    """
    every = list(found)
    kinds = {asked.kind for asked, _ in every}
    if LOCAL in kinds:
        return LOCAL_WHY
    if any(asked.in_some_runs for asked, _ in every):
        return "`set_state_dict_type` asks for a kind of it in some of the runs that come here"
    if len(kinds) > 1 or any(asked.unlike for asked, _ in every):
        return "its callers ask for different kinds of state dicts"
    kind = kinds.pop()
    first_only = all(asked.rank0_only is True or only for asked, only in every)
    offloaded = all(asked.offloaded is True and asked.by is not None for asked, _ in every)
    if kind == SHARDED:
        return Kind(SHARDED, ("cpu_offload=True",) if offloaded else ())
    first = _first_only(source, call, [asked for asked, _ in every]) if kind else ""
    for_all = all(asked.rank0_only is False or only for asked, only in every)
    if not (first_only or first or for_all or loads):
        return "whether all ranks get it or the first alone is known only at run time, not here"
    if kind == FULL:
        return _whole(every, first, first_only=first_only, loads=loads)
    said = _said(source, call, [asked for asked, _ in every])
    if not said:
        return "which kind of state dict it is is known only at run time, not here"
    offload = ["cpu_offload=True"] if first_only else []
    if isinstance(said, str):
        return Kind("", (f"full_state_dict={said}", *offload))
    known = name_for(source, call, KINDS)
    text = source.code(said)
    text = text if is_path(source, said) else f"({text})"
    return Kind("", (f"full_state_dict={text} == {known.text}.{FULL}", *offload), known.edits)


def _whole(
    every: Iterable[tuple[Asked, bool]], first: str, *, first_only: bool, loads: bool
) -> Kind:
    """The whole state: for the first rank, for all, or as ``first`` decides in the run."""
    if first_only:
        return Kind(FULL, ("full_state_dict=True", "cpu_offload=True"))
    if not loads and all(one.offloaded is True for one, _ in every):
        switches = (f"full_state_dict={first}", f"cpu_offload={first}") if first else ()
        return Kind(FULL, switches, on_cpu=True)
    return Kind(FULL, ("full_state_dict=True", *([f"cpu_offload={first}"] if first else [])))


def _first_only(source: Source, call: cst.CSTNode, every: Iterable[Asked]) -> str:
    """What the run decides ``rank0_only`` by, where the code beside the call says it: the first rank's is offloaded."""
    texts = set()
    for asked in every:
        by = asked.by.at if asked.by is not None else None
        if by is None or by.source is not source or not isinstance(by.node, cst.Call):
            return ""
        config = argument(by.node, _CONFIG[asked.optimizer], _NAMES[asked.optimizer])
        if config is None or function_of(source, by.node) is not function_of(source, call):
            return ""
        made = named_once(source, config.value) or config.value
        given = argument(made, 1, "rank0_only") if isinstance(made, cst.Call) else None
        if given is None or not can_be_said(source, given.value):
            return ""
        texts.add(source.code(given.value))
    said = texts.pop() if len(texts) == 1 else ""
    return "" if said in ("True", "False") else said


_CONFIG = {False: 2, True: 3}
_NAMES = {False: "state_dict_config", True: "optim_state_dict_config"}


def _said(
    source: Source, call: cst.CSTNode, every: Iterable[Asked]
) -> cst.BaseExpression | str | None:
    """What the code beside the call asks for in the run: the kind, or as text whether it is the whole state."""
    found: dict[str, cst.BaseExpression] = {}
    every = list(every)
    if any(asked.chosen is not None for asked in every):
        texts = {_chosen(source, call, asked) for asked in every}
        return texts.pop() if len(texts) == 1 else None
    for asked in every:
        by = asked.by.at if asked.by is not None else None
        if by is None or by.source is not source or not isinstance(by.node, cst.Call):
            return None
        kind = argument(by.node, 1, "state_dict_type")
        if kind is None or not can_be_said(source, kind.value) or _is_unbound(source, kind.value):
            return None
        if not _means_the_same(source, kind.value, by.node, call):
            return None
        found[source.code(kind.value)] = kind.value
    only = next(iter(found.values())) if len(found) == 1 else None
    if isinstance(only, cst.IfExp):
        sides = [dotted(side).rpartition(".")[2] for side in (only.body, only.orelse)]
        if sides == [FULL, SHARDED]:
            return source.code(only.test)
        if sides == [SHARDED, FULL]:
            test = source.code(only.test)
            return f"not {test}" if is_path(source, only.test) else f"not ({test})"
    return only


def _chosen(source: Source, call: cst.CSTNode, asked: Asked) -> str | None:
    """The test by which a function chose the context of the whole state, where it is the same at the call."""
    site = asked.chosen.site if asked.chosen is not None else None
    choice = site.statement if site is not None and site.source is source else None
    if not isinstance(choice, cst.If) or asked.by is None or asked.by.at.source is not source:
        return None
    test = choice.test
    if any(isinstance(n, cst.Call | cst.BooleanOperation | cst.NamedExpr) for n in walk(test)):
        return None
    if not all(_means_the_same(source, one, choice, call) for one in _paths(test)):
        return None
    text = source.code(test)
    if any(node is asked.by.at.node for node in walk(choice.body)):
        return text
    negated = re.fullmatch(r"([\w.]+) (==|!=) (\"\w*\"|'\w*'|[\w.]+)", text)
    if negated is not None:
        return f"{negated[1]} {'!=' if negated[2] == '==' else '=='} {negated[3]}"
    return f"not {text}" if is_path(source, test) else f"not ({text})"


def _paths(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """The names and dotted paths in an expression."""
    if isinstance(node, cst.Name | cst.Attribute):
        if not isinstance(node, cst.Name) or node.value not in ("None", "True", "False"):
            yield node
    else:
        for child in node.children:
            yield from _paths(child)


def _is_unbound(source: Source, path: cst.BaseExpression) -> bool:
    """Whether nothing in a file binds the name that a path begins with: a run fails there."""
    scope = scope_of(Layout.of(source).ancestors(path))
    root = dotted(path).partition(".")[0]
    return bool(root) and Names.of(source).owner(root, scope) is None


def _means_the_same(
    source: Source, path: cst.BaseExpression, there: cst.CSTNode, here: cst.CSTNode
) -> bool:
    """Whether what is said at one call is so at another: in one function, or of what both have once for all."""
    if function_of(source, there) is function_of(source, here):
        return True
    root = path
    while isinstance(root, cst.Attribute):
        root = root.value
    if not isinstance(root, cst.Name) or not isinstance(path, cst.Name | cst.Attribute):
        return False
    names, layout = Names.of(source), Layout.of(source)
    scopes = [scope_of(layout.ancestors(node)) for node in (there, here)]
    if all(names.owner(root.value, one) is source.tree for one in scopes):
        return _written_once(source, path)
    classes = [_class_around(source, node) for node in (there, here)]
    same = classes[0] is not None and classes[0] is classes[1]
    return (
        same and all(_receiver(one) == root.value for one in scopes) and _written_once(source, path)
    )


def _class_around(source: Source, node: cst.CSTNode) -> cst.CSTNode | None:
    around = Layout.of(source).ancestors(function_of(source, node))
    return next((one for one in around if isinstance(one, cst.ClassDef)), None)


def _receiver(method: cst.CSTNode) -> str:
    """The name that a method has for its object."""
    params = method.params.params if isinstance(method, cst.FunctionDef) else ()
    return params[0].name.value if params else ""


def _written_once(source: Source, path: cst.BaseExpression) -> bool:
    """Whether a file binds each name and each attribute that a path says no more than once."""
    targets = [
        target.target
        for node in walk(source.tree)
        for target in (
            node.targets
            if isinstance(node, cst.Assign)
            else [node]
            if isinstance(node, cst.AnnAssign | cst.AugAssign)
            else []
        )
    ]
    bound = [dotted(target).rpartition(".")[2] for target in targets]
    return all(bound.count(name) <= 1 for name in dotted(path).split("."))
