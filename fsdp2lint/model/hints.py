"""What the configuration says about the project's functions that their code does not show."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from fsdp2lint.frameworks.asked import Launch

Role = Literal["shards", "optimizers", "rank_guards", "collectives", "models"]


_ENGINES = (
    *("accelerate.Accelerator", "transformers.Trainer", "transformers.Seq2SeqTrainer"),
    "lightning.pytorch.cli.LightningCLI",
    *(f"trl.{kind}Trainer" for kind in ("SFT", "DPO", "GRPO", "KTO", "ORPO", "Reward", "RLOO")),
)
"""What shards a model by the settings that the launch gives."""


class Hints(NamedTuple):
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

    launched: tuple[tuple[str, Launch], ...] = ()
    """Not functions: scripts (absolute paths) that are launched with FSDP, and how; settings files around
    them say so."""

    trainer_version: int | None = None
    """The version of FSDP that the Trainer means where nothing says one, in all releases of transformers that the project
    allows; None where they differ."""
    trainer_versions: tuple[tuple[str, int | None], ...] = ()
    """The same for the projects of the programs by their folders, where several that follow each other differ."""

    def trainer_version_of(self, program: str) -> int | None:
        """What the Trainer means in a program, given its path."""
        return dict(self.trainer_versions).get(os.path.dirname(program), self.trainer_version)

    @property
    def marks(self) -> tuple[str, ...]:
        """Dotted names whose call makes a file worth looking at."""
        return (*self.shards, *(_ENGINES if self.launched else ()))

    def launch(self, script: str) -> Launch | None:
        """How a script is launched with FSDP; None where no settings say it."""
        return dict(self.launched).get(script)

    def launched_with(self, settings: str) -> tuple[Launch, ...]:
        """The launches of scripts that use a settings file."""
        return tuple(launch for _, launch in self.launched if launch.settings == settings)

    def roles(self) -> Iterator[tuple[str, Role]]:
        """Each name with its role."""
        for role in get_args(Role):
            for name in getattr(self, role):
                yield name, role


class Limit(NamedTuple):
    """The newest release of a framework that a project's dependencies allow."""

    before: tuple[int, ...]
    """The numbers of a release from which on none is allowed."""
    requirement: str
    """As the project writes it: ``accelerate==1.5.2``."""

    def lacks(self, since: tuple[int, ...]) -> bool:
        """Whether all releases that are allowed are older than ``since``, three numbers."""
        return self.before <= since


Limits = tuple[tuple[str, Limit], ...]
"""Frameworks by the names of their packages."""

NO_HINTS = Hints()
