"""An optimizer holds parameters that training never reaches.

## What it does

Finds layers and parameters of a sharded model that its class makes and that nothing in the script ever reads,
while an optimizer holds and steps them. `fsdp2lint rehearse` and `guard` tell the same of a run: parameters
that an optimizer holds and that no step gave a gradient, or that no step changed.

## Why is this bad

They get no gradient, so the optimizer skips them and keeps no state for them. They are gathered, sent and held
in memory all the same, and the checkpoint is the trap: `get_optimizer_state_dict` saves no state for them, but
on a fresh optimizer the same function makes state for *every* parameter before it loads. So the resume fails:
`dcp.load` with "Missing key in checkpoint state_dict: optimizer.state.spare.weight.step", a full dict with "Missing
optimizer state for parameter 'spare.weight' in checkpoint". The same layer in FSDP1, flattened together with
others, had state.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard


 class Net(nn.Module):
     def __init__(self):
         super().__init__()
         self.body = nn.Linear(8, 8)
-        self.spare = nn.Linear(8, 8)

     def forward(self, x):
         return self.body(x)


 dist.init_process_group("gloo")
 model = Net()
 fully_shard(model)
 optimizer = torch.optim.AdamW(model.parameters())
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

A layer that must stay, for a later stage of training, is frozen with `requires_grad_(False)`.

## Forms

- Found: a gate in each block, under a trainer.
- Found: a parameter.
- Not found: a layer whose result nothing uses.
- Not found: a layer whose output is detached.

## Known limits

Only attributes of classes of the project that are derived from `nn.Module` and nothing else, and only those whose name
is read nowhere, not even as a string: a layer that some branch of `forward` uses counts as used, and so does one
that is only initialised by hand. Silent where the class walks over its own modules or
parameters, and where a penalty is computed from all parameters. A run may be too short to reach everything (an
expert that no token was sent to, a rate that still warms up), so what a run tells is a warning.

## References

- `torch/distributed/checkpoint/state_dict.py` (`_init_optim_state`, `_split_optim_state_dict`)
- https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.step.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    Backward,
    Class,
    Event,
    External,
    Finding,
    Forward,
    Layout,
    Module,
    OptimizerBuilt,
    Site,
    Source,
    StateDictTaken,
    Stepped,
    Trace,
    Value,
    lineage,
    options,
    rule,
    unwrapped,
    walk,
)

from .._common.parts import frozen
from .._common.shared import has_parameters, shards_before, together, wrapped_before

_WALKS = frozenset(
    "children modules named_children named_modules parameters named_parameters get_submodule "
    "get_parameter state_dict _modules _parameters __dict__ getattr vars apply".split()
)
"""What a class reaches its own parts by without their names."""

_COMPUTING = re.compile(r"\.(norm|pow|square|abs|sum)\(|\*\*")
_WORD = re.compile(r"\w+")


@rule(code="FSDP260", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Layers that nothing uses, in the hands of an optimizer."""
    said: set[Value] = set()
    for built in trace.of(OptimizerBuilt) if not trace.truncated else ():
        for root in dict.fromkeys(unwrapped(p.of) for p in built.over):
            if isinstance(root, Module) and _trained(trace, built, root):
                for unused in _unused(trace, root):
                    if unused.value not in said:
                        said.add(unused.value)
                        yield _finding(trace, built, unused)


@dataclass(frozen=True)
class _Unused:
    """What nothing reads: a layer or a parameter, the class that makes it, its name there, and where."""

    value: Value
    cls: Class
    name: str
    at: Site


def _finding(trace: Trace, built: OptimizerBuilt, unused: _Unused) -> Finding:
    message = (
        f"nothing uses `{unused.name}` of `{unused.cls.name}`: it gets no gradient and its optimizer "
        "state stays empty"
    )
    because: list[tuple[Event, str]] = [(built, "the optimizer holds its parameters")]
    for taken in trace.after(built, StateDictTaken):
        if built.optimizer in options(taken.state.of) or taken.state.kind == "both":
            message += ", so that what is saved cannot be loaded into a new optimizer"
            because.append((taken, "saved without it here"))
            break
    return Finding(unused.at, message + "; remove it or freeze it", tuple(because))


def _trained(trace: Trace, built: OptimizerBuilt, root: Module) -> bool:
    """Whether a resolved model is surely sharded, and trained by an optimizer."""
    if not trace.known(root):
        return False
    sharded = any(
        s.module is root and together(s.guards, built.guards) for s in shards_before(trace, built)
    )
    forward = next(
        (f for f in trace.after(built, Forward) if trace.concerns(f, root) and f.how == "call"),
        None,
    )
    if not sharded or forward is None or wrapped_before(trace, forward, root, "ddp", "fsdp1"):
        return False
    backward = next(trace.after(forward, Backward), None)
    steps = trace.after(backward, Stepped) if backward is not None else ()
    return any(built.optimizer in options(s.optimizer) for s in steps)


