"""Recipes of torchtune, NeMo AutoModel and Hydra: a script builds what they name, and is followed under them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.frameworks.recipes import agreed, composed, launched_with, tree
from fsdp2lint.system.files import Files
from tests.support.running import invoke

MODELS = """\
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x)


class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def small(depth):
    return Net(depth)
"""

TRAINING = """
    for block in model.blocks:
        fully_shard(block)
    for _ in range(10):
        model(torch.randn(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
"""Only the blocks are sharded, which is said only of a model whose class is known."""

TORCHTUNE = (
    """\
import torch
from torch.distributed.fsdp import fully_shard
from torchtune import config


@config.parse
def recipe_main(cfg):
    model = config.instantiate(cfg.model)
    optimizer = config.instantiate(cfg.optimizer, model.parameters())
"""
    + TRAINING
    + """

if __name__ == "__main__":
    recipe_main()
"""
)

NEMO = (
    """\
import torch
from nemo_automodel.components.config._arg_parser import parse_args_and_load_config
from torch.distributed.fsdp import fully_shard


def main(default="recipe.yaml"):
    cfg = parse_args_and_load_config(default)
    model = cfg.get("model").instantiate()
    optimizer = cfg.optimizer.instantiate(params=model.parameters())
"""
    + TRAINING
    + """

if __name__ == "__main__":
    main()
"""
)

HYDRA = (
    """\
import hydra
import torch
from torch.distributed.fsdp import fully_shard


@hydra.main(version_base=None, config_path="conf", config_name="train")
def main(cfg):
    model = hydra.utils.instantiate(cfg.model)
    optimizer = hydra.utils.instantiate(cfg.optimizer, model.parameters())
"""
    + TRAINING
    + """

if __name__ == "__main__":
    main()
"""
)

OMEGACONF = (
    """\
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf
from torch.distributed.fsdp import fully_shard


def main():
    cfg = OmegaConf.merge(OmegaConf.load("conf/recipe.yaml"), OmegaConf.from_cli())
    model = get_class(cfg.model._target_)(cfg.model.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.optimizer.lr)
"""
    + TRAINING
    + """

if __name__ == "__main__":
    main()
"""
)

OWN = (
    """\
import importlib

import torch
import yaml
from omegaconf import OmegaConf
from torch.distributed.fsdp import fully_shard


def instantiate_from_config(config, *args):
    module, name = config["target"].rsplit(".", 1)
    return getattr(importlib.import_module(module), name)(*args, **config.get("params", {}))


def main():
    cfg = OmegaConf.load("recipe.yaml")
    model = instantiate_from_config(cfg.model)
    optimizer = instantiate_from_config(cfg.optimizer, model.parameters())
"""
    + TRAINING
    + """

if __name__ == "__main__":
    main()
"""
)


def _recipe(key: str, model: str = "models.small") -> str:
    return f"""\
model:
  {key}: {model}
  depth: 2
optimizer:
  {key}: torch.optim.AdamW
  lr: 0.001
"""


COMMAND = "tune run --nproc_per_node 2 train.py --config recipes/small.yaml lr=0.1\n"

WAYS = {
    "torchtune, by a command": (
        TORCHTUNE,
        {"recipes/small.yaml": _recipe("_component_"), "run.sh": COMMAND},
    ),
    "NeMo AutoModel, by the script": (NEMO, {"recipe.yaml": _recipe("_target_")}),
    "NeMo AutoModel, a file and a name in it": (
        NEMO,
        {"recipe.yaml": _recipe("_target_", "models.py:Net")},
    ),
    "Hydra, one file": (HYDRA, {"conf/train.yaml": _recipe("_target_")}),
    "Hydra, composed of groups": (
        HYDRA,
        {
            "conf/train.yaml": "defaults:\n  - model: small\n  - optimizer: adamw\n  - _self_\nseed: 1\n",
            "conf/model/small.yaml": "_target_: models.Net\ndepth: 2\n",
            "conf/optimizer/adamw.yaml": "_target_: torch.optim.AdamW\nlr: 0.001\n",
        },
    ),
    "OmegaConf": (OMEGACONF, {"conf/recipe.yaml": _recipe("_target_", "models.Net")}),
    "a function of the project": (OWN, {"recipe.yaml": _recipe("target")}),
}


def _written(folder: Path, script: str, files: dict[str, str]) -> None:
    for name, text in {"train.py": script, "models.py": MODELS, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _check(folder: Path) -> str:
    return invoke("check", "--isolated", "-f", "concise", ".", cwd=folder).stdout


@pytest.mark.parametrize("way", WAYS)
def test_what_a_recipe_names_is_followed(tmp_path: Path, way: str) -> None:
    script, files = WAYS[way]
    _written(tmp_path, script, files)
    shown = _check(tmp_path)
    assert " FSDP201 " in shown
    assert " FSDP206 " in shown
    assert "only partly" not in shown


@pytest.mark.parametrize("way", WAYS)
def test_without_a_recipe_the_model_is_not_known(tmp_path: Path, way: str) -> None:
    script, files = WAYS[way]
    _written(tmp_path, script, {name: "{}\n" for name in files if name.endswith(".yaml")})
    shown = _check(tmp_path)
    assert " FSDP206 " not in shown
    assert "only partly" in shown


def test_recipes_that_build_other_models_say_nothing_of_it(tmp_path: Path) -> None:
    other = _recipe("_component_", "models.Net")
    files = {
        "recipes/small.yaml": _recipe("_component_"),
        "recipes/other.yaml": other,
        "run.sh": COMMAND + COMMAND.replace("small", "other"),
    }
    _written(tmp_path, TORCHTUNE, files)
    assert " FSDP206 " not in _check(tmp_path)


def test_a_constant_of_a_recipe_can_be_set_anew(tmp_path: Path) -> None:
    script = TORCHTUNE.replace(
        "    for _ in range(10):",
        "    if cfg.root:\n        fully_shard(model)\n    for _ in range(10):",
    )
    for value in ("true", "false"):
        recipe = f"{_recipe('_component_')}root: {value}\n"
        _written(tmp_path, script, {"recipes/small.yaml": recipe, "run.sh": COMMAND})
        assert " FSDP206 " not in _check(tmp_path)


def test_another_recipe_gives_other_findings(tmp_path: Path) -> None:
    """What was kept of an earlier run does not count when the recipe is another."""
    script, files = WAYS["Hydra, one file"]
    _written(tmp_path, script, files)
    args = ("check", "--isolated", "-f", "concise", "--cache-dir", str(tmp_path / "kept"), ".")
    assert " FSDP206 " in invoke(*args, cwd=tmp_path).stdout
    (tmp_path / "conf/train.yaml").write_text(_recipe("_target_", "elsewhere.Net"))
    assert " FSDP206 " not in invoke(*args, cwd=tmp_path).stdout


# -- the files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "- 1\n", "a: [", "a: &x {b: *x}\n", "a: 1\n---\nb: 2\n", "{{ model }}: 1\n", "\x00"],
)
def test_a_file_that_is_no_recipe_says_nothing_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    assert "model" not in tree(str(tmp_path / "recipe.yaml"), Files())
    script, _ = WAYS["NeMo AutoModel, by the script"]
    _written(tmp_path, script, {})
    assert " FSDP206 " not in _check(tmp_path)


def test_later_defaults_of_hydra_replace_earlier_ones(tmp_path: Path) -> None:
    for name, text in {
        "train.yaml": "defaults:\n  - base\n  - model: big\n  - _self_\nmodel:\n  depth: 3\n",
        "base.yaml": "seed: 1\nmodel:\n  width: 4\n",
        "model/big.yaml": "depth: 48\nheads: 2\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    made = composed(str(tmp_path / "train.yaml"), Files())
    assert made == {"seed": 1, "model": {"width": 4, "depth": 3, "heads": 2}}


def test_what_recipes_agree_on() -> None:
    first = {"a": 1, "b": {"c": 2, "d": 3}, "e": [1]}
    second = {"a": 1, "b": {"c": 2, "d": 4}, "f": 1}
    assert agreed([first, second]) == {"a": 1, "b": {"c": 2}}
    assert agreed([first]) == first
    assert agreed([]) == {}


def test_the_commands_around_a_script_name_its_recipes(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "recipes").mkdir()
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        (tmp_path / "recipes" / name).write_text("x: 1\n")
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc-per-node 2 tools/train.py --config=recipes/a.yaml\n"
        "tune run full_finetune_distributed --config recipes/c.yaml\n"
        "python other.py --config recipes/c.yaml\n"
    )
    (tmp_path / "README.md").write_text("    tune run tools/train.py -c recipes/b.yaml\n")
    (tmp_path / "tools").mkdir()
    found = launched_with(str(tmp_path / "tools" / "train.py"), Files())
    assert sorted(map(Path, found)) == [
        tmp_path / "recipes" / "a.yaml",
        tmp_path / "recipes" / "b.yaml",
    ]
