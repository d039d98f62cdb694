"""``from_pretrained`` of ``diffusers`` without a network: small models with random weights, and schedulers as their classes set them."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from fsdp2lint.rehearse.fakes.pretrained import same_everywhere
from fsdp2lint.rehearse.standin.replace import Counted

_FOUR = (32, 32, 32, 32)
SMALL: dict[str, dict[str, Any]] = {
    "AutoencoderKL": {
        "block_out_channels": _FOUR,
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "latent_channels": 4,
    },
    "UNet2DConditionModel": {
        "block_out_channels": _FOUR,
        "cross_attention_dim": 64,
        "attention_head_dim": 8,
        "layers_per_block": 1,
    },
}
"""Sizes where the class has others by itself: four times half as wide as it is given, as the models on the hub, and narrow."""

_OWNERS = ("ModelMixin", "SchedulerMixin")


def install(counted: Counted) -> None:
    """Make what could not be had."""
    package: Any = importlib.import_module("diffusers")
    for name in _OWNERS:
        if (owner := getattr(package, name, None)) is not None:
            _replace(owner, counted)


def _replace(owner: Any, counted: Counted) -> None:
    original = owner.from_pretrained.__func__

    def from_pretrained(cls: Any, name: Any = None, *args: Any, **how: Any) -> Any:
        try:
            return original(cls, name, *args, **how)
        except (OSError, ValueError) as problem:
            try:
                with same_everywhere(name):
                    made = cls(**SMALL.get(cls.__name__, {}))
            except Exception as other:
                raise problem from other
            counted.note(f"made up: {cls.__name__}.from_pretrained({str(name)!r})")
            dtype = how.get("torch_dtype")
            if isinstance(made, torch.nn.Module):
                made = made.eval()  # as a model that is loaded
            return made.to(dtype) if isinstance(dtype, torch.dtype) else made

    owner.from_pretrained = classmethod(from_pretrained)
