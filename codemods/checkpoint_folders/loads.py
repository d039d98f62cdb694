"""``torch.load`` of a checkpoint that goes into a sharded model, widened to folders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from fsdp2lint.api import (
    Arguments,
    Edit,
    InsertAfter,
    InsertBefore,
    Layout,
    Loaded,
    Part,
    Program,
    Remove,
    Replace,
    Restored,
    Source,
    Trace,
    Value,
    argument,
    name_for,
    options,
    rank_dependent,
    walk,
)

from .._common.loop_text import text_of
from .._common.states_guards import bound_between
from .._common.states_text import HOME, free_name, function_of, names_in
from .._common.states_uses import on_first_rank
from .paths import folder_text
from .saves import DCP

SETTERS = {f"{HOME}.set_model_state_dict": 1, f"{HOME}.set_optimizer_state_dict": 2}
"""The functions that put a state back, with the number of arguments before the state."""

_BROADCAST = "broadcast_from_rank0"
_OLD = "# an old checkpoint is one file, as the program wrote it with FSDP1"


@dataclass(eq=False)
class Load:
    """One ``name = torch.load(path)`` whose entries go into a sharded model and its optimizer.

    ``setters`` are the calls that put them there, by key (empty: the whole file), and ``kinds`` says into what;
    ``read`` are all keys. ``test`` is the test of the rank below which the file is read for all ranks.
    """

    source: Source
    call: cst.Call
    path: cst.BaseExpression
    name: str
    events: list[tuple[Trace, Loaded]]
    setters: dict[str, cst.Call] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    read: dict[str, cst.CSTNode] = field(default_factory=dict)
    test: cst.If | None = None
    problem: str = ""

    @property
    def paths(self) -> set[Value]:
        """The values that its path can be."""
        return {one for _, e in self.events if e.path is not None for one in options(e.path)}


def loads(program: Program) -> list[Load]:
    """Every ``torch.load`` whose result, or an entry of it, is put into a sharded model or its optimizer."""
    found: dict[cst.CSTNode, Load] = {}
    for trace, restored in program.of(Restored):
        if restored.via not in SETTERS or not isinstance(restored.at.node, cst.Call):
            continue
        for loaded in trace.of(Loaded):
            keys = [k for one in options(restored.state) for k in _keys(one, loaded.result)]
            if loaded.via != "torch.load" or not keys:
                continue
            load = found.get(loaded.at.node) or _load(loaded)
            found[loaded.at.node] = load
            load.events.append((trace, loaded))
            key = "".join(keys[0]) if len(keys[0]) < 2 else "?"
            load.setters[key] = restored.at.node
            load.kinds[key] = restored.kind
            load.problem = load.problem or _problem(load, restored, key)
    return list(found.values())


def _keys(value: Value, whole: Value) -> Iterator[tuple[str, ...]]:
    """The keys by which ``value`` is taken out of ``whole``."""
    keys: list[str] = []
    one: Value | None = value
    while one is not whole:
        key = one.key if isinstance(one, Part) else None
        if not isinstance(one, Part) or not isinstance(key, str) or not key.startswith("['"):
            return
        keys.append(key[2:-2])
        one = one.owner
    yield tuple(reversed(keys))


def _load(loaded: Loaded) -> Load:
    source, call = loaded.at.source, loaded.at.node
    assert isinstance(call, cst.Call)
    path = argument(call, 0, "f")
    layout = Layout.of(source)
    assigned = layout.parents[call]
    target = assigned.targets[0].target if isinstance(assigned, cst.Assign) else None
    name = target.value if isinstance(target, cst.Name) else ""
    load = Load(source, call, path.value if path is not None else call, name, [])
    if path is None or not name:
        load.problem = "what it loads is not bound to a name"
    elif any(rank_dependent(g.test) for g in loaded.guards):
        load.test = _test(source, call, loaded)
        load.problem = _uses(load) if load.test is not None else "only some ranks load it"
    else:
        load.problem = _uses(load)
    return load


def _test(source: Source, call: cst.CSTNode, loaded: Loaded) -> cst.If | None:
    """The ``if rank == 0:`` in whose body the load is."""
    layout = Layout.of(source)
    block = layout.block(layout.statement(call))
    test = layout.parents.get(block)
    asked = [g.site for g in loaded.guards if rank_dependent(g.test)]
    if not isinstance(test, cst.If) or test.body is not block or test.orelse is not None:
        return None
    if isinstance(layout.parents[test], cst.If) or len(asked) != 1 or asked[0] is None:
        return None
    return test if asked[0].statement is test and on_first_rank(loaded.guards) else None


def _uses(load: Load) -> str:
    """Note which keys are read; the reason why not all uses are understood, if so."""
    layout = Layout.of(load.source)
    for node in walk(function_of(load.source, load.call)):
        if not isinstance(node, cst.Name) or node.value != load.name:
            continue
        parent = layout.parents[node]
        if isinstance(parent, cst.AssignTarget):
            if not _is_own(layout, load, parent):
                return "the name of what it loads is bound again"
        elif load.test is not None and isinstance(parent, cst.Comparison):
            continue
        elif load.test is not None and isinstance(parent, cst.Attribute):
            if parent.attr.value != "get":
                return "what it loads is used as a whole"
        elif isinstance(parent, cst.Subscript):
            index = parent.slice[0].slice
            key = index.value if isinstance(index, cst.Index) else None
            if not isinstance(key, cst.SimpleString):
                return "a key of what it loads is not a constant"
            load.read[str(key.evaluated_value)] = parent
        elif not isinstance(parent, cst.Arg | cst.Del):
            return "what it loads is used as a whole"
    return ""


def _is_own(layout: Layout, load: Load, target: cst.AssignTarget) -> bool:
    """Whether a name is bound to what is loaded, or to nothing for the ranks that do not load."""
    assigned = layout.parents[target]
    if assigned is layout.parents[load.call]:
        return True
    value = assigned.value if isinstance(assigned, cst.Assign) else None
    nothing = isinstance(value, cst.Name) and value.value == "None"
    empty = isinstance(value, cst.Dict) and not value.elements
    return load.test is not None and (nothing or empty)


def _problem(load: Load, restored: Restored, key: str) -> str:
    source, call = restored.at.source, restored.at.node
    if key == "?" or source is not load.source:
        return "its entries are used elsewhere"
    if function_of(source, call) is not function_of(source, load.call):
        return "its entries are used in another function"
    if not isinstance(call, cst.Call):
        return "its entries are used elsewhere"
    owners = call.args[: SETTERS[restored.via]]
    names = {name for arg in owners for name in names_in(arg)}
    if bound_between(source, load.call, call) & names:
        return "the model is made after the file is read"
    if load.test is not None and _BROADCAST not in source.code(call):
        return "whether the first rank reads it for all is not clear"
    if load.test is not None and key:
        return "the first rank reads several states for all"
    if load.test is not None and names_in(load.path) & bound_between(source, load.test, load.call):
        return "only the first rank knows the path"
    return ""


def nested(load: Load, key: str) -> str:
    """The object whose ``load_state_dict`` gets an entry, as written; empty when there is none."""
    parents = Layout.of(load.source).parents
    arg = parents.get(load.read[key])
    call = parents.get(arg) if isinstance(arg, cst.Arg) else None
    if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
        if call.func.attr.value == "load_state_dict":
            return text_of(load.source, call.func.value)
    return ""


def widened(load: Load, others: int) -> Iterator[Edit]:
    """The edits by which a folder is loaded where there is one, else the file.

    With ``others`` before it in the same function it takes names of its own.
    """
    source, call = load.source, load.call
    layout = Layout.of(source)
    folder, more = folder_text(source, load.path)
    dcp = name_for(source, call, DCP, alias="dcp", module=True)
    os_name = name_for(source, call, "os", module=True)
    wanted = (f"{load.name}_folder", f"old_{load.name}") if others else ("folder", "old")
    at = free_name(source, wanted[0], "checkpoint_folder")
    old = free_name(source, wanted[1], "old_file")
    entries, imports = _template(load)
    unit = layout.unit
    known = [
        f"{at} = {folder}",
        _OLD,
        f'{old} = not {os_name.text}.path.isfile({os_name.text}.path.join({at}, ".metadata"))',
    ]
    filled = [
        *(f"{unit}{line}" for line in entries),
        f"{unit}{dcp.text}.load({load.name}, checkpoint_id={at})",
    ]
    if load.test is not None:
        asked = text_of(source, load.test.test)
        asked = f"({asked})" if isinstance(load.test.test, cst.BooleanOperation) else asked
        yield InsertBefore(source, load.test, "\n".join(known))
        yield Replace(source, load.test.test, f"{old} and {asked}")
        yield InsertAfter(source, load.test, "\n".join([f"if not {old}:", *filled]))
    else:
        read = f"{unit}{load.name} = {text_of(source, call)}"
        yield InsertBefore(source, call, "\n".join([*known, f"if {old}:", read, "else:", *filled]))
        yield Remove(source, call)
    yield from (*more, *dcp.edits, *os_name.edits, *imports)
    for setter in load.setters.values():
        given = next(a.value for a in setter.args if a.keyword and a.keyword.value == "options")
        if isinstance(given, cst.Call):
            switched = Arguments(source, given).replace("full_state_dict", old)
            broadcast = _BROADCAST in source.code(given)
            yield switched.replace(_BROADCAST, old) if broadcast else switched


def _template(load: Load) -> tuple[list[str], list[Edit]]:
    """The dictionary that ``dcp.load`` fills."""
    imports: list[Edit] = []

    def taken(setter: cst.Call) -> str:
        optimizer = text_of(load.source, setter.func).endswith("optimizer_state_dict")
        name = f"get_{'optimizer' if optimizer else 'model'}_state_dict"
        getter = name_for(load.source, load.call, f"{HOME}.{name}")
        imports.extend(getter.edits)
        owners = setter.args[: 2 if optimizer else 1]
        return f"{getter.text}({', '.join(text_of(load.source, a.value) for a in owners)})"

    if "" in load.setters:
        return [f"{load.name} = {taken(load.setters[''])}"], imports
    lines = [f"{load.name} = {{"]
    unit = Layout.of(load.source).unit
    for key in load.read:
        if key in load.setters:
            value = taken(load.setters[key])
        else:
            holder = nested(load, key)
            value = f"{holder}.state_dict()" if holder else "None"
        lines.append(f'{unit}"{key}": {value},')
    return [*lines, "}"], imports
