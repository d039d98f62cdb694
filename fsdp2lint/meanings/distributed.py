"""Process groups and collectives of ``torch.distributed``.

Sources: torch/distributed/distributed_c10d.py, torch/distributed/tensor/_api.py (``DTensor``).
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.families import family, is_class_name
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import choices, flag, fresh, instance, name_of, nothing, same, text
from fsdp2lint.model.events import Collective, GroupEnded, GroupStarted
from fsdp2lint.model.guards import ALWAYS
from fsdp2lint.model.values import Container, Literal, Part, Value

_DIST = "torch.distributed."
_GROUP = "default process group"
_OF_ALL_RANKS = "process group of all ranks"

_COLLECTIVES = {
    "all_gather": 2,
    "all_gather_coalesced": 2,
    "all_gather_into_tensor": 2,
    "all_gather_object": 2,
    "all_reduce": 2,
    "all_reduce_coalesced": 2,
    "all_to_all": 2,
    "all_to_all_single": 4,
    "barrier": 0,
    "broadcast": 2,
    "broadcast_object_list": 2,
    "gather": 3,
    "gather_object": 3,
    "monitored_barrier": 0,
    "reduce": 3,
    "reduce_scatter": 3,
    "reduce_scatter_tensor": 3,
    "scatter": 3,
    "scatter_object_list": 3,
}
"""The collectives, with the position of their ``group``."""


# -- the process group ------------------------------------------------------------------------------------


@calls(f"{_DIST}init_process_group")
def init_process_group(call: Call) -> Value | None:
    """Starts the default group; without a backend both gloo and nccl are used as the devices ask."""
    backend = text(call.get(0, "backend"))
    call.emit(GroupStarted, backend=backend)
    _remember(call, True)
    return nothing(call)


@calls(f"{_DIST}destroy_process_group")
def destroy_process_group(call: Call) -> Value | None:
    """Ends the default group, or one of its own when a group is named."""
    group = call.get(0, "group")
    if _is_none(group):
        call.emit(GroupEnded)
        _remember(call, False)
    return nothing(call)


@calls(f"{_DIST}is_initialized")
def is_initialized(call: Call) -> Value | None:
    """Known where the script itself has started or ended the group."""
    _unknown_before(call)
    memory = call.machine.memory
    return memory.read(call.machine.external(_GROUP), "started", call.machine.here) or same(call)


@calls(f"{_DIST}is_available")
def is_available(call: Call) -> Value | None:
    """Surely where the script itself has started the group."""
    memory = call.machine.memory
    started = memory.read(call.machine.external(_GROUP), "started", call.machine.here)
    return started if isinstance(started, Literal) and started.value else same(call)


def _unknown_before(call: Call) -> None:
    group = call.machine.external(_GROUP)
    memory = call.machine.memory
    if memory.read(group, "started", ALWAYS) is None:
        asked = call.machine.external(f"{_DIST}is_initialized").part(("call",))
        memory.write(group, "started", ALWAYS, asked)


def _remember(call: Call, started: bool) -> None:
    _unknown_before(call)
    group = call.machine.external(_GROUP)
    value = call.machine.literal(started)
    call.machine.memory.write(group, "started", call.machine.here, value)


@calls(f"{_DIST}new_group", f"{_DIST}new_subgroups", f"{_DIST}new_subgroups_by_enumeration")
def new_group(call: Call) -> Value | None:
    """All ranks must make each group, members or not; without ``ranks`` all are members."""
    call.emit(Collective, name=call.name, about=None)
    whole = call.name == f"{_DIST}new_group" and _is_none(call.get(0, "ranks"))
    return fresh(call, _OF_ALL_RANKS if whole else "")


@family(_DIST)
def other(call: Call) -> Value | None:
    """Classes (``TCPStore``, ``ReduceOp`` …) hold nothing of the model; questions answer alike."""
    end = call.name.removeprefix(_DIST)
    if "." in end:
        return None
    if is_class_name(call.name):
        return instance(call)
    if end.startswith(("is_", "get_")):
        return same(call)
    return fresh(call) if end in ("send", "recv", "isend", "irecv", "batch_isend_irecv") else None


# -- collectives --------------------------------------------------------------------------------------------


@calls(*(f"{_DIST}{name}" for name in _COLLECTIVES))
def collective(call: Call) -> Value | None:
    """Every rank must make the call, unless it names a group; with ``async_op=True`` it returns a handle."""
    position = _COLLECTIVES[call.name.rpartition(".")[2]]
    if of_all_ranks(call.get(position, "group")):
        about = next((v for v in call.args if not isinstance(v, Literal)), None)
        call.emit(Collective, name=call.name, about=about or call.get(-1, "tensor"))
    if call.name in _RECEIVING:
        _received(call)
    asynchronous = call.keywords.get("async_op")
    if asynchronous is None or flag(asynchronous) is False:
        return nothing(call)
    return fresh(call)


_RECEIVING = {
    f"{_DIST}all_gather_object": (0, "object_list"),
    f"{_DIST}broadcast_object_list": (0, "object_list"),
    f"{_DIST}scatter_object_list": (0, "scatter_object_output_list"),
}
"""The collectives that write what other ranks sent into a list, with the list's argument."""


