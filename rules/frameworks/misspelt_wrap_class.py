"""The settings name a class to wrap that exists nowhere, or not in the model.

## What it does

Reports names in `fsdp_transformer_layer_cls_to_wrap`, in the `fsdp_config` of a Trainer's arguments and in a `FullyShardedDataParallelPlugin`
that misspell a layer of transformers, in a project that defines no such class. In a script that builds its model by a class of
transformers (`LlamaForCausalLM`), it reports a layer that this model does not have: one of another model, or of none.

## Why is this bad

accelerate looks for the class in the model when it shards it, and raises a ValueError ("Could not find the transformer layer class …") on every
rank, after the job has waited for its machines and the model is loaded.

## Example

```diff
 distributed_type: FSDP
 fsdp_config:
   fsdp_version: 2
   fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
-  fsdp_transformer_layer_cls_to_wrap: LlamaDecodeLayer
+  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
```

## Forms

- Found: one of two classes.
- Found: a plugin in a script.
- Found: the layer of another model.
- Not found: a model that is chosen by its name.
- Not found: a name that is too far from any.

## Fix safety

Unsafe: the class is the one whose name is closest.

## Known limits

Only names that differ from one of transformers 5.23 in their case, or in one or two letters behind the name of the model: another library may have
any other. Silent where the project loads models with `trust_remote_code`. The layers of a model are known where its file in transformers 5.23 holds
all of them: not of those that build a second model by its configuration. Silent where the script builds another model, too, of which they are
not known. For models whose layers are all classes of the project, see [FSDP607](framework-refuses.md).

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/dataclasses.py (`set_auto_wrap_policy`)
- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/fsdp_utils.py (`fsdp2_prepare_auto_wrap_policy`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fsdp2lint.api import (
    Called,
    Container,
    Entry,
    Finding,
    Fix,
    Literal,
    Module,
    Splice,
    Trace,
    Value,
    classes_of,
    is_named_as_layer,
    layers_of,
    may_be_defined,
    meant_layer,
    options,
    plain,
    rule,
)

from ._common.settings import found

_KEYS = ("transformer_layer_cls_to_wrap", "fsdp_transformer_layer_cls_to_wrap")
_PLUGIN = re.compile(r"accelerate\.(utils\.)?FullyShardedDataParallelPlugin")
_LOADS = re.compile(r"\.from_(?:pretrained|config)$|create_model$")
_NO_MODEL = re.compile(r"(?:Config|Tokenizer|TokenizerFast|Processor|FeatureExtractor)\.from_\w+$")
_ARGUMENTS = re.compile(r"(transformers|trl)\.(\w+\.)*\w+(Arguments|Config)")


@rule(code="FSDP614", group="suspicious", preview=True)
def check(trace: Trace) -> Iterator[Finding]:
    """Names that are nearly right, and those of other models."""
    entry = None if trace.settings is None else trace.settings.option(_KEYS[0])
    if entry is not None:
        for name, right in _misspelt(trace, classes_of(plain(entry.value))):
            yield found(trace, entry, _message(name, right), _fix(trace, entry, name, right))
        return
    models = _models(trace)
    for call in trace.of(Called):
        names = _named(trace, call)
        for name, right in _misspelt(trace, names):
            yield Finding(at=call, message=_message(name, right))
        for said in _absent(trace, names, models):
            yield Finding(at=call, message=said, because=tuple((m, "the model") for m in models))
    for launch in trace.launches:
        for said in _absent(trace, list(launch.wrapped), models):
            yield Finding(at=models[0], message=f"{said} ({Path(launch.settings).name})")


def _models(trace: Trace) -> list[Called]:
    """The calls that build models of transformers whose layers are known; none where another model may be trained."""
    built = [call for call in trace.of(Called) if _may_build(call)]
    return built if all(layers_of(_class_of(call)) is not None for call in built) else []


def _may_build(call: Called) -> bool:
    """Whether a call of a library may build a model: it is a module that is none of torch's, or its name says so."""
    modules = all(isinstance(one, Module) for one in options(call.result))
    if call.name.startswith("torch.") or _NO_MODEL.search(call.name):
        return False
    return modules or bool(_LOADS.search(call.name))


def _class_of(call: Called) -> str:
    return call.name.removesuffix(".from_pretrained").rpartition(".")[2]


def _absent(trace: Trace, names: list[str], models: list[Called]) -> Iterator[str]:
    """Messages about layers that none of the models has."""
    layers = [layers_of(_class_of(call)) or frozenset[str]() for call in models]
    for name in names if models else ():
        if any(name in one for one in layers) or not is_named_as_layer(name):
            continue
        if meant_layer(name) is None and not may_be_defined(name, trace.source.path, trace.files):
            shown = " or ".join(sorted({f"`{_class_of(call)}`" for call in models}))
            has = ", ".join(f"`{one}`" for one in sorted(layers[0]))
            yield f"there is no `{name}` in {shown}, whose layers are {has}: accelerate raises a ValueError"


def _misspelt(trace: Trace, names: list[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        right = meant_layer(name)
        if right is not None and not may_be_defined(name, trace.source.path, trace.files):
            yield name, right


def _message(name: str, right: str) -> str:
    return f"no class `{name}` is in this project or in transformers; did you mean `{right}`?"


def _fix(trace: Trace, entry: Entry, name: str, right: str) -> Fix | None:
    value = entry.value
    at = trace.source.text.find(name, value.start, value.end)
    if at < 0:
        return None
    edit = Splice(trace.source, at, at + len(name), right)
    return Fix(f"write `{right}`", (edit,), "unsafe", "the class with the closest name")


def _named(trace: Trace, call: Called) -> list[str]:
    """The classes that a plugin or the arguments of a Trainer name as constants."""
    given: Value | None = None
    if _PLUGIN.fullmatch(call.name):
        given = call.keywords.get("transformer_cls_names_to_wrap")
    elif _ARGUMENTS.fullmatch(call.name):
        config = call.keywords.get("fsdp_config")
        if isinstance(config, Container):
            entries = dict(trace.memory.entries(config, call.guards))
            given = next((entries[f"['{key}']"] for key in _KEYS if f"['{key}']" in entries), None)
    if isinstance(given, Container):
        values = [value for _, value in trace.memory.entries(given, call.guards)]
    else:
        values = [] if given is None else [given]
    words = [v.value for v in values if isinstance(v, Literal) and isinstance(v.value, str)]
    return [name for word in words for name in classes_of(word)]
