"""The fix of a script that chooses no device: the rank on the host chooses it."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import Fix, GroupStarted, InsertBefore, Layout, Moved, Name, Site, Trace

from ._devices import local_rank, own_local_rank, spelled
from ._fixes import call_of
from ._launch import from_environment, from_outside, from_torchrun, needs_local_rank

_INIT = "torch.distributed.init_process_group"
_PLAIN = (cst.Call, cst.Arg, cst.Attribute)
_STATEMENTS = (cst.Expr, cst.Assign, cst.AnnAssign, cst.Return)


def device_chosen(trace: Trace, moved: Moved, started: GroupStarted) -> Fix | None:
    """`torch.cuda.set_device` above the start of the process group, else above the first move of a model.

    None unless ranks come from the environment, and the call there is surely one for GPUs: it names NCCL or
    CUDA itself, and is made whenever its statement runs.
    """
    called = next((c for c in trace.calls(_INIT) if c.at.node is started.at.node), None)
    if called is None or not from_environment(called) or not from_outside(trace):
        return None
    site = _place(moved, started)
    if site is None:
        return None
    source, node = site.source, site.node
    own = own_local_rank(trace, source, node)
    rank = Name(own) if own else local_rank(source, node)
    setter = spelled(source, node, "torch", "cuda.set_device")
    insert = InsertBefore(source, node, f"{setter.text}({rank.text})")
    edits = (insert, *setter.edits, *rank.edits)
    title = "choose the device of the rank"
    if not from_torchrun(trace) or not (own or needs_local_rank(trace)):
        return Fix(title, edits, "unsafe", "whoever starts the ranks must set `LOCAL_RANK`")
    if source is not trace.source:
        return Fix(title, edits, "unsafe", "other scripts may come here with a device of their own")
    return Fix(title, edits, "safe")


def _place(moved: Moved, started: GroupStarted) -> Site | None:
    """The call above which to choose."""
    earlier = started.order < moved.order and moved.guards.implies(started.guards)
    if earlier and _says(started.at, "nccl") and _surely(started.at):
        return started.at
    named = _says(moved.at, "cuda") or moved.how == "cuda"
    return moved.at if named and _surely(moved.at) else None


def _says(site: Site, text: str) -> bool:
    """Whether a call is given a text as it stands there."""
    call = call_of(site)
    return call is not None and any(
        isinstance(a.value, cst.SimpleString) and a.value.evaluated_value == text for a in call.args
    )


def _surely(site: Site) -> bool:
    """Whether a call is made whenever its statement runs."""
    for around in Layout.of(site.source).ancestors(site.node):
        if isinstance(around, _STATEMENTS):
            return True
        if not isinstance(around, _PLAIN):
            return False
    return False
