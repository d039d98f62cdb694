"""Files of LightningCLI: what they become, and when they stay as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fsdp2lint.catalogue import knowledge
from fsdp2lint.frameworks.lightning import CliStrategy, cli_strategy
from fsdp2lint.frameworks.version2 import Change, settings_of
from fsdp2lint.migrate.engine import Migration, migrate
from fsdp2lint.source.source import Source
from tests.support.running import invoke

MODEL = """\
import lightning.pytorch as pl
from torch import nn


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()
"""


def planned(text: str, name: str = "config.yaml") -> CliStrategy | Change:
    asked = settings_of(Source(name, text))
    assert asked is not None
    return cli_strategy(asked, text, json=name.endswith(".json"))


def changed(text: str, name: str = "config.yaml") -> str:
    """The text with the changes made."""
    plan = planned(text, name)
    assert isinstance(plan, CliStrategy), plan
    for one in reversed(plan.changes):
        text = text[: one.start] + one.text + text[one.end :]
    return text


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("tail", ["", "\n", "\n  max_epochs: 1\n", "  # kept\n  max_epochs: 1"])
@pytest.mark.parametrize(
    "strategy",
    [
        "fsdp",
        "lightning.pytorch.strategies.fsdp.FSDPStrategy",
        "\n    class_path: FSDPStrategy",
        "\n    class_path: FSDPStrategy\n    init_args:",
        "\n    class_path: FSDPStrategy\n    init_args: {}",
        "\n    class_path: FSDPStrategy\n    init_args: {state_dict_type: full}",
        "\n    init_args:\n      state_dict_type: full\n    class_path: FSDPStrategy",
        "\n    class_path: FSDPStrategy\n    init_args:\n      auto_wrap_policy:\n      - m.A\n      - m.B",
        "{class_path: FSDPStrategy, init_args: {state_dict_type: full}}",
    ],
)
def test_each_form_becomes_the_other_strategy(strategy: str, tail: str, newline: str) -> None:
    text = f"# mine\ntrainer:\n  devices: 4\n  strategy: {strategy}{tail}".replace("\n", newline)
    made = changed(text)
    wanted = yaml.safe_load(text)
    given = yaml.safe_load(made)
    found = given["trainer"].pop("strategy")
    del wanted["trainer"]["strategy"]
    assert given == wanted
    assert found["class_path"].endswith("ModelParallelStrategy")
    assert "fsdp" not in found["class_path"]
    assert found["init_args"] == {
        "data_parallel_size": 4,
        "tensor_parallel_size": 1,
        "save_distributed_checkpoint": False,
    }
    assert made.count("#") == text.count("#")
    assert made.count("\n") == made.count(newline)
    after = settings_of(Source("config.yaml", made))
    assert after is not None
    assert after.version == 2


def test_json_becomes_json() -> None:
    text = '{"trainer": {"strategy": "fsdp", "devices": "2", "num_nodes": 2}}'
    given = json.loads(changed(text, "config.json"))["trainer"]["strategy"]
    assert given["init_args"]["data_parallel_size"] == 4


def test_comments_of_what_goes_stay() -> None:
    text = (
        "trainer:\n  devices: 2\n  strategy:\n    class_path: FSDPStrategy\n    init_args:\n"
        "      auto_wrap_policy:  # one\n        # two\n        - m.A  # three\n        - m.B  # four\n"
    )
    made = changed(text)
    assert [line.partition("#")[2] for line in made.splitlines() if "#" in line] == [
        *(" one", " two", " three", " four"),
    ]


@pytest.mark.parametrize(
    ("trainer", "why"),
    [
        ("strategy: fsdp\n  devices: 2\n  strategy: fsdp", "`strategy` is written twice"),
        ("devices: 2\n  strategy: {class_path: FSDPStrategy, init_args: [1]}", "no mapping"),
        ("devices: 2\n  strategy: fsdp\nmodel: [1]", "no mapping"),
        ("devices: 2\n  strategy: {class_path: FSDPStrategy, class_path: FSDPStrategy}", "twice"),
        (
            "devices: 2\n  strategy: {class_path: FSDPStrategy, init_args: {auto_wrap_policy: [1]}}",
            "no list of classes",
        ),
        ("strategy: fsdp", "number of GPUs"),
        ("strategy: fsdp\n  devices: auto", "number of GPUs"),
        ("strategy: fsdp\n  devices: 2\n  num_nodes: ${N}", "number of GPUs"),
        ("strategy: fsdp\n  devices: 2\n  precision: bf16-mixed", "precision"),
        ("strategy: fsdp_cpu_offload\n  devices: 2", "offloading"),
        (
            "devices: 2\n  strategy: {class_path: FSDPStrategy, init_args: {cpu_offload: true}}",
            "cpu_",
        ),
        (
            "devices: 2\n  strategy: {class_path: FSDPStrategy, init_args: {sharding_strategy: NO_SHARD}}",
            "NO_SHARD",
        ),
        (
            "devices: 2\n  strategy: {class_path: FSDPStrategy, init_args: {auto_wrap_policy: m.policy}}",
            "no list of classes",
        ),
        (
            "devices: 2\n  strategy: &a\n    class_path: FSDPStrategy\nother:\n  strategy: *a",
            "anchor",
        ),
    ],
)
def test_what_has_no_equal_is_left(trainer: str, why: str) -> None:
    plan = planned(f"trainer:\n  {trainer}\n")
    assert isinstance(plan, Change)
    assert plan.fate == "manual"
    assert why in plan.why


def both(model: str, *files: str, **more: str) -> Migration:
    """What the codemods make of a LightningModule with settings files, and more files of Python."""
    more = {"main": "from lightning.pytorch.cli import LightningCLI\n\nLightningCLI()\n", **more}
    sources = [Source("model.py", model), *(Source(f"{n}.py", text) for n, text in more.items())]
    texts = [Source(f"{number}.yaml", text) for number, text in enumerate(files)]
    names = ("framework-wrappers", "settings-files")
    codemods = [one for one in knowledge.codemods() if one.name in names]
    return migrate(sources, codemods, whole=False, texts=texts)


FSDP = "trainer:\n  strategy: fsdp\n  devices: 2\n"
KEEPS = (
    "trainer:\n  strategy:\n    class_path: FSDPStrategy\n    init_args:\n      sharding_strategy: SHARD_GRAD_OP\n"
    "  devices: 2\n"
)


def test_several_files_of_one_module_change_together() -> None:
    made = both(MODEL, FSDP, FSDP.replace("2", "8"))
    assert [old.path for old, _ in made.changed] == ["model.py", "0.yaml", "1.yaml"]
    assert made.after[0].text.count("def configure_model") == 1


@pytest.mark.parametrize(
    ("files", "model", "why"),
    [
        ([FSDP, KEEPS], MODEL, "in different ways"),
        ([FSDP + "model: other.Another\n"], MODEL, "needs code of the LightningModule"),
        ([FSDP], MODEL.replace("pl.LightningModule", "Base"), "needs code of the LightningModule"),
        ([FSDP], MODEL.replace("def __init__", "def configure_model"), "`configure_model` already"),
        (
            [FSDP],
            MODEL + "\n\ntrainer = pl.Trainer(strategy='fsdp', devices=2)\n",
            "the script asks",
        ),
    ],
)
def test_both_or_neither(files: list[str], model: str, why: str) -> None:
    made = both(model, *files)
    assert not [old.path for old, _ in made.changed if old.path.endswith(".yaml")]
    left = [one for one in made.ledger.entries if one.path.endswith(".yaml")]
    assert len(left) == len(files)
    assert all(one.fate == "manual" and why in one.why for one in left)


def test_the_module_is_the_one_that_the_cli_is_given() -> None:
    other = MODEL.replace("class Model", "class Other")
    main = "from lightning.pytorch.cli import LightningCLI\nfrom other import Other\n\nLightningCLI(Other)\n"
    made = both(MODEL, FSDP, other=other, main=main)
    assert [old.path for old, _ in made.changed] == ["other.py", "0.yaml"]


@pytest.mark.parametrize(("settings", "converted"), [(FSDP, False), (KEEPS, True)])
def test_a_word_may_be_read_by_another_script(settings: str, converted: bool) -> None:
    made = both(MODEL, settings, main="import yaml\n\nTrainer(**yaml.safe_load(open('0.yaml')))\n")
    assert bool(made.changed) is converted
    (first, *_) = (one for one in made.ledger.entries if one.path == "0.yaml")
    assert ("no script that calls LightningCLI" in first.why) is not converted


@pytest.mark.parametrize("settings", [FSDP, KEEPS])
def test_a_second_run_changes_nothing(settings: str) -> None:
    made = both(MODEL, settings)
    texts: list[Any] = [one.text for one in made.after]
    again = both(texts[0], texts[-1])
    assert again.changed == []
    assert again.ledger.entries == []


FSDP2 = "trainer:\n  devices: 2\n  strategy:\n    class_path: ModelParallelStrategy\n"
SIZES = "    init_args: {data_parallel_size: 2, tensor_parallel_size: 1}\n"
MAIN = (
    "from lightning.pytorch.cli import LightningCLI\nfrom model import Model\n\n"
    "if __name__ == '__main__':\n    LightningCLI(Model{more})\n"
)
SAVES = """\
    def configure_model(self):
        fully_shard(self, mesh=self.device_mesh["data_parallel"])

    def on_train_end(self):
        torch.save(self.state_dict(), "model.pt")