def _received(call: Call) -> None:
    """What a list held before is gone: its entries come from other ranks now."""
    position, keyword = _RECEIVING[call.name]
    memory, received = call.machine.memory, fresh(call)
    for one in choices(call.get(position, keyword)):
        for key, _ in list(memory.entries(one)) if isinstance(one, Container) else ():
            memory.write(one, key, call.machine.here, received.part(key))


def of_all_ranks(group: Value | None) -> bool:
    """Whether a ``group`` argument surely means a group in which all ranks are, such as the default one."""
    return all(
        _is_none(one)
        or name_of(one) in ("torch.distributed.group.WORLD", "torch.distributed.GroupMember.WORLD")
        or (isinstance(one, Part) and name_of(one.owner) == _OF_ALL_RANKS)
        for one in choices(group)
    )


def _is_none(value: Value | None) -> bool:
    return value is None or (isinstance(value, Literal) and value.value is None)


@family("torch.distributed._functional_collectives.", "torch.distributed.nn.functional.")
def functional(call: Call) -> Value | None:
    """The same as functions that return a tensor; they always name a group."""
    if call.name.rpartition(".")[2] not in {*_COLLECTIVES, "all_gather_tensor"}:
        return None
    return fresh(call)


# -- DTensor --------------------------------------------------------------------------------------------------


@method("full_tensor")
def full_tensor(call: Call) -> Value | None:
    """Gathers a DTensor on all ranks; only DTensors have it."""
    receiver = call.receiver
    if receiver is None or isinstance(receiver, Container | Literal):
        return None
    made: Value | None = receiver
    while made is not None:
        if made.key == ".full_tensor()":
            return receiver  # gathered before: no DTensor any more
        made = made.owner
    call.emit(Collective, name=call.name, about=receiver)
    return receiver.part(".full_tensor()")


@method("redistribute")
def redistribute(call: Call) -> Value | None:
    """Towards ``Replicate()`` a DTensor is gathered."""
    receiver, placements = call.receiver, call.get(1, "placements")
    if receiver is None or not isinstance(placements, Container):
        return None
    entries = [one for entry in call.items(placements) for one in choices(entry)]
    if any(name_of(one) == "torch.distributed.tensor.Replicate" for one in entries):
        call.emit(Collective, name=call.name, about=receiver)
    return receiver.part(".redistribute(…)")


@method("to_local")
def to_local(call: Call) -> Value | None:
    """The shard of a DTensor that this rank holds."""
    receiver = call.receiver
    return None if receiver is None else receiver.part(".to_local()")


@family("torch.distributed.tensor.")
def dtensor(call: Call) -> Value | None:
    """Placements are plain data; ``distribute_tensor`` and its like make tensors."""
    if is_class_name(call.name):
        return instance(call)
    return fresh(call)
