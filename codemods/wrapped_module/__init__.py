"""The module inside the wrapper becomes the module itself.

## What it does

`model.module` and `model._fsdp_wrapped_module` of an FSDP1 model become `model`. Code that unwraps (`model.module
if isinstance(model, (FSDP, DDP)) else model`) keeps what it does for DDP; what it did for FSDP1 alone goes.

## Why

`fully_shard` changes the module in place: there is nothing inside it, and no such attribute.

## Example

```diff
 import torch
 from torch import nn
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 model = FSDP(nn.Linear(8, 8))
-print(model.module.in_features)
+print(model.in_features)
```

## What it leaves

Code that puts another module into the wrapper, or deletes the one inside.

## References

- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`module`)
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from fsdp2lint.api import (
    BOTH_CLASSES,
    Account,
    Edit,
    Layout,
    Left,
    Program,
    Read,
    Remove,
    Replace,
    Source,
    Step,
    codemod,
    inventory,
    name_for,
    options,
    walk,
    wrapper,
)

from .._common.both_classes import STAYS, is_for_fsdp1, is_library
from .._common.loop_classes import has_test, others_behind_test, without_fsdp1
from .._common.loop_models import DDP, FSDP1
from .._common.loop_text import is_path, text_of
from .._common.origins import meaning
from .unwrapping import without_branch

INNER = ("module", "_fsdp_wrapped_module")
_CONTEXTS = (f"{FSDP1}.summon_full_params", f"{FSDP1}.state_dict_type")
"""What is done only with a model of FSDP1."""
_HOLDING = re.compile(r"\b(?:Distributed)?DataParallel\b|\bDDP\b|\bself\.module\b")
"""What else has a ``module`` inside: other wrappers of torch, and classes of the project."""
WHY = "fully_shard changes the module itself: nothing is inside it"


@codemod(after=("model-class-tests",))
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Attributes that name what the wrapper holds."""
    known = {one.node for one in inventory(program)}
    library = is_library(program)
    for (source, node), ddp in _inner(program).items():
        either = library and node.attr.value == "module"
        step = (_of_either if either else _unwrapped)(program, source, node, ddp)
        if isinstance(step, Step) and not ddp and node.attr not in known:
            # only a test beside it says whose it is
            step = replace(step, accounts=tuple(replace(a, own=True) for a in step.accounts))
        yield step


def _of_either(program: Program, source: Source, node: cst.Attribute, ddp: bool) -> Step | Left:
    """The inside of the wrapper for models of FSDP1, the model itself for those of FSDP2."""
    model = text_of(source, node.value)
    if is_for_fsdp1(program, source, node) or has_test(source, node, model, "module"):
        return Step((), (Account(source, node, "preserved", STAYS),))
    text = f'getattr({model}, "module", {model})'
    return Step((Replace(source, node, text),), (Account(source, node, "changed", BOTH_CLASSES),))


def _inner(program: Program) -> dict[tuple[Source, cst.Attribute], bool]:
    """Where the inside of an FSDP1 module is named, and whether a DDP module may come there too."""
    found: dict[tuple[Source, cst.Attribute], bool] = {}
    may_hold = any(_HOLDING.search(source.text) for source in program.sources)
    for events in program.sites(Read):
        site, name = events[0][1].at, events[0][1].name
        if name in INNER and isinstance(site.node, cst.Attribute):
            owners = {wrapper(one) for _, read in events for one in options(read.owner)}
            if "fsdp1" in owners:
                others = others_behind_test(program, site.source, site.node)
                both = "ddp" in owners or (bool(others) and may_hold)
                found[site.source, site.node] = both and name == "module"
    for source in program.sources:
        for node in walk(source.tree):
            if not isinstance(node, cst.Attribute) or (source, node) in found:
                continue
            if node.attr.value == "_fsdp_wrapped_module" or _is_unit(source, node):
                found[source, node] = False
            elif node.attr.value == "module" and _is_in_context(program, source, node):
                found[source, node] = "ddp" in program.wrappers
            elif node.attr.value == "module":
                others = others_behind_test(program, source, node)
                if others is not None:
                    found[source, node] = others and may_hold
    return found


