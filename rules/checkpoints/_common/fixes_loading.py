"""Files of whole checkpoints that every rank reads: mapped instead of copied into the memory of each."""

from __future__ import annotations

from fsdp2lint.api import Arguments, Edit, Loaded, options

from ..._common.fixes import call_of
from .checkpoints import is_path


def mapped(loaded: Loaded) -> Edit | None:
    """``mmap=True`` for a ``torch.load`` that surely gets a path and says nothing of it."""
    call = call_of(loaded.at)
    if call is None or loaded.via != "torch.load" or loaded.path is None:
        return None
    said = any(one.keyword is not None and one.keyword.value == "mmap" for one in call.args)
    if said or any(one.star for one in call.args):
        return None
    if not all(is_path(one) for one in options(loaded.path)):
        return None
    return Arguments(loaded.at.source, call).add("mmap", "True")
