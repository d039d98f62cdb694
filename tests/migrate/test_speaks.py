"""Which files a migration is about: the words of FSDP1, told from those of FSDP2."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.ask.program import Program
from fsdp2lint.migrate.engine import interests
from fsdp2lint.migrate.files import choose
from fsdp2lint.migrate.speaks import holds_fsdp1
from fsdp2lint.project.project import ALL_PROGRAMS_STEPS, Budget

FSDP1 = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
    "from torch.distributed.fsdp import fully_shard, MixedPrecision",
    "from torch.distributed.fsdp import (\n    fully_shard,  # FSDP2\n    CPUOffload as Offload,\n)",
    "from torch.distributed.fsdp import \\\n    BackwardPrefetch",
    "from torch.distributed.fsdp import *",
    "from torch.distributed.fsdp.wrap import wrap",
    "import torch.distributed.fsdp as fsdp",
    "from torch.distributed import all_reduce, fsdp",
    "from torch.distributed._composable import fully_shard",
    "state = model.optim_state_dict(optim)",
    "inner = model._fsdp_wrapped_module",
    "import lightning\ntrainer = lightning.Trainer(strategy='fsdp')",
    "from transformers import TrainingArguments\nTrainingArguments(out, fsdp='full_shard')",
    "from transformers import TrainingArguments\nTrainingArguments(**{'fsdp': 'offload'})",
)
FSDP2 = (
    "from torch.distributed.fsdp import fully_shard",
    "from torch.distributed.fsdp import (\n    FSDPModule,  # the class\n    fully_shard as shard,\n)",
    "from torch.distributed._composable.fsdp import fully_shard",
    "# as FullyShardedDataParallel did\nfully_shard(model)",
    '"""Not by `torch.distributed.fsdp.FullyShardedDataParallel`."""\nfully_shard(model)',
    "import transformers\nmesh = world['fsdp']\nfsdp_config = {}",
    "from torchtitan.distributed.fsdp import apply_fsdp",
    "optim_state_dict = {}",
)


@pytest.mark.parametrize("text", FSDP1)
def test_a_name_of_fsdp1_is_seen(text: str) -> None:
    assert holds_fsdp1(text.encode())


@pytest.mark.parametrize("text", FSDP2)
def test_names_of_fsdp2_and_prose_are_not_fsdp1(text: str) -> None:
    assert not holds_fsdp1(text.encode())


def test_only_what_is_near_fsdp1_or_imports_from_old_places_is_read(tmp_path: Path) -> None:
    texts = {
        "new.py": FSDP2[0],
        "old_path.py": FSDP2[2],
        "old.py": FSDP1[0],
        "user.py": "import torch, old",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text + "\n")
    files = [str(tmp_path / name) for name in texts]
    read = {Path(one.path).name for one in choose(files).sources}
    assert read == {"old_path.py", "old.py", "user.py"}
    script = tmp_path / "run.sh"
    script.write_text('torchrun new.py --fsdp "full_shard"\n')
    read = {Path(one.path).name for one in choose(files, [str(script)]).sources}
    assert read == set(texts), "a framework may be asked for FSDP1 from there"


def test_programs_that_are_aside_share_one_budget_and_take_nothing_from_others() -> None:
    budget = Budget(patience=3)
    taken = 0
    for _ in range(200):
        taken += budget.ration(35_000, program=True, interest="aside").steps
        budget.spend(budget.rations[-1].steps)
    assert taken < ALL_PROGRAMS_STEPS // 4 + 200 * 1_500
    assert budget.ration(35_000, program=True).steps == 175_000
    first = budget.rations[0]
    assert first.covers(30_000)
    assert Budget(patience=3).allows([first])
    assert not budget.allows([first]), "nothing is left for it"


def test_what_comes_to_fsdp1_through_others_is_not_aside(tmp_path: Path) -> None:
    texts = {
        "wrapping.py": FSDP1[0],
        "helpers.py": "from wrapping import FSDP",
        "train.py": "import torch, helpers",
        "blocks.py": "import torch",
        "evaluate.py": "import torch, blocks",
        "test_helpers.py": "import torch, helpers",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text + "\n")
    chosen = choose([str(tmp_path / name) for name in texts])
    found = interests(Program(chosen.sources, chosen.roots))
    shown = {Path(one).name: interest for one, interest in found.items()}
    far = {"blocks.py", "evaluate.py", "test_helpers.py"} & {
        Path(one.path).name for one in chosen.sources
    }
    assert shown == dict.fromkeys(("helpers.py", "train.py"), "near") | dict.fromkeys(far, "aside")


def test_tests_of_fsdp1_need_no_patience_beside_programs_of_it(tmp_path: Path) -> None:
    for name in ("test_wrapping.py", "wrapping.py"):
        (tmp_path / name).write_text(FSDP1[0] + "\n")
    for names, shown in (
        (["test_wrapping.py"], {}),
        (["test_wrapping.py", "wrapping.py"], {"test_wrapping.py": "tests"}),
    ):
        chosen = choose([str(tmp_path / name) for name in names])
        found = interests(Program(chosen.sources, chosen.roots))
        assert {Path(one).name: interest for one, interest in found.items()} == shown
    ration = Budget(patience=3).ration(35_000, program=True, interest="tests")
    assert ration.steps == 35_000


@pytest.mark.parametrize("wraps", [True, False])
def test_what_is_near_gets_patience_when_it_wraps(
    wraps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training script without a word of FSDP1 that wraps by a helper is followed as long as one that wraps itself."""
    monkeypatch.setattr("fsdp2lint.interpret.machine.MAX_STEPS", 100)
    monkeypatch.setattr("fsdp2lint.project.project.ALL_PROGRAMS_STEPS", 300)
    helper = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel\n"
        "def prepare(model):\n    return FullyShardedDataParallel(model)\n"
        "def nothing(model):\n    return model\n"
    )
    work = "x = a.b + a.b + a.b\n" * 30
    train = (
        "import torch\nimport helper\ndef late():\n    torch.manual_seed(1)\n"
        "if __name__ == '__main__':\n"
        f"    model = helper.{'prepare' if wraps else 'nothing'}(torch.nn.Linear(4, 4))\n"
        + "    "
        + work.replace("\n", "\n    ")
        + "late()\n"
    )
    (tmp_path / "helper.py").write_text(helper)
    (tmp_path / "train.py").write_text(train)
    chosen = choose([str(tmp_path / "helper.py"), str(tmp_path / "train.py")])
    program = Program(chosen.sources, chosen.roots)
    program.interests = program.project.interests = interests(program)
    (trace,) = (
        one
        for one in program.traces
        if one.entry == "__main__" and one.source.path.endswith("train.py")
    )
    kinds = {one.interest for one in program.project.budget.rations if one.program}
    assert ("about" in kinds) is wraps
    assert any(trace.calls("torch.manual_seed")) is wraps
