"""What `check` says of its own sight: what it followed of each program and where it lost something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsdp2lint.check import analysis
from fsdp2lint.check.coverage import Lost, Program, Seen, gaps, merged
from fsdp2lint.check.report import Report
from fsdp2lint.check.runner import Batch, check
from fsdp2lint.interpret import machine
from fsdp2lint.project.project import PROGRAM_STEPS
from tests.support.running import invoke

WHOLE = """\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def main():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(10):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
"""
REGISTRY = """\
import plugins
import torch


def build(name):
    return plugins.find(name)(width=8)
"""
PARTLY = WHOLE.replace(
    "model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))", 'model = build("small")'
).replace("import torch\n", "import torch\nfrom registry import build\n", 1)
LIBRARY = """\
from torch.distributed.fsdp import fully_shard


def shard(model):
    fully_shard(model)
"""


def project(folder: Path, **files: str) -> Path:
    (folder / "pyproject.toml").write_text('[project]\nname = "p"\nversion = "1"\n')
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def said(folder: Path, *options: str) -> str:
    return invoke("check", "-n", *options, cwd=folder).stdout


def test_a_program_that_was_followed(tmp_path: Path) -> None:
    project(tmp_path, train=WHOLE)
    assert (
        said(tmp_path) == "All checks passed! (FSDP in 1 of 1 file; 1 training program followed)\n"
    )


MANY = """\
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

{first}
critic = nn.Linear(8, 8)
fully_shard(critic)
optimizer = torch.optim.AdamW(critic.parameters())
critic(torch.ones(2, 8)).sum().backward()
optimizer.step()
"""


def test_a_model_that_is_sharded_after_many_others_is_linked(tmp_path: Path) -> None:
    others = "".join(f"net{i} = nn.Linear(8, 8)\nfully_shard(net{i})\n" for i in range(100))
    script = tmp_path / "train.py"
    script.write_text(MANY.format(first=others))
    (program,) = check(Batch.of_files([str(script)])).programs
    assert [step.linked for step in program.steps] == [True]


HELPER = """
import torch
from torch.distributed.fsdp import fully_shard


def prepared(model):
    optimizer = torch.optim.AdamW(model.parameters())
    fully_shard(model)
    return model, optimizer
"""

CALLER = """
import torch
from torch import nn
from helper import prepared


def main():
    model, optimizer = prepared(nn.Linear(4, 4))
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


