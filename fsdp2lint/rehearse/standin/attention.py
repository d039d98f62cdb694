"""``flex_attention`` with gradients, which PyTorch 2.13 refuses on a CPU, 2.6 to 2.9 do not, and whose plain form computes them."""

from __future__ import annotations

import importlib
from typing import Any

from fsdp2lint.rehearse.standin.afterwards import after
from fsdp2lint.rehearse.standin.replace import Counted

FLEX = "torch.nn.attention.flex_attention"


def install(counted: Counted) -> None:
    """Let gradients through, once the script has imported it."""
    after(FLEX, lambda: _allow_gradients(counted))


def _allow_gradients(counted: Counted) -> None:
    module: Any = importlib.import_module(FLEX)
    refused = getattr(module, "_validate_device", None)
    if refused is None:  # it is private: another release may do without
        return

    def allowed(*tensors: Any) -> None:
        try:
            refused(*tensors)
        except NotImplementedError:
            counted.note("flex_attention with gradients")

    module._validate_device = allowed
