"""How a settings file asks for FSDP: of which framework it is, in which version, and by which keys.

Sources: accelerate/commands/launch.py, accelerate/utils/{launch,dataclasses,constants}.py and
accelerate/commands/config/config_args.py (1.15); transformers/training_args.py (4.57, 5.0 and 5.23);
axolotl/utils/schemas/{fsdp,validation}.py and axolotl/utils/trainer.py (0.13); lightning/pytorch/strategies/fsdp.py
(2.6); swift/arguments/sft_args.py and swift/trainers/arguments.py (ms-swift 4.6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fsdp2lint.frameworks.document import Entry, Mapping, Node, plain

Framework = Literal[
    "accelerate",
    "the Trainer",
    "ms-swift",
    "axolotl",
    "Lightning",
    "torchtune",
    "NeMo AutoModel",
    "LLaMA-Factory",
]

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""As accelerate numbers them, from 1 (``FSDP_SHARDING_STRATEGY``)."""

_SHARED = (
    *("version", "reshard_after_forward", "state_dict_type", "auto_wrap_policy"),
    *("transformer_layer_cls_to_wrap", "min_num_params", "cpu_ram_efficient_loading"),
    "activation_checkpointing",
)
_VERSION_1 = ("backward_prefetch", "forward_prefetch", "sync_module_states", "use_orig_params")

_OF_THE_TRAINER = (
    *(*_SHARED, *_VERSION_1, "limit_all_gathers", "cpu_offload"),
    *("xla", "xla_fsdp_v2", "xla_fsdp_settings", "xla_fsdp_grad_ckpt"),
)

KEYS: dict[Framework, tuple[str, ...]] = {
    "accelerate": (
        *(*_SHARED, *_VERSION_1, "sharding_strategy", "offload_params", "ignored_modules"),
        "activation_checkpointing_offload",
    ),
    "the Trainer": _OF_THE_TRAINER,
    "ms-swift": (*_OF_THE_TRAINER, "activation_cpu_offload"),
    "axolotl": (
        *(
            *_SHARED,
            *_VERSION_1,
            "sharding_strategy",
            "backward_prefetch_policy",
            "limit_all_gathers",
        ),
        *("offload_params", "final_state_dict_type", "cpu_offload_pin_memory"),
        "mixed_precision_policy",
    ),
}
"""What may be in ``fsdp_config``, without the prefix ``fsdp_``."""

PARALLELISM = "parallelism_config_"

OF_ACCELERATE = (
    *("compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug"),
    *("num_processes", "machine_rank", "num_machines", "gpu_ids", "main_process_ip"),
    *("main_process_port", "rdzv_backend", "same_network", "main_training_function"),
    *("enable_cpu_affinity", "fp8_config", "deepspeed_config", "fsdp_config"),
    *("parallelism_config", "megatron_lm_config", "mpirun_config", "downcast_bf16"),
    *("tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands"),
    *("tpu_vm", "tpu_env", "dynamo_config", "dynamo_backend", "fp16"),
)
"""What may be at the top of accelerate's file (``ClusterConfig``, and what ``process_config`` takes out)."""

