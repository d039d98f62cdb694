"""``from_pretrained`` without a network: random weights of a small model of the kind that the name says.

Its vocabulary is small too. A number of a token that is larger, as the program may have one from the real tokenizer, is
brought into it when the model is called.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fsdp2lint.rehearse.fakes.small import SIZES, cut
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

_GPT2: dict[str, dict[str, int]] = {
    "gpt2": {},
    "gpt2-medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "gpt2-large": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
    "gpt2-xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
}
"""Sizes that the configuration's class does not have by itself."""

_OTHER_NAMES = {"pythia": "gpt_neox", "dolly": "gpt_neox", "redpajama": "gpt_neox", "starcoder": "gpt_bigcode", "galactica": "opt", "zephyr": "mistral", "qwen": "qwen2", "debertav3": "deberta-v2"}  # fmt: skip
"""Models that are not called as the class of their configuration."""


def install(counted: Counted, *, full_size: bool = False) -> None:
    """Replace what would ask the network, once that has failed.

    ``full_size`` gives models as large as their configuration says, which a folder or the hub's cache may hold without the weights;
    where there is none, as the class of their configuration has them by itself.
    """
    import transformers

    read = functools.cache(functools.partial(_read, transformers.AutoConfig.from_pretrained))
    full = functools.partial(_full, read, counted)
    sizes = functools.partial(_sized, full if full_size else _small)

    makers: dict[str, Any] = {
        "AutoTokenizer": lambda *_, **how: _tokenizer(how),
        "PreTrainedTokenizerBase": lambda *_, **how: _tokenizer(how),
        "AutoProcessor": lambda *_, **__: Tokenizer(),
        "AutoConfig": lambda _, name, **how: _with_rest(_configuration(name, sizes), how),
        "PreTrainedConfig": lambda cls, name, **how: _with_rest(sizes(cls, name), how),
        "PretrainedConfig": lambda cls, name, **how: _with_rest(sizes(cls, name), how),
        "PreTrainedModel": lambda cls, name, **how: _fitted(_model(cls, name, sizes, how), counted),
    }
    owners = {name: getattr(transformers, name, None) for name in makers}
    for name, owner in owners.items():
        if owner is not None and hasattr(owner, "from_pretrained"):
            _replace(owner, counted, makers[name])
    for name in _AUTO_MODELS:
        if (owner := getattr(transformers, name, None)) is not None:
            _replace(
                owner,
                counted,
                lambda cls, name, **how: _fitted(_auto_model(cls, name, sizes, how), counted),
            )


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
            return _as_processor(made) if cls.__name__ == "AutoProcessor" else made
        except (OSError, ValueError, ImportError, TypeError, AttributeError) as problem:
            counted.note(f"made up: {cls.__name__}.from_pretrained({str(name)!r})")
            try:
                return make(cls, name, **how)
            except Exception as other:
                raise problem from other

    from_pretrained._made_up = True  # type: ignore[attr-defined]
    owner.from_pretrained = classmethod(from_pretrained)


_SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def _tokenizer(settings: dict[str, Any]) -> Any:
    """A tokenizer of ``transformers`` that cuts texts into bytes, for libraries ask for one of its classes and call all that it has.

    With the settings that a call of ``from_pretrained`` names; our own class where there is no ``tokenizers``.
    """
    if importlib.util.find_spec("tokenizers") is None:
        return Tokenizer()
    from tokenizers import Tokenizer as Cutter
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*_SPECIAL.values(), *letters]
    words += [f"<unused{number}>" for number in range(VOCABULARY - len(words))]
    cutter = Cutter(models.BPE({word: at for at, word in enumerate(words)}, [], unk_token="<unk>"))
    cutter.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    cutter.decoder = decoders.ByteLevel()
    kept: dict[str, Any] = {
        name: settings[name]
        for name in ("model_max_length", "padding_side", "truncation_side")
        if name in settings
    }
    how: dict[str, Any] = {"model_max_length": 512, **_SPECIAL, **kept}
    build: Any = PreTrainedTokenizerFast
    made = build(tokenizer_object=cutter, **how)
    made.chat_template = _TEMPLATE
    made.legacy = True  # as those of Llama and T5 say
    return made


def _as_processor(made: Any) -> Any:
    """A tokenizer that was made up in place of a processor holds one as a processor does: itself."""
    if hasattr(made, "get_vocab") and not hasattr(made, "tokenizer"):
        made.tokenizer = made
    return made


def _without_words(made: Any) -> bool:
    """Whether this is a tokenizer of special tokens alone: transformers 5 makes one where no file of it can be had."""
    if not (hasattr(made, "get_vocab") and hasattr(made, "all_special_tokens")):
        return False
    return set(made.get_vocab()) <= {*made.all_special_tokens, "", "\u2581"}


Sizes = Callable[[Any, Any], Any]


def _with_rest(configuration: Any, how: dict[str, Any]) -> Any:
    rest = _changed(configuration, how)
    return (configuration, rest) if how.get("return_unused_kwargs") else configuration


