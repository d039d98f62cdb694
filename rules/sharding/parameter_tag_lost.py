"""A hook or an attribute of a parameter is lost by `fully_shard`.

## What it does

Finds `register_hook` on a parameter of a sharded model, `register_post_accumulate_grad_hook` on one that is sharded
later, and reads of attributes (`p.lr_scale`, `getattr(p, "lr_scale", 1.0)`, `hasattr`) that were put on the parameters before the sharding.

## Why is this bad

`fully_shard` puts new parameters in the place of the old ones; hooks and attributes stay with the old ones. Hooks on
the gradient of a sharded parameter never fire either: gradients are reduced and stored past autograd. Nothing
raises: gradients are not clamped, no parameter has its own learning rate, no decay is left out.
`register_post_accumulate_grad_hook` after the sharding works.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 for parameter in model.parameters():
-    parameter.register_hook(lambda gradient: print(gradient.shape))
+    parameter.register_post_accumulate_grad_hook(lambda p: print(p.grad.shape))
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: a learning rate of each parameter's own.
- Found: a parameter that the constructor marks.
- Not found: what is kept beside the parameters, by the parameters that are replaced.

## Known limits

Attributes are judged where they are read, each by its own name; a tag that nothing reads is left alone.
`requires_grad` survives. There is no fix:
the two kinds of hooks take different arguments.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`_init_sharded_param`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py` (gradients are set by hand)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fsdp2lint.api import Called, Event, Finding, Literal, Module, Read, Trace, Value, Written, rule

from .._common.parts import Parameter, parameter_of
from .._common.shared import Shard, line_of, overlap, sharded, shards_after, shards_before, together
from .._common.tensors import asks_for_kind


@rule(code="FSDP213", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Hooks that never fire and tags that are gone."""
    for hooked in trace.calls(".register_hook", ".register_post_accumulate_grad_hook"):
        parameter = None if hooked.receiver is None else parameter_of(hooked.receiver)
        if parameter is None or parameter.gradient:
            continue
        yield from _never_fires(trace, hooked, parameter)
    yield from _lost(trace)


def _never_fires(trace: Trace, hooked: Called, parameter: Parameter) -> Iterator[Finding]:
    """A hook on a parameter that is replaced later, or on a gradient that autograd does not store."""
    now = sharded(trace, hooked, parameter.module)
    later = None if now is not None else _replaced(trace, hooked, parameter)
    if later is not None:
        yield Finding(
            at=hooked,
            message=f"this hook stays with a parameter that `fully_shard({later.module.words()})` on "
            f"{line_of(later.event, hooked)} replaces: it never fires",
            because=((later.event, f"`{later.module.words()}` is sharded here, later"),),
        )
    if now is None or hooked.name != ".register_hook" or "ignored_params" in now[0].event.options:
        return
    yield Finding(
        at=hooked,
        message=f"a gradient hook of a parameter that `fully_shard({now[0].module.words()})` has sharded never "
        "fires; use `register_post_accumulate_grad_hook`",
        because=(now[0].reason,),
    )


def _replaced(trace: Trace, hooked: Called, parameter: Parameter) -> Shard | None:
    """The sharding after ``hooked`` that puts other parameters in place of those of the module."""
    for shard in shards_after(trace, hooked):
        if "ignored_params" not in shard.event.options and together(shard.guards, hooked.guards):
            if overlap(trace, parameter.module, shard.module) is not None:
                return shard
    return None


def _lost(trace: Trace) -> Iterator[Finding]:
    """Questions for attributes that only the replaced parameters have."""
    tags = [] if _copied(trace) else list(_tags(trace))
    for asked, name, parameter in _questions(trace) if tags else ():
        same = [one for tag, one in tags if tag == name and _overlap(trace, one, parameter)]
        for shard in shards_before(trace, asked):
            if not same or not together(shard.guards, asked.guards):
                continue
            later = parameter.taken is None or parameter.taken > shard.order
            if later and all(one.taken is not None and one.taken < shard.order for one in same):
                if overlap(trace, parameter.module, shard.module) is not None:
                    yield Finding(
                        at=asked,
                        message=f"`{name}` was put on parameters that `fully_shard({shard.module.words()})` on "
                        f"{line_of(shard.event, asked)} has replaced: the new ones have no such attribute",
                        because=(shard.reason,),
                    )
                    break


def _copied(trace: Trace) -> bool:
    """Whether the script puts attributes on parameters under names that are not constants."""
    return any(
        parameter_of(called.arguments[0]) is not None
        and not isinstance(called.argument(1, "name"), Literal)
        for called in trace.calls("builtins.setattr")
        if called.arguments
    )


def _questions(trace: Trace) -> Iterator[tuple[Event, str, Parameter]]:
    """Where an attribute of a parameter is read, by its name or by ``getattr`` and ``hasattr``."""
    for called in trace.calls("builtins.getattr", "builtins.hasattr"):
        name = called.argument(1, "name")
        parameter = parameter_of(called.arguments[0]) if called.arguments else None
        if parameter is not None and isinstance(name, Literal):
            yield called, str(name.value), parameter
    for read in trace.of(Read):
        parameter = parameter_of(read.owner)
        if parameter is not None and not asks_for_kind(read):
            yield read, read.name, parameter


def _tags(trace: Trace) -> Iterator[tuple[str, Parameter]]:
    """The attributes that the script puts on parameters, each with a parameter that has it."""
    for written in trace.of(Written):
        parameter = parameter_of(written.owner) or _own(trace, written.owner)
        if parameter is not None and written.name not in ("data", "grad", "requires_grad"):
            taken = written.order if parameter.taken is None else parameter.taken
            yield written.name, replace(parameter, taken=taken)


def _own(trace: Trace, made: Value) -> Parameter | None:
    """What a module holds as a parameter of its own: ``self.scale = nn.Parameter(…)``."""
    owners = [one for one in trace.memory.held_by.get(made, ()) if isinstance(one, Module)]
    return Parameter(owners[0], False, None) if len(owners) == 1 else None


def _overlap(trace: Trace, one: Parameter, other: Parameter) -> bool:
    value: Value | None = overlap(trace, one.module, other.module)
    return value is not None
