"""What the rules about settings say happens: accelerate and transformers themselves do it, as the launcher hands it on."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp2lint.rehearse.outcome import RankReport, Request
from tests.support import forks
from tests.support.running import ROOT
from tests.verify.scenes import forking

pytest.importorskip("accelerate")

RULES = ROOT / "fixtures" / "rules"

LAUNCHED = """\
import json, os, sys
import torch
from accelerate.commands import launch
from accelerate.utils import dataclasses
from accelerate.utils.launch import prepare_multi_gpu_env
from accelerate.utils import FullyShardedDataParallelPlugin
dataclasses.is_cuda_available = lambda: True  # version 1 asks for the number of the device
torch.cuda.current_device = lambda: 0
before = dict(os.environ)
for path in sys.argv[1:]:
    os.environ.clear()
    os.environ.update(before)
    words = ["--config_file", path, "--num_processes", "2", "train.py"]
    try:
        args, defaults, _ = launch._validate_launch_command(launch.launch_command_parser().parse_args(words))
        os.environ.update(prepare_multi_gpu_env(args))
        plugin = FullyShardedDataParallelPlugin()
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
        continue
    print(json.dumps({
        "version": plugin.fsdp_version,
        "reshard": str(plugin.reshard_after_forward),
        "strategy": str(plugin.sharding_strategy),
        "classes": plugin.transformer_cls_names_to_wrap,
        "state": plugin.state_dict_type.name,
        "offload": type(plugin.cpu_offload).__name__,
        "parallelism": os.environ.get("PARALLELISM_CONFIG_DP_REPLICATE_SIZE"),
    }))
