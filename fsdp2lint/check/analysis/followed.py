"""Reads off each trace what was followed of a program (:mod:`fsdp2lint.check.coverage`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from fsdp2lint.check.coverage import KINDS, TRAINING, Lost, Program, Seen, merged
from fsdp2lint.check.diagnostics import Place, shown
from fsdp2lint.model import events
from fsdp2lint.model.trace import options
from fsdp2lint.model.values import (
    Class,
    External,
    Function,
    Instance,
    Module,
    Optimizer,
    Part,
    Unknown,
    Value,
    unwrapped,
)

if TYPE_CHECKING:
    from fsdp2lint.model.trace import Trace
    from fsdp2lint.source.source import Site

_DCP = "torch.distributed.checkpoint."

_ROLES = {"the model": "models", "the optimizer": "optimizers"}
"""What the configuration calls functions that give one."""

Deed = tuple[str, events.Event, str, tuple[Value, ...]]
"""Something that a program does: its kind, where, in words, and the values behind it."""


class Followed:
    """What the traces of a run show of its programs."""

    def __init__(self, skipped: Sequence[str] = ()) -> None:
        self._found = [_skipped(file) for file in skipped]
        self._idle: set[str] = set()
        """Files that were run as programs and did nothing that trains."""
        self._detached: set[str] = set()
        """Those of them whose own functions train, which nothing that was followed calls."""

    def add(self, trace: Trace) -> None:
        """Read off a trace what it shows."""
        file = shown(trace.source.path)
        is_program = trace.entry == "__main__"
        sights = _sights(trace)
        unseen = is_program and (
            _lost_training(trace, sights) or (trace.cut and _seems_to_train(trace))
        )
        if not sights and not unseen:
            if is_program and "__main__" in trace.source.said:
                self._idle.add(file)
            return
        lost = tuple(dict.fromkeys(_losses(trace, sights))) if is_program else ()
        if not is_program and file in self._idle:
            is_program = True
            if _is_test(trace.entry):  # the runner of the tests calls it so
                lost = tuple(dict.fromkeys(_losses(trace, sights)))
            elif file not in self._detached:
                self._detached.add(file)
                inside = (s.event.moment.calls[0] for s in sights if s.event.moment.calls)
                start = _spot(next(inside, sights[0].event.at))
                why = f"nothing that was followed from `__main__` calls `{trace.entry}`"
                lost = (Lost(f"the way to `{trace.entry}`", why, *start),)
        seen = {
            kind: tuple(s.seen._replace(reached=is_program) for s in sights if s.kind == kind)
            for kind in KINDS
        }
        self._found.append(Program(file, is_program, **seen, lost=lost))

    def programs(self) -> tuple[Program, ...]:
        """The programs, by their files."""
        return merged(self._found)


def _seems_to_train(trace: Trace) -> bool:
    """Whether a program of which no training was seen is likely to train further on."""
    source = trace.source
    return "train" in source.path or any(word in source.said for word in ("optimizer", "_shard"))


def _skipped(file: str) -> Program:
    why = "more programs lead to the analysed files than are run; check this one by its name"
    return Program(shown(file), True, lost=(Lost("the run", why, shown(file), 1),))


def _is_test(entry: str) -> bool:
    return entry.startswith(("Test", "test_")) or entry.endswith(("Test", "Tests", "TestCase"))


class _Sight:
    """What the events at one place show together."""

    def __init__(self, kind: str, deed: Deed, at: Site) -> None:
        self.kind = kind
        self.event = deed[1]
        self.at = at
        self.what = deed[2]
        self.values = deed[3]
        self.resolved = self.linked = False

    @property
    def seen(self) -> Seen:
        """It as plain data."""
        return Seen(self.what, *_spot(self.at), self.resolved, self.linked)


def _sights(trace: Trace) -> list[_Sight]:
    """What a program does, a place each, in the order in which it first happens."""
    sharded = [unwrapped(m) for e in trace.of(events.Sharded) for m in e.modules]
    sharded += [unwrapped(w.module) for w in trace.of(events.Wrapping) if w.by == "fsdp1"]
    linked = _linked_to(trace, set(sharded))
    found: dict[tuple[str, cst.CSTNode], _Sight] = {}
    for deed in _deeds(trace):
        kind, event, _, values = deed
        for at in (event.at, *_steps_around(event)):
            sight = found.get((kind, at.node))
            if sight is None:
                sight = found[kind, at.node] = _Sight(kind, deed, at)
            if not sight.resolved and (not values or any(map(is_resolved, values))):
                sight.resolved, sight.what = True, deed[2]
            if not sight.linked:
                sight.linked = kind == "shards" or any(map(linked, values))
    return list(found.values())


def _steps_around(event: events.Event) -> Iterator[Site]:
    """The calls of ``step`` of the project's own objects that lead to the step of an optimizer: each is that step."""
    if isinstance(event, events.Stepped):
        for site in reversed(event.moment.calls):
            called = site.node.func if isinstance(site.node, cst.Call) else None
            if not (isinstance(called, cst.Attribute) and called.attr.value == "step"):
                return
            yield site


