"""Schedulers, scalers and loaders whose state a program saves, and which a resumed run never gets back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from libcst import CSTNode

from fsdp2lint.api import (
    Backward,
    Called,
    Class,
    Container,
    External,
    Instance,
    Literal,
    Loaded,
    Module,
    Optimizer,
    Parameters,
    Restored,
    Saved,
    StateDict,
    Trace,
    Value,
    Wrapped,
    lineage,
    options,
    parts_along,
    root,
    unwrapped,
)

_KINDS = {
    "torch.optim.lr_scheduler.": "begins its schedule again",
    "torch.optim.swa_utils.SWALR": "begins its schedule again",
    "torch.amp.": "begins with the first scale again",
    "torch.cuda.amp.": "begins with the first scale again",
    "torch.distributed.fsdp.sharded_grad_scaler.": "begins with the first scale again",
    "torchdata.stateful_dataloader.": "begins with the first batch again",
}
"""Where classes are from whose objects keep a state, and what one does that does not get it back."""
_OWNERS = (Module, Wrapped, Optimizer, Parameters, StateDict)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """An object that keeps a state, where that is saved, and what it ``does`` without it."""

    keeper: Value
    saved: Saved
    does: str


def forgotten(trace: Trace) -> dict[Loaded, list[Forgotten]]:
    """The objects that keep a state and get none where a run is resumed, by the load at which it is."""
    resumed = _resumed(trace)
    found: dict[tuple[object, ...], Forgotten] = {}
    for called in trace.calls(".state_dict") if resumed is not None else ():
        for keeper in _receivers(called):
            does = _kind(keeper)
            saved = _saved(trace, called) if does and _place(keeper) not in found else None
            if saved is not None and _never_given(trace, keeper):
                found[_place(keeper)] = Forgotten(keeper, saved, does)
    return {resumed: list(found.values())} if resumed is not None and found else {}


def _resumed(trace: Trace) -> Loaded | None:
    """The load after which an optimizer gets its state back."""
    for restored in trace.of(Restored):
        loaded = next(trace.before(restored, Loaded), None)
        if restored.kind in ("optimizer", "both") and loaded is not None:
            if next(trace.after(loaded, Backward), None) is not None:
                return loaded
    return None


def _kind(keeper: Value) -> str:
    """What an object of a class of PyTorch, or of one that inherits its state from there, does without its state."""
    if not isinstance(keeper, Instance):
        return ""
    for cls in lineage(keeper.cls):
        if isinstance(cls, Class) and any(
            m in cls.scope.names for m in ("load_state_dict", "step")
        ):
            return ""
        if isinstance(cls, External):
            found = (does for home, does in _KINDS.items() if cls.name.startswith(home))
            return next(found, "")
    return ""


def _place(keeper: Value) -> tuple[object, ...]:
    """Where an object is made: each object of a trainer's class has one."""
    born = keeper.born if isinstance(keeper, Instance) else None
    return (keeper,) if born is None else (born.source, born.node)


def _saved(trace: Trace, called: Called) -> Saved | None:
    """The save into which a state goes: in what is written, or asked for by the save itself."""
    for saved in trace.after(called, Saved):
        if called.result in _inside(trace, saved.what):
            return saved
    return next(
        (s for s in trace.of(Saved) if any(site.node is s.at.node for site in called.calls)), None
    )


def _inside(trace: Trace, what: Value) -> set[Value]:
    """What a dictionary holds, and the dictionaries in it."""
    todo, seen = list(options(what)), set[Value]()
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        if isinstance(one, Container):
            todo += [v for _, entry in trace.memory.entries(one) for v in options(entry)]
    return seen


def _never_given(trace: Trace, keeper: Value) -> bool:
    """Whether an object, and those that are made where it is, surely never get a state, nor are wound forward."""
    if not trace.known(keeper):
        return False
    for called in trace.calls(".load_state_dict", ".__setstate__"):
        for one in _receivers(called):
            if not isinstance(unwrapped(one), (*_OWNERS, Instance)) or _same(one, keeper):
                return False
    if any(
        loaded.into is not None and keeper in _inside(trace, loaded.into)
        for loaded in trace.of(Loaded)
    ):
        return False  # `dcp.load` gives it its state itself
    return not _wound_forward(trace, keeper)


def _may_know(given: Iterable[Value]) -> bool:
    """Whether what an object is made with may say where the run goes on: a function, or anything but settings."""
    return any(
        not isinstance(one, Optimizer | Literal | External | Module) and not _is_setting(one)
        for value in given
        for one in options(value)
    )


def _is_setting(value: Value) -> bool:
    given = (one for part in parts_along(value) for one in part.made_of[1:])
    return isinstance(root(value), External | Literal) and all(map(_is_setting, given))


def _same(one: Value, keeper: Value) -> bool:
    """Whether two objects are made at the same place, as those of two trainers are."""
    return _place(one) == _place(keeper)


def _receivers(called: Called) -> tuple[Value, ...]:
    return () if called.receiver is None else options(called.receiver)


def _wound_forward(trace: Trace, keeper: Value) -> bool:
    """Whether the program brings an object to its place by other means: its attributes, its arguments, its own steps."""
    if trace.memory.fields.get(keeper):
        return True
    first = next(iter(trace.of(Backward)), None)
    loads = trace.of(Loaded)
    stepping: set[CSTNode] = set()
    for called in trace.of(Called):
        given = (*called.arguments, *called.keywords.values())
        if called.result is keeper and _place(keeper)[-1] is called.at.node:
            late = any(loaded.order < called.order for loaded in loads)
            if called.open or "last_epoch" in called.keywords or (late and _may_know(given)):
                return True
        elif called.name == ".step" and any(_same(one, keeper) for one in _receivers(called)):
            stepping.add(called.at.node)
            if given or first is None or called.order < first.order or len(stepping) > 1:
                return True
        elif called.receiver is not None and called.receiver.owner is keeper:
            return True  # `scheduler.__dict__.update(…)`
    return False
