"""How instances of classes of the project are born: by a call, by their fields, or of unknown origin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp2lint.interpret.annotations import annotations_of, believed
from fsdp2lint.interpret.classes import empty, find, loosen
from fsdp2lint.interpret.functions import stranger_arguments, stranger_keywords
from fsdp2lint.model.values import Class, Function, Instance, Value, lineage, outside
from fsdp2lint.source.source import Site

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine


_ENUMERATIONS = frozenset(
    f"enum.{name}" for name in ("Enum", "Flag", "IntEnum", "IntFlag", "StrEnum")
)


_NAMED_TUPLES = ("typing.NamedTuple", "typing_extensions.NamedTuple")


def instantiate(
    machine: Machine,
    cls: Class,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
    site: Site,
    open_: bool,
) -> Value:
    """Make an instance and run its ``__init__``."""
    made = empty(cls, site)
    if _is_enumeration(cls):
        machine.memory.strangers.add(made)  # one of its members, of which nobody knows which
        return made
    init = find(machine, cls, "__init__")
    if isinstance(init, Function):
        machine.call(init, (made, *args), keywords, site, open_)
    elif _is_dataclass(machine, cls) or init is None:
        _fill_fields(machine, cls, made, args, keywords)
        if open_:
            loosen(machine, made, given=keywords)
    return made


def _is_enumeration(cls: Class) -> bool:
    """Whether a call of a class looks one of its members up by its value: ``Command(sys.argv[1])``."""
    return any(base.name in _ENUMERATIONS for base in outside(cls))


def _is_dataclass(machine: Machine, cls: Class) -> bool:
    names = {"dataclasses.dataclass", "attrs.define", "attr.s", "dataclass"}
    for decorator in cls.node.decorators:
        node = decorator.decorator
        inner = node.func if isinstance(node, cst.Call) else node
        if cst.helpers.get_full_name_for_node(inner) in names:
            return True
    return False


def _fill_fields(
    machine: Machine,
    cls: Class,
    made: Instance,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
) -> None:
    """The generated ``__init__`` of a dataclass (or named tuple): annotated names in order."""
    fields: list[str] = []
    for one in reversed(list(lineage(cls))):
        if isinstance(one, Class):
            fields += [f for f in annotated_names(one.node) if f not in fields]
    given = dict(zip(fields, args, strict=False)) | keywords
    for name in fields:
        default = None if name in given else find(machine, cls, name)
        if default is not None and not isinstance(default, Function):
            given[name] = default
    is_tuple = any(base.name in _NAMED_TUPLES for base in outside(cls))
    for name, value in given.items():
        value = as_field(machine, cls, name, value)
        machine.memory.write(made, f".{name}", machine.here, value)
        value.sit(made, f".{name}")
        if is_tuple and name in fields:  # `model, optimizer = loaded`
            machine.memory.write(made, f"[{fields.index(name)}]", machine.here, value)
    post = find(machine, cls, "__post_init__")
    if isinstance(post, Function):
        machine.call(post, (made,), {}, made.born or Site(cls.scope.source, cls.node, cls.node))


def as_field(machine: Machine, cls: Class, name: str, value: Value) -> Value:
    """What a field holds: where nothing is known of it, what its annotation says."""
    for one in lineage(cls):
        said = annotations_of(one.node).get(name) if isinstance(one, Class) else None
        if isinstance(one, Class) and said is not None:
            return believed(machine, value, said, one.scope, load=machine.ration.program)
    return value


def annotated_names(node: cst.ClassDef) -> list[str]:
    """The names that a class body annotates, in order."""
    found = []
    for statement in node.body.body:
        if isinstance(statement, cst.SimpleStatementLine):
            for small in statement.body:
                if isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name):
                    found.append(small.target.value)
    return found


def life(machine: Machine, cls: Class, name: str = "self") -> Instance:
    """An instance of a class that nobody in sight makes: ``__init__`` with arguments of unknown origin."""
    made = empty(cls, None)
    made.label = name
    machine.memory.foreign.add(made)
    init = find(machine, cls, "__init__")
    site = Site(cls.scope.source, cls.node, cls.node)
    if isinstance(init, Function):
        args = stranger_arguments(machine, init, 1)
        machine.call(init, (made, *args), stranger_keywords(machine, init), site)
    elif annotated_names(cls.node):
        machine.memory.strangers.add(made)
    return made
