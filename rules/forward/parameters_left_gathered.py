"""Parameters are written or combined by hand while a forward has left the root's gathered.

## What it does

Finds in-place operations on the parameters of a sharded root (`ema_p.lerp_(p, 0.1)`, `mul_`, `copy_`,
`torch._foreach_*`) after a forward under `torch.no_grad` or `inference_mode` of that root, with nothing between that
frees what the forward has gathered. In a loop the forward may be the one of the round before.

## Why is this bad

After its forward a root keeps its parameters gathered, so that the backward need not gather them again. An evaluation
has no backward: for all that follows, `model.parameters()` gives plain tensors for what belongs to the root's own
group (embedding, head, last norm) and DTensors for the rest. An operation on one of each raises RuntimeError ("got
mixed torch.Tensor and DTensor"). Where nothing raises, the copy is written and the shard is not: the next step or
checkpoint has the old values. An average of weights that is evaluated now and then is the usual case.

## Example

```diff
 import copy

 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 average = copy.deepcopy(model).requires_grad_(False)
 for one in (model, average):
     fully_shard(one)
 optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
 for _ in range(3):
     model(torch.randn(4, 8)).square().mean().backward()
     optimizer.step()
     optimizer.zero_grad()
+    average.reshard()
     for kept, new in zip(average.parameters(), model.parameters()):
         kept.data.lerp_(new.data, 0.1)
     with torch.no_grad():
         print(average(torch.ones(1, 8)).mean())
```

## Forms

- Found: an average in a class, evaluated by a helper function now and then.
- Found: weights that are scaled after the model has been evaluated.
- Not found: a root that frees its parameters after the forward.
- Not found: a state dict between the two, which frees them as well.

## Fix safety

Safe: `model.reshard()` above the statement that takes the parameters, or a loop over all groups where inner ones may
keep theirs too (`reshard_after_forward=False`); the next forward gathers them again. None where the same statement
takes those of modules that are not sharded.

## Known limits

Silent when a state dict is taken or loaded, the model is moved or resharded anywhere between the two, also on
condition; when code that cannot be followed gets the model; when a forward with gradients is between; and when the
forward may happen in the last round alone. `fsdp2lint migrate` makes the fix in these cases too, which does no harm.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`reshard_after_forward`, `reshard`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_lazy_init`, `_post_forward`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Event,
    Finding,
    Fix,
    Forward,
    InsertBefore,
    Layout,
    Moved,
    Parameters,
    ParametersUsed,
    Resharded,
    Restored,
    StateDictTaken,
    Trace,
    Value,
    name_for,
    options,
    rule,
    unwrapped,
    walk,
)

from .._common.evaluation import keeps_no_gradients
from .._common.loops import Loop, leaves_after, loops_around
from .._common.shared import Shard, line_of, overlap, sharded, shards_before, together
from .._common.tensors import frees_after_forward, has_group_of_its_own, keeps_after_forward

_TAKING = (".parameters", ".named_parameters")
_FREEING: tuple[type[Event], ...] = (Resharded, StateDictTaken, Restored, Moved)
_NOT_WRITING = ("clip", "get_total_norm", "parameters_to_vector", "_foreach_norm")


@rule(code="FSDP265", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Writes to parameters that an evaluation has left gathered."""
    if trace.truncated:
        return
    said: set[tuple[cst.CSTNode, Value]] = set()
    for used in trace.of(ParametersUsed):
        for parameters in () if used.by.startswith(_NOT_WRITING) else used.parameters:
            for certain in (True, False):
                left = _left_gathered(trace, used, parameters, certain=certain)
                if left is not None:
                    break
            if left is None or (used.at.node, left[1].module) in said:
                continue
            forward, shard = left
            said.add((used.at.node, shard.module))
            words = shard.module.words()
            later = forward.order > used.order
            where = "in the round before" if later else f"on {line_of(forward, used)}"
            yield Finding(
                at=used,
                message=f"the evaluation of `{words}` {where} {'has' if certain else 'may have'} left the parameters of "
                "its own group gathered: they are plain copies here, not the shards, so that what is written to them is "
                "lost and an operation together with a DTensor raises",
                because=(
                    (
                        forward,
                        f"`{words}` runs forward here, and no backward or `reshard()` follows",
                    ),
                ),
                fix=_resharded(trace, used, parameters, shard),
                certain=certain,
            )


def _left_gathered(
    trace: Trace, used: ParametersUsed, parameters: Parameters, *, certain: bool
) -> tuple[Forward, Shard] | None:
    """The evaluation that has left a root gathered when its parameters are used, and the root's sharding.

    Unless it has to be ``certain``, a state dict on a condition of its own does not count.
    """
    taken = used.order if parameters.taken is None else parameters.taken
    for forward in trace.of(Forward):
        if forward.how != "call" or not keeps_no_gradients(forward):
            continue
        if overlap(trace, parameters.of, forward.module) is None:
            continue
        found = sharded(trace, forward, forward.module, itself=True)
        if found is None or not together(forward.guards, used.guards):
            continue
        shard, module = found
        if not trace.inside(module, parameters.of) or not keeps_after_forward(
            trace, shard, forward
        ):
            continue
        freeing = [
            one
            for one in _freeing(trace, forward, module)
            if certain
            or isinstance(one, Resharded | Forward)
            or not one.guards.clauses - forward.guards.clauses - one.guards.survived
        ]
        if has_group_of_its_own(trace, shard) and _is_left(
            trace, forward, taken, shard, freeing, certain=certain
        ):
            return forward, shard
    return None


