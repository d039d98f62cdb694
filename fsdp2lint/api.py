"""All that ``rules/`` and ``codemods/`` may import: the trace, findings, edits, and facts about PyTorch."""

from fsdp2lint.declare import rule
from fsdp2lint.edits.arguments import Arguments
from fsdp2lint.edits.imports import Unimport, name_for
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.statements import InsertAfter, InsertBefore, Move, Remove, Unwrap, Wrap
from fsdp2lint.edits.text import Edit, Replace, Rewrite
from fsdp2lint.findings import Finding, Fix
from fsdp2lint.model.events import *  # noqa: F403
from fsdp2lint.model.guards import Guard, Guards
from fsdp2lint.model.trace import Trace, options
from fsdp2lint.model.values import *  # noqa: F403
from fsdp2lint.source import Site, Source
from fsdp2lint.walk import walk

__all__ = [
    "Arguments",
    "Edit",
    "Finding",
    "Fix",
    "Guard",
    "Guards",
    "InsertAfter",
    "InsertBefore",
    "Layout",
    "Move",
    "Remove",
    "Replace",
    "Rewrite",
    "Site",
    "Source",
    "Trace",
    "Unimport",
    "Unwrap",
    "Wrap",
    "name_for",
    "options",
    "rule",
    "walk",
]
