"""Packages of CUDA kernels, computed by PyTorch's own operations: FlashAttention, xFormers, Apex, 8-bit optimizers.

What they compute is the same up to rounding; where a name has no counterpart here, it does nothing.

Sources: ``flash_attn/flash_attn_interface.py``, ``flash_attn/bert_padding.py`` and ``flash_attn/layers/rotary.py``
(flash-attn 2.8), ``xformers/ops/fmha/__init__.py`` (0.0.32), ``apex/normalization`` and ``apex/optimizers``.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fsdp2lint.rehearse.fakes.nothing import Nothing

Tensor = torch.Tensor


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    **_: object,
) -> Tensor:
    """Attention of queries (batch, length, heads, width) over keys and values, which may have fewer heads."""
    square = causal and q.shape[1] == k.shape[1] and window_size[0] < 0
    mask = None if square else _band(q.shape[1], k.shape[1], causal, window_size, q.device)
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        _repeated(k, q).transpose(1, 2),
        _repeated(v, q).transpose(1, 2),
        attn_mask=mask,
        dropout_p=dropout_p,
        is_causal=square,
        scale=softmax_scale,
    )
    return out.transpose(1, 2)


def flash_attn_qkvpacked_func(qkv: Tensor, *args: Any, **how: Any) -> Tensor:
    """The same of one tensor (batch, length, 3, heads, width)."""
    q, k, v = qkv.unbind(2)
    return flash_attn_func(q, k, v, *args, **how)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **how: Any) -> Tensor:
    """The same with keys and values in one tensor (batch, length, 2, heads, width)."""
    k, v = kv.unbind(2)
    return flash_attn_func(q, k, v, *args, **how)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    **_: object,
) -> Tensor:
    """The same of sequences one after the other (total, heads, width), cut at the given borders.

    Its parameters have their names: transformers passes those that it finds in the signature.
    """
    how = (dropout_p, softmax_scale, causal, window_size)
    borders = zip(_spans(cu_seqlens_q), _spans(cu_seqlens_k), strict=True)
    parts = [
        flash_attn_func(q[a:b][None], k[c:d][None], v[c:d][None], *how)[0]
        for (a, b), (c, d) in borders
    ]
    return torch.cat(parts)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int = 0, *args: Any, **how: Any
) -> Tensor:
    """The same of one tensor (total, 3, heads, width)."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **how
    )


def _spans(borders: Tensor) -> list[tuple[int, int]]:
    ends = borders.tolist()
    return list(pairwise(ends))


def _repeated(keys: Tensor, queries: Tensor) -> Tensor:
    """Heads of keys repeated until there are as many as of queries, each beside itself."""
    times = queries.shape[2] // keys.shape[2]
    return keys.repeat_interleave(times, dim=2) if times > 1 else keys


def _band(
    rows: int, columns: int, causal: bool, window: tuple[int, int], device: torch.device
) -> Tensor | None:
    """Where a query may look: the last query is at the last key, windows count from there; -1 is no limit."""
    left, right = window[0], 0 if causal else window[1]
    if left < 0 and right < 0:
        return None
    row = torch.arange(rows, device=device)[:, None] + columns - rows
    column = torch.arange(columns, device=device)
    mask = torch.ones(rows, columns, dtype=torch.bool, device=device)
    if left >= 0:
        mask &= column >= row - left
    if right >= 0:
        mask &= column <= row + right
    return mask


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The tokens that count, their places, the borders of the sequences, the longest, and how many each has."""
    lengths = attention_mask.sum(dim=-1, dtype=torch.int32)
    places = torch.nonzero(attention_mask.flatten()).flatten()
    borders = functional.pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0))
    return (
        hidden_states.flatten(0, 1)[places],
        places,
        borders,
        int(lengths.max()),
        lengths,
    )


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The tokens put back to their places (batch, length, …), zero elsewhere."""
    whole = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return whole.index_copy(0, indices, hidden_states).reshape(
        batch, seqlen, *hidden_states.shape[1:]
    )


