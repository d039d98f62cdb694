"""Files of settings and commands as sources, beside those of Python: nodes have places, and comments silence findings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fsdp2lint.frameworks.asked import Asked, asked
from fsdp2lint.frameworks.document import (
    Mapping,
    NotSettings,
    read,
    seems_to_ask,
)
from fsdp2lint.frameworks.options import AskingCommand, asking_commands
from fsdp2lint.source.source import Comment, Range, Source, Unreadable
from fsdp2lint.system.files import SETTINGS

_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")


@dataclass(frozen=True, eq=False)
class _Text:
    """What stands for a tree: the text itself, without a statement of Python that a rule could look at."""

    code: str
    body: tuple[()] = ()


class _NoPython(Source):
    """A file without Python, whose nodes are spans of its text."""

    is_settings = True
    faithful = True

    @cached_property
    def tree(self) -> Any:
        """The text, when it can be read."""
        return _Text(self.text)

    def range(self, node: Any) -> Range:
        """Where a node is."""
        return Range(*self._place(node.start), *self._place(node.end))

    def code(self, node: Any) -> str:
        """The text of a node, on one line."""
        return " ".join(self.text[node.start : node.end].split())

    @cached_property
    def comments(self) -> tuple[Comment, ...]:
        """All comments; a ``#`` within quotes that comes after a blank looks like one."""
        found = []
        for number, line in enumerate(self.lines, 1):
            comment = _COMMENT.search(line)
            if comment is not None:
                alone = not line[: comment.start()].strip()
                found.append(Comment(number, comment.start() + 1, comment[0], alone))
        return tuple(found)

    def _place(self, offset: int) -> tuple[int, int]:
        before = self.text[:offset]
        return before.count("\n") + 1, offset - before.rfind("\n")


class CommandText(_NoPython):
    """A file of commands: of the shell, of Slurm, of make."""

    def with_text(self, text: str) -> CommandText:
        return CommandText(self.path, text, encoding=self.encoding, bom=self.bom)

    @cached_property
    def asking(self) -> tuple[AskingCommand, ...]:
        """The commands that ask for FSDP by their options."""
        return tuple(asking_commands(self.text))


class SettingsText(_NoPython):
    """A YAML or JSON file."""

    def with_text(self, text: str) -> SettingsText:
        return SettingsText(self.path, text, encoding=self.encoding, bom=self.bom)

    @cached_property
    def top(self) -> Mapping:
        """The keys and values.

        Raises:
            Unreadable: it is no settings file.
        """
        try:
            return read(self)
        except NotSettings as problem:
            raise Unreadable(problem.why, problem.line) from problem

    @cached_property
    def asked(self) -> Asked | None:
        """How it asks for FSDP.

        Raises:
            Unreadable: it is no settings file.
        """
        return asked(self.top)

    @cached_property
    def tree(self) -> Any:
        """The text, when it can be read."""
        self.top  # noqa: B018
        return _Text(self.text)


_DEEPSPEED = re.compile(
    rb"""["']?(?:zero_optimization["']?\s*:|distributed_type["']?\s*:\s*["']?DEEPSPEED\b)"""
)
_DEGREES = re.compile(rb"^\s*(?:data_parallel_shard_degree|dp_shard|fsdp_\w+)\s*=", re.MULTILINE)


def why_not_checked(path: str, raw: bytes) -> str:
    """Why a file that was named holds nothing that is checked."""
    if path.endswith(SETTINGS) and _DEEPSPEED.search(raw):
        return "settings of DeepSpeed, which is not FSDP"
    if path.endswith(".toml") and _DEGREES.search(raw):
        return "TOML: the frameworks that read it (torchtitan, prime-rl) know only FSDP2"
    return "neither Python, a notebook, a document, commands nor settings that ask for FSDP"


def asks(source: Source) -> bool:
    """Whether a file of settings or commands asks for FSDP, or settings cannot be read and have a line that seems to."""
    if isinstance(source, CommandText):
        return bool(source.asking)
    try:
        return isinstance(source, SettingsText) and source.asked is not None
    except Unreadable:
        return seems_to_ask(source.text)
