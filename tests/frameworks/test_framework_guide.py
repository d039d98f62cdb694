"""The guides for users of frameworks: their complete examples do what the pages say."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.prove.equality import apart
from fsdp2lint.rehearse import warm
from fsdp2lint.rehearse.launch import Run
from tests.support.running import ROOT, invoke
from tests.verify.scenes import forking

GUIDES = ROOT / "docs" / "guides"


def examples(name: str) -> list[tuple[str, str]]:
    """The files of a page, each with the name in its first line."""
    text = (GUIDES / f"{name}.md").read_text("utf-8")
    found = re.findall(r"```(?:python|yaml|json)\n(.*?)```", text, re.DOTALL)
    named = [(body.split("\n", 1)[0].removeprefix("# "), body) for body in found]
    return [(file, body) for file, body in named if body.startswith("# ")]


def laid_out(name: str, folder: Path) -> dict[str, str]:
    """Write the first of each file of a page; what is shown later is what it becomes."""
    wanted: dict[str, str] = {}
    for file, body in examples(name):
        if " " in file:
            continue  # a part of a file
        if (folder / file).exists():
            wanted[file] = body
        else:
            (folder / file).write_text(body)
    return wanted


@pytest.mark.parametrize("name", ["accelerate"])
def test_the_files_become_what_the_page_shows(tmp_path: Path, name: str) -> None:
    wanted = laid_out(name, tmp_path)
    assert wanted
    shown = invoke("migrate", "--write", "-q", ".", cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout
    assert {file: (tmp_path / file).read_text() for file in wanted} == wanted
    after = invoke("check", "--isolated", "-f", "concise", ".", cwd=tmp_path)
    assert after.returncode == 0, after.stdout
    assert "FSDP6" not in after.stdout


def verified_afresh(folder: Path, *words: str) -> str:
    """What ``verify`` prints, of ranks that import the frameworks behind the watchers, as those of a user do."""
    done = subprocess.run(
        [sys.executable, "-m", "fsdp2lint", "verify", "-q", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=900,
        check=False,
    )
    return done.stdout + done.stderr


def verified(folder: Path, *words: str) -> str:
    """The same, of ranks that are forked where the frameworks have been imported: files of safetensors are not seen."""

    def compared(_: warm.Forking, task: Path, out: Path) -> bool:
        apart.main(task, out)
        return True

    with forking(frameworks=True) as ranks:

        def launched(_: warm.Forking, *given: Any) -> Run:
            return ranks.launch(*given)

        with mock.patch.multiple(warm.Forking, launch=launched, compare=compared):
            done = invoke("verify", "-q", *words, cwd=folder)
    return done.stdout + done.stderr


def command(name: str, start: str) -> list[str]:
    """The words of a command that the page shows, without those of ours that come first."""
    text = (GUIDES / f"{name}.md").read_text("utf-8")
    (line,) = re.findall(rf"^{re.escape(start)}.*$", text, re.MULTILINE)
    return shlex.split(line.partition("#")[0])[2:]


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate runs itself")
def test_accelerate_does_the_same_and_reads_the_old_checkpoint(tmp_path: Path) -> None:
    laid_out("accelerate", tmp_path)
    (tmp_path / "old.yaml").write_text((tmp_path / "fsdp.yaml").read_text())
    assert invoke("migrate", "--write", "-q", "fsdp.yaml", cwd=tmp_path).returncode == 0
    told = verified(tmp_path, *command("accelerate", "fsdp2lint verify --resume"))
    assert "Equal: rung 3 of 4 (run on CPU)." in told
    for row in (
        "losses      8",
        "gradient norms      4",
        "parameters      8",
        "checkpoint/optimizer.bin     88",
        "checkpoint/pytorch_model_fsdp.bin      8",
    ):
        assert re.search(rf"{re.escape(row)}  equal", told), told


def with_a_plugin(folder: Path) -> None:
    """The script of accelerate's page with the plugin that the page shows, and what migrating makes of it."""
    parts = dict(examples("accelerate"))
    plugin = parts["the plugin"].partition("\n")[2]
    script = parts["train.py"].replace("accelerator = Accelerator()\n", plugin)
    for name in ("before.py", "train.py"):
        (folder / name).write_text(script)
    assert invoke("migrate", "--write", "-q", "train.py", cwd=folder).returncode == 0


