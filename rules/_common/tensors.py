"""Which tensors are surely shards (parameters and gradients of sharded modules), and which surely plain ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from fsdp2lint.api import (
    Backward,
    Called,
    Container,
    Event,
    Forward,
    Guards,
    Literal,
    Module,
    Operated,
    Part,
    Registered,
    Resharded,
    Trace,
    Unsharded,
    Value,
    once,
    options,
    parts_along,
    unwrapped,
)

from .parts import Parameter, never_copied, parameter_of
from .shared import (
    Shard,
    class_name,
    leftover,
    overlap,
    sharded,
    shards,
    shards_before,
    together,
)

_OTHER_DTENSORS = (
    "torch.distributed.tensor.parallel.parallelize_module",
    "torch.distributed.tensor.distribute_tensor",
    "torch.distributed.tensor.distribute_module",
    "torch.distributed.tensor.DTensor.from_local",
)
_KEEPS_WHOLE = (".set_reshard_after_backward", ".set_reshard_after_forward")


def tensor_of(trace: Trace, value: Value) -> Parameter | None:
    """The parameter or gradient that a value is, element by element: also one that the script has made itself."""
    found = parameter_of(value)
    if found is not None:
        return found
    gradient = False
    while isinstance(value, Part) and value.key in (".data", ".grad", (".detach()",)):
        gradient |= value.key == ".grad"
        value = value.owner
    if class_name(value) != "torch.nn.Parameter":
        return None
    owners = [h for h in trace.memory.held_by.get(value, ()) if isinstance(h, Module)]
    return Parameter(owners[0], gradient, None) if len(owners) == 1 else None


def shard_of(trace: Trace, event: Event, value: Value) -> Shard | None:
    """The sharding that makes a value a shard at ``event``, for certain; None also while it may be whole."""
    found = tensor_of(trace, value)
    if found is None or (other_dtensors(trace) and not found.gradient):
        return None
    here = sharded(trace, event, found.module)
    if here is None:
        return None
    shard = here[0]
    if found.taken is not None and found.taken < shard.order:
        return None
    if _copied_before(trace, value, shard):
        return None
    if shard.event.open or "ignored_params" in shard.event.options or _one_of_several(shard, event):
        return None
    return None if not found.gradient and may_be_whole(trace, event, shard) else shard


def _copied_before(trace: Trace, value: Value, shard: Shard) -> bool:
    """Whether a value may be a copy of a parameter from before it was sharded."""
    copies = _copies(trace)
    return any(copies.get(one, shard.order) < shard.order for one in parts_along(value))


@once
def _copies(trace: Trace) -> dict[Value, int]:
    """When each copy of a tensor was made first."""
    found: dict[Value, int] = {}
    for called in trace.calls(".clone"):
        found.setdefault(called.result, called.order)
    return found


def _one_of_several(shard: Shard, event: Event) -> bool:
    """Whether a module was sharded as one of several things that a name can be, distinguished by its class."""
    return not isinstance(shard.module, Part) and chosen_by_class(shard, event.guards)


def chosen_by_class(shard: Shard, where: Guards) -> bool:
    """Whether a module is sharded only where it is of a class that it is not known to be of under some conditions."""
    return any(
        isinstance(guard.test, Part)
        and guard.test.operation == "isinstance"
        and unwrapped(guard.test.owner) is shard.module
        for clause in shard.guards.since(where)
        for guard in clause
    )


@once
def other_dtensors(trace: Trace) -> bool:
    """Whether the script makes distributed tensors by other means than ``fully_shard`` too."""
    return next(trace.calls(*_OTHER_DTENSORS), None) is not None


def may_be_whole(trace: Trace, event: Event, shard: Shard) -> bool:
    """Whether the parameters of a group may be gathered at ``event``.

    They are while the module of the group computes, and those of a root stay so until the backward; those of
    others are freed after the forward, unless the script asks for something else.
    """
    if any(trace.concerns(c, shard.module) for c in trace.calls(*_KEEPS_WHOLE)):
        return True
    computing = [f for f in trace.before(event, Forward) if _hooked(trace, f)]
    if any(_runs(f, event) and _around(f, shard) for f in computing):
        return True
    gathering = [u.order for u in trace.before(event, Unsharded) if _about(trace, u.module, shard)]
    if not frees_after_forward(trace, shard):
        over = [f for f in computing if not _runs(f, event)]  # what runs gathers no group of others
        gathering += [f.order for f in over if _about(trace, f.module, shard)]
    freed = [e.order for e in trace.before(event, Backward)]
    freed += [e.order for e in trace.before(event, Resharded)]
    return max(gathering, default=-1) > max(freed, default=-1)


def frees_after_forward(trace: Trace, shard: Shard) -> bool:
    """Whether a group surely gives its gathered parameters back after each forward."""
    asked = shard.event.options.get("reshard_after_forward")
    given = asked.value if isinstance(asked, Literal) else ... if asked is not None else None
    if given is True:
        return True
    return given is None and has_root_above(trace, shard)


def keeps_after_forward(trace: Trace, shard: Shard, forward: Forward) -> bool:
    """Whether a module is a root that surely keeps its gathered parameters after a forward."""
    chosen = shard.event.options.get("reshard_after_forward")
    if shard.event.open or not (
        chosen is None or (isinstance(chosen, Literal) and chosen.value in (None, False))
    ):
        return False
    return not any(
        s.module is not shard.module and trace.inside(shard.module, s.module)
        for s in shards_before(trace, forward)
    )


def has_group_of_its_own(trace: Trace, shard: Shard) -> bool:
    """Whether a root has parameters that no group inside it has."""
    below = [
        s
        for s in shards_before(trace, trace.events[-1])
        if s.module is not shard.module and trace.inside(s.module, shard.module)
    ]
    return leftover(trace, shard.module, below)


def has_root_above(trace: Trace, shard: Shard) -> bool:
    """Whether a module around that of a group is sharded too."""
    return any(
        s.module is not shard.module
        and trace.inside(shard.module, s.module)
        and together(s.guards, shard.guards)
        for s in shards(trace)
    )


def _hooked(trace: Trace, forward: Forward) -> bool:
    if forward.how in ("call", "generate"):
        return True
    return any(r.method in (None, forward.how) for r in trace.of(Registered))


def _runs(forward: Forward, event: Event) -> bool:
    """Whether an event happens inside a forward."""
    return any(site.node is forward.at.node for site in event.moment.calls)


def _around(forward: Forward, shard: Shard) -> bool:
    return any(unwrapped(m) is shard.module for m in options(forward.module))


def _about(trace: Trace, module: Value, shard: Shard) -> bool:
    return any(overlap(trace, m, shard.module) is not None for m in options(module))


# -- plain tensors ---------------------------------------------------------------------------------------

_SHAPED = "empty eye full normal ones rand randint randn zeros".split()
_FROM_DATA = "as_tensor from_numpy tensor".split()
_LIKE = "empty_like full_like ones_like rand_like randn_like zeros_like".split()


def is_plain(trace: Trace, event: Event, value: Value) -> bool:
    """Whether a value surely is an ordinary tensor of more than one element at ``event``.

    One element alone is taken for the same on all ranks and may be mixed with shards.
    """
    return all(_is_plain(trace, event, one, 6) for one in options(value))


def _is_plain(trace: Trace, event: Event, value: Value, depth: int) -> bool:
    if depth == 0:
        return False
    called = _results(trace).get(value)
    if called is not None:
        return _makes_plain(trace, called, depth)
    found = tensor_of(trace, value)
    if found is not None:
        return not found.gradient and _never_sharded_until(trace, event, found)
    if not isinstance(value, Part):
        return False
    if value.key == ".full_tensor()":
        return value.owner is not None and tensor_of(trace, value.owner) is not None
    if isinstance(value.owner, Container) and _by_unknown_key(value.key):
        entries = [v for _, v in trace.memory.entries(value.owner)]
        return (
            bool(entries)
            and not may_hold_more(trace, value.owner)
            and all(_is_plain(trace, event, v, depth - 1) for v in entries)
        )
    return value.operation != "" and _computed_plain(trace, event, value, depth)


def may_hold_more(trace: Trace, table: Container) -> bool:
    """Whether a list or a dictionary may hold something else than what is seen in it. One that is made over the names of
    parameters holds for all of them what is seen for some.
    """
    if not table.open:
        return False
    if table.kind != "dict" or any(trace.escapes(table)):
        return True
    if not all(_by_unknown_key(key) for key, _ in trace.memory.entries(table)):
        return True
    return any(
        called.receiver is not None and table in options(called.receiver)
        for called in trace.calls(".update", ".setdefault", "._update")
    )


@once
def _results(trace: Trace) -> dict[Value, Called]:
    """The calls of functions of torch by what they return."""
    return {
        c.result: c for c in trace.of(Called) if c.receiver is None and c.name.startswith("torch.")
    }


def _makes_plain(trace: Trace, called: Called, depth: int) -> bool:
    name = called.name.rpartition(".")[2]
    if called.open:
        return False
    if name in _LIKE:
        like = called.argument(0, "input")
        return like is not None and is_plain_at(trace, called, like, depth)
    if name in _FROM_DATA:
        data = called.argument(0, "data")
        return name == "from_numpy" or (isinstance(data, Container) and _several(trace, data))
    return name in _SHAPED and any(_larger_than_one(trace, v) for v in called.arguments)


def is_plain_at(trace: Trace, called: Called, value: Value, depth: int) -> bool:
    """Whether each thing that a value can be was plain when a call was made."""
    return all(_is_plain(trace, called, one, depth - 1) for one in options(value))


def _several(trace: Trace, data: Container) -> bool:
    return data.kind in ("list", "tuple") and len(list(trace.memory.entries(data))) > 1


def _larger_than_one(trace: Trace, value: Value) -> bool:
    """Whether a value is a number, or a shape with one, that makes a tensor have several elements."""
    if isinstance(value, Literal):
        return isinstance(value.value, int) and value.value > 1
    if isinstance(value, Container):
        sizes = [v for _, v in trace.memory.entries(value)]
        return any(isinstance(v, Literal) and _larger_than_one(trace, v) for v in sizes)
    return (
        isinstance(value, Part)
        and value.key == ".shape"
        and tensor_of(trace, value.owner) is not None
    )


def _never_sharded_until(trace: Trace, event: Event, found: Parameter) -> bool:
    """Whether a parameter is of a resolved module to which nobody had applied ``fully_shard`` when it was taken."""
    return never_sharded(trace, found.module, event.order if found.taken is None else found.taken)


def never_sharded(trace: Trace, value: Value, until: int) -> bool:
    """Whether a value is a module that the analysis knows, and nothing before ``until`` made its parameters shards."""
    module = unwrapped(value)
    if not isinstance(module, Module) or other_dtensors(trace) or never_copied(trace, module):
        return False
    out = [e.order for e in trace.escapes(module)]
    if any(order < until for order in out) or not trace.memory.foreign.isdisjoint(
        trace.holders(module)
    ):
        return False
    return not any(
        s.order < until and overlap(trace, module, s.module) is not None for s in shards(trace)
    )


def _by_unknown_key(key: Hashable) -> bool:
    return isinstance(key, tuple) and key[0] == "[]"


def _computed_plain(trace: Trace, event: Event, value: Part, depth: int) -> bool:
    """Whether a value is computed from ordinary tensors and constants, not from constants alone."""
    if value.operation in _KEEPING:
        return _is_plain(trace, event, value.owner, depth - 1)
    tensors = [v for v in value.made_of if not isinstance(v, Literal)]
    return (
        value.operation in ("*", "/", "+", "-")
        and bool(tensors)
        and all(_is_plain(trace, event, v, depth - 1) for v in tensors)
    )


_KEEPING = frozenset(
    f".{name}()"
    for name in "abs add_ bfloat16 bool clamp clamp_ clone contiguous cpu cuda detach div_ exp float half log "
    "mul_ neg pow relu sigmoid sign sqrt square sub_ t tanh to".split()
)


def operands(called: Called) -> Iterator[Value]:
    """All that a call computes with."""
    if called.receiver is not None:
        yield called.receiver
    yield from called.arguments
    yield from called.keywords.values()


def computations(
    trace: Trace, names: Sequence[str], operators: Sequence[str]
) -> Iterator[tuple[Event, list[Value]]]:
    """The calls of these names and the uses of these operators, with what each computes with."""
    for called in trace.calls(*names):
        yield called, list(operands(called))
    for operated in trace.of(Operated):
        if operated.symbol in operators:
            yield operated, [operated.left, operated.right]


def asks_for_kind(event: Event) -> bool:
    """Whether the script asks before an event what kind of tensor it has to do with."""
    for guard in event.guards:
        test = guard.test
        if test.operation in ("isinstance", "hasattr", "type"):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Mixture:
    """A shard and a plain tensor in one operation."""

    sharded: Value
    shard: Shard
    plain: Value


def mixed(trace: Trace, event: Event, values: Sequence[Value]) -> Mixture | None:
    """The shard and the plain tensor among the operands of an event, when both are there for certain."""
    for one in values:
        shard = None if isinstance(one, Literal) else shard_of(trace, event, one)
        if shard is None:
            continue
        for other in values:
            if (
                other is not one
                and not isinstance(other, Literal)
                and is_plain(trace, event, other)
            ):
                return Mixture(one, shard, other)
    return None