"""


def found(folder: Path, command: str, model: str = MODEL, more: str = "", file: str = FSDP2) -> str:
    """What is reported of a script of LightningCLI with a command that starts it."""
    (folder / "config.yaml").write_text(file + SIZES)
    (folder / "model.py").write_text(model)
    (folder / "main.py").write_text(MAIN.format(more=more))
    (folder / "run.sh").write_text(f"{command}\n")
    return invoke("check", "--isolated", "-f", "concise", ".", cwd=folder).stdout


@pytest.mark.parametrize(
    ("command", "more", "file", "raises"),
    [
        ("python main.py fit --config config.yaml", "", FSDP2, True),
        ("torchrun main.py fit -c config.yaml", "", FSDP2, True),
        ("make", ", parser_kwargs={'default_config_files': ['config.yaml']}", FSDP2, True),
        ("python main.py fit --config other.yaml", "", FSDP2, False),
        ("python main.py fit --config config.yaml", ", run=False", FSDP2, False),
        (
            "python main.py fit --config config.yaml",
            "",
            FSDP2.replace("ModelParallel", "FSDP"),
            False,
        ),
    ],
)
def test_a_module_without_configure_model_under_its_file(
    tmp_path: Path, command: str, more: str, file: str, raises: bool
) -> None:
    shown = found(tmp_path, command, more=more, file=file)
    assert ("main.py:5:5: FSDP607" in shown) is raises, shown


@pytest.mark.parametrize("rival", [False, True])
def test_the_only_file_in_the_folder_is_the_scripts_own(tmp_path: Path, rival: bool) -> None:
    (tmp_path / "ddp.yaml").write_text("trainer:\n  strategy: ddp\n" if rival else "x: 1\n")
    shown = found(tmp_path, "make")
    assert ("main.py:5:5: FSDP607" in shown) is not rival, shown
    assert ("No script was analysed under the settings in config.yaml" in shown) is rival


def test_the_hooks_of_the_module_are_followed(tmp_path: Path) -> None:
    model = MODEL.replace("import lightning", "import torch\nimport lightning") + "\n" + SAVES
    model = "from torch.distributed.fsdp import fully_shard\n" + model
    shown = found(tmp_path, "python main.py fit --config config.yaml", model)
    assert "model.py:19:9: FSDP301" in shown, shown
    assert "FSDP607" not in shown
