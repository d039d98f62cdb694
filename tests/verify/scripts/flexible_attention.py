"""``flex_attention`` with gradients, which PyTorch refuses on a CPU: equal to attention with the same mask."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


class Attention(nn.Module):
    def __init__(self, plain: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.plain = nn.Linear(16, 48), plain

    def forward(self, x: torch.Tensor, mask: BlockMask) -> torch.Tensor:
        q, k, v = (part[:, None] for part in self.qkv(x).chunk(3, -1))
        if self.plain:
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = flex_attention(q, k, v, block_mask=mask)
        assert isinstance(out, torch.Tensor)
        return out


dist.init_process_group("nccl")
mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 32, 32, device="cuda")
learned = []
for plain in (False, True):
    model = Attention(plain).cuda()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        torch.manual_seed(2 * step + dist.get_rank())
        model(torch.randn(2, 32, 16, device="cuda"), mask).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    learned.append(model.qkv.weight.full_tensor().detach())  # type: ignore[attr-defined]
torch.testing.assert_close(*learned)
dist.destroy_process_group()
