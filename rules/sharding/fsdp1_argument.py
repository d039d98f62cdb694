"""An argument of FSDP1's wrapper is passed to `fully_shard`.

## What it does

Finds FSDP1's keywords (`auto_wrap_policy`, `mixed_precision`, `sharding_strategy`, `use_orig_params`, …) and
FSDP1's objects (`MixedPrecision`, `CPUOffload`, a `ShardingStrategy` as `reshard_after_forward`) in calls of `fully_shard`, and the keywords of those objects in calls of
`MixedPrecisionPolicy` and `CPUOffloadPolicy`.

## Why is this bad

`fully_shard` and its policies have none of these keywords and raise TypeError; a `ShardingStrategy` raises ValueError.
The other objects are worse: `MixedPrecision` is taken until the first forward fails with it, and `CPUOffload` is taken for
a policy that does not offload, silently.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
-fully_shard(model, use_orig_params=True, limit_all_gathers=True)
+fully_shard(model)
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: a dictionary of keywords that is filled entry by entry.
- Found: a precision of FSDP1 that a helper function makes.
- Found: a strategy in the place of `reshard_after_forward`.
- Not found: keywords that are read from a file.

## Fix safety

Unsafe: keywords without a counterpart (`use_orig_params`, `limit_all_gathers`, `forward_prefetch`,
`backward_prefetch`) are left out and `device_mesh` becomes `mesh`; the memory and the overlap may differ from
FSDP1's. There is no fix when one of the other keywords is passed, whose meaning has to be spelled anew.

## Known limits

Keywords in a dict of unknown content are not seen. `torch.distributed._composable.fully_shard` of torch 2.5
and earlier is another function and is not judged.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`FullyShardedDataParallel.__init__`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (the policy is tested by `isinstance`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Arguments, External, Finding, Fix, Sharded, Trace, Value, rule

from .._common.fixes import call_of
from .._common.parts import sure
from .._common.shared import class_name

_INSTEAD = {
    "auto_wrap_policy": "shard the blocks one by one, children first",
    "backward_prefetch": "leave it out",
    "cpu_offload": "use `offload_policy=CPUOffloadPolicy()`",
    "device_id": "call `torch.cuda.set_device` before",
    "device_mesh": "use `mesh`",
    "forward_prefetch": "leave it out",
    "ignored_modules": "use `ignored_params`, a set of parameters",
    "ignored_states": "use `ignored_params`, a set of parameters",
    "limit_all_gathers": "leave it out",
    "mixed_precision": "use `mp_policy=MixedPrecisionPolicy(…)`",
    "param_init_fn": "call `to_empty` and initialise after the sharding",
    "policy": "shard the blocks one by one, children first",
    "process_group": "use `mesh`",
    "sharding_strategy": "use `reshard_after_forward`",
    "strategy": "use `reshard_after_forward`",
    "sync_module_states": "load rank 0's state with `set_model_state_dict` and `broadcast_from_rank0`",
    "use_orig_params": "leave it out",
}
"""FSDP1's keywords and what stands for them."""

_DROPPED = ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params")

_FSDP = "torch.distributed.fsdp."
_OBJECTS = {
    ("mp_policy", f"{_FSDP}MixedPrecision"): "the first forward fails; use `MixedPrecisionPolicy`",
    ("offload_policy", f"{_FSDP}CPUOffload"): "nothing is offloaded; use `CPUOffloadPolicy`",
}
_POLICIES = {
    (
        f"{_FSDP}MixedPrecisionPolicy",
        "buffer_dtype",
    ): "buffers keep their dtype; cast them yourself",
    (f"{_FSDP}MixedPrecisionPolicy", "keep_low_precision_grads"): "leave it out",
    (f"{_FSDP}MixedPrecisionPolicy", "cast_root_forward_inputs"): "use `cast_forward_inputs`",
    (f"{_FSDP}CPUOffloadPolicy", "offload_params"): "leave it out: the policy offloads",
}
"""The keywords of FSDP1's objects that those of FSDP2 lack (torch/distributed/fsdp/_fully_shard/_fsdp_api.py)."""


@rule(code="FSDP231", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """FSDP1's keywords and objects in calls of ``fully_shard``."""
    for sharded in trace.of(Sharded):
        keywords = [k for k in sharded.options if k in _INSTEAD]
        for keyword in keywords[:1]:
            yield Finding(
                at=sharded,
                message=f"`fully_shard` has no `{keyword}`, which is FSDP1's: the call raises TypeError; "
                f"{_INSTEAD[keyword]}",
                fix=_without(sharded, keywords),
            )
        for (keyword, cls), happens in _OBJECTS.items():
            if not keywords and _is_a(sharded, sharded.options.get(keyword), cls):
                name = cls.removeprefix(_FSDP)
                yield Finding(
                    at=sharded, message=f"`{keyword}` is a `{name}`, which is FSDP1's: {happens}"
                )
        if any(
            _is_strategy(v) for v in sure(sharded, sharded.options.get("reshard_after_forward"))
        ):
            yield Finding(
                at=sharded,
                message="`reshard_after_forward` is a `ShardingStrategy`, which is FSDP1's: the call raises ValueError; "
                "use True for FULL_SHARD and False for SHARD_GRAD_OP",
            )
    for (cls, keyword), instead in _POLICIES.items():
        for called in trace.calls(cls):
            if keyword in called.keywords:
                yield Finding(
                    at=called,
                    message=f"`{cls.removeprefix(_FSDP)}` has no `{keyword}`, which is FSDP1's: the call raises "
                    f"TypeError; {instead}",
                )


def _is_a(sharded: Sharded, value: Value | None, cls: str) -> bool:
    """Whether an option is an object of this class on a path that leads to the call."""
    return any(class_name(one) == cls for one in sure(sharded, value))


def _is_strategy(value: Value) -> bool:
    return isinstance(value, External) and value.name.startswith(f"{_FSDP}ShardingStrategy.")


def _without(sharded: Sharded, keywords: list[str]) -> Fix | None:
    """The call without what has no counterpart, when all of it is written in the call itself."""
    call = call_of(sharded.at)
    if call is None or not all(k in _DROPPED or k == "device_mesh" for k in keywords):
        return None
    arguments = Arguments(sharded.at.source, call)
    if not all(arguments.has(k) for k in keywords):
        return None
    for keyword in keywords:
        arguments = (
            arguments.rename(keyword, "mesh")
            if keyword == "device_mesh"
            else arguments.remove(keyword)
        )
    return Fix(
        "leave out what `fully_shard` does not need",
        (arguments,),
        "unsafe",
        "memory and overlap may differ from FSDP1's",
    )