def _is_left(
    trace: Trace,
    forward: Forward,
    taken: int,
    shard: Shard,
    freeing: Sequence[Event],
    *,
    certain: bool,
) -> bool:
    """Whether parameters stay gathered from a forward until they are taken, perhaps a round later.

    A round that shards has a model of its own.
    """
    if forward.order < taken:
        return not any(forward.order < one.order < taken for one in freeing)
    loop = _repeated(trace, forward, taken, certain=certain)
    if loop is None or loop in loops_around(shard.event):
        return False
    return not any(
        (one.order < taken or one.order > forward.order) and loop in loops_around(one)
        for one in freeing
    )


def _freeing(trace: Trace, forward: Forward, module: Value) -> Iterator[Event]:
    """What frees the gathered parameters of a module, or may."""
    yield from trace.escapes(module)
    for event in (one for kind in _FREEING for one in trace.of(kind)):
        of = _module_of(event)
        if of is None or overlap(trace, of, module) is not None:
            yield event
    for other in trace.of(Forward):
        inside = overlap(trace, other.module, module) is not None
        if inside and other is not forward and not keeps_no_gradients(other):
            yield other  # a backward may follow it
    for called in trace.calls(*_UNSEEN):
        if called.receiver is None or overlap(trace, called.receiver, module) is not None:
            yield called


_UNSEEN = (".unshard", ".set_reshard_after_forward")


def _module_of(event: Event) -> Value | None:
    if isinstance(event, Resharded | Moved):
        return event.module
    if isinstance(event, StateDictTaken):
        return event.state.of
    return event.into if isinstance(event, Restored) else None


def _repeated(trace: Trace, forward: Forward, taken: int, *, certain: bool) -> Loop | None:
    """The loop in whose next round the parameters are taken after a forward.

    None if it has to be ``certain`` and the forward may come in the last round alone.
    """
    taking = [one for one in trace.calls(*_TAKING) if one.order <= taken]
    around = loops_around(taking[-1]) if taking else ()
    for loop in loops_around(forward):
        if loop in around and not leaves_after(forward, loop):
            if not certain or _comes_again(forward, loop):
                return loop
    return None


def _comes_again(event: Event, loop: Loop) -> bool:
    """Whether an event in a loop surely happens before the last round: in each, or in each of so many."""
    changing = _bound_in(loop)
    for site in (event.at, *reversed(event.moment.calls)):
        layout = Layout.of(site.source)
        inner: cst.CSTNode = site.node
        for around in layout.ancestors(site.node):
            if around is loop:
                return True
            if isinstance(around, cst.FunctionDef):
                break
            if isinstance(around, cst.If | cst.IfExp) and inner is not around.test:
                names = {n.value for n in walk(around.test) if isinstance(n, cst.Name)}
                periodic = any(isinstance(n, cst.Modulo) for n in walk(around.test))
                if names & changing and not periodic:
                    return False
            inner = around
    return False


def _bound_in(loop: Loop) -> set[str]:
    """The names that a loop binds anew in its rounds."""
    targets: list[cst.CSTNode] = [loop.target] if isinstance(loop, cst.For) else []
    for node in walk(loop.body):
        if isinstance(node, cst.AssignTarget | cst.AugAssign | cst.AnnAssign | cst.For):
            targets.append(node.target)
    return {n.value for one in targets for n in walk(one) if isinstance(n, cst.Name)}


def _resharded(
    trace: Trace, used: ParametersUsed, parameters: Parameters, shard: Shard
) -> Fix | None:
    """The root frees its parameters above the statement that takes them."""
    taken = used.order if parameters.taken is None else parameters.taken
    reads = [
        one
        for one in trace.calls(*_TAKING)
        if one.order <= taken and one.receiver is not None
        if shard.module in map(unwrapped, options(one.receiver))
    ]
    if not reads:
        return None
    read = reads[-1]
    call = read.at.node
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    same = [one for one in trace.calls(*_TAKING) if one.at.node is call]
    if not all(sharded(trace, one, one.receiver, itself=True) for one in same):
        return None
    source, model = read.at.source, read.at.source.code(call.func.value)
    if not _others_keep(trace, shard):
        above = InsertBefore(source, call, f"{model}.reshard()")
        return Fix("free the gathered parameters first", (above,), "safe")
    group = name_for(source, call, "torch.distributed.fsdp.FSDPModule")
    each = "unit" if "unit" not in source.text else "sharded_unit"
    lines = (
        f"for {each} in {model}.modules():\n    if isinstance({each}, {group.text}):\n"
        f"        {each}.reshard()"
    )
    edits = (InsertBefore(source, call, lines), *group.edits)
    return Fix("free the gathered parameters first", edits, "safe")


def _others_keep(trace: Trace, shard: Shard) -> bool:
    """Whether groups inside a root are asked to keep their parameters too."""
    return any(
        s.module is not shard.module
        and trace.inside(s.module, shard.module)
        and not frees_after_forward(trace, s)
        for s in shards_before(trace, trace.events[-1])
    )