"""
"""What each rank of ``accelerate launch`` gets."""

CASES = ROOT / "fixtures" / "codemods" / "settings_files" / "accelerate"
MIGRATED = ("hybrid.yaml", "numbered.yml", "one_machine.yaml", "empty.yaml", "tabs.json")
TEXTS = {
    "unknown_type.yaml": "distributed_type: FSDP\nfsdp_config: {fsdp_state_dict_type: FULL, fsdp_version: 2}\n",
    "bare.yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n",
    **{
        f"{key}.yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
        f"  fsdp_transformer_{key}_to_wrap: Block\n"
        for key in ("cls_names", "layer_cls")
    },
}

Seen = dict[str, Any]


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path | str], Seen | str]:
    """The plugin that a settings file comes to, or the error; all in one process, which takes long to start."""
    folder = tmp_path_factory.mktemp("settings")
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    files = [folder / name for name in TEXTS]
    files += [p for rule in sorted(RULES.glob("settings_*")) for p in sorted(rule.glob("*.yaml"))]
    files = [p for p in files if "distributed_type" in p.read_text()]
    files += [CASES / side / name for side in ("before", "after") for name in MIGRATED]
    done = forks.snippet(LAUNCHED, *map(str, files), cwd=ROOT)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("{", '"'))]
    assert len(lines) == len(files)
    seen = dict(zip(files, map(json.loads, lines), strict=True))
    return lambda path: seen[folder / path if isinstance(path, str) else path]


Launched = Callable[[Path | str], Seen | str]


@pytest.mark.parametrize("name", ["blanks", "classes"])
def test_wrap_classes_are_cut_at_commas(name: str, launched: Launched) -> None:
    seen = launched(RULES / "settings_refused" / f"bad_{name}.yaml")
    good = launched(RULES / "settings_refused" / "good_classes.yaml")
    assert isinstance(seen, dict)
    assert isinstance(good, dict)
    assert not all(one.isidentifier() for one in seen["classes"])
    assert all(one.isidentifier() for one in good["classes"])


@pytest.mark.parametrize("name", ["reshard", "state", "policy", "sync", "offload", "first_version"])
def test_what_is_refused_raises(name: str, launched: Launched) -> None:
    error = launched(RULES / "settings_refused" / f"bad_{name}.yaml")
    assert isinstance(error, str)
    assert error.startswith("ValueError")


def test_an_unknown_state_dict_type_raises(launched: Launched) -> None:
    assert launched("unknown_type.yaml") == "KeyError: 'FULL'"


@pytest.mark.parametrize("name", ["reshard", "state", "policy", "sync"])
def test_what_is_not_refused_starts(name: str, launched: Launched) -> None:
    assert isinstance(launched(RULES / "settings_refused" / f"good_{name}.yaml"), dict)


def test_the_strategy_is_lost(launched: Launched) -> None:
    seen = launched(RULES / "settings_strategy_lost" / "bad_grad_op.yaml")
    assert isinstance(seen, dict)
    assert (seen["version"], seen["reshard"]) == (2, "True")
    said = launched(RULES / "settings_strategy_lost" / "good_said.yaml")
    assert isinstance(said, dict)
    assert said["reshard"] == "False"


def test_an_unknown_key_is_ignored(launched: Launched) -> None:
    seen = [launched(f"{key}.yaml") for key in ("cls_names", "layer_cls")]
    assert [isinstance(one, dict) and one["classes"] for one in seen] == [None, ["Block"]]


@pytest.mark.parametrize("name", ["top", "section"])
def test_an_unknown_key_at_the_top_is_refused(name: str, launched: Launched) -> None:
    error = launched(RULES / "settings_unknown_key" / f"bad_{name}.yaml")
    assert isinstance(error, str)
    assert "had unknown keys" in error


def test_a_size_without_its_prefix_is_ignored(launched: Launched) -> None:
    seen = launched(RULES / "settings_unknown_key" / "bad_sizes.yaml")
    known = launched(RULES / "settings_mesh_size" / "good_hybrid.yaml")
    assert [isinstance(one, dict) and one["parallelism"] for one in (seen, known)] == ["1", "2"]


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("auto_wrap_policy", "transformer_based_wrap", ValueError),
        ("state_dict_type", "FULL", KeyError),
        ("state_dict_type", "LOCAL_STATE_DICT", ValueError),
    ],
)
def test_the_trainer_refuses_a_word(
    tmp_path: Path, key: str, value: str, error: type[Exception]
) -> None:
    transformers = pytest.importorskip("transformers")
    accelerate = pytest.importorskip("accelerate")

    def build() -> None:
        made = transformers.TrainingArguments(
            str(tmp_path), fsdp="full_shard", fsdp_config={"version": 2, key: value}, use_cpu=True
        )
        accelerate.FullyShardedDataParallelPlugin(**made.fsdp_plugin_args)

    with pytest.raises(error):
        build()


@pytest.mark.parametrize("name", ["bad_accelerate", "bad_in_braces"])
def test_an_ignored_key_changes_nothing(name: str, launched: Launched) -> None:
    assert launched(RULES / "settings_ignored_key" / f"{name}.yaml") == launched("bare.yaml")


@pytest.mark.parametrize("name", MIGRATED)
def test_what_migrating_makes_means_the_same(name: str, launched: Launched) -> None:
    """The rank gets version 2, and for the rest what it got before."""
    before, after = launched(CASES / "before" / name), launched(CASES / "after" / name)
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert (before["version"], after["version"]) == (1, 2)
    kept = {"FULL_SHARD": "True", "HYBRID_SHARD": "True"}
    strategy = before["strategy"].rpartition(".")[2]
    if (
        name != "one_machine.yaml"
    ):  # version 1 does not read `fsdp_reshard_after_forward` from the launcher
        assert after["reshard"] == kept.get(strategy, "False")
    state = before["state"]
    assert after["state"] == ("SHARDED_STATE_DICT" if state == "LOCAL_STATE_DICT" else state)
    assert after["parallelism"] == ("2" if name == "hybrid.yaml" else before["parallelism"])


COMMANDS = ROOT / "fixtures" / "codemods" / "settings_files" / "commands"

STARTED = """\
import json, os, shlex, sys
from accelerate.commands import launch
from accelerate.utils.launch import prepare_multi_gpu_env
before = dict(os.environ)
for line in json.loads(sys.argv[1]):
    os.environ.clear()
    os.environ.update(before)
    args = launch.launch_command_parser().parse_args(shlex.split(line))
    args, defaults, _ = launch._validate_launch_command(args)
    found = prepare_multi_gpu_env(args)
    print(json.dumps({key: value for key, value in found.items() if key.startswith("FSDP")}))
