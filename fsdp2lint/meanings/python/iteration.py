"""The builtins that make and walk sequences, and ``itertools.chain``.

Generators of parameters stay generators through ``filter`` and ``chain``; ``list``, ``tuple``, ``set``,
``sorted`` and ``dict`` consume them, which is when the parameters are *taken*.
"""

from __future__ import annotations

from fsdp2lint.interpret.displays import spread_into
from fsdp2lint.interpret.functions import Generator
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.registry import calls
from fsdp2lint.meanings.results import each_choice, exact, fresh
from fsdp2lint.model.trace import options
from fsdp2lint.model.values import Container, Literal, Parameters, Value

_KINDS = {
    "builtins.list": "list",
    "builtins.tuple": "tuple",
    "builtins.set": "set",
    "builtins.frozenset": "set",
    "collections.deque": "list",
    "collections.OrderedDict": "dict",
    "collections.defaultdict": "dict",
    "builtins.dict": "dict",
}


@calls("builtins.list", "builtins.tuple", "builtins.set", "builtins.frozenset", "collections.deque")
def sequence(call: Call) -> Value | None:
    """A copy of what is iterated: reads generators of parameters now."""
    kind = _KINDS[call.name]
    value = call.get(0, "iterable")
    if value is None:
        return call.machine.container(kind, [], call.open)
    return call.machine.spread(value, lambda one: _consumed(call, one, kind))


def _consumed(call: Call, value: Value, kind: str) -> Value:
    if isinstance(value, Parameters):
        return value if value.taken is not None else call.machine.take(value)
    if isinstance(value, Container):
        if value.kind == "chain":
            return _read_chain(call, value, kind)
        entries = call.machine.elements(value, call.site) if value.kind == "dict" else None
        if entries is None:
            entries = [_read(call, one) for one in call.items(value)]
        made = call.machine.container(kind, entries, value.open)
        made.shuffled |= value.shuffled and call.name != "builtins.sorted"
        return made
    if isinstance(value, Literal):
        return fresh(call)
    return value


def _read(call: Call, entry: Value) -> Value:
    """An entry of a generator expression over parameters: they are read as it is consumed."""
    owner = entry.owner
    if isinstance(owner, Parameters) and owner.taken is None:
        return call.machine.take(owner).part(entry.key)
    return entry


def _read_chain(call: Call, value: Container, kind: str) -> Value:
    """The parts of a chain, its generators read now; it holds their elements, not them, so it stays open."""
    items = [each_choice(v, lambda one: _consumed(call, one, kind)) for v in call.items(value)]
    return call.machine.container("chain", items, open_=True)


@calls("itertools.chain", "itertools.chain.from_iterable")
def chain(call: Call) -> Value | None:
    """One after the other; known entries are put in line, the rest is kept as it is."""
    parts = list(call.args)
    if call.name.endswith("from_iterable"):
        parts = exact(call.machine, call.get(0, "iterable")) or parts
    lists = [exact(call.machine, part) for part in parts]
    known = [entries for entries in lists if entries is not None]
    if len(known) == len(parts) and not call.open:
        return call.machine.container("list", [v for entries in known for v in entries])
    return call.machine.container("chain", parts, open_=True)


@calls("builtins.dict", "collections.OrderedDict", "collections.defaultdict")
def dictionary(call: Call) -> Value | None:
    """``dict(pairs, **entries)``; of named parameters it reads them now."""
    given = call.args[1:] if call.name.endswith("defaultdict") else call.args
    first = given[0] if given else None
    if isinstance(first, Parameters):
        return first if first.taken is not None else call.machine.take(first)
    made = Container("dict", call.open)
    if call.name.endswith("defaultdict") and call.args:
        made.keep(".default_factory", call.args[0])
    if first is not None:
        _add_entries(call, made, first)
    for name, value in call.keywords.items():
        call.machine.memory.write(made, f"[{name!r}]", call.machine.here, value)
    return made


def _add_entries(call: Call, made: Container, given: Value) -> None:
    memory, here = call.machine.memory, call.machine.here
    one = next(iter(options(given)))
    if isinstance(one, Container) and one.kind == "dict":
        spread_into(call.machine, made, given)
        return
    made.open = True
    for entry in call.items(given) if isinstance(given, Container) else ():
        pair = exact(call.machine, entry)
        if pair is not None and len(pair) == 2 and isinstance(pair[0], Literal):
            memory.write(made, f"[{pair[0].value!r}]", here, pair[1])
    if not isinstance(given, Container):
        memory.write(made, ("of", given), here, given)
    elif not given.open:
        made.open = len(call.items(made)) < len(call.items(given))


