"""Which parameters FSDP1 was asked to leave alone."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp2lint.api import Container, Literal, Program, Trace, Value, Wrapped, Wrapping, options

_IGNORED = ("ignored_modules", "ignored_states")


def ignores_some(program: Program, models: Iterable[Value]) -> bool:
    """Whether FSDP1 leaves some parameters of one of the models alone: they stay plain tensors."""
    wrapped = {one for model in models for one in options(model) if isinstance(one, Wrapped)}
    return any(
        not _is_empty(trace, wrapping.options.get(name))
        for trace, wrapping in program.of(Wrapping)
        if wrapping.by == "fsdp1" and (wrapping.result in wrapped or not wrapped)
        for name in _IGNORED
    )


def _is_empty(trace: Trace, given: Value | None) -> bool:
    """Whether nothing is given: no argument, None, or a list that nothing is ever put into."""
    if isinstance(given, Container):
        return not given.open and not any(True for _ in trace.memory.entries(given))
    return given is None or (isinstance(given, Literal) and not given.value)
