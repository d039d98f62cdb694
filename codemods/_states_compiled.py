"""Names with the prefix of ``torch.compile``, which checkpoints of FSDP1 have.

Facts (measured, torch 2.13): ``torch.compile(FSDP(model))`` gives state dicts of the model and of its optimizer names
that begin with ``_orig_mod.``; ``get_model_state_dict`` and ``set_model_state_dict`` know them without it
(torch/distributed/checkpoint/state_dict.py, ``_get_fqns``), and miss every key of such a file.
"""

from __future__ import annotations

from fsdp2lint.api import Event, Trace, Value, Wrapped, Wrapping

from ._shared import Naming

WANTED = "without_prefix"
RENAMED = "; the names in files of FSDP1 lose the prefix of torch.compile"
CHANGED = (
    "; their names no longer begin with `_orig_mod.`, as they do in folders that FSDP1 wrote of"
    " the compiled model"
)


def is_compiled(trace: Trace, event: Event, model: Value) -> bool:
    """Whether ``torch.compile`` may have put a module of its own around a model."""
    return any(
        isinstance(wrapping.result, Wrapped)
        and wrapping.by == wrapping.result.by == "compile"
        and trace.concerns(wrapping, model)
        for wrapping in trace.before(event, Wrapping)
    )


def without_prefix(name: str, named: Naming) -> str:
    """The function that takes the prefix away, from what a file holds of a model or an optimizer."""
    return f'''def {name}(state):
    """The state of a checkpoint under the names that parameters have without torch.compile."""
    if isinstance(state, dict):
        return {{{name}(key): {name}(value) for key, value in state.items()}}
    if isinstance(state, list):
        return [{name}(value) for value in state]
    return state.replace("_orig_mod.", "") if isinstance(state, str) else state'''
