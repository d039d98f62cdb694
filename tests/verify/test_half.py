"""Products in half precision that are computed in single precision are what they were, and sooner done."""

from __future__ import annotations

import pytest
import torch

from tests.support import forks

from .scenes import ROOT

COMPARED = """
import torch
from torch import nn
from torch.nn import functional as F
from fsdp2lint.rehearse.standin import half

types = (torch.bfloat16, torch.float16)

def made(dtype):
    torch.manual_seed(0)
    linear, conv, seen = nn.Linear(8, 8).to(dtype), nn.Conv2d(2, 2, 3).to(dtype), []
    x = torch.randn(2, 5, 8).to(dtype).requires_grad_()
    y = linear(x).view(2, 5, 2, 4).transpose(1, 2)
    z = F.scaled_dot_product_attention(y, y, y, is_causal=True)
    z = z + F.scaled_dot_product_attention(y, y, y, torch.ones(5, 5, dtype=dtype))
    (conv(z).square().sum() + (y @ y.mT).sum() + torch.baddbmm(y[0], y[0], y[0, :, :4, :4]).sum()).backward()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype in types):
        seen.append(linear(torch.ones(3, 8)))
    with torch.inference_mode():
        seen.append(linear(torch.ones(3, 8, dtype=dtype)))
    return [z, x.grad, *(p.grad for p in (*linear.parameters(), *conv.parameters())), *seen]

before = [made(dtype) for dtype in (*types, torch.float32)]
half.replace(types)
for one, other in zip(before, [made(dtype) for dtype in (*types, torch.float32)], strict=True):
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride()
        assert (a.float() - b.float()).abs().max() <= 0.02 * a.float().abs().max()
assert all(map(torch.equal, before[2], made(torch.float32)))
for a, b in ((torch.float32, torch.float16), (torch.float16, torch.float32)):
    try:
        torch.ones(2, 2, dtype=a) @ torch.ones(2, 2, dtype=b)
    except RuntimeError:
        continue
    raise AssertionError("two types are multiplied")
"""


@pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="from PyTorch 2.9 on")
def test_products_in_half_precision() -> None:
    ran = forks.snippet(COMPARED, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "Warning" not in ran.stderr, ran.stderr
