"""Everything public that belongs to FSDP1, and what takes its place: the one table that the rules of
family 1 and the migration share.

Sources: torch/distributed/fsdp/__init__.py, fully_sharded_data_parallel.py, api.py, wrap.py and
sharded_grad_scaler.py of torch 2.13 (the public names are the same since 2.4).
"""

from __future__ import annotations

from dataclasses import dataclass

from fsdp2lint.meanings.fsdp1 import FSDP1, OLD_NAMES, POSITIONS
from fsdp2lint.model.values import External, Value

_FSDP = "torch.distributed.fsdp."
_WRAP = "torch.distributed.fsdp.wrap."
_STATES = "get_model_state_dict, set_model_state_dict with StateDictOptions"
_OPTIM_STATES = "get_optimizer_state_dict, set_optimizer_state_dict with StateDictOptions"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name of FSDP1: the rule that reports it, and what to write instead."""

    name: str
    code: str
    instead: str


def _symbols(prefix: str, code: str, instead: str, names: str) -> dict[str, Symbol]:
    return {prefix + n: Symbol(prefix + n, code, instead) for n in names.split()}


SYMBOLS: dict[str, Symbol] = {
    **_symbols(
        _FSDP,
        "FSDP101",
        "fully_shard on the submodules, then on the model",
        "FullyShardedDataParallel",
    ),
    **_symbols(
        "torch.distributed._composable.",
        "FSDP101",
        "torch.distributed.fsdp.fully_shard: this one was FSDP1 inside, and is gone since torch 2.6",
        "fully_shard",
    ),
    **_symbols(
        _WRAP,
        "FSDP102",
        "a loop that calls fully_shard on the submodules, children first",
        "ModuleWrapPolicy CustomPolicy always_wrap_policy lambda_auto_wrap_policy"
        " transformer_auto_wrap_policy size_based_auto_wrap_policy enable_wrap wrap _or_policy"
        " _module_wrap_policy _wrap_module_cls_individually default_auto_wrap_policy",
    ),
    **_symbols(_FSDP, "FSDP103", "MixedPrecisionPolicy", "MixedPrecision"),
    **_symbols(
        _FSDP,
        "FSDP104",
        _STATES,
        "StateDictType StateDictConfig FullStateDictConfig ShardedStateDictConfig"
        " LocalStateDictConfig OptimStateDictConfig FullOptimStateDictConfig"
        " ShardedOptimStateDictConfig LocalOptimStateDictConfig StateDictSettings",
    ),
    **_symbols(
        f"{FSDP1}.",
        "FSDP104",
        _STATES,
        "state_dict_type set_state_dict_type get_state_dict_type",
    ),
    **_symbols(_FSDP, "FSDP105", _OPTIM_STATES, "OptimStateKeyType"),
    **_symbols(
        f"{FSDP1}.",
        "FSDP105",
        _OPTIM_STATES,
        "optim_state_dict optim_state_dict_to_load full_optim_state_dict sharded_optim_state_dict"
        " shard_full_optim_state_dict scatter_full_optim_state_dict flatten_sharded_optim_state_dict"
        " rekey_optim_state_dict",
    ),
    "torch.distributed.checkpoint.load_sharded_optimizer_state_dict": Symbol(
        "torch.distributed.checkpoint.load_sharded_optimizer_state_dict", "FSDP105", _OPTIM_STATES
    ),
    **_symbols(
        f"{FSDP1}.",
        "FSDP107",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), …)",
        "clip_grad_norm_",
    ),
    **_symbols(f"{FSDP1}.", "FSDP106", "set_requires_gradient_sync", "no_sync"),
    **_symbols(
        f"{FSDP1}.",
        "FSDP108",
        "full_tensor() of a parameter, unshard() and reshard(), or get_model_state_dict",
        "summon_full_params",
    ),
    **_symbols(
        f"{_FSDP}sharded_grad_scaler.", "FSDP109", "torch.amp.GradScaler", "ShardedGradScaler"
    ),
    **_symbols(f"{FSDP1}.", "FSDP110", "isinstance with FSDPModule", "fsdp_modules check_is_root"),
    **_symbols(
        "torch.distributed.fsdp._common_utils.",
        "FSDP111",
        "nothing: parameters keep their names",
        "clean_tensor_name FSDP_PREFIX FSDP_WRAPPED_MODULE",
    ),
    **_symbols(
        f"{FSDP1}.",
        "FSDP112",
        "reduce_dtype for compression, set_all_reduce_hook for anything else",
        "register_comm_hook",
    ),
    **_symbols(_FSDP, "FSDP113", "a 2-D mesh and reshard_after_forward", "ShardingStrategy"),
    **_symbols(_FSDP, "FSDP113", "nothing: FSDP2 always prefetches", "BackwardPrefetch"),
    **_symbols(_FSDP, "FSDP113", "CPUOffloadPolicy", "CPUOffload"),
    **_symbols(_FSDP, "FSDP113", "nothing: there are no flat parameters", "FlatParameter"),
    **_symbols(
        f"{FSDP1}.",
        "FSDP113",
        "the same method of the model",
        "apply named_parameters named_buffers",
    ),
}
"""By canonical name."""

BY_LAST_NAME: dict[str, Symbol] = {
    **{name.rpartition(".")[2]: symbol for name, symbol in SYMBOLS.items()},
    **{
        word: Symbol(word, "FSDP111", "no wrapped names: modules and parameters keep theirs")
        for word in ("_fsdp_wrapped_module", "_flat_param", "module")
    },
    **{
        word: Symbol(word, "FSDP113", "no such attribute: keep the setting in a variable")
        for word in ("mixed_precision", "sharding_strategy", "cpu_offload", "compute_device")
    },
    "process_group": Symbol(
        "process_group", "FSDP113", "the group of the mesh that it was given: `mesh.get_group()`"
    ),
}
"""By the last part of the name."""

PLAIN_VALUES = frozenset(
    name.rpartition(".")[2]
    for name, symbol in SYMBOLS.items()
    if symbol.code in ("FSDP102", "FSDP103", "FSDP104", "FSDP113")
    and not name.startswith(f"{FSDP1}.")
) - {"enable_wrap", "wrap", "FlatParameter"}
"""Functions, enumerations and data classes that do nothing by themselves: code may go on handing them around
when no wrapper of FSDP1 is left."""

ARGUMENTS = frozenset((*POSITIONS, *OLD_NAMES))
"""The arguments of the constructor."""

METHODS: dict[str, str] = {
    "state_dict_type": "FSDP104",
    "set_state_dict_type": "FSDP104",
    "get_state_dict_type": "FSDP104",
    "optim_state_dict": "FSDP105",
    "optim_state_dict_to_load": "FSDP105",
    "full_optim_state_dict": "FSDP105",
    "sharded_optim_state_dict": "FSDP105",
    "shard_full_optim_state_dict": "FSDP105",
    "scatter_full_optim_state_dict": "FSDP105",
    "flatten_sharded_optim_state_dict": "FSDP105",
    "rekey_optim_state_dict": "FSDP105",
    "no_sync": "FSDP106",
    "clip_grad_norm_": "FSDP107",
    "summon_full_params": "FSDP108",
    "fsdp_modules": "FSDP110",
    "check_is_root": "FSDP110",
    "register_comm_hook": "FSDP112",
}
"""The methods that only a wrapped model has, with the rule that reports them."""

_OF_XLA = "torch_xla.distributed.fsdp.XlaFullyShardedDataParallel"
_WITH_XLA = frozenset({"apply", "clip_grad_norm_", "named_buffers", "named_parameters", "no_sync"})
"""What XLA's class has of these: its own, and those of ``nn.Module``
(``torch_xla/distributed/fsdp/xla_fully_sharded_data_parallel.py``)."""


def lacks(value: Value, name: str) -> bool:
    """Whether a value is a class that often shares its name with FSDP1's and has no attribute ``name``, as FSDP1's has."""
    if not isinstance(value, External) or value.name != _OF_XLA:
        return False
    return f"{FSDP1}.{name}" in SYMBOLS and name not in _WITH_XLA


WRAPPED_ATTRIBUTES = {
    "module": "FSDP111",
    "_fsdp_wrapped_module": "FSDP111",
    **dict.fromkeys(
        "mixed_precision sharding_strategy cpu_offload process_group compute_device"
        " limit_all_gathers training_state".split(),
        "FSDP113",
    ),
}
"""The attributes of a wrapped model that name what is inside, and those that keep its settings
(torch/distributed/fsdp/_init_utils.py)."""

SETTINGS = frozenset(
    "mixed_precision sharding_strategy cpu_offload limit_all_gathers training_state".split()
)
"""Those that no other module has."""

UNMISTAKABLE_ATTRIBUTES = frozenset(
    {"_fsdp_wrapped_module", "_flat_param", "_is_flat_param", "_shard_param_infos"}
)
"""Private names of FSDP1 that nothing else has (``torch/distributed/fsdp/_flat_param.py``)."""

WORDS = ("_fsdp_wrapped_module", "_flat_param", "FullyShardedDataParallel")
"""Words inside strings that speak of FSDP1."""

_OF_LIGHTNING = (
    "use `ModelParallelStrategy(data_parallel_size=<GPUs>, tensor_parallel_size=1)`, and call fully_shard in the "
    "`configure_model` of the LightningModule"
)
_OF_FABRIC = (
    "use Fabric's `ModelParallelStrategy(parallelize_fn, data_parallel_size=<GPUs>, tensor_parallel_size=1)`, whose "
    "`parallelize_fn` calls fully_shard"
)
"""The default sizes shard over the machines alone: ``tensor_parallel_size`` takes the GPUs of each
(``_setup_environment`` in lightning/pytorch/strategies/model_parallel.py)."""

FRAMEWORKS: dict[str, str] = {
    "accelerate.FullyShardedDataParallelPlugin": "set `fsdp_version=2` in the plugin or the config file",
    "accelerate.utils.FullyShardedDataParallelPlugin": (
        "set `fsdp_version=2` in the plugin or the config file"
    ),
    "lightning.pytorch.strategies.FSDPStrategy": (_OF_LIGHTNING),
    "lightning.fabric.strategies.FSDPStrategy": (_OF_FABRIC),
}
"""Classes of frameworks that put FSDP1 around a model themselves, and what to do there."""

_OF_TRANSFORMERS = (
    ("fsdp", "fsdp_config"),
    "set `fsdp_version: 2` in the fsdp_config, the Trainer shards the model itself",
)
_TRL_TRAINERS = (
    (
        "BCO CPO DPO GKD GRPO KTO NashMD ORPO OnlineDPO PPO PRM RLOO Reward SFT XPO"  # each has a config
    ).split()
)
"""TRL's trainers, whose settings are a class derived from transformers' (``trl/trainer/*_config.py``)."""

FRAMEWORK_ARGUMENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "transformers.TrainingArguments": _OF_TRANSFORMERS,
    "transformers.Seq2SeqTrainingArguments": _OF_TRANSFORMERS,
    **{f"trl.{trainer}Config": _OF_TRANSFORMERS for trainer in _TRL_TRAINERS},
    "lightning.pytorch.Trainer": (
        ("strategy",),
        _OF_LIGHTNING,
    ),
    "lightning.fabric.Fabric": (
        ("strategy",),
        _OF_FABRIC,
    ),
    "ray.train.torch.prepare_model": (
        ("parallel_strategy", "parallel_strategy_kwargs"),
        "call fully_shard on the model instead, Ray knows only FSDP1",
    ),
}
"""Calls of frameworks in which an argument (for a strategy: the text ``fsdp``) asks for FSDP1."""
