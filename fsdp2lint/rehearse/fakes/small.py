"""Small models in place of large ones (``--small``), where a configuration says how large they are.

Widths, heads and layers are cut in the configurations that models of ``transformers`` are built from, in the
program's own dataclasses (and those that it fills) that hold a width and a number of layers, and in the arguments of
modules that take both.
Vocabularies, lengths and batches stay. So do the widths that a library gives to its own module, as that of
``torchvision.models.vit_h_14``: they are known by its name, and programs put heads on it that fit. Of pictures it looks at a corner.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any

from fsdp2lint.rehearse.fakes.imports import asked_by_the_program, is_own
from fsdp2lint.rehearse.standin.replace import Counted, wrap

WIDTHS = dict.fromkeys(
    "hidden_size hidden_dim d_model n_embd dim embed_dim emb_dim embedding_dim embedding_size model_dim".split(),
    64,
)
LAYERS = dict.fromkeys(
    "num_hidden_layers num_layers n_layer n_layers nlayers depth num_decoder_layers encoder_layers decoder_layers".split(),
    2,
)
_HEADS = dict.fromkeys("num_attention_heads num_heads n_head n_heads nheads nhead heads".split(), 4)
_KV_HEADS = dict.fromkeys(
    "num_key_value_heads n_kv_heads kvheads n_kv_head n_query_groups".split(), 2
)
_INNER = dict.fromkeys(
    "intermediate_size d_ff n_inner ffn_dim mlp_dim ffn_hidden_size".split(), 128
)
SIZES = WIDTHS | LAYERS | _HEADS | _KV_HEADS | _INNER | {"head_dim": 16, "dim_head": 16, "d_kv": 16}
"""What a small model has of the sizes that configurations name."""
_PATCHES = 4


def install(counted: Counted, after: Callable[[str, Callable[[], None]], None]) -> None:
    """Cut sizes from here on; ``after`` calls a function when the program has imported a package."""
    wrap(dataclasses, "dataclass", lambda make: _dataclass(make, counted))
    _modules(counted)
    after("transformers", lambda: _of_transformers(counted))
    after("torchvision", lambda: _of_torchvision(counted))


def _dataclass(make: Callable[..., Any], counted: Counted) -> Callable[..., Any]:
    def dataclass(cls: Any = None, /, **how: Any) -> Any:
        if cls is None:
            return lambda other: dataclass(other, **how)
        made = make(cls, **how)
        names = {field.name for field in dataclasses.fields(made)}
        file = getattr(sys.modules.get(made.__module__), "__file__", None) or ""
        known = made.__module__.startswith("transformers.")  # cut when a model is built from it
        if names & set(WIDTHS) and names & set(LAYERS) and not known:
            _cut_at_construction(made, counted, by_others=SIZES if is_own(file) else {})
        return made

    return dataclass


def _modules(counted: Counted) -> None:
    """Cut the arguments of modules that are defined from here on and take a width and a number of layers."""
    from torch import nn

    def subclassed(cls: Any, /, **how: Any) -> None:
        super(nn.Module, cls).__init_subclass__(**how)
        takes = vars(cls).get("__init__")
        if inspect.isfunction(takes) and not cls.__module__.startswith("torch."):
            names = set(inspect.signature(takes).parameters)
            if names & set(WIDTHS) and names & set(LAYERS):
                _cut_at_construction(cls, counted, by_others=LAYERS | _INNER)

    owner: Any = nn.Module
    owner.__init_subclass__ = classmethod(subclassed)


def _cut_at_construction(cls: Any, counted: Counted, *, by_others: Container[str]) -> None:
    """``by_others``: what is cut where no file of the program builds it."""
    original = cls.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        smaller = dict(_smaller(bound.arguments))
        if not asked_by_the_program((__name__,)):
            smaller = {name: size for name, size in smaller.items() if name in by_others}
        if smaller:
            counted.note(f"made small: {cls.__name__}")
        bound.arguments |= smaller
        original(*bound.args, **bound.kwargs)

    cls.__init__ = made


def _smaller(sizes: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in sizes.items():
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and value > SIZES.get(name, value)
        ):
            yield name, SIZES[name]


def _of_transformers(counted: Counted) -> None:
    """Cut a configuration when a model is built from it, unless weights are loaded that have the whole size."""
    import transformers

    owner: Any = getattr(transformers, "PreTrainedModel", None)
    if owner is None:
        return  # a package of the program's own by that name
    loading: list[bool] = []

    def build(init: Callable[..., Any]) -> Callable[..., Any]:
        def built(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
            if not loading and cut(config):
                counted.note(f"made small: {type(config).__name__}")
            init(self, config, *args, **kwargs)

        return built

    wrap(owner, "__init__", build)
    original = owner.from_pretrained.__func__

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with _held(loading):
            return original(cls, *args, **kwargs)

    owner.from_pretrained = classmethod(functools.wraps(original)(from_pretrained))


@contextmanager
def _held(loading: list[bool]) -> Iterator[None]:
    loading.append(True)
    try:
        yield
    finally:
        loading.pop()


def cut(config: Any) -> bool:
    """Cut a configuration, those within it, and its lists of one entry a layer; whether there was anything to cut."""
    held = {name: getattr(config, name, None) for name in SIZES}
    smaller = dict(_smaller(held))
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) in {held[n] for n in smaller if n in LAYERS}:
            setattr(config, name, value[: min(LAYERS.values())])
    for name, value in smaller.items():
        setattr(config, name, value)
    inner = [value for value in vars(config).values() if hasattr(value, "to_diff_dict")]
    return bool(smaller) + sum(cut(one) for one in inner) > 0


def _of_torchvision(counted: Counted) -> None:
    """Vision transformers look at a corner of four patches by four: each patch of a picture is a token."""
    vision: Any = importlib.import_module("torchvision.models").VisionTransformer

    def build(init: Callable[..., Any]) -> Callable[..., Any]:
        def built(self: Any, image_size: int, patch_size: int, *args: Any, **kwargs: Any) -> None:
            corner = _PATCHES * patch_size
            if image_size > corner:
                counted.note(f"made small: pictures of {image_size}")
            init(self, min(image_size, corner), patch_size, *args, **kwargs)

        return built

    def look(process: Callable[..., Any]) -> Callable[..., Any]:
        def looked(self: Any, pictures: Any) -> Any:
            return process(self, pictures[..., : self.image_size, : self.image_size])

        return looked

    wrap(vision, "__init__", build)
    wrap(vision, "_process_input", look)