main()
"""


def test_a_finding_in_a_file_that_was_not_passed(tmp_path: Path) -> None:
    project(tmp_path, train=CALLER, helper=HELPER)
    wanted = [
        "No findings in what was passed (FSDP in 1 of 1 file; 1 training program followed).",
        "1 finding more in a file that was not passed: helper.py:7 (FSDP201).",
    ]
    for _ in ("cold", "from the cache"):
        done = invoke("check", "train.py", cwd=tmp_path)
        assert (done.returncode, done.stdout.splitlines()) == (0, wanted)
    kept = json.loads(said(tmp_path, "-f", "coverage", "train.py"))
    assert [(one["code"], one["line"]) for one in kept["elsewhere"]] == [("FSDP201", 7)]
    assert "Found 1 error." in said(tmp_path)
    assert "not passed" not in said(tmp_path)
    everywhere = said(tmp_path, "train.py", "helper.py")
    assert "Found 1 error." in everywhere
    assert "not passed" not in everywhere


def test_what_is_left_out_on_purpose_is_not_named(tmp_path: Path) -> None:
    project(tmp_path, train=CALLER, helper=HELPER)
    assert "not passed" not in said(tmp_path, "--exclude", "helper.py", "train.py")
    assert "not passed" not in said(tmp_path, "--ignore", "FSDP201", "train.py")
    silenced = HELPER.replace(
        "parameters())", "parameters())  # fsdp2lint: ignore[FSDP201] on purpose"
    )
    (tmp_path / "helper.py").write_text(silenced)
    assert "not passed" not in said(tmp_path, "train.py")
    (tmp_path / "helper.py").write_text(HELPER)
    invoke("baseline", "create", ".", cwd=tmp_path)
    assert "not passed" not in said(tmp_path, "train.py")


def test_a_library_has_no_program(tmp_path: Path) -> None:
    saving = "from torch.distributed.fsdp import StateDictType\n\nKIND = StateDictType\n"
    project(tmp_path, library=saving)
    assert "no training program was found to follow" in said(tmp_path, "--select", "FSDP2")


def test_the_place_where_the_model_was_lost(tmp_path: Path) -> None:
    project(tmp_path, train=WHOLE, train_dpo=PARTLY, registry=REGISTRY)
    assert said(tmp_path).splitlines() == [
        "No findings in what was followed (FSDP in 2 of 3 files).",
        "Followed 1 of 2 training programs; 1 only partly: train_dpo.py lost the model at "
        "registry.py:6.",
    ]


def test_the_entry_that_is_named_resolves_it(tmp_path: Path) -> None:
    project(tmp_path, train=PARTLY, registry=REGISTRY)
    done = invoke("check", "-n", "-v", cwd=tmp_path)
    (entry,) = {
        line.partition("[tool.fsdp2lint.knowledge] ")[2]
        for line in done.stderr.splitlines()
        if "knowledge" in line
    }
    assert entry == 'models = ["registry.build"]'
    with (tmp_path / "pyproject.toml").open("a") as file:
        file.write(f"[tool.fsdp2lint.knowledge]\n{entry}\n")
    assert said(tmp_path).startswith("All checks passed!")


def test_a_model_that_is_told_is_sharded_and_trained(tmp_path: Path) -> None:
    early = PARTLY.replace("    for layer in model:\n        fully_shard(layer)\n", "").replace(
        "    fully_shard(model)\n    optimizer = torch.optim.AdamW(model.parameters())\n",
        "    optimizer = torch.optim.AdamW(model.parameters())\n    fully_shard(model)\n",
    )
    project(tmp_path, train=early, registry=REGISTRY)
    with (tmp_path / "pyproject.toml").open("a") as file:
        file.write('[tool.fsdp2lint.knowledge]\nmodels = ["registry.build"]\n')
    assert "FSDP201" in said(tmp_path)


def test_functions_that_no_program_reaches(tmp_path: Path) -> None:
    project(tmp_path, parallel=LIBRARY)
    assert said(tmp_path).splitlines() == [
        "No findings in what was followed (FSDP in 1 of 1 file).",
        "No training program leads to the 1 `fully_shard` call; the functions around were checked "
        "alone.",
    ]
    (tmp_path / "train.py").write_text(WHOLE)
    assert said(tmp_path).splitlines()[1] == (
        "1 `fully_shard` call is reached by no training program."
    )


def test_a_function_of_the_program_that_its_run_does_not_reach(tmp_path: Path) -> None:
    """Its sharding is checked alone, so the program was not followed wholly."""
    aside = "import elsewhere\nfrom torch.distributed.fsdp import fully_shard\n\n\ndef aside(model):\n    fully_shard(model[0])\n\n\n"
    project(
        tmp_path,
        train=aside + WHOLE.replace("    main()\n", "    elsewhere.call(main)\n    main()\n"),
    )
    assert said(tmp_path).splitlines()[1] == (
        "1 `fully_shard` call is reached by no training program."
    )
    (one,) = check(Batch.of_files([str(tmp_path / "train.py")])).programs
    assert not one.whole
    assert [site.line for site in one.idle] == [6]


def test_the_limit_that_cut_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MAX_STEPS", 20)
    path = tmp_path / "train.py"
    path.write_text(WHOLE.replace("    main()\n", "    x = [" + "1, " * 2_000 + "]\n    main()\n"))
    (one,) = check(Batch.of_files([str(path)])).programs
    assert one.lost[0].what == "the run"
    assert f"{20 * PROGRAM_STEPS} expressions" in one.lost[0].why


def test_a_main_that_nothing_leads_to(tmp_path: Path) -> None:
    project(
        tmp_path,
        train=WHOLE.replace("    main()\n", "    import jobs\n    jobs.submit(__file__)\n"),
    )
    assert "train.py lost the way to `main` at train.py:6" in said(tmp_path)


OF_TRANSFORMERS = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("model", device_map="auto")
args = TrainingArguments("out", fsdp="full_shard")
trainer = Trainer(model=model, args=args, train_dataset=[])
trainer.train()
"""


