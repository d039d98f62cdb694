"""The wrapper's `clip_grad_norm_` becomes the one of `torch.nn.utils`.

## What it does

Rewrites `model.clip_grad_norm_(max_norm)` and `FSDP.clip_grad_norm_(model, max_norm)`. Where the norm is used
(logged, compared, added up), `.full_tensor()` follows the call, on all ranks; the same for
`torch.nn.utils.clip_grad_norm_` of such a model, asking for a DTensor first where the model may be another. Two branches that become equal are merged. For the norm of order infinity, for models with ignored
parameters and under tensor parallelism a function comes into the file: `torch.nn.utils` raises for empty shards, for a
mixture with plain tensors and for gradients on several meshes.

Where a script makes the norm by hand, and gives the sum of squares of its gradients to `all_reduce`, each rank computes it
of its shards (`p.grad.to_local()`). The same for counts and tests of entries. Where other tensors reach the same line,
ignored parameters or those of a model that is not wrapped, a function in the file asks which it is.

## Why

`FSDPModule` has no such method. `torch.nn.utils.clip_grad_norm_` knows DTensor gradients and gives the norm over
all ranks. That norm is a DTensor: it cannot be formatted (`f"{norm:.3f}"` raises TypeError), and with
`norm_type=inf` its `.item()` is another number on each rank. FSDP1's was a plain tensor, and so were the gradients, each
with this rank's part: the collectives of `torch.distributed` do not take DTensors.

## Example

```diff
 import torch
 from torch import nn
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 model = FSDP(nn.Linear(8, 8))
 model(torch.randn(4, 8)).sum().backward()
-norm = model.clip_grad_norm_(1.0)
+norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
 print(f"{norm:.3f}")
```

## What it leaves

- The largest entry or the mean of gradients, taken by hand: a shard may be empty now, and torch has no such number then.
- A norm that is used inside a lambda, a comprehension or a condition, of a model that may be wrapped by DDP.
- FSDP1 added up in fp32; `torch.nn.utils.clip_grad_norm_` adds up in the dtype of the gradients. That differs
  when the parameters themselves are bf16 or fp16.
- A program that gave an FSDP1 model's parameters to `torch.nn.utils.clip_grad_norm_` clipped by the norm of each
  rank's shard. It now clips by the norm of the whole gradient.
- Under tensor parallelism FSDP1 summed up over the ranks that share its mesh only: each tensor parallel rank clipped
  by a norm of its own, and weights that they all hold drifted apart. The new norm is over all ranks.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`clip_grad_norm_`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    BOTH_CLASSES,
    Account,
    Arguments,
    Assigned,
    Clipped,
    Edit,
    InsertAfter,
    InsertBefore,
    Layout,
    Left,
    Module,
    Name,
    Program,
    Replace,
    Rewrite,
    Source,
    Step,
    Trace,
    Value,
    Wrapping,
    codemod,
    is_no_instance,
    is_of_the_project,
    kinds,
    name_for,
    options,
    unseen_methods,
    unwrapped,
    walk,
    wrapper,
)

from .._common.both_classes import STAYS, is_for_fsdp1, is_library
from .._common.loop_ignored import ignores_some
from .._common.loop_models import DTENSOR, FSDP1
from .._common.loop_tests import hasattr_steps
from .._common.loop_text import (
    around,
    bound_name,
    fitted,
    free_name,
    is_dropped,
    is_lazy,
    receiver_text,
    text_of,
)
from .._common.shared import Build, Helpers, unimports
from .branches import merged_branches
from .by_hand import sums_of_shards
from .norms import by_class, by_largest_entry, is_infinite, of_meshes, of_shards_and_whole

CLIP = "torch.nn.utils.clip_grad_norm_"
PARALLELIZE = "torch.distributed.tensor.parallel.parallelize_module"
METHOD = "clip_grad_norm_"


@dataclass(frozen=True, slots=True)
class _Own:
    """A call in whose place comes one of a function of the script's own."""

    call: cst.Call
    name: str
    function: Build
    arguments: tuple[str, ...]
    why: str
    plain: bool = False
    """Whether it names nothing of FSDP1 before."""


