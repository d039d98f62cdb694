"""Policies that the program itself asks, as the functions do that take the place of FSDP1: they stay.

Facts (torch/distributed/fsdp/wrap.py, 2.13): a policy is a function of a module, of whether it is asked on
the way down, and of a number of parameters; it knows nothing of FSDP1. ``ModuleWrapPolicy`` has a
``__call__`` that is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    SYMBOLS,
    Account,
    Called,
    External,
    Partial,
    Program,
    Source,
    Step,
    Trace,
    Value,
    canonical,
    dotted,
    walk,
)

from ..._common.names import born
from ..._common.origins import defined_by, meaning, origins

_POLICIES = frozenset(
    name
    for name in SYMBOLS
    if name.startswith("torch.distributed.fsdp.wrap.")
    and name.endswith(("_policy", ".ModuleWrapPolicy"))
)
MAX_DEPTH = 3
WHY = "kept: an ordinary function"


def asked(program: Program) -> Iterator[Step]:
    """The policies that functions of the program ask, wherever else they are given."""
    mine = set(program.sources)
    found = [*_given(program), *(one for trace in program.traces for one in _made(trace))]
    places = dict.fromkeys(place for one in found for place in _policies(program, *one))
    for source, node in places:
        if source in mine:
            yield Step((), (Account(source, node, "preserved", WHY),))


def _given(program: Program) -> Iterator[tuple[Source, cst.CSTNode]]:
    """What is given as arguments to functions that ask it."""
    asking = [one for source in program.sources for one in source.derived(_asking)]
    names = {one.name.value for one in asking}
    for source in program.sources if asking else ():
        for call in walk(source.tree):
            if isinstance(call, cst.Call) and isinstance(call.func, cst.Name):
                if call.func.value in names and _is_called(program, source, call.func, asking):
                    yield from ((source, arg) for arg in call.args)


def _asking(source: Source) -> tuple[cst.FunctionDef, ...]:
    """The functions that ask one of their parameters as FSDP1 asks a policy."""
    if "recurse=" not in source.text:
        return ()
    functions = (one for one in walk(source.tree) if isinstance(one, cst.FunctionDef))
    return tuple(one for one in functions if _asks(one))


def _asks(function: cst.FunctionDef) -> bool:
    given = {param.name.value for param in function.params.params}
    calls = [one for one in walk(function.body) if isinstance(one, cst.Call)]
    return any(
        dotted(call.func) in given
        and {"recurse", "nonwrapped_numel"} <= {a.keyword.value for a in call.args if a.keyword}
        for call in calls
    )


def _is_called(
    program: Program, source: Source, func: cst.Name, functions: Sequence[cst.FunctionDef]
) -> bool:
    return any(node in functions for _, node in defined_by(program, source, func))


def _made(trace: Trace) -> Iterator[tuple[Source, cst.CSTNode]]:
    """Where policies that are asked were made of a function and its arguments."""
    calls = [called for called in trace.calls(*_POLICIES) if "recurse" in called.keywords]
    for made in trace.calls("functools.partial") if calls else ():
        policy, at = made.result, born(made.result)
        if at is not None and any(_is_call_of(policy, called) for called in calls):
            yield at.source, at.node


def _is_call_of(policy: Value, called: Called) -> bool:
    if not isinstance(policy, Partial) or not isinstance(policy.call, External):
        return False
    same = all(called.keywords.get(key) is value for key, value in policy.keywords.items())
    return same and bool(policy.keywords) and canonical(policy.call.name) == called.name


def _policies(
    program: Program, source: Source, node: cst.CSTNode, depth: int = 0
) -> Iterator[tuple[Source, cst.CSTNode]]:
    """The names of policies in an expression, and in what its own names are bound to."""
    for one in walk(node):
        if isinstance(one, cst.Name | cst.Attribute):
            if meaning(program, source, one) in _POLICIES:
                yield source, one
            if isinstance(one, cst.Name) and depth < MAX_DEPTH:
                for origin in origins(program, source, one):
                    if origin.node is not None and origin.node is not one:
                        yield from _policies(program, origin.source, origin.node, depth + 1)
