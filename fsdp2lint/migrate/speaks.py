"""Which files hold FSDP1: those that a migration is about, by the words in them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fsdp2lint.meanings import fsdp1_symbols as facts
from fsdp2lint.meanings.fsdp1 import FSDP1
from fsdp2lint.source.prefilter import without_prose

_FSDP2 = frozenset(
    b"fully_shard FSDPModule MixedPrecisionPolicy CPUOffloadPolicy OffloadPolicy UnshardHandle"
    b" DataParallelMeshDims register_fsdp_forward_method share_comm_ctx _fully_shard".split()
)
"""What ``torch.distributed.fsdp`` has that is FSDP2's (torch/distributed/fsdp/__init__.py)."""

_COMMON = frozenset("fully_shard wrap apply named_parameters named_buffers".split())
"""Names that FSDP1 shares with everybody."""

_NAMES = {name.rpartition(".")[2] for name in facts.SYMBOLS if f"{FSDP1}." not in name} - _COMMON
_METHODS = facts.METHODS.keys() - {"no_sync", "clip_grad_norm_"}


def _one_of(names: Iterable[str]) -> bytes:
    return b"(?:" + "|".join(sorted(names)).encode() + rb")\b"


_WORDS = re.compile(
    rb"FullyShardedDataParallel|FSDPStrategy|_composable(?!\.fsdp\b)"
    rb"|\b"
    + _one_of(_NAMES | facts.UNMISTAKABLE_ATTRIBUTES | {*facts.WORDS})
    + rb"|\."
    + _one_of(_METHODS)
)
_IMPORTED = re.compile(
    rb"\btorch\.distributed\.fsdp(?:\.(\w+)|[ \t]+import[ \t]*(?:\(([^)]*)\)|([^\n]*))|())"
    rb"|\btorch\.distributed[ \t]+import[^\n]*?\b(fsdp)\b"
)
"""``torch.distributed.fsdp``, and what is taken of it."""

_ASKED = (
    (re.compile(rb"\b(?:lightning|pytorch_lightning)\b"), re.compile(rb"[\"']fsdp")),
    (re.compile(rb"\bray\b"), re.compile(rb"parallel_strategy")),
    (
        re.compile(rb"\b(?:accelerate|composer|HfArgumentParser|transformers|trl)\b"),
        re.compile(
            rb"fsdp=|fsdp_config=|[\"']fsdp_config|fsdp_plugin|fsdp_version|USE_FSDP"
            rb"|full_shard|shard_grad_op|[\"']fsdp[\"'](?:\s*:|\]\s*=[^=])"
        ),
    ),
)
"""Frameworks, and how they are asked for FSDP1."""


def holds_fsdp1(raw: bytes) -> bool:
    """Whether the code of a file holds a name of FSDP1, or asks a framework for it.

    Too often rather than too rarely: what a file means, its runs say.
    """
    if b"fsdp" not in raw and b"FSDP" not in raw and _WORDS.search(raw) is None:
        return False
    code = without_prose(raw)
    if _WORDS.search(code) is not None:
        return True
    if any(_takes_fsdp1(match) for match in _IMPORTED.finditer(code)):
        return True
    return any(who.search(code) and how.search(code) for who, how in _ASKED)


def _takes_fsdp1(match: re.Match[bytes]) -> bool:
    below, several, line, *_ = match.groups()
    taken = below or several or line
    if not taken:
        return True  # the module itself
    lines = taken.replace(b"\\", b" ").split(b"\n")
    names = b" ".join(one.partition(b"#")[0] for one in lines).split(b",")
    words = (one.split()[0] for one in names if one.split())
    return any(word not in _FSDP2 for word in words)