@codemod()
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Clipping by the wrapper, and norms that are DTensors now."""
    unbound = {r.node for r in program.references(f"{FSDP1}.{METHOD}")}
    functions = {r.node for r in program.references(CLIP)}
    apart: dict[Source, list[_Own]] = {}
    for events in program.sites(Clipped):
        source, call = events[0][1].at.source, events[0][1].at.node
        if not isinstance(call, cst.Call):
            continue
        models = [e.module for _, e in events if e.module is not None]
        library = (
            is_library(program) and not is_no_instance(events[0][1], models[0]) if models else False
        )
        if library and is_for_fsdp1(program, source, call):
            yield Step((), (Account(source, call, "preserved", STAYS),))
        elif library and (own := _by_class(source, call, call.func in unbound)) is not None:
            apart.setdefault(source, []).append(own)
        elif models and all(_is_apart(trace, clipped) for trace, clipped in events):
            why = "the wrapping by FSDP1 is in branches that exclude this one"
            yield Step((), (Account(source, call, "preserved", why),))
        elif models and is_of_the_project(program, METHOD):
            why = "a method of models that FSDP1 never wraps in this program"
            yield Step((), (Account(source, call, "preserved", why),))
        elif models and _are_wrapped(program, models):
            own = _own_function(
                program, source, call, models, call.func in unbound, _parallel(events)
            )
            if own is not None:
                apart.setdefault(source, []).append(own)
            else:
                yield _by_function(program, source, call, call.func in unbound)
        elif not models and call.func in functions:
            over = [p.of for _, e in events for p in e.parameters if not is_no_instance(e, p.of)]
            own = None
            if _parallel(events):
                own = _by_one_norm(source, call, over, of_meshes(), _PARALLEL)
            elif _has_plain_parts(program, events, over):
                own = _by_one_norm(source, call, over, of_shards_and_whole(), _MIXED)
            if own is not None:
                apart.setdefault(source, []).append(own)
            else:
                yield from _read_whole(source, call, over)
    parallel = any(program.references(PARALLELIZE))
    for source, node in unseen_methods(program, METHOD):
        call = Layout.of(source).parents[node]
        if is_library(program) and isinstance(call, cst.Call) and call.func is node:
            own = _by_class(source, call, call.func in unbound)
            if is_for_fsdp1(program, source, call):
                yield Step((), (Account(source, call, "preserved", STAYS),))
            elif own is not None:
                apart.setdefault(source, []).append(own)
        elif isinstance(call, cst.Call) and call.func is node:
            own = _own_function(program, source, call, (), call.func in unbound, parallel)
            if parallel and own is not None:
                apart.setdefault(source, []).append(own)
            else:
                yield _by_function(program, source, call, call.func in unbound)
    for source, calls in apart.items():
        yield _by_own_function(program, source, calls)
    yield from hasattr_steps(program, METHOD)
    yield from merged_branches(program, functions)
    yield from sums_of_shards(program)


def _are_wrapped(program: Program, models: Sequence[Value]) -> bool:
    """Whether FSDP1 may have wrapped models: those of engines, which may wrap them in its place, have no such method."""
    found = {wrapper(one) for model in models for one in options(model)}
    by_program = "fsdp1" in program.wrappers and "unknown" in found
    return by_program or "fsdp1" in kinds(program, models)


def _is_apart(trace: Trace, clipped: Clipped) -> bool:
    """Whether the file wraps by FSDP1 only where it does not come here, as for another kind of device."""
    if clipped.module is None or wrapper(clipped.module) != "unknown":
        return False
    wrapped = [
        e for e in trace.of(Wrapping) if e.by == "fsdp1" and e.at.source is clipped.at.source
    ]
    return bool(wrapped) and all(event.guards.excludes(clipped.guards) for event in wrapped)


def _parallel(events: Sequence[tuple[Trace, Clipped]]) -> bool:
    """Whether a model of the same run is tensor parallel: then gradients are on several meshes."""
    return any(True for trace, _ in events for _ in trace.calls(PARALLELIZE))


def _has_plain_parts(
    program: Program, events: Sequence[tuple[Trace, Clipped]], over: Sequence[Value]
) -> bool:
    """Whether some parameters of a model are no shards: it is to leave them, or they came in after the sharding."""
    if ignores_some(program, over):
        return True
    models = {unwrapped(one) for model in over for one in options(model)}
    return any(
        isinstance(new, Module) and unwrapped(assigned.owner) in models
        for trace, clipped in events
        for wrapping in trace.before(clipped, Wrapping)
        if wrapping.by == "fsdp1" and unwrapped(wrapping.module) in models
        for assigned in trace.after(wrapping, Assigned)
        for new in options(assigned.value)
    )


def _by_one_norm(
    source: Source, call: cst.Call, over: Sequence[Value], function: Build, why: str
) -> _Own | None:
    """A function in place of ``torch.nn.utils.clip_grad_norm_(model.parameters(), …)``, which takes no mixed gradients."""
    names = ("parameters", "max_norm", "norm_type")
    given = {
        names[min(i, 2)] if a.keyword is None else a.keyword.value: a.value
        for i, a in enumerate(call.args)
    }
    first = given.get("parameters")
    if "fsdp1" not in {wrapper(one) for one in over} or set(given) - set(names):
        return None
    if not isinstance(first, cst.Call) or not isinstance(first.func, cst.Attribute) or first.args:
        return None
    if first.func.attr.value != "parameters" or any(a.star for a in call.args):
        return None
    rest = (text_of(source, given[name]) for name in names[1:] if name in given)
    model = text_of(source, first.func.value)
    return _Own(call, METHOD, function, (model, *rest), why, plain=True)


def _own_function(
    program: Program,
    source: Source,
    call: cst.Call,
    models: Sequence[Value],
    unbound: bool,
    parallel: bool,
) -> _Own | None:
    """The function that clips where ``torch.nn.utils.clip_grad_norm_`` would raise."""
    if any(a.star for a in call.args) or not isinstance(call.func, cst.Attribute):
        return None
    names = (("model",) if unbound else ()) + ("max_norm", "norm_type")
    given = {
        names[i] if a.keyword is None else a.keyword.value: text_of(source, a.value)
        for i, a in enumerate(call.args[: len(names)])
    }
    model = given.get("model", "") if unbound else text_of(source, call.func.value)
    if not model or "max_norm" not in given:
        return None
    if is_infinite(given.get("norm_type", "")):
        why = "a shard may be empty, and torch cannot take the largest entry of an empty tensor: a helper in this file does it"
        return _Own(
            call, "clip_grad_max_norm_", by_largest_entry(), (model, given["max_norm"]), why
        )
    rest = (given["max_norm"], *((given["norm_type"],) if "norm_type" in given else ()))
    if parallel:
        return _Own(call, METHOD, of_meshes(), (model, *rest), _PARALLEL)
    if ignores_some(program, models):
        return _Own(call, METHOD, of_shards_and_whole(), (model, *rest), _MIXED)
    return None


def _by_class(source: Source, call: cst.Call, unbound: bool) -> _Own | None:
    """The function that clips models of FSDP1 and of ``fully_shard``, each as it must be."""
    if any(a.star for a in call.args) or not isinstance(call.func, cst.Attribute):
        return None
    said = [source.text[slice(*Layout.of(source).span(a))].rstrip(", ") for a in call.args]
    if not unbound:
        said.insert(0, text_of(source, call.func.value))
    return _Own(call, "clip_grad_norm", by_class(), tuple(said), BOTH_CLASSES)


_MIXED = (
    "torch.nn.utils cannot clip DTensor and plain gradients together; a helper in this file does. Where ignored gradients"
    " differ by rank, each rank scales its shards by a norm of its own, as under FSDP1; FSDP2 cuts other shards"
)
_PARALLEL = (
    "not the same norm: under tensor parallelism FSDP1 gave each tensor parallel rank that of its own part,"
    " this helper gives one over all ranks"
)


def _by_own_function(program: Program, source: Source, calls: Sequence[_Own]) -> Step:
    """Calls of functions that are written into the file."""
    helpers = Helpers.above(source, calls[0].call)
    edits: list[Edit] = []
    for one in calls:
        name = helpers.add(one.name, one.function)
        edits.append(Replace(source, one.call, f"{name}({', '.join(one.arguments)})"))
    accounts = tuple(Account(source, one.call, "changed", one.why, own=one.plain) for one in calls)
    unused = [one for name in (FSDP1, "math") for one in unimports(program, source, name)]
    return Step((*edits, *helpers.all_edits(), *unused), accounts)


def _by_function(program: Program, source: Source, call: cst.Call, unbound: bool) -> Step | Left:
    """``torch.nn.utils.clip_grad_norm_(model.parameters(), …)`` in place of the method."""
    clip = _spelled(program, source, call)
    arguments = Arguments(source, call)
    if unbound:
        if not call.args or call.args[0].star or call.args[0].keyword is not None:
            return _left(source, call, "which model it clips cannot be seen")
        model = receiver_text(source, call.args[0].value)
        arguments.replace(0, f"{model}.parameters()")
    else:
        assert isinstance(call.func, cst.Attribute)
        model = receiver_text(source, call.func.value)
        arguments.first(f"{model}.parameters()")
    edits: list[Edit] = [Rewrite(source, call.func, lambda inner: clip.text), arguments]
    edits += clip.edits
    if unbound:
        edits += unimports(program, source, FSDP1)
    why = "the same norm over all ranks, from `torch.nn.utils.clip_grad_norm_`"
    if not is_dropped(source, call):
        edits.append(_read(source, call))
        why += "; full_tensor() makes its result a plain tensor"
    else:
        edits.append(Rewrite(source, call, lambda inner: fitted(source, call, inner.text)))
    return Step(tuple(edits), (Account(source, call, "changed", why),))


def _read(source: Source, call: cst.Call) -> Rewrite:
    """The call with ``full_tensor()`` of what it returns."""
    return Rewrite(source, call, lambda inner: fitted(source, call, f"{inner.text}.full_tensor()"))


def _spelled(program: Program, source: Source, call: cst.Call) -> Name:
    """The function as the file writes it elsewhere."""
    for reference in program.named(source):
        text = text_of(source, reference.node)
        if reference.name == CLIP and program.meaning(source, call, text) == CLIP:
            return Name(text)
    return name_for(source, call, CLIP)


_WHOLE = "under FSDP1 each rank clipped its shard by that shard's norm; now it is the norm of all"


def _read_whole(source: Source, call: cst.Call, over: Sequence[Value]) -> Iterator[Step | Left]:
    """``full_tensor()`` for the norm of gradients that are DTensors from now on."""
    found = {wrapper(one) for one in over}
    if "fsdp1" not in found or _is_whole(source, call):
        return
    if is_dropped(source, call):
        if not _is_for_others(source, call):
            yield Step((), (Account(source, call, "changed", _WHOLE, own=True),))
        return
    edits: tuple[Edit, ...] | None = (_read(source, call),)
    if found != {"fsdp1"}:
        edits = _whole_if_sharded(source, call)
    if edits is None:
        yield _left(source, call, "its norm may be a DTensor and is used in an expression")
        return
    why = f"{_WHOLE}, and a DTensor; full_tensor() makes it a plain tensor"
    yield Step(edits, (Account(source, call, "changed", why, own=True),))


def _is_for_others(source: Source, call: cst.Call) -> bool:
    """Whether the wrapper's own method clips where this does not: the test above is for it."""
    inner: cst.CSTNode = call
    for outer in Layout.of(source).ancestors(call):
        if isinstance(outer, cst.If) and inner is outer.orelse:
            test = source.code(outer.test)
            return METHOD in test or "FSDPModule" in test
        inner = outer
    return False