"""
"""What each rank gets from a command."""


def commands(side: str) -> list[str]:
    """The arguments of accelerate's launcher in the fixture."""
    text = (COMMANDS / side / "run.sh").read_text().replace("\\\n", " ")
    lines = [line.partition("&&")[0].partition("# old")[0] for line in text.splitlines()]
    words = [line.partition("launch ")[2] for line in lines if "--use" in line and line[0] != "#"]
    return [
        f"--num_processes 2 {line.replace('$((${WORLD_SIZE} * 8))', '2')}"
        for line in words
        if "config_file" not in line
    ]


def started(words: list[str]) -> list[dict[str, str]]:
    """The settings that the launcher makes of each command, all in one process, which takes long to start."""
    done = forks.snippet(STARTED, json.dumps(words), cwd=ROOT)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(words)
    return found


def test_commands_mean_the_same_in_version_2() -> None:
    old_ones, new_ones = commands("before"), commands("after")
    seen = started([*old_ones, *new_ones])
    before, after = seen[: len(old_ones)], seen[len(old_ones) :]
    kept = {"FULL_SHARD": "true", "SHARD_GRAD_OP": "false", "2": "false"}
    for old, new in zip(before, after, strict=True):
        assert new["FSDP_VERSION"] == "2"
        if old["FSDP_VERSION"] == "1":
            assert new["FSDP_RESHARD_AFTER_FORWARD"] == kept[old["FSDP_SHARDING_STRATEGY"]]
            state = old.get("FSDP_STATE_DICT_TYPE", "FULL_STATE_DICT")
            assert new["FSDP_STATE_DICT_TYPE"] == state.replace("LOCAL", "SHARDED")
        for name in (
            "FSDP_AUTO_WRAP_POLICY",
            "FSDP_TRANSFORMER_CLS_TO_WRAP",
            "FSDP_OFFLOAD_PARAMS",
        ):
            assert new.get(name) == old.get(name)


