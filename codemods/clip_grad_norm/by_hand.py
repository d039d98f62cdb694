"""Norms and counts of gradients that a script makes by hand: of this rank's part, then added up over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Container,
    Edit,
    Either,
    Event,
    Layout,
    Literal,
    Operated,
    Optimizer,
    Parameters,
    Part,
    Program,
    Replace,
    Round,
    Source,
    Step,
    Trace,
    Value,
    once,
    options,
    walk,
    wrapper,
)

from .._common.loop_ignored import ignores_some
from .._common.loop_models import DTENSOR, is_gathered
from .._common.loop_text import around, free_name, text_of
from .._common.shared import Build, Helpers

WHY = "computed from this rank's shard, as under FSDP1: the sum over the ranks stays right"
_COLLECTIVES = tuple(
    f"torch.distributed.{name}"
    for name in "all_reduce reduce all_gather all_gather_into_tensor gather".split()
)
_SAME = (".data", ".grad", (".detach()",))
"""What is a parameter or gradient as its owner is."""
_LEAVING = (".to_local", ".full_tensor")
_KEEPING = frozenset("clone detach float double to cpu cuda".split())
_NEEDS_ENTRIES = frozenset(
    "amax amin aminmax argmax argmin max mean median min quantile std var".split()
)
"""What torch has of no empty tensor, or what is no number then: a shard may be empty."""


@dataclass(frozen=True, slots=True)
class _Use:
    """A shard that something is computed of: the node of the tensor, and of the call or statement around it."""

    source: Source
    node: cst.CSTNode
    tensor: cst.BaseExpression
    listed: bool = False
    """Whether the tensor is a list of them."""


def sums_of_shards(program: Program) -> Iterator[Step]:
    """The shard in place of the tensor where what is computed of it is added up over the ranks."""
    uses: dict[_Use, None] = {}
    for trace, called in program.of(Called):
        if called.name in _COLLECTIVES:
            uses.update(dict.fromkeys(_uses(trace, called)))
    mixed = _mixed(program, uses)
    files: dict[Source, list[_Use]] = {}
    for use in uses:
        files.setdefault(use.source, []).append(use)
    for source, here in files.items():
        yield _rewritten(source, here, mixed)


def _rewritten(source: Source, uses: list[_Use], mixed: set[_Use]) -> Step:
    layout = Layout.of(source)
    helpers = Helpers.above(source, min((u.node for u in uses), key=lambda n: layout.span(n)[0]))
    edits: list[Edit] = []
    for use in uses:
        text = text_of(source, use.tensor)
        one = free_name(source, use.node, "g") if use.listed else text
        shard = f"{one}.to_local()"
        if use in mixed:
            shard = f"{helpers.add('local_shard', _local_shard())}({one})"
        new = f"[{shard} for {one} in {text}]" if use.listed else shard
        edits.append(Replace(source, use.tensor, new))
    nodes = dict.fromkeys(use.node for use in uses)
    accounts = tuple(Account(source, node, "changed", WHY, own=True) for node in nodes)
    return Step((*edits, *helpers.all_edits()), accounts)


def _local_shard() -> Build:
    return lambda name, named: (
        f"def {name}(tensor):\n"
        '    """This rank\'s part of a sharded tensor; any other tensor as it is."""\n'
        f"    return tensor.to_local() if isinstance(tensor, {named(DTENSOR)}) else tensor"
    )


def _uses(trace: Trace, collective: Called) -> list[_Use]:
    """Where what a collective is given was computed of shards; nothing when some of that cannot be."""
    values = _computed_from(trace, collective.arguments)
    if any(_needs_entries(made) for value in values if (made := _made(trace).get(value))):
        return []
    found: list[_Use] = []
    for event in _events(trace, values):
        if event.order > collective.order or is_gathered(event) or _knows_shards(event):
            continue
        for position, operand in _operands(event):
            shards = [one for one in _each(trace, operand) if _is_shard(one)]
            if not shards or (_counts(event) and not any(map(_is_gradient, shards))):
                continue  # sums of the sizes of parameters are no longer added up: their own rows
            use = _use(event, position, listed=isinstance(operand, Container))
            if use is None:
                return []
            found.append(use)
    return found


def _knows_shards(event: Event) -> bool:
    """Whether the function that computes something tells shards from other tensors itself, as no code for FSDP1 does."""
    source = event.at.source
    function = around(source, event.at.node)
    said = text_of(source, function) if isinstance(function, cst.FunctionDef) else ""
    return "DTensor" in said or ".full_tensor(" in said


def _computed_from(trace: Trace, given: Iterable[Value]) -> dict[Value, None]:
    """What values are computed from, down to the shards."""
    found: dict[Value, None] = {}
    waiting = list(given)
    while waiting:
        value = waiting.pop()
        if value in found or isinstance(value, Literal) or _leaf(_bare(trace, value)) is not None:
            continue  # calls that give back the same constant have nothing in common
        found[value] = None
        made = _made(trace).get(value)
        if made is not None:
            waiting += (*made.arguments, *(() if made.receiver is None else (made.receiver,)))
        if isinstance(value, Either):
            waiting += options(value)
        elif isinstance(value, Container):
            waiting += (one for _, one in trace.memory.entries(value))
        elif isinstance(value, Part) and value.operation:
            waiting += value.made_of
    return found


@once
def _made(trace: Trace) -> dict[Value, Called]:
    """The calls by what they return."""
    return {called.result: called for called in trace.of(Called)}


def _events(trace: Trace, values: dict[Value, None]) -> Iterator[Called | Operated]:
    """The calls and operators that made values."""
    for event in trace.events:
        if isinstance(event, Called):
            if event.result in values and event.name not in _LEAVING:
                yield event
        elif isinstance(event, Operated):
            if event.left.part((event.symbol, event.right)) in values:
                yield event


