"""All that ``rules/`` and ``codemods/`` may import: the trace, findings, edits, and facts about PyTorch."""

from fsdp2lint.ask.inventory import Occurrence, inventory, occurrences
from fsdp2lint.ask.paused import PausedBlock, paused_block
from fsdp2lint.ask.program import Options, Program, Reference
from fsdp2lint.ask.releases import too_old, unread
from fsdp2lint.ask.rows import RowWrite, call_that_made, holders, like, row_writes
from fsdp2lint.ask.unreached import NOT_RUN, is_unreached
from fsdp2lint.ask.wrapped import (
    BOTH_CLASSES,
    excludes_fsdp2,
    is_no_instance,
    is_of_the_project,
    is_unit,
    kinds,
    unseen_methods,
    wrapper,
)
from fsdp2lint.catalogue.declare import EVERY_OTHER, codemod, rule
from fsdp2lint.catalogue.findings import Finding, Fix
from fsdp2lint.edits.arguments import Arguments, argument
from fsdp2lint.edits.imports import AddImport, Name, Unimport, name_for
from fsdp2lint.edits.layout import NEWLINE, Layout
from fsdp2lint.edits.names import Names, dotted, imported_module, quoted, scope_of
from fsdp2lint.edits.statements import InsertAfter, InsertBefore, Move, Remove, Unwrap, Wrap
from fsdp2lint.edits.steps import Account, Kept, Left, Respelling, Step
from fsdp2lint.edits.text import Edit, Inner, Replace, Rewrite, Splice
from fsdp2lint.frameworks.asked import KEYS as SETTINGS_KEYS
from fsdp2lint.frameworks.asked import OF_ACCELERATE as ACCELERATE_KEYS
from fsdp2lint.frameworks.asked import OF_PARALLELISM as PARALLELISM_KEYS
from fsdp2lint.frameworks.asked import (
    PREFIX,
    Asked,
    classes_of,
    strategy_of,
    words_of,
)
from fsdp2lint.frameworks.asked import bare as bare_key
from fsdp2lint.frameworks.document import Entry, plain
from fsdp2lint.frameworks.document import Mapping as SettingsMapping
from fsdp2lint.frameworks.layers import (
    is_named_as_layer,
    layers_of,
    may_be_defined,
    said_in_project,
)
from fsdp2lint.frameworks.layers import meant as meant_layer
from fsdp2lint.frameworks.lightning import CliStrategy, cli_strategy
from fsdp2lint.frameworks.options import GONE as REMOVED_OPTION
from fsdp2lint.frameworks.options import AskingCommand, asking_commands
from fsdp2lint.frameworks.options import Option as CommandOption
from fsdp2lint.frameworks.version2 import (
    BUFFERS_KEPT,
    LIGHTNING_BY_HAND,
    LIGHTNING_NEEDS_CODE,
    PACKAGES,
    settings_changes,
    settings_left,
    settings_of,
    without_key,
)
from fsdp2lint.frameworks.version2 import DROPPED as DROPPED_SETTINGS
from fsdp2lint.frameworks.version2 import Change as SettingsChange
from fsdp2lint.meanings.fsdp1 import FLATTENERS, OLD_NAMES, POSITIONS
from fsdp2lint.meanings.fsdp1_symbols import FRAMEWORK_ARGUMENTS, FRAMEWORKS, SYMBOLS
from fsdp2lint.meanings.registry import canonical
from fsdp2lint.model.events import *  # noqa: F403
from fsdp2lint.model.guards import Guard, Guards
from fsdp2lint.model.hints import Limits
from fsdp2lint.model.memory import ANNOTATED
from fsdp2lint.model.trace import Trace, once, options
from fsdp2lint.model.values import *  # noqa: F403
from fsdp2lint.source.deferred import says
from fsdp2lint.source.source import Site, Source
from fsdp2lint.source.walk import children, statements, walk
from fsdp2lint.torch_api import Offer, exported, offer

__all__ = [
    "ACCELERATE_KEYS",
    "ANNOTATED",
    "BOTH_CLASSES",
    "BUFFERS_KEPT",
    "DROPPED_SETTINGS",
    "EVERY_OTHER",
    "FLATTENERS",
    "FRAMEWORKS",
    "FRAMEWORK_ARGUMENTS",
    "LIGHTNING_BY_HAND",
    "LIGHTNING_NEEDS_CODE",
    "NEWLINE",
    "NOT_RUN",
    "OLD_NAMES",
    "PACKAGES",
    "PARALLELISM_KEYS",
    "POSITIONS",
    "PREFIX",
    "REMOVED_OPTION",
    "SETTINGS_KEYS",
    "SYMBOLS",
    "Account",
    "AddImport",
    "Arguments",
    "Asked",
    "AskingCommand",
    "CliStrategy",
    "CommandOption",
    "Edit",
    "Entry",
    "Finding",
    "Fix",
    "Guard",
    "Guards",
    "Inner",
    "InsertAfter",
    "InsertBefore",
    "Kept",
    "Layout",
    "Left",
    "Limits",
    "Move",
    "Name",
    "Names",
    "Occurrence",
    "Offer",
    "Options",
    "PausedBlock",
    "Program",
    "Reference",
    "Remove",
    "Replace",
    "Respelling",
    "Rewrite",
    "RowWrite",
    "SettingsChange",
    "SettingsMapping",
    "Site",
    "Source",
    "Splice",
    "Step",
    "Trace",
    "Unimport",
    "Unwrap",
    "Wrap",
    "argument",
    "asking_commands",
    "bare_key",
    "call_that_made",
    "canonical",
    "children",
    "classes_of",
    "cli_strategy",
    "codemod",
    "dotted",
    "excludes_fsdp2",
    "exported",
    "holders",
    "imported_module",
    "inventory",
    "is_named_as_layer",
    "is_no_instance",
    "is_of_the_project",
    "is_unit",
    "is_unreached",
    "kinds",
    "layers_of",
    "like",
    "may_be_defined",
    "meant_layer",
    "name_for",
    "occurrences",
    "offer",
    "once",
    "options",
    "paused_block",
    "plain",
    "quoted",
    "row_writes",
    "rule",
    "said_in_project",
    "says",
    "scope_of",
    "settings_changes",
    "settings_left",
    "settings_of",
    "statements",
    "strategy_of",
    "too_old",
    "unread",
    "unseen_methods",
    "walk",
    "without_key",
    "words_of",
    "wrapper",
]
