"""Names of classes to wrap: transformers' own, misspelt ones, and those that a project may define."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from fsdp2lint.frameworks.layers import CLASSES, known, layers_of, may_be_defined, meant
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


ELSEWHERE = re.compile(r"AutoModel|from \.\.(?!\.)\w+(?:\.\w+)? import|from \.\.\.models\.")
"""What a file of models says that builds layers of others."""


def folder_of(text: str) -> str:
    """The layers and the models in the files of one folder, as a line."""
    classes = dict(re.findall(r"^class (\w+)(?:\(([^)]*)\))?:", text, re.MULTILINE))
    lists = re.findall(r"_no_split_modules = \[([^\]]*)\]", text)
    whole = {name for one in lists for name in re.findall(r"['\"](\w+)['\"]", one)}
    layers = [name for name in classes if name.endswith(("Layer", "Block")) or name in whole]
    bases = () if ELSEWHERE.search(text) else classes.items()
    models = [name for name, of in bases if re.search(r"PreTrainedModel\b", of)]
    models = [name for name in models if not name.endswith("PreTrainedModel")]
    return f"{' '.join(layers)}: {' '.join(models)}".rstrip() if layers else ""


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers has the classes")
def test_the_layers_are_those_of_transformers(bless: bool) -> None:
    found = find_spec("transformers")
    assert found is not None
    assert found.origin is not None
    folders: dict[Path, str] = {}
    for path in sorted(Path(found.origin).parent.glob("models/*/modeling_*.py")):
        folders[path.parent] = folders.get(path.parent, "") + path.read_text("utf-8")
    lines = [line for line in map(folder_of, folders.values()) if line]
    if bless:
        CLASSES.write_text("\n".join(lines) + "\n", encoding="utf-8")
        known.cache_clear()
    assert CLASSES.read_text("utf-8").splitlines() == lines
    assert layers_of("LlamaForCausalLM") == frozenset({"LlamaDecoderLayer"})
    assert layers_of("LlavaForConditionalGeneration") is None


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


SCRIPT = """\
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, Qwen2ForCausalLM

accelerator = Accelerator()
{model}
tokenizer = AutoTokenizer.from_pretrained("x")
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer = accelerator.prepare(model, optimizer)
"""
LLAMA = 'model = LlamaForCausalLM.from_pretrained("x")'


@pytest.mark.parametrize(
    ("wrapped", "model", "found"),
    [
        ("Qwen2DecoderLayer", LLAMA, True),
        ("LlamaBlock", LLAMA, True),
        ("LlamaDecoderLayer,Qwen2DecoderLayer", LLAMA, True),
        ("LlamaDecoderLayer", LLAMA, False),
        ("LlamaMLP", LLAMA, False),
        ("LoraModel", LLAMA, False),
        ("Mine", LLAMA + "\n\n\nclass Mine(torch.nn.Module): ...", False),
        ("MyBlock", LLAMA + "\n\n\nclass MyBlock(torch.nn.Module): ...", False),
        ("Qwen2DecoderLayer", f'{LLAMA}\nteacher = Qwen2ForCausalLM.from_pretrained("y")', False),
        (
            "Qwen2DecoderLayer",
            f'{LLAMA}\nteacher = AutoModelForCausalLM.from_pretrained("y")',
            False,
        ),
        ("Qwen2DecoderLayer", 'model = AutoModelForCausalLM.from_pretrained("x")', False),
        ("Qwen2DecoderLayer", f"{LLAMA}\nother = timm.create_model('vit')", False),
        (
            "Qwen2DecoderLayer",
            'model = LlamaForCausalLM.from_pretrained("x", trust_remote_code=True)',
            False,
        ),
    ],
)
def test_the_model_of_a_script_lacks_a_layer(
    tmp_path: Path, wrapped: str, model: str, found: bool
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text("import timm\n" + SCRIPT.format(model=model))
    (tmp_path / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
        f"  fsdp_transformer_layer_cls_to_wrap: {wrapped}\n"
    )
    (tmp_path / "run.sh").write_text("accelerate launch --config_file fsdp.yaml train.py\n")
    words = ("check", "--isolated", "--preview", "--select", "FSDP614", "-f", "concise", ".")
    shown = invoke(*words, cwd=tmp_path).stdout
    assert ("train.py:7:9: FSDP614" in shown) is found, shown
    assert found or "FSDP614" not in shown
