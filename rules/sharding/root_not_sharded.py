"""Parts of a model are sharded, the model itself is not.

## What it does

Finds models that are trained and of which some parts are sharded, while parameters beside those parts
belong to no `fully_shard` call.

## Why is this bad

What is outside every group stays a plain tensor: its gradients are not reduced, so each rank trains a copy of
its own and the ranks drift apart without an error. Clipping over all parameters fails with "mixed
torch.Tensor and DTensor".

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
 fully_shard(model[0])
+fully_shard(model)
 optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

## Forms

Found: the blocks of a language model of Transformers.

```python
from transformers import AutoModelForCausalLM

dist.init_process_group("gloo")
model = AutoModelForCausalLM.from_pretrained("gpt2")
for block in model.transformer.h:
    fully_shard(block)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(input_ids=torch.ones(1, 4, dtype=torch.long)).logits.sum().backward()
optimizer.step()
```

Found: a parameter of the model's own, while the logged loss is reduced.

```python
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x) * self.scale


dist.init_process_group("gloo")
model = Net()
fully_shard(model.layer)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss = model(torch.randn(4, 8)).sum()
loss.backward()
optimizer.step()
shown = loss.detach()
dist.all_reduce(shown)
```

Not found: a model of another library.

```python
import timm

dist.init_process_group("gloo")
model = timm.create_model("vit_base_patch16_224")
for block in model.blocks:
    fully_shard(block)
model(torch.randn(2, 3, 224, 224)).sum().backward()
```

## Fix safety

Safe: the root is sharded below the last of its parts, with the same arguments; it takes what no other group
has.

## Known limits

Only models whose class is resolved, or models of Transformers of which blocks are sharded (`model.model.layers`), and
that no unresolved code is given. A walk over `modules()` is followed when it tests the class of a module, or the name of
its class; whatever else it tests, it shards no others. A parameter of a module's own counts when `nn.Parameter(…)` is
assigned to an attribute, those of a layer of torch also where a class of the project inherits from it and keeps them. Silent when parameters are frozen, when gradients or parameters are (or may be) reduced by hand,
and when the whole is wrapped in DDP.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Backward,
    Collective,
    Finding,
    Fix,
    Forward,
    InsertAfter,
    Layout,
    Literal,
    Module,
    Parameters,
    Part,
    Site,
    Trace,
    Value,
    rule,
    unwrapped,
)

from .._common.fixes import call_of, first_argument, further_arguments, path_text, stands_alone
from .._common.origins import may_be_gradients
from .._common.shared import (
    Shard,
    class_name,
    has_parameters,
    is_block_of,
    is_sharded_again,
    is_transformer,
    parts_of,
    shards,
    shards_before,
    together,
    wrapped_before,
)
from .._common.walks import reached, walk_of

_PARAMETER = "torch.nn.Parameter"
_BY_HAND = ("all_reduce", "all_gather", "broadcast", "reduce")


@rule(code="FSDP206", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Models of which only parts are sharded."""
    said: set[Value] = set()
    for forward in trace.of(Forward):
        root = unwrapped(forward.module)
        if (
            any(trace.inside(root, one) for one in said)
            or forward.how != "call"
            or not isinstance(root, Module)
        ):
            continue
        parts = [
            s
            for s in shards_before(trace, forward)
            if trace.inside(s.module, root) and not is_sharded_again(s.event)
        ]
        if not parts or not _trained(trace, forward, root, parts):
            continue
        covered = _covered(trace, parts)
        left = None if covered is None else _uncovered(trace, root, covered, forward)
        if is_transformer(root) and all(is_block_of(part.module, root) for part in parts):
            left = root.part(".get_input_embeddings()")
        if left is None or _frozen(trace, left):
            continue
        said.add(root)
        yield Finding(
            at=parts[0].event,
            message=f"`{root.words()}` itself is never sharded: nothing reduces the gradients of "
            f"`{left.words()}`, and the ranks drift apart",
            because=((forward, f"`{root.words()}` runs forward here"),),
            fix=_root_call(trace, parts[0], root),
        )


def _trained(trace: Trace, forward: Forward, root: Value, parts: list[Shard]) -> bool:
    """Whether the model is surely trained, and by nothing but ``fully_shard`` kept in step.

    What wraps it where its parts are not sharded does not matter.
    """
    if not trace.known(root):
        return False
    if any(
        wrapped_before(trace, forward, root, "ddp", "fsdp1", where=part.guards) for part in parts
    ):
        return False
    if any(trace.inside(root, s.module) for s in shards(trace)):
        return False
    if any(
        c.name.rpartition(".")[2].startswith(_BY_HAND) and may_be_gradients(trace, c)
        for c in trace.of(Collective)
    ):
        return False
    return next(trace.after(forward, Backward), None) is not None


