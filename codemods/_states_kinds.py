"""The kind of state dict that a place of the text needs, agreed among all the runs that come there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import libcst as cst

from fsdp2lint.api import Edit, Source, name_for

from ._launch import named_once
from ._states_asked import FULL, KINDS, LOCAL, LOCAL_WHY, SHARDED, Asked
from ._states_text import argument, function_of, is_path


@dataclass(frozen=True, slots=True)
class Kind:
    """``name`` is the member of ``StateDictType``, empty when the run decides; ``switches`` the options.

    ``imports`` are what the switches need.
    """

    name: str
    switches: tuple[str, ...]
    imports: tuple[Edit, ...] = ()

    def in_groups(self) -> Kind:
        """The same for a model of one group of ranks among several.

        FSDP1 leaves a state to the first rank of the group; with ``cpu_offload`` torch leaves it to the first
        of all ranks (torch/distributed/checkpoint/state_dict.py, ``_maybe_full_or_cpu_state_dict``).
        """
        if self.name == SHARDED:
            return self
        return replace(self, switches=tuple(s for s in self.switches if "cpu_offload" not in s))


def agreed(source: Source, call: cst.CSTNode, found: Iterable[tuple[Asked, bool]]) -> Kind | str:
    """The kind for a call that is reached with these questions, each with whether only rank 0 uses it.

    A text instead says why there is none.
    """
    every = list(found)
    kinds = {asked.kind for asked, _ in every}
    if LOCAL in kinds:
        return LOCAL_WHY
    if len(kinds) > 1:
        return "its callers ask for different kinds of state dicts"
    kind = kinds.pop()
    first_only = all(asked.rank0_only is True or only for asked, only in every)
    offloaded = all(asked.offloaded is True and asked.by is not None for asked, _ in every)
    if kind == FULL:
        first = "True" if first_only else _first_only(source, call, [asked for asked, _ in every])
        return Kind(FULL, ("full_state_dict=True", *([f"cpu_offload={first}"] if first else [])))
    if kind == SHARDED:
        return Kind(SHARDED, ("cpu_offload=True",) if offloaded else ())
    said = _said(source, call, [asked for asked, _ in every])
    if not said:
        return "which kind of state dict it is shows only in the run, and not here"
    known = name_for(source, call, KINDS)
    full = f"full_state_dict={said} == {known.text}.{FULL}"
    switches = (full, *(["cpu_offload=True"] if first_only else []))
    return Kind("", switches, known.edits)


def _first_only(source: Source, call: cst.CSTNode, every: Iterable[Asked]) -> str:
    """What the run decides ``rank0_only`` by, where the code beside the call says it: the first rank's is offloaded."""
    texts = set()
    for asked in every:
        by = asked.by.at if asked.by is not None else None
        if asked.rank0_only is not None or by is None or not isinstance(by.node, cst.Call):
            return ""
        config = argument(by.node, 2, "state_dict_config")
        if config is None or function_of(source, by.node) is not function_of(source, call):
            return ""
        made = named_once(source, config.value) or config.value
        given = argument(made, 1, "rank0_only") if isinstance(made, cst.Call) else None
        if given is None or not is_path(source, given.value):
            return ""
        texts.add(source.code(given.value))
    return texts.pop() if len(texts) == 1 else ""


def _said(source: Source, call: cst.CSTNode, every: Iterable[Asked]) -> str:
    """The kind that the run asks for, where the code beside the call says it."""
    texts = set()
    for asked in every:
        by = asked.by.at if asked.by is not None else None
        if by is None or by.source is not source or not isinstance(by.node, cst.Call):
            return ""
        kind = argument(by.node, 1, "state_dict_type")
        if kind is None or not is_path(source, kind.value):
            return ""
        if function_of(source, by.node) is not function_of(source, call):
            return ""
        texts.add(source.code(kind.value))
    return texts.pop() if len(texts) == 1 else ""