@pytest.mark.parametrize(
    ("required", "expected"),
    [
        ("", "train.py lost the version of FSDP at train.py:6"),
        ("transformers", "train.py lost the version of FSDP at train.py:6"),
        ("transformers>=4.40", "train.py lost the version of FSDP at train.py:6"),
        ("transformers<5.10", "FSDP601"),
        ("transformers~=5.9.0", "FSDP601"),
        ("transformers>=5.10,<6", "FSDP242"),
        ("transformers==5.11.0", "FSDP242"),
    ],
)
def test_the_version_of_a_trainer_is_what_the_release_means(
    tmp_path: Path, required: str, expected: str
) -> None:
    project(tmp_path, train=OF_TRANSFORMERS)
    (tmp_path / "requirements.txt").write_text(required)
    assert expected in said(tmp_path)
    said_one = OF_TRANSFORMERS.replace(
        '"full_shard"', '"full_shard", fsdp_config={"fsdp_version": 2}'
    )
    project(tmp_path, train=said_one)
    assert "FSDP242" in said(tmp_path)


def test_programs_of_two_projects_are_followed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each under the version that the Trainer means in its own project."""
    counted = []
    plain = analysis.reports

    def counting(*args: Any) -> list[Report]:
        counted.append(args)
        return plain(*args)

    monkeypatch.setattr(analysis, "reports", counting)
    project(tmp_path, shared="from torch.distributed.fsdp import fully_shard\n")
    for name, required in (("old", "transformers<5.10"), ("new", "transformers>=5.10,<6")):
        (tmp_path / name).mkdir()
        project(
            tmp_path / name,
            train=f"import {name}.other\nimport shared\n{OF_TRANSFORMERS}",
            other="",
        )
        (tmp_path / name / "requirements.txt").write_text(required)
    found = said(tmp_path, "-f", "concise")
    assert f"{Path('old/train.py')}:7:11: FSDP601" in found
    assert f"{Path('new/train.py')}:5:9: FSDP242" in found
    assert len(counted) == 1


def test_the_version_of_a_trainer_may_stand_in_a_file_that_it_names(tmp_path: Path) -> None:
    project(
        tmp_path,
        train=OF_TRANSFORMERS.replace('"full_shard"', '"full_shard", fsdp_config="fsdp.json"'),
    )
    (tmp_path / "requirements.txt").write_text("transformers<5.10")
    assert "train.py lost the version of FSDP at train.py:6" in said(tmp_path)
    details = invoke("check", "-n", "-v", cwd=tmp_path).stderr
    assert "no version is seen in its `fsdp_config`" in details
    (tmp_path / "fsdp.json").write_text('{"fsdp_version": 2, "reshard_after_forward": true}')
    assert "FSDP242" in said(tmp_path)


def test_out_of_the_cache_and_from_processes_it_is_the_same(tmp_path: Path) -> None:
    project(tmp_path, train=WHOLE, train_dpo=PARTLY, registry=REGISTRY)
    outputs = [
        invoke("check", "-f", "coverage", *options, cwd=tmp_path).stdout
        for options in ((), (), ("-n",), ("-n", "-j", "2"), ("-j", "2"))
    ]
    assert len(set(outputs)) == 1
    kept = json.loads(outputs[0])
    assert kept["version"] == 1
    assert [one["filename"] for one in kept["programs"]] == ["train.py", "train_dpo.py"]
    assert [one["followed"] for one in kept["programs"]] == [True, False]
    assert kept["programs"][1]["lost"][0]["line"] == 6


def test_the_json_of_findings_is_a_list_as_before(tmp_path: Path) -> None:
    project(tmp_path, train=PARTLY, registry=REGISTRY)
    assert json.loads(said(tmp_path, "-f", "json")) == []


def test_the_table(tmp_path: Path) -> None:
    project(tmp_path, train=WHOLE, train_dpo=PARTLY, registry=REGISTRY)
    lines = invoke("trace", "--coverage", ".", cwd=tmp_path).stdout.splitlines()
    assert lines[1].split() == ["train.py", "2/2", "1/1", "1/1", "-", "wholly"]
    assert lines[2].split() == ["train_dpo.py", "0/2", "0/1", "0/1", "-", "partly"]


def test_what_two_units_say_of_a_program_is_one() -> None:
    unknown, known = Seen("sharded m", "a.py", 3, False), Seen("sharded m", "a.py", 3, True)
    lost = Lost("the model", "why", "b.py", 1)
    (one,) = merged(
        [
            Program("a.py", True, (unknown,), lost=(lost,)),
            Program("a.py", True, (known,), lost=(lost,)),
        ]
    )
    assert one.shards == (known,)
    assert one.lost == (lost,)


def test_checkpoints_alone_are_no_training() -> None:
    lost = Lost("the checkpoint's state", "why", "convert.py", 1)
    states = (Seen("saved x", "convert.py", 1, False),)
    assert gaps([Program("convert.py", True, states=states, lost=(lost,))]) == ""


# -- which programs are run -------------------------------------------------------------------------------

TRAINER = """\
import torch
from parallel import shard


