"""``from_pretrained`` without a network: random weights of a small model of the kind that the name says."""

from __future__ import annotations

import os
from typing import Any

from fsdp2lint.rehearse.fakes.small import SIZES
from fsdp2lint.rehearse.fakes.texts import VOCABULARY, Tokenizer
from fsdp2lint.rehearse.standin.replace import Counted

SMALL = SIZES | {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "decoder_start_token_id": 0,
}
"""What a configuration gets of those settings that it has."""

_KINDS = ("llama", "qwen3", "qwen2", "mistral", "mixtral", "gemma2", "gemma", "phi3", "gpt_neox", "gpt2", "opt", "bloom", "roberta", "bert", "t5", "vit")  # fmt: skip


def install(counted: Counted) -> None:
    """Replace what would ask the network, once that has failed."""
    import transformers

    makers: dict[str, Any] = {
        "AutoTokenizer": lambda *_, **__: Tokenizer(),
        "PreTrainedTokenizerBase": lambda *_, **__: Tokenizer(),
        "AutoProcessor": lambda *_, **__: Tokenizer(),
        "AutoConfig": lambda _, name, **how: _configuration(name, how),
        "PreTrainedConfig": _own_configuration,
        "PretrainedConfig": _own_configuration,
        "PreTrainedModel": _model,
    }
    owners = {name: getattr(transformers, name, None) for name in makers}
    for name, owner in owners.items():
        if owner is not None and hasattr(owner, "from_pretrained"):
            _replace(owner, counted, makers[name])
    for name in _AUTO_MODELS:
        if (owner := getattr(transformers, name, None)) is not None:
            _replace(owner, counted, _auto_model)


_AUTO_MODELS = (
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForSequenceClassification",
)


def _replace(owner: Any, counted: Counted, make: Any) -> None:
    original = getattr(owner.from_pretrained, "__func__", None)
    if original is None or getattr(original, "_made_up", False):
        return

    def from_pretrained(cls: Any, name: Any = None, *args: Any, **how: Any) -> Any:
        try:
            made = original(cls, name, *args, **how)
            if _without_words(made) and not os.path.isdir(str(name)):
                raise OSError(f"no vocabulary for {name!r}")
            return made
        except (OSError, ValueError, ImportError, TypeError) as problem:
            counted.note(f"made up: {cls.__name__}.from_pretrained({str(name)!r})")
            try:
                return make(cls, name, **how)
            except Exception as other:
                raise problem from other

    from_pretrained._made_up = True  # type: ignore[attr-defined]
    owner.from_pretrained = classmethod(from_pretrained)


def _without_words(made: Any) -> bool:
    """Whether this is a tokenizer of special tokens alone: transformers 5 makes one where no file of it can be had."""
    if not (hasattr(made, "get_vocab") and hasattr(made, "all_special_tokens")):
        return False
    return set(made.get_vocab()) <= {*made.all_special_tokens, "", "\u2581"}


def _own_configuration(cls: Any, name: Any, **how: Any) -> Any:
    made = _small(cls)
    return (made, {}) if how.get("return_unused_kwargs") else made


def _configuration(name: Any, how: dict[str, Any]) -> Any:
    import transformers

    wanted = str(name).lower().replace("-", "").replace("_", "")
    kind = next((k for k in _KINDS if k.replace("_", "") in wanted), "llama")
    mapping: Any = transformers.CONFIG_MAPPING
    made = _small(mapping[kind])
    return (made, {}) if how.get("return_unused_kwargs") else made


def _small(kind: Any) -> Any:
    had = kind().to_dict()
    if had.get("is_encoder_decoder"):  # of these, each configuration on the hub says where to start
        had["decoder_start_token_id"] = None
    return kind(**{key: value for key, value in SMALL.items() if key in had})


def _model(cls: Any, name: Any, **how: Any) -> Any:
    config = how.get("config") or _small(cls.config_class)
    return _as_asked(cls(config), how)


def _auto_model(cls: Any, name: Any, **how: Any) -> Any:
    return _as_asked(cls.from_config(how.get("config") or _configuration(name, {})), how)


def _as_asked(model: Any, how: dict[str, Any]) -> Any:
    import torch

    dtype = how.get("dtype") or how.get("torch_dtype")
    if isinstance(dtype, str) and dtype != "auto":
        dtype = getattr(torch, dtype)
    return model.to(dtype) if isinstance(dtype, torch.dtype) else model
