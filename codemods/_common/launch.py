"""What a program does for itself that torchrun does for it: addresses, ports, ranks, world sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Arguments,
    Edit,
    Function,
    GroupStarted,
    Layout,
    Program,
    Site,
    Source,
    Trace,
    scope_of,
    walk,
)

from .names import named_once
from .origins import defined_by, meaning

VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE")
_PROCESSES = ("multiprocessing.", "torch.multiprocessing.")
MAX_STEPS = 4
"""Through so many calls and names an object is followed back."""
RENDEZVOUS = ("init_method", "rank", "world_size")


def is_shared(program: Program, source: Source, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Whether something is made by ``multiprocessing``, or by what that has made: ``Manager().dict()``."""
    held: cst.BaseExpression | None = node
    if isinstance(node, cst.Name):
        held = named_once(source, node) or _entered(source, node)
    if not isinstance(held, cst.Call) or depth > MAX_STEPS:
        return False
    made = meaning(program, source, held.func)
    if made.startswith(_PROCESSES):
        return not made.endswith(".cpu_count")
    made_by = held.func.value if isinstance(held.func, cst.Attribute) else None
    return made_by is not None and is_shared(program, source, made_by, depth + 1)


def _entered(source: Source, node: cst.Name) -> cst.BaseExpression | None:
    """The context manager that a ``with`` around binds to the name."""
    for around in Layout.of(source).ancestors(node):
        for item in around.items if isinstance(around, cst.With) else ():
            name = None if item.asname is None else item.asname.name
            if isinstance(name, cst.Name) and name.value == node.value:
                return item.item
    return None


def without_rendezvous(started: Site) -> Iterator[Edit]:
    """``init_process_group`` without what torchrun passes in the environment."""
    call = started.node
    if not isinstance(call, cst.Call):
        return
    given = [a.keyword.value for a in call.args if a.keyword is not None]
    arguments = Arguments(started.source, call)
    by_position = [a for a in call.args if a.keyword is None and not a.star]
    if len(by_position) == 2:  # backend, init_method
        arguments.remove(by_position[1])
        yield arguments
    for keyword in RENDEZVOUS:
        if keyword in given:
            arguments.remove(keyword)
    if set(given) & set(RENDEZVOUS) and len(by_position) != 2:
        yield arguments


def environment_writes(
    program: Program, trace: Trace, spawn: cst.Call
) -> Iterator[tuple[Source, cst.CSTNode]]:
    """The statements that set torchrun's variables: where the spawned functions join their group.

    One below a test of the environment sets what is not there yet: torchrun has set it.
    """
    seen: set[cst.CSTNode] = set()
    todo = list(_bodies(trace, spawn))
    for source, body in todo:
        todo += (one for one in _called_in(program, source, body) if one not in todo)
        for node in walk(body, into=not isinstance(body, cst.Module)):
            if isinstance(node, cst.Assign) and node not in seen and _sets_one(node):
                if not _is_tested(source, node):
                    seen.add(node)
                    yield source, node


def _called_in(
    program: Program, source: Source, body: cst.CSTNode
) -> Iterator[tuple[Source, cst.CSTNode]]:
    """The functions that a body calls by their names, where they write to the environment."""
    for node in walk(body, into=not isinstance(body, cst.Module)):
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
            for other, found in defined_by(program, source, node.func):
                if isinstance(found, cst.FunctionDef) and "environ" in other.code(found):
                    if other in program.sources:
                        yield other, found


def _is_tested(source: Source, node: cst.CSTNode) -> bool:
    """Whether something is below a test of the environment."""
    return any(
        isinstance(around, cst.If | cst.IfExp)
        and re.search(r"environ|getenv", source.code(around.test))
        for around in Layout.of(source).ancestors(node)
    )


def _bodies(trace: Trace, spawn: cst.Call) -> Iterator[tuple[Source, cst.CSTNode]]:
    """The functions that run between the spawn and the start of the group, and the one that spawns."""
    seen: set[cst.CSTNode] = set()
    for started in trace.of(GroupStarted):
        if not any(site.node is spawn for site in started.moment.calls):
            continue
        functions: tuple[Function, ...] = started.moment.inside
        for function in functions:
            if function.node not in seen:
                seen.add(function.node)
                yield function.scope.source, function.node
        for site in started.moment.calls:
            if site.node is spawn:
                scope = scope_of(Layout.of(site.source).ancestors(spawn))
                if scope not in seen:
                    seen.add(scope)
                    yield site.source, scope


def _sets_one(node: cst.Assign) -> bool:
    """``os.environ["MASTER_PORT"] = …``."""
    target = node.targets[0].target
    if len(node.targets) != 1 or not isinstance(target, cst.Subscript):
        return False
    held = target.value
    name = held.attr.value if isinstance(held, cst.Attribute) else getattr(held, "value", "")
    index = target.slice[0].slice
    key = getattr(index, "value", None)
    return (
        name == "environ" and isinstance(key, cst.SimpleString) and key.evaluated_value in VARIABLES
    )


def base_name(source: Source) -> str:
    """The file's name as commands give it."""
    return source.path.replace("\\", "/").rpartition("/")[2]


def needs_torchrun(source: Source) -> bool:
    """Whether a program reads ``os.environ["LOCAL_RANK"]`` without asking first: only torchrun can start it."""
    return any(
        isinstance(node, cst.Subscript)
        and isinstance(node.value, cst.Attribute | cst.Name)
        and source.code(node.value).endswith("environ")
        and source.code(node.slice[0]).strip("\"'") == "LOCAL_RANK"
        and not _is_tested(source, node)
        for node in walk(source.tree)
    )
