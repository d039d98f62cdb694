"""The value of `dcp.load` is used, and it is None.

## What it does

Finds `dcp.load(…)` whose value is assigned, passed on, tested, or asked for an entry, also where helper functions
return it.

## Why is this bad

`dcp.load` fills the dictionary that it is given and returns None. What is assigned from it is None: the first
entry looked up in it raises, or a `load_state_dict(None)` follows.

## Example

```diff
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.checkpoint.state_dict import get_model_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 state = get_model_state_dict(model)
-state = dcp.load(state, checkpoint_id="step_1")
+dcp.load(state, checkpoint_id="step_1")
```

## Forms

- Found: a value that goes through two helper functions.
- Found: a value that is chosen, or used as a test.
- Not found: a value that comes back from a thread.

## Fix safety

Safe: the call becomes a statement, and the dictionary is used where its value was.

## Known limits

`return dcp.load(…)` counts when a caller that can be resolved does something with the value. `_ = dcp.load(…)` and
`dcp.load(…) or state` are left alone.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`load`)
- `torch/distributed/checkpoint/state_dict_loader.py`
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Edit,
    Finding,
    Fix,
    InsertAfter,
    Layout,
    Loaded,
    Rewrite,
    Site,
    Trace,
    rule,
    walk,
)

from .._common.fixes import call_of, first_argument, further_arguments, path_text
from .._common.shared import DCP


@rule(code="FSDP304", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Uses of what ``dcp.load`` returns."""
    for loaded in trace.of(Loaded):
        if loaded.via not in (f"{DCP}load", f"{DCP}load_state_dict"):
            continue
        if not _is_used(loaded):
            continue
        yield Finding(
            at=loaded,
            message="`dcp.load` returns None: it fills the dictionary that it is given",
            fix=_alone(loaded),
        )


_USES = (
    *(cst.Assign, cst.AnnAssign, cst.NamedExpr, cst.Arg, cst.Attribute, cst.Subscript),
    *(cst.For, cst.CompFor, cst.If, cst.While),
)
_AROUND = (cst.Tuple, cst.Element, cst.Dict, cst.DictElement, cst.IfExp, cst.Await)


def _is_used(loaded: Loaded) -> bool:
    """Whether the value goes somewhere, in the function of the load or in the callers that it is returned to."""
    for site in (loaded.at, *reversed(loaded.calls)):
        use = _use(site)
        if not isinstance(use, cst.Return | cst.Lambda):
            return isinstance(use, _USES) and not _is_dropped(use)
    return False


def _use(site: Site) -> cst.CSTNode | None:
    """What takes the value of a call, alone or as one of several."""
    around = Layout.of(site.source).ancestors(site.node)
    return next((a for a in around if not isinstance(a, _AROUND)), None)


def _is_dropped(use: cst.CSTNode) -> bool:
    """Whether a value is given the name for what is not wanted."""
    names = [t.target for t in use.targets] if isinstance(use, cst.Assign) else []
    return bool(names) and all(isinstance(n, cst.Name) and n.value == "_" for n in names)


def _alone(loaded: Loaded) -> Fix | None:
    """The call as a statement of its own, and its dictionary wherever its value was to go."""
    call = call_of(loaded.at)
    statement = Layout.of(loaded.at.source).parents.get(loaded.at.node)
    goes_to = _goes_to(loaded.at, statement)
    first = None if call is None else first_argument(call)
    if call is None or first is None or not goes_to:
        return None
    filled = path_text(loaded.at, first)
    edits = _after(loaded.at, call, goes_to, filled) if filled else None
    if not filled and goes_to.endswith(" = "):
        edits = _before(loaded.at, call, first, goes_to.removesuffix(" = "))
    return None if edits is None else Fix("use the dictionary that is filled", edits, "safe")


def _goes_to(site: Site, statement: cst.CSTNode | None) -> str:
    """What a statement does with its value: ``state = `` or ``return ``; else nothing."""
    if isinstance(statement, cst.Return):
        return "return "
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return ""
    target = path_text(site, statement.targets[0].target)
    return f"{target} = " if target else ""


def _after(site: Site, call: cst.Call, goes_to: str, filled: str) -> tuple[Edit, ...]:
    """The call, and then what it has filled."""
    statement = Layout.of(site.source).parents[call]
    alone = Rewrite(site.source, statement, lambda new: new(call))
    if goes_to == f"{filled} = ":
        return (alone,)
    return alone, InsertAfter(site.source, statement, goes_to + filled)


def _before(
    site: Site, call: cst.Call, first: cst.BaseExpression, target: str
) -> tuple[Edit, ...] | None:
    """The dictionary gets the name first, and then the call fills it."""
    rest = further_arguments(site, call)
    used = {node.value for node in walk(call) if isinstance(node, cst.Name)}
    if not target.isidentifier() or target in used or "#" in rest:
        return None
    filling = f"{site.source.code(call.func)}({target}{rest})"
    bare = Rewrite(site.source, call, lambda new: new(first))
    return bare, InsertAfter(site.source, call, filling)