class Trainer:
    def __init__(self, model):
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.model = shard(model)

    def fit(self, batches):
        for batch in batches:
            self.model(batch).sum().backward()
            self.optimizer.step()
"""
SHARD = LIBRARY + "    return model\n"


ENGINE = """\
import torch
from plugins import load


def main():
    method = load("sft")(width=8)
    for batch in range(10):
        loss = method.loss(batch)
        {backward}
    torch.distributed.checkpoint.save({{"method": method}}, checkpoint_id="out")


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("backward", "lost"), [("method.backward(loss)", True), ("pass", False)])
def test_an_engine_that_is_not_known_is_not_followed(
    tmp_path: Path, backward: str, *, lost: bool
) -> None:
    (tmp_path / "train.py").write_text(ENGINE.format(backward=backward))
    (one,) = check(Batch.of_files([str(tmp_path / "train.py")])).programs
    assert (one.whole, one.trains) == (not lost, lost)
    where = [(gone.what, gone.line) for gone in one.lost]
    assert where == ([("the training", 6)] if lost else [])


def test_each_trainer_that_calls_a_sharding_function_is_analysed(tmp_path: Path) -> None:
    trainers = {f"trainer_{n}": TRAINER for n in range(50)}
    project(tmp_path, parallel=SHARD, **trainers)
    assert said(tmp_path, "-f", "concise").count("FSDP201") == 50


def test_a_helper_that_hands_the_model_on_shards_too(tmp_path: Path) -> None:
    helper = "import parallel\n\n\ndef prepare(net):\n    return parallel.shard(net)\n"
    trainer = TRAINER.replace("from parallel import shard", "from helper import prepare as shard")
    trainer = trainer.replace(" as shard", "").replace("shard(model)", "prepare(model)")
    project(tmp_path, parallel=SHARD, helper=helper, trainer=trainer)
    assert said(tmp_path, "-f", "concise").count("trainer.py:7") == 1


def test_a_program_many_imports_away_is_run(tmp_path: Path) -> None:
    between = {f"step_{n}": f"from step_{n + 1} import fit\n" for n in range(6)}
    project(
        tmp_path, parallel=SHARD, step_6=FIT, train=f"from step_0 import fit\n{MAIN}", **between
    )
    found = check(Batch.of_files(sorted(map(str, tmp_path.glob("*.py"))))).programs
    assert [Path(one.file).name for one in found if one.begins] == ["train.py"]


FIT = """\
import torch
import parallel


class Fitting:
    def run(self):
        model = torch.nn.Linear(8, 8)
        parallel.shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()


def fit():
    Fitting().run()
"""
MAIN = '\n\ndef main():\n    fit()\n\n\nif __name__ == "__main__":\n    main()\n'


