"""Tests of the shape of FSDP1's flat parameters, and writes into their rows, are left for manual migration.

## What it does

Points out where a script chooses among the parameters of a model that FSDP1 wraps by `ndim`, `dim()`, `shape` or
`numel()`: the weight decay of matrices only, a limit on size. And where it writes into rows of such a parameter, of its
gradient, or of a tensor like them: `mask[token] = …`.

## Why

FSDP1's parameters were flat, and on each rank a part: all had one dimension, so that `p.ndim >= 2` chose none. Those
of FSDP2 have their own shape and size. The same test now chooses what its author meant, and training changes.

A row of a flat part is one number of it. FSDP2 cuts parameters along their rows: `mask[token]` is a copy, and what is
written into that is lost.

## Example

```diff
 import torch
 from torch import nn
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 model = FSDP(nn.Linear(8, 8), use_orig_params=True)
 decayed = [p for p in model.parameters() if p.ndim >= 2]
 others = [p for p in model.parameters() if p.ndim < 2]
 optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}])
```

## What it leaves

All of it: to keep what FSDP1 did would be to keep a mistake. Where `summon_full_params` has gathered the parameters,
they are whole before and after: tests of their shape, counts and rows that are written there stay. Numbers that are only added up (`sum(p.numel() …)`)
stay too; the ledger says that they count the whole model now. Where ranks add such a count up (`all_reduce`, times
`get_world_size()`), the sum goes (FSDP247); where the model has ignored parameters, it counts `p.to_local()`, as FSDP1 did. A test that skips empty shards (`if p.numel():`) stays and
is true of all. A dictionary whose keys are the names of `named_parameters()` stays, and so do tests of whole names and their
beginnings (`name == "scale"`, `name in slow`): the ledger says that FSDP1's names were others.

## References

- `torch/distributed/fsdp/_flat_param.py` (`_use_sharded_views`)
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import starmap

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Collective,
    Container,
    Event,
    External,
    Layout,
    Left,
    Literal,
    Operated,
    Part,
    Program,
    Replace,
    RowWrite,
    Source,
    Step,
    Trace,
    Value,
    Wrapped,
    Wrapping,
    call_that_made,
    codemod,
    holders,
    name_for,
    options,
    row_writes,
    scope_of,
    unwrapped,
    walk,
    wrapper,
)

from ._common.loop_models import DTENSOR, is_gathered

WHY = (
    "FSDP1's parameters are flat, so that this comes out the same for all; FSDP2's have their shape"
)
COUNTED = "counts whole parameters now; FSDP1 counted what this rank holds of them"
COUNTED_HERE = "counts this rank's part, as before: the ranks add the counts up"
EMPTY = "true of all parameters now: each is a DTensor of its whole shape, also on a rank that holds none of it"
TODO = "parameters have their own shape now: check what this test chooses"
ROW_WHY = (
    "an index into FSDP1's flat part of it meant one number; rows of the sharded tensor are copies"
)
ROW_TODO = (
    "`{tensor}` is sharded along its rows, and what is written into some of them is lost, or raises: write into "
    "`whole = {tensor}.full_tensor()`, then "
    "`{tensor}.copy_(distribute_tensor(whole, {tensor}.device_mesh, {tensor}.placements))`"
)
NAMED = (
    "the names are the model's own now; FSDP1's had `_fsdp_wrapped_module.` in them: a file of an earlier run that holds"
    " such names has them so"
)
FLAT_NAMED = (
    "the names are those of the model's own parameters now; FSDP1's were those of flat parameters (`_flat_param`): a file"
    " of an earlier run that holds such names has them so"
)
"""``FullyShardedDataParallel.named_parameters`` takes the prefix out inside ``summon_full_params`` alone
(torch/distributed/fsdp/fully_sharded_data_parallel.py, 2.13)."""
TESTED = (
    "the names are the model's own now; FSDP1's had `_fsdp_wrapped_module.` in them, or were those of flat parameters:"
    " this may come out otherwise"
)
_TAKEN = (".parameters", ".named_parameters")
_COUNTING = ("numel", "nelement")
_COUNTED = (".numel", ".nelement")
_SHAPE = frozenset({"ndim", "dim", "shape", "numel", "nelement", "size"})
_Loop = cst.For | cst.CompFor


@codemod()
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Choices among parameters by their shape, their counts, and writes into their rows."""
    counted: dict[cst.Call, tuple[Source, Whose]] = {}
    for events in program.sites(Called):
        called = events[0][1]
        source, call = called.at.source, called.at.node
        if not isinstance(call, cst.Call):
            continue
        if all(is_gathered(one) for _, one in events):
            if called.name == ".named_parameters" and any(starmap(_asks_what_is_inside, events)):
                yield from _names(source, call, events)
            continue
        if called.name in _COUNTED and any(_is_of_flat(trace, one) for trace, one in events):
            if _is_of_a_name(call) and not _is_tested(source, call):
                counted.setdefault(call, (source, events))
        if called.name not in _TAKEN or not any(_are_flat(trace, one) for trace, one in events):
            continue
        yield from _choices(source, call)
        for node in _counts(source, call):
            counted[node] = source, events
        if called.name == ".named_parameters":
            yield from _names(source, call, events)
    added_up = _added_up(program) if counted else frozenset()
    for node, (source, whose) in counted.items():
        yield _counted(source, node, whose, added_up)
    yield from _row_writes(program)


