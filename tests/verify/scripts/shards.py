"""A small model sharded in the way that the command line says: API, setting, precision, optimizer."""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "hybrid")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "adadelta": torch.optim.Adadelta,
    "plain": lambda p: torch.optim.SGD(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True),
}


class Block(nn.Module):
    """Odd sizes, so that every kind of padding is needed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 3 * width + 2)
        self.down = nn.Linear(3 * width + 2, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(5))

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def shard1(model: Any, setting: str, precision: str, mesh: Any) -> Any:
    flat = setting.endswith("-flat")
    policy = None
    if precision == "bf16":
        policy = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy[setting.removesuffix("-flat")],
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=policy,
        device_mesh=mesh,
        device_id=torch.device("cpu"),
        use_orig_params=not flat,
    )


def shard2(model: Any, setting: str, precision: str, mesh: Any) -> Any:
    how = {"true": True, "false": False, "two": 2}.get(setting)
    settings: dict[str, Any] = {} if how is None else {"reshard_after_forward": how}
    if precision == "bf16":
        settings["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **settings)
    return fully_shard(model, mesh=mesh, **settings)


def mesh_for(setting: str) -> Any:
    world = dist.get_world_size()
    names = ("replicate", "shard")
    if setting.removesuffix("-flat") in HYBRID:
        return init_device_mesh("cpu", (2, world // 2), mesh_dim_names=names)
    if setting == "replicate":
        return init_device_mesh("cpu", (world, 1), mesh_dim_names=names)
    return init_device_mesh("cpu", (world,))


def recompute(model: Any, how: str) -> None:
    """Checkpoint each block: inside of its unit, around it, or around it in the older way."""
    kind = CheckpointImpl.REENTRANT if how == "reentrant" else CheckpointImpl.NO_REENTRANT
    unit = Block if how == "inside" else (FullyShardedDataParallel, FSDPModule)

    def chosen(module: Any) -> bool:
        return isinstance(module, unit) and module is not model

    apply_activation_checkpointing(
        model, lambda module: checkpoint_wrapper(module, checkpoint_impl=kind), chosen
    )


def main() -> Any:
    api, setting, precision, optimizer = sys.argv[1].split(":")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: Any = Model()
    if precision == "frozen":
        model.blocks[0].requires_grad_(False)
        model.blocks[1].norm.requires_grad_(api == "fsdp2")
    mesh = mesh_for(setting)
    if precision == "inside" and api == "fsdp2":
        recompute(model, precision)
    model = (shard1 if api == "fsdp1" else shard2)(model, setting, precision, mesh)
    if precision in ("outside", "reentrant") or (precision == "inside" and api == "fsdp1"):
        recompute(model, precision)
    trainer = OPTIMIZERS[optimizer](p for p in model.parameters() if p.requires_grad)
    tokens = torch.randint(11, (4, 3))
    for _ in range(2):
        loss: Any = nn.functional.cross_entropy(
            model(tokens).flatten(0, 1).float(), tokens.flatten()
        )
        loss.backward()
        trainer.step()
    return model, trainer


kept = main()
