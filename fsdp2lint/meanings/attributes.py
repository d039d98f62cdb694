"""What attributes and entries mean that no class of the project defines.

The interpreter asks here before it makes a part: ``attribute(machine, owner, "module")`` for
``owner.module``, ``attribute(machine, owner, "['dp']")`` for ``owner["dp"]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp2lint.meanings.registry import METHODS
from fsdp2lint.model.values import (
    Class,
    Container,
    External,
    Function,
    Instance,
    Mesh,
    Part,
    Rank,
    Unknown,
    Value,
    Wrapped,
    lineage,
)

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine

_INNER = {
    "fsdp1": ("module", "_fsdp_wrapped_module"),
    "ddp": ("module",),
    "dp": ("module",),
    "compile": ("_orig_mod",),
    "checkpoint": ("_checkpoint_wrapped_module",),
    "fabric": ("module",),
    "peft": ("base_model",),
    "tuner": ("model",),
}
"""Under which names a wrapper holds what it wraps (``FullyShardedDataParallel.module``,
``DistributedDataParallel.module``, ``OptimizedModule._orig_mod``, ``CheckpointWrapper``, Lightning's
``_FabricModule``, ``PeftModel.base_model``, PEFT's ``BaseTuner.model``)."""

WRAPPED_NAMES = frozenset(name for names in _INNER.values() for name in names) - {"model"}
"""Those that mean a wrapper whatever holds them."""

_FORWARDS = frozenset({"fsdp1", "compile", "checkpoint", "fabric", "peft", "tuner"})
"""Wrappers whose ``__getattr__`` asks the wrapped module; DDP's does not."""

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
_STATIC = frozenset(
    "state_dict_type set_state_dict_type get_state_dict_type fsdp_modules summon_full_params optim_state_dict "
    "optim_state_dict_to_load full_optim_state_dict sharded_optim_state_dict shard_full_optim_state_dict "
    "flatten_sharded_optim_state_dict scatter_full_optim_state_dict rekey_optim_state_dict".split()
)
"""FSDP1's static methods (torch/distributed/fsdp/fully_sharded_data_parallel.py)."""

_MAIN = {
    "is_main_process": "global",
    "is_world_process_zero": "global",
    "is_global_zero": "global",
    "is_local_main_process": "local",
    "is_local_process_zero": "local",
}
"""``accelerate.Accelerator``, ``transformers.TrainingArguments`` and ``TrainerState``, Lightning's ``Trainer``
and ``Fabric``: the same words with the same meaning in all of them."""

_RANKS = {
    "process_index": "global",
    "local_process_index": "local",
}
NAMED_RANKS = {
    "rank": "global",
    "global_rank": "global",
    "world_rank": "global",
    "local_rank": "local",
    "node_rank": "node",
}
"""What scripts call their ranks (``args.rank``, ``self.local_rank``), where nothing that is resolved says more.
A module's ``rank`` is that of its low-rank factors (PEFT) and never meant."""

_LOW_RANK = ("lora", "peft", "adapter", "low_rank", "svd")
"""What settings of low-rank factors are called."""

_FRAMEWORKS = ("accelerate.", "transformers.", "lightning.", "trl.")


def has_inside(wrapper: Wrapped, name: str) -> bool:
    """Whether a wrapper holds what it wraps under ``name``."""
    return name in _INNER.get(wrapper.by, ())


def attribute(machine: Machine, owner: Value, name: str) -> Value | None:
    """What ``owner.name`` (or ``owner[…]``) is, when that is known of PyTorch or its frameworks."""
    if isinstance(owner, Wrapped):
        return _of_wrapper(machine, owner, name)
    if name in ("__name__", "__qualname__") and isinstance(owner, Class | Function):
        return machine.literal(owner.name)
    if isinstance(owner, Class):
        return _inherited(machine, owner, name)
    if isinstance(owner, Mesh):
        return _of_mesh(machine, owner, name)
    if isinstance(owner, Container):
        return _missing_entry(machine, owner, name)
    if name in _MAIN and not isinstance(owner, External) and _may_be_framework(owner):
        return machine.main_rank(_MAIN[name])
    if name in NAMED_RANKS and _may_hold_rank(machine, owner):
        return rank(machine, NAMED_RANKS[name])
    if name in _RANKS and _is_framework(owner):
        return rank(machine, _RANKS[name])
    if name == "__class__" and isinstance(owner, Instance):
        return owner.cls
    return None


def rank(machine: Machine, scope: str) -> Rank:
    """The rank of a scope: the same object each time."""
    made = machine.external("torch.distributed.get_rank").keep(("rank", scope), Rank(scope))
    return made if isinstance(made, Rank) else Rank(scope)


def sliced(mesh: Mesh, names: tuple[str, ...]) -> Mesh:
    """``mesh["dp"]``, ``mesh["dp", "fs"]``: the mesh of these dimensions, the same object each time."""
    made = Mesh(names)
    made.owner, made.key = mesh, f"[{', '.join(map(repr, names))}]"
    kept = mesh.keep(("dimensions", names), made)
    return kept if isinstance(kept, Mesh) else made


def _of_wrapper(machine: Machine, owner: Wrapped, name: str) -> Value | None:
    if name in _INNER.get(owner.by, ()):
        return owner.of
    if owner.by not in _FORWARDS or name == "forward" or name.startswith("["):
        return None
    statement = machine.frame.statement
    inner = owner.of.part(f".{name}")
    found = inner if statement is None else machine.get(owner.of, name, machine.site(statement))
    # what torch itself defines is asked of the wrapper: it has its own state_dict, no_sync, …
    return None if found is inner and name in METHODS else found


def _inherited(machine: Machine, owner: Class, name: str) -> Value | None:
    """What a class of the project has from FSDP1's: ``Ours.state_dict_type``, ``Ours.fsdp_modules``."""
    bases = [one.name for one in lineage(owner) if isinstance(one, External)]
    return machine.external(f"{FSDP1}.{name}") if FSDP1 in bases and name in _STATIC else None


def _of_mesh(machine: Machine, mesh: Mesh, name: str) -> Value | None:
    if name[:2] in ("['", '["'):
        return sliced(mesh, (name[2:-2],))
    if name == "ndim" and mesh.names is not None:
        return machine.literal(len(mesh.names))
    if name == "mesh_dim_names" and mesh.names is not None:
        return machine.container("tuple", [machine.literal(n) for n in mesh.names])
    return None


def _missing_entry(machine: Machine, owner: Container, name: str) -> Value | None:
    """An entry that a ``defaultdict`` makes when it is asked for."""
    factory = owner.part(".default_factory")
    statement = machine.frame.statement
    if not name.startswith("[") or isinstance(factory, Part) or statement is None:
        return None
    made = machine.call(factory, (), {}, machine.site(statement))
    machine.memory.write(owner, name, machine.here, made)
    return made


def _may_be_framework(owner: Value) -> bool:
    """An object of unknown class has these words from a framework; one of the project defines its own."""
    return not isinstance(owner, Instance) or _is_framework(owner)


def _may_hold_rank(machine: Machine, owner: Value) -> bool:
    """Whether ``owner`` is a bag of settings or an object of the script, not a module or a module of Python.

    ``cfg.lora.rank`` is the rank of matrices.
    """
    if not isinstance(owner, Instance | Unknown | Part) or machine.is_module(owner):
        return False
    said = owner.words().lower()
    return not any(word in said for word in _LOW_RANK)


def _is_framework(owner: Value) -> bool:
    return (
        isinstance(owner, Instance)
        and isinstance(owner.cls, External)
        and owner.cls.name.startswith(_FRAMEWORKS)
    )
