"""``torch.distributed.checkpoint``: saving, loading, and the objects that it asks for their state.

Sources: torch/distributed/checkpoint/state_dict_saver.py, state_dict_loader.py, stateful.py, filesystem.py.
``save`` and ``load`` are collectives of all ranks unless ``no_dist=True`` or a process group is named; ``load`` fills what it is given and returns None.
The top-level values of the dict that are ``Stateful`` are asked for their ``state_dict()``, and after loading
given it back through ``load_state_dict``.
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.checkpoints.state_dicts import is_stateful
from fsdp2lint.meanings.distributed import of_all_ranks
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import choices, flag, fresh, instance, nothing, setting
from fsdp2lint.model.events import Awaited, Collective, Loaded, Saved
from fsdp2lint.model.values import Container, Future, Instance, Part, StateDict, Value

_DCP = "torch.distributed.checkpoint."


@calls(f"{_DCP}save", f"{_DCP}save_state_dict", f"{_DCP}async_save")
def save(call: Call) -> Value | None:
    """Writes one checkpoint from all ranks; ``async_save`` returns a future at once."""
    what = call.get(0, "state_dict")
    if what is None:
        return None
    asked = _ask_for_states(call, what)
    states = tuple(dict.fromkeys((*call.states(what), *_inside(call, asked))))
    future = Future(call.name) if call.name.endswith("async_save") else None
    _collective(call, what)
    call.emit(Saved, what=what, via=call.name, path=_path(call), states=states, future=future)
    return future if future is not None else nothing(call)


@calls(f"{_DCP}load", f"{_DCP}load_state_dict")
def load(call: Call) -> Value | None:
    """Reads into the tensors of the dict, in place."""
    into = call.get(0, "state_dict")
    if into is None:
        return None
    asked = _ask_for_states(call, into)
    states = tuple(dict.fromkeys((*call.states(into), *_inside(call, asked))))
    result = nothing(call)
    _collective(call, into)
    call.emit(Loaded, via=call.name, into=into, path=_path(call), result=result, states=states)
    for holder, state in asked:
        call.run(call.machine.get(holder, "load_state_dict", call.site), state)
    return result


@calls(f"{_DCP}load_sharded_optimizer_state_dict")
def load_sharded_optimizer(call: Call) -> Value | None:
    """Reads a new optimizer state (of FSDP1) from a reader."""
    made = fresh(call)
    storage = call.get(2, "storage_reader")
    path = setting(call, storage, "path") if isinstance(storage, Instance) else None
    call.emit(Collective, name=call.name, about=None)
    call.emit(Loaded, via=call.name, into=None, path=path, result=made)
    return made


def _collective(call: Call, about: Value) -> None:
    alone = call.keywords.get("no_dist")
    together = alone is None or flag(alone) is False
    if together and of_all_ranks(call.keywords.get("process_group")):
        call.emit(Collective, name=call.name, about=about)


def _ask_for_states(call: Call, what: Value) -> list[tuple[Value, Value]]:
    """The stateful objects at the top of the dict, each with the state that it gives."""
    found = []
    for entry in call.items(what) if isinstance(what, Container) else ():
        for one in call.each(entry):
            if is_stateful(call, one):
                found.append((one, call.run(call.machine.get(one, "state_dict", call.site))))
    return found


def _inside(call: Call, asked: list[tuple[Value, Value]]) -> tuple[StateDict, ...]:
    return tuple(state for _, given in asked for state in call.states(given))


def _path(call: Call) -> Value | None:
    """The checkpoint id, or the path of the writer or reader."""
    given = call.keywords.get("checkpoint_id")
    if given is not None:
        return given
    storage = call.get(1, "storage_reader" if "load" in call.name else "storage_writer")
    return setting(call, storage, "path") if isinstance(storage, Instance) else None


@calls(
    f"{_DCP}FileSystemReader",
    f"{_DCP}FileSystemWriter",
    f"{_DCP}HuggingFaceStorageReader",
    f"{_DCP}HuggingFaceStorageWriter",
    f"{_DCP}format_utils.BroadcastingTorchSaveReader",
)
def storage(call: Call) -> Value | None:
    """Readers and writers know their path."""
    made = instance(call)
    path = call.get(0, "checkpoint_id")
    if path is not None:
        made.keep(".path", path)
    return made


@calls(
    f"{_DCP}DefaultSavePlanner",
    f"{_DCP}DefaultLoadPlanner",
    f"{_DCP}_EmptyStateDictLoadPlanner",
    f"{_DCP}format_utils.DynamicMetaLoadPlanner",
    f"{_DCP}AsyncCheckpointerType",
)
def planner(call: Call) -> Value | None:
    """Plain helpers."""
    return instance(call)


@method("result", "exception")
def result(call: Call) -> Value | None:
    """Waits for an asynchronous save (``concurrent.futures.Future``, or ``AsyncSaveResponse.upload_completion``)."""
    found = False
    for one in call.each(call.receiver):
        future = one.owner if _is_upload(one) else one
        if isinstance(future, Future):
            call.emit(Awaited, future=future)
            found = True
    return nothing(call) if found else None


def _is_upload(value: Value) -> bool:
    return isinstance(value, Part) and value.key == ".upload_completion"


@calls("concurrent.futures.wait", "concurrent.futures.as_completed")
def wait(call: Call) -> Value | None:
    """Waits for all futures of a list."""
    found = [f for entry in _entries(call) for f in choices(entry) if isinstance(f, Future)]
    for future in found:
        call.emit(Awaited, future=future)
    return call.machine.unknown() if found else None


def _entries(call: Call) -> list[Value]:
    given = call.get(0, "fs")
    return call.items(given) if isinstance(given, Container) else []
