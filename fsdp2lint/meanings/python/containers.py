"""The methods of lists, dicts and sets."""

from __future__ import annotations

from fsdp2lint.interpret.displays import store
from fsdp2lint.interpret.functions import append, extend
from fsdp2lint.interpret.loops import module_entries
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.registry import method
from fsdp2lint.meanings.results import each_choice, nothing
from fsdp2lint.model.guards import ALWAYS
from fsdp2lint.model.memory import choose
from fsdp2lint.model.values import (
    Container,
    Literal,
    Module,
    Parameters,
    Part,
    StateDict,
    Value,
    root,
)


def _container(call: Call, *kinds: str) -> Container | None:
    receiver = call.receiver
    if not isinstance(receiver, Container) or (kinds and receiver.kind not in kinds):
        return None
    return receiver


@method("append", "add", "appendleft")
def append_(call: Call) -> Value | None:
    """One more entry; ``insert`` puts it somewhere, so the order is not known from there on."""
    owner, value = _container(call, "list", "set", "tuple") or _somewhere(call), call.get(0)
    if owner is None or value is None:
        return None
    append(call.machine, owner, value)
    return nothing(call)


def _somewhere(call: Call) -> Container | None:
    """The list at a place that is not known, inside a container that is: ``groups[p.ndim < 2].append(p)``."""
    receiver = call.receiver
    whole = None if receiver is None else root(receiver)
    if not isinstance(whole, Container) or whole is receiver or call.machine.here.impossible:
        return None
    memory, here = call.machine.memory, call.machine.here
    known = memory.read(whole, ("[]", receiver), here)
    if isinstance(known, Container):
        return known
    made = call.machine.container("list", [], open_=True)
    memory.write(whole, ("[]", receiver), here, made)
    whole.open = True
    return made


@method("insert")
def insert(call: Call) -> Value | None:
    """An entry somewhere: kept at the end."""
    owner, value = _container(call, "list"), call.get(1)
    if owner is None or value is None:
        return None
    append(call.machine, owner, value)
    return nothing(call)


@method("extend", "update")
def extend_(call: Call) -> Value | None:
    """More entries from something else; ``dict.update`` takes keywords too."""
    owner = _container(call)
    if owner is None:
        return None
    for value in call.args:
        extend(call.machine, owner, value, call.site)
    for name, value in call.keywords.items():
        call.machine.memory.write(owner, f"[{name!r}]", call.machine.here, value)
    owner.open = owner.open or call.open
    return nothing(call)


@method("get", "pop", "setdefault")
def entry(call: Call) -> Value | None:
    """``d.get(key, default)``: the entry, or the default when there is none."""
    owner, key = _container(call, "dict"), call.get(0)
    if owner is None or key is None:
        return _popped(call) if call.name == ".pop" else None
    default = call.get(1)
    if default is None and call.name == ".get":
        default = nothing(call)
    found = call.machine.item(owner, key, call.site)
    missing = isinstance(found, Part) and found.owner is owner
    if missing and default is not None:
        if call.name == ".setdefault":
            store(call.machine, owner, key, default)
            return default
        return _either(call, default, found) if owner.open else default
    if call.name == ".pop":
        _forget(call, owner, key)
    return found


def _either(call: Call, default: Value, found: Value) -> Value:
    if isinstance(default, Literal):
        return found
    here = call.machine.here
    return choose([(here, default), (ALWAYS, found)], here) or found


def _forget(call: Call, owner: Container, key: Value) -> None:
    fields = call.machine.memory.fields.get(owner)
    if fields is not None and isinstance(key, Literal) and not call.machine.here.clauses:
        fields.pop(f"[{key.value!r}]", None)
    else:
        owner.open = True


def _popped(call: Call) -> Value | None:
    owner = _container(call, "list", "set")
    if owner is None:
        return None
    entries = call.items(owner)
    owner.open = True
    if not entries:
        return owner.part(("pop", call.now))
    return entries[0] if call.constant(0) == 0 else entries[-1]


@method("items", "values", "keys")
def views(call: Call) -> Value | None:
    """Pairs, values or keys; of a state dict they are parts of it."""
    receiver = call.receiver
    if isinstance(receiver, Parameters):
        return receiver
    held = module_entries(call.machine, receiver) if isinstance(receiver, Module) else []
    if held:  # a ModuleDict: how many entries a loop gave it is not known
        return _view(call, [key for key, _ in held], [entry for _, entry in held], open_=True)
    if isinstance(receiver, StateDict | Part | Module):
        return each_choice(receiver, lambda one: one.part(f"{call.name}()"))
    owner = _container(call, "dict")
    if owner is None:
        return None
    entries = list(call.machine.memory.entries(owner, call.machine.here))
    if not entries and owner.open:
        return owner.part(f"{call.name}()")
    keys = call.machine.elements(owner, call.site)
    return _view(call, keys, [v for _, v in entries], owner.open)


def _view(call: Call, keys: list[Value], values: list[Value], open_: bool) -> Value:
    if call.name == ".keys":
        return call.machine.container("list", keys, open_)
    if call.name == ".values":
        return call.machine.container("list", values, open_)
    pairs = [call.machine.container("tuple", pair) for pair in zip(keys, values, strict=False)]
    return call.machine.container("list", pairs, open_)


@method("copy")
def copy(call: Call) -> Value | None:
    """A shallow copy."""
    owner = _container(call)
    if owner is None:
        return None
    made = Container(owner.kind, owner.open)
    for key, value in list(call.machine.memory.entries(owner, call.machine.here)):
        call.machine.memory.write(made, key, call.machine.here, value)
    return made


@method("clear", "sort", "reverse", "remove", "discard", "popleft", "popitem", "move_to_end")
def shuffle(call: Call) -> Value | None:
    """The entries or their order are no longer known for certain."""
    owner = _container(call)
    if owner is None:
        return None
    if call.name == ".clear" and not call.machine.here.clauses:
        call.machine.memory.fields.pop(owner, None)
    elif call.name not in (".sort", ".reverse"):
        owner.open = True
    if call.name == ".popleft":
        entries = call.items(owner)
        return entries[0] if entries else owner.part(("pop", call.now))
    return nothing(call)


@method("index", "count", "union", "intersection", "difference", "issubset")
def ask(call: Call) -> Value | None:
    """Questions change nothing."""
    owner = _container(call)
    if owner is None:
        return None
    return owner.part(("call", call.name, *call.args))
