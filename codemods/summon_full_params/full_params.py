"""The functions that take the place of ``summon_full_params`` in a script."""

from __future__ import annotations

from collections.abc import Iterator, Set

from .._common.loop_models import DTENSOR, FSDP_MODULE
from .._common.shared import Build, Naming

_DISTRIBUTE = "torch.distributed.tensor.distribute_tensor"


def full_params(features: Set[str]) -> Build:
    """Whole parameters in place of the shards; ``features`` are the keywords that the script needs."""
    return lambda name, named: "\n".join(_full_params(name, named, features))


def _full_params(name: str, named: Naming, features: Set[str]) -> Iterator[str]:
    parameter = named("torch.nn.Parameter")
    dtensor = named(DTENSOR)
    keywords = "".join(f", {feature}=False" for feature in sorted(features))
    yield f"@{named('contextlib.contextmanager')}"
    yield f"def {name}(model{keywords}):"
    yield '    """Put whole parameters in place of the shards inside the block."""'
    yield "    for module in model.modules():"
    yield f"        if isinstance(module, {named(FSDP_MODULE)}):"
    yield "            module.reshard()  # a forward without a backward leaves the root gathered"
    yield "    sharded = ["
    yield "        (module, name, p)"
    yield "        for module in model.modules()"
    yield "        for name, p in module.named_parameters(recurse=False)"
    yield f"        if isinstance(p, {dtensor})"
    yield "    ]"
    yield "    full = {}"
    yield "    for _, _, p in sharded:"
    yield "        whole = p.full_tensor()"
    if "rank0_only" in features:
        yield f"        if rank0_only and {named('torch.distributed.get_rank')}() != 0:"
        yield "            continue"
    if "offload_to_cpu" in features:
        yield "        if offload_to_cpu:"
        yield "            whole = whole.cpu()"
    yield f"        full[p] = {parameter}(whole, p.requires_grad)"
    if "with_grads" in features:
        yield "        if with_grads and p.grad is not None:"
        yield "            full[p].grad = p.grad.full_tensor()"
    yield "    for module, name, p in sharded:"
    yield (
        "        setattr(module, name, full.get(p, p))"
        if "rank0_only" in features
        else ("        setattr(module, name, full[p])")
    )
    yield "    try:"
    yield "        yield"
    yield "    finally:"
    yield "        for module, name, p in sharded:"
    yield "            setattr(module, name, p)"
    if "writeback" in features:
        yield "            if writeback:"
        yield f"                with {named('torch.no_grad')}():"
        yield "                    whole = full[p].to(p.device)"
        yield f"                    p.copy_({named(_DISTRIBUTE)}(whole, p.device_mesh, p.placements))"


def unsharded(recurse: bool) -> Build:
    """The parameters of a model gathered; without ``recurse`` only those of no sharded submodule."""
    return lambda name, named: "\n".join(_unsharded(name, named, recurse))


def _unsharded(name: str, named: Naming, recurse: bool) -> Iterator[str]:
    sharded = named(FSDP_MODULE)
    yield f"@{named('contextlib.contextmanager')}"
    yield f"def {name}(model):"
    if recurse:
        yield '    """Gather the parameters of the model for a block that runs it."""'
        yield f"    modules = [m for m in model.modules() if isinstance(m, {sharded})]"
    else:
        yield '    """Gather the parameters of the model that belong to none of its sharded submodules."""'
        yield f"    modules = [model] if isinstance(model, {sharded}) else []"
    yield "    for module in modules:"
    yield "        module.unshard()"
    yield "    try:"
    yield "        yield"
    yield "    finally:"
    yield "        for module in modules:"
    yield "            module.reshard()"