def test_a_plugin_becomes_what_the_page_shows(tmp_path: Path) -> None:
    with_a_plugin(tmp_path)
    pages = (GUIDES / "accelerate.md").read_text("utf-8")
    (shown,) = re.findall(r"```diff\n(.*?)```", pages, re.DOTALL)
    sides = [[line[1:] for line in shown.splitlines() if line[0] in kept] for kept in ("- ", "+ ")]
    for name, lines in zip(("before.py", "train.py"), sides, strict=True):
        assert "\n".join(lines) in (tmp_path / name).read_text()
    assert quiet(tmp_path)


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate runs itself")
def test_a_plugin_does_the_same_and_reads_the_old_checkpoint(tmp_path: Path) -> None:
    with_a_plugin(tmp_path)
    told = verified(tmp_path, *command("accelerate", "fsdp2lint verify before.py"))
    assert equal(told, *TRAINED, "checkpoint/pytorch_model_fsdp.bin"), told
    assert "Equal: rung 3 of 4 (run on CPU)." in told


def before_and_after(name: str, folder: Path) -> None:
    """The example of a page, and what migrating makes of it."""
    laid_out(name, folder)
    (folder / "before.py").write_text((folder / "train.py").read_text())
    assert invoke("migrate", "--write", "-q", "train.py", cwd=folder).returncode == 0


def test_the_trainer_gets_version_2(tmp_path: Path) -> None:
    before_and_after("trainer", tmp_path)
    old, new = ((tmp_path / f"{name}.py").read_text() for name in ("before", "train"))
    assert new == old.replace('"fsdp_version": 1', '"fsdp_version": 2')
    assert quiet(tmp_path)


def test_the_module_of_lightning_gets_what_the_page_shows(tmp_path: Path) -> None:
    before_and_after("lightning", tmp_path)
    made = (tmp_path / "train.py").read_text()
    (shown,) = (body for name, body in examples("lightning") if name.startswith("the method"))
    method = shown.partition("LightningModule):\n")[2]
    assert "def configure_model" in method
    assert method in made
    strategy = re.search(r"`(ModelParallelStrategy\(.*\))`", (GUIDES / "lightning.md").read_text())
    assert strategy is not None
    assert strategy[1] in made
    (tmp_path / "config.yaml").unlink()  # of the page's other script
    assert quiet(tmp_path)


def with_a_settings_file(folder: Path) -> dict[str, str]:
    """The files of LightningCLI on the page, and what migrating makes of them; what the page shows of it."""
    wanted = laid_out("lightning", folder)
    files = command("lightning", "mkdir before && cp")[2:-1]
    (folder / "before").mkdir()
    for file in files:
        (folder / "before" / file).write_text((folder / file).read_text())
    assert invoke("migrate", "--write", "-q", *files, cwd=folder).returncode == 0
    return wanted


def test_a_settings_file_of_lightning_becomes_what_the_page_shows(tmp_path: Path) -> None:
    wanted = with_a_settings_file(tmp_path)
    assert {file: (tmp_path / file).read_text() for file in wanted} == wanted
    assert "def configure_model" in (tmp_path / "model.py").read_text()
    again = invoke("migrate", "config.yaml", "main.py", "model.py", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, "No FSDP1 code found.\n"), again.stdout
    (tmp_path / "run.sh").write_text("python main.py fit --config config.yaml\n")
    shown = invoke("check", "--isolated", "config.yaml", "main.py", "model.py", cwd=tmp_path)
    assert "All checks passed! (FSDP in 3 of 3 files; 1 training program" in shown.stdout


