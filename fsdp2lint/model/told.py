"""What the configuration tells of the project's functions that their code does not show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

Role = Literal["shards", "optimizers", "rank_guards", "collectives", "models"]


class Told(NamedTuple):
    """Dotted names of functions (``package.module.function``, ``package.module.Class.method``) by role."""

    shards: tuple[str, ...] = ()
    """Shard the model that they are given, and return it."""
    optimizers: tuple[str, ...] = ()
    """Build an optimizer over the parameters or the model that they are given."""
    rank_guards: tuple[str, ...] = ()
    """Are true on the first rank only."""
    collectives: tuple[str, ...] = ()
    """Have to be called by every rank."""

    models: tuple[str, ...] = ()
    """Build a model and return it."""

    def roles(self) -> Iterator[tuple[str, Role]]:
        """Each name with its role."""
        for field, names in zip(self._fields, self, strict=True):
            role: Role = field  # type: ignore[assignment]
            for name in names:
                yield name, role


NOTHING_TOLD = Told()
