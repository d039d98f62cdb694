"""Models of Transformers hold their blocks where the rules think, and embeddings beside them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("torch") is None, reason="needs Transformers"
)

SCRIPT = """\
import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = transformers.{name}.from_pretrained("saved")
fully_shard({what})
"""
ENCODER = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
BOTH = {
    "d_model": 8,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
}
MODELS = [
    ("BertForSequenceClassification", "BertConfig", ENCODER, ["bert.encoder.layer"]),
    ("RobertaForMaskedLM", "RobertaConfig", ENCODER, ["roberta.encoder.layer"]),
    ("ElectraForMaskedLM", "ElectraConfig", ENCODER, ["electra.encoder.layer"]),
    (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"dim": 8, "n_heads": 2, "hidden_dim": 8},
        ["distilbert.transformer.layer"],
    ),
    (
        "T5ForConditionalGeneration",
        "T5Config",
        {"d_model": 8, "d_ff": 8, "num_heads": 2, "d_kv": 4},
        ["encoder.block", "decoder.block"],
    ),
    (
        "BartForConditionalGeneration",
        "BartConfig",
        BOTH,
        ["model.encoder.layers", "model.decoder.layers"],
    ),
    (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        BOTH,
        ["model.encoder.layers", "model.decoder.layers"],
    ),
    ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 8, "n_head": 2}, ["transformer.h"]),
    ("LlamaForCausalLM", "LlamaConfig", ENCODER, ["model.layers"]),
    ("ViTForImageClassification", "ViTConfig", ENCODER, []),
]


@pytest.mark.parametrize(
    ("name", "config", "sizes", "lists"), MODELS, ids=[one[0] for one in MODELS]
)
def test_blocks_are_in_lists_and_embeddings_beside_them(
    name: str, config: str, sizes: dict[str, int], lists: list[str]
) -> None:
    import torch
    import transformers
    from torch import nn

    with torch.device("meta"):
        model = getattr(transformers, name)(getattr(transformers, config)(**sizes))
    assert "FSDP205" in reported(SCRIPT.format(name=name, what="model"))
    for path in lists:
        assert type(model.get_submodule(path)) is nn.ModuleList
        assert "FSDP208" in reported(SCRIPT.format(name=name, what=f"model.{path}"))
    held = {id(one) for path in lists for one in model.get_submodule(path).parameters()}
    assert all(id(one) not in held for one in model.get_input_embeddings().parameters())


def reported(text: str) -> set[str]:
    """The rules that speak of a script."""
    return {rule.code for rule, _ in findings([Source("train.py", text)])}
