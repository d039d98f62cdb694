"""How instances of classes of the project are born: by a call, by their fields, or of unknown origin."""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from fsdp2lint.interpret.annotations import annotations_of, believed
from fsdp2lint.interpret.classes import empty, find, loosen
from fsdp2lint.interpret.functions import stranger_arguments, stranger_keywords
from fsdp2lint.model.basic_values import MAX_DEPTH
from fsdp2lint.model.events import (
    Assigned,
    Augmented,
    Called,
    Collective,
    Escaped,
    Event,
    Exited,
    Filled,
    GroupStarted,
    Iterated,
    Operated,
    Placed,
    Read,
    Returned,
)
from fsdp2lint.model.guards import Guard, Guards
from fsdp2lint.model.values import (
    Class,
    Container,
    Default,
    Either,
    External,
    Function,
    Instance,
    Literal,
    MainRank,
    Part,
    Rank,
    Unknown,
    Value,
    lineage,
    of_model,
    outside,
    rank_dependent,
    root,
)
from fsdp2lint.source.source import Site, Source

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
    if machine.stage:
        machine.memory.begun[made] = machine.stage
    if _is_enumeration(cls):
        machine.memory.strangers.add(made)  # one of its members, of which nobody knows which
        return made
    init = find(machine, cls, "__init__")
    if isinstance(init, Function):
        if open_ or not _is_of_data(machine, cls, (*args, *keywords.values())):
            machine.call(init, (made, *args), keywords, site, open_)
            return made
        asked = _made_of(machine, cls, args, keywords)
        known = machine.earlier.get(asked, _NONE_YET)
        if not _become_like(machine, known, made):
            begun, entered = len(machine.trace.events), machine.entered
            machine.call(init, (made, *args), keywords, site)
            if machine.entered > entered:
                happened = machine.trace.events[begun:]
                machine.earlier[asked] = _with_one_more(machine, known, made, happened)
    elif _is_dataclass(cls) or init is None:
        _fill_fields(machine, cls, made, args, keywords)
        if open_:
            loosen(machine, made, given=keywords)
    return made


# -- objects of data that were made before ------------------------------------------------------------------

MADE_BEFORE = 3
"""An object of data that was made so often of the same arguments is not followed again when one more is made."""

MADE_OFTEN = 6
"""So often, and it does not matter under which conditions."""

MOST_KEPT = 12
"""Under so many conditions an earlier one is kept."""

_NOTHING_DONE = (
    *(Assigned, Augmented, Called, Collective, Exited, Filled),
    *(GroupStarted, Iterated, Operated, Placed, Read, Returned),
)
"""What may happen while an object of data is made: nothing is done to a model."""
_SAME_ALWAYS = (Class, External, Function, Literal, MainRank, Part, Rank, Unknown)
_BORROWED = ".__dict__"
"""What all objects have in common where ``__init__`` sets it."""
_OF_PYTHON = frozenset((*sys.stdlib_module_names, "builtins"))


Making = tuple[Class, tuple[Value, ...], tuple[tuple[str, Value], ...], frozenset[Guard]]
"""A class, what it is given, and the tests of the rank under which it is."""


class _Look(NamedTuple):
    """What an object had when it was made, before anybody changed it."""

    there: Guards
    """What held."""
    fields: tuple[tuple[Hashable, Value], ...]
    out: bool
    """Whether it was handed to code that cannot be followed."""
    loose: bool


class Earlier(NamedTuple):
    """Objects that were made of the same arguments, under the same tests of the rank."""

    times: int
    some: tuple[_Look, ...]
    """What some of them had; nothing where more happened than that they were made."""

    def near(self, here: Guards) -> _Look | None:
        """What one had that was made where nothing held that ``here`` does not; if there were very many, any one."""
        if not self.some or self.times < MADE_BEFORE:
            return None
        found = next((one for one in self.some if here.implies(one.there)), None)
        return self.some[0] if found is None and self.times >= MADE_OFTEN else found


_NONE_YET = Earlier(0, ())


def _made_of(
    machine: Machine, cls: Class, args: tuple[Value, ...], keywords: dict[str, Value]
) -> Making:
    """By what objects count as made alike: who waits for the other ranks under a test of the rank is to be seen there."""
    guards = (guard for clause in machine.here.clauses for guard in clause)
    ranks = frozenset(guard for guard in guards if rank_dependent(guard.test))
    return cls, args, tuple(keywords.items()), ranks


def _is_of_data(machine: Machine, cls: Class, given: Iterable[Value]) -> bool:
    """Whether a class has no base but of Python's own library, and is given nothing that may change or hold a model."""
    return all(base.name.partition(".")[0] in _OF_PYTHON for base in outside(cls)) and all(
        isinstance(one, _SAME_ALWAYS) and not of_model(one) and not machine.is_module(one)
        for one in given
    )


