"""A tokenizer of ``transformers`` that cuts texts into bytes: libraries ask for one of its classes, and call all that it has."""

from __future__ import annotations

import importlib.util
from typing import Any

from fsdp2lint.rehearse.fakes.texts import VOCABULARY, Tokenizer

SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def tokenizer(settings: dict[str, Any]) -> Any:
    """One with the settings that a call of ``from_pretrained`` names; our own class where there is no ``tokenizers``."""
    if importlib.util.find_spec("tokenizers") is None:
        return Tokenizer()
    from tokenizers import Tokenizer as Cutter
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIAL.values(), *letters]
    words += [f"<unused{number}>" for number in range(VOCABULARY - len(words))]
    cutter = Cutter(models.BPE({word: at for at, word in enumerate(words)}, [], unk_token="<unk>"))
    cutter.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cutter.decoder = decoders.ByteLevel()
    kept: dict[str, Any] = {
        name: settings[name]
        for name in ("model_max_length", "padding_side", "truncation_side")
        if name in settings
    }
    how: dict[str, Any] = {"model_max_length": 512, **SPECIAL, **kept}
    build: Any = PreTrainedTokenizerFast
    made = build(tokenizer_object=cutter, **how)
    made.chat_template = TEMPLATE
    return made