Whose = Sequence[tuple[Trace, Called]]
"""The calls that give parameters to a count."""


def _is_of_flat(trace: Trace, called: Called) -> bool:
    """Whether a method is one of a parameter of a model that FSDP1 has wrapped by then."""
    of = called.receiver
    return of is not None and any(
        _is_wrapped(trace, called, _model(trace, one)) for one in holders(trace, of)
    )


def _are_flat(trace: Trace, taken: Called) -> bool:
    """Whether the parameters that a call gives are those of a model that FSDP1 has wrapped by then."""
    modules = options(taken.receiver) if taken.receiver is not None else ()
    if any(wrapper(one) == "fsdp1" for one in modules):
        return True
    return any(
        _is_wrapped(trace, taken, one) for one in modules
    )  # `model.module`, or kept from before


def _is_wrapped(trace: Trace, event: Event, module: Value) -> bool:
    """Whether FSDP1 has wrapped a module, something in it or around it, by an event."""
    wrapped = [unwrapped(w.module) for w in trace.before(event, Wrapping) if w.by == "fsdp1"]
    return any(trace.inside(module, one) or trace.inside(one, module) for one in wrapped)


def _row_writes(program: Program) -> Iterator[Left]:
    """Writes into rows of what FSDP1 holds in flat parameters; one comment for each tensor tells what to do."""
    seen: set[cst.CSTNode] = set()
    reported: set[Value] = set()
    for trace in program.traces:
        for row in row_writes(trace):
            node = row.event.at.node
            if node in seen or is_gathered(row.event) or not _is_flat(trace, row):
                continue
            seen.add(node)
            text = row.words.partition("[")[0]
            todo = "" if row.tensor in reported else ROW_TODO.format(tensor=text)
            reported.add(row.tensor)
            yield Left(row.event.at.source, node, ROW_WHY, todo)


def _is_flat(trace: Trace, row: RowWrite) -> bool:
    """Whether a tensor is laid out as the parameters of a model that FSDP1 has wrapped by then."""
    return any(
        _is_wrapped(trace, row.event, _model(trace, one)) for one in holders(trace, row.tensor)
    )


def _model(trace: Trace, module: Value) -> Value:
    """The outermost that is known of what holds a module."""
    while isinstance(module, Part):
        if isinstance(module.owner, External):
            made = call_that_made(trace, module)
            if made is None or made.receiver is None:
                break
            module = made.receiver  # `model.get_input_embeddings()`
        else:
            module = module.owner
    return unwrapped(module)