def _become_like(machine: Machine, known: Earlier, made: Instance) -> bool:
    """Give an object what an earlier one has that was made of the same arguments, if there were many.

    Settings, a logger, the state of all processes: programs ask for them by their class in hundreds of places. Of one
    that was made under other conditions it is only known what it has.
    """
    here, memory = machine.here, machine.memory
    one = known.near(here)
    if one is None:
        return False
    surely = here.implies(one.there)
    for key, value in one.fields:
        given = (
            value if key == _BORROWED else _copied(machine, value) if surely else machine.unknown()
        )
        memory.write(made, key, here, given)
    if one.out:
        memory.escape(made)
    if one.loose:
        memory.loose.add(made)
    return True


def _copied(machine: Machine, value: Value) -> Value:
    """A list or dictionary of its own, with what another has; all else as it is."""
    if not isinstance(value, Container):
        return value
    made = Container(value.kind, value.open)
    for key, entry in list(machine.memory.entries(value, machine.here)):
        machine.memory.write(made, key, machine.here, _copied(machine, entry))
    return made


def _with_one_more(
    machine: Machine, known: Earlier, made: Instance, events: Sequence[Event]
) -> Earlier:
    """What is known of objects when one more was made, and what happened then."""
    here, times, memory = machine.here, known.times + 1, machine.memory
    held = list(memory.entries(made, here))
    if (
        (known.times and not known.some)
        or not all(map(_nothing_is_done, events))
        or not all(key == _BORROWED or _may_be_shared(machine, v, made) for key, v in held)
    ):
        return Earlier(times, ())
    some = known.some
    if len(some) < MOST_KEPT and not any(here.implies(one.there) for one in some):
        fields = tuple((k, v if k == _BORROWED else _copied(machine, v)) for k, v in held)
        some = (*some, _Look(here, fields, made in memory.out, made in memory.loose))
    return Earlier(times, some)


def _nothing_is_done(event: Event) -> bool:
    if isinstance(event, Escaped):
        return not of_model(event.value)
    return isinstance(event, _NOTHING_DONE)


def _may_be_shared(machine: Machine, value: Value, made: Instance, depth: int = MAX_DEPTH) -> bool:
    """Whether a value can be what two objects hold, or can be copied for the second."""
    if isinstance(value, Either):
        return all(_may_be_shared(machine, one, made, depth) for _, one in value.options)
    if isinstance(value, Container):
        held = machine.memory.entries(value)
        return depth > 0 and all(_may_be_shared(machine, v, made, depth - 1) for _, v in held)
    if isinstance(value, Instance) and isinstance(value.cls, External):
        name = value.cls.name
        return name == "torch.device" or name.partition(".")[0] in _OF_PYTHON
    return isinstance(value, _SAME_ALWAYS) and root(value) is not made and not of_model(value)


def _is_enumeration(cls: Class) -> bool:
    """Whether a call of a class looks one of its members up by its value: ``Command(sys.argv[1])``."""
    return any(base.name in _ENUMERATIONS for base in outside(cls))


def _is_dataclass(cls: Class) -> bool:
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
    is_tuple = any(base.name in _NAMED_TUPLES for base in outside(cls))
    defaults = {name: found for name in fields if (found := find(machine, cls, name)) is not None}
    lists_settings = not is_tuple and not given and len(defaults) == len(fields)
    for name, default in defaults.items():
        if name in given or isinstance(default, Function):
            continue
        if lists_settings and isinstance(default, Literal) and _may_differ(machine, cls, name):
            default = _as_setting(default, made.part(f".{name}"))
        given[name] = default
    for name, value in given.items():
        value = as_field(machine, cls, name, value)
        machine.memory.write(made, f".{name}", machine.here, value)
        value.sit(made, f".{name}")
        if is_tuple and name in fields:  # `model, optimizer = loaded`
            machine.memory.write(made, f"[{fields.index(name)}]", machine.here, value)
    post = find(machine, cls, "__post_init__")
    if isinstance(post, Function):
        machine.call(post, (made,), {}, made.born or Site(cls.scope.source, cls.node, cls.node))


def _may_differ(machine: Machine, cls: Class, name: str) -> bool:
    """Whether users choose what a field holds: it is no constant of the class, and the program does not set it."""
    for one in lineage(cls):
        said = annotations_of(one.node).get(name) if isinstance(one, Class) else None
        if isinstance(one, Class) and said is not None:
            words = one.scope.source.code(said)
            texts = (one.scope.source, *machine.project.asked)
            is_state = any(name in text.derived(_attributes_set) for text in texts)
            return not is_state and "ClassVar" not in words and "Literal[" not in words
    return False


def _attributes_set(source: Source) -> frozenset[str]:
    """The attributes that a text gives to objects other than ``self``."""
    return frozenset(_SET.findall(source.text))


_SET = re.compile(r"(?<!\bself)\.(\w+)\s*(?::[^=\n]+)?=(?!=)")


def _as_setting(default: Literal, setting: Value) -> Value:
    """What a field holds that may be another: a switch may be on or off, and what is empty may be something."""
    if isinstance(default.value, bool):
        return setting
    return default if default.value else Default(default.value, setting)


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
    """An instance of a class that no resolved code makes: ``__init__`` with arguments of unknown origin."""
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
