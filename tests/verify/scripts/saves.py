"""Trains two steps under FSDP1 or FSDP2 and saves the same values in the form that is asked for."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    LocalStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(7, 5)
        self.down = nn.Linear(5, 7)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.down(self.up(x))


def main(api: str, form: str, change: float = 0.0, slot: str = "") -> None:
    """``change`` is added to one element of the first weight, or of its ``slot``, before it is saved."""
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    plain = nn.Sequential(Block(), Block(), nn.Linear(7, 3))
    model: Any = one(plain, form) if api == "fsdp1" else two(plain)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        model(torch.ones(4, 7)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if change and dist.get_rank() == 1:
        first = next(iter(model.parameters()))
        with torch.no_grad():
            (optimizer.state[first][slot] if slot else first).to_local()[-1, -1] += change
    FORMS[form](model, optimizer)
    dist.destroy_process_group()


def one(plain: nn.Module, form: str) -> Any:
    mesh = init_device_mesh("cuda", (dist.get_world_size(),)) if form == "tensors" else None
    return FullyShardedDataParallel(
        plain,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        use_orig_params=form == "rows",
        device_mesh=mesh,
        device_id=torch.cuda.current_device(),
    )


def two(plain: Any) -> Any:
    for block in plain[:2]:
        fully_shard(block)
    return fully_shard(plain)


def local(model: Any, optimizer: Any) -> None:
    """FSDP1's flat parameters as each rank has them."""
    FullyShardedDataParallel.set_state_dict_type(
        model, StateDictType.LOCAL_STATE_DICT, LocalStateDictConfig(offload_to_cpu=True)
    )
    torch.save({"model": model.state_dict()}, f"local_{dist.get_rank()}.pt")


def sharded(model: Any, optimizer: Any) -> None:
    """Each rank's ``ShardedTensor``s, or ``DTensor``s where FSDP1 was given a mesh."""
    FullyShardedDataParallel.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    content = {
        "model": model.state_dict(),
        "optimizer": FullyShardedDataParallel.optim_state_dict(model, optimizer),
    }
    torch.save(content, f"sharded_{dist.get_rank()}.pt")


def flat(model: Any, optimizer: Any) -> None:
    """FSDP1's flat parameters and their optimizer as each rank has them: a row of every unit."""
    FullyShardedDataParallel.set_state_dict_type(model, StateDictType.LOCAL_STATE_DICT)
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(content, f"flat_{dist.get_rank()}.pt")


def rows(model: Any, optimizer: Any) -> None:
    """FSDP1's optimizer as each rank has it: a row of every parameter, by number."""
    torch.save({"optimizer": optimizer.state_dict()}, f"rows_{dist.get_rank()}.pt")


def pickled(model: Any, optimizer: Any) -> None:
    """Each rank's ``DTensor``s."""
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(content, f"sharded_{dist.get_rank()}.pt")


def folder(model: Any, optimizer: Any) -> None:
    weights, state = get_state_dict(model, optimizer)
    save({"model": weights, "optimizer": state}, checkpoint_id="latest")


def full(model: Any, optimizer: Any) -> None:
    options = StateDictOptions(full_state_dict=True)
    weights, state = get_state_dict(model, optimizer, options=options)
    if dist.get_rank() == 0:
        torch.save({"model": weights, "optimizer": state}, "full.pt")


def safetensors(model: Any, optimizer: Any) -> None:
    from safetensors.torch import save_file

    options = StateDictOptions(full_state_dict=True)
    weights: Any = get_state_dict(model, optimizer, options=options)[0]
    if dist.get_rank() == 0:
        save_file(weights, "model.safetensors")


FORMS: dict[str, Callable[[Any, Any], None]] = {
    "local": local,
    "sharded": sharded,
    "tensors": sharded,
    "flat": flat,
    "rows": rows,
    "pickled": pickled,
    "folder": folder,
    "full": full,
    "safetensors": safetensors,
}
