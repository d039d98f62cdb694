"""Objects that are nothing but their fields: namespaces and named tuples."""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.registry import calls
from fsdp2lint.meanings.results import strings, text
from fsdp2lint.model.values import Instance, Partial, Value

_TUPLE = "an object of a named tuple"


@calls("types.SimpleNamespace", "argparse.Namespace")
def namespace(call: Call) -> Value | None:
    """Its keywords are its attributes, and they can be set."""
    made = Instance(call.machine.external(call.name), call.site)
    for name, value in call.keywords.items():
        call.machine.set(made, name, value, call.site)
    return made


@calls("collections.namedtuple")
def named_tuple(call: Call) -> Value | None:
    """A class whose objects are tuples with names: ``namedtuple("Pair", "model optimizer")``."""
    given = call.get(1, "field_names")
    said = text(given)
    names = tuple(said.replace(",", " ").split()) if said else strings(call, given)
    if names is None:
        return None
    fields = call.machine.container("tuple", [call.machine.literal(name) for name in names])
    return Partial(call.machine.external(_TUPLE), (fields,), {}, False)


@calls(_TUPLE)
def make(call: Call) -> Value | None:
    """One such object."""
    if not call.args:
        return None
    names = strings(call, call.args[0]) or ()
    given = dict(zip(names, call.args[1:], strict=False)) | call.keywords
    made = call.machine.container("tuple", [given[n] for n in names if n in given], call.open)
    for name, value in given.items():
        made.keep(f".{name}", value)
    return made
