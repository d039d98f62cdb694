"""Work on FSDP1's flat parameters, entry by entry, is done on the parameters themselves.

## What it does

Rewrites `_get_fsdp_handles(model)` to the model's parameters, and `handle.flat_param` to the parameter, where a
function only goes through them and computes entry by entry: an average of weights, a copy, a scaling. The `params` of
a wrapper, in a loop over `FSDP.fsdp_modules(model)` or of a model itself, become the parameters of that unit where
`torch._foreach_*` gets them.

## Why

FSDP1 held the parameters of each unit in one flat tensor, of which each rank had a part. `fully_shard` leaves the
parameters their own and shards each. What is computed for each entry by itself comes out the same.

## Example

```diff
 import torch
-import torch.distributed.fsdp._traversal_utils as traversal_utils
 from torch import nn
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


 def average(kept: nn.Module, model: nn.Module, decay: float) -> None:
-    handles = traversal_utils._get_fsdp_handles(kept)
-    for old, new in zip(handles, traversal_utils._get_fsdp_handles(model)):
-        old.flat_param.data.lerp_(new.flat_param.data, 1 - decay)
+    handles = list(kept.parameters())
+    for old, new in zip(handles, model.parameters()):
+        old.data.lerp_(new.data, 1 - decay)


 model, kept = FSDP(nn.Linear(8, 8)), FSDP(nn.Linear(8, 8))
 average(kept, model, 0.99)
```

## What it leaves

- Handles and `params` that are used for anything else: their sizes, their storage, their unsharding.
- Models of which FSDP1 leaves some parameters alone: a handle never had those.
- Functions that the project never calls with a model that FSDP1 wraps.

## References

- `torch/distributed/fsdp/_traversal_utils.py` (`_get_fsdp_handles`)
- `torch/distributed/fsdp/_flat_param.py` (`FlatParamHandle.flat_param`)
- `torch/distributed/fsdp/_init_utils.py` (`state.params.append(handle.flat_param)`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Edit,
    Layout,
    Left,
    Program,
    Read,
    Reference,
    Replace,
    Source,
    Splice,
    Step,
    Value,
    codemod,
    dotted,
    is_unit,
    kinds,
)

from .._common.loop_ignored import ignores_some
from .._common.loop_insides import OF_WRAPPERS, instead, is_answered
from .._common.loop_models import FSDP_MODULE
from .._common.loop_text import around, receiver_text, text_of
from .._common.shared import Helpers, Naming, unimports
from .flat import Flat

UTILS = "torch.distributed.fsdp._traversal_utils"
HANDLES = f"{UTILS}._get_fsdp_handles"
WHY = "what is computed entry by entry is the same for the parameters themselves"


@codemod()
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Functions that go through flat parameters."""
    models: dict[cst.CSTNode, list[Value]] = {}
    for events in program.sites(Called):
        if events[0][1].name == HANDLES:
            asked = (called.argument(0, "module") for _, called in events)
            models[events[0][1].at.node] = [one for one in asked if one is not None]
    together: dict[cst.CSTNode, list[Reference]] = {}
    for reference in program.references(HANDLES):
        together.setdefault(around(reference.source, reference.node), []).append(reference)
    for function, references in together.items():
        calls = [Layout.of(one.source).parents[one.node] for one in references]
        if all(_is_plain(call) for call in calls):
            given = [model for call in calls for model in models.get(call, ())]
            if kinds(program, given) == {"fsdp1"} and not ignores_some(program, given):
                yield from _step(program, function, references)
    for source, reads in of_units(program).items():
        yield from _steps_of(program, source, reads)


def _is_plain(call: cst.CSTNode) -> bool:
    """Whether this is a call of one model, written out."""
    return isinstance(call, cst.Call) and len(call.args) == 1 and not call.args[0].star


def _step(
    program: Program, function: cst.CSTNode, references: Sequence[Reference]
) -> Iterator[Step]:
    """One step for all handles of a function: its loops may go through several models side by side."""
    source = references[0].source
    parents = Layout.of(source).parents
    calls = [call for one in references if isinstance(call := parents[one.node], cst.Call)]
    flat = Flat(source, function, calls)
    if not flat.entrywise:
        return
    edits: list[Edit] = []
    for call in calls:
        text = f"{receiver_text(source, call.args[0].value)}.parameters()"
        edits.append(Replace(source, call, f"list({text})" if call in flat.kept else text))
    edits += (
        _without_test(source, one) or Replace(source, one, text_of(source, one.value))
        for one in flat.parameters
    )
    accounts = tuple(Account(source, one.node, "changed", WHY, own=True) for one in references)
    yield Step(
        (*edits, *unimports(program, source, UTILS), *unimports(program, source, HANDLES)), accounts
    )


def _without_test(source: Source, parameter: cst.Attribute) -> Edit | None:
    """``handle.flat_param is not None and …`` without that test: a parameter is one."""
    layout = Layout.of(source)
    test = layout.parents[parameter]
    around = layout.parents[test]
    if not isinstance(test, cst.Comparison) or test.left is not parameter or test.lpar:
        return None
    asked = test.comparisons[0]
    is_there = isinstance(asked.operator, cst.IsNot) and dotted(asked.comparator) == "None"
    if len(test.comparisons) > 1 or not is_there or not isinstance(around, cst.BooleanOperation):
        return None
    if around.left is not test or not isinstance(around.operator, cst.And):
        return None
    return Splice(source, layout.span(test)[0], layout.whole(around.right)[0], "")


def of_units(program: Program) -> dict[Source, list[cst.Attribute]]:
    """Where a unit that FSDP1 has wrapped is asked for what only FSDP1 gives it: ``unit.params``."""
    found: dict[Source, dict[cst.Attribute, None]] = {}
    for _, read in program.of(Read):
        node = read.at.node
        if read.name in OF_WRAPPERS and isinstance(node, cst.Attribute) and is_unit(read.owner):
            found.setdefault(read.at.source, {})[node] = None
    return {source: list(nodes) for source, nodes in found.items()}


def _steps_of(
    program: Program, source: Source, reads: Sequence[cst.Attribute]
) -> Iterator[Step | Left]:
    """One step for those of a file whose entries alone matter."""
    params = [n for n in reads if n.attr.value == "params"]
    ready = [n for n in params if Flat(source, around(source, n), []).is_added(n)]
    for node in reads:
        if node not in ready and not is_answered(program, source, node):
            yield Left(source, node, "an attribute of FSDP1's wrapper", instead(node.attr.value))
    if not ready:
        return
    starts = Layout.of(source).span
    helpers = Helpers.above(source, min(ready, key=lambda n: starts(n)[0]))
    name = helpers.add("own_parameters", _own_parameters)
    edits = [Replace(source, n, f"{name}({text_of(source, n.value)})") for n in ready]
    accounts = tuple(Account(source, n, "changed", WHY, own=True) for n in ready)
    yield Step((*edits, *helpers.all_edits()), accounts)


def _own_parameters(name: str, named: Naming) -> str:
    cls = named(FSDP_MODULE)
    return f'''def {name}(unit):
    """The parameters of a sharded module, without those of sharded modules inside it."""
    inside = [m for m in unit.modules() if m is not unit and isinstance(m, {cls})]
    theirs = {{p for m in inside for p in m.parameters()}}
    return [p for p in unit.parameters() if p not in theirs]'''
