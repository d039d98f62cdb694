"""Settings files of frameworks: what is read of them, what migrating changes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp2lint.frameworks.asked import asked
from fsdp2lint.frameworks.document import NotSettings, read
from fsdp2lint.frameworks.version2 import settings_changes
from fsdp2lint.source.source import Source
from tests.support.running import ROOT, invoke

CASES = ROOT / "fixtures" / "codemods" / "settings_files"

OLD = """\
distributed_type: FSDP
fsdp_config:
  fsdp_backward_prefetch: NO_PREFETCH
  fsdp_sharding_strategy: FULL_SHARD
num_processes: 2
"""


def migrated(text: str, name: str = "fsdp.yaml") -> str:
    """The text with the changes made."""
    made, at = "", 0
    for change in settings_changes(Source(name, text)):
        if change.fate in ("changed", "dropped"):
            assert change.start >= at
            made += text[at : change.start] + change.text
            at = change.end
    return made + text[at:]


# -- what is kept ------------------------------------------------------------------------------------------------


def test_windows_line_ends_stay() -> None:
    made = migrated(OLD.replace("\n", "\r\n"))
    assert made.count("\n") == made.count("\r\n") == migrated(OLD).count("\n")


def test_a_missing_final_newline() -> None:
    text = "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: true"
    assert migrated(text) == text + "\n  fsdp_version: 2\n  fsdp_state_dict_type: FULL_STATE_DICT"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_section_without_keys_below_an_indented_one(newline: str) -> None:
    text = "  distributed_type: FSDP\n  fsdp_config:\n  other: 1\n".replace("\n", newline)
    new = "    fsdp_version: 2\n    fsdp_state_dict_type: FULL_STATE_DICT\n  other".replace(
        "\n", newline
    )
    assert migrated(text) == text.replace("  other", new)


def test_a_new_key_at_the_top_stands_as_deep_as_the_others() -> None:
    text = f"{OLD}num_machines: 2\n".replace("num_processes: 2", "num_processes: 16")
    text = text.replace("FULL_SHARD", "HYBRID_SHARD")
    deep = "".join(f"  {line}\n" for line in text.splitlines())
    assert migrated(deep) == "".join(f"  {line}\n" for line in migrated(text).splitlines())
    assert read(Source("x.yaml", migrated(deep))).get("parallelism_config") is not None


_KEYS = (
    "fsdp_offload_params: false",
    "fsdp_use_orig_params: true",
    "fsdp_backward_prefetch: BACKWARD_PRE",
)
_LINES = st.sampled_from(
    (
        *(*_KEYS, "fsdp_sharding_strategy: 'SHARD_GRAD_OP'", "fsdp_sync_module_states: yes"),
        *(
            "fsdp_auto_wrap_policy: SIZE_BASED_WRAP",
            "fsdp_unknown: [1, 2]",
            "fsdp_min_num_params: 1e8",
        ),
    )
)
_BEHIND = st.sampled_from(("", "  # a note", " # b", "   "))
_BETWEEN = st.sampled_from(("", "", "  # between\n", "\n", "    # deeper: x\n"))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(_LINES, _BEHIND, _BETWEEN), min_size=1, max_size=6, unique_by=lambda p: p[0]
    ),
    st.sampled_from(("", "mixed_precision: 'bf16'  # kept\n")),
)
def test_comments_other_keys_and_order_stay(lines: list[tuple[str, str, str]], tail: str) -> None:
    section = "".join(f"{between}  {line}{behind}\n" for line, behind, between in lines)
    text = f"# head\ndistributed_type: FSDP\nfsdp_config:\n{section}{tail}"
    made = migrated(text)
    before, after = yaml.safe_load(text), yaml.safe_load(made)
    assert after["fsdp_config"].pop("fsdp_version") == 2
    assert [c for c in _comments(made) if c in _comments(text)] == _comments(text)
    gone = ("fsdp_use_orig_params", "fsdp_backward_prefetch", "fsdp_sync_module_states")
    wanted = {k: v for k, v in before["fsdp_config"].items() if k not in gone}
    if wanted.pop("fsdp_sharding_strategy", None):
        wanted["fsdp_reshard_after_forward"] = False
    wanted["fsdp_state_dict_type"] = "FULL_STATE_DICT"
    assert after["fsdp_config"] == wanted
    assert {k: v for k, v in after.items() if k != "fsdp_config"} == {
        k: v for k, v in before.items() if k != "fsdp_config"
    }
    assert migrated(made) == made
    assert settings_changes(Source("fsdp.yaml", made)) == []


def _comments(text: str) -> list[str]:
    return [line[line.index("#") :].strip() for line in text.splitlines() if "#" in line]


AFTER = [p for p in sorted(CASES.glob("*/after/*")) if p.suffix in (".yaml", ".yml", ".json")]


@pytest.mark.parametrize("path", AFTER, ids=lambda p: f"{p.parent.parent.name}/{p.stem}")
def test_a_second_run_changes_nothing(path: Path) -> None:
    assert migrated(path.read_text(), path.name) == path.read_text()


@pytest.mark.parametrize(
    "name", ["hybrid.yaml", "numbered.yml", "one_machine.yaml", "empty.yaml", "tabs.json"]
)
def test_accelerate_reads_what_comes_out(name: str) -> None:
    arguments = pytest.importorskip("accelerate.commands.config.config_args")
    read = arguments.load_config_from_file(str(CASES / "accelerate" / "after" / name))
    assert str(read.fsdp_config["fsdp_version"]) == "2"


def test_swift_is_migrated() -> None:
    text = (
        '{"fsdp": "full_shard", "fsdp_config": {"fsdp_version": 1, "activation_cpu_offload": true}}'
    )
    made = migrated(text, "fsdp.json")
    assert made == text.replace('"fsdp_version": 1', '"fsdp_version": 2')


# -- what is recognised ------------------------------------------------------------------------------------------

RECOGNISED: dict[str, tuple[str, str, int | None]] = {
    "accelerate": ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n", "accelerate", 2),
    "accelerate, version 1": (OLD, "accelerate", 1),
    "Trainer arguments": ("output_dir: o\nfsdp: full_shard auto_wrap\n", "the Trainer", None),
    "Trainer, a list": (
        "fsdp: [full_shard, offload]\nfsdp_config: {version: 2}\n",
        "the Trainer",
        2,
    ),
    "Trainer, its file": ("transformer_layer_cls_to_wrap: [B]\n", "the Trainer", None),
    "axolotl": (
        "base_model: m\nfsdp_version: 2\nfsdp_config: {offload_params: true}\n",
        "axolotl",
        2,
    ),
    "Lightning": ("trainer: {strategy: fsdp}\n", "Lightning", 1),
    "Lightning, FSDP2": (
        "trainer: {strategy: {class_path: lightning.pytorch.strategies.ModelParallelStrategy}}\n",
        "Lightning",
        2,
    ),
    "torchtune": (
        "model: {_component_: torchtune.models.llama3.llama3_8b}\nfsdp_cpu_offload: true\n",
        "torchtune",
        2,
    ),
    "NeMo AutoModel": (
        "distributed: {_target_: nemo_automodel.components.distributed.fsdp2.FSDP2Manager}\n",
        "NeMo AutoModel",
        2,
    ),
    "LLaMA-Factory": ("dist_config: {name: fsdp2}\n", "LLaMA-Factory", 2),
    "ms-swift": (
        '{"_note": "x", "fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 1}}',
        "ms-swift",
        1,
    ),
    "ms-swift, its default": ('{"fsdp_config": {"reshard_after_forward": true}}', "ms-swift", 2),
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_settings_file_is_recognised(name: str) -> None:
    text, framework, version = RECOGNISED[name]
    found = asked(read(Source("x.yaml", text)))
    assert found is not None
    assert (found.framework, found.version) == (framework, version)


@pytest.mark.parametrize(
    "text",
    [
        "distributed_type: MULTI_GPU\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n",
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n",
        "zero_optimization: {stage: 3}\n",
        "base_model: m\nfsdp:\nfsdp_config:\n",
        "trainer: {strategy: ddp}\n",
        "fsdp: maybe\n",
        "jobs: {test: {steps: [run fsdp]}}\n",
        "version: 2\nupdates: []\n",
        "fsdp: false\n",
        "fsdp: ''\n",
        "epochs: 40\nfsdp: true\nfsdp-limit-all-gathers: true\nnum_train_epochs: 3\n",
        "model: gpt\nfsdp: true\nlr: 0.1\n",
    ],
)
def test_another_settings_file_asks_for_nothing(text: str) -> None:
    assert asked(read(Source("x.yaml", text))) is None


def test_an_fsdp_config_of_somebody_else() -> None:
    text = """\