def test_the_worker_of_ray_is_followed(tmp_path: Path) -> None:
    laid_out("ray", tmp_path)
    assert quiet(tmp_path)


WHOLE = """\
import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generators = [torch.Generator().manual_seed(rank) for rank in range(2)]
for _ in range(10):
    batches = [torch.randn(4, 8, generator=generator) for generator in generators]
    (sum(model(x).square().mean() for x in batches) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
torch.save(model.state_dict(), sys.argv[1])
"""
"""The training of Ray's page in one process, without sharding."""

COMPARED = """\
import sys

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

dcp_to_torch_save(sys.argv[1], "read.pt")
read, whole = torch.load("read.pt")["model"], torch.load(sys.argv[2])
assert read.keys() == whole.keys()
assert all(torch.allclose(read[name], whole[name], atol=1e-6) for name in whole)
print("equal")
"""


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray runs itself")
def test_the_workers_of_ray_train_as_without_sharding(tmp_path: Path) -> None:
    laid_out("ray", tmp_path)
    script = tmp_path / "train.py"
    text = script.read_text().replace("use_gpu=True", "use_gpu=False")
    script.write_text(text.replace('"/shared"', repr(str(tmp_path / "shared"))))
    (tmp_path / "whole.py").write_text(WHOLE)
    (tmp_path / "compared.py").write_text(COMPARED)
    trained = run_once(tmp_path, "train.py")
    for _ in range(2):
        # Ray picks a free port before its worker listens on it: another process may have taken it
        if "EADDRINUSE" not in trained.stdout + trained.stderr:
            break
        shutil.rmtree(tmp_path / "shared", ignore_errors=True)
        trained = run_once(tmp_path, "train.py")
    whole = run_once(tmp_path, "whole.py", "whole.pt")
    compared = run_once(tmp_path, "compared.py", "shared/last", "whole.pt")
    for done in (trained, whole, compared):
        assert done.returncode == 0, done.stdout + done.stderr
    assert compared.stdout == "equal\n"


PATIENT = {
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "600",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    "RAY_gcs_server_port_wait_time_s": "600",
}
"""Ray gives its processes a minute to start, in which a busy machine does not import PyTorch."""


def run_once(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with these words in the folder."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", **PATIENT},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def quiet(folder: Path) -> bool:
    """Whether the example is followed to its end and nothing is reported."""
    shown = invoke("check", "--isolated", "-f", "concise", "train.py", cwd=folder)
    return "All checks passed! (FSDP in 1 of 1 file; 1 training program followed)" in shown.stdout


def equal(told: str, *rows: str) -> bool:
    """Whether ``verify`` calls each of these rows equal."""
    return all(re.search(rf"^ *{re.escape(row)} +\d+  equal", told, re.MULTILINE) for row in rows)


TRAINED = ("losses", "gradient norms", "learning rates", "parameters", "optimizer state")


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("transformers") is None, reason="the Trainer runs itself")
def test_the_trainer_does_the_same_and_reads_the_old_checkpoint(tmp_path: Path) -> None:
    before_and_after("trainer", tmp_path)
    told = verified_afresh(tmp_path, *command("trainer", "fsdp2lint verify --resume"))
    assert equal(told, *TRAINED, "final/model.safetensors"), told
    assert "Equal: rung 3 of 4 (run on CPU)." in told
    notes = re.findall(r"^note: .*expected.*", told, re.MULTILINE)
    assert any("`fsdp_config.version`: 1 becomes 2" in one for one in notes), told
    assert any("total_flos" in one for one in notes), told


