"""Texts and what cuts them into tokens: as many as a byte has values, whatever the tokenizer is called."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

WORDS = "the model reads a small text and learns what comes next in it every day".split()
VOCABULARY = 512


def sentence(seed: int, length: int = 24) -> str:
    """A text that is the same for the same number."""
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(length))


class Tokenizer:
    """What scripts call of the tokenizers of ``transformers`` and ``tiktoken``."""

    pad_token, eos_token, bos_token, unk_token = "<pad>", "</s>", "<s>", "<unk>"
    pad_token_id, eos_token_id, bos_token_id, unk_token_id = 0, 1, 2, 3
    eot_token, n_vocab, max_token_value = 1, VOCABULARY, VOCABULARY - 1
    vocab_size = VOCABULARY
    model_max_length = 512
    padding_side = "right"
    chat_template = None
    all_special_ids = (0, 1, 2, 3)
    is_fast = False

    def __len__(self) -> int:
        return VOCABULARY

    @property
    def tokenizer(self) -> Tokenizer:
        """As processors hold one."""
        return self

    def encode(self, text: str, *_: object, **how: Any) -> Any:
        """One token for each byte."""
        ids = [4 + byte for byte in str(text).encode()]
        if how.get("max_length") and how.get("truncation"):
            ids = ids[: how["max_length"]]
        return torch.tensor([ids]) if how.get("return_tensors") == "pt" else ids

    encode_ordinary = encode

    def decode(self, ids: Any, *_: object, **__: object) -> str:
        """The text again."""
        numbers = (
            ids.tolist()
            if isinstance(ids, torch.Tensor)
            else [ids]
            if isinstance(ids, int)
            else ids
        )
        return bytes(n - 4 for n in numbers if 4 <= n < 260).decode("utf-8", "replace")

    def batch_decode(self, rows: Any, *_: object, **__: object) -> list[str]:
        """The texts again."""
        return [self.decode(row) for row in rows]

    def tokenize(self, text: str, *_: object, **__: object) -> list[str]:
        """The words."""
        return text.split()

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """A number for each token."""
        single = isinstance(tokens, str)
        ids = [4 + len(token) for token in ([tokens] if single else tokens)]
        return ids[0] if single else ids

    def apply_chat_template(self, messages: Any, tokenize: bool = True, **how: Any) -> Any:
        """The messages one after the other."""
        text = " ".join(str(m.get("content", "")) for m in messages if isinstance(m, dict))
        return self.encode(text, **how) if tokenize else text

    def __call__(self, text: Any = None, text_pair: Any = None, **how: Any) -> Any:
        """The ids and the mask of one text or several."""
        text = how.pop("text_target", text) if text is None else text
        single = isinstance(text, str)
        rows = [self.encode(one) for one in ([text] if single else text)]
        return self._batch(rows, single, **how)

    batch_encode_plus = encode_plus = __call__

    def pad(self, features: Any, **how: Any) -> Any:
        """Rows of ids brought to one length."""
        if isinstance(features, Sequence):
            features = {key: [one[key] for one in features] for key in features[0]}
        rows = [_numbers(row) for row in features["input_ids"]]
        made = self._batch(rows, False, **{"padding": True, **how})
        tensors = how.get("return_tensors") == "pt"
        for key, column in features.items():
            if key not in made:
                values = [_numbers(value) for value in column]
                made[key] = torch.tensor(values) if tensors and _even(values) else values
        return made

    def _batch(self, rows: list[list[int]], single: bool, **how: Any) -> Any:
        longest = max(map(len, rows), default=0)
        limit = how.get("max_length") or self.model_max_length
        if how.get("truncation"):
            rows = [row[:limit] for row in rows]
            longest = min(longest, limit)
        width = limit if how.get("padding") == "max_length" else longest
        padded = bool(how.get("padding")) or (how.get("return_tensors") == "pt" and not single)
        masks = [[1] * len(row) for row in rows]
        if padded:
            masks = [mask + [0] * (width - len(mask)) for mask in masks]
            rows = [row + [self.pad_token_id] * (width - len(row)) for row in rows]
        held: dict[str, Any] = {"input_ids": rows, "attention_mask": masks}
        if how.get("return_tensors") == "pt":
            held = {key: torch.tensor(value) for key, value in held.items()}
        elif single:
            held = {key: value[0] for key, value in held.items()}
        return Encoding(held)

    def save_pretrained(self, *_: object, **__: object) -> tuple[str, ...]:
        """There is nothing to keep."""
        return ()

    def add_special_tokens(self, *_: object, **__: object) -> int:
        """There are enough."""
        return 0

    add_tokens = add_special_tokens

    def get_vocab(self) -> dict[str, int]:
        """All tokens."""
        return {str(number): number for number in range(VOCABULARY)}


def _numbers(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _even(values: list[Any]) -> bool:
    """Whether a tensor can be made of some values: numbers, or lists of one length."""
    if all(isinstance(value, list) for value in values):
        return len(set(map(len, values))) == 1
    return all(isinstance(value, int | float) for value in values)


class Encoding(dict[str, Any]):
    """A dictionary whose entries are attributes too, and that moves to devices."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def to(self, *where: Any, **__: object) -> Encoding:
        """All of it somewhere else."""
        return Encoding({k: v.to(*where) if hasattr(v, "to") else v for k, v in self.items()})


def get_encoding(name: str) -> Tokenizer:
    """As ``tiktoken`` names it."""
    return Tokenizer()


encoding_for_model = get_encoding
