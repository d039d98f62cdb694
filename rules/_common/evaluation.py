"""Forwards that evaluate: without gradients, or of a model in evaluation mode."""

from __future__ import annotations

from fsdp2lint.api import Event, External, Forward, Trace, Value, options, unwrapped

from .shared import class_name, overlap


def modes_around(event: Event, *names: str) -> list[Value]:
    """The modes of these names around an event: decorators and contexts."""
    decorators = [d for f in event.moment.inside for d in f.decorators]
    return [
        mode
        for mode in (*decorators, *event.within)
        if class_name(mode) in names or (isinstance(mode, External) and mode.name in names)
    ]


def keeps_no_gradients(event: Event) -> bool:
    """Whether ``torch.no_grad`` or ``torch.inference_mode`` is around an event, as a context or a decorator."""
    return bool(modes_around(event, "torch.no_grad", "torch.inference_mode"))


def evaluates(trace: Trace, event: Event) -> bool:
    """Whether an event is a forward that evaluates."""
    if not isinstance(event, Forward):
        return False
    return keeps_no_gradients(event) or any(
        _in_evaluation_mode(trace, event, unwrapped(m)) for m in options(event.module)
    )


def _in_evaluation_mode(trace: Trace, event: Event, module: Value) -> bool:
    """Whether the last switch of a module's mode before an event was ``eval()``."""
    for called in reversed(list(trace.calls(".eval", ".train"))):
        if called.receiver is not None and trace.precedes(called, event):
            if overlap(trace, unwrapped(called.receiver), module) is not None:
                return called.name == ".eval"
    return False
