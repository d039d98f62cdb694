"""``nn.Module`` objects that come from outside the project, and module lists.

Sources: torch/nn/modules/*.py, transformers ``AutoModel.from_pretrained``/``from_config``, timm
``create_model``, torchvision.models.
"""

from __future__ import annotations

import re

from fsdp2lint.interpret.classes import empty, is_module_class
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.families import family, is_class_name, last
from fsdp2lint.meanings.model_classes import LOADERS, is_model_class
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import instance, is_a, listed, nothing
from fsdp2lint.model.events import Assigned, Called
from fsdp2lint.model.memory import GIVEN
from fsdp2lint.model.values import (
    Class,
    Container,
    External,
    Instance,
    Module,
    Optimizer,
    Parameters,
    Super,
    Value,
    lineage,
    outside,
)

_NO_MODULES = ("Parameter", "Buffer", "ParameterList", "ParameterDict")
_LAYER = re.compile(r"torch\.nn\.(?!Module\b)[A-Z]\w*")
_TASKS = re.compile(r"For[A-Z]|Model(?!ing)|LMHead|DoubleHeads")
_OTHERS = re.compile(
    r"Argument|Callback|Card|Collator|Config|FeatureExtractor|Output|Processor|Tokenizer|Trainer"
)


def module(call: Call, name: str = "") -> Module:
    """A new ``nn.Module`` of a class outside the project."""
    made = Module(call.machine.external(name or call.name), call.site)
    for value in (*call.args, *call.keywords.values()):
        if call.is_module(value):
            call.machine.memory.hold(made, value)
    return made


@family("torch.nn.")
def layer(call: Call) -> Value | None:
    """Every class of ``torch.nn`` but the parameter types is a module; functions are ``torch.nn.functional``."""
    if not is_class_name(call.name) or call.name.startswith(("torch.nn.utils.", "torch.nn.init.")):
        return None
    if last(call.name) in _NO_MODULES:
        return instance(call)
    return module(call)


@family(
    "bitsandbytes.nn.",
    "transformer_engine.pytorch.",
    "apex.normalization.",
    "flash_attn.modules.",
    "timm.layers.",
    "torchvision.ops.",
    "torchao.nn.",
    "torchao.quantization.",
    "torchmetrics.",
)
def library_layer(call: Call) -> Value | None:
    """Classes of libraries of layers are modules too."""
    return module(call) if is_class_name(call.name) and "Config" not in call.name else None


@family("torchvision.models.", "timm.models.", "segmentation_models_pytorch.")
def vision_model(call: Call) -> Value | None:
    """The functions of ``torchvision.models`` named like an architecture, and its classes, build models."""
    end = last(call.name)
    if end.startswith(("list_", "get_model_", "get_weight", "_")) or end.endswith("Weights"):
        return None
    return module(call)


@calls("timm.create_model")
def create_model(call: Call) -> Value | None:
    """``timm.create_model`` returns an ``nn.Module``."""
    return module(call)


@family("transformers.", "diffusers.", "peft.")
def hub_model(call: Call) -> Value | None:
    """``XForY(config)`` and ``XModel.from_pretrained(…)`` are models; configs and tokenizers are not."""
    cls, _, end = call.name.rpartition(".")
    if end not in LOADERS:
        cls = call.name
    name = last(cls)
    if not is_class_name(cls) or _OTHERS.search(name):
        return None
    if not _TASKS.search(name) and ".modeling_" not in cls:
        return None
    return module(call, cls)


@method(*LOADERS)
def load_own(call: Call) -> Value | None:
    """``Own.from_pretrained(…)`` of a class of the project, where a base in a library has that method.

    How it is built from a configuration that is not seen would be a long way to few facts: ``__init__`` is not run.
    """
    cls = call.receiver
    if not isinstance(cls, Class) or not is_module_class(cls):
        return None
    if not any(is_model_class(base.name) for base in outside(cls)):
        return None
    call.escape_arguments()
    return empty(cls, call.site)


# -- lists of modules --------------------------------------------------------------------------------

_LISTS = ("torch.nn.ModuleList", "torch.nn.Sequential", "torch.nn.ModuleDict")


@calls(*_LISTS)
def module_list(call: Call) -> Value | None:
    """``ModuleList(modules)``, ``Sequential(*modules)``, ``ModuleDict(entries)`` hold what they are given."""
    made = Module(call.machine.external(call.name), call.site)
    _fill_all(call, made)
    return made


def _fill_all(call: Call, made: Module) -> None:
    given = call.args
    if len(given) == 1 and not call.is_module(given[0]):
        _fill(call, made, given[0])
        return
    for index, child in enumerate(given):
        _put(call, made, index, child)