def _is_unit(source: Source, node: cst.Attribute) -> bool:
    """Whether this attribute belongs to what a loop takes out of ``fsdp_modules``."""
    if node.attr.value != "module" or not isinstance(node.value, cst.Name):
        return False
    inner: cst.CSTNode = node
    for around in Layout.of(source).ancestors(node):
        loop = around.for_in if isinstance(around, cst.BaseComp) else around
        if isinstance(loop, cst.For | cst.CompFor) and inner is not loop.iter:
            func = loop.iter.func if isinstance(loop.iter, cst.Call) else None
            if isinstance(loop.target, cst.Name) and loop.target.value == node.value.value:
                return isinstance(func, cst.Attribute) and func.attr.value == "fsdp_modules"
        if isinstance(around, cst.FunctionDef):
            return False
        inner = around
    return False


def _is_state(source: Source, node: cst.Attribute) -> bool:
    """Whether this attribute belongs to FSDP1's private state, which is no module: ``_FSDPState``."""
    said = text_of(source, node.value)
    if said.endswith("._fsdp_state") or not isinstance(node.value, cst.Name):
        return said.endswith("._fsdp_state")
    for around in Layout.of(source).ancestors(node):
        if isinstance(around, cst.For) and text_of(source, around.target) == said:
            return text_of(source, around.iter).endswith("._all_fsdp_states")
        if isinstance(around, cst.FunctionDef):
            params = (*around.params.posonly_params, *around.params.params)
            asked = [p.annotation for p in params if p.name.value == said and p.annotation]
            if any(text_of(source, a.annotation).endswith("_FSDPState") for a in asked):
                return True
            return any(_shows_state(source, one, said) for one in walk(around.body))
    return False


def _shows_state(source: Source, node: cst.CSTNode, name: str) -> bool:
    """Whether a name is tested for ``_FSDPState`` here, or bound to what ``_get_module_state`` gives."""
    if isinstance(node, cst.Assign):
        value = node.value
        called = isinstance(value, cst.Call) and text_of(source, value.func).rpartition(".")[2]
        bound = any(text_of(source, target.target) == name for target in node.targets)
        return bound and called in ("_get_module_state", "_get_module_fsdp_state")
    if not isinstance(node, cst.Call) or len(node.args) != 2:
        return False
    tested, kind = (text_of(source, arg.value) for arg in node.args)
    return text_of(source, node.func) == "isinstance" and tested == name and "_FSDPState" in kind


def _is_in_context(program: Program, source: Source, node: cst.Attribute) -> bool:
    """Whether it is asked inside a context of FSDP1's that is given the same model."""
    model = text_of(source, node.value)
    return any(
        isinstance(item.item, cst.Call)
        and bool(item.item.args)
        and text_of(source, item.item.args[0].value) == model
        and meaning(program, source, item.item.func) in _CONTEXTS
        for around in Layout.of(source).ancestors(node)
        if isinstance(around, cst.With)
        for item in around.items
    )