def _deeds(trace: Trace) -> Iterator[Deed]:
    for sharded in trace.of(events.Sharded):
        yield "shards", sharded, sharded.words(), sharded.modules
    for wrapping in trace.of(events.Wrapping):
        if wrapping.by == "fsdp1":
            yield "shards", wrapping, wrapping.words(), (wrapping.module,)
    for built in trace.of(events.OptimizerBuilt):
        yield "optimizers", built, built.words(), tuple(p.of for p in built.over)
    for stepped in trace.of(events.Stepped):
        over = (
            p.of for o in options(stepped.optimizer) if isinstance(o, Optimizer) for p in o.over
        )
        yield "steps", stepped, stepped.words(), tuple(over) or (stepped.optimizer,)
    for trained in trace.of(events.Collective):
        if trained.name == ".train":  # of a Trainer, which shards and steps by itself
            yield "steps", trained, "trained by the Trainer", ()
    for taken in trace.of(events.StateDictTaken):
        if taken.state.via != ".state_dict" or is_resolved(taken.state.of):
            yield "states", taken, taken.words(), (taken.state.of,)
    saved: list[events.Saved | events.Loaded] = [*trace.of(events.Saved), *trace.of(events.Loaded)]
    for written in saved:
        if written.via.startswith(_DCP) or written.states:
            yield "states", written, written.words(), tuple(s.of for s in written.states)
    for restored in trace.of(events.Restored):
        if restored.via.startswith(_DCP) or is_resolved(restored.into):
            yield "states", restored, restored.words(), (restored.into,)


def _linked_to(trace: Trace, sharded: set[Value]) -> Callable[[Value], bool]:
    around = {holder for one in sharded for holder in trace.around(one)}

    def linked(value: Value) -> bool:
        for one in map(unwrapped, options(value)):
            for model in [p.of for p in one.over] if isinstance(one, Optimizer) else [one]:
                if unwrapped(model) in around or not trace.around(model).isdisjoint(sharded):
                    return True
        return False

    return linked


def is_resolved(value: Value) -> bool:
    """Whether it is known what a model, a part of one, or the model of an optimizer is."""
    return any(_is_known(unwrapped(one)) for one in options(value))


def _is_known(value: Value) -> bool:
    if isinstance(value, Optimizer):
        return any(is_resolved(p.of) for p in value.over)
    if isinstance(value, Instance) and isinstance(value.cls, Class):
        return True
    while isinstance(value, Part):
        if value.operation not in ("", "[]", "getattr"):
            return False
        value = unwrapped(value.owner)
    return isinstance(value, Module)


# -- what was lost ----------------------------------------------------------------------------------------


def _losses(trace: Trace, sights: list[_Sight]) -> Iterator[Lost]:
    if trace.cut is not None:
        limit, at = trace.cut
        yield Lost("the run", f"{limit}; what comes later was followed only in part", *_spot(at))
    for path, (limit, at) in trace.unread.items():
        yield Lost(f"the module `{os.path.basename(path)}`", limit, *_spot(at))
    for unsaid in trace.of(events.SettingsOpen):
        yield Lost(unsaid.what, unsaid.why, *_spot(unsaid.at))
    training = _lost_training(trace, sights)
    if training is not None:
        yield training
    for sight in sights:
        if not sight.resolved:
            yield _loss(sight)


