"""What the data say of torch's releases, and how they are read from wheels."""

from __future__ import annotations

import json
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdp2lint.catalogue import knowledge
from fsdp2lint.cli.program import program
from fsdp2lint.config.settings import OLDEST_TORCH, Settings
from fsdp2lint.torch_api import exported, offer, releases

FSDP = "torch.distributed.fsdp"

OLD = {
    "torch/distributed/fsdp/__init__.py": "from ._shard import shard, Unit, gone\n__all__ = ['shard', 'Unit', 'gone', 'Native']\nfrom torch._C import Native\n",
    "torch/distributed/fsdp/_shard.py": (
        "def shard(module, *, mesh=None): ...\n"
        "def gone(): ...\n"
        "class Unit:\n    def stop(self, hard=False): ...\n    def _inner(self): ...\n"
    ),
    "torch/nn/utils/clip_grad.py": "import math\ndef clip(parameters, *rest, **more): ...\n",
    "torch/other.py": "def unseen(): ...\n",
}
NEW = OLD | {
    "torch/distributed/fsdp/__init__.py": "from ._shard import shard, Unit\n__all__ = ['shard', 'Unit', 'Native']\nfrom torch._C import Native\n",
    "torch/distributed/fsdp/_shard.py": (
        "from typing_extensions import deprecated\n"
        "def shard(module, *, mesh=None, ignored=None): ...\n"
        "class Unit:\n"
        "    @deprecated('use halt')\n    def stop(self, hard=False): ...\n"
        "    @classmethod\n    def halt(cls, when): ...\n"
    ),
}


def wheel(folder: Path, release: str, files: dict[str, str]) -> Path:
    path = folder / f"torch-{release}.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.mark.skipif(find_spec("griffe") is None, reason="griffe is not installed")
def test_wheels_become_one_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdp2lint.torch_api import collect

    history = tmp_path / "history.json"
    wheels = {"2.9": wheel(tmp_path, "2.9", OLD), "2.10": wheel(tmp_path, "2.10", NEW)}
    monkeypatch.setattr(collect, "HISTORY", history)
    monkeypatch.setattr(collect, "downloaded", lambda release, folder: wheels[release])
    done = CliRunner().invoke(collect.main, ["2.10", "2.9"])
    assert done.exit_code == 0, done.output
    assert json.loads(history.read_text()) == {
        "releases": ["2.9", "2.10"],
        "names": {
            f"{FSDP}.Native": {"since": "2.9", "until": "2.10"},
            f"{FSDP}.Unit": {"since": "2.9", "until": "2.10"},
            f"{FSDP}.Unit.halt": {
                "since": "2.10",
                "until": "2.10",
                "parameters": {"2.10": "when"},
            },
            f"{FSDP}.Unit.stop": {
                "since": "2.9",
                "until": "2.10",
                "parameters": {"2.9": "hard"},
                "deprecated": "2.10",
            },
            f"{FSDP}.gone": {"since": "2.9", "until": "2.9", "parameters": {"2.9": ""}},
            f"{FSDP}.shard": {
                "since": "2.9",
                "until": "2.10",
                "parameters": {"2.9": "module mesh", "2.10": "module mesh ignored"},
            },
            "torch.nn.utils.clip_grad.clip": {
                "since": "2.9",
                "until": "2.10",
                "parameters": {"2.9": "parameters *rest **more"},
            },
        },
    }


@pytest.mark.skipif(find_spec("griffe") is None, reason="griffe is not installed")
def test_what_is_no_release_is_said(tmp_path: Path) -> None:
    from fsdp2lint.torch_api import collect

    done = CliRunner().invoke(collect.main, ["latest"])
    assert done.exit_code == 2
    assert "`latest` is not a release such as 2.8" in done.output


def test_signatures_grow() -> None:
    sharding = offer(f"{FSDP}.fully_shard")
    assert sharding is not None
    assert "ignored_params" not in sharding.parameters((2, 6))
    assert "ignored_params" in sharding.parameters((2, 7))
    assert sharding.parameters((2, 99)) == sharding.parameters(releases()[-1])
    assert sharding.parameters((2, 0)) == ()
    assert sharding.until is None


def test_what_is_deprecated_is_known() -> None:
    old = offer("torch.distributed.checkpoint.save_state_dict")
    assert old is not None
    assert old.deprecated is not None
    assert offer("torch.distributed.checkpoint.save_everything") is None


def test_exported_names_are_there_from_the_release_on() -> None:
    assert "share_comm_ctx" not in exported(FSDP, (2, 6))
    assert "share_comm_ctx" in exported(FSDP, (2, 10))
    assert {"fully_shard", "FSDPModule", "MixedPrecisionPolicy"} <= exported(FSDP, (2, 6))


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    "module", [FSDP, "torch.distributed.checkpoint", "torch.distributed.tensor"]
)
def test_the_data_hold_for_the_installed_torch(module: str) -> None:
    import importlib
    import inspect

    import torch

    major, minor, *_ = torch.__version__.split(".")
    here = int(major), int(minor)
    if here not in releases():
        pytest.skip(f"the data do not know torch {torch.__version__}")
    names = exported(module, here)
    assert names
    for name in names:
        found = getattr(importlib.import_module(module), name)
        known = offer(f"{module}.{name}")
        assert known is not None
        if inspect.isfunction(found):
            said = [p.lstrip("*") for p in known.parameters(here)]
            assert list(inspect.signature(found).parameters) == said, name


def test_rules_begin_with_what_they_are_about() -> None:
    oldest = tuple(map(int, OLDEST_TORCH.split(".")))
    assert releases()[0] == oldest
    (pinned,) = [r for r in knowledge.rules() if r.name == "unpinned-async-save"]
    remedy = offer("torch.distributed.checkpoint.staging.DefaultStager")
    assert remedy is not None
    assert pinned.since == ".".join(map(str, remedy.since))


def test_what_only_newer_releases_have_is_judged_without_a_target() -> None:
    (ignored,) = [r for r in knowledge.rules() if r.name == "ignored-params-type"]
    assert ignored in Settings().chosen(knowledge.rules()), "its argument says that torch is newer"


USES_NEWER = """
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model, ignored_params={model.bias})
"""


@pytest.mark.parametrize(("bound", "codes"), [("", []), (">=2.6", ["FSDP259"]), (">=2.7", [])])
def test_the_oldest_torch_of_a_project_decides(
    bound: str, codes: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(USES_NEWER)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"torch{bound}\n")
    (tmp_path / ".git").mkdir()
    done = CliRunner().invoke(
        program, ["check", "--output-format", "json", "--no-cache", str(script)]
    )
    found = [one["code"] for one in json.loads(done.output)]
    assert found == codes


def test_old_homes_lead_to_the_public_ones() -> None:
    script = (
        "from torch.distributed._tensor import DTensor\n"
        "from torch.distributed._tensor.device_mesh import DeviceMesh, init_device_mesh\n"
        "from torch.distributed._composable.fsdp import fully_shard\n"
    )
    options = ["--isolated", "--no-cache", "--select", "FSDP230", "--fix", "-"]
    done = CliRunner().invoke(program, ["check", *options], input=script)
    assert done.stdout == (
        "from torch.distributed.tensor import DTensor\n"
        "from torch.distributed.device_mesh import DeviceMesh, init_device_mesh\n"
        "from torch.distributed.fsdp import fully_shard\n"
    )
