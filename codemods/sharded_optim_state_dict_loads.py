"""`load_sharded_optimizer_state_dict` becomes a load into the state of the optimizer.

## What it does

Rewrites `load_sharded_optimizer_state_dict(model_state_dict, key, reader)`, whose result goes to
`FSDP.optim_state_dict_to_load`: the optimizer's state is made by `get_optimizer_state_dict` and filled by `dcp.load`.

## Why

The function reads the sharded tensors of FSDP1 only. `dcp.load` reads the same folder, the ones that FSDP1 has
written too.

## Example

```diff
 import torch
 import torch.distributed.checkpoint as dcp
 from torch import nn
-from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
+from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 model = FSDP(nn.Linear(8, 8))
 optimizer = torch.optim.AdamW(model.parameters())
-state = load_sharded_optimizer_state_dict(
-    model_state_dict=model.state_dict(),
-    optimizer_key="optimizer",
-    storage_reader=dcp.FileSystemReader("folder"),
-)
+state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
+dcp.load(state, storage_reader=dcp.FileSystemReader("folder"))
 flat = FSDP.optim_state_dict_to_load(model, optimizer, state["optimizer"])
 optimizer.load_state_dict(flat)
```

## What it leaves

A result that is not bound to a name, or goes to no `optim_state_dict_to_load` in the same function or in one that it
calls with the model and the optimizer.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
- `torch/distributed/checkpoint/optimizer.py` (`load_sharded_optimizer_state_dict`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    FLATTENERS,
    Account,
    Called,
    InsertAfter,
    Layout,
    Left,
    Part,
    Program,
    Replace,
    Source,
    Step,
    Trace,
    Unimport,
    Value,
    argument,
    codemod,
    name_for,
)

from ._common.loop_text import text_of
from ._common.states_flattening import Flattening, all_flattenings, as_called, name_of, statement_of
from ._common.states_text import HOME, fitted, function_of

OLD = "torch.distributed.checkpoint.load_sharded_optimizer_state_dict"
_IMPORTS = (OLD, "torch.distributed.checkpoint.optimizer.load_sharded_optimizer_state_dict")
_TODO = "fill get_optimizer_state_dict(model, optimizer) by dcp.load and set it"


@codemod(after=("checkpoint-functions", "optim-state-dicts"))
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Each load of a sharded optimizer state."""
    flattenings = [one for one in all_flattenings(program) if isinstance(one, Flattening)]
    for events in program.sites(Called):
        mine = [(trace, called) for trace, called in events if called.name == OLD]
        if mine:
            yield _step(mine, flattenings)


def _step(mine: Sequence[tuple[Trace, Called]], flattenings: list[Flattening]) -> Step | Left:
    source, call = mine[0][1].at.source, mine[0][1].at.node
    name = name_of(statement_of(source, call))
    results = {called.result for _, called in mine}
    given = next(((one, to) for one in flattenings for to in _getting(one, results)), None)
    model = optimizer = problem = ""
    if given is not None:
        found, to = given
        around = (source, function_of(source, call))
        model = as_called(found, found.model, to, around)
        optimizer = as_called(found, found.optimizer, to, around) if found.optimizer else ""
    if not name or not isinstance(call, cst.Call):
        problem = "its result is not bound to a name"
    elif not model or not optimizer:
        problem = "which optimizer its result is for cannot be seen here"
    key = argument(call, 1, "optimizer_key") if isinstance(call, cst.Call) else None
    reader = argument(call, 2, "storage_reader") if isinstance(call, cst.Call) else None
    if problem or not isinstance(call, cst.Call) or key is None or reader is None:
        return Left(source, call, problem or "it is not given a key and a reader", _TODO)
    getter = name_for(source, call, f"{HOME}.get_optimizer_state_dict")
    dcp = name_for(source, call, "torch.distributed.checkpoint", alias="dcp", module=True)
    taken = f"{getter.text}({model}, {optimizer})"
    parts = [name, f"storage_reader={_outdented(source, reader.value)}"]
    planner = argument(call, 3, "planner")
    if planner is not None:
        parts.append(f"planner={_outdented(source, planner.value)}")
    edits = (
        Replace(source, call, f"{{{text_of(source, key.value)}: {taken}}}"),
        InsertAfter(source, call, _load(source, call, f"{dcp.text}.load", parts)),
        *getter.edits,
        *dcp.edits,
        *(Unimport(source, one) for one in _IMPORTS),
    )
    why = "dcp.load fills the state of the optimizer, from folders of FSDP1 too"
    return Step(edits, (Account(source, call, "changed", why),))


def _load(source: Source, call: cst.CSTNode, head: str, parts: list[str]) -> str:
    """The call as a statement; inserted text is indented when it comes to its place."""
    one = f"{head}({', '.join(parts)})"
    if "\n" in one:
        lines = (line for part in parts for line in f"{part},".splitlines())
        unit = Layout.of(source).unit
        return "\n".join([f"{head}(", *(unit + line for line in lines), ")"])
    return one if len(one) < 80 else fitted(source, call, head, parts, inserted=True)


def _outdented(source: Source, node: cst.CSTNode) -> str:
    """The text of a node, its further lines as deep as if it began a line of no depth."""
    layout = Layout.of(source)
    start = layout.whole(node)[0]
    before = source.text[layout.line_start(start) : start]
    depth = before[: len(before) - len(before.lstrip())]
    first, *others = text_of(source, node).splitlines()
    return "\n".join([first, *(line.removeprefix(depth) for line in others)])


def _getting(found: Flattening, results: set[Value]) -> Iterator[Called]:
    """The events in which a call flattens one of these results, or an entry of one."""
    for _, called in found.events:
        for value in (*called.arguments, *called.keywords.values()):
            while isinstance(value, Part) and value not in results:
                value = value.owner
            if value in results and called.name in FLATTENERS:
                yield called
