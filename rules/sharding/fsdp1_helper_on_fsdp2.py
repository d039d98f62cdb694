"""A helper of FSDP1 is asked about a model that `fully_shard` has sharded.

## What it does

Finds `FSDP.summon_full_params`, `FSDP.fsdp_modules`, `FSDP.state_dict_type` and their kin, and
`isinstance(model, FSDP)`, for a model that `fully_shard` was applied to.

## Why is this bad

`fully_shard` makes no `FullyShardedDataParallel` of a model, so these helpers find nothing in it:
`summon_full_params` gathers nothing and leaves shards, `fsdp_modules` returns an empty list, `isinstance` is
false and its branch is dead, `state_dict_type` raises `KeyError: None` when it is left.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
-from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-with FSDP.summon_full_params(model):
-    weight = model.weight.detach().clone()
+weight = model.weight.full_tensor().detach()
```

## Forms

- Found: a test of each module in the model.
- Found: a method of a trainer that gathers.
- Not found: a test of the class by its name.
- Not found: a test of the class by `is`.

## Fix safety

Unsafe for `isinstance(model, FSDP)`, which becomes a test for `FSDPModule`: its branch was dead so far, look at
what it does. The others have no fix: what comes instead depends on what the tensors are for.

## Known limits

Attributes of FSDP1's wrapper (`model.module`, `_fsdp_wrapped_module`) are judged only on a model whose class is in
sight; `isinstance` and `hasattr` only in a script that never asks whether the model is FSDP2's, and not where
the same test is made for a model that FSDP1 has wrapped.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/fully_sharded_data_parallel.py`
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Event,
    External,
    Finding,
    Fix,
    Layout,
    Module,
    Part,
    Read,
    Replace,
    Trace,
    Unknown,
    Value,
    name_for,
    options,
    root,
    rule,
    tests_in,
    unwrapped,
    walk,
)

from .._common.fixes import call_of
from .._common.shared import serves_both, sharded, wrapped_before, wrapped_by

_FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
_HAPPENS = {
    "summon_full_params": "it gathers nothing and the parameters stay shards",
    "fsdp_modules": "it returns an empty list",
    "state_dict_type": "it raises `KeyError: None` when it is left",
    "set_state_dict_type": "it changes nothing",
    "get_state_dict_type": "it finds no FSDP1 module",
    "optim_state_dict": "it finds no FSDP1 module",
    "optim_state_dict_to_load": "it finds no FSDP1 module",
    "full_optim_state_dict": "it finds no FSDP1 module",
    "sharded_optim_state_dict": "it finds no FSDP1 module",
}
_HELPERS = tuple(f"{_FSDP1}.{name}" for name in _HAPPENS)
_INNER = ("module", "_fsdp_wrapped_module")
_OTHERS = ("torch.nn.parallel.DistributedDataParallel", "torch.nn.DataParallel")
_WRAPPERS = (_FSDP1, *_OTHERS)


@rule(code="FSDP229", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """FSDP1's helpers on models of FSDP2."""
    for called in trace.calls(*_HELPERS, "builtins.isinstance"):
        yield from _found(trace, called, *_asked(called))
    for read in trace.of(Read):
        if read.name in _INNER and isinstance(read.owner, Module) and not _in_a_test(read):
            yield from _found(trace, read, read.owner, f".{read.name}", "it has no such attribute")


def _found(
    trace: Trace, event: Called | Read, asked: Value | None, said: str, happens: str
) -> Iterator[Finding]:
    found = sharded(trace, event, asked)
    if found is None or wrapped_before(trace, event, found[1], "ddp", "fsdp1"):
        return
    shard, module = found
    if isinstance(module, Part) and module.name in _INNER:
        return  # what a wrapper held, which this run cannot have been
    is_test = isinstance(event, Called) and event.name == "builtins.isinstance"
    if is_test and (serves_both(trace, module) or _asked_of_fsdp1(trace, event)):
        return
    if _of_another_kind(trace, event, module) or _is_unanswered(trace, event):
        return
    if isinstance(event, Called) and _is_tested(trace, event):
        return
    yield Finding(
        at=event,
        message=f"`{said}` is FSDP1's and `{module.words()}` is sharded by `fully_shard`: {happens}",
        because=(shard.reason,),
        fix=_module_test(event) if isinstance(event, Called) else None,
    )