def _choices(source: Source, call: cst.Call) -> Iterator[Left | Step]:
    """The tests of shapes in the loops that a call gives parameters to."""
    for loop in _loops(source, call):
        bound = {n.value for n in walk(loop.target) if isinstance(n, cst.Name)}
        tests = list(loop.ifs) if isinstance(loop, cst.CompFor) else []
        places: list[cst.CSTNode] = [one.test for one in tests]
        if isinstance(loop, cst.For):
            places += (n.test for n in walk(loop.body) if isinstance(n, cst.If | cst.IfExp))
        for place in places:
            if (asked := _asks_whether_any(place)) is not None and _asks_shape(asked, bound):
                yield Step((), (Account(source, place, "changed", EMPTY, own=True),))
            elif any(_asks_shape(node, bound) for node in walk(place)):
                yield Left(source, place, WHY, TODO)


def _asks_whether_any(test: cst.CSTNode) -> cst.BaseExpression | None:
    """``p.numel`` of a test that only skips parameters of which this rank holds nothing: ``if p.numel() > 0``."""
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        compared = test.comparisons[0]
        above = isinstance(compared.operator, cst.GreaterThan | cst.NotEqual)
        if not above or not _is_number(compared.comparator, "0"):
            return None
        test = test.left
    if isinstance(test, cst.Call) and not test.args and isinstance(test.func, cst.Attribute):
        return test.func if test.func.attr.value in _COUNTING else None
    return None


def _is_number(node: cst.BaseExpression, value: str) -> bool:
    return isinstance(node, cst.Integer) and node.value == value


def _counts(source: Source, call: cst.Call) -> Iterator[cst.Call]:
    """What counts the elements of the parameters that a call gives to loops."""
    for loop in _loops(source, call):
        bound = {n.value for n in walk(loop.target) if isinstance(n, cst.Name)}
        inside = Layout.of(source).parents[loop] if isinstance(loop, cst.CompFor) else loop.body
        tests = [n.test for n in walk(inside) if isinstance(n, cst.If | cst.IfExp | cst.CompIf)]
        skipping = {n for test in tests if _asks_whether_any(test) for n in walk(test)}
        for node in walk(inside):
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                asked = node.func.value
                named = isinstance(asked, cst.Name) and asked.value in bound
                if named and node.func.attr.value in _COUNTING and node not in skipping:
                    yield node


def _is_of_a_name(call: cst.Call) -> bool:
    """Whether it is a parameter's own count, and not already one of its part here."""
    func = call.func
    return isinstance(func, cst.Attribute) and isinstance(func.value, cst.Name | cst.Attribute)


def _is_tested(source: Source, node: cst.CSTNode) -> bool:
    """Whether a number is part of a test."""
    layout = Layout.of(source)
    above = [node, *layout.ancestors(node)]
    return any(
        isinstance(one, cst.If | cst.IfExp | cst.CompIf | cst.While) and one.test in above
        for one in above
    )


def _counted(
    source: Source, node: cst.Call, whose: Whose, added_up: frozenset[cst.CSTNode]
) -> Step:
    """A count of elements: of this rank's part, where the ranks add up what comes of it and ignored parameters."""
    asked = node.func.value if isinstance(node.func, cst.Attribute) else node
    alone = node not in added_up and added_up.isdisjoint(Layout.of(source).ancestors(node))
    if alone or not any(map(_ignores, (trace for trace, _ in whose))):
        return Step((), (Account(source, node, "changed", COUNTED, own=True),))
    name, dtensor = source.code(asked), name_for(source, asked, DTENSOR)
    text = f"({name}.to_local() if isinstance({name}, {dtensor.text}) else {name})"
    edits = (*dtensor.edits, Replace(source, asked, text))
    return Step(edits, (Account(source, node, "changed", COUNTED_HERE, own=True),))


def _ignores(trace: Trace) -> bool:
    """Whether FSDP1 is to leave out some parameters: FSDP247, which counts once what is whole, is silent then."""
    return any("ignored" in option for one in trace.of(Wrapping) for option in one.options)