def _whole_if_sharded(source: Source, call: cst.Call) -> tuple[Edit, ...] | None:
    """A plain tensor of the norm where it is a DTensor; None where no statement can ask that."""
    if is_lazy(source, call):
        return None
    dtensor = name_for(source, call, DTENSOR)
    name = bound_name(source, call)
    ask = "if isinstance({0}, " + dtensor.text + "):\n    {0} = {0}.full_tensor()"
    if name:
        return (InsertAfter(source, call, ask.format(name)), *dtensor.edits)
    name = free_name(source, call, "grad_norm")
    above = f"{name} = {text_of(source, call)}\n{ask.format(name)}"
    return (InsertBefore(source, call, above), Replace(source, call, name), *dtensor.edits)


def _is_whole(source: Source, call: cst.Call) -> bool:
    """Whether the script makes a plain tensor of the norm itself."""
    name = bound_name(source, call)
    for one in walk(around(source, call)):
        if isinstance(one, cst.Attribute) and one.attr.value in ("full_tensor", "to_local"):
            value = one.value
            if value is call or (name and isinstance(value, cst.Name) and value.value == name):
                return True
    return False


def _left(source: Source, call: cst.Call, why: str) -> Left:
    return Left(
        source, call, why, "clip with torch.nn.utils.clip_grad_norm_ and read full_tensor()"
    )