def _of_another_kind(trace: Trace, event: Event, module: Value) -> bool:
    """Whether the script has asked for another kind of wrapper: this is one way of several."""
    return _asks_in_the_function(trace, event, module) or any(
        isinstance(test, Part)
        and test.operation == "isinstance"
        and any(unwrapped(one) is module for one in options(test.owner))
        and any(isinstance(c, External) and c.name in _WRAPPERS for c in test.operands)
        for clause in event.guards.clauses
        for g in clause
        for test in tests_in(g.test)
    )


def _asks_in_the_function(trace: Trace, event: Event, module: Value) -> bool:
    """Whether the same function asks, with a known answer, if the module is in another wrapper."""
    inside = event.moment.inside[-1:]
    return any(
        len(called.arguments) == 2
        and called.moment.inside[-1:] == inside
        and any(unwrapped(one) is module for one in options(called.arguments[0]))
        and any(isinstance(c, External) and c.name in _OTHERS for c in options(called.arguments[1]))
        for called in trace.calls("builtins.isinstance")
        if called.at.source is event.at.source
    )


def _is_unanswered(trace: Trace, event: Event) -> bool:
    """Whether the run ended at its limit, and what a function that it did not enter gave decides about an event.

    The function may have asked for the kind of wrapper: ``if fsdp_version(model) == 1:``.
    """
    if trace.cut is None:
        return False
    tests = (t for clause in event.guards.clauses for g in clause for t in tests_in(g.test))
    return any(isinstance(one, Unknown) and one.born is not None for one in map(root, tests))


def _asked_of_fsdp1(trace: Trace, event: Called | Read) -> bool:
    """Whether the same test is made of a model that FSDP1 has wrapped: its branch is not dead."""
    return any(
        called.at.node is event.at.node and any(wrapped_by(v, "fsdp1") for v in options(first))
        for called in trace.calls("builtins.isinstance")
        for first in called.arguments[:1]
    )


def _in_a_test(read: Read) -> bool:
    """Whether an attribute is read where a test has asked what its owner is, or whether it has it, in a loop too."""
    source, node = read.at.source, read.at.node
    around = (*Layout.of(source).ancestors(node), *walk(node))
    tests = " ".join(source.code(one.test) for one in around if isinstance(one, cst.If | cst.IfExp))
    return any(
        f"{asked}({source.code(one.value)}," in tests
        for one in walk(node)
        if isinstance(one, cst.Attribute) and one.attr.value == read.name
        for asked in ("isinstance", "hasattr")
    )


def _is_tested(trace: Trace, called: Called) -> bool:
    """Whether the script asks if `fsdp_modules` has found any."""
    if not called.name.endswith(".fsdp_modules"):
        return False
    return any(
        g.test is called.result or (isinstance(g.test, Part) and g.test.owner is called.result)
        for later in trace.after(called, Called)
        for clause in later.guards.clauses
        for g in clause
    )


def _asked(called: Called) -> tuple[Value | None, str, str]:
    """The model that a helper is asked about, what the helper is, and what happens."""
    first = called.arguments[0] if called.arguments else None
    owner, _, name = called.name.rpartition(".")
    if owner == _FSDP1 and name in _HAPPENS:
        asked = first if first is not None else called.keywords.get("module")
        return asked or called.keywords.get("model"), f"FSDP.{name}", _HAPPENS[name]
    if called.name == "builtins.isinstance" and len(called.arguments) == 2:
        if _is_fsdp1(called.arguments[1]):
            return first, "isinstance(…, FSDP)", "this is always false and its branch is dead"
    return None, "", ""


def _is_fsdp1(cls: Value) -> bool:
    return isinstance(cls, External) and cls.name == _FSDP1


def _module_test(called: Called) -> Fix | None:
    """``isinstance(model, FSDPModule)`` in place of ``isinstance(model, FSDP)``."""
    call = call_of(called.at)
    if called.name != "builtins.isinstance" or call is None or len(call.args) != 2:
        return None
    module = name_for(called.at.source, call, "torch.distributed.fsdp.FSDPModule")
    edit = Replace(called.at.source, call.args[1].value, module.text)
    return Fix(
        "test for `FSDPModule`", (edit, *module.edits), "unsafe", "the branch was dead so far"
    )
