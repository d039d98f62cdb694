"""A model gets memory by `to_empty` and is trained without values.

## What it does

Finds models that are built on the meta device, get memory by `to_empty`, and compute and train, on some path through the
script, with nothing between that gives them, or some of their layers, values: neither an initialisation nor a load.

## Why is this bad

`to_empty` allocates and writes nothing: the parameters are what was in that memory. On a fresh process this
is often zero, later it is NaN or the remains of other tensors, and other ones on each rank. Nothing raises.
`torch.use_deterministic_algorithms(True)` fills such memory with NaN and so makes the mistake visible.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 with torch.device("meta"):
     model = nn.Linear(8, 8)
 fully_shard(model)
 model.to_empty(device="cpu")
+model.reset_parameters()
 optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

## Forms

- Found: a norm of the project that the initialisation leaves out.
- Found: a parameter beside submodules, when only these get values.

## Fix safety

Unsafe: below the statement each layer's `reset_parameters` is called, and then what the constructor applies to
itself (`self.apply(self.initialise)`), if it does. There is no fix unless all layers of the model are resolved
and have that method, own no parameters or buffers beside it, share no weights, and get no values in another way.

## Known limits

Asked path by path: a load on the resume branch initialises that branch only, and a method that initialises some layers
(`reset_parameters` of PyTorch's own FSDP2 example never visits its blocks) leaves the others. Any call between that is
handed a layer, a module around it or one of its parameters counts as an initialisation, unless it is known to give no
values; so does `apply`, and a loop over all parameters. A loop over all modules initialises those of the classes that
it asks for. Layers of `torch.nn` are seen, classes of the
project that inherit from them, whole models of Transformers that `from_config` builds, and the `nn.Parameter`s that modules of the
project hold; other libraries' models are not. Silent when the model is never trained (measurements of memory do that on purpose).

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html (`to_empty`)
- https://docs.pytorch.org/docs/stable/deterministic.html (`fill_uninitialized_memory`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Finding,
    Fix,
    Forward,
    InsertAfter,
    Literal,
    Moved,
    Stepped,
    Trace,
    Value,
    options,
    rule,
    unwrapped,
)

from .._common.fixes import own_statement, path_text, receiver_of
from .._common.meta import (
    Ways,
    born_on_meta,
    first_forward,
    on_paths,
    own_parameters_on_meta,
    values_given,
    ways_without_own_values,
    ways_without_values,
)
from .._common.shared import class_name, parts_of, together
from ._common.fixes_values import values_for


@rule(code="FSDP251", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Allocated parameters that are never initialised."""
    for moved in trace.of(Moved):
        if moved.how != "to_empty":
            continue
        forward = first_forward(trace, moved)
        if forward is None or next(trace.after(forward, Stepped), None) is None:
            continue
        found = _uninitialised(trace, moved, forward)
        if found is None:
            continue
        layers, ways, whole = found
        built, path = layers[0], on_paths(forward, ways)
        if whole:
            said = (
                f"`to_empty` gives `{unwrapped(moved.module).words()}` memory without values, and nothing "
                f"initialises or loads them before it is trained{path}: it begins with garbage"
            )
        else:
            others = f" and at least {len(layers) - 1} other layers" if len(layers) > 2 else ""
            said = (
                f"what initialises the model after `to_empty` never reaches `{built.result.words()}`{others}: "
                f"trained on uninitialised memory{path}"
            )
        yield Finding(
            at=moved,
            message=said,
            because=(
                (built, "built on the meta device here"),
                (forward, "the model computes here for the first time"),
            ),
            fix=_initialised(trace, moved) if whole else None,
        )


def _uninitialised(
    trace: Trace, moved: Moved, forward: Forward
) -> tuple[list[Called], Ways, bool] | None:
    """The layers that compute without having got values on some paths, those, and whether no layer has got any."""
    module = unwrapped(moved.module)
    alone = _without_submodules(trace, moved)
    layers = [
        (called, guards.and_(moved.guards))
        for called, guards in born_on_meta(trace)
        if called.order < moved.order
        and (called.result is module if alone else trace.inside(called.result, module))
        and together(guards, moved.guards)
    ]
    if not layers:
        return None
    giving = values_given(trace, moved, forward, module)
    for called, guards in layers:
        ways = ways_without_values(trace, moved, forward, module, guards)
        if ways:
            return [called], ways, True
    left: list[Called] = []
    paths: Ways = ()
    for called, guards in layers:
        layer = called.result
        if layer is module or not _computes(trace, moved, layer):
            continue
        ways = ways_without_values(trace, moved, forward, layer, guards, giving=giving)
        if ways and paths in ((), ways):
            paths = ways
            left.append(called)
    for called, guards, holder in own_parameters_on_meta(trace):
        if not trace.inside(holder, module):
            continue
        if called.order > moved.order or not together(guards, moved.guards):
            continue
        if not _computes(trace, moved, holder):
            continue
        both = guards.and_(moved.guards)
        if parts_of(trace, holder):
            ways = ways_without_own_values(trace, forward, holder, called.result, both, giving)
        else:
            ways = ways_without_values(trace, moved, forward, holder, both, giving=giving)
        if ways and paths in ((), ways):
            paths = ways
            left.append(called)
    return (left, paths, False) if paths else None


def _without_submodules(trace: Trace, moved: Moved) -> bool:
    """Whether only what a module holds itself gets memory: ``to_empty(…, recurse=False)``."""
    given = [
        called.keywords.get("recurse")
        for called in trace.calls(".to_empty")
        if called.at.node is moved.at.node and called.calls == moved.calls
    ]
    return any(isinstance(one, Literal) and one.value is False for one in given)


def _computes(trace: Trace, moved: Moved, layer: Value) -> bool:
    """Whether a layer itself runs forward later, or the list of layers of torch that holds it."""
    return any(
        forward.how == "call"
        and any(
            one is layer or (class_name(one).startswith("torch.nn.") and trace.inside(layer, one))
            for one in map(unwrapped, options(forward.module))
        )
        for forward in trace.after(moved, Forward)
    )


def _initialised(trace: Trace, moved: Moved) -> Fix | None:
    """The statements that give the parameters values, below the one that gives them memory."""
    site = moved.at
    statement = own_statement(site)
    name = path_text(site, receiver_of(site))
    if not name or statement is None:
        return None
    if isinstance(statement, cst.Assign) and not all(
        site.source.code(one.target) == name for one in statement.targets
    ):
        return None
    emptied = [one for one in trace.of(Moved) if one.at.node is site.node]
    texts = {values_for(trace, one, one.module, name) for one in emptied}
    if len(texts) != 1 or "" in texts:
        return None
    edit = InsertAfter(site.source, site.node, texts.pop())
    return Fix(
        "initialise the parameters",
        (edit,),
        "unsafe",
        "each layer gets the values that torch gives it by default: look at what the model wants beside",
    )
