"""What a codemod yields: edits, with what became of each piece of FSDP1 in them, or why it leaves one alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import libcst as cst

    from fsdp2lint.edits.text import Edit
    from fsdp2lint.source.source import Source

Fate = Literal["preserved", "changed", "dropped", "manual"]
"""What becomes of an occurrence of FSDP1: it stays and is right, is rewritten, goes and that is harmless,
or a person has to look at it."""


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the FSDP1 occurrences inside ``node``; one closer to an occurrence counts more.

    ``why`` says the reason of a change, or why what is dropped is harmless. With ``own`` the node names
    nothing of FSDP1 and gets a line of its own.
    """

    source: Source
    node: cst.CSTNode
    fate: Fate
    why: str
    own: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One rewriting: all of its edits are made, or none; so are the ``words`` in files that are no Python."""

    edits: tuple[Edit, ...]
    accounts: tuple[Account, ...]
    words: tuple[Respelling, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """Something of FSDP1 that the codemod does not rewrite: ``why`` it cannot, and what ``todo``.

    ``todo`` is short, begins with a verb, and becomes a comment above the statement. ``skeleton`` is code to begin with:
    the ledger shows it.
    """

    source: Source
    node: cst.CSTNode
    why: str
    todo: str
    skeleton: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """Code that names nothing of FSDP1 and stays as it is, where another outcome could be expected.

    ``why`` may end with a place, that of ``at``.
    """

    source: Source
    node: cst.CSTNode
    why: str
    at: tuple[Source, cst.CSTNode] | None = None


@dataclass(frozen=True, slots=True)
class Respelling:
    """Other words in a file that is no Python: a launch script, a list of requirements, settings.

    ``what`` names what it is about; with ``todo`` nothing changes and a person has to.
    """

    source: Source
    start: int
    end: int
    text: str
    what: str
    why: str
    todo: str = ""
    fate: Fate = "changed"
    kind: Literal["launch", "setting"] = "launch"

    @property
    def changes(self) -> bool:
        """Whether the text becomes another one."""
        return not self.todo and self.fate in ("changed", "dropped")
