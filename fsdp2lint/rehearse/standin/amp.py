"""Autocast and gradient scaling: the CPU's own in place of CUDA's."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp import autocast_mode, grad_scaler

from fsdp2lint.rehearse.standin.replace import Counted, Function, is_cuda, wrap, wrap_everywhere


def install(counted: Counted) -> None:
    """Replace the device type of both, also below ``torch.cuda.amp`` and ``ShardedGradScaler``."""

    def autocast(init: Function) -> Function:
        def replaced(self: Any, device_type: Any, *args: Any, **kwargs: Any) -> None:
            if is_cuda(device_type):
                counted.note('autocast("cuda")')
                device_type = "cpu"
            init(self, device_type, *args, **kwargs)

        return replaced

    def scaler(init: Function) -> Function:
        def replaced(self: Any, device: Any = "cuda", *args: Any, **kwargs: Any) -> None:
            if is_cuda(device):
                counted.note('GradScaler("cuda")')
                device = "cpu"
            init(self, device, *args, **kwargs)

        return replaced

    wrap(autocast_mode.autocast, "__init__", autocast)
    wrap(grad_scaler.GradScaler, "__init__", scaler)
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        wrap_everywhere(torch, name, _asked)


def _asked(ask: Function) -> Function:
    def asked(*args: Any) -> Any:
        return ask(*("cpu" if is_cuda(arg) else arg for arg in args))

    return asked