def _covered(trace: Trace, parts: list[Shard]) -> list[Value] | None:
    """The modules in groups of their own; None when a loop may have reached any."""
    found: list[Value] = []
    for shard in parts:
        walk = walk_of(trace, shard, at_most=True)
        if walk is not None:
            found += reached(trace, walk)
        elif isinstance(shard.module, Part):
            return None
        else:
            found.append(shard.module)
    return found


def _uncovered(
    trace: Trace, module: Value, covered: list[Value], forward: Forward, depth: int = 6
) -> Value | None:
    """A layer with parameters below ``module``, or a parameter of a module's own, that is in no group."""
    if depth == 0 or any(module is c for c in covered):
        return None
    own = next(_own_parameters(trace, module, forward), None)
    if own is not None:
        return own
    children = parts_of(trace, module)
    for child in children:
        found = _uncovered(trace, child, covered, forward, depth - 1)
        if found is not None:
            return found
    return module if not children and has_parameters(trace, module) else None


def _own_parameters(trace: Trace, module: Value, forward: Forward) -> Iterator[Value]:
    """The trained parameters that a module surely holds itself: ``self.scale = nn.Parameter(…)``."""
    held = [v for _, v in trace.memory.entries(module, forward.guards)]
    if not any(class_name(value) == _PARAMETER for value in held):
        return
    for made in trace.calls(_PARAMETER):
        switch = made.argument(1, "requires_grad")
        trained = switch is None or (isinstance(switch, Literal) and switch.value is True)
        if made.result in held and trained and together(made.guards, forward.guards):
            yield made.result


def _frozen(trace: Trace, layer: Value) -> bool:
    """Whether the script may have frozen a layer."""
    for called in trace.calls(".requires_grad_"):
        if called.receiver is not None and trace.inside(layer, called.receiver):
            return True
    return any(
        any(isinstance(key, str) and "requires_grad" in key for key in written)
        and _of_parameters(owner)
        for owner, written in trace.memory.fields.items()
    )


def _of_parameters(value: Value | None) -> bool:
    while value is not None:
        if isinstance(value, Parameters):
            return True
        value = value.owner if isinstance(value, Part) else None
    return False


def _root_call(trace: Trace, part: Shard, root: Value) -> Fix | None:
    """``fully_shard(root)`` below the loop or the call that shards its last part."""
    site = part.event.at
    call = call_of(site)
    argument = None if call is None else first_argument(call)
    if call is None or argument is None or stands_alone(site) is None:
        return None
    layout = Layout.of(site.source)
    loop = next(
        (a for a in layout.ancestors(site.node) if isinstance(a, cst.For | cst.FunctionDef)), None
    )
    whole = loop.iter if isinstance(loop, cst.For) else argument
    name = _owner(trace, site, whole, root, part)
    if not name:
        return None
    below = loop if isinstance(loop, cst.For) else call
    text = f"{site.source.code(call.func)}({name}{further_arguments(site, call)})"
    return Fix("shard the root too", (InsertAfter(site.source, below, text),), "safe")


def _owner(trace: Trace, site: Site, node: cst.BaseExpression, root: Value, part: Shard) -> str:
    """What the script calls ``root`` in an expression for its parts: ``model`` in ``model.blocks``."""
    while isinstance(node, cst.Call):
        if node.args and isinstance(node.func, cst.Name):
            node = node.args[0].value  # reversed(…), list(…), enumerate(…)
        elif isinstance(node.func, cst.Attribute) and node.func.attr.value in ("values", "items"):
            node = node.func.value
        elif isinstance(node.func, cst.Attribute):
            walk = walk_of(trace, part)
            known = walk is not None and walk.root is root
            return path_text(site, node.func.value) if known else ""
        else:
            return ""
    if isinstance(node, cst.Subscript):
        return path_text(site, node.value) if part.module in parts_of(trace, root) else ""
    if not isinstance(node, cst.Attribute):
        return ""
    held = trace.memory.read(root, f".{node.attr.value}", part.guards)
    inside = held is not None and trace.inside(part.module, held)
    return path_text(site, node.value) if inside else ""
