"""Which files are worth parsing: those whose bytes hold a word of FSDP or of distributed checkpoints.

A file without any of the markers is read and never parsed, and when no file has one, neither libcst
nor the rules are imported. A library that has them in its comments and docstrings alone is read as far:
what of it a program uses is followed from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from fsdp2lint.system.files import TEXTS, read

Content = bytes | OSError
"""What reading a file gave."""

MARKERS = (
    b"fully_shard",
    b"FullyShardedDataParallel",  # the class, and accelerate's FullyShardedDataParallelPlugin
    b"d.checkpoint",  # torch.distributed.checkpoint and torch.distributed._shard.checkpoint
    b"distributed import checkpoint",
    b"ModelParallelStrategy",  # Lightning's FSDP2
    b"shard_model(",  # torchtune
)
"""Few, because each is searched in each file, and literal, because a regular expression is slower.

``torch.distributed`` alone would pass ten times as many bytes and no finding more: a script without
any of these words, or one of those below, cannot shard by FSDP.
"""

_NAMES = (
    (
        b"fsdp",
        (
            b"distributed.fsdp",
            b"_composable.fsdp",
            *(b"fsdp=", b"fsdp_config", b"fsdp_plugin", b"fsdp_version", b"apply_fsdp"),
            *(
                b'"fsdp',
                b"'fsdp",
            ),  # strategy="fsdp", parallel_strategy="fsdp", {"fsdp": "full_shard"}
        ),
    ),
    (b"FSDP", (b"FSDPStrategy", b"FSDP2", b"USE_FSDP")),
)
"""Ways to ask a framework for FSDP, below the word that all of them hold: most files hold neither word.

Not each file that holds the word asks for FSDP: many only take care of where others use it.
"""

_OLD = (b"distributed._tensor",)
"""The old place of DTensor: its imports are judged in files that name FSDP, be it in a comment."""

_TOLD = (
    rb"#[^\n]*"
    rb'|"""(?:\\.|[^\\])*?"""'
    rb"|'''(?:\\.|[^\\])*?'''"
    rb'|("(?:\\.|[^"\\\n])*"'
    rb"|'(?:\\.|[^'\\\n])*')"
)
"""A comment, a long string, or (the group) a short one."""

MAX_BYTES = 2_000_000
"""Larger files (generated ones) are not parsed: libcst takes about a second for each megabyte."""


def relevant(raw: bytes) -> bool:
    """Whether a file with these bytes is worth parsing."""
    return _holds(raw, MARKERS) or any(
        raw.find(word) >= 0 and _holds(raw, names) for word, names in _NAMES
    )


def _holds(raw: bytes, words: Iterable[bytes]) -> bool:
    return any(raw.find(word) >= 0 for word in words)


def tells(raw: bytes, hints: Iterable[str]) -> bool:
    """Whether a file may call one of the functions ``hints`` by dotted name: it holds its name and a part of the rest."""
    for name in hints:
        *above, last = name.encode().split(b".")
        if last in raw and (not above or any(part in raw for part in above)):
            return True
    return False


def written(raw: bytes) -> bool:
    """Whether the code of a relevant file holds a marker, not only its comments and its long strings."""
    code = without_prose(raw)
    return relevant(code) or _holds(code, _OLD)


def without_prose(raw: bytes) -> bytes:
    """A program without its comments and its long strings."""
    return re.sub(_TOLD, rb"\1", raw, flags=re.DOTALL)


def sift(files: Iterable[str], hints: Sequence[str] = ()) -> Iterator[tuple[str, Content]]:
    """The relevant files with their bytes; a file that cannot be read comes with its error.

    A call of a function ``hints`` makes a file relevant too; settings are looked at before.
    """
    for file in files:
        try:
            raw = read(file)
        except OSError as error:
            yield file, error
            continue
        if relevant(raw) or file.endswith(TEXTS) or (hints and tells(raw, hints)):
            yield file, raw