TRL = """\
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

words = {f"w{n}": n for n in range(62)} | {"[PAD]": 62, "[EOS]": 63}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(words)), pad_token="[PAD]", eos_token="[EOS]"
)
rows = torch.randint(0, 62, (32, 8), generator=torch.Generator().manual_seed(0)).tolist()
args = SFTConfig(
    "out",
    fsdp="full_shard auto_wrap",
    fsdp_config={"fsdp_version": 1, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
    per_device_train_batch_size=4,
    max_steps=2,
    lr_scheduler_type="constant",
    learning_rate=1e-2,
    gradient_checkpointing=False,
    bf16=False,
    report_to=[],
)
set_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
)
trainer = SFTTrainer(
    model=LlamaForCausalLM(config),
    args=args,
    train_dataset=Dataset.from_dict({"input_ids": rows}),
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model("final")
"""


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("trl") is None, reason="TRL runs itself")
@pytest.mark.parametrize("adapters", [False, True], ids=["all weights", "LoRA of PEFT"])
def test_trl_does_the_same(tmp_path: Path, adapters: bool) -> None:
    lora = "from peft import LoraConfig\n" + TRL.replace(
        "processing_class=tokenizer,",
        "processing_class=tokenizer,\n"
        "    peft_config=LoraConfig(r=4, target_modules=['q_proj', 'v_proj']),",
    )
    for name in ("before.py", "train.py"):
        (tmp_path / name).write_text(lora if adapters else TRL)
    invoke("migrate", "train.py", "--write", cwd=tmp_path)
    assert '"fsdp_version": 2' in (tmp_path / "train.py").read_text()
    told = verified(tmp_path, "before.py", "train.py")
    assert equal(told, *TRAINED), told
    assert "Equal: rung 3 of 4 (run on CPU)." in told


def test_a_script_of_trl_trains(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRL)
    shown = invoke("check", "--isolated", "train.py", cwd=tmp_path).stdout
    assert shown.startswith("note[FSDP601]")
    assert shown.endswith("Found 1 note.\n")
    script.write_text(TRL.replace('"fsdp_version": 1', '"fsdp_version": 2'))
    shown = invoke("check", "--isolated", "train.py", cwd=tmp_path).stdout
    assert shown.startswith("All checks passed! (FSDP in 1 of 1 file; 1 training program followed)")


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("lightning") is None, reason="Lightning runs itself")
def test_lightning_does_the_same(tmp_path: Path) -> None:
    before_and_after("lightning", tmp_path)
    told = verified(tmp_path, *command("lightning", "fsdp2lint verify before.py"))
    assert equal(told, *TRAINED), told
    assert "Equal: rung 3 of 4 (run on CPU)." in told
    assert "AFTER's module is called with 1 of the 2 tensors" in told


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("jsonargparse") is None, reason="LightningCLI runs itself")
def test_lightning_cli_does_the_same(tmp_path: Path) -> None:
    with_a_settings_file(tmp_path)
    told = verified(tmp_path, *command("lightning", 'fsdp2lint verify "torchrun'))
    assert equal(told, *TRAINED), told
    assert "Equal: rung 3 of 4 (run on CPU)." in told


# -- side by side with accelerate's own command ------------------------------------------------------------------

SIDE = """\
# my cluster
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: {strategy}  # a note
  fsdp_state_dict_type: 'FULL_STATE_DICT'
num_machines: 2
num_processes: 16
"""


def converted(text: str, folder: Path) -> tuple[str, str, int]:
    """What ``accelerate to-fsdp2`` makes of settings, what ``migrate`` makes of them, and its exit code."""
    command = pytest.importorskip("accelerate.commands.to_fsdp2")
    for name in ("theirs", "ours"):
        (folder / f"{name}.yaml").write_text(text)
    words = [
        "--config_file",
        str(folder / "theirs.yaml"),
        "--output_file",
        str(folder / "out.yaml"),
    ]
    command.to_fsdp2_command(command.to_fsdp2_command_parser().parse_args(words))
    code = invoke("migrate", "--write", "-q", "ours.yaml", cwd=folder).returncode
    return (folder / "out.yaml").read_text(), (folder / "ours.yaml").read_text(), code


