"""Models and optimizers that come from registries, factories and paths: what they are is known all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.check.coverage import Program
from fsdp2lint.check.runner import Batch, check

HEAD = """\
import functools
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
import transformers


class Small(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])


class Large(Small):
    pass


class Holder:
    pass


class Llama(transformers.LlamaPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.blocks = nn.ModuleList([nn.Linear(8, 8)])


MODELS = {"small": Small, "large": Large}
BUILDERS = {}


def register(name):
    def put(builder):
        BUILDERS[name] = builder
        return builder
    return put


@register("small")
def small(cfg):
    return Small(cfg.width)


@register("large")
def large(cfg):
    return Large(cfg.width)


class Muon(torch.optim.Optimizer):
    def __init__(self, model, lr=0.1):
        groups = [{"params": [p for p in model.parameters() if p.ndim == 2]}]
        super().__init__(groups, {"lr": lr})


def main(cfg):
"""
TAIL = """
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(8)).sum().backward()
    optimizer.step()


if __name__ == "__main__":
    import sys
    main(sys.argv)
"""
MADE = {
    "__new__": "model = Small.__new__(Small)",
    "object.__new__": "model = object.__new__(Small)",
    "a dictionary of classes": "model = MODELS[cfg.name]()",
    "get of a dictionary": "model = MODELS.get(cfg.name)(width=3)",
    "a registry that decorators fill": "model = BUILDERS[cfg.name](cfg)",
    "the own class of a library's base": "model = Llama(cfg)",
    "from_pretrained of the own class": "model = Llama.from_pretrained(cfg.path)",
    "from_config of the own class": "model = Llama._from_config(cfg)",
    "a library's model": "model = transformers.LlamaForCausalLM._from_config(cfg)",
    "a class of a module by its name": "import zoo\n    model = zoo.__dict__[cfg.name](cfg)",
    "a function of a module by its name": "import zoo\n    model = vars(zoo)[cfg.name](cfg)",
    "a model inside of another": "model = functools.reduce(getattr, cfg.path.split('.'), Small())",
    "a path": "model = functools.reduce(getattr, 'blocks.0'.split('.'), Small())",
    "a submodule": "model = Small().get_submodule(cfg.path)",
}
ZOO = """\
from torch import nn


class Net(nn.Module):
    def __init__(self, cfg):
        super().__init__()


class Other(Net):
    pass
"""


def program(folder: Path, made: str) -> Program:
    (folder / "train.py").write_text(f"{HEAD}    {made}{TAIL}")
    (folder / "zoo.py").write_text(ZOO)
    report = check(Batch.of_files([str(folder / "train.py"), str(folder / "zoo.py")]))
    return next(one for one in report.programs if one.file.endswith("train.py"))


@pytest.mark.parametrize("made", MADE)
def test_the_model_is_known(tmp_path: Path, made: str) -> None:
    one = program(tmp_path, MADE[made])
    assert [seen.resolved for seen in one.shards] == [True], one.lost
    assert [(seen.resolved, seen.linked) for seen in one.steps] == [(True, True)]


@pytest.mark.parametrize("given", ["model", "model=model"])
def test_an_optimizer_of_the_project_that_takes_the_model(tmp_path: Path, given: str) -> None:
    late = TAIL.replace("    fully_shard(model)\n", "").replace(
        "torch.optim.AdamW(model.parameters())", f"Muon({given})\n    fully_shard(model)"
    )
    (tmp_path / "train.py").write_text(f"{HEAD}    model = Small(){late}")
    report = check(Batch.of_files([str(tmp_path / "train.py")]))
    assert [d.rule.code for d in report.found if d.severity == "error"] == ["FSDP201"]


def test_what_a_registry_cannot_tell_stays_unknown(tmp_path: Path) -> None:
    one = program(tmp_path, "model = cfg.registry[cfg.name]()")
    assert [seen.resolved for seen in one.shards] == [False]
