"""One canonical name for everything that PyTorch exports in several places.

Read from the ``__init__`` files of torch 2.4 to 2.13. ``torch.distributed._composable.fully_shard`` of
torch ≤ 2.5 is another function (it is FSDP1 inside, with ``policy=`` and ``strategy=``) and keeps its name.
"""

from __future__ import annotations

from fsdp2lint.meanings.registry import ALIASES

_FSDP2 = "torch.distributed.fsdp."
_DCP = "torch.distributed.checkpoint."

# torch/distributed/fsdp/_fully_shard/__init__.py (2.6 and later), torch/distributed/_composable/fsdp (2.4 and later)
ALIASES.update(
    {
        "torch.distributed._composable.fsdp.": _FSDP2,
        "torch.distributed._composable.fsdp.fully_shard.": _FSDP2,
        "torch.distributed._composable.fsdp._fsdp_api.": _FSDP2,
        "torch.distributed.fsdp.fully_shard.": _FSDP2,  # what the old module of that name becomes
        "torch.distributed.fsdp._fully_shard.": _FSDP2,
        "torch.distributed.fsdp._fully_shard._fully_shard.": _FSDP2,
        "torch.distributed.fsdp._fully_shard._fsdp_api.": _FSDP2,
    }
)

# torch/distributed/fsdp/__init__.py
ALIASES.update(
    {
        "torch.distributed.fsdp.fully_sharded_data_parallel.": "torch.distributed.fsdp.",
        "torch.distributed.fsdp.api.": "torch.distributed.fsdp.",
        "torch.distributed.fsdp.ShardedGradScaler": (
            "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"
        ),
    }
)

# torch/distributed/checkpoint/__init__.py; torch.distributed._shard.checkpoint is its old home
ALIASES.update(
    {
        f"{_DCP}{module}.": _DCP
        for module in (
            "state_dict_saver",
            "state_dict_loader",
            "filesystem",
            "default_planner",
            "hf_storage",
            "quantized_hf_storage",
            "optimizer",
            "planner",
            "storage",
        )
    }
)
ALIASES["torch.distributed._shard.checkpoint."] = _DCP

# torch/distributed/__init__.py, torch/distributed/tensor/__init__.py, torch/distributed/tensor/parallel/__init__.py
ALIASES.update(
    {
        "torch.distributed.distributed_c10d.": "torch.distributed.",
        "torch.distributed._tensor.": "torch.distributed.tensor.",
        "torch.distributed._tensor.api.": "torch.distributed.tensor.",
        "torch.distributed.tensor._api.": "torch.distributed.tensor.",
        "torch.distributed._tensor.placement_types.": "torch.distributed.tensor.",
        "torch.distributed.tensor.placement_types.": "torch.distributed.tensor.",
        "torch.distributed._tensor.device_mesh.": "torch.distributed.device_mesh.",
        "torch.distributed.tensor.device_mesh.": "torch.distributed.device_mesh.",
        "torch.distributed._device_mesh.": "torch.distributed.device_mesh.",
        "torch.distributed.tensor.parallel.api.": "torch.distributed.tensor.parallel.",
        "torch.distributed.tensor.parallel.style.": "torch.distributed.tensor.parallel.",
        "torch.distributed._composable.checkpoint_activation.": "torch.distributed._composable.",
        "torch.distributed._composable.replicate.": "torch.distributed._composable.",
    }
)
for _home in ("torch.distributed.", "torch.distributed.tensor."):
    for _name in ("init_device_mesh", "DeviceMesh"):
        ALIASES[f"{_home}{_name}"] = f"torch.distributed.device_mesh.{_name}"

# torch/nn/__init__.py, torch/nn/parallel/__init__.py, torch/nn/utils/__init__.py
ALIASES.update(
    {
        f"torch.nn.modules.{module}.": "torch.nn."
        for module in (
            "activation",
            "batchnorm",
            "container",
            "conv",
            "dropout",
            "linear",
            "loss",
            "module",
            "normalization",
            "pooling",
            "rnn",
            "sparse",
            "transformer",
        )
    }
)
ALIASES.update(
    {
        "torch.nn.modules.": "torch.nn.",
        "torch.nn.parallel.distributed.": "torch.nn.parallel.",
        "torch.nn.parallel.data_parallel.": "torch.nn.parallel.",
        "torch.nn.DataParallel": "torch.nn.parallel.DataParallel",
        "torch.nn.parameter.Parameter": "torch.nn.Parameter",
        "torch.nn.utils.clip_grad.": "torch.nn.utils.",
        "torch.nn.utils.clip_grad_norm": "torch.nn.utils.clip_grad_norm_",
    }
)

# torch/optim/__init__.py
ALIASES.update(
    {
        f"torch.optim.{module}.": "torch.optim."
        for module in (
            "adadelta",
            "adagrad",
            "adam",
            "adamax",
            "adamw",
            "asgd",
            "lbfgs",
            "nadam",
            "optimizer",
            "radam",
            "rmsprop",
            "rprop",
            "sgd",
            "sparse_adam",
            "_muon",
            "_adafactor",
        )
    }
)

# torch/__init__.py, torch/autograd/__init__.py
ALIASES.update(
    {
        f"torch.autograd.{home}{name}": f"torch.{name}"
        for home in ("", "grad_mode.")
        for name in ("no_grad", "enable_grad", "inference_mode", "set_grad_enabled")
    }
)

# torch/amp/__init__.py, torch/cuda/amp/__init__.py, torch/serialization.py, torch/utils/data/__init__.py
ALIASES.update(
    {
        "torch.autocast": "torch.amp.autocast",
        "torch.amp.autocast_mode.": "torch.amp.",
        "torch.amp.grad_scaler.": "torch.amp.",
        "torch.cuda.amp.autocast_mode.": "torch.cuda.amp.",
        "torch.cuda.amp.grad_scaler.": "torch.cuda.amp.",
        "torch.serialization.": "torch.",
        "torch.multiprocessing.spawn.": "torch.multiprocessing.",
        "torch.utils.data.dataloader.": "torch.utils.data.",
        "torch.utils.data.sampler.": "torch.utils.data.",
        "torch.utils.data.DistributedSampler": "torch.utils.data.distributed.DistributedSampler",
    }
)

# Lightning is published under two names; accelerate and PEFT export from their roots
ALIASES.update(
    {
        "pytorch_lightning.": "lightning.pytorch.",
        "lightning_fabric.": "lightning.fabric.",
        "lightning.Trainer": "lightning.pytorch.Trainer",
        "lightning.LightningModule": "lightning.pytorch.LightningModule",
        "lightning.Fabric": "lightning.fabric.Fabric",
        "lightning.pytorch.strategies.fsdp.": "lightning.pytorch.strategies.",
        "lightning.pytorch.strategies.model_parallel.": "lightning.pytorch.strategies.",
        "lightning.fabric.strategies.fsdp.": "lightning.fabric.strategies.",
        "lightning.fabric.strategies.model_parallel.": "lightning.fabric.strategies.",
        "accelerate.accelerator.": "accelerate.",
        "accelerate.state.": "accelerate.",
        "peft.mapping.": "peft.",
        "peft.mapping_func.": "peft.",
        "transformers.trainer.": "transformers.",
        "transformers.modeling_utils.": "transformers.",
    }
)