def index_first_axis(tensor: Tensor, indices: Tensor) -> Tensor:
    """Rows by number."""
    return tensor[indices]


def apply_rotary_emb(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, *_: object, **__: object
) -> Tensor:
    """Rotary positions on the first part of the width: cos and sin are (length, half of that part)."""
    length, half = x.shape[1], cos.shape[-1]
    cos, sin = (table[:length, None].to(x.dtype) for table in (cos, sin))
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, dim=-1)
    both = first * cos - second * sin, first * sin + second * cos
    joined = torch.stack(both, dim=-1).flatten(-2) if interleaved else torch.cat(both, dim=-1)
    return torch.cat((joined, rest), dim=-1)


class LowerTriangularMask:
    """xFormers' name for a causal mask."""


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    **_: object,
) -> Tensor:
    """Attention as xFormers gives it, of (batch, length, heads, width); without heads where there are three dimensions."""
    single = query.dim() == 3
    if single:
        query, key, value = (one.unsqueeze(2) for one in (query, key, value))
    out = functional.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=attn_bias if isinstance(attn_bias, Tensor) else None,
        dropout_p=p,
        is_causal=isinstance(attn_bias, LowerTriangularMask),
        scale=scale,
    ).transpose(1, 2)
    return out.squeeze(2) if single else out


class FusedAdam(torch.optim.AdamW):
    """Apex's Adam as it is by default: decay is decoupled, and none where none is asked for."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        **_: object,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


class SwiGLU(nn.Module):
    """xFormers' gated layer, with both weights of its input in one."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = True,
        **_: object,
    ) -> None:
        super().__init__()
        self.w12 = nn.Linear(in_features, 2 * hidden_features, bias=bias)
        self.w3 = nn.Linear(hidden_features, out_features or in_features, bias=bias)

    def forward(self, x: torch.Tensor) -> Any:
        """The one half gates the other."""
        gate, given = self.w12(x).chunk(2, dim=-1)
        return self.w3(functional.silu(gate) * given)


class _EightBit(torch.optim.AdamW):
    """bitsandbytes' AdamW, whose states are as wide as PyTorch's here."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **_: object,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


class _EightBitAdam(torch.optim.Adam):
    """bitsandbytes' Adam, likewise."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **_: object,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


class _EightBitSGD(torch.optim.SGD):
    """bitsandbytes' SGD, likewise."""

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        **_: object,
    ) -> None:
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov)


AdamW = AdamW8bit = PagedAdamW8bit = PagedAdamW = PagedAdamW32bit = AdamW32bit = _EightBit
Adam = Adam8bit = PagedAdam8bit = PagedAdam = PagedAdam32bit = Adam32bit = _EightBitAdam
SGD = SGD8bit = SGD32bit = _EightBitSGD
FusedLayerNorm = MixedFusedLayerNorm = nn.LayerNorm
FusedRMSNorm = MixedFusedRMSNorm = RMSNorm = nn.RMSNorm
CrossEntropyLoss = nn.CrossEntropyLoss

ops = attn_bias = sys.modules[__name__]
"""Parts of xFormers by which its names are reached."""


class _Attention:
    """``xformers.ops.fmha``: the names above, and kernels that nothing calls (``flash.FwOp.OPERATOR``)."""

    def __getattr__(self, name: str) -> Any:
        return getattr(ops, name, Nothing())


fmha = _Attention()


def declare_operators() -> None:
    """Those that xFormers registers, for programs name them as what activation checkpointing is to keep."""
    for name in ("flash_fwd", "flash_bwd"):
        if not hasattr(torch.ops.xformers_flash, name):
            torch.library.define(f"xformers_flash::{name}", "() -> ()")


KERNELS = dict.fromkeys(
    ("flash_attn", "flash_attn_interface", "xformers", "apex", "bitsandbytes"), __name__
)
"""Packages whose names are taken from here, whatever part of them is imported."""