def _changed(configuration: Any, how: dict[str, Any]) -> dict[str, Any]:
    """Give a configuration the settings that a call names (``num_labels=5``, ``use_cache=False``), but no sizes; the rest."""
    known = {name for name in how if hasattr(configuration, name) and name not in _OF_THE_CALL}
    for name in known - set(SIZES):
        setattr(configuration, name, how[name])
    return {name: value for name, value in how.items() if name not in known | _OF_THE_CALL}


_OF_THE_CALL = {"config", "dtype", "torch_dtype", "return_unused_kwargs"}


def _configuration(name: Any, sizes: Sizes) -> Any:
    import transformers

    mapping: Any = transformers.CONFIG_MAPPING
    return sizes(mapping[_kind(str(name).lower(), mapping.keys())], name)


def _kind(name: str, kinds: Iterable[str]) -> str:
    """The kind of model that a name says: the longest that is in its last part, or else in all of it."""
    known = {re.sub(r"[-_]", "", kind): kind for kind in kinds} | _OTHER_NAMES
    for part in (name.rpartition("/")[2], name):
        words, joined = re.split(r"[^a-z]+|(?<=[a-z])(?=\d)", part), re.sub(r"\W|_", "", part)
        said = [one for one in known if one in words or (len(one) > 3 and one in joined)]
        if said:
            return known[max(said, key=len)]
    return "t5" if "t5" in name else "llama"


def _sized(sizes: Sizes, kind: Any, name: Any) -> Any:
    """A configuration that says what those on the hub say: where it is from, and the class of its model."""
    import transformers

    made = sizes(kind, name)
    made.name_or_path = str(name)
    causal: Any = getattr(transformers, "MODEL_FOR_CAUSAL_LM_MAPPING", {})
    if not made.architectures and kind in causal:
        made.architectures = [causal[kind].__name__]
    return made


def _small(kind: Any, _: object) -> Any:
    had = kind().to_dict()
    if had.get("is_encoder_decoder"):  # of these, each configuration on the hub says where to start
        had["decoder_start_token_id"] = None
    made = kind(**{key: value for key, value in SMALL.items() if key in had})
    cut(made)  # also what it holds: one for the text, one for pictures
    return made


def _read(read: Callable[[str], Any], name: str) -> Any:
    """The configuration of that name that is on this machine; None where there is none."""
    try:
        return read(name)
    except (OSError, ValueError, ImportError, KeyError):
        return None


def _full(read: Callable[[str], Any], counted: Counted, kind: Any, name: Any) -> Any:
    if (known := read(str(name))) is not None:
        return copy.deepcopy(known)
    given = _GPT2.get(str(name).rpartition("/")[2])
    if given is None:
        counted.note(f"no configuration of {str(name)!r} is here: its sizes are those that {kind.__name__} has by itself")  # fmt: skip
    if kind().to_dict().get("is_encoder_decoder"):
        given = {"decoder_start_token_id": 0}
    return kind(**(given or {}))


def _model(cls: Any, name: Any, sizes: Sizes, how: dict[str, Any]) -> Any:
    config = how.get("config") or sizes(cls.config_class, name)
    _changed(config, how)
    with same_everywhere(name), _floats_of(how):
        return cls(config).eval()


def _auto_model(cls: Any, name: Any, sizes: Sizes, how: dict[str, Any]) -> Any:
    config = how.get("config") or _configuration(name, sizes)
    _changed(config, how)
    with same_everywhere(name), _floats_of(how):
        return cls.from_config(config).eval()


@contextmanager
def same_everywhere(name: Any) -> Iterator[None]:
    """Random numbers that only the name says: weights that are loaded are the same on each rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(str(name).encode()))
        yield


@contextmanager
def _floats_of(how: dict[str, Any]) -> Iterator[None]:
    """The precision that a call asks for, of all that names no other: what ``transformers`` computes in float32 stays so."""
    asked = how.get("dtype") or how.get("torch_dtype")
    if isinstance(asked, str):
        asked = getattr(torch, asked, None)
    before = torch.get_default_dtype()
    torch.set_default_dtype(asked if isinstance(asked, torch.dtype) else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _fitted(model: Any, counted: Counted) -> Any:
    """The model, which takes any number for a token from here on."""
    if getattr(model.config, "vocab_size", None):
        model.register_forward_pre_hook(functools.partial(_fit, counted), with_kwargs=True)
    return model


def _fit(counted: Counted, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if torch.compiler.is_compiling():
        return None
    size = model.config.vocab_size
    if any(_too_large(given, size) for given in (*args[:1], *(kwargs.get(n) for n in _TOKENS))):
        counted.note("made up: numbers of tokens, brought into the small vocabulary")
        args = tuple(_brought(given, size) for given in args[:1]) + args[1:]
        kwargs = {
            n: _brought(given, size) if n in _TOKENS else given for n, given in kwargs.items()
        }
    return args, kwargs


_TOKENS = ("input_ids", "decoder_input_ids", "labels")


def _too_large(given: Any, size: int) -> bool:
    plain = (
        type(given) is torch.Tensor and given.dtype == torch.int64 and given.device.type == "cpu"
    )
    return plain and bool((given >= size).any())


def _brought(given: Any, size: int) -> Any:
    """All numbers within the vocabulary; what is negative (``-100``) stays."""
    return torch.where(given >= size, given % size, given) if _too_large(given, size) else given
