"""A file of LightningCLI that asks for FSDPStrategy: which spans change for ModelParallelStrategy, and what its module has to shard.

Sources: lightning/pytorch/cli.py, lightning/pytorch/strategies/{fsdp,model_parallel}.py and
lightning/pytorch/trainer/connectors/accelerator_connector.py (2.6).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from fsdp2lint.frameworks.asked import Asked, strategy_of
from fsdp2lint.frameworks.document import Entry, Mapping, plain
from fsdp2lint.frameworks.version2 import (
    LIGHTNING_BY_HAND,
    Change,
    Rewriting,
    settings_left,
    written_twice,
)

_SHARDS = "ModelParallelStrategy is FSDP2; `configure_model` shards the module"
_SAYS_IT = "`configure_model` says it"
_KNOWN = {"auto_wrap_policy", "sharding_strategy", "state_dict_type"}
_KEEPS = {"FULL_SHARD": False, "SHARD_GRAD_OP": True}
_TYPES = (None, "full", "sharded")
_PRECISIONS = (None, 32, "32", "32-true")
_STRATEGY = "lightning.pytorch.strategies.ModelParallelStrategy"


class CliStrategy(NamedTuple):
    """What a file of LightningCLI asks for, and the changes by which it asks FSDP2 for the same."""

    wrapped: tuple[str, ...]
    """The import paths of the classes that are sharded each for itself."""
    keeps: bool
    """Whether parameters stay gathered from the forward to the backward."""
    model: str
    """The import path of the LightningModule; empty where the script names it."""
    changes: tuple[Change, ...]


def cli_strategy(asked: Asked, text: str, *, json: bool) -> CliStrategy | Change:
    """What a file of LightningCLI that asks for FSDP1 becomes; the change is why it stays and what to do."""
    assert asked.holder is not None
    entry, section = asked.holder, asked.section
    trainer, model = asked.top.value("trainer"), asked.top.value("model")
    assert isinstance(trainer, Mapping)
    given = plain(entry.value)
    whole = given if isinstance(given, Mapping) else None
    places = [one for one in (trainer, whole, section) if one is not None]
    if any(one.merged or one.shared for one in places):
        why = "the settings come from a YAML anchor that other places use"
        return settings_left(asked, why, LIGHTNING_BY_HAND)
    double = next((one for place in places if (one := written_twice(place)) is not None), None)
    if double is not None:
        return settings_left(asked, f"`{double.name}` is written twice", "keep one of the two")
    arguments = None if whole is None else whole.value("init_args")
    if not (arguments is None or isinstance(arguments, Mapping)):
        return settings_left(
            asked, "`init_args` is no mapping", "write a mapping of names to values"
        )
    if not (model is None or isinstance(model, Mapping | str)):
        return settings_left(asked, "`model` is no mapping", "write a mapping of names to values")
    why = _without_equal(asked, trainer)
    processes = None if why else _processes(trainer)
    if processes is None:
        return settings_left(
            asked, why or "the file does not say the number of GPUs", LIGHTNING_BY_HAND
        )
    chosen = asked.value("sharding_strategy")
    wrapped = asked.value("auto_wrap_policy") or ()
    named = model.value("class_path") if isinstance(model, Mapping) else model
    return CliStrategy(
        tuple(wrapped),
        False if chosen is None else _KEEPS[str(strategy_of(chosen))],
        named if isinstance(named, str) else "",
        tuple(
            sorted(
                _Rewriting(asked, text, json, processes).changes(), key=lambda c: (c.start, c.end)
            )
        ),
    )


def _without_equal(asked: Asked, trainer: Mapping) -> str:
    """Why the strategy has no equal that is written by itself; empty where it has one."""
    name = _class_path(asked).rpartition(".")[2]
    if name == "fsdp_cpu_offload":
        return "ModelParallelStrategy has no setting for offloading"
    for entry in asked.section or ():
        if entry.name not in _KNOWN:
            return f"ModelParallelStrategy has no `{entry.name}`"
    chosen, policy = asked.value("sharding_strategy"), asked.value("auto_wrap_policy")
    if chosen is not None and strategy_of(chosen) not in _KEEPS:
        return f"fully_shard on one mesh has no equal of {chosen}"
    if policy is not None and not (
        isinstance(policy, list) and all(isinstance(one, str) for one in policy)
    ):
        return "the wrap policy is no list of classes"
    if asked.value("state_dict_type") not in _TYPES:
        return "the type of the checkpoints is not known"
    if trainer.value("precision") not in _PRECISIONS:
        return (
            "FSDPStrategy casts parameters for this precision, and ModelParallelStrategy does not"
        )
    return ""


def _class_path(asked: Asked) -> str:
    """The class, or the word that stands for it."""
    assert asked.holder is not None
    given = plain(asked.holder.value)
    return str(given.value("class_path") if isinstance(given, Mapping) else given)


def _processes(trainer: Mapping) -> int | None:
    """How many GPUs a trainer uses; None where the file does not say it."""
    devices, nodes = trainer.value("devices"), trainer.value("num_nodes")
    nodes = 1 if nodes is None else nodes
    count = len(devices) if isinstance(devices, list) else devices
    if isinstance(count, str) and count.isdecimal():
        count = int(count)
    sizes = (count, nodes)
    if not all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in sizes):
        return None
    return int(count) * int(nodes)


class _Rewriting(Rewriting):
    """The changes of the entry that holds the strategy."""

    def __init__(self, asked: Asked, text: str, json: bool, processes: int) -> None:
        super().__init__(asked, text, json)
        sharded = asked.value("state_dict_type") == "sharded"
        self.new = [
            ("data_parallel_size", str(processes)),
            ("tensor_parallel_size", "1"),
            *([] if sharded else [("save_distributed_checkpoint", "false")]),
        ]

    def changes(self) -> Iterator[Change]:
        """The changes; all arguments of the old strategy are known, so that none of them stays."""
        entry, section = self.asked.holder, self.asked.section
        assert entry is not None
        given = entry.value
        if not isinstance(given, Mapping):
            yield self._instead_of_a_word(entry)
        elif given.flow:
            yield Change(given.start, given.end, self._class(), entry.name, "changed", _SHARDS)
        else:
            named = given.get("class_path")
            assert named is not None
            yield self._set(named, self._path(), _SHARDS)
            if section is None:
                yield from self._with_arguments(given, named)
            elif section.flow:
                braces = self._arguments()
                yield Change(section.start, section.end, braces, "init_args", "changed", _SHARDS)
            else:
                for change in self._without(list(section), True):
                    yield change._replace(why=_SAYS_IT)
                yield from self._with([(name, value, _SHARDS) for name, value in self.new], [])

    def _instead_of_a_word(self, entry: Entry) -> Change:
        """``strategy: fsdp`` with the class and its arguments in its place."""
        start, end = entry.value.start, entry.value.end
        trainer = self.asked.top.value("trainer")
        if self.json or trainer.flow:
            return Change(start, end, self._class(), entry.name, "changed", _SHARDS)
        margin = self._margin(entry)
        inner = [f"{margin}  class_path: {self._path()}", f"{margin}  init_args:"]
        inner += [f"{margin}    {name}: {value}" for name, value in self.new]
        stop = self._stop(end)
        said = self.newline.join([self.text[end:stop], *inner])
        return Change(
            self.text.index(":", entry.key.end) + 1, stop, said, entry.name, "changed", _SHARDS
        )

    def _with_arguments(self, given: Mapping, named: Entry) -> Iterator[Change]:
        """``init_args`` for a class that has none."""
        empty = given.get("init_args")
        margin = self._margin(named)
        inner = [f"{margin}  {name}: {value}" for name, value in self.new]
        if empty is None:
            at = self._stop(named.value.end)
            said = self.newline.join(["", f"{margin}init_args:", *inner])
        else:  # nothing behind it
            at = self._stop(empty.key.end)
            said = self.newline.join(["", *inner])
        yield Change(at, at, said, "init_args", "changed", _SHARDS)

    def _stop(self, at: int) -> int:
        """Where the line of a place ends, before what ends it."""
        found = re.compile(r"\r|\n|\Z").search(self.text, at)
        assert found is not None
        return found.start()

    def _path(self) -> str:
        """The new class, named as the old one was."""
        old = _class_path(self.asked)
        if old == "fsdp":
            return _STRATEGY
        home = old.rpartition(".")[0].replace(".strategies.fsdp", ".strategies")
        return f"{home}.ModelParallelStrategy" if home else "ModelParallelStrategy"

    def _class(self) -> str:
        path = self._word(self._path())
        return (
            f"{{{self._key('class_path')}: {path}, {self._key('init_args')}: {self._arguments()}}}"
        )

    def _arguments(self) -> str:
        inner = (f"{self._key(name)}: {self._word(value)}" for name, value in self.new)
        return "{" + ", ".join(inner) + "}"
