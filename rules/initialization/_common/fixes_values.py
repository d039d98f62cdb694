"""Statements that give every parameter of a model its values, when the script shows how each of them gets some."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import (
    Assigned,
    Bound,
    Called,
    Class,
    Container,
    Event,
    External,
    Function,
    Instance,
    Layout,
    Literal,
    Part,
    Site,
    Trace,
    Unknown,
    Value,
    Written,
    lineage,
    options,
    root,
    unwrapped,
    walk,
)

from ..._common.fixes import call_of, free_name
from ..._common.meta import is_meta, out_of_sight, touches
from ..._common.parts import below
from ..._common.shared import cases, class_name

_NN = "torch.nn."
_RESETS = frozenset(
    "Linear Bilinear Embedding EmbeddingBag LayerNorm RMSNorm GroupNorm Conv1d Conv2d Conv3d ConvTranspose1d "
    "ConvTranspose2d ConvTranspose3d BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm".split()
)
"""Layers whose ``reset_parameters`` gives all their parameters and buffers values (``torch/nn/modules``)."""

_EMPTY = frozenset(
    "Module ModuleDict ModuleList Sequential Identity Flatten Unflatten Dropout Dropout1d Dropout2d Dropout3d "
    "AlphaDropout ReLU ReLU6 LeakyReLU ELU SELU CELU GELU SiLU Mish Tanh Sigmoid LogSigmoid Softplus Softmax "
    "LogSoftmax Hardswish Hardtanh Hardsigmoid GLU MaxPool1d MaxPool2d AvgPool1d AvgPool2d AdaptiveAvgPool1d "
    "AdaptiveAvgPool2d AdaptiveMaxPool1d AdaptiveMaxPool2d Upsample PixelShuffle ZeroPad2d CrossEntropyLoss "
    "MSELoss L1Loss SmoothL1Loss NLLLoss".split()
)
"""Modules without parameters of their own."""

_OF_NO_MODULE = ("argparse.", "builtins.", "json.", "math.", "os.", "sys.", "yaml.")
_INITS = tuple(
    f".{name}"
    for name in "add_ copy_ div_ fill_ fill_diagonal_ mul_ normal_ sub_ trunc_normal_ uniform_ zero_".split()
)
_OWN = (".register_buffer", ".register_parameter")
_RESET = "reset_parameters"


def values_for(trace: Trace, event: Event, module: Value, name: str) -> str:
    """The statements for a model that is called ``name`` at an event; nothing where one might be left out.

    All its layers are known and have ``reset_parameters``; what its constructors did beyond that is only
    ``self.apply(…)`` with a function that can be named there again.
    """
    site, whole = event.at, unwrapped(module)
    modules = below(trace, whole)
    if trace.truncated or out_of_sight(trace, event, whole):
        return ""
    if not all(_resets(trace, one) for one in modules):
        return ""
    applied = _applied(trace, site, whole, name)
    if applied is None:
        return ""
    if len(modules) == 1 and class_name(whole):
        return "\n".join((f"{name}.{_RESET}()", *applied))
    loop = free_name(site, "module", "layer", "submodule")
    lines = (
        f"for {loop} in {name}.modules():",
        f'    if hasattr({loop}, "{_RESET}"):',
        f"        {loop}.{_RESET}()",
    )
    return "\n".join((*lines, *applied))


def _resets(trace: Trace, module: Value) -> bool:
    """Whether ``reset_parameters``, called on each module that has it, gives all that this one owns values."""
    if not isinstance(module, Instance) or module in trace.memory.loose:
        return False
    if not all(_seen(trace, value) for _, value in trace.memory.entries(module)):
        return False
    known = class_name(module)
    if known:
        home, _, last = known.rpartition(".")
        return f"{home}." == _NN and (last in _EMPTY or (last in _RESETS and _plain(trace, module)))
    classes = list(lineage(module.cls))
    if not all(isinstance(c, Class) or _without_parameters(c) for c in classes):
        return False
    own, resets = _own(trace, module), _method(classes, _RESET)
    if resets is None:
        return not own
    said = {n.attr.value for n in walk(resets.body) if isinstance(n, cst.Attribute)}
    children = {str(key).lstrip(".") for key, _ in trace.memory.children(module)}
    required = [p for p in resets.params.params[1:] if p.default is None]
    return own <= said and not (children & said) and not required


def _seen(trace: Trace, value: Value) -> bool:
    """Whether it is resolved what an attribute is: nothing that could be a layer of another library."""
    for one in options(value):
        whole = root(one)
        if isinstance(one, Part) and isinstance(whole, External):
            if not whole.name.startswith(_OF_NO_MODULE):
                return False
        elif isinstance(one, Container):
            if not all(_seen(trace, held) for _, held in trace.memory.entries(one)):
                return False
        elif isinstance(one, Unknown) or (class_name(one) and not class_name(one).startswith(_NN)):
            return False
    return True


def _plain(trace: Trace, layer: Value) -> bool:
    """Whether a layer has no row that its initialisation would set apart, which on shards is lost."""
    built = next((c for c in trace.of(Called) if c.result is layer), None)
    if built is None or built.open:
        return False
    index = built.argument(2, "padding_idx") if class_name(layer).startswith(f"{_NN}Emb") else None
    return index is None or (isinstance(index, Literal) and index.value is None)


def _without_parameters(cls: Value) -> bool:
    return isinstance(cls, External) and cls.name.removeprefix(_NN) in (*_EMPTY, "builtins.object")


def _own(trace: Trace, module: Value) -> set[str]:
    """The names of the parameters and buffers that a module of the project has itself."""
    found = {
        str(key).lstrip(".")
        for key, value in trace.memory.entries(module)
        if any(
            class_name(one).startswith((f"{_NN}Param", f"{_NN}param", f"{_NN}Buf"))
            for one in options(value)
        )
    }
    for called in trace.calls(*_OWN):
        if called.receiver is module:
            name = called.argument(0, "name")
            found.add(str(name.value) if isinstance(name, Literal) else "")
    return found


def _method(classes: list[Value], name: str) -> cst.FunctionDef | None:
    for cls in classes:
        for one in cls.node.body.body if isinstance(cls, Class) else ():
            if isinstance(one, cst.FunctionDef) and one.name.value == name:
                return one
    return None


def _applied(trace: Trace, site: Site, module: Value, name: str) -> list[str] | None:
    """What the script has applied to the model so far; None when it has given values in another way."""
    lines: dict[str, None] = {}
    replayed: set[cst.CSTNode] = set()
    for called in trace.calls(".apply"):
        if not touches(trace, called.receiver, module):
            continue
        line = _again(site, called, name) if called.receiver is module else ""
        if not line:
            return None
        lines[line] = None
        replayed.add(called.at.node)
    for called in trace.of(Called):
        if not replayed.intersection(one.node for one in called.calls) and not _resetting(called):
            if _initialises(trace, called, module) or _makes_a_tensor(trace, called):
                return None
    put = [(one.owner, one.value) for one in trace.of(Assigned)]
    put += [(one.owner, one.value) for one in trace.of(Written) if one.name != "requires_grad"]
    if any(isinstance(value, Part) and touches(trace, owner, module) for owner, value in put):
        return None
    return list(lines)


def _resetting(event: Event) -> bool:
    return any(one.name == _RESET for one in event.moment.inside)


def _again(site: Site, applied: Called, name: str) -> str:
    """``self.apply(self.initialise)`` of a constructor, written for the model under its name elsewhere."""
    call = call_of(applied.at)
    value = applied.argument(0, "fn")
    node = call.args[0].value if call is not None and len(call.args) == 1 else None
    function = value.function if isinstance(value, Bound) else value
    if not isinstance(function, Function) or not _only_initialises(function):
        return ""
    if isinstance(node, cst.Attribute) and isinstance(value, Bound):
        own = isinstance(node.value, cst.Name) and node.value.value == "self"
        return f"{name}.apply({name}.{node.attr.value})" if own else ""
    same = applied.at.source is site.source and isinstance(node, cst.Name)
    layout = Layout.of(site.source)
    outer = same and isinstance(layout.parents.get(function.node), cst.Module)
    return f"{name}.apply({function.name})" if outer else ""


def _only_initialises(function: Function) -> bool:
    """Whether a function writes into whole parameters only, through functions: it may see shards."""
    return not any(
        isinstance(n, cst.Subscript | cst.Assign)
        or (isinstance(n, cst.Attribute) and n.attr.value == "data")
        for n in walk(function.node.body)
    )


def _initialises(trace: Trace, called: Called, module: Value) -> bool:
    if called.name.startswith(f"{_NN}init."):
        return any(touches(trace, one, module) for one in called.arguments)
    return called.name in _INITS and touches(trace, called.receiver, module)


def _makes_a_tensor(trace: Trace, called: Called) -> bool:
    """Whether a tensor that is no parameter is made on the meta device: nothing gives it memory."""
    home, _, last = called.name.rpartition(".")
    if home != "torch" or not last.islower() or last in ("device", "no_grad", "compile"):
        return False
    held = (one.argument(0, "data") for one in trace.calls(f"{_NN}Parameter"))
    return not any(one is called.result for one in held) and any(
        is_meta(value) for one in called.within for _, value in cases(called, one)
    )
