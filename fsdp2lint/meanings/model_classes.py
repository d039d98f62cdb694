"""Which classes of libraries of models are ``nn.Module``s, as data: a table for each library, with its source.

A class of the project that is derived from one of them is a module too, and what ``from_pretrained`` or
``from_config`` give is an object of the class that they are called on.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Library(NamedTuple):
    """The names of a library's models: ``classes`` matches the last part of a dotted name."""

    package: str
    classes: re.Pattern[str]
    source: str


_TASKS = r"(?:PreTrainedModel|(?:Model|LMHeadModel|DoubleHeadsModel)$|For[A-Z]\w*$)"
_NO_MODELS = (
    r"(?!\w*(?:Argument|Callback|Card|Collator|Config|Extractor|Output|Process|Tokenizer|Trainer))"
)

LIBRARIES = (
    Library(
        "transformers.",
        re.compile(rf"{_NO_MODELS}\w*{_TASKS}"),
        "transformers/modeling_utils.py and models/*/modeling_*.py (4.5x, 5)",
    ),
    Library(
        "diffusers.",
        re.compile(
            r"ModelMixin$|Autoencoder\w+$|ControlNet\w*Model$|\w*(?:UNet|Transformer)\w*Model$|VQModel$"
        ),
        "diffusers/models/modeling_utils.py, diffusers/models/__init__.py (0.3x)",
    ),
    Library(
        "timm.models.",
        re.compile(r"_?[A-Z]\w+$"),
        "timm/models/*.py: each architecture is a class (1.0)",
    ),
    Library(
        "torchvision.models.",
        re.compile(r"(?!\w*_?Weights?$)[A-Z]\w+$"),
        "torchvision/models/*.py (0.2x)",
    ),
)

LOADERS = ("from_pretrained", "from_config", "_from_config", "from_single_file")
"""Class methods of these libraries that give an object of the class."""


def is_model_class(name: str) -> bool:
    """Whether a dotted name is that of a class of models of one of the libraries."""
    end = name.rpartition(".")[2]
    return any(
        name.startswith(one.package) and one.classes.match(end) is not None for one in LIBRARIES
    )
