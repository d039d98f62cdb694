"""What a script does inside a block in which FSDP1 gathers the parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from fsdp2lint.api import (
    Assigned,
    Called,
    Container,
    Escaped,
    Event,
    Filled,
    Forward,
    Function,
    Instance,
    Layout,
    Literal,
    Module,
    Moved,
    Parameters,
    Part,
    Program,
    Restored,
    Source,
    StateDictTaken,
    Trace,
    Value,
    Written,
    of_parameters,
    options,
    unwrapped,
    walk,
)

from .._common.loop_text import text_of
from .._common.origins import callee

TAKE = "torch.distributed.checkpoint.state_dict.get_model_state_dict"
PUT = "torch.distributed.checkpoint.state_dict.set_model_state_dict"
_LOOKING = frozenset(
    "buffers children eval extra_repr get_buffer get_parameter get_submodule modules named_buffers"
    " named_children named_modules named_parameters parameters save_pretrained state_dict train"
    " zero_grad".split()
)
"""Methods of a module that run no layer."""
_SWITCHES = frozenset({"requires_grad_", "retain_grad_"})


_OF_LAYERS = frozenset("weight bias data init parameters named_parameters reset_parameters".split())
"""What a function mentions that looks at the parameters of a layer."""


@dataclass(slots=True)
class Uses:
    """What happens inside: ``computes`` runs layers, ``reads`` and ``writes`` parameters; ``hands_over`` gives a
    module to code that is not seen, which may write.
    """

    computes: bool = False
    reads: bool = False
    writes: bool = False
    hands_over: bool = False
    replaced: list[Event] = field(default_factory=list)
    """Loads and moves, which exchange the parameters themselves."""


def uses(program: Program, source: Source, call: cst.Call, model: str) -> Uses:
    """What is done inside the blocks that a ``summon_full_params`` call opens."""
    found = Uses()
    for trace in program.traces:
        for event in _inside(trace, call):
            _note(found, event)
    block = block_of(source, call)
    text = list(walk(block.body)) if block is not None else []
    calls = [node for node in text if isinstance(node, cst.Call)]
    found.computes |= any(_runs(source, node, model) for node in calls)
    if not found.computes:
        called = [callee(program, source, node) for node in calls]
        text += [node for one in called if one is not None for node in walk(one[1].body)]
    found.writes |= any(map(_may_write, text))
    return found


def _may_write(node: cst.CSTNode) -> bool:
    """Whether a piece of text changes something in place: whose value that is need not be known."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        name = node.func.attr.value
        return name.endswith("_") and not name.endswith("__") and name not in _SWITCHES
    if isinstance(node, cst.AssignTarget):
        target = node.target.value if isinstance(node.target, cst.Subscript) else node.target
        return isinstance(target, cst.Attribute) and target.attr.value == "data"
    return isinstance(node, cst.AugAssign) and not _is_own(node.target)


def _is_own(target: cst.CSTNode) -> bool:
    """Whether a target is an attribute of an object: what a module keeps there beside its parameters is a number."""
    return isinstance(target, cst.Attribute) and target.attr.value != "data"


def block_of(source: Source, call: cst.Call) -> cst.With | None:
    """The ``with`` whose item is the call."""
    layout = Layout.of(source)
    item = layout.parents[call]
    around = layout.parents.get(item)
    return around if isinstance(item, cst.WithItem) and isinstance(around, cst.With) else None


def _inside(trace: Trace, call: cst.Call) -> Iterator[Event]:
    for event in trace:
        for manager in event.within:
            for one in options(manager):
                if isinstance(one, Instance) and one.born is not None and one.born.node is call:
                    yield event


def _note(found: Uses, event: Event) -> None:
    if isinstance(event, Forward):
        found.computes = True
    elif isinstance(event, Restored | Moved):
        found.replaced.append(event)
    elif isinstance(event, StateDictTaken):
        found.reads = True
    elif isinstance(event, Assigned):
        found.writes |= any(map(_may_replace, options(event.value)))
    elif isinstance(event, Filled):
        found.writes |= any(map(of_parameters, options(event.owner)))
    elif isinstance(event, Written):
        found.writes |= event.name != "requires_grad"
    elif isinstance(event, Escaped):
        found.writes |= isinstance(unwrapped(event.value), Parameters) or of_parameters(event.value)
        found.hands_over |= isinstance(unwrapped(event.value), Module)
    elif isinstance(event, Called):
        _note_call(found, event)


def _may_replace(value: Value) -> bool:
    """Whether what a module's attribute is set to may be a parameter or another module: no number, list or sum is one.

    ``nn.Module`` takes no plain tensor in a parameter's place.
    """
    if isinstance(value, Literal):
        return value.value is None
    if isinstance(value, Container):
        return False
    return of_parameters(value) or not (isinstance(value, Part) and value.operation)


def _note_call(found: Uses, called: Called) -> None:
    if called.name in (".parameters", ".named_parameters", ".get_parameter"):
        found.reads = True
    if called.name.startswith("torch.nn.init.") or called.name == ".apply":
        found.writes = True
    receiver = called.receiver
    if receiver is not None and any(_is_parameter(one) for one in options(receiver)):
        found.reads = True
        found.writes |= called.name.endswith("_") and not called.name.endswith("__")


def _is_parameter(value: Value) -> bool:
    return of_parameters(value) or isinstance(unwrapped(value), Parameters)


def _runs(source: Source, node: cst.Call, model: str) -> bool:
    """Whether a call is one of the model, or of a method of it that may run layers."""
    func = node.func
    if text_of(source, func) == model:
        return True
    if not isinstance(func, cst.Attribute) or func.attr.value in _LOOKING:
        return False
    return text_of(source, func.value) in (model, f"{model}.module")


def states_moved(program: Program, source: Source, block: cst.With, model: str) -> set[str]:
    """Those of :data:`TAKE` and :data:`PUT` that the statements of a block call with the model; empty where
    they use it otherwise.
    """
    layout = Layout.of(source)
    moving = {r.node: r.name for r in program.named(source) if r.name in (TAKE, PUT)}
    root = model.partition(".")[0]
    found = set()
    for node in walk(block.body):
        if isinstance(node, cst.Name | cst.Attribute) and text_of(source, node) == model:
            call = layout.parents.get(layout.parents[node])
            if not isinstance(call, cst.Call) or call.func not in moving:
                return set()
            found.add(moving[call.func])
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            if root != model and text_of(source, node.func.value) == root:
                return set()
    return found


def touches_parameters(called: Called) -> bool:
    """Whether the function that ``apply`` is given may look at parameters: they are named, or it is unseen."""
    function = called.argument(0, "fn")
    if not isinstance(function, Function):
        return True
    return any(
        isinstance(node, cst.Attribute) and node.attr.value in _OF_LAYERS
        for node in walk(function.node)
    )
