"""Parameters of modules.

``Module.parameters()`` is a generator (torch/nn/modules/module.py): the module is read when somebody
iterates, so it is *taken* by whoever consumes it, not here.
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.registry import method
from fsdp2lint.meanings.results import each_choice
from fsdp2lint.model.values import (
    Container,
    External,
    Literal,
    Optimizer,
    Parameters,
    Part,
    StateDict,
    Super,
    Unknown,
    Value,
)


@method("parameters", "named_parameters")
def parameters(call: Call) -> Value | None:
    """The parameters of the module; only modules have these methods."""
    receiver = call.receiver
    if receiver is None or isinstance(
        receiver, External | Container | Literal | Optimizer | Parameters | StateDict | Super
    ):
        return None
    for one in call.each(receiver):
        if isinstance(one, Part | Unknown):
            call.use_as_module(one)
    named = call.name == ".named_parameters"
    return each_choice(receiver, lambda one: Parameters(one, None, named))
