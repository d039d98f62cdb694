"""Which releases of the frameworks read version 2 of their FSDP settings."""

from __future__ import annotations

from fsdp2lint.model.told import Limits

PACKAGES = {"accelerate": "accelerate", "the Trainer": "transformers"}
"""Who reads the version, by the framework whose settings say it."""

FIRST_RELEASES = {"accelerate": (1, 6, 0), "transformers": (5, 0, 0)}
"""The first releases that read it (accelerate/utils/launch.py, transformers/training_args.py)."""


def too_old(package: str, limits: Limits) -> tuple[str, str] | None:
    """Why no release that a project allows of a package reads the version, and what to do; None where one does."""
    limit = dict(limits).get(package)
    if limit is None or not limit.lacks(FIRST_RELEASES[package]):
        return None
    first = ".".join(map(str, FIRST_RELEASES[package][:2]))
    why = f"the project asks for `{limit.requirement}`, and version 2 needs {package} >= {first}"
    return why, f"ask for `{package}>={first}`, then run `fsdp2lint migrate` again"
