"""Classes derived from FSDP1: what they add, and whether a call of one can be a call of FSDP1 itself.

`fully_shard` keeps the class of the model, so what a derived class only hands on to the model needs no
counterpart: `__getattr__` that asks `self.module`, a `forward` that calls `super().forward`. What it does
with state dicts belongs to the callers, who say which kind they want.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    Edit,
    Layout,
    Left,
    Names,
    Program,
    Remove,
    Source,
    Unimport,
    dotted,
    inventory,
    walk,
)

from .._common.origins import defined_by, meaning

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
STATES = frozenset({"state_dict", "load_state_dict"})
_INSIDE = ("self.module", "self._fsdp_wrapped_module", "super()")
HANDED_ON = "fully_shard keeps the class of the model, which has all that this hands on"
WHY = "a class derived from FSDP1 has no counterpart: fully_shard keeps the class of the model"


@dataclass(frozen=True)
class Derived:
    """A class derived from FSDP1 alone; ``own`` are the names that it adds to what the model has."""

    source: Source
    node: cst.ClassDef
    own: tuple[str, ...]

    @property
    def only_states(self) -> bool:
        """Whether it changes nothing but what state dicts hold."""
        return set(self.own) <= STATES

    @property
    def todo(self) -> str:
        """What a person has to do with what it adds."""
        names = ", ".join(f"`{one}`" for one in self.own)
        if self.only_states:
            do = "do" if len(self.own) > 1 else "does"
            what = f"do what its {names} {do} where state dicts are taken and loaded"
            return f"{what} (get_model_state_dict, set_model_state_dict), then delete the class"
        if "__init__" in self.own:
            return "make its `__init__` a function that calls fully_shard on the model, then delete the class"
        return f"give {names} to the class of the model, where `self.module` is `self`, then delete this class"


def derived(program: Program, source: Source, func: cst.BaseExpression) -> Derived | None:
    """The class derived from FSDP1 that an expression names."""
    found = defined_by(program, source, func)
    if len(found) != 1 or not isinstance(found[0][1], cst.ClassDef):
        return None
    return of_class(program, found[0][0], found[0][1])


def of_class(program: Program, source: Source, node: cst.ClassDef) -> Derived | None:
    """What a class statement adds, when it derives from FSDP1 and from nothing else."""
    if len(node.bases) != 1 or meaning(program, source, node.bases[0].value) != FSDP1:
        return None
    return Derived(source, node, tuple(_added(node)))


def classes(program: Program) -> Iterator[Derived]:
    """All classes derived from FSDP1 alone."""
    for source in program.sources:
        if any(True for reference in program.named(source) if reference.name == FSDP1):
            for node in walk(source.tree):
                found = of_class(program, source, node) if isinstance(node, cst.ClassDef) else None
                if found is not None:
                    yield found


def leave(program: Program) -> Iterator[Left]:
    """The classes that are still there when the calls are gone."""
    for one in classes(program):
        yield Left(one.source, one.node.bases[0], WHY, one.todo if one.own else _USES)


def still_wraps(program: Program) -> bool:
    """Whether FSDP1, or a class derived from it that anything names, can be called in the program."""
    unnamed = [one for one in classes(program) if not any(uses(program, one))]
    bases = {one.node.bases[0].value for one in unnamed}
    named = (one for one in inventory(program) if one.code == "FSDP101" and one.kind != "import")
    return "fsdp1" in program.wrappers or any(one.node not in bases for one in named)


def uncalled(
    program: Program, calls: Sequence[cst.CSTNode]
) -> Iterator[tuple[Derived, list[Edit]]]:
    """The classes that only hand on and that nothing but these calls names, with their removal."""
    for one in classes(program):
        used = [] if one.own else [*uses(program, one)]
        if used and all(node in calls for _, node in used):
            name = one.node.name.value
            edits: list[Edit] = [Remove(one.source, one.node)]
            edits += (
                Unimport(source, imported.loads)
                for source in dict.fromkeys(source for source, _ in used)
                for imported in Names.of(source).imports
                if program.comes_from(source, imported, one.source, name)
                and imported.loads.endswith(f".{name}")
            )
            yield one, edits


_USES = "the model keeps its own class: use that where this one is named, then delete it"


def _added(node: cst.ClassDef) -> Iterator[str]:
    """The names of a class body that a model does not have already, or that it does otherwise."""
    for line in node.body.body:
        if isinstance(line, cst.FunctionDef):
            hands_on = line.name.value in ("__getattr__", "forward") and _hands_on(line)
            if not hands_on and not _is_helper(line):
                yield line.name.value
        elif isinstance(line, cst.SimpleStatementLine):
            for small in line.body:
                if not isinstance(small, cst.Pass) and not _is_constant(small):
                    yield from _bound(small)
        else:
            yield "the rest of its body"


def _bound(statement: cst.BaseSmallStatement) -> Iterator[str]:
    targets = [t.target for t in getattr(statement, "targets", ())]
    targets += [t for t in (getattr(statement, "target", None),) if t is not None]
    yield from ([dotted(target) for target in targets] or ["the rest of its body"])


def _is_constant(statement: cst.BaseSmallStatement) -> bool:
    plain = cst.SimpleString | cst.ConcatenatedString | cst.Ellipsis
    return isinstance(statement, cst.Expr) and isinstance(statement.value, plain)


def _hands_on(function: cst.FunctionDef) -> bool:
    """Whether a function only asks the model inside, or FSDP1, for the same."""
    for node in walk(function.body):
        if isinstance(node, cst.Call):
            callee = node.func
            first = dotted(node.args[0].value) if node.args else ""
            if dotted(callee) == "getattr" and first in _INSIDE:
                continue
            if dotted(callee) in ("super", "AttributeError"):
                continue
            asked = isinstance(callee, cst.Attribute) and callee.attr.value == function.name.value
            if not asked or not isinstance(callee, cst.Attribute):
                return False
            if not (_is_super(callee.value) or dotted(callee.value) in _INSIDE):
                return False
        elif isinstance(node, cst.Assign | cst.AugAssign | cst.For | cst.While | cst.With):
            return False
    return True


def _is_super(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and dotted(node.func) == "super"


def _is_helper(function: cst.FunctionDef) -> bool:
    """Whether a function is a static one that serves the class itself."""
    static = any(dotted(one.decorator) == "staticmethod" for one in function.decorators)
    return static and function.name.value.startswith("_")


def uses(program: Program, one: Derived) -> Iterator[tuple[Source, cst.CSTNode]]:
    """Where anything but the class itself names it; imports only where they hand it on."""
    name = one.node.name.value
    if name in Names.of(one.source).exported:
        yield one.source, one.node
    yield from handed_on(program, one.source, name)
    for source in program.sources:
        imported = [
            i for i in Names.of(source).imports if program.comes_from(source, i, one.source, name)
        ]
        words = {name} if source is one.source else {i.name for i in imported}
        for node in walk(source.tree) if words else ():
            if isinstance(node, cst.Name | cst.Attribute) and node is not one.node.name:
                if dotted(node) in {*words, *(f"{word}.{name}" for word in words)}:
                    around = [*Layout.of(source).ancestors(node)]
                    if one.node in around or any(isinstance(a, _IMPORTS) for a in around):
                        continue
                    if isinstance(around[0], cst.Attribute) and dotted(around[0]):
                        continue  # the longer name counts, or it is another one
                    yield source, node


def handed_on(program: Program, home: Source, name: str) -> Iterator[tuple[Source, cst.CSTNode]]:
    """The imports by which other files hand a name on: those of packages, and those that are not read there."""
    for source in program.sources:
        names = Names.of(source)
        for one in names.imports if source is not home else ():
            if one.loads.endswith(f".{name}") and program.comes_from(source, one, home, name):
                idle = one.name not in names.uses or one.name in names.exported
                if idle or source.path.endswith("__init__.py"):
                    yield source, one.alias


_IMPORTS = cst.Import | cst.ImportFrom
