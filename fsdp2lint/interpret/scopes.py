"""Names and running functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fsdp2lint.model.guards import Guards
from fsdp2lint.model.memory import Variable
from fsdp2lint.model.values import Either, Function, Value

if TYPE_CHECKING:
    import libcst as cst

    from fsdp2lint.source.source import Source


class Scope:
    """The names of a module, a class body, a function or a comprehension, and the scope around it."""

    __slots__ = ("elsewhere", "kind", "names", "outer", "source", "stars")

    def __init__(self, kind: str, source: Source, outer: Scope | None = None) -> None:
        self.kind = kind  # "module", "class", "function", "comprehension"
        self.source = source
        self.outer = outer
        self.names: dict[str, Variable] = {}
        self.elsewhere: dict[str, Scope] = {}  # global and nonlocal names
        self.stars: list[Value] = []  # modules outside whose names a star import brought

    def write(self, name: str, here: Guards, value: Value) -> None:
        """Bind a name in this scope (or where ``global``/``nonlocal`` says)."""
        names = self.elsewhere.get(name, self).names
        variable = names.get(name)
        if variable is None:
            variable = names[name] = Variable()
        variable.write(here, value)

    def read(self, name: str, here: Guards) -> Value | None:
        """What the name stands for, looked up as Python does; None when nothing binds it."""
        scope: Scope | None = self.elsewhere.get(name, self)
        first = scope
        while scope is not None:
            if scope is first or scope.kind != "class":
                variable = scope.names.get(name)
                if variable is not None:
                    found = variable.value(here)
                    if found is not None:
                        return found
            scope = scope.outer
        return None

    def module(self) -> Scope:
        """The module's scope."""
        scope = self
        while scope.outer is not None:
            scope = scope.outer
        return scope

    def declare(self, name: str, kind: str) -> None:
        """``global name`` or ``nonlocal name``."""
        if kind == "global":
            self.elsewhere[name] = self.module()
            return
        scope = self.outer
        while scope is not None and not (scope.kind == "function" and name in scope.names):
            scope = scope.outer
        if scope is not None:
            self.elsewhere[name] = scope

    def target(self) -> Scope:
        """Where a walrus inside this scope binds: comprehensions pass it outwards."""
        scope = self
        while scope.kind == "comprehension" and scope.outer is not None:
            scope = scope.outer
        return scope


def name_value(value: Value, name: str) -> None:
    """Remember what the script calls a value that it has just made."""
    if isinstance(value, Either):
        for _, one in value.options:
            name_value(one, name)
    elif not value.label and value.seat is None and value.nameless:
        value.label = name


class Frame:
    """A function (or module, or class body) that is running."""

    __slots__ = (
        "base",
        "exited",
        "function",
        "given",
        "left",
        "loops",
        "on_yield",
        "receiver",
        "returned",
        "scope",
        "source",
        "statement",
    )

    def __init__(self, scope: Scope, base: Guards, function: Function | None = None) -> None:
        self.scope = scope
        self.source = scope.source
        self.base = base  # the guards under which it was entered
        self.function = function
        self.receiver: Value | None = None
        self.given: tuple[Value, ...] = ()
        self.returned: list[tuple[Guards, Value]] = []
        self.left: list[Guards] = []  # guards under which it raised
        self.exited: list[Guards] = []  # guards under which it ended the program
        self.on_yield: Callable[[Value], None] | None = None
        self.statement: cst.CSTNode | None = None
        self.loops: list[Loop] = []


class Loop:
    """A loop that is running: whether a ``break`` was met, and whether under no condition."""

    __slots__ = ("broke", "ended", "round")

    def __init__(self, here: Guards) -> None:
        self.round = here  # what holds where the present round begins
        self.broke = False
        self.ended = False
