"""What fixtures call of ``transformers``, for tests that have neither the package nor the network.

``from_pretrained(name)`` gives an untrained causal model of two layers; with a ``device_map`` it is placed, and its
map is kept as ``hf_device_map`` (Transformers docs, ``PreTrainedModel.from_pretrained``). Asked for in 4 or 8 bits, the
weights of its layers are frozen and have the shapes and dtypes that bitsandbytes keeps them in, and no values.
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

    @property
    def transformer(self) -> CausalModel:
        """What holds the layers."""
        return self

    def forward(self, input_ids: torch.Tensor) -> Any:
        """The logits of each next word."""
        hidden = self.wte(input_ids)
        for layer in self.h:
            hidden = hidden + layer(hidden).relu()
        return self.lm_head(hidden)


class BitsAndBytesConfig:
    """How weights are quantized (Transformers docs, ``BitsAndBytesConfig``)."""

    def __init__(
        self,
        *,
        load_in_8bit: bool = False,
        load_in_4bit: bool = False,
        bnb_4bit_compute_dtype: torch.dtype = torch.float32,
        bnb_4bit_quant_storage: torch.dtype = torch.uint8,
    ) -> None:
        self.bits = 4 if load_in_4bit else 8 if load_in_8bit else 0
        self.compute_dtype = bnb_4bit_compute_dtype
        self.storage = bnb_4bit_quant_storage

    def packed(self, weight: torch.Tensor) -> torch.Tensor:
        """Memory as large as the quantized weight."""
        if self.bits == 8:
            return torch.zeros_like(weight, dtype=torch.int8)
        size = weight.numel() // 2 // self.storage.itemsize
        return torch.zeros(size, 1, dtype=self.storage)


class AutoModelForCausalLM:
    """Makes models by name."""

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        *,
        device_map: str | None = None,
        quantization_config: BitsAndBytesConfig | None = None,
        load_in_8bit: bool = False,
    ) -> CausalModel:
        """A model; ``auto`` puts all of one that is so small on the first device."""
        model = CausalModel()
        quantized = quantization_config or BitsAndBytesConfig(load_in_8bit=load_in_8bit)
        for layer in model.h if quantized.bits else ():
            assert isinstance(layer, nn.Linear)
            layer.weight = nn.Parameter(quantized.packed(layer.weight), requires_grad=False)
        if device_map is not None:
            device = "cuda:0" if device_map == "auto" else device_map
            model.to(device)
            model.hf_device_map = {"": device}  # type: ignore[assignment]
        return model
