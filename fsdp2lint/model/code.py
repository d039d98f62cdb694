"""Values that Python itself makes: functions, classes, objects, containers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from fsdp2lint.model.basic_values import External, Value
from fsdp2lint.model.guards import ALWAYS

if TYPE_CHECKING:
    import libcst as cst

    from fsdp2lint.model.guards import Guards
    from fsdp2lint.source.source import Site


class Function(Value):
    """A function or lambda of the project, with the scope it was made in."""

    __slots__ = (
        "decorators",
        "defaults",
        "home",
        "keeps",
        "kind",
        "name",
        "node",
        "only",
        "scope",
        "setter",
        "under",
    )

    def __init__(
        self,
        name: str,
        node: cst.FunctionDef | cst.Lambda,
        scope: Any,
        defaults: dict[str, Value],
        kind: str = "",
        under: Guards = ALWAYS,
    ) -> None:
        super().__init__(name)
        self.name = name
        self.node = node
        self.scope = scope
        self.defaults = defaults
        self.kind = kind  # "", "property", "staticmethod", "classmethod", "contextmanager"
        self.decorators: tuple[Value, ...] = ()
        self.home: Class | None = None  # the class whose body defines it
        self.setter: Function | None = None  # of a property
        self.keeps = False  # ``functools.cache``: called again, it gives what it gave
        self.under = under  # what holds where it was made
        self.only: Value | None = None  # the test of the rank under which its body runs at all

    def describe(self) -> str:
        return self.name


class Bound(Value):
    """A function of the project bound to its first argument."""

    __slots__ = ("function", "receiver")

    def __init__(self, function: Function, receiver: Value) -> None:
        super().__init__()
        self.function = function
        self.receiver = receiver

    def describe(self) -> str:
        return f"{self.receiver.words()}.{self.function.name}"


class Partial(Value):
    """``functools.partial(call, …)``, made at ``born`` where the script says so itself."""

    __slots__ = ("args", "born", "call", "keywords", "open")

    def __init__(
        self,
        call: Value,
        args: tuple[Value, ...],
        keywords: dict[str, Value],
        open_: bool,
        born: Site | None = None,
    ) -> None:
        super().__init__()
        self.call = call
        self.args = args
        self.keywords = keywords
        self.open = open_
        self.born = born

    def describe(self) -> str:
        return f"partial({self.call.words()})"


class Class(Value):
    """A class of the project."""

    __slots__ = ("bases", "name", "node", "scope")

    def __init__(self, name: str, node: cst.ClassDef, bases: tuple[Value, ...], scope: Any) -> None:
        super().__init__(name)
        self.name = name
        self.node = node
        self.bases = bases
        self.scope = scope  # the class body's names

    def describe(self) -> str:
        return self.name


def lineage(cls: Value) -> Iterator[Value]:
    """``cls`` and its bases, in the order in which names are looked up (depth first, left to right)."""
    seen: set[Value] = set()
    todo = [cls]
    while todo:
        one = todo.pop(0)
        if one in seen:
            continue
        seen.add(one)
        yield one
        if isinstance(one, Class):
            todo = list(one.bases) + todo


def outside(cls: Value) -> Iterator[External]:
    """The bases of a class that lie outside the project."""
    return (c for c in lineage(cls) if isinstance(c, External))


class Super(Value):
    """``super()``: looks names up above ``cls`` for ``receiver``."""

    __slots__ = ("cls", "receiver")

    def __init__(self, cls: Class, receiver: Value) -> None:
        super().__init__("super()")
        self.cls = cls
        self.receiver = receiver


class Instance(Value):
    """An object: of a class of the project, or of one outside it."""

    __slots__ = ("born", "cls")
    nameless = True

    def __init__(self, cls: Value, born: Site | None = None) -> None:
        super().__init__()
        self.cls = cls
        self.born = born

    def describe(self) -> str:
        return f"{self.cls.words()}(…)"


class Module(Instance):
    """An ``nn.Module`` that the script has built."""

    __slots__ = ()


_ages = count(1)


def age() -> int:
    """That of a list or a dictionary that was made now."""
    return next(_ages)


class Container(Value):
    """A list, tuple, set or dict of the script; its entries live in the machine's memory."""

    __slots__ = ("age", "kind", "open", "shuffled")
    nameless = True

    def __init__(self, kind: str, open_: bool = False) -> None:
        super().__init__()
        self.age = next(_ages)  # the larger, the later it was made
        self.kind = kind
        self.open = open_  # it may hold more than the entries that are known
        self.shuffled = kind == "set"  # its order is another one in each process

    def describe(self) -> str:
        return f"a {self.kind}"
