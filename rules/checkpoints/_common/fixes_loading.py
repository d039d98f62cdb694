"""Files of whole checkpoints that every rank reads: mapped instead of copied into the memory of each."""

from __future__ import annotations

from fsdp2lint.api import Arguments, Edit, Literal, Loaded, Saved, Trace, Value, argument, options

from ..._common.fixes import call_of
from .checkpoints import is_path


def mapped(trace: Trace, loaded: Loaded) -> Edit | None:
    """``mmap=True`` for a ``torch.load`` that surely gets a path and says nothing of it.

    Not where the script may write the file again: who reads the mapped tensors then dies of a bus error.
    """
    call = call_of(loaded.at)
    if call is None or loaded.via != "torch.load" or loaded.path is None:
        return None
    if argument(call, -1, "mmap") or any(one.star for one in call.args):
        return None
    if not all(is_path(one) for one in options(loaded.path)):
        return None
    written = (s.path for s in trace.after(loaded, Saved) if s.via == "torch.save")
    if not all(apart(loaded.path, path) for path in written):
        return None
    return Arguments(loaded.at.source, call).add("mmap", "True")


def apart(one: Value | None, other: Value | None) -> bool:
    """Whether two paths are known and differ."""
    return isinstance(one, Literal) and isinstance(other, Literal) and one.value != other.value
