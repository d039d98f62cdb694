"""Names of classes to wrap: transformers' own, misspelt ones, and those that a project may define."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from fsdp2lint.frameworks.layers import CLASSES, known, may_be_defined, meant
from fsdp2lint.system.files import Files
from tests.support.running import invoke


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("LlamaDecodeLayer", "LlamaDecoderLayer"),
        ("LLaMADecoderLayer", "LlamaDecoderLayer"),
        ("Qwen3DecoderLayr", "Qwen3DecoderLayer"),
        ("GPT2Blocks", "GPT2Block"),
        ("LlamaDecoderLayer", None),
        ("Phi3SmallDecoderLayer", None),
        ("PlamoDecoderLayer", None),
        ("DeepseekDecoderLayer", None),
        ("FluxTransformerBlock", None),
        ("Block", None),
        ("", None),
    ],
)
def test_a_misspelt_layer(name: str, right: str | None) -> None:
    assert meant(name) == right


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers has the classes")
def test_the_layers_are_those_of_transformers(bless: bool) -> None:
    found = find_spec("transformers")
    assert found is not None
    assert found.origin is not None
    texts = [p.read_text("utf-8") for p in Path(found.origin).parent.glob("models/*/modeling_*.py")]
    every = {name for text in texts for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}
    lists = [one for text in texts for one in re.findall(r"_no_split_modules = \[([^\]]*)\]", text)]
    whole = {name for one in lists for name in re.findall(r"['\"](\w+)['\"]", one)}
    layers = sorted({n for n in every if n.endswith(("Layer", "Block"))} | (whole & every))
    if bless:
        CLASSES.write_text("\n".join(layers) + "\n", encoding="utf-8")
        known.cache_clear()
    assert set(layers) == known()


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("class LlamaDecodeLayer(Module): ...\n", True),
        ("AutoModel.from_pretrained('x', trust_remote_code=True)\n", True),
        ("class LlamaDecodeLayers(Module): ...\n", False),
        ("", False),
    ],
)
def test_a_project_may_define_the_class(tmp_path: Path, text: str, there: bool) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "models" / "llama.py").write_text(text)
    settings = tmp_path / "configs" / "fsdp.yaml"
    settings.write_text("")
    assert may_be_defined("LlamaDecodeLayer", str(settings), Files()) is there


def test_remote_code_may_have_any_class(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    settings = (
        "distributed_type: FSDP\nfsdp_config: {fsdp_transformer_layer_cls_to_wrap: MPTBlock}\n"
    )
    (tmp_path / "fsdp.yaml").write_text(settings)
    (tmp_path / "train.py").write_text("")
    words = ("check", "--isolated", "--preview", "-f", "concise", "fsdp.yaml")
    assert "did you mean `MptBlock`?" in invoke(*words, cwd=tmp_path).stdout
    (tmp_path / "train.py").write_text("load(trust_remote_code=True)\n")
    assert "FSDP614" not in invoke(*words, cwd=tmp_path).stdout


CLI = """\
trainer:
  devices: 4
  strategy:
    class_path: lightning.pytorch.strategies.ModelParallelStrategy
"""


@pytest.mark.parametrize(
    ("settings", "script", "found"),
    [
        (CLI, "", True),
        (CLI + "    init_args: {data_parallel_size: auto}\n", "", True),
        (CLI + "    init_args: {data_parallel_size: 4, tensor_parallel_size: 1}\n", "", False),
        (CLI, "mesh = self.device_mesh['tensor_parallel']\n", False),
        (CLI, "strategy = ModelParallelStrategy(tensor_parallel_size=1)\n", True),
    ],
)
def test_sizes_in_a_file_of_the_command_line_of_lightning(
    tmp_path: Path, settings: str, script: str, found: bool
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "config.yaml").write_text(settings)
    (tmp_path / "model.py").write_text(script)
    words = ("check", "--isolated", "-f", "concise", "config.yaml")
    shown = invoke(*words, cwd=tmp_path).stdout
    assert ("config.yaml:3:3: FSDP609" in shown) is found