def test_the_trainer_reads_version_2_from_its_command(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    text = (COMMANDS / "after" / "trainer.slurm").read_text().replace("\\\n", " ")
    words = shlex.split(text.splitlines()[0].partition("train.py")[2])
    asked = [
        w
        for n, w in enumerate(words)
        if w.startswith("--fsdp") or words[n - 1].startswith("--fsdp")
    ]
    parser = transformers.HfArgumentParser((transformers.TrainingArguments,))
    (made,) = parser.parse_args_into_dataclasses(
        [*asked, "--output_dir", str(tmp_path), "--use_cpu"]
    )
    assert made.fsdp_plugin_args["fsdp_version"] == 2
    assert made.fsdp_plugin_args["transformer_cls_names_to_wrap"] == "Qwen2DecoderLayer"


def test_the_trainer_refuses_a_hybrid_strategy_in_version_2(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="hybrid_shard"):
        transformers.TrainingArguments(
            str(tmp_path), fsdp="hybrid_shard auto_wrap", fsdp_config={"version": 2}, use_cpu=True
        )
    made = transformers.TrainingArguments(
        str(tmp_path), fsdp="shard_grad_op", fsdp_config={"version": 2}, use_cpu=True
    )
    assert made.fsdp_plugin_args["reshard_after_forward"] is False


REFUSED = {
    "framework_refuses/bad_model_alone.py": "must be passed together",
    "framework_refuses/bad_reference_model.py": "Only one model is supported",
    "framework_refuses/bad_checkpointing_twice.py": "can't both be set to True",
    "framework_refuses/bad_only_model_of_shards.py": "not compatible",
    "framework_refuses/bad_wrap_class.py": "Could not find the transformer layer class",
    "framework_refuses/bad_no_configure_model.py": "required to override the `configure_model",
}


def rehearsed(script: Path, folder: Path) -> list[RankReport]:
    """What a script does on CPU ranks where accelerate takes them for GPUs."""
    (copy := folder / script.name).write_text(script.read_text())
    request = Request(str(copy), str(folder), timeout=600.0, folder=str(folder))
    with forking(frameworks=True) as ranks:
        return ranks.launch(request, lambda _: None).ranks


@pytest.mark.ranks
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_framework_refuses_raises(tmp_path: Path, name: str) -> None:
    ranks = rehearsed(RULES / name, tmp_path)
    assert all(rank.how != "ended" for rank in ranks)
    raised = [rank.error for rank in ranks if rank.how == "raised"]
    assert raised
    assert all(error.startswith(("ValueError", "TypeError")) for error in raised)
    assert all(REFUSED[name] in error for error in raised)


@pytest.mark.ranks
def test_the_trainer_writes_no_weights_in_shards(tmp_path: Path) -> None:
    script = RULES / "save_model_without_weights" / "bad_straight_line.py"
    assert rehearsed(script, tmp_path)[0].how == "ended"
    assert not list(tmp_path.rglob("*.safetensors"))
    assert not list(tmp_path.rglob("*.bin"))


@pytest.mark.ranks
def test_accelerate_casts_to_float32_before_it_shards(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = (RULES / "cast_undone" / "bad_cast.py").read_text()
    script.write_text(text.replace("print(", 'open("dtype.txt", "w").write('))
    assert all(rank.how == "ended" for rank in rehearsed(script, tmp_path))
    assert (tmp_path / "dtype.txt").read_text() == "the weights are in torch.float32"


def test_rank_0_loads_alone_only_within_a_process_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    from torch import distributed
    from transformers.distributed.fsdp import is_fsdp_enabled

    for name in ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING"):
        monkeypatch.setenv(name, "true")
    assert not is_fsdp_enabled()
    store = (tmp_path / "store").as_uri()
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        assert is_fsdp_enabled()
    finally:
        distributed.destroy_process_group()


@pytest.mark.ranks
def test_values_cannot_be_clipped(tmp_path: Path) -> None:
    ranks = rehearsed(RULES / "framework_refuses" / "bad_clip_value.py", tmp_path)
    assert any("do not support `clip_grad_value_`" in rank.error for rank in ranks)


@pytest.mark.ranks
def test_version_2_writes_no_file_by_default(tmp_path: Path) -> None:
    script = RULES / "checkpoint_of_another_type" / "bad_default.py"
    raised = [rank.error for rank in rehearsed(script, tmp_path) if rank.how == "raised"]
    assert raised
    assert all("checkpoint/pytorch_model_fsdp.bin" in error for error in raised)


@pytest.mark.parametrize(
    "arguments",
    [
        "fsdp_version=2, forward_prefetch=True",
        "fsdp_version=2, reshard_after_forward='FULL_SHARD'",
        "fsdp_version=2, state_dict_type='local_state_dict'",
        "fsdp_version=2, cpu_offload=CPUOffload(True)",
        "fsdp_version=2, mixed_precision_policy=MixedPrecision()",
        "fsdp_version=1, reshard_after_forward=True",
    ],
)
def test_a_plugin_refuses_arguments_of_the_other_version(arguments: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    from torch.distributed.fsdp import CPUOffload, MixedPrecision

    names = {
        "Plugin": accelerate.FullyShardedDataParallelPlugin,
        "CPUOffload": CPUOffload,
        "MixedPrecision": MixedPrecision,
    }
    with pytest.raises(ValueError, match=r".+"):
        eval(f"Plugin({arguments})", names)