def _operands(event: Called | Operated) -> list[tuple[str | int, Value]]:
    if isinstance(event, Operated):
        return [("left", event.left), ("right", event.right)]
    if event.receiver is not None:
        return [("receiver", event.receiver)]
    return list(enumerate(event.arguments))


def _each(trace: Trace, operand: Value) -> Iterator[Value]:
    """What an operand can be, or the entries of a list."""
    for one in options(operand):
        held = one.owner if isinstance(one, Part) and one.operation == "[]" else one
        if isinstance(held, Container):
            for _, entry in trace.memory.entries(held):
                yield from (_bare(trace, each) for each in options(entry))
        else:
            yield _bare(trace, one)


def _bare(trace: Trace, value: Value) -> Value:
    """The tensor of which a value is a copy, or which it shows: what is kept of a shard is a shard to all who use it."""
    seen: set[Value] = set()  # a call may give back what it was made on
    while value not in seen:
        seen.add(value)
        made = _made(trace).get(value)
        if isinstance(value, Part) and value.key in _SAME and value.key != ".grad":
            value = value.owner
        elif made is not None and made.receiver is not None and made.name[1:] in _KEEPING:
            value = made.receiver
    return value


def _leaf(value: Value) -> Value | None:
    """The module whose parameter or gradient a value is, or the optimizer that has it."""
    while isinstance(value, Part) and value.key in _SAME:
        value = value.owner
    if not isinstance(value, Part):
        return None
    owner = value.owner
    if value.key == "[1]" and isinstance(owner, Part):  # of `named_parameters()`
        owner = owner.owner
    elif not isinstance(value.key, Round):
        return None
    if isinstance(owner, Parameters):
        return owner.of
    of_a_group = False
    while isinstance(owner, Part):
        of_a_group |= owner.key == "['params']"
        owner = owner.owner
    return owner if of_a_group and isinstance(owner, Optimizer) else None


def _models(value: Value) -> list[Value]:
    """The models one of whose parameters or gradients a value may be."""
    leaf = _leaf(value)
    found = [p.of for p in leaf.over] if isinstance(leaf, Optimizer) else [leaf] if leaf else []
    return [one for model in found for one in options(model)]


def _is_shard(value: Value) -> bool:
    return any(wrapper(model) == "fsdp1" for model in _models(value))


def _counts(event: Called | Operated) -> bool:
    return isinstance(event, Called) and event.name in (".numel", ".nelement")


def _is_gradient(value: Value) -> bool:
    while isinstance(value, Part) and value.key in _SAME:
        if value.key == ".grad":
            return True
        value = value.owner
    return False


def _mixed(program: Program, uses: dict[_Use, None]) -> set[_Use]:
    """The places to which other tensors than shards come too."""
    places: dict[cst.CSTNode, list[_Use]] = {}
    for use in uses:
        places.setdefault(use.node, []).append(use)
    mixed: set[_Use] = set()
    events: list[tuple[Trace, Called | Operated]] = [*program.of(Called), *program.of(Operated)]
    for trace, event in events:
        here = places.get(event.at.node, ())
        for position, operand in _operands(event) if here else ():
            found = _use(event, position, listed=isinstance(operand, Container))
            if found is None or found not in here:
                continue
            if not all(_is_sure(program, one) for one in _each(trace, operand)):
                mixed.add(found)
    return mixed


def _is_sure(program: Program, value: Value) -> bool:
    """Whether a value is a shard in every run."""
    models = _models(value)
    wrapped = bool(models) and all(wrapper(model) == "fsdp1" for model in models)
    return wrapped and not ignores_some(program, models)


def _use(event: Called | Operated, position: str | int, *, listed: bool) -> _Use | None:
    """The node of an operand; None when it is not written where that could be said of it."""
    source, node = event.at.source, event.at.node
    tensor: cst.BaseExpression | None = None
    if isinstance(event, Operated):
        tensor = _side(node, event.symbol, position)
    elif isinstance(node, cst.Call) and position == "receiver":
        tensor = node.func.value if isinstance(node.func, cst.Attribute) else None
    elif isinstance(node, cst.Call) and isinstance(position, int):
        arg = node.args[position]
        tensor = None if arg.star or arg.keyword is not None else arg.value
    while isinstance(tensor, cst.Call) and isinstance(tensor.func, cst.Attribute):
        if tensor.func.attr.value not in _KEEPING:
            return None
        tensor = tensor.func.value
    if not isinstance(tensor, cst.Name | cst.Attribute | cst.Subscript):
        return None
    return _Use(source, node, tensor, listed)


def _side(statement: cst.CSTNode, symbol: str, side: str | int) -> cst.BaseExpression | None:
    """The only operand on that side of such an operator in a simple statement."""
    if not isinstance(statement, cst.SimpleStatementLine | cst.BaseSmallStatement):
        return None
    found = [
        one.left if side == "left" else one.right
        for one in walk(statement)
        if isinstance(one, cst.BinaryOperation) and _SYMBOLS.get(type(one.operator)) == symbol
    ]
    return found[0] if len(found) == 1 else None


_SYMBOLS: dict[type[cst.BaseBinaryOp], str] = {
    cst.Add: "+",
    cst.Divide: "/",
    cst.Multiply: "*",
    cst.Power: "**",
    cst.Subtract: "-",
}


def _needs_entries(made: Called) -> bool:
    """Whether a call takes the largest entry, the mean or the like, which an empty shard does not have."""
    if made.name.rpartition(".")[2] in _NEEDS_ENTRIES:
        return made.name not in ("builtins.max", "builtins.min")
    return "norm" in made.name and any("inf" in one.words() for one in made.arguments)