def _fill(call: Call, made: Module, given: Value) -> None:
    memory, here = call.machine.memory, call.machine.here
    if not isinstance(given, Container):
        memory.hold(made, given)
        for index, child in enumerate(call.machine.elements(given, call.site)):
            _put(call, made, index, child)
        return
    for key, child in list(memory.entries(given, here)):
        memory.write(made, key, here, child)
        child.sit(made, key if isinstance(key, str) else "[*]")


def _put(call: Call, owner: Value, index: object, child: Value) -> None:
    call.machine.memory.write(owner, f"[{index!r}]", call.machine.here, child)
    child.sit(owner, f"[{index!r}]")


_QUIET_BASES = (
    "abc.",
    "builtins.",
    "enum.",
    "threading.",
    "torch.nn.",
    "torch.optim.",
    "torch.utils.data.",
    "typing.",
)
"""Bases whose ``__init__`` shows nothing to others; what an optimizer takes is written down where it is built."""


@method("__init__")
def base_init(call: Call) -> Value | None:
    """``super().__init__(…)`` of a base outside: containers of torch take their layers by it."""
    made = call.receiver.receiver if isinstance(call.receiver, Super) else None
    if not isinstance(made, Instance):
        return None
    bases = {base.name for base in outside(made.cls)}
    if not all(name.startswith(_QUIET_BASES) for name in bases):
        return None
    given = call.get(0, "params")
    if given is not None and any(name.startswith("torch.optim.") for name in bases):
        call.machine.memory.write(made, GIVEN, call.machine.here, given)
    if isinstance(made, Module) and bases & set(_LISTS):
        _fill_all(call, made)
    elif isinstance(made, Module):
        _build_layer(call, made)
    return nothing(call)


def _build_layer(call: Call, made: Module) -> None:
    """The layer of torch that a class of the project inherits from is built by its ``__init__``, with parameters and all."""
    assert isinstance(call.receiver, Super)
    above = [one for one in lineage(made.cls) if one is not made.cls]
    if call.receiver.cls in above:
        above = above[above.index(call.receiver.cls) + 1 :]
    base = next((one for one in above if isinstance(one, External)), None)
    if base is not None and _LAYER.fullmatch(base.name):
        call.emit(
            Called,
            name=base.name,
            receiver=None,
            arguments=call.args,
            keywords=call.keywords,
            open=call.open,
            result=made,
        )


def is_module_list(value: Value | None) -> bool:
    """Whether ``value`` is a ``ModuleList``, a ``Sequential`` or a ``ModuleDict`` built by resolved code."""
    if not isinstance(value, Module):
        return False
    return any(base.name in _LISTS for base in outside(value.cls))


@method("append", "extend", "insert")
def grow(call: Call) -> Value | None:
    """``ModuleList.append`` and its like; they return the list (torch/nn/modules/container.py)."""
    owner = call.receiver
    if owner is None or isinstance(owner, Container) or not call.is_module(owner):
        return None
    given = call.get(1, "module") if call.name == ".insert" else call.get(0)
    for child in listed(call, given):
        index = len(call.machine.memory.fields.get(owner, ()))
        if is_module_list(owner):
            _put(call, owner, index, child)
        else:
            call.machine.memory.hold(owner, child)
        if not _is_being_made(call):
            call.emit(Assigned, owner=owner, name=str(index), value=child)
    return owner


def _is_being_made(call: Call) -> bool:
    """Whether the ``__init__`` of a module is running: then nothing is added, it is made so."""
    return any(
        f.function is not None and f.function.name == "__init__" and call.is_module(f.receiver)
        for f in call.machine.frames
    )


@method("add_module", "register_module", "register_buffer", "register_parameter")
def add(call: Call) -> Value | None:
    """``add_module(name, module)`` is ``setattr(self, name, module)`` (torch/nn/modules/module.py)."""
    owner, value = call.receiver, call.get(1, "module") or call.get(1, "tensor")
    value = value or call.get(1, "param")
    if owner is None or value is None or isinstance(owner, Container | Optimizer | Parameters):
        return None
    if isinstance(owner, Instance) and not isinstance(owner, Module):
        return None
    call.use_as_module(owner)
    name = call.constant(0, "name")
    if isinstance(name, str):
        call.machine.set(owner, name, value, call.site)
    else:
        call.machine.memory.hold(owner, value)
        call.emit(Assigned, owner=owner, name="…", value=value)
    return nothing(call)


@method("register_modules")
def register_modules(call: Call) -> Value | None:
    """Each keyword becomes an attribute of a pipeline (diffusers/pipelines/pipeline_utils.py, 0.35)."""
    pipeline = call.receiver
    if pipeline is None or not is_a(pipeline, "diffusers."):
        return None
    for name, value in call.keywords.items():
        call.machine.set(pipeline, name, value, call.site)
    return nothing(call)


@method("register_to_config")
def register_to_config(call: Call) -> Value | None:
    """Settings for ``self.config`` (diffusers/configuration_utils.py): no module is kept."""
    return nothing(call) if is_a(call.receiver, "diffusers.") else None
