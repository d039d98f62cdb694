"""Lines of a report, as a view wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fsdp2lint.system.paint import Line, painted, plain
from fsdp2lint.system.plain import one_line

if TYPE_CHECKING:
    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.reporters import View


def coded(rule: Rule, severity: str) -> str:
    """The role of a rule's code: it links to the page of the rule."""
    return f"{severity}link:{rule.link}" if rule.link else severity


def shown(lines: Sequence[Line], view: View) -> str:
    """The lines with colours and links, or without."""
    safe = [[(one_line(text), role) for text, role in line] for line in lines]
    return painted(safe, links=view.links) if view.colour and safe else plain(safe)