def test_comments_and_quotes_beside_accelerate(tmp_path: Path) -> None:
    theirs, ours, _ = converted(SIDE.format(strategy="SHARD_GRAD_OP"), tmp_path)
    assert not any(kept in theirs for kept in ("# my cluster", "# a note", "'FULL_STATE_DICT'"))
    assert all(kept in ours for kept in ("# my cluster", "# a note", "'FULL_STATE_DICT'"))


def test_no_shard_beside_accelerate(tmp_path: Path) -> None:
    text = SIDE.format(strategy="NO_SHARD")
    theirs, ours, code = converted(text, tmp_path)
    assert "fsdp_version: 2" in theirs
    assert (ours, code) == (text, 1)


def test_hybrid_sharding_beside_accelerate(tmp_path: Path) -> None:
    theirs, ours, _ = converted(SIDE.format(strategy="HYBRID_SHARD"), tmp_path)
    assert "parallelism_config" not in theirs
    assert "parallelism_config_dp_replicate_size: 2" in ours
    assert "parallelism_config_dp_shard_size: 8" in ours


def test_the_default_type_beside_accelerate(tmp_path: Path) -> None:
    text = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
    theirs, ours, _ = converted(text, tmp_path)
    assert "fsdp_state_dict_type" not in theirs
    assert "fsdp_state_dict_type: FULL_STATE_DICT" in ours


def test_a_numbered_strategy_beside_accelerate(tmp_path: Path) -> None:
    theirs, ours, _ = converted(SIDE.format(strategy="2"), tmp_path)
    assert "fsdp_reshard_after_forward: 2" in theirs
    assert "fsdp_reshard_after_forward: false" in ours
    (tmp_path / "check.yaml").write_text(theirs)
    shown = invoke("check", "--isolated", "-f", "concise", "check.yaml", cwd=tmp_path)
    assert "FSDP605" in shown.stdout


# -- the table ---------------------------------------------------------------------------------------------------

