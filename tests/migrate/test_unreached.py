"""What works inside FSDP1 in a file that nothing runs: it is no one's work, unless somebody may run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import Migration, migrate
from fsdp2lint.migrate.files import choose, launch_files
from fsdp2lint.system.discover import Exclusion, discover

COPY = '''\
"""Views of flat parameters."""

from torch.distributed.fsdp._common_utils import _FSDPState
from torch.distributed.fsdp._flat_param import FlatParamHandle


def views(state: _FSDPState, handle):
    return [view for view in FlatParamHandle._get_unflat_views(handle, handle.flat_param)]
'''
TRAIN = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(nn.Linear(8, 8), use_orig_params=True)
print("put flat_views.py in the place of torch's own file")
"""


def made(folder: Path, texts: dict[str, str]) -> Migration:
    """The migration of a project with these files beside its program and the copy."""
    everything = {"train.py": TRAIN, "flat_views.py": COPY, "setup.cfg": "", **texts}
    for name, text in everything.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    nothing = Exclusion(gitignore=False)
    chosen = choose(discover([str(folder)], nothing), launch_files([str(folder)], nothing))
    return migrate(chosen.sources, knowledge.codemods(), chosen.roots, texts=chosen.texts)


def fates(done: Migration, name: str) -> set[str]:
    assert done.failures == []
    mine: set[str] = {
        e.fate for e in done.ledger.entries if e.path.endswith(name) and e.kind != "import"
    }
    assert mine
    return mine


def test_a_copy_that_nothing_imports_is_left_alone(tmp_path: Path) -> None:
    done = made(tmp_path, {})
    assert fates(done, "flat_views.py") == {"preserved"}
    assert not any(new.path.endswith("flat_views.py") for _, new in done.changed)
    again = migrate(done.after, knowledge.codemods(), [tmp_path])
    assert again.changed == []
    assert fates(again, "flat_views.py") == {"preserved"}


@pytest.mark.parametrize(
    "texts",
    [
        {"tool.py": "import flat_views\n"},
        {"tool.py": "import importlib\nimportlib.import_module('flat_views')\n"},
        {"run.sh": "python -m flat_views\n"},
        {"jobs/sweep.yaml": "target: flat_views.views\n"},
        {"flat_views.py": COPY + "\n\nprint(views)\n"},
        {"flat_views.py": COPY + "\n\nif __name__ == '__main__':\n    views(None, None)\n"},
        {"__init__.py": ""},
        {"train.py": TRAIN + "FSDP(nn.Linear(8, 8), **vars())\n"},
    ],
    ids=["import", "by_name", "script", "settings", "effect", "main", "package", "wrapper"],
)
def test_what_may_run_is_left_to_a_person(tmp_path: Path, texts: dict[str, str]) -> None:
    assert "manual" in fates(made(tmp_path, texts), "flat_views.py")


def test_a_private_module_of_a_package_is_nobody_elses(tmp_path: Path) -> None:
    texts = {"lib/__init__.py": "", "lib/_views.py": COPY, "lib/views.py": COPY}
    done = made(tmp_path, texts)
    assert fates(done, "lib/_views.py") == {"preserved"}
    assert fates(done, "lib/views.py") == {"manual"}


def test_a_program_above_the_folder_is_asked_too(tmp_path: Path) -> None:
    """Also where nothing marks the project, or each of its parts is marked."""
    texts = {
        "lib/flat_views.py": COPY,
        "lib/setup.cfg": "",
        "tool.py": "from lib import flat_views\n",
    }
    done = made(tmp_path, texts)
    assert "manual" in fates(done, "lib/flat_views.py")