def _unwrapped(program: Program, source: Source, node: cst.Attribute, ddp: bool) -> Step | Left:
    """The module in place of what is inside it."""
    layout = Layout.of(source)
    parent = layout.parents[node]
    model = text_of(source, node.value)
    if _is_state(source, node):
        why = "this is the module of FSDP1's own state, which FSDP2 does not have"
        return Left(source, node, why, "FSDP2 has no `_FSDPState`: use the module itself")
    if isinstance(parent, cst.AssignTarget | cst.AugAssign | cst.Del) and node is parent.target:
        why = "the script changes what the wrapper holds"
        return Left(source, node, why, "change the module itself: FSDP2 has no wrapper around it")
    if has_test(source, node, model, "module"):
        why = "a module of FSDP2 has no `module`: the script takes it as it is"
        return Step((), (Account(source, node, "preserved", why),))
    branch, is_one = without_branch(program, source, node, WHY)
    if is_one:
        todo = "remove the branch: nothing is inside an FSDP2 module, and what it asks stays so"
        return branch or Left(source, node, "the branch to remove contains comments", todo)
    account = Account(source, node, "changed", WHY)
    if isinstance(parent, cst.IfExp) and text_of(source, parent.orelse) == model:
        return Step(_choice(program, source, parent, model, ddp), (account,))
    statement = _unwrapping(source, node, model)
    if statement is not None and (edits := _statement(program, source, statement, ddp)):
        return Step(edits, (account,))
    if not ddp:
        is_kept = _is_given_to(source, parent, model)
        return Step(
            (Remove(source, parent) if is_kept else Replace(source, node, model),), (account,)
        )
    if not is_path(model):
        return Step((Replace(source, node, f'getattr({model}, "module", {model})'),), (account,))
    ddp_class = name_for(source, node, DDP)
    text = f"{text_of(source, node)} if isinstance({model}, {ddp_class.text}) else {model}"
    return Step((Replace(source, node, text), *ddp_class.edits), (account,))


def _choice(
    program: Program, source: Source, choice: cst.IfExp, model: str, ddp: bool
) -> tuple[Edit, ...]:
    """What ``model.module if … else model`` becomes."""
    edits = without_fsdp1(program, source, choice.test)
    if edits:
        return edits
    if edits is None or not ddp:
        return (Replace(source, choice, model),)
    ddp_class = name_for(source, choice, DDP)
    test = Replace(source, choice.test, f"isinstance({model}, {ddp_class.text})")
    return (test, *ddp_class.edits)


def _is_given_to(source: Source, statement: cst.CSTNode, model: str) -> bool:
    """Whether a statement does nothing but give what is inside the model the model's name."""
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return False
    return text_of(source, statement.targets[0].target) == model


def _is_given_above(source: Source, around: cst.CSTNode, small: cst.Assign, model: str) -> bool:
    """Whether the statement above gives the same name the model itself: ``inner = model``."""
    body = list(getattr(Layout.of(source).parents[around], "body", ()))
    at = body.index(around) if around in body else 0
    if at == 0 or len(small.targets) != 1:
        return False
    above = source.code(body[at - 1]).strip()
    return above == f"{text_of(source, small.targets[0].target)} = {model}"


def _unwrapping(source: Source, node: cst.Attribute, model: str) -> cst.If | cst.While | None:
    """The statement that does nothing but unwrap: ``if …: model = model.module``, or return it."""
    layout = Layout.of(source)
    small = layout.parents[node]
    line = layout.parents[small]
    block = layout.parents[line]
    around = layout.parents.get(block)
    if not isinstance(around, cst.If | cst.While) or around.body is not block:
        return None
    if len(getattr(block, "body", ())) != 1:
        return None
    if isinstance(small, cst.Assign):
        given = _is_given_to(source, small, model) or _is_given_above(source, around, small, model)
        return around if given else None
    if (
        not isinstance(small, cst.Return)
        or not isinstance(around, cst.If)
        or _is_chained(source, around)
    ):
        return None
    body = list(getattr(layout.parents[around], "body", ()))
    below = body[body.index(around) + 1 :]
    return around if below and source.code(below[0]) == f"return {model}" else None


def _statement(
    program: Program, source: Source, statement: cst.If | cst.While, ddp: bool
) -> tuple[Edit, ...]:
    """What a statement that unwraps becomes; nothing where it asks something else."""
    edits = without_fsdp1(program, source, statement.test)
    if _is_chained(source, statement):
        return edits or ()
    if edits is None or (edits == () and not ddp and isinstance(statement, cst.If)):
        return (Remove(source, statement),)
    return edits


def _is_chained(source: Source, statement: cst.If | cst.While) -> bool:
    """Whether it has an ``else``, or is one of several branches."""
    above = Layout.of(source).parents[statement]
    return statement.orelse is not None or isinstance(above, cst.If)