INDEX = (GUIDES / "frameworks.md").read_text("utf-8")
ROWS = {
    cells[0]: cells[1:]
    for line in INDEX.splitlines()
    if line.startswith("| ") and not line.startswith("| framework")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
COLUMNS = ("recognised", "checked", "settings migrated", "proven by a run")
FILES = "test_settings_files.py::test_a_settings_file_is_recognised"
GATE = "test_frameworks_gate.py::test_asking_a_framework_for_fsdp_is_relevant"
FIXTURES = "test_rules.py::test_a_fixture_shows_what_it_says"
CODEMODS = "test_codemods.py::test_what_comes_out"
HERE = "test_framework_guide.py"
BACKED = {
    "accelerate, YAML or JSON": (
        *(FILES, FIXTURES, CODEMODS),
        f"{HERE}::test_accelerate_does_the_same_and_reads_the_old_checkpoint",
    ),
    "accelerate, `FullyShardedDataParallelPlugin`": (
        *(GATE, FIXTURES, CODEMODS),
        f"{HERE}::test_a_plugin_does_the_same_and_reads_the_old_checkpoint",
    ),
    "Trainer (`TrainingArguments`, `fsdp_config` file)": (
        *(FILES, FIXTURES, CODEMODS),
        f"{HERE}::test_the_trainer_does_the_same_and_reads_the_old_checkpoint",
    ),
    "TRL (`SFTConfig` and the other configs), PEFT": (
        *(GATE, FIXTURES, CODEMODS),
        f"{HERE}::test_trl_does_the_same",
    ),
    "ms-swift (JSON file)": (FILES, FIXTURES, "test_settings_files.py::test_swift_is_migrated"),
    "axolotl recipe": (FILES, FIXTURES, CODEMODS),
    'Lightning, `FSDPStrategy`, `strategy="fsdp"`': (
        *(GATE, FIXTURES, CODEMODS),
        f"{HERE}::test_lightning_does_the_same",
    ),
    "LightningCLI YAML": (FILES, FIXTURES, CODEMODS, f"{HERE}::test_lightning_cli_does_the_same"),
    "commands: `accelerate launch --use_fsdp`, `train.py --fsdp full_shard`, `main.py fit --trainer.strategy fsdp`": (
        "test_asking_commands.py::test_how_a_command_asks",
        "test_asking_commands.py::test_each_command_is_reported_where_it_asks",
        CODEMODS,
    ),
    "Ray Train": (
        *(GATE, f"{HERE}::test_the_worker_of_ray_is_followed"),
        f"{HERE}::test_the_workers_of_ray_train_as_without_sharding",
    ),
    "torchtune, NeMo AutoModel": (FILES, "test_recipes.py::test_what_a_recipe_names_is_followed"),
    "LLaMA-Factory v1": (
        FILES,
        "test_meanings_frameworks.py::test_a_script_leaves_these_events",
    ),
    "DeepSpeed": ("test_frameworks_gate.py::test_settings_of_something_else_are_said_to_be_so",),
}
"""The tests behind the cells of a row that say more than no, in their order."""


OF_FRAMEWORKS = {rule.code for rule in knowledge.rules() if rule.code.startswith("FSDP6")}
FOUND_IN = {
    "accelerate, YAML or JSON": (
        "distributed_type: FSDP\nfsdp_config: {fsdp_layers: 1}\n",
        "fsdp.yaml",
    ),
    "Trainer (`TrainingArguments`, `fsdp_config` file)": (
        '{"output_dir": "out", "fsdp": "full_shard", "fsdp_config": {"version": 2, "layers": 1}}',
        "arguments.json",
    ),
    "ms-swift (JSON file)": (
        '{"fsdp": "full_shard", "fsdp_config": {"fsdp_version": 2, "layers": 1}}',
        "fsdp.json",
    ),
    "axolotl recipe": (
        "base_model: m\nfsdp_version: 1\nfsdp_config: {layers: 1}\n",
        "recipe.yaml",
    ),
    "LightningCLI YAML": ("trainer:\n  strategy: fsdp\n", "config.yaml"),
}
"""Settings with something wrong, by the row that names the rules for it."""


def codes_of(cell: str) -> set[str]:
    """The rules that a cell names: `FSDP601-604` are four."""
    found = set()
    for first, last in re.findall(r"FSDP(\d+)(?:-(\d+))?", cell):
        found |= {f"FSDP{number}" for number in range(int(first), int(last or first) + 1)}
    return found


def test_each_rule_of_the_frameworks_is_in_the_table() -> None:
    assert (
        set().union(*(codes_of(cells[1]) for cells in ROWS.values()))
        - {
            "FSDP201",
            "FSDP204",
        }
        == OF_FRAMEWORKS
    )


@pytest.mark.parametrize("row", FOUND_IN)
def test_what_is_found_in_settings_is_in_their_row(tmp_path: Path, row: str) -> None:
    text, name = FOUND_IN[row]
    (tmp_path / name).write_text(text)
    shown = invoke("check", "--isolated", "-q", "-f", "concise", name, cwd=tmp_path).stdout
    found = set(re.findall(r"FSDP\d{3}", shown))
    assert found
    assert found <= codes_of(ROWS[row][1]), shown


def test_each_cell_of_the_table_has_a_test() -> None:
    assert {row for row in ROWS if not row.startswith("---")} == set(BACKED)
    for row, tests in BACKED.items():
        said = [cell for cell in ROWS[row] if not cell.startswith(("no", "nothing"))]
        assert len(said) == len(tests), row
        for test in tests:
            file, _, name = test.partition("::")
            assert f"def {name}(" in next((ROOT / "tests").rglob(file)).read_text("utf-8"), test