def _unused(trace: Trace, root: Module) -> Iterator[_Unused]:
    """The outermost parts of a model that nothing reads."""
    todo, seen = [root], {root}
    while todo:
        owner = todo.pop()
        names = _names(trace, owner)
        for value, own in names.items():
            site = _made(trace, value)
            if site is not None and _untouched(trace, owner, value, own):
                assert isinstance(owner.cls, Class)
                yield _Unused(value, owner.cls, own[0], site)
            elif isinstance(value, Module) and value not in seen:
                seen.add(value)
                todo.append(value)


def _names(trace: Trace, owner: Module) -> dict[Value, list[str]]:
    """The parts of a module, each with all the names that it has there."""
    found: dict[Value, list[str]] = {}
    for key, held in trace.memory.entries(owner):
        for value in options(held):
            found.setdefault(unwrapped(value), []).append(str(key).lstrip("."))
    return found


def _made(trace: Trace, value: Value) -> Site | None:
    """Where a layer or a parameter that surely wants a gradient is built; None for anything else."""
    if isinstance(value, Module):
        return value.born if has_parameters(trace, value) else None
    for called in trace.calls("torch.nn.Parameter"):
        if called.result is value:
            return None if called.open or called.argument(1, "requires_grad") else called.at
    return None


def _untouched(trace: Trace, owner: Module, value: Value, names: list[str]) -> bool:
    """Whether nothing that is resolved can reach a part of a module."""
    classes = _own_classes(owner)
    if not classes or len(trace.memory.held_by.get(value, ())) != 1 or not trace.known(value):
        return False
    if any(trace.inside(f.module, value) for f in trace.of(Forward)) or frozen(trace, value):
        return False
    bodies = [c.node for c in classes]
    if any(_walks_over_itself(body) for body in bodies):
        return False
    return not any(
        source.derived(_penalty) or any(_reads(source, name, bodies) for name in names)
        for source in {*trace.sources, *(c.scope.source for c in classes)}
    )


def _own_classes(owner: Module) -> list[Class]:
    """The classes that a module is made of, when ``nn.Module`` is the only other one."""
    found: list[Class] = []
    for cls in lineage(owner.cls):
        if isinstance(cls, Class):
            found.append(cls)
        elif not (isinstance(cls, External) and cls.name == "torch.nn.Module"):
            return []
    return found


def _walks_over_itself(body: cst.ClassDef) -> bool:
    return any(isinstance(n, cst.Name) and n.value in _WALKS for n in walk(body))


def _reads(source: Source, name: str, bodies: list[cst.ClassDef]) -> bool:
    """Whether a file says a name in a string, or reads an attribute of that name."""
    said = source.derived(_said)
    return name in said.words or any(
        not _harmless(source, node, bodies) for node in said.attributes.get(name, ())
    )


@dataclass(frozen=True)
class _Said:
    """The attributes of a file by name, and all words in its strings but for docstrings."""

    attributes: dict[str, list[cst.Attribute]]
    words: frozenset[str]


def _said(source: Source) -> _Said:
    attributes: dict[str, list[cst.Attribute]] = {}
    words: set[str] = set()
    parents = Layout.of(source).parents
    for node in walk(source.tree):
        if isinstance(node, cst.Attribute):
            attributes.setdefault(node.attr.value, []).append(node)
        elif isinstance(node, cst.SimpleString | cst.FormattedStringText):
            if not isinstance(parents.get(node), cst.Expr):
                words.update(_WORD.findall(node.value))
    return _Said(attributes, frozenset(words))


def _harmless(source: Source, node: cst.Attribute, bodies: list[cst.ClassDef]) -> bool:
    """Whether an attribute is set, or is that of another class."""
    layout = Layout.of(source)
    if isinstance(layout.parents.get(node), cst.AssignTarget):
        return True
    for above in layout.ancestors(node):
        if isinstance(above, cst.ClassDef):
            own = isinstance(node.value, cst.Name) and node.value.value == "self"
            return own and above not in bodies
    return False


def _penalty(source: Source) -> bool:
    """Whether a file may compute a penalty from all parameters of a model."""
    parents = Layout.of(source).parents
    return any(
        isinstance(node, cst.For | cst.CompFor)
        and "parameters()" in source.code(node.iter)
        and _COMPUTING.search(source.code(node if isinstance(node, cst.For) else parents[node]))
        for node in walk(source.tree)
    )