def test_what_lies_beside_the_projects_is_not_read(tmp_path: Path) -> None:
    """Two folders may be given that have the whole disk in common."""
    texts = {
        "mine/setup.cfg": "",
        "mine/train.py": TRAIN,
        "mine/flat_views.py": COPY,
        "theirs/tool.py": "import flat_views\n",
        "other/eval.py": "import torch.distributed.fsdp\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    given = [str(tmp_path / "mine"), str(tmp_path / "other")]
    nothing = Exclusion(gitignore=False)
    chosen = choose(discover(given, nothing), launch_files(given, nothing))
    done = migrate(chosen.sources, knowledge.codemods(), chosen.roots, texts=chosen.texts)
    assert fates(done, "flat_views.py") == {"preserved"}


def test_nothing_is_said_of_a_project_too_large_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsdp2lint.ask.unreached.MAX_FILES", 2)
    assert "manual" in fates(made(tmp_path, {"data.txt": ""}), "flat_views.py")


PATCH = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import _runtime_utils


class Sharded(FSDP):
    def __init__(self, module, kept=False):
        super().__init__(module, limit_all_gathers=kept)


def patch():
    _runtime_utils._post_backward_hook = None
"""


def test_a_second_run_finds_a_file_without_its_patch_as_the_first_left_it(tmp_path: Path) -> None:
    done = made(tmp_path, {"flat_views.py": PATCH})
    again = migrate(done.after, knowledge.codemods(), [tmp_path])
    assert again.changed == []
    assert fates(again, "flat_views.py") <= fates(done, "flat_views.py")


OWN = '''\
"""Shards parameters, as PyTorch's file of this name did in 1.13."""

import torch
from torch import nn

from .flat_param import FlattenParamsWrapper


class FullyShardedDataParallel(nn.Module):
    def __init__(self, module, sharding_strategy=None):
        super().__init__()
        self.sharding_strategy = sharding_strategy
        self._fsdp_wrapped_module = FlattenParamsWrapper(module)

    @property
    def module(self):
        return self._fsdp_wrapped_module.module

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._fsdp_wrapped_module, name)

    @staticmethod
    def fsdp_modules(module):
        return [m for m in module.modules() if isinstance(m, FullyShardedDataParallel) and m.check_is_root()]

    def summed(self):
        with self.state_dict_type(self):
            return [m.sharding_strategy for m in self.fsdp_modules(self)]
'''


def test_a_file_that_is_an_fsdp_by_itself_stays_as_it_is(tmp_path: Path) -> None:
    done = made(tmp_path, {"own/__init__.py": "", "own/fully_sharded_data_parallel.py": OWN})
    assert [Path(old.path).name for old, _ in done.changed] == ["train.py"]
    assert {Path(entry.path).name for entry in done.ledger.entries} == {"train.py", "flat_views.py"}
    assert not any(entry.fate == "manual" for entry in done.ledger.entries)


def test_a_class_of_that_name_that_is_torchs_is_none_by_itself(tmp_path: Path) -> None:
    derived = (
        "from torch.distributed import fsdp\n\n\n"
        "class FullyShardedDataParallel(fsdp.FullyShardedDataParallel):\n    pass\n"
    )
    done = made(tmp_path, {"derived.py": derived})
    assert "derived.py" in {Path(entry.path).name for entry in done.ledger.entries}


@pytest.mark.parametrize(
    "text",
    [
        "from dataclasses import dataclass\n\n\n@dataclass\nclass FullyShardedDataParallel:\n    flat_param: bool = True\n",
        "import torch.distributed\nfrom torch import nn\n\n\nclass FullyShardedDataParallel(nn.Module):\n"
        "    def __init__(self, module):\n        super().__init__()\n"
        "        self.flat_param = torch.distributed.fsdp.FullyShardedDataParallel(module)\n",
    ],
    ids=["settings", "a shell around torch's"],
)
def test_a_class_of_that_name_that_shards_nothing_itself_is_none(tmp_path: Path, text: str) -> None:
    done = made(tmp_path, {"train.py": f"{text}\n\n{TRAIN}"})
    assert "train.py" in {Path(old.path).name for old, _ in done.changed}
    assert "train.py" in {Path(entry.path).name for entry in done.ledger.entries}
