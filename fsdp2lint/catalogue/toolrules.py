"""The findings that the tool itself makes, described as the rules are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fsdp2lint.catalogue.declare import Group, Rule

if TYPE_CHECKING:
    from fsdp2lint.catalogue.findings import Finding
    from fsdp2lint.model.trace import Trace


def _asks_no_trace(trace: Trace) -> Iterator[Finding]:
    """The runner makes these findings: there is nothing in a trace that they could be read from."""
    return iter(())


def _tool_rule(code: str, name: str, group: Group, page: str) -> Rule:
    return Rule(code, name, group, _asks_no_trace, page, "2.6", "")


UNANALYSABLE = _tool_rule(
    "FSDP900",
    "unanalysable-file",
    "correctness",
    """A file that uses FSDP cannot be analysed.

## What it does
Reports a syntax error, an encoding that cannot be decoded, a file or folder that may not be read, a
broken notebook or one in another language, a file over 2 MB, or code nested so deeply that the parser would overflow.

## Why is this bad
Nothing is known about such a file, so silence about it would look like approval. Exclude it
(``--exclude``) when that is meant; this finding cannot be ignored.

## Known limits
Only files that mention FSDP or distributed checkpoints are parsed at all, so a syntax error in
another file goes unnoticed.
""",
)

UNUSED = _tool_rule(
    "FSDP901",
    "unused-suppression",
    "suspicious",
    """A suppression comment silences nothing.

## What it does
Reports codes in ``# fsdp2lint: …`` comments that no finding matched, if their rules ran.
``# noqa`` comments are read but not judged: they belong to other tools too.

## Why is this bad
The next real finding on that line would be hidden.

## Fix safety
Safe: only the comment, or the code inside it, is removed.
""",
)

UNKNOWN = _tool_rule(
    "FSDP902",
    "unknown-suppression",
    "suspicious",
    """A suppression comment names no rule that exists.

## What it does
Reports codes and names in ``# fsdp2lint: …`` comments that are unknown, and comments that name none.

## Why is this bad
It silences nothing, and whoever wrote it believes that it does.
""",
)

WRONG_SETTING = _tool_rule(
    "FSDP903",
    "wrong-setting",
    "correctness",
    """A file of settings says something that means nothing.

## What it does
Reports what fsdp2lint cannot use in its own files: a configuration that is no TOML or may not be read, an unknown key, a value
of the wrong type, an unknown rule, a pattern that no path can be matched with, a plugin that cannot be imported, a baseline that
cannot be read. That entry counts as not given; all others count, and everything is checked. The exit code is 2.

## Why is this bad
More or less is reported than the project wants. So that no file is changed that the project meant to leave alone, no fix is applied
under a configuration with such an entry, ``migrate --write`` and ``baseline`` write nothing, and this finding cannot be ignored.

## Known limits
A wrong value on the command line ends the run with one line on standard error, and so does a file that ``--config`` names and
that is no TOML.
""",
)

CRASHED = _tool_rule(
    "FSDP999",
    "internal-error",
    "correctness",
    """A part of fsdp2lint failed; the rest of the run went on.

## What it does
Reports the rule or the entry whose analysis raised an exception, and where. The exit code is 2.

## Why is this bad
Something was not checked. It is a bug of fsdp2lint: please report it with the script that shows it.
""",
)

TOOL_RULES = (UNANALYSABLE, UNUSED, UNKNOWN, WRONG_SETTING, CRASHED)

ALWAYS_ON = (UNANALYSABLE, WRONG_SETTING, CRASHED)
"""They say that something was not checked as it should be, and cannot be switched off."""