def _added_up(program: Program) -> frozenset[cst.CSTNode]:
    """The calls whose numbers ranks add up: by a reduction, or by multiplying with how many they are."""
    found: set[cst.CSTNode] = set()
    for trace in program.traces:
        made = {one.result: one for one in trace.of(Called)}
        waiting = [e.about for e in trace.of(Collective) if e.name in _REDUCING and e.about]
        for one in trace.of(Operated):
            sides = (one.left, one.right)
            if one.symbol == "*" and any(_is_world_size(made.get(side)) for side in sides):
                waiting += sides
        seen: set[Value] = set()
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            if (call := made.get(value)) is not None:
                found.add(call.at.node)
                waiting += (*call.arguments, *call.keywords.values())
            waiting += options(value)
            if isinstance(value, Part) and value.operation:
                waiting += value.made_of
            elif isinstance(value, Container):
                waiting += (entry for _, entry in trace.memory.entries(value))
    return frozenset(found)


_REDUCING = ("torch.distributed.all_reduce", "torch.distributed.reduce")


def _is_world_size(call: Called | None) -> bool:
    return call is not None and call.name.rpartition(".")[2] in ("get_world_size", "size")


def _loops(source: Source, call: cst.Call) -> Iterator[_Loop]:
    """The loops over the parameters that a call gives, also over lists and dictionaries that are made of them."""
    layout = Layout.of(source)
    waiting: list[cst.BaseExpression] = [call]
    seen: set[cst.CSTNode] = set()
    while waiting:
        given = waiting.pop()
        if given in seen:
            continue
        seen.add(given)
        loop = next((a for a in layout.ancestors(given) if isinstance(a, _Loop)), None)
        made: cst.CSTNode = given
        if loop is not None and any(given is one for one in walk(loop.iter)):
            yield loop
            if not isinstance(loop, cst.CompFor) or not _takes_each(layout.parents[loop], loop):
                continue
            made = layout.parents[loop]
        waiting += _read_again(source, made)


def _takes_each(comprehension: cst.CSTNode, loop: cst.CompFor) -> bool:
    """Whether what a comprehension makes holds the parameters themselves."""
    bound = {n.value for n in walk(loop.target) if isinstance(n, cst.Name)}
    made = comprehension.value if isinstance(comprehension, cst.DictComp) else None
    if isinstance(comprehension, cst.ListComp | cst.SetComp | cst.GeneratorExp):
        made = comprehension.elt
    return isinstance(made, cst.Name) and made.value in bound


def _read_again(source: Source, made: cst.CSTNode) -> Iterator[cst.Name]:
    """Where the function reads the name that something is bound to, perhaps as a list or dictionary of it."""
    layout = Layout.of(source)
    parent = layout.parents[made]
    while isinstance(parent, cst.Arg):
        taker = layout.parents[parent]
        if not isinstance(taker, cst.Call) or source.code(taker.func) not in _COPIES:
            return
        parent = layout.parents[taker]
    if not isinstance(parent, cst.Assign) or len(parent.targets) != 1:
        return
    target = parent.targets[0].target
    scope = scope_of(layout.ancestors(parent))
    for node in walk(scope) if isinstance(target, cst.Name) and scope is not None else ():
        if isinstance(node, cst.Name) and isinstance(target, cst.Name):
            if node.value == target.value and layout.span(node)[0] > layout.span(parent)[1]:
                yield node


_COPIES = ("list", "tuple", "dict", "OrderedDict")


def _names(
    source: Source, call: cst.Call, events: Sequence[tuple[Trace, Called]]
) -> Iterator[Step]:
    """What keeps, looks up or tests something by the names that a call gives, as they are."""
    for place in _name_tests(source, call):
        yield Step((), (Account(source, place, "changed", TESTED, own=True),))
    if not _are_keys(source, call):
        return
    models = {
        one
        for _, called in events
        if called.receiver is not None
        for one in options(called.receiver)
    }
    flat = any(
        isinstance(one, Wrapped) and one.by == "fsdp1" and not _keeps_parameters(trace, one)
        for trace, _ in events
        for one in models
    )
    why = FLAT_NAMED if flat else NAMED
    named = call.func.attr if isinstance(call.func, cst.Attribute) else call
    through = isinstance(call.func, cst.Attribute) and isinstance(call.func.value, cst.Attribute)
    at = named if through else call  # `net.module.named_parameters()`: what is before is rewritten
    yield Step((), (Account(source, at, "changed", why, own=True),))


