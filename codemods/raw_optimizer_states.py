"""The state that an optimizer gives of itself is gathered before one rank saves it; files of each rank stay.

## What it does

Rewrites `optimizer.state_dict()` that `torch.save` writes beside the weights of an FSDP1 model, and the
`optimizer.load_state_dict` that gets it back.

## Why

The optimizer of a sharded model holds the shards of its rank. A file of one rank lacks the others', under FSDP1 too: it
was loaded by all ranks as if it were theirs, without an error where the shards have one size.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
+from torch.distributed.checkpoint.state_dict import (
+    StateDictOptions,
+    get_optimizer_state_dict,
+)
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 model = FSDP(nn.Linear(8, 8))
 optimizer = torch.optim.AdamW(model.parameters())
 states = model.state_dict()
+optimizer_state = get_optimizer_state_dict(
+    model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
+)
 if dist.get_rank() == 0:
-    torch.save({"model": states, "optimizer": optimizer.state_dict()}, "last.pt")
+    torch.save({"model": states, "optimizer": optimizer_state}, "last.pt")
```

Where each rank reads a file of its own (`optimizer.load_state_dict(torch.load(f"optimizer.{rank}.pt"))`), what FSDP1
wrote there are parts of flat tensors: a small function puts those of all ranks together and shards them anew. Files
that the migrated program writes hold `DTensor`s and pass through.

## What it leaves

States of which no function beside them names the model. Optimizer states that were written before are lost: they hold
the shards of one rank.

Files of each rank that FSDP1 wrote are read on as many ranks as wrote them, with `use_orig_params=True`; without it
their states are those of flat parameters, and `load_state_dict` refuses them.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`get_optimizer_state_dict`)
- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`optim_state_dict`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    FLATTENERS,
    Account,
    Called,
    Edit,
    InsertBefore,
    Layout,
    Loaded,
    Program,
    Replace,
    Restored,
    Rewrite,
    Saved,
    Source,
    StateDict,
    StateDictTaken,
    Step,
    Trace,
    Value,
    codemod,
    dotted,
    name_for,
    options,
    rank_dependent,
)

from ._common.loop_text import text_of
from ._common.shared import Helpers, Naming
from ._common.states_asked import asked, is_of
from ._common.states_guards import besides_rank, test_above
from ._common.states_putting import from_file
from ._common.states_taking import hoisted
from ._common.states_text import HOME, fitted, function_of, is_path, options_for
from ._common.states_uses import fsdp1_models_of

_NAMES = ("optimizer_state", "whole_optimizer_state")
_LOST = (
    "# files from before hold the state of one rank's shards: only the weights of those can be used"
)
_WHY = "an optimizer's own state holds the shards of one rank"


@codemod()
def rewrite(program: Program) -> Iterator[Step]:
    """States of optimizers that one rank saves."""
    for taken in program.sites(StateDictTaken):
        step = _taken(*taken[0]) if len({t.state.of for _, t in taken}) == 1 else None
        if step is not None:
            yield step
    for restored in program.sites(Restored):
        step = _of_each_rank(*restored[0])
        if step is not None:
            yield step
    if not any(_is_gathered(s) for t in program.traces for e in t.of(Saved) for s in e.states):
        return
    for restored in program.sites(Restored):
        step = _restored(*restored[0])
        if step is not None:
            yield step


def _of_each_rank(trace: Trace, restored: Restored) -> Step | None:
    """The step that puts together what FSDP1 wrote into a file of each rank, where such a file is loaded."""
    source, call = restored.at.source, restored.at.node
    if restored.kind != "optimizer" or restored.via != ".load_state_dict":
        return None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    if (
        len(call.args) != 1
        or call.args[0].star
        or not fsdp1_models_of(trace, restored.into, restored)
    ):
        return None
    loads = [
        one
        for one in trace.of(Loaded)
        if one.via == "torch.load"
        and any(is_of(state, one.result) for state in options(restored.state))
    ]
    if not loads or not all(one.path is not None and rank_dependent(one.path) for one in loads):
        return None
    if any(_holds_shards(trace, one) for one in loads):
        return None  # what FSDP1 wrote into it cannot be read at all
    given = call.args[0].value
    if isinstance(given, cst.Call) and dotted(given.func).startswith(_PUT_TOGETHER):
        return None
    helpers = Helpers.above(source, call)
    name = helpers.add(_PUT_TOGETHER, _putting_together)
    optimizer = text_of(source, call.func.value)
    joined = Rewrite(source, given, lambda new: f"{name}({new.text}, {optimizer})")
    edits = (joined, *helpers.all_edits())
    return Step(edits, (Account(source, call, "changed", _PARTS, own=True),))


def _holds_shards(trace: Trace, loaded: Loaded) -> bool:
    """Whether shards of a model are in a file too."""
    return any(
        restored.kind == "model"
        and asked(trace, restored).kind in ("SHARDED_STATE_DICT", "LOCAL_STATE_DICT")
        and any(is_of(one, loaded.result) for one in options(restored.state))
        for restored in trace.of(Restored)
    )


_PUT_TOGETHER = "whole_optimizer_states"
_PARTS = "parts of flat tensors that FSDP1 wrote into a file of each rank are put together and sharded anew: as many ranks are needed as wrote them"


def _putting_together(name: str, named: Naming) -> str:
    dist = named("torch.distributed.all_gather_object").removesuffix("all_gather_object")
    torch = named("torch.cat").removesuffix("cat")
    dtensor = named("torch.distributed.tensor.DTensor")
    distribute = named("torch.distributed.tensor.distribute_tensor")
    return f'''def {name}(state, optimizer):
    """Shard the states that FSDP1 wrote, parts of flat tensors in a file of each rank."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not isinstance(parameters[0], {dtensor}):
        return state
    mesh = parameters[0].device_mesh
    group = mesh.get_group() if mesh.ndim == 1 else None
    for index, param in enumerate(parameters):
        parts = [None] * {dist}get_world_size(group)
        {dist}all_gather_object(parts, state["state"].get(index, {{}}), group)
        if any(isinstance(value, {dtensor}) for part in parts for value in part.values()):
            return state
        for key in {{key: None for part in parts for key in part}}:
            values = [part[key] for part in parts if key in part]
            if {torch}is_tensor(values[0]) and values[0].dim() > 0:
                whole = {torch}cat([value.flatten() for value in values])[: param.numel()]
                whole = whole.view(param.shape).to(param.device)
                values = [{distribute}(whole, param.device_mesh, param.placements)]
            state["state"].setdefault(index, {{}})[key] = values[0]
    return state'''


def _is_gathered(state: StateDict) -> bool:
    return state.kind == "optimizer" and state.via == f"{HOME}.get_optimizer_state_dict"


def _taken(trace: Trace, taken: StateDictTaken) -> Step | None:
    state, source, call = taken.state, taken.at.source, taken.at.node
    if state.kind != "optimizer" or state.via != ".state_dict" or not isinstance(call, cst.Call):
        return None
    saved = next((s for s in trace.of(Saved) if state in s.states), None)
    if saved is None or saved.via != "torch.save" or not isinstance(call.func, cst.Attribute):
        return None
    if saved.path is not None and rank_dependent(saved.path):
        return None  # each rank reads its own again
    models = fsdp1_models_of(trace, state.of, taken)
    beside = (t for t in trace.of(StateDictTaken) if t.state in saved.states)
    model = next((m for t in beside if (m := _model(t, models, source, call))), None)
    if model is None:
        return None
    optimizer = call.func.value
    getter = name_for(source, call, f"{HOME}.get_optimizer_state_dict")
    said, more = options_for(source, call, ("full_state_dict=True", "cpu_offload=True"))
    parts = [text_of(source, model), text_of(source, optimizer), said]
    edits: tuple[Edit, ...] = (*getter.edits, *more)
    if any(rank_dependent(g.test) for g in taken.guards):
        test = test_above([taken], call, optimizer)
        if test is None:
            return None
        text = fitted(source, test, getter.text, parts, inserted=True, lead=18)
        asked = besides_rank(taken, test)
        edits = (*hoisted(source, call, text, test, asked, _NAMES), *edits)
    else:
        edits = (Replace(source, call, fitted(source, call, getter.text, parts)), *edits)
    return Step(edits, (Account(source, call, "changed", _WHY),))


def _model(
    taken: StateDictTaken, models: list[Value], source: Source, call: cst.CSTNode
) -> cst.BaseExpression | None:
    """The model of a state dict, as it is written in the function of ``call``."""
    node = taken.at.node
    if taken.state.of not in models or taken.at.source is not source:
        return None
    if not isinstance(node, cst.Call) or function_of(source, node) is not function_of(source, call):
        return None
    if taken.state.via == ".state_dict":
        return node.func.value if isinstance(node.func, cst.Attribute) else None
    return node.args[0].value if node.args else None


def _restored(trace: Trace, restored: Restored) -> Step | None:
    source, call = restored.at.source, restored.at.node
    if restored.kind != "optimizer" or restored.via != ".load_state_dict":
        return None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    if len(call.args) != 1 or not any(from_file(trace, o) for o in options(restored.state)):
        return None
    flat = {called.result for called in trace.of(Called) if called.name in FLATTENERS}
    if flat & set(options(restored.state)):
        return None  # a state of its own kind, which other runs put in other ways
    models = fsdp1_models_of(trace, restored.into, restored)
    model = next((m for r in trace.of(Restored) if (m := _into(r, models, source, call))), "")
    if not model or not isinstance(Layout.of(source).parents[call], cst.Expr):
        return None
    setter = name_for(source, call, f"{HOME}.set_optimizer_state_dict")
    said, more = options_for(source, call, ("full_state_dict=True",))
    state = text_of(source, call.args[0].value)
    parts = [model, text_of(source, call.func.value), state, said]
    edits = (
        Replace(source, call, fitted(source, call, setter.text, parts)),
        InsertBefore(source, call, _LOST),
        *setter.edits,
        *more,
    )
    return Step(edits, (Account(source, call, "changed", _WHY),))


def _into(restored: Restored, models: list[Value], source: Source, call: cst.CSTNode) -> str:
    """The model that is loaded in the function of ``call``, as it is written there."""
    node = restored.at.node
    if restored.kind != "model" or not set(options(restored.into)) & set(models):
        return ""
    if restored.at.source is not source or not isinstance(node, cst.Call):
        return ""
    if function_of(source, node) is not function_of(source, call):
        return ""
    model = node.func.value if isinstance(node.func, cst.Attribute) else None
    if restored.via != ".load_state_dict":
        model = node.args[0].value if node.args else None
    return text_of(source, model) if model is not None and is_path(source, model) else ""