OF_PARALLELISM = tuple(
    f"{PARALLELISM}{name}"
    for name in (
        *("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "cp_backend"),
        *("cp_comm_strategy", "sp_size", "sp_backend", "sp_seq_length"),
        *("sp_seq_length_is_variable", "sp_attn_implementation"),
    )
)
"""What the launcher reads of accelerate's ``parallelism_config``: only keys with their prefix."""

DISTINCT = frozenset(
    (
        *("transformer_layer_cls_to_wrap", "backward_prefetch", "limit_all_gathers"),
        *(
            "cpu_ram_efficient_loading",
            "use_orig_params",
            "sync_module_states",
            "sharding_strategy",
        ),
        *("reshard_after_forward", "state_dict_type", "xla_fsdp_v2", "xla_fsdp_settings"),
    )
)
"""By these a file of nothing but FSDP's settings is known."""

_WORDS = frozenset(
    ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
)
_MORE_WORDS = frozenset(("auto_wrap", "offload"))

_TRAINERS_OWN = frozenset(
    (
        *("per_device_train_batch_size", "per_device_eval_batch_size", "num_train_epochs"),
        *("lr_scheduler_type", "logging_steps", "save_strategy", "eval_strategy"),
        *("evaluation_strategy", "save_total_limit", "fsdp_transformer_layer_cls_to_wrap"),
    )
)
"""Arguments of TrainingArguments that few other scripts name so."""

PREFIX = "fsdp_"


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """FSDP as a settings file asks a framework for it.

    ``section`` holds its keys and ``holder`` the section; ``words`` is the ``fsdp`` of the training arguments.
    """

    framework: Framework
    top: Mapping
    section: Mapping | None = None
    holder: Entry | None = None
    words: Entry | None = None
    said: Entry | None = None
    """The entry that says the version."""
    settled: int | None = None
    """The version, where the framework offers only one or a class of its own for each."""

    @property
    def version(self) -> int | None:
        """1 or 2; None where the default of the framework's release decides."""
        if self.settled is not None:
            return self.settled
        if self.said is not None:
            value = str(plain(self.said.value))
            return int(value) if value in ("1", "2") else None
        return {"the Trainer": None, "ms-swift": 2}.get(self.framework, 1)

    @property
    def at(self) -> Node:
        """The place that asks."""
        entry = self.said or self.holder or self.words or self.top.get("distributed_type")
        return self.top if entry is None else entry.key

    def option(self, name: str) -> Entry | None:
        """The entry of a key, which may have the prefix ``fsdp_``."""
        if self.section is None:
            return None
        return self.section.get(PREFIX + name) or self.section.get(name)

    def value(self, name: str) -> Any:
        """What a key is set to."""
        entry = self.option(name)
        return None if entry is None else plain(entry.value)

    @property
    def strategies(self) -> list[tuple[Entry, str]]:
        """The entries that choose what is sharded, with the name that FSDP1 has for it."""
        found = []
        for name in ("sharding_strategy", "reshard_after_forward"):
            entry = self.option(name)
            strategy = None if entry is None else strategy_of(plain(entry.value))
            if entry is not None and strategy is not None:
                found.append((entry, strategy))
        if self.words is not None:
            named = [w.upper() for w in words_of(plain(self.words.value)) if w in _WORDS]
            found += [(self.words, word) for word in named]
        return found


class Launch(NamedTuple):
    """What settings or a command say of a script that they launch with FSDP."""

    version: int | None
    """None where the default of the Trainer's release decides."""
    state_dict_type: str = ""
    """``FULL_STATE_DICT`` or its like; empty when several launches differ."""
    wrapped: tuple[str, ...] = ()
    """The names of the classes that are sharded each for itself; none when the policy asks for no names."""
    activation_checkpointing: bool = False
    gradient_checkpointing: bool = False
    """Whether the arguments that the command gives to the Trainer ask for its own."""
    settings: str = ""
    """The file that says so; empty where options of the command do."""
    named: tuple[tuple[str, str], ...] = ()
    """What that file sets, by the names of a plugin's arguments: the rest are defaults."""
    sizes: tuple[tuple[str, int], ...] = ()
    """The sizes of the ``parallelism_config`` that are set, without their prefix."""
    offload: bool = False
    """Whether parameters lie on the CPU."""
    efficient_loading: bool = False
    """Whether the settings ask that rank 0 alone loads the weights."""
    mixed_precision: str = ""
    """``bf16`` or its like; empty where the settings say none."""
    processes: int | None = None
    """How many processes the command starts; None where it does not say, 0 where several commands differ."""


def strategy_of(value: Any) -> str | None:
    """The strategy that a value names or numbers; None for true and false."""
    if isinstance(value, bool) or value is None:
        return None
    text = str(value).upper()
    if text.isdigit():
        return STRATEGIES[int(text) - 1] if 1 <= int(text) <= len(STRATEGIES) else None
    return text if text in STRATEGIES else None


def words_of(value: Any) -> list[str]:
    """The options in ``fsdp``: a text with blanks between them, or a list."""
    if isinstance(value, str):
        return value.lower().split()
    return [str(one).lower() for one in value] if isinstance(value, list) else []


def bare(name: str) -> str:
    """A key without its prefix."""
    return name.removeprefix(PREFIX)


def asked(top: Mapping) -> Asked | None:
    """How a settings file asks for FSDP; None when it does not."""
    for kind in (_of_accelerate, _of_lightning, _of_native, _of_arguments, _of_section):
        found = kind(top)
        if found is not None:
            return None if found.value("xla") is True else found  # torch_xla shards by its own
    return None


def _section(top: Mapping) -> tuple[Entry | None, Mapping | None]:
    entry = top.get("fsdp_config")
    return entry, entry.value if entry is not None and isinstance(entry.value, Mapping) else None


def _version(*places: Mapping | None) -> Entry | None:
    found = (m.get(name) for m in places if m is not None for name in ("fsdp_version", "version"))
    return next((entry for entry in found if entry is not None), None)


def _of_accelerate(top: Mapping) -> Asked | None:
    """``distributed_type: FSDP``: the file of ``accelerate launch``."""
    if str(top.value("distributed_type")).upper() != "FSDP":
        return None
    holder, section = _section(top)
    return Asked("accelerate", top, section, holder, said=_version(section))


def _of_lightning(top: Mapping) -> Asked | None:
    """``trainer: {strategy: …}``: the file of LightningCLI."""
    trainer = top.value("trainer")
    entry = trainer.get("strategy") if isinstance(trainer, Mapping) else None
    if entry is None:
        return None
    given = plain(entry.value)
    name = given.value("class_path") if isinstance(given, Mapping) else given
    last = str(name).rpartition(".")[2]
    version = 1 if last in ("fsdp", "fsdp_cpu_offload", "FSDPStrategy") else 2
    if version == 2 and last != "ModelParallelStrategy":
        return None
    section = given.value("init_args") if isinstance(given, Mapping) else None
    inner = section if isinstance(section, Mapping) else None
    return Asked("Lightning", top, inner, entry, settled=version)


def _of_native(top: Mapping) -> Asked | None:
    """Frameworks that know FSDP2 alone."""
    if top.get("fsdp_cpu_offload") or top.get("fsdp_reshard_after_forward"):
        if any(_is_component(entry.value) for entry in top):
            return Asked("torchtune", top, settled=2)
    for key in ("distributed", "dist_config", "distributed_config"):
        inner = top.value(key)
        if not isinstance(inner, Mapping):
            continue
        if inner.value("name") == "fsdp2":
            return Asked("LLaMA-Factory", top, inner, top.get(key), settled=2)
        target = str(inner.value("_target_")).rpartition(".")[2]
        if target in ("FSDP2Manager", "FSDP2Config") or inner.value("strategy") == "fsdp2":
            return Asked("NeMo AutoModel", top, inner, top.get(key), settled=2)
    return None


def _is_component(node: Node) -> bool:
    return isinstance(node, Mapping) and "torchtune" in str(node.value("_component_"))


def _of_arguments(top: Mapping) -> Asked | None:
    """``fsdp`` and ``fsdp_config`` among the arguments of a training."""
    if top.get("distributed_type") or top.get("compute_environment"):
        return None  # accelerate's file, which asks for something else
    holder, section = _section(top)
    words = top.get("fsdp")
    asking = words is not None and asks_by_words(plain(words.value))
    if section is None and not asking:
        return None
    if top.get("base_model") is not None:
        said = _version(top if top.get("fsdp_version") else None, section)
        return Asked("axolotl", top, section, holder, words if asking else None, said)
    if section is not None and top.flow and all(_is_of_swift(entry.name) for entry in top):
        said = _version(section)
        return Asked("ms-swift", top, section, holder, words if asking else None, said)
    known = section is not None and any(bare(e.name) in KEYS["the Trainer"] for e in section)
    if not (known or (asking and _may_be_the_trainers(top))):
        return None
    if not asking and not _has_trainers_own(top):
        return None  # Composer and others have an `fsdp_config` too; the Trainer heeds its own only beside `fsdp`
    return Asked("the Trainer", top, section, holder, words if asking else None, _version(section))


def _may_be_the_trainers(top: Mapping) -> bool:
    """Whether the arguments beside ``fsdp`` can be the Trainer's: a script has a ``fsdp: true`` of its own, too."""
    names = {entry.name for entry in top}
    words = top.get("fsdp")
    said = words is not None and plain(words.value) is not True
    return not any("-" in name for name in names) and (said or _has_trainers_own(top))


def _has_trainers_own(top: Mapping) -> bool:
    return any(entry.name in _TRAINERS_OWN for entry in top)


def _is_of_swift(name: str) -> bool:
    """Whether ``swift sft --fsdp FILE`` reads a key; those with an underscore are comments."""
    return name in ("fsdp", "fsdp_config") or name.startswith("_")


def asks_by_words(value: Any) -> bool:
    """Whether ``fsdp: …`` asks for it: a word or a list of words that TrainingArguments knows, or true."""
    said = words_of(value)
    return value is True or (
        bool(said) and set(said) <= _WORDS | _MORE_WORDS and said != ["offload"]
    )


def _of_section(top: Mapping) -> Asked | None:
    """The file that ``fsdp_config="file.json"`` names: the section alone."""
    names = [bare(entry.name) for entry in top if not entry.name.startswith("_")]
    if not names or not any(name in DISTINCT for name in names):
        return None
    if not all(name in KEYS["the Trainer"] or name in KEYS["accelerate"] for name in names):
        return None
    return Asked("the Trainer", top, top, said=_version(top))


def classes_of(value: Any) -> list[str]:
    """The class names in ``transformer_layer_cls_to_wrap``: a list, or a text with commas."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    return [str(name) for name in value] if isinstance(value, list) else []
