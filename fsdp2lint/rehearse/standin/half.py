"""Products in half precision, computed in single precision and rounded, where the CPU has no instructions for them.

Without these PyTorch multiplies bfloat16 and float16 one number at a time: a product of 1024 x 1280 by 1280 x 1280 takes a
hundred times as long as in float32 (AMD EPYC with AVX2). GPUs add up in float32 and round the sum, as is done here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch

from fsdp2lint.rehearse.standin.replace import Counted, Function

OPERATORS = {
    "mm": (2, 1),
    "bmm": (2, 1),
    "addmm": (3, 1),
    "baddbmm": (3, 1),
    "convolution": (3, 1),
    "convolution_backward": (3, 3),
    "_scaled_dot_product_flash_attention_for_cpu": (3, 1),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (5, 3),
}
"""Operators: how many of their arguments have one type, and how many of their results; the logarithms of attention are single."""

_holding: list[Any] = []
"""What is registered is gone with the library."""


def install(counted: Counted) -> None:
    """Replace what this CPU computes slowly."""
    replace(_slow())


def replace(slow: Collection[torch.dtype]) -> None:
    """Compute in single precision what is of these types; from PyTorch 2.9 on, which gives the kernels that are replaced."""
    kernel_of: Function | None = getattr(torch.library, "get_kernel", None)
    if kernel_of is None or not slow:
        return
    registering: Any = torch.library
    library = registering.Library("aten", "IMPL")
    _holding.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced
        for name, (alike, rounded) in OPERATORS.items():
            kernel = kernel_of(f"aten::{name}", "CPU").call_boxed
            computed = _widened(kernel, alike, rounded, slow)
            library.impl(name, computed, "CPU", with_keyset=True)


def _slow() -> list[torch.dtype]:
    """The types that oneDNN does not multiply on this CPU."""
    known: Any = torch.ops.mkldnn
    asked = {
        torch.bfloat16: getattr(known, "_is_mkldnn_bf16_supported", None),
        torch.float16: getattr(known, "_is_mkldnn_fp16_supported", None),
    }
    return [dtype for dtype, supported in asked.items() if supported and not supported()]


def _widened(
    kernel: Function, alike: int, rounded: int, slow: Collection[torch.dtype]
) -> Callable[..., Any]:
    def computed(keys: Any, *args: Any, **kwargs: Any) -> Any:
        first = args[0].dtype
        types = {one.dtype for one in args[:alike] if one is not None}
        if first not in slow or len(types) > 1:  # of several types it raises
            return kernel(keys, *args, **kwargs)
        wide = {name: _wide(one, first) for name, one in kwargs.items()}
        made = kernel(keys, *(_wide(one, first) for one in args), **wide)
        if isinstance(made, torch.Tensor):
            return made.to(first)
        return tuple(
            part.to(first) if part is not None and place < rounded else part
            for place, part in enumerate(made)
        )

    return computed


def _wide(argument: Any, dtype: torch.dtype) -> Any:
    is_half = isinstance(argument, torch.Tensor) and argument.dtype == dtype
    return argument.float() if is_half else argument
