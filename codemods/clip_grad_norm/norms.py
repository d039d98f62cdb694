"""Clipping that ``torch.nn.utils.clip_grad_norm_`` cannot do for sharded gradients."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .._common.loop_models import DTENSOR, FSDP1
from .._common.shared import Build, Naming

_INFINITE = re.compile(
    r"""float\(\s*["']inf(inity)?["']\s*\)|(math|torch|np|numpy)\.inf|["']inf["']"""
)


def by_class() -> Build:
    """The method of FSDP1's wrapper for its models, the function of torch for all others."""

    def build(name: str, named: Naming) -> str:
        return f'''def {name}(model, max_norm, norm_type=2.0):
    """Clip the gradients by their norm over all ranks, of models of FSDP1 and of fully_shard."""
    if isinstance(model, {named(FSDP1)}):
        return model.clip_grad_norm_(max_norm, norm_type)
    norm = {named("torch.nn.utils.clip_grad_norm_")}(model.parameters(), max_norm, norm_type)
    return norm.full_tensor() if isinstance(norm, {named(DTENSOR)}) else norm'''

    return build


def is_infinite(text: str) -> bool:
    """Whether a norm type is written as infinity."""
    return bool(_INFINITE.fullmatch(text.strip()))


def by_largest_entry() -> Build:
    """The norm of order infinity: a shard may be empty, for which torch has no such norm.

    A rank without any gradient takes part in the reduction too.
    """
    return lambda name, named: "\n".join(_by_largest_entry(name, named))


def _by_largest_entry(name: str, named: Naming) -> Iterator[str]:
    dist = named("torch.distributed.all_reduce").rpartition(".")[0]
    yield f"def {name}(model, max_norm):"
    yield '    """Clip the gradients by their largest entry on any rank."""'
    yield from _gradients()
    yield f"    shards = [g.to_local() if isinstance(g, {named(DTENSOR)}) else g for g in grads]"
    yield "    largest = [s.abs().max() if s.numel() else s.new_zeros(()) for s in shards]"
    yield f"    largest = largest or [{named('torch.zeros')}((), device=next(model.parameters()).device)]"
    yield f"    norm = {named('torch.stack')}(largest).max()"
    yield (
        f"    {named('torch.distributed.all_reduce')}(norm, {dist}.ReduceOp.MAX)"
        if dist
        else (
            f"    {named('torch.distributed.all_reduce')}(norm, {named('torch.distributed.ReduceOp')}.MAX)"
        )
    )
    yield from _scaled(named)


def of_shards_and_whole() -> Build:
    """One norm over shards and over parameters that FSDP leaves alone, which FSDP1 counted as they are.

    Without any gradient ``get_total_norm`` gives a plain zero (torch/nn/utils/clip_grad.py).
    """
    return lambda name, named: "\n".join(_of_shards_and_whole(name, named))


def _of_shards_and_whole(name: str, named: Naming) -> Iterator[str]:
    dtensor = named(DTENSOR)
    yield f"def {name}(model, max_norm, norm_type=2.0):"
    yield '    """Clip the gradients of sharded and of ignored parameters by one norm."""'
    yield from _gradients()
    yield f"    sharded = [g for g in grads if isinstance(g, {dtensor})]"
    yield f"    whole = [g for g in grads if not isinstance(g, {dtensor})]"
    yield from _one_norm(named, "(sharded, whole) if some")


def of_meshes() -> Build:
    """One norm over gradients on several meshes: under tensor parallelism some are on two dimensions, others on one.

    ``torch.nn.utils.clip_grad_norm_`` raises for these (measured on torch 2.13, 4 ranks).
    """
    return lambda name, named: "\n".join(_of_meshes(name, named))


def _of_meshes(name: str, named: Naming) -> Iterator[str]:
    yield f"def {name}(model, max_norm, norm_type=2.0):"
    yield '    """Clip the gradients by one norm over all ranks, whatever meshes they are spread over."""'
    yield from _gradients()
    yield "    by_mesh = {}"
    yield "    for grad in grads:"
    yield '        by_mesh.setdefault(getattr(grad, "device_mesh", None), []).append(grad)'
    yield from _one_norm(named, "by_mesh.values()")


def _one_norm(named: Naming, parts: str) -> Iterator[str]:
    norm, dtensor = named("torch.nn.utils.get_total_norm"), named(DTENSOR)
    yield f"    norms = [{norm}(some, norm_type) for some in {parts}]"
    yield f"    norms = [n.full_tensor() if isinstance(n, {dtensor}) else n for n in norms]"
    yield f"    norm = {norm}(norms, norm_type)"
    yield from _scaled(named)


def _gradients() -> Iterator[str]:
    yield "    grads = [p.grad for p in model.parameters() if p.grad is not None]"


def _scaled(named: Naming) -> Iterator[str]:
    """One by one: an operation over several takes no tensors of different meshes, nor plain ones beside."""
    clip = named("torch.nn.utils.clip_grads_with_norm_")
    yield f"    {clip}(model.parameters(), max_norm, norm, foreach=False)"
    yield "    return norm"