def _lost_training(trace: Trace, sights: list[_Sight]) -> Lost | None:
    """What a program has go backward with the loss (``engine.backward(loss)``), where nobody knows what that is, and no
    step of an optimizer was seen.
    """
    if any(sight.kind == "steps" for sight in sights):
        return None
    for called in trace.of(events.Called):
        engine = called.receiver if called.name == ".backward" and called.arguments else None
        root = None if engine is None else _root(options(engine)[0])
        if isinstance(root, Unknown) and root.born is not None:
            why = f"`{_short(root.born.code)}` could not be resolved"
            return Lost(TRAINING, why, *_spot(root.born))
    return None


def _loss(sight: _Sight) -> Lost:
    name = _name(sight)
    role = _ROLES.get(name, "")
    here = _spot(sight.event.at)
    for value in sight.values:
        for one in options(value):
            root = _root(one)
            if isinstance(root, Unknown) and root.born is not None:
                born = root.born
                why = f"`{_short(born.code)}` could not be resolved"
                return Lost(name, why, *_spot(born), _remedy(role, root, sight.event))
            if isinstance(root, External | Instance) and (called := _outside_name(root)):
                remedy = f'{role} = ["{called}"]' if role and _is_made_by_a_call(one) else ""
                return Lost(name, f"`{called}` is not part of the project", *here, remedy)
            if isinstance(one, Optimizer):
                why = "what it is built of comes from code that was not followed"
                return Lost(f"the parameters of `{one.words()}`", why, *here)
            if isinstance(root, Unknown):
                why = f"`{one.words()}` comes from code that was not followed"
                return Lost(name, why, *here)
            return Lost(name, f"no code that was followed sets `{one.words()}`", *here)
    return Lost(
        name, f"`{_short(sight.event.at.code)}` gets it from code that was not followed", *here
    )


def _name(sight: _Sight) -> str:
    if sight.kind == "states":
        return "the checkpoint's state"
    if not sight.values:
        return "the parameters"
    stepped = sight.event
    is_built = isinstance(stepped, events.Stepped) and stepped.optimizer not in sight.values
    return "the optimizer" if sight.kind == "steps" and not is_built else "the model"


def _root(value: Value) -> Value:
    value = unwrapped(value)
    while isinstance(value, Part):
        value = unwrapped(value.owner)
    return value


def _is_made_by_a_call(value: Value) -> bool:
    """Whether a value is what a function outside the project returned, not something inside of that."""
    value = unwrapped(value)
    key = value.key if isinstance(value, Part) else None
    return isinstance(key, tuple) and key[0] == "call" and isinstance(value.owner, External)


def _outside_name(value: Value) -> str:
    cls = value.cls if isinstance(value, Instance) else value
    return cls.words() if isinstance(cls, External) else ""


def _remedy(role: str, lost: Unknown, used: events.Event) -> str:
    """The entry of the configuration that says what the code that gave a value makes."""
    name = lost.given_by if "." in lost.given_by.strip(".") else ""
    if not name and lost.inside is not None and lost.inside not in used.moment.inside:
        name = _dotted(lost.inside)
    return f'{role} = ["{name}"]' if role and name else ""


def _dotted(function: Function) -> str:
    """The name of a function as the configuration writes it."""
    path = os.path.relpath(function.scope.source.path).replace(os.sep, "/")
    module = path.removesuffix(".py").removesuffix("/__init__").split("/")
    home = [function.home.name] if function.home is not None else []
    return ".".join((*filter(str.isidentifier, module), *home, function.name))


def _spot(site: Site) -> tuple[str, int]:
    """File and line of a place, as a reader finds them."""
    source, at = site.source, site.range
    if source.document is not None:
        source, at = source.document.place(source, at)
    return Place(source, at).part, at.line


def _short(code: str) -> str:
    return code if len(code) <= 60 else code[:57] + "..."
