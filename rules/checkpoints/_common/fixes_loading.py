"""Files of whole checkpoints that every rank reads: mapped instead of copied into the memory of each."""

from __future__ import annotations

from fsdp2lint.api import Arguments, Edit, External, Literal, Loaded, Part, Value, options

from ..._common.fixes import call_of

_OF_THE_PROGRAM = ("parse_args", "argparse.", "os.path.", "os.environ", "os.getenv", "pathlib.")


def mapped(loaded: Loaded) -> Edit | None:
    """``mmap=True`` for a ``torch.load`` that surely gets a path and says nothing of it."""
    call = call_of(loaded.at)
    if call is None or loaded.via != "torch.load" or loaded.path is None:
        return None
    said = any(one.keyword is not None and one.keyword.value == "mmap" for one in call.args)
    if said or any(one.star for one in call.args):
        return None
    if not all(_is_path(one) for one in options(loaded.path)):
        return None
    return Arguments(loaded.at.source, call).add("mmap", "True")


def _is_path(value: Value) -> bool:
    """Whether a value is a text, an argument of the program, or a path made of such."""
    while isinstance(value, Part):
        if isinstance(value.key, tuple) and value.key[0] == "format":
            return True
        value = value.owner
    if isinstance(value, External):
        return value.name.startswith(_OF_THE_PROGRAM)
    return isinstance(value, Literal) and isinstance(value.value, str)
