"""``isinstance``, ``issubclass`` and ``hasattr``: known where the class is resolved, else tests that correlate."""

from __future__ import annotations

import builtins

from fsdp2lint.interpret.classes import seen_whole
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.registry import calls
from fsdp2lint.meanings.results import choices, text
from fsdp2lint.model.values import (
    Class,
    Container,
    External,
    Function,
    Instance,
    Literal,
    Module,
    Optimizer,
    Part,
    Value,
    Wrapped,
    lineage,
)

_WRAPPER_CLASSES = {
    "torch.distributed.fsdp.FullyShardedDataParallel": "fsdp1",
    "torch.nn.parallel.DistributedDataParallel": "ddp",
    "torch.nn.parallel.DataParallel": "dp",
}

_BATCH_NORMS = frozenset(
    f"torch.nn.{name}" for name in ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
)
"""Classes that derive from ``torch.nn.modules.batchnorm._BatchNorm`` (torch/nn/modules/batchnorm.py)."""

_CONTAINERS = frozenset(f"torch.nn.{name}" for name in ("ModuleDict", "ModuleList", "Sequential"))

_LAYERS = frozenset(
    f"torch.nn.{name}"
    for name in "Bilinear Conv1d Conv2d Conv3d Dropout Embedding GELU GroupNorm LayerNorm Linear RMSNorm ReLU SiLU".split()
)
"""Layers that derive from no other layer, and none of these and of the lists from them (torch/nn/modules/*.py)."""

_SINGLE_LAYERS = frozenset(
    (
        ".embed_tokens",
        ".final_layernorm",
        ".lm_head",
        ".ln_f",
        ".norm",
        ".rotary_emb",
        ".wpe",
        ".wte",
    )
)
"""What the models of Transformers call their embeddings, their last norm and their head (``models/*/modeling_*.py``)."""

_NO_WRAPPERS = ("torch.nn.Module", "builtins.object", "abc.ABC", "typing.Generic", "enum.Enum")
"""Bases of which nothing more is inherited than they say."""


@calls("builtins.isinstance", "builtins.issubclass")
def isinstance_(call: Call) -> Value | None:
    """True or False where the class is known, else a test that is equal wherever it is asked again."""
    value, wanted = call.get(0), call.get(1)
    if value is None or wanted is None:
        return None
    classes = tuple(_classes(call, wanted))

    def one(given: Value) -> Value:
        if call.name == "builtins.isinstance":
            known = _is_one_of(call, given, classes)
        else:
            known = _any_of([_derives(given, cls) for cls in classes])
        if known is not None:
            return call.machine.literal(known)
        return given.part(("isinstance", *classes))

    return call.machine.spread(value, one)


def _classes(call: Call, wanted: Value) -> list[Value]:
    """The classes of a class, of a tuple of classes or of a union (``Linear | Conv2d``)."""
    found: list[Value] = []
    for one in choices(wanted):
        if isinstance(one, Container):
            every = [c for entry in call.items(one) for c in _classes(call, entry)]
        elif isinstance(one, Part) and isinstance(one.key, tuple) and one.key[0] == "|":
            every = [c for side in (one.owner, one.key[1]) for c in _classes(call, side)]
        else:
            every = [one]
        found += [c for c in dict.fromkeys(every) if c not in found]
    return found


def _is_one_of(call: Call, value: Value, classes: tuple[Value, ...]) -> bool | None:
    return _any_of([_is_a(call, value, wanted) for wanted in classes])


def _any_of(answers: list[bool | None]) -> bool | None:
    """Whether one of the answers is yes; None where that is not known."""
    if True in answers:
        return True
    return False if answers and all(a is False for a in answers) else None


def _is_a(call: Call, value: Value, wanted: Value) -> bool | None:
    name = wanted.name if isinstance(wanted, External) else ""
    if name.endswith("FSDPModule"):
        return False if isinstance(value, Wrapped) and value.by in ("ddp", "dp") else None
    if not isinstance(wanted, External | Class):
        return None
    if isinstance(value, Literal):
        return _is_constant(value, wanted)
    if isinstance(value, Container):
        known = value not in call.machine.memory.strangers
        return _is_container(value, wanted) if known else None
    if isinstance(value, Wrapped):
        return _is_wrapper(value, wanted)
    if isinstance(value, Instance):
        derives = _derives(value.cls, wanted)
        return derives or (None if value in call.machine.memory.strangers else derives)
    if isinstance(value, Optimizer) and isinstance(wanted, Class):
        return _is_optimizer(value, wanted)
    if name == "torch.nn.Module" and call.is_module(value):
        return True
    return False if name in _CONTAINERS and _is_single_layer(value) else None


