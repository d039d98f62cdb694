"""What all checks need to know: what was sharded where, and what each optimizer was built over."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from fsdp2lint.rehearse import holders
from fsdp2lint.rehearse.contract.bytes import is_dtensor
from fsdp2lint.rehearse.contract.emptied import Mark, marking
from fsdp2lint.rehearse.contract.whole import Whole, after_call, total
from fsdp2lint.rehearse.outcome import Spot
from fsdp2lint.rehearse.stacks import called_by, here

_STATE_GETTER = "torch/distributed/checkpoint/state_dict.py"


@dataclass
class Shard:
    """One call of ``fully_shard``."""

    at: Spot | None
    order: int
    refs: list[weakref.ref[Any]]

    @property
    def modules(self) -> list[Any]:
        """Those of its modules that are left."""
        return [module for ref in self.refs if (module := ref()) is not None]


@dataclass
class Replaced:
    """A parameter that ``fully_shard`` put in the place of another."""

    module: Any
    name: str
    old: Any
    new: Any


@dataclass
class Built:
    """How an optimizer came to its parameters."""

    at: Spot | None
    order: int
    kind: str
    names: dict[int, tuple[weakref.ref[Any], str]] = field(default_factory=dict)
    """For each parameter, by ``id``: the sharded model that had it then, and its name there."""


class Watch:
    """Follows ``fully_shard``, optimizers and what comes between from the start of a run."""

    thorough = True
    """Whether a check may slow down what a script does often: not in a real run."""

    def __init__(self, log: Path | None = None) -> None:
        self.log = log
        """Where the collectives of units are written down."""
        self.installed = False
        self.shards: list[Shard] = []
        self.replaced: dict[int, tuple[weakref.ref[Any], str, Shard]] = {}
        """Parameters that ``fully_shard`` took out of their module: by ``id``, with their name."""
        self.left_alone: set[int] = set()
        """Parameters below a sharded module that it did not shard."""
        self.whole: list[Whole] = []
        """Trainable parameters as they were when they were sharded."""
        self.built: dict[int, Built] = {}
        self.emptied: list[Mark] = []
        self.emptying: list[Callable[[Mark], None]] = []
        """Called for each mark on memory that ``to_empty`` made."""
        self.listeners: list[Callable[[Shard, list[Replaced]], None]] = []
        """Called after a shard with what it replaced; nobody may keep a reference, not even a weak
        one, to a new parameter: ``torch.utils.swap_tensors`` refuses those that have any."""
        self.off: weakref.WeakKeyDictionary[Any, Spot | None] = weakref.WeakKeyDictionary()
        """Models whose gradients are not reduced now, and where that was said."""
        self._loaded = False
        self._order = count()
        self._models: list[weakref.ref[Any]] = []
        self._known_shards = -1

    def install(self) -> None:
        """Begin to follow."""
        self.installed = True
        import torch.distributed.fsdp
        from torch import nn
        from torch.distributed.checkpoint.state_dict_loader import load
        from torch.distributed.fsdp import FSDPModule
        from torch.optim import Optimizer

        replace_everywhere(torch.distributed.fsdp.fully_shard, self._sharding)
        wrap_method(Optimizer, "__init__", self._building)
        wrap_method(nn.Module, "to_empty", lambda original: marking(original, self._empty))
        wrap_method(nn.Module, "load_state_dict", lambda one: after_call(one, self._load))
        replace_everywhere(load, lambda one: after_call(one, self._load))
        wrap_method(FSDPModule, "set_requires_gradient_sync", self._switching)

    def already(self) -> list[Any]:
        """Models that were sharded before anybody listened."""
        return []

    def models(self) -> list[Any]:
        """Every whole model that is sharded in part or whole, looked up after new shards."""
        if self._known_shards != len(self.shards):
            self._known_shards = len(self.shards)
            self._models = [weakref.ref(model) for model in _sharded_roots()]
        return [model for ref in self._models if (model := ref()) is not None]

    def loaded(self) -> bool:
        """Whether anything was loaded since modules were sharded."""
        return self._loaded

    def trainable(self) -> Iterator[tuple[Any, str, Any]]:
        """Model, name and parameter for all that require a gradient."""
        for model in self.models():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    yield model, name, parameter

    def _sharding(self, original: Any) -> Any:
        @functools.wraps(original)
        def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
            modules = list(module) if isinstance(module, list | tuple) else [module]
            before = [dict(m.named_parameters()) for m in modules]
            result = original(module, *args, **kwargs)
            shard = Shard(here(), next(self._order), list(map(weakref.ref, modules)))
            self.shards.append(shard)
            self._note_replaced(shard, modules, before)
            return result

        return fully_shard

    def _note_replaced(
        self, shard: Shard, modules: list[Any], before: list[dict[str, Any]]
    ) -> None:
        pairs = []
        for module, old in zip(modules, before, strict=True):
            for name, parameter in module.named_parameters():
                if parameter is old[name]:
                    if not is_dtensor(parameter):
                        self.left_alone.add(id(parameter))
                    continue
                full = f"{type(module).__name__.removeprefix('FSDP')}.{name}"
                self.replaced[id(old[name])] = (weakref.ref(old[name]), full, shard)
                pairs.append(Replaced(module, name, old[name], parameter))
        self._note_values(shard, pairs)
        for listener in self.listeners:
            listener(shard, pairs)

    def _note_values(self, shard: Shard, replaced: list[Replaced]) -> None:
        for number, one in enumerate(replaced):
            if one.old.requires_grad and not one.old.is_meta:
                before = None if is_dtensor(one.old) else total(one.old)
                module, part = weakref.ref(one.module), total(one.new)
                key = f"{shard.order}:{number}"
                self.whole.append(Whole(key, one.name, module, shard.at, before, part))

    def _load(self) -> None:
        self._loaded = self._loaded or bool(self.shards)

    def _switching(self, original: Any) -> Any:
        @functools.wraps(original)
        def switch(model: Any, requires_gradient_sync: bool, *args: Any, **kwargs: Any) -> Any:
            if requires_gradient_sync:
                self.off.pop(model, None)
            else:
                self.off[model] = here()
            return original(model, requires_gradient_sync, *args, **kwargs)

        return switch

    def _empty(self, mark: Mark) -> None:
        self.emptied.append(mark)
        for listener in self.emptying:
            listener(mark)

    def _building(self, original: Any) -> Any:
        @functools.wraps(original)
        def build(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            built = Built(here(), next(self._order), type(optimizer).__name__)
            held = {id(parameter) for parameter in parameters_of(optimizer)}
            if self.shards:
                for model, name, parameter in self.trainable():
                    if id(parameter) in held:
                        built.names[id(parameter)] = (weakref.ref(model), name)
            self.built[id(optimizer)] = built

        return build


def parameters_of(optimizer: Any) -> list[Any]:
    """All parameters of an optimizer's groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def makes_state_only() -> bool:
    """Whether the current step is the one by which the state-dict getters create empty state."""
    return called_by(_STATE_GETTER)


def _sharded_roots() -> list[Any]:
    from torch import nn
    from torch.distributed.fsdp import FSDPModule

    modules = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    inner = {id(child) for module in modules for child in module._modules.values()}
    roots = [module for module in modules if id(module) not in inner]
    return [root for root in roots if any(isinstance(m, FSDPModule) for m in root.modules())]


def replace_everywhere(original: Any, build: Callable[[Any], Any]) -> None:
    """Replace a function under every name by which a module holds it, but for our own."""
    holders.replace(original, build(original), lambda title: not title.startswith("fsdp2lint."))


def wrap_method(owner: Any, name: str, build: Callable[[Any], Any]) -> None:
    setattr(owner, name, build(getattr(owner, name)))
