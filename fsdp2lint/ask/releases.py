"""Whether a project allows releases of a framework that read what its settings say."""

from __future__ import annotations

from fsdp2lint.frameworks.version2 import FIRST_RELEASES, spelled
from fsdp2lint.model.hints import Limits


def too_old(
    package: str, limits: Limits, since: tuple[int, int, int] | None = None
) -> tuple[str, str] | None:
    """The release of a package that is needed and the requirement that allows none; None where one is allowed.

    ``since`` is the first release that knows what is asked for; without it, that which reads ``fsdp_version``.
    """
    first = since or FIRST_RELEASES.get(package, (0, 0, 0))
    limit = dict(limits).get(package)
    if limit is None or not limit.lacks(first):
        return None
    return f"{package} >= {spelled(first)}", limit.requirement


def unread(package: str, limits: Limits) -> tuple[str, str] | None:
    """Why no release that a project allows of a package reads ``fsdp_version``, and what to do; None where one does."""
    found = too_old(package, limits)
    if found is None:
        return None
    needed, requirement = found
    why = f"the project asks for `{requirement}`, and version 2 needs {needed}"
    return why, f"ask for `{needed.replace(' ', '')}`, then run `fsdp2lint migrate` again"
