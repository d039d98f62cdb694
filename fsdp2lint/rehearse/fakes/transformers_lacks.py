"""What the installed ``transformers`` does not have: names of earlier releases, and FlashAttention.

Sources: ``transformers.optimization.AdamW`` (4.40), and ``PreTrainedTokenizerBase.batch_encode_plus`` and ``encode_plus`` (4.57), which
release 5 has dropped; the check that refuses
``attn_implementation="flash_attention_2"`` in ``PreTrainedModel._check_and_adjust_attn_implementation``, and
``_lazy_imports`` of ``modeling_flash_attention_utils.py``, which takes the functions of FlashAttention (4.57, 5.23).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from fsdp2lint.rehearse.fakes import kernels
from fsdp2lint.rehearse.standin.replace import Counted, wrap

_ADJUST = "_check_and_adjust_attn_implementation"


def install(counted: Counted) -> None:
    """Give ``transformers``, which the program has imported, what it lacks."""
    import transformers

    package: Any = transformers
    if not hasattr(package, "AdamW"):
        package.AdamW = _adamw(counted)
    tokenizer: Any = getattr(package, "PreTrainedTokenizerBase", None)
    for name in ("encode_plus", "batch_encode_plus") if tokenizer is not None else ():
        if not hasattr(tokenizer, name):
            setattr(tokenizer, name, _encoding(name, counted))
    model = getattr(package, "PreTrainedModel", None)
    if hasattr(model, _ADJUST) and importlib.util.find_spec("flash_attn") is None:
        wrap(model, _ADJUST, lambda adjust: _without_flash(adjust, counted))


def _adamw(counted: Counted) -> type:
    class AdamW(torch.optim.AdamW):
        """With the defaults that this class had there."""

        def __init__(
            self,
            params: Any,
            lr: float = 1e-3,
            betas: tuple[float, float] = (0.9, 0.999),
            eps: float = 1e-6,
            weight_decay: float = 0.0,
            *_: object,
            **__: object,
        ) -> None:
            counted.note("made up: transformers.AdamW")
            super().__init__(params, lr, betas, eps, weight_decay)

    return AdamW


def _encoding(name: str, counted: Counted) -> Callable[..., Any]:
    def encoded(self: Any, *args: Any, **how: Any) -> Any:
        counted.note(f"made up: {name} of a tokenizer")
        if how.pop("pad_to_max_length", False):
            how["padding"] = "max_length"
        return self(*args, **how)

    return encoded


def _without_flash(adjust: Callable[..., Any], counted: Counted) -> Callable[..., Any]:
    """FlashAttention keeps its name where transformers can be given its functions: masks are made by the name."""
    by_name = _take_flash_from_here()

    def adjusted(self: Any, attn_implementation: Any = None, *args: Any, **how: Any) -> Any:
        if isinstance(attn_implementation, str) and attn_implementation.startswith("flash_"):
            counted.note(f'made up: attn_implementation="{attn_implementation}"')
            if by_name and getattr(self, "_supports_flash_attn", False):
                return attn_implementation
            attn_implementation = "sdpa"
        return adjust(self, attn_implementation, *args, **how)

    return adjusted


def _take_flash_from_here() -> bool:
    try:
        known: Any = importlib.import_module("transformers.modeling_flash_attention_utils")
    except ImportError:
        return False
    if not hasattr(known, "_lazy_imports"):
        return False
    paged = (None,) if hasattr(known, "_flash_with_kvcache_fn") else ()
    ours = (kernels.flash_attn_func, kernels.flash_attn_varlen_func, *paged)

    def of(imported: Callable[..., Any]) -> Callable[..., Any]:
        def taken(implementation: Any = None, *args: Any, **how: Any) -> Any:
            if implementation is None or str(implementation).startswith("flash_"):
                return (*ours, kernels.pad_input, kernels.unpad_input)
            return imported(implementation, *args, **how)

        return taken

    wrap(known, "_lazy_imports", of)
    return True
