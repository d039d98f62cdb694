"""A part of a model gives its output in another dtype than the layers that follow it compute in.

## What it does

Finds `MixedPrecisionPolicy(output_dtype=…)` on a module inside a sharded root, when it differs from the
`param_dtype` of both and a layer in the root's own group (a norm, a head) computes after that module. Finds inner
modules that compute in float32 (`param_dtype=torch.float32`, for norms) without an `output_dtype`, whose output a layer
of a group in low precision takes.

## Why is this bad

`output_dtype` is meant for the root, whose output meets the loss. On an inner module its output is cast up,
and the layers of the root that follow have their weights in `param_dtype`: RuntimeError (mixed dtypes).
Inputs are cast for sharded modules only, not for layers in the middle of a group.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


 class Model(nn.Module):
     def __init__(self):
         super().__init__()
         self.block = nn.Linear(8, 8)
         self.head = nn.Linear(8, 8)

     def forward(self, x):
         return self.head(self.block(x))


 dist.init_process_group("gloo")
 model = Model()
-policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
-fully_shard(model.block, mp_policy=policy)
-fully_shard(model, mp_policy=policy)
+inner = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
+outer = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
+fully_shard(model.block, mp_policy=inner)
+fully_shard(model, mp_policy=outer)
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: one policy for all blocks, in a loop.
- Found: a helper function that makes the policy.
- Found: norms that compute in float32.
- Not found: layers of an `nn.Sequential`, whose forward is not in the project.
- Not found: a weight that is used without its layer.

## Fix safety

Safe: the script could not run. `output_dtype` leaves a policy that is made for inner modules only; where the
policy is another one's too, or made in another file, the inner call gets `dataclasses.replace(policy,
output_dtype=None)`, a second policy that keeps the rest. There is no fix where the policy is not an argument of
the call by name (`**kwargs`), or where one call shards the root and its parts.

## Known limits

Only policies and layers that can be resolved: the root's forward must be in the project and call a layer of `torch.nn`
after the inner module. Of modules that compute in float32 only layers of `torch.nn`, and classes that cast nothing and
whose forward is followed to its end; the next layer must take their output as it is, in the same call of the group
around them and without `torch.autocast`. These findings have no fix.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`MixedPrecisionPolicy`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_post_forward`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Forward, Guards, Trace, Value, options, rule, unwrapped

from ..._common.policies import around, dtypes_of, policy_of
from ..._common.shared import Shard, class_name, shards, shards_before
from .implied import implied_outputs
from .policies import for_the_root_only

_STRICT = (
    "torch.nn.Linear",
    "torch.nn.LayerNorm",
    "torch.nn.Conv1d",
    "torch.nn.Conv2d",
    "torch.nn.Conv3d",
    "torch.nn.GroupNorm",
)


@rule(code="FSDP255", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Outputs that the next layer cannot take."""
    for shard in shards(trace):
        policy = policy_of(shard)
        for root in around(trace, shard):
            differing = _differing(policy, policy_of(root), shard.guards.and_(root.guards))
            if differing is None:
                continue
            given, lower = differing
            after = _next_layer(trace, shard, root)
            if after is None:
                continue
            yield Finding(
                at=shard.event,
                message=f"`{shard.module.words()}` gives its output in `{given}`, and `{after.module.words()}`, a "
                f"layer of `{root.module.words()}` in `{lower}`, computes with it: leave `output_dtype` to the root",
                because=(
                    root.reason,
                    (after, "this layer computes after it"),
                ),
                fix=for_the_root_only(trace, shard),
            )
            break
    yield from implied_outputs(trace, _STRICT)


def _differing(inner: Value | None, outer: Value | None, here: Guards) -> tuple[str, str] | None:
    """What an inner policy gives out and in what the root computes, where these are two dtypes on one path."""
    for way, given in dtypes_of(inner, "output_dtype", here):
        for inside, own in dtypes_of(inner, "param_dtype", way) or [(way, "")]:
            for _, lower in dtypes_of(outer, "param_dtype", inside):
                if given not in (own, lower):
                    return given, lower
    return None


def _next_layer(trace: Trace, shard: Shard, root: Shard) -> Forward | None:
    """A layer in the group of a root that takes what comes out of an inner module, in one forward of the root."""
    for inner in trace.of(Forward):
        if inner.order < shard.order or not _is(inner, shard.module):
            continue
        following = _following(trace, inner)
        if following is None or not _strict(following) or not inner.calls:
            continue
        layer = unwrapped(following.module)
        near = [s for s in shards_before(trace, following) if trace.inside(layer, s.module)]
        own = near and all(trace.inside(root.module, s.module) for s in near)
        if own and any(_is(f, root.module) and _holds(f, following) for f in trace.of(Forward)):
            return following
    return None


def _following(trace: Trace, inner: Forward) -> Forward | None:
    """The next forward in the same function, when it is the very next thing that computes there."""
    for later in trace.after(inner, Forward):
        if later.moment.calls == inner.moment.calls:
            return later
        if later.moment.calls[: len(inner.moment.calls)] != inner.moment.calls:
            return None
    return None


def _is(forward: Forward, module: Value) -> bool:
    return any(unwrapped(m) is module for m in options(forward.module))


def _holds(outer: Forward, inner: Forward) -> bool:
    return any(site.node is outer.at.node for site in inner.moment.calls)


def _strict(forward: Forward) -> bool:
    """Whether a layer refuses an input of another dtype than its weight."""
    return class_name(unwrapped(forward.module)) in _STRICT
