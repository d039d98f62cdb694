"""Imports of FSDP2 and DTensor from their places of older releases, and the statements that import from today's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import Edit, Fix, InsertAfter, Layout, Replace, Source, Trace, exported

from .imports import imports

FSDP = "torch.distributed.fsdp"
_TENSOR = "torch.distributed.tensor"
_MESH = "torch.distributed.device_mesh"
_COMPOSABLE = "torch.distributed._composable"
_HOMES = (
    (f"{_COMPOSABLE}.fsdp", (FSDP,)),
    ("torch.distributed._tensor.device_mesh", (_MESH,)),
    ("torch.distributed._tensor", (_TENSOR, _MESH, f"{_TENSOR}.experimental")),
)
"""The old places, and those where their names are now, the likeliest first."""
_SPECS = f"{_TENSOR}._dtensor_spec"
_PRIVATE = {"DTensorSpec": _SPECS, "TensorMeta": _SPECS}
"""Names of ``_tensor.placement_types`` that no public module has; the old one takes them from here."""
_FIRST = (2, 6)
"""The first release in which the public modules have the names of the old ones."""
_SHIMS = {
    f"{_COMPOSABLE}.fsdp": "CPUOffloadPolicy FSDPModule MixedPrecisionPolicy OffloadPolicy fully_shard "
    "register_fsdp_forward_method".split(),
    f"{_COMPOSABLE}.fsdp.fully_shard": "FSDPModule UnshardHandle fully_shard register_fsdp_forward_method".split(),
}
"""What torch 2.13 still hands on from the modules at the old path."""


@dataclass(frozen=True, slots=True)
class OldImport:
    """A statement that imports from an old place: ``homes`` are the names by the modules where they are now."""

    source: Source
    statement: cst.ImportFrom
    module: str
    likely: tuple[str, ...]
    homes: dict[str, list[cst.ImportAlias]]

    @property
    def removed(self) -> bool:
        """Whether the module, or a name in it, is not there any more: the statement raises."""
        if _is_first(self.statement, self.module):
            return True
        if not (self.module + ".").startswith(f"{_COMPOSABLE}.fsdp."):
            return False
        left = _SHIMS.get(self.module)
        return left is None or any(name not in left for name in _names(self.statement))


def old_imports(trace: Trace) -> Iterator[OldImport]:
    """The imports from old places in all files of a run."""
    for word in ("_composable", "_tensor"):
        for source, statement, module in imports(trace, word):
            likely = _likely(module)
            if word in module and (likely or _is_first(statement, module)):
                yield OldImport(source, statement, module, likely, _homes(statement, likely))


def _likely(module: str) -> tuple[str, ...]:
    """Where the names of a module can be now."""
    for old, homes in _HOMES:
        if module == old or module.startswith(f"{old}."):
            return homes
    return ()


def _names(node: cst.ImportFrom) -> list[str]:
    return [] if isinstance(node.names, cst.ImportStar) else [str(n.name.value) for n in node.names]


def _is_first(node: cst.ImportFrom, module: str) -> bool:
    """Whether this is the ``fully_shard`` that was FSDP1 inside."""
    return module == f"{_COMPOSABLE}.fully_shard" or (
        module == _COMPOSABLE and "fully_shard" in _names(node)
    )


def _homes(node: cst.ImportFrom, likely: Sequence[str]) -> dict[str, list[cst.ImportAlias]]:
    """The imported names by the modules where they are now; nothing when one of them is nowhere known."""
    found: dict[str, list[cst.ImportAlias]] = {}
    for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
        name = str(alias.name.value)
        home = next((one for one in likely if name in exported(one, _FIRST)), None)
        home = home or (_PRIVATE.get(name) if _TENSOR in likely else None)
        if home is None:
            return {}
        found.setdefault(home, []).append(alias)
    return found


def public(old: OldImport) -> Fix | None:
    """The same names from where they are now."""
    source, node, homes = old.source, old.statement, old.homes
    if not homes or node.module is None:
        return None
    title = f"import from {' and '.join(f'`{one}`' for one in homes)}"
    if len(homes) == 1:
        return Fix(title, (Replace(source, node.module, next(iter(homes))),), "safe")
    if "#" in source.text[slice(*Layout.of(source).span(node))]:
        return None  # a comment says something of one of the names
    first, *more = (_statement(home, aliases) for home, aliases in homes.items())
    edits: list[Edit] = [Replace(source, node, first)]
    edits += (InsertAfter(source, node, one) for one in more)
    return Fix(title, tuple(edits), "safe")


def _statement(home: str, aliases: Sequence[cst.ImportAlias]) -> str:
    names = (
        f"{one.evaluated_name} as {one.evaluated_alias}" if one.asname else one.evaluated_name
        for one in aliases
    )
    return f"from {home} import {', '.join(names)}"