def test_a_console_script_is_a_program(tmp_path: Path) -> None:
    project(
        tmp_path,
        parallel=SHARD,
        fitting=FIT,
        cli="from fitting import fit\n\n\ndef run():\n    fit()\n",
    )
    with (tmp_path / "pyproject.toml").open("a") as file:
        file.write('[project.scripts]\nrun = "cli:run"\n')
    files = sorted(map(str, tmp_path.glob("*.py")))
    assert "cli.py" in {Path(one.file).name for one in check(Batch.of_files(files)).programs}


def test_launched_programs_come_first_and_the_others_are_named(tmp_path: Path) -> None:
    text = f"from fitting import fit\n{MAIN}"
    project(tmp_path, parallel=SHARD, fitting=FIT, **{f"train_{n:02}": text for n in range(45)})
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node 8 train_44.py\n")
    files = sorted(map(str, tmp_path.glob("*.py")))
    programs = {Path(one.file).name: one for one in check(Batch.of_files(files)).programs}
    assert programs["train_44.py"].whole
    left = [one for one in programs.values() if one.lost]
    assert len(left) == 5
    assert "more programs" in left[0].lost[0].why


def test_an_imported_file_that_is_too_large_is_named(tmp_path: Path) -> None:
    table = "import torch\nTABLE = [" + "1, " * 200_000 + "]\n"
    project(tmp_path, train="import table\n" + WHOLE, table=table)
    (one,) = check(Batch.of_files([str(tmp_path / "train.py")])).programs
    assert [(lost.what, lost.why) for lost in one.lost] == [
        ("the module `table.py`", "larger than 400 kB")
    ]


def test_a_main_that_nothing_leads_to_in_a_file_that_shards_when_it_is_imported(
    tmp_path: Path,
) -> None:
    """What the file does as it is imported comes first, and is no call of `main`."""
    leaves = "    raise SystemExit\n\n\nfully_shard(nn.Linear(4, 4))\n"
    project(tmp_path, train=WHOLE.replace("    main()\n", leaves))
    assert "train.py lost the way to `main` at train.py:6" in said(tmp_path)


def test_the_parameters_of_an_optimizer_that_other_code_has_grouped(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "from torch.distributed.fsdp import fully_shard\n"
        "from elsewhere import grouped\n"
        "\n"
        "model = torch.nn.Linear(8, 8)\n"
        "fully_shard(model)\n"
        "groups = grouped(model)\n"
        "optimizer = torch.optim.AdamW(groups, lr=1e-3)\n"
        "model(torch.ones(8)).sum().backward()\n"
        "optimizer.step()\n"
    )
    assert "train.py lost the parameters of `optimizer` at train.py:10" in said(tmp_path)


WRAPPER = """\


class Group:
    def __init__(self, model):
        self.optimizers = [torch.optim.AdamW(part.parameters()) for part in model]

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()


class Counting:
    def __init__(self, inner):
        self.inner = inner

    def step(self):
        return self.inner.step()

    def advance(self):
        self.step()

    def zero_grad(self):
        self.inner.zero_grad()


def main():"""


@pytest.mark.parametrize(
    ("built", "stepped", "lines"),
    [
        ("Group(model)", "step", [12, 41]),
        ("Counting(Group(model))", "step", [12, 24, 41]),
        ("Counting(Group(model))", "advance", [12, 24, 27]),
    ],
)
def test_the_step_of_the_projects_own_optimizer_is_one_at_each_call(
    tmp_path: Path, built: str, stepped: str, lines: list[int]
) -> None:
    text = WHOLE.replace("\n\ndef main():", WRAPPER, 1)
    text = text.replace("torch.optim.AdamW(model.parameters())\n    for", f"{built}\n    for")
    text = text.replace(
        "        optimizer.step()\n        optimizer.z",
        f"        optimizer.{stepped}()\n        optimizer.z",
    )
    (tmp_path / "train.py").write_text(text)
    (program,) = check(Batch.of_files([str(tmp_path / "train.py")])).programs
    assert [(one.line, one.linked) for one in program.steps] == [(line, True) for line in lines]
