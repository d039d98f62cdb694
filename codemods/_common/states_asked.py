"""Which kind of state dict FSDP1 was asked for at some point of a run.

Source: torch/distributed/fsdp/api.py (``StateDictType``, the ``*Config`` classes and their defaults),
torch/distributed/fsdp/fully_sharded_data_parallel.py (``state_dict_type``, ``set_state_dict_type``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Either,
    Event,
    External,
    Guard,
    Guards,
    Instance,
    Literal,
    Loaded,
    Part,
    Saved,
    StateDict,
    StateDictTaken,
    Trace,
    Value,
    Wrapping,
    is_no_instance,
    options,
    rank_dependent,
    unwrapped,
)

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
CONTEXT = f"{FSDP1}.state_dict_type"
SETTER = f"{FSDP1}.set_state_dict_type"
KINDS = "torch.distributed.fsdp.StateDictType"

FULL, SHARDED, LOCAL = "FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"

LOCAL_WHY = "LOCAL_STATE_DICT has no counterpart: its flat shards can be read under FSDP1 only"
LOCAL_TODO = "convert old checkpoints under FSDP1, then use get_model_state_dict and dcp here"
LOCAL_CHANGED = (
    "shards of whole parameters take the place of flat ones;"
    " what was saved with LOCAL_STATE_DICT must be converted under FSDP1 to be read"
)
_DCP = "torch.distributed.checkpoint."


@dataclass(frozen=True, slots=True)
class Asked:
    """``kind`` is empty when only the run knows it; ``by`` is the call that asked, if any did.

    ``rank0_only`` and ``offloaded`` are None when they are not known.
    """

    kind: str
    rank0_only: bool | None
    offloaded: bool | None
    by: Called | None = None
    explicit: bool = False
    """Whether the script itself says that the state comes to the CPU."""
    optimizer: bool = False
    """Whether it is about the state of an optimizer, which has a configuration of its own."""
    in_some_runs: bool = False
    """Whether a setting asked, but not in all runs that come here."""
    chosen: Guard | None = None
    """What decides in the run that the state is whole, where one of two contexts is open."""
    unlike: bool = False
    """Whether one of several contexts is open that ask for different kinds, and no test that is known says which."""


def asked(trace: Trace, event: Event, *, optimizer: bool = False) -> Asked:
    """What is in force at ``event``: the innermost context, else the last setter, else full everywhere.

    Flat shards that only distributed checkpoints or files of each rank hold are no more than shards.
    """
    contexts = _open_at(trace, event)
    if len(contexts) > 1:
        return _by_one_of(trace, event, contexts, optimizer=optimizer)
    by = contexts[0][1] if contexts else _setter(trace, event)
    if by is None:
        return Asked(FULL, False, optimizer)
    return _by(trace, event, by, in_context=bool(contexts), optimizer=optimizer)


def _by_one_of(
    trace: Trace, event: Event, contexts: list[tuple[Guards, Called]], *, optimizer: bool
) -> Asked:
    """What one of several contexts asks for: a function chose which is entered."""
    every = [_by(trace, event, by, in_context=True, optimizer=optimizer) for _, by in contexts]
    first = every[0]
    if all(replace(one, by=first.by) == first for one in every):
        return first
    whole = [i for i, one in enumerate(every) if one.kind == FULL]
    if len(every) == 2 and len(whole) == 1 and every[1 - whole[0]].kind == SHARDED:
        of_whole, of_shards = contexts[whole[0]][0], contexts[1 - whole[0]][0]
        tests = [g for c in of_whole.clauses if len(c) == 1 for g in c]
        apart = [g for g in tests if frozenset((~g,)) in of_shards.clauses]
        if len(apart) == 1:
            return replace(every[whole[0]], kind="", chosen=apart[0])
    return replace(first, kind="", unlike=True)


def _by(trace: Trace, event: Event, by: Called, *, in_context: bool, optimizer: bool) -> Asked:
    """What a context, or the last setter, asks for."""
    offload = (
        optimizer  # FullOptimStateDictConfig offloads unless told otherwise, the model's does not
    )
    kind = kind_of(by)
    if kind == LOCAL and (_is_for_folders(trace, event) or _is_for_files_of_ranks(trace, event)):
        kind = SHARDED
    config = by.argument(3 if optimizer else 2, _CONFIGS[optimizer])
    given = config is not None and not (isinstance(config, Literal) and config.value is None)
    if not in_context and (kind != FULL or given) and _in_some_runs(trace, by, event):
        if kind == FULL:  # so is the one that nobody asks for
            return Asked(FULL, None, None, by, optimizer=optimizer)
        return Asked("", None, None, by, optimizer=optimizer, in_some_runs=True)
    if by.open:
        return Asked(kind, None, None, by, optimizer=optimizer)
    if not given:
        return Asked(kind, False, offload, by, optimizer=optimizer)
    return Asked(
        kind,
        _switch(trace, config, "rank0_only", False),
        _switch(trace, config, "offload_to_cpu", offload),
        by,
        _switch(trace, config, "offload_to_cpu", False) is True,
        optimizer,
    )


def accounts(
    events: Sequence[tuple[Trace, Event]], call: cst.CSTNode, why: str
) -> tuple[Account, ...]:
    """What became of a call; a line of its own where no setting of FSDP1 names the kind, so nothing else tells of it."""
    source = events[0][1].at.source
    plain = Account(source, call, "changed", why)
    if any(asked(trace, event).by is not None for trace, event in events):
        return (plain,)
    default = f"{why}; no setting names the kind, and the full state dict is FSDP1's default"
    return (plain, Account(source, call, "changed", default, own=True))


def _is_for_folders(trace: Trace, event: Event) -> bool:
    """Whether a state of a model goes into and comes from nothing but distributed checkpoints."""
    state = getattr(event, "state", None)
    states = [one for one in options(state) if isinstance(one, StateDict)] if state else []
    uses: list[Saved | Loaded] = [*trace.of(Saved), *trace.of(Loaded)]
    for one in states:
        vias = [use.via for use in uses if one in use.states]
        if not vias or any(not via.startswith(_DCP) for via in vias) or any(trace.escapes(one)):
            return False
    return bool(states) and all(one.kind == "model" for one in states)


def _is_for_files_of_ranks(trace: Trace, event: Event) -> bool:
    """Whether a state of a model goes into and comes from nothing but files that each rank has of its own."""
    state = getattr(event, "state", None)
    states = options(state) if state is not None else ()
    uses: list[Saved | Loaded] = []
    for one in states:
        whole = [loaded for loaded in trace.of(Loaded) if is_of(one, loaded.result)]
        uses += whole or [saved for saved in trace.of(Saved) if one in saved.states]
        if isinstance(one, StateDict) and any(trace.escapes(one)):
            return False
    own = (use.path is not None and rank_dependent(use.path) for use in uses)
    plain = (use.via in ("torch.save", "torch.load") for use in uses)
    return bool(uses) and all(own) and all(plain)


def is_of(value: Value, whole: Value) -> bool:
    """Whether a value is another, or an entry of it."""
    one: Value | None = value
    while one is not None and one is not whole:
        one = one.owner if isinstance(one, Part) else None
    return one is not None


_CONFIGS = {False: "state_dict_config", True: "optim_state_dict_config"}


def context_of(trace: Trace, event: Event) -> Called | None:
    """The call of the innermost ``state_dict_type`` that is open at ``event``, or of the first that may be."""
    return next((called for _, called in _open_at(trace, event)), None)


def contexts_of(trace: Trace, event: Event) -> list[Called]:
    """The calls of which one is the innermost ``state_dict_type`` that is open at ``event``."""
    return [called for _, called in _open_at(trace, event)]


def _open_at(trace: Trace, event: Event) -> list[tuple[Guards, Called]]:
    for manager in reversed(event.within):
        ways = manager.options if isinstance(manager, Either) else ((event.guards, manager),)
        found = [
            (guards, called)
            for guards, one in ways
            if is_context(one) and not guards.excludes(event.guards)
            for called in trace.calls(CONTEXT)
            if called.result is one
        ]
        if found:
            return found
    return []


def is_context(value: Value) -> bool:
    """Whether a value is what ``state_dict_type`` returned."""
    cls = value.cls if isinstance(value, Instance) else None
    return isinstance(cls, External) and cls.name == CONTEXT


def _setter(trace: Trace, event: Event) -> Called | None:
    if not any(True for _ in trace.calls(SETTER)):
        return None
    for called in trace.before(event, Called):
        if called.name == SETTER and not _about_another(called, event):
            return called
    return None


def _in_some_runs(trace: Trace, setter: Called, event: Event) -> bool:
    """Whether a run may come to ``event`` with a model of FSDP1 and without the setting."""
    held = event.guards
    for wrapping in trace.before(setter, Wrapping):
        held = held.and_(wrapping.guards) if wrapping.by == "fsdp1" else held
    return not held.implies(setter.guards)


def no_module(taken: StateDictTaken) -> bool:
    """Whether the script comes here only with what is no module: a scheduler, a sampler, its own progress."""
    return is_no_instance(taken, taken.state.of, "torch.nn.Module")


def setter_of(trace: Trace, event: Event, model: Value) -> Called | None:
    """The last ``set_state_dict_type`` of that very model before ``event``."""
    if not any(True for _ in trace.calls(SETTER)):
        return None
    for called in trace.before(event, Called):
        given = called.argument(0, "module") if called.name == SETTER else None
        if given is not None and set(options(given)) & set(options(model)):
            return called
    return None


def _about_another(called: Called, event: Event) -> bool:
    """Whether a setter surely names another model than the event is about."""
    model = called.argument(0, "module")
    state = getattr(event, "state", None)
    about = getattr(event, "into", None) or getattr(state, "of", None)
    known = (options(model) if model is not None else (), options(about) if about else ())
    both = [{unwrapped(v) for v in values if isinstance(v, Instance)} for values in known]
    return bool(both[0] and both[1] and not both[0] & both[1])


def is_local(by: Called) -> bool:
    """Whether a context or a setter asks for flat shards."""
    return kind_of(by) == LOCAL


def kind_of(by: Called) -> str:
    """The kind that a context or a setter asks for; empty when only the run knows it."""
    value = by.argument(1, "state_dict_type")
    if isinstance(value, External) and value.name.startswith(KINDS + "."):
        return value.name.rpartition(".")[2]
    named = _KIND.fullmatch(value.words()) if value is not None else None
    return named[1] if named is not None else ""


_KIND = re.compile(rf"(?:\w+\.)*StateDictType\.({FULL}|{SHARDED}|{LOCAL})")
"""How a kind is written, also where the file forgot to import it or takes it from a file that is not there."""


def _switch(trace: Trace, config: Value | None, name: str, default: bool) -> bool | None:
    sides = (
        {_one_switch(trace, one, name, default) for one in options(config)} if config else {None}
    )
    return sides.pop() if len(sides) == 1 else None


def _one_switch(trace: Trace, config: Value, name: str, default: bool) -> bool | None:
    if isinstance(config, Literal) and config.value is None:
        return default
    if not isinstance(config, Instance):
        return None
    if f".{name}" in trace.memory.fields.get(config, {}):
        return None  # set by an assignment later
    value = config.part(f".{name}")
    if isinstance(value, Literal) and isinstance(value.value, bool):
        return value.value
    made = config.born.node if config.born is not None else None
    if isinstance(made, cst.Call) and all(a.keyword and a.keyword.value != name for a in made.args):
        return default
    return None
