"""What fixtures call of ``transformers``, for tests that have neither the package nor the network.

``from_pretrained(name)`` gives an untrained causal model of two layers; with a ``device_map`` it is placed, and its
map is kept as ``hf_device_map`` (Transformers docs, ``PreTrainedModel.from_pretrained``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class CausalModel(nn.Module):
    """Words to logits."""

    def __init__(self, words: int = 32, width: int = 8) -> None:
        super().__init__()
        self.wte = nn.Embedding(words, width)
        self.h = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.lm_head = nn.Linear(width, words, bias=False)

    def forward(self, input_ids: torch.Tensor) -> Any:
        """The logits of each next word."""
        hidden = self.wte(input_ids)
        for layer in self.h:
            hidden = hidden + layer(hidden).relu()
        return self.lm_head(hidden)


class AutoModelForCausalLM:
    """Makes models by name."""

    @classmethod
    def from_pretrained(cls, name: str, *, device_map: str | None = None) -> CausalModel:
        """A model; ``auto`` puts all of one that is so small on the first device."""
        model = CausalModel()
        if device_map is not None:
            device = "cuda:0" if device_map == "auto" else device_map
            model.to(device)
            model.hf_device_map = {"": device}  # type: ignore[assignment]
        return model