def _asks_what_is_inside(trace: Trace, called: Called) -> bool:
    """Whether names are those of the module in a wrapper, and not of the wrapper, which alone takes its prefix out."""
    modules = options(called.receiver) if called.receiver is not None else ()
    return any(
        one.by == "fsdp1" and one.module in modules and _wraps_inside(trace, one)
        for one in trace.before(called, Wrapping)
    )


def _wraps_inside(trace: Trace, wrapping: Wrapping) -> bool:
    """Whether FSDP1 has units below a module that it wraps, whose names then have its prefix."""
    policy = wrapping.options.get("auto_wrap_policy")
    if policy is not None and not (isinstance(policy, Literal) and policy.value is None):
        return True
    return any(
        one.by == "fsdp1"
        and one.module is not wrapping.module
        and trace.inside(wrapping.module, one.module)
        for one in trace.before(wrapping, Wrapping)
    )


def _keeps_parameters(trace: Trace, model: Wrapped) -> bool:
    """Whether FSDP1 shows the parameters of a model themselves, as far as the script says."""
    made = [w for w in trace.of(Wrapping) if w.result is model and w.by == "fsdp1"]
    given = [w.options.get("use_orig_params") for w in made]
    return not any(one is None or (isinstance(one, Literal) and not one.value) for one in given)


def _are_keys(source: Source, call: cst.Call) -> bool:
    """Whether names become keys: ``dict(call)``, ``{name: … for name, … in call}``, ``kept[name]`` in a loop."""
    layout = Layout.of(source)
    parent = layout.parents[call]
    taker = layout.parents[parent] if isinstance(parent, cst.Arg) else None
    if isinstance(taker, cst.Call):
        return source.code(taker.func).rpartition(".")[2] in ("dict", "OrderedDict")
    if not isinstance(parent, _Loop) or not isinstance(parent.target, cst.Tuple):
        return False
    name = parent.target.elements[0].value
    around = layout.parents[parent]
    if isinstance(parent, cst.CompFor):
        return isinstance(around, cst.DictComp) and around.key.deep_equals(name)
    inside = list(walk(parent.body))
    anew = [n for n in inside if isinstance(n, cst.AssignTarget) and n.target.deep_equals(name)]
    return not anew and any(isinstance(n, cst.Index) and n.value.deep_equals(name) for n in inside)


def _name_tests(source: Source, call: cst.Call) -> Iterator[cst.CSTNode]:
    """What asks, in the loops that a call gives names to, for a whole name, its beginning, or parts with a dot between."""
    for loop in _loops(source, call):
        name = loop.target.elements[0].value if isinstance(loop.target, cst.Tuple) else None
        inside = Layout.of(source).parents[loop] if isinstance(loop, cst.CompFor) else loop.body
        nodes = list(walk(inside))
        anew = any(
            isinstance(n, cst.AssignTarget) and n.target.deep_equals(name) for n in nodes if name
        )
        if isinstance(name, cst.Name) and not anew:
            yield from (node for node in nodes if _asks_name(source, node, name))


def _asks_name(source: Source, node: cst.CSTNode, name: cst.Name) -> bool:
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        one = node.comparisons[0]
        if isinstance(one.operator, cst.Equal | cst.NotEqual):
            return name.deep_equals(node.left) or name.deep_equals(one.comparator)
        if isinstance(one.operator, cst.In | cst.NotIn):
            if name.deep_equals(node.left):
                return True
            return name.deep_equals(one.comparator) and _has_inner_dot(source, node.left)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        method = node.func.attr.value
        if not name.deep_equals(node.func.value) or not node.args:
            return False
        if method == "endswith":
            return _has_inner_dot(source, node.args[0].value)
        return method in ("startswith", "split")
    return False


def _has_inner_dot(source: Source, text: cst.BaseExpression) -> bool:
    """Whether a constant has parts of a name with a dot between, where FSDP1 may have put its prefix."""
    return isinstance(text, cst.SimpleString) and "." in source.code(text).strip("\"'.")


def _asks_shape(node: cst.CSTNode, bound: set[str]) -> bool:
    return (
        isinstance(node, cst.Attribute)
        and node.attr.value in _SHAPE
        and isinstance(node.value, cst.Name)
        and node.value.value in bound
    )