max_duration: 100ba
global_train_batch_size: 32
fsdp_config:
  sharding_strategy: FULL_SHARD
  mixed_precision: DEFAULT
  activation_checkpointing: true
  verbose: false
"""
    assert asked(read(Source("train.yaml", text))) is None
    trainers = text.replace("global_train_batch_size", "per_device_train_batch_size")
    assert asked(read(Source("train.yaml", trainers))) is not None
    assert asked(read(Source("train.yaml", f"fsdp: full_shard\n{text}"))) is not None


def test_true_is_the_trainers_beside_its_arguments() -> None:
    text = "fsdp: true\nper_device_train_batch_size: 4\n"
    assert asked(read(Source("train.yaml", text))) is not None


# -- bad input ---------------------------------------------------------------------------------------------------

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
BAD: dict[str, tuple[str, str]] = {
    "tabs.yaml": (
        "distributed_type: FSDP\nfsdp_config:\n\tfsdp_version: 1\n",
        "line 3: no valid YAML",
    ),
    "two.yaml": (OLD + "---\n" + OLD, "more than one YAML document"),
    "jinja.yaml": ("distributed_type: {{ kind }}\nfsdp_config: {% x %}\n", "a template"),
    "large.yaml": (OLD + "# " + "x" * 10_000_000, "too large"),
    "list.yaml": ("- distributed_type: FSDP\n", "no mapping"),
    "empty.yaml": ("# nothing\n", "empty"),
    "broken.json": ('{"distributed_type": "FSDP",}', "line 1: no valid JSON"),
    "deep.json": ("[" * 5000 + "]" * 5000, "nested too deeply"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_read_is_named_in_one_line(tmp_path: Path, name: str) -> None:
    text, why = BAD[name]
    (tmp_path / name).write_text(text)
    shown = invoke("migrate", "--write", name, cwd=tmp_path)
    assert shown.returncode == 1
    (line,) = shown.stderr.splitlines()
    assert line.startswith(f"{name}: not migrated, ")
    assert why in line
    assert (tmp_path / name).read_text() == text


@pytest.mark.parametrize("name", BAD)
def test_checking_a_file_that_cannot_be_read_names_it_in_one_line(
    tmp_path: Path, name: str
) -> None:
    text, why = BAD[name]
    (tmp_path / name).write_text(text)
    shown = invoke("check", "-f", "concise", name, cwd=tmp_path)
    said = [line for line in (shown.stdout + shown.stderr).splitlines() if name in line]
    assert len(said) == 1
    assert why.partition(": ")[2] in said[0] or why in said[0]
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ("[a, b]", "`fsdp_config` is a list"),
        ("{fsdp_version: two}", "the version is neither 1 nor 2"),
        ("{fsdp_version: [1]}", "the version is neither 1 nor 2"),
        ("{fsdp_offload_params: true, fsdp_offload_params: false}", "the key is written twice"),
    ],
)
def test_a_wrong_type_is_left_alone(tmp_path: Path, section: str, why: str) -> None:
    file = tmp_path / "fsdp.yaml"
    file.write_text(f"distributed_type: FSDP\nfsdp_config: {section}\n")
    before = file.read_text()
    shown = invoke("migrate", "--write", file.name, cwd=tmp_path)
    assert shown.returncode == 1
    assert why in shown.stdout
    assert file.read_text() == before


def test_a_section_that_is_written_twice_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "fsdp.yaml"
    file.write_text(OLD + "fsdp_config: {fsdp_version: 1}\n")
    before = file.read_text()
    shown = invoke("migrate", "--write", file.name, cwd=tmp_path)
    assert shown.returncode == 1
    assert "fsdp_config  the key is written twice" in shown.stdout
    assert file.read_text() == before


@pytest.mark.parametrize("value", ["{a: b}", "[1]", "{}"])
@pytest.mark.parametrize(
    "key", ["fsdp_sharding_strategy", "fsdp_state_dict_type", "fsdp_use_orig_params"]
)
def test_odd_values_are_no_crash(key: str, value: str) -> None:
    text = f"distributed_type: FSDP\nfsdp_config:\n  {key}: {value}\n"
    assert yaml.safe_load(migrated(text))["fsdp_config"]["fsdp_version"] == 2


def test_a_yaml_bomb_does_no_harm() -> None:
    assert asked(read(Source("x.yaml", BOMB + OLD))) is not None
    assert "fsdp_version: 2" in migrated(BOMB + OLD)


def test_an_anchor_in_a_circle() -> None:
    assert "fsdp_version: 2" in migrated("loop: &a [*a]\n" + OLD)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="abfsdp_config:-{}[]&*!|>'\"#\n\t ,1", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found: Any = read(Source("x.yaml", text))
    except NotSettings:
        return
    asked(found)


# -- the command -------------------------------------------------------------------------------------------------


def test_one_file(tmp_path: Path) -> None:
    file = tmp_path / "fsdp.yaml"
    file.write_text(OLD)
    shown = invoke("migrate", "--write", "-q", "fsdp.yaml", cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout
    assert file.read_text() == migrated(OLD)
    again = invoke("migrate", "--check", "fsdp.yaml", cwd=tmp_path)
    assert again.returncode == 0


def test_a_folder_with_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from accelerate import Accelerator\nAccelerator()\n")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "fsdp.yaml").write_text(OLD)
    (tmp_path / "configs" / "ddp.yaml").write_text("distributed_type: MULTI_GPU\n")
    assert invoke("migrate", "--write", "-q", cwd=tmp_path).returncode == 0
    assert (tmp_path / "configs" / "fsdp.yaml").read_text() == migrated(OLD)
    assert (tmp_path / "configs" / "ddp.yaml").read_text() == "distributed_type: MULTI_GPU\n"


def test_nothing_is_written_where_something_is_manual(tmp_path: Path) -> None:
    file = tmp_path / "fsdp.yaml"
    file.write_text(OLD.replace("FULL_SHARD", "NO_SHARD"))
    shown = invoke("migrate", "--write", "fsdp.yaml", cwd=tmp_path)
    assert shown.returncode == 1
    assert "set `distributed_type: MULTI_GPU` and remove `fsdp_config`" in shown.stdout
    assert file.read_text() == OLD.replace("FULL_SHARD", "NO_SHARD")


@pytest.mark.parametrize("name", sorted(RECOGNISED))
def test_no_rule_fails_on_a_settings_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "fsdp.yaml").write_text(RECOGNISED[name][0])
    shown = invoke("check", "--isolated", "--select", "ALL", "-f", "concise", ".", cwd=tmp_path)
    assert "FSDP999" not in shown.stdout + shown.stderr
    assert shown.returncode in (0, 1)


def test_xla_shards_by_its_own(tmp_path: Path) -> None:
    settings = (
        '{"xla": true, "transformer_layer_cls_to_wrap": ["Block"], "xla_fsdp_grad_ckpt": true}'
    )
    (tmp_path / "fsdp_config.json").write_text(settings)
    assert "No FSDP1 code found" in invoke("migrate", ".", cwd=tmp_path).stdout
    (tmp_path / "fsdp_config.json").write_text(settings.replace("true,", "false,", 1))
    assert '"version": 2' in invoke("migrate", ".", cwd=tmp_path).stdout


@pytest.mark.parametrize(("mixed", "cast"), [("bf16", True), ("fp16", True), ("no", False)])
def test_the_ledger_names_buffers_that_are_no_longer_cast(mixed: str, cast: bool) -> None:
    made = settings_changes(Source("fsdp.yaml", f"{OLD}mixed_precision: {mixed}\n"))
    assert any("leaves them in float32" in one.why for one in made) is cast