def _is_single_layer(value: Value) -> bool:
    """Whether it is what language models hold under a name that is never that of a list."""
    return isinstance(value, Part) and value.key in _SINGLE_LAYERS


def _is_wrapper(value: Wrapped, wanted: External | Class) -> bool | None:
    """The classes of wrappers derive from ``nn.Module``, not from each other and from no class of the project."""
    if wanted.name == "torch.nn.Module":
        return True
    if value.by not in _WRAPPER_CLASSES.values():
        return None
    if isinstance(wanted, Class):
        outside = [one for one in lineage(wanted) if not isinstance(one, Class)]
        known = all(isinstance(one, External) and one.name in _NO_WRAPPERS for one in outside)
        return False if known else None
    kind = _WRAPPER_CLASSES.get(wanted.name)
    return None if kind is None else value.by == kind


def _is_constant(value: Literal, wanted: External | Class) -> bool | None:
    name = wanted.name
    kind = getattr(builtins, name.removeprefix("builtins."), None)
    if isinstance(wanted, External) and name.startswith("builtins.") and isinstance(kind, type):
        return isinstance(value.value, kind)
    return False if isinstance(wanted, Class) or name.startswith("torch.") else None


def _is_container(value: Container, wanted: External | Class) -> bool | None:
    """A list is no module, no tensor and nothing of the project: ``isinstance(models, nn.Module)``."""
    name = wanted.name
    if isinstance(wanted, Class) or (name.startswith("torch.") and name != "torch.Size"):
        return False
    if name in ("builtins.list", "builtins.tuple", "builtins.set", "builtins.dict"):
        return name == f"builtins.{value.kind}" if value.kind != "chain" else None
    return None


def _derives(cls: Value, wanted: Value) -> bool | None:
    """Whether ``cls`` is ``wanted`` or one of its bases is; None when a base is unresolved."""
    certain = True
    todo, seen = [cls], set()
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        if one is wanted:
            return True
        if isinstance(one, Class):
            todo.extend(one.bases)
        elif isinstance(one, External):
            if _is_layer(one) and getattr(wanted, "name", "") == "torch.nn.Module":
                return True
            if one.name in _BATCH_NORMS and getattr(wanted, "name", "") == "torch.nn._BatchNorm":
                return True
            certain = certain and _has_known_bases(one, wanted)
        else:
            certain = False
    return False if certain else None


def _is_optimizer(value: Optimizer, wanted: Class) -> bool | None:
    """Whether an optimizer is of a class of the project, from which no library's classes derive.

    One that comes from elsewhere can be of any class that derives from what its annotation says.
    """
    if isinstance(value.cls, External) and value.over:
        return False
    return _derives(value.cls, wanted)


def _is_layer(cls: External) -> bool:
    return cls.name.startswith("torch.nn.")


def _has_known_bases(cls: External, wanted: Value) -> bool:
    """Classes of ``torch.nn`` derive from no class of the project and no wrapper; only few derive from another layer.

    What is called a mixin is neither a layer nor a wrapper: ``PyTorchModelHubMixin``.
    """
    if cls.name in _NO_WRAPPERS:
        return True
    if isinstance(wanted, External) and wanted.name in _WRAPPER_CLASSES:
        return _is_layer(cls) or cls.name.endswith("Mixin")
    if isinstance(wanted, External) and wanted.name in _LAYERS:
        if cls.name.endswith("Mixin"):
            return True
        return cls.name in _LAYERS or cls.name in _CONTAINERS or cls.name in _BATCH_NORMS
    return _is_layer(cls) and isinstance(wanted, Class)


@calls("builtins.hasattr")
def hasattr_(call: Call) -> Value | None:
    """True where the project's class or the script has it, else a test."""
    value, name = call.get(0), text(call.get(1))
    if value is None:
        return None

    def one(given: Value) -> Value:
        if name is not None and _has(call, given, name):
            return call.machine.literal(True)
        if name in ("module", "_orig_mod") and _is_plain(call, given):
            return call.machine.literal(False)
        return given.part(("hasattr", name if name is not None else call.args[-1]))

    return call.machine.spread(value, one)


def _is_plain(call: Call, value: Value) -> bool:
    """Whether it is a module of the project around which there is no wrapper."""
    if not isinstance(value, Module) or not call.machine.memory.owned(value):
        return False
    return seen_whole(value.cls)


def _has(call: Call, value: Value, name: str) -> bool:
    if isinstance(value, External | Container | Literal | Function):
        return False
    if isinstance(value, Wrapped):
        return name == "module" and value.by in ("ddp", "fsdp1", "dp")
    if call.machine.method(value, name) is not None:
        return True
    variable = call.machine.memory.fields.get(value, {}).get(f".{name}")
    found = variable.read(call.machine.here) if variable is not None else []
    return bool(found) and call.machine.here.implies(found[-1][0])
