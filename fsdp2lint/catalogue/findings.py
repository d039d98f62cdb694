"""What a rule says: a finding with the events that prove it, and perhaps a fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from fsdp2lint.edits.text import Edit
    from fsdp2lint.model.events import Event
    from fsdp2lint.source.source import Site

Safety = Literal["shown", "unsafe", "safe"]
"""``safe`` keeps the meaning or repairs what could not run; ``unsafe`` is right in the usual case, the
title says what to look at; ``shown`` is never applied."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that removes a finding: all of its edits or none."""

    title: str
    edits: tuple[Edit, ...]
    safety: Safety
    note: str = ""
    """Why it is unsafe, or what to look at afterwards."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong ``at`` an event or a site.

    ``because`` holds the events that prove it, each with a label in the present tense:
    ``((sharded, "`model` is sharded here"),)``. The message names the script's own variables.
    """

    at: Event | Site
    message: str
    because: tuple[tuple[Event | Site, str], ...] = ()
    fix: Fix | None = None
    certain: bool = True
    """Whether it surely happens. What only may happen is not said; a migration makes its fix, which does no harm."""
