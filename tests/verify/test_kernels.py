"""What takes the part of CUDA kernels under ``rehearse --fake`` computes what they compute."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest
import torch

from fsdp2lint.rehearse.fakes import kernels
from fsdp2lint.rehearse.fakes.imports import Finder
from fsdp2lint.rehearse.standin import triton
from fsdp2lint.rehearse.standin.replace import Counted

Tensor = torch.Tensor


def by_hand(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window: tuple[int, int] = (-1, -1)
) -> Tensor:
    """Attention one query at a time: (length, heads, width), as FlashAttention describes it."""
    out = torch.zeros_like(q)
    times = q.shape[1] // k.shape[1]
    for row in range(q.shape[0]):
        at = row + k.shape[0] - q.shape[0]
        first = 0 if window[0] < 0 else max(0, at - window[0])
        right = 0 if causal else window[1]
        last = k.shape[0] if right < 0 else min(k.shape[0], at + right + 1)
        for head in range(q.shape[1]):
            keys, values = (one[first:last, head // times] for one in (k, v))
            scores = keys @ q[row, head] / q.shape[2] ** 0.5
            out[row, head] = scores.softmax(0) @ values
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [(-1, -1), (2, 1)])
@pytest.mark.parametrize(("rows", "columns"), [(7, 7), (3, 7)])
def test_attention_with_fewer_heads_of_keys(
    causal: bool, window: tuple[int, int], rows: int, columns: int
) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(rows, 4, 8), torch.randn(columns, 2, 8), torch.randn(columns, 2, 8)
    made = kernels.flash_attn_func(q[None], k[None], v[None], causal=causal, window_size=window)
    torch.testing.assert_close(made[0], by_hand(q, k, v, causal, window))


def test_sequences_one_after_the_other_are_as_each_alone() -> None:
    torch.manual_seed(0)
    qkv = torch.randn(9, 3, 2, 8)
    borders = torch.tensor([0, 4, 9], dtype=torch.int32)
    made = kernels.flash_attn_varlen_qkvpacked_func(qkv, borders, 5, causal=True)
    for first, last in ((0, 4), (4, 9)):
        q, k, v = qkv[first:last].unbind(1)
        alone = by_hand(q, k, v, causal=True)
        torch.testing.assert_close(made[first:last], alone)


def test_padding_is_taken_out_and_put_back() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    hidden = torch.randn(2, 3, 4) * mask[..., None]
    tokens, places, borders, longest, _ = kernels.unpad_input(hidden, mask)
    assert tokens.shape == (5, 4)
    assert (borders.tolist(), longest) == ([0, 2, 5], 3)
    assert torch.equal(kernels.pad_input(tokens, places, 2, 3), hidden)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_positions_turn_pairs(interleaved: bool) -> None:
    torch.manual_seed(0)
    x, angles = torch.randn(2, 5, 3, 8), torch.randn(5, 2)
    made = kernels.apply_rotary_emb(x, angles.cos(), angles.sin(), interleaved)
    pairs = x[..., :4].reshape(*x.shape[:-1], 2, 2)
    pairs = pairs if interleaved else pairs.transpose(-1, -2)
    turned = (
        torch.view_as_complex(pairs.contiguous())
        * torch.polar(torch.ones_like(angles), angles)[:, None]
    )
    back = torch.view_as_real(turned)
    back = (back if interleaved else back.transpose(-1, -2)).flatten(-2)
    torch.testing.assert_close(made, torch.cat((back, x[..., 4:]), dim=-1))


def test_xformers_knows_a_causal_mask_by_its_long_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "xformers" in sys.modules:
        pytest.skip("xformers is installed")
    (tmp_path / "attending.py").write_text(
        "import flash_attn.flash_attn_interface as flash\n"
        "import xformers.ops as xops\n"
        "from flash_attn.bert_padding import pad_input\n"
        "def attend(q):\n"
        "    mask = xops.fmha.attn_bias.LowerTriangularMask()\n"
        "    return xops.memory_efficient_attention(q, q, q, attn_bias=mask), flash.flash_attn_func(q, q, q, causal=True)\n"
    )
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    replaced: dict[str, int] = {}
    sys.meta_path.append(Finder(Counted(replaced), kernels.KERNELS, frozenset()))
    before = set(sys.modules)
    try:
        attending = importlib.import_module("attending")
        x = torch.randn(1, 6, 2, 8)
        one, other = attending.attend(x)
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(one[0], by_hand(x[0], x[0], x[0], causal=True))
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]
    assert replaced == {"made up: flash_attn": 1, "made up: xformers": 1}


@pytest.mark.parametrize("name", ["AdamW", "PagedAdamW8bit", "Adam8bit", "PagedAdam", "SGD8bit"])
def test_optimizers_with_small_states_change_their_parameters(name: str) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = getattr(kernels, name)([parameter], lr=0.1, percentile_clipping=100)
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert (parameter < 1).all()


AUTOTUNER = """
class Autotuner:
    configs = ["first", "second"]

    def run(self, x):
        if len(self.configs) > 1:
            raise AssertionError("libcuda.so cannot found!")
        return self.configs[0], x
"""


def test_kernels_in_triton_are_interpreted_with_their_first_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, text in (
        ("triton", ""),
        ("triton/runtime", ""),
        ("triton/runtime/autotuner", AUTOTUNER),
    ):
        path = tmp_path / f"{file}.py" if text else tmp_path / file / "__init__.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in ("triton", "triton.runtime", "triton.runtime.autotuner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    counts: dict[str, int] = {}
    monkeypatch.setenv("TRITON_INTERPRET", "")
    monkeypatch.delenv("TRITON_INTERPRET")
    triton.install(Counted(counts))
    assert os.environ["TRITON_INTERPRET"] == "1"
    tuner = importlib.import_module("triton.runtime.autotuner").Autotuner()
    assert tuner.run(7) == ("first", 7)
    assert counts == {"triton.autotune": 1}