@calls(
    "builtins.iter",
    "builtins.filter",
    "itertools.islice",
    "tqdm.tqdm",
    "tqdm.auto.tqdm",
    "tqdm.trange",
)
def through(call: Call) -> Value | None:
    """These give the elements of what they are given, or some of them."""
    position = 1 if call.name == "builtins.filter" else 0
    value = call.get(position, "iterable")
    if value is None:
        return fresh(call)
    if call.name != "builtins.filter":
        return value
    return call.machine.spread(value, lambda one: _filtered(call, one))


def _filtered(call: Call, value: Value) -> Value:
    if isinstance(value, Container) and value.kind in ("list", "tuple", "set"):
        return call.machine.container("list", call.items(value), open_=True)
    return value


@calls("builtins.map")
def map_(call: Call) -> Value | None:
    """Calls the function with each element (when the result is consumed, which is nearly always at once)."""
    function, value = call.get(0), call.get(1)
    if function is None or value is None or len(call.args) != 2:
        return None
    results = [call.run(function, one) for one in call.machine.elements(value, call.site)]
    return call.machine.container("list", results, exact(call.machine, value) is None)


@calls("builtins.zip")
def zip_(call: Call) -> Value | None:
    """Pairs of what a loop over each of them sees."""
    columns = [call.machine.elements(v, call.site) for v in call.args]
    rows = [call.machine.container("tuple", row) for row in zip(*columns, strict=False)]
    known = all(exact(call.machine, v) is not None for v in call.args) and not call.open
    return call.machine.container("list", rows, not known)


@calls("builtins.enumerate")
def enumerate_(call: Call) -> Value | None:
    """Pairs of a number and an element; the number is known when all the elements are."""
    value = call.get(0, "iterable")
    if value is None:
        return None
    entries = exact(call.machine, value)
    start = call.constant(1, "start", 0)
    rows = []
    for index, element in enumerate(call.machine.elements(value, call.site)):
        number: Value = element.part(("index",))
        if start != 0:
            number = number.part(("+", call.get(1, "start") or call.machine.unknown()))
        if entries is not None and isinstance(start, int):
            number = call.machine.literal(start + index)
        rows.append(call.machine.container("tuple", [number, element]))
    return call.machine.container("list", rows, entries is None)


@calls("builtins.reversed")
def reversed_(call: Call) -> Value | None:
    """The same elements, the last one first."""
    value = call.get(0)
    if value is None:
        return None
    return call.machine.spread(value, lambda one: _turned(call, one))


def _turned(call: Call, value: Value) -> Value:
    if isinstance(value, Parameters):
        return value
    if isinstance(value, Container) and value.kind != "dict":
        return call.machine.container("list", call.items(value)[::-1], value.open)
    elements = call.machine.elements(value, call.site)
    return call.machine.container("list", elements[::-1], open_=True)


@calls("builtins.sorted")
def sorted_(call: Call) -> Value | None:
    """A list in another order: of known entries the order is no longer known."""
    value = call.get(0, "iterable")
    if value is None:
        return None

    def one(given: Value) -> Value:
        if isinstance(given, Parameters | Container):
            return _consumed(call, given, "list")
        return call.machine.container("list", call.machine.elements(given, call.site), open_=True)

    return call.machine.spread(value, one)


@calls("builtins.range")
def range_(call: Call) -> Value | None:
    """Equal ranges are one value, so that loops over them correlate."""
    return call.machine.external(call.name).part(("call", *call.args))


@calls("builtins.next")
def next_(call: Call) -> Value | None:
    """The first element of a sequence, or some element of an iterator; a generator of the project runs, once."""
    value = call.get(0)
    if value is None:
        return None
    if isinstance(value, Generator) and call.machine.may_enter(value.function):
        if value.given is None:
            value.given = []  # while it runs it gives nothing
            value.given = call.machine.elements(value, call.site)
        return value.given[0] if value.given else fresh(call)
    entries = exact(call.machine, value)
    if entries:
        return entries[0]
    if isinstance(value, Container | Parameters):
        found = call.machine.elements(value, call.site)
        return found[0] if found else fresh(call)
    return value.part(("next", call.now))
