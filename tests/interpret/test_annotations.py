"""What annotations say of objects whose making is not seen: classes that calls return, keywords, fields, arguments."""

from __future__ import annotations

from fsdp2lint.interpret.entries import traces
from fsdp2lint.model.events import Assigned, Forward, Sharded, Stepped
from fsdp2lint.model.trace import Trace, options
from fsdp2lint.model.values import Instance, Module, Optimizer, Part, Value
from fsdp2lint.project.project import Project
from fsdp2lint.source.source import Source

HEAD = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from somewhere import settings, Base

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(8, 8)
    def forward(self, x):
        return self.w(x)
"""


def _traces(text: str) -> list[Trace]:
    return list(traces(Project.of([Source("train.py", HEAD + text)])))


def _sharded(text: str) -> list[str]:
    """The classes of what each call shards, those that are not known as ``?``."""
    calls = {e.at.node: e.module for trace in _traces(text) for e in trace.of(Sharded)}
    return [_class(one) for value in calls.values() for one in options(value)]


def _class(value: Value) -> str:
    return value.cls.words() if isinstance(value, Instance) else "?"


def test_a_function_says_what_it_returns() -> None:
    text = """
def build(config) -> "Layer":
    return config.registry[config.name](**config.options)

fully_shard(build(settings))
"""
    assert _sharded(text) == ["Layer"]


def test_a_method_without_a_body_says_what_it_returns() -> None:
    text = """
class Config:
    def build(self) -> Layer:
        raise NotImplementedError

def main(config: Config):
    fully_shard(config.build())
"""
    assert _sharded(text) == ["Layer"]


def test_what_is_known_is_not_taken_for_what_is_said() -> None:
    text = """
class Other(Layer):
    pass

def build() -> Layer:
    return Other()

fully_shard(build())
"""
    assert _sharded(text) == ["Other"]


def test_a_part_of_a_model_stays_that_part() -> None:
    text = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = settings.layers()

def wrap(layer: Layer):
    fully_shard(layer)

net = Net()
for layer in net.layers:
    wrap(layer)
fully_shard(net)
"""
    trace = _traces(text)[0]
    inner, *_, whole = [e.module for e in trace.of(Sharded)]
    assert trace.inside(inner, whole)


def test_what_was_asked_before_stays_what_it_is() -> None:
    text = """
class Config:
    shard: bool

def train(config: Config, layer):
    if not config.shard:
        fully_shard(layer)

config = settings()
layer = Layer()
if config.shard:
    fully_shard(layer)
train(config, layer)
"""
    first, second = _traces(text)[0].of(Sharded)
    assert first.guards.excludes(second.guards)


def test_keywords_and_fields_are_what_their_annotations_say() -> None:
    text = """
from dataclasses import dataclass

class Builder:
    def build(self) -> Layer:
        return Layer()

class Net(nn.Module):
    def __init__(self, *, builder: Builder):
        super().__init__()
        self.layer = builder.build()
    def shard(self):
        fully_shard(self.layer)

@dataclass
class Trainer:
    builder: Builder
    def fit(self):
        fully_shard(self.builder.build())

Trainer(builder=settings.pop("builder")).fit()
"""
    assert _sharded(text) == ["Layer", "Layer"]


def test_self_is_the_class_on_which_a_method_is_called() -> None:
    text = """
from typing import Self, Type, TypeVar
C = TypeVar("C", bound="Config")

class Config:
    def merge(self, dots) -> Self:
        return settings.merged(self, dots)
    @classmethod
    def load(cls: Type[C], path) -> C:
        return settings.load(path)

class ModelConfig(Config):
    @classmethod
    def small(cls) -> "ModelConfig":
        return cls()
    @classmethod
    def large(cls) -> "ModelConfig":
        return cls()
    def build(self) -> Layer:
        return Layer()

fully_shard(ModelConfig().merge(settings.dots).build())
fully_shard(ModelConfig.load("x").build())
fully_shard(getattr(ModelConfig, settings.size)().build())
"""
    assert _sharded(text) == ["Layer"] * 3


def test_a_private_method_that_its_class_calls_runs_only_so() -> None:
    text = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)
        self.tied = False
    def shard(self):
        fully_shard(self.first)
        if self.tied:
            self._tie()
    def _tie(self):
        self.last.weight = self.first.weight
    def _hook(self):
        self.first.bias = self.last.bias
"""
    written = [e.name for trace in _traces(text) for e in trace.of(Assigned)]
    assert written == ["bias"]


def test_a_forward_runs_once_for_a_loop() -> None:
    text = """
from somewhere import loader
model = Layer()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for batch in loader:
    model(batch).sum().backward()
    optimizer.step()
"""
    trace = _traces(text)[0]
    inside = [
        e for e in trace.of(Forward) if isinstance(e.module, Part | Module) and e.moment.calls
    ]
    assert len(inside) == 1
    assert all(isinstance(e.optimizer, Optimizer) for e in trace.of(Stepped))


def test_a_helper_that_does_nothing_is_not_run_for_ever() -> None:
    calls = "\n".join(f"size({n})" for n in range(60))
    text = f"""
def size(n):
    return log(n) + 1

def log(n):
    return n * 2

def note(model):
    fully_shard(model)

{calls}
model = Layer()
note(model)
"""
    trace = _traces(text)[0]
    assert isinstance(trace.of(Sharded)[0].module, Module)
    assert trace.cut is None


def test_a_type_variable_is_at_least_its_bound() -> None:
    """What a generic settings class builds is of the class that its type variable is bound by, quoted or not."""
    text = """
from typing import Generic, TypeVar

M = TypeVar("M", bound={bound})

class Settings(Generic[M]):
    def build(self, width: int) -> M:
        raise NotImplementedError

class Block(nn.Module):
    def __init__(self, mixer: Settings):
        super().__init__()
        self.mixer = mixer.build(8)

def main(mixer: Settings):
    fully_shard(Block(mixer).mixer)
"""
    assert _sharded(text.format(bound="Layer")) == ["Layer"]
    assert _sharded(text.format(bound="'Layer'")) == ["Layer"]
    assert _sharded(text.format(bound="Base")) == ["?"]


MERGED = """
from dataclasses import dataclass
from typing_extensions import Self

class Part:
    def build(self) -> nn.Module:
        raise NotImplementedError

@dataclass
class LayerPart(Part):
    width: int = 8
    def build(self) -> Layer:
        return Layer()

@dataclass
class Settings:
    part: Part
    shards: bool = False

    def merge(self, changes) -> Self:
        {body}

    @classmethod
    def read(cls, values) -> Self:
        return settings.decode(cls, values)

config = Settings(part=LayerPart()).merge(settings.changes)
if config.shards:
    fully_shard(config.part.build())
"""


def test_settings_that_were_merged_are_the_same_but_each_may_be_another() -> None:
    """The flag may be set by then, the part is of the class that was put there."""
    for body in (
        "return settings.merged(self, changes)",
        "return self.read(settings.merged(self, changes))",
        "return type(self).read(settings.merged(self, changes))",
    ):
        assert _sharded(MERGED.format(body=body)) == ["Layer"]


def test_a_member_that_an_enumeration_looks_up_may_be_any() -> None:
    text = """
import sys
from enum import Enum

class Command(str, Enum):
    show = "show"
    train = "train"

    def run(self):
        if self == Command.show:
            print("layer")
        elif self == Command.train:
            fully_shard(Layer())
        else:
            raise NotImplementedError(self)

Command(sys.argv[1]).run()
"""
    (event,) = (e for trace in _traces(text)[:1] for e in trace.of(Sharded))
    assert event.moment.guards.clauses
