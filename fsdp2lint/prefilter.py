"""Which files are worth parsing: those whose bytes hold a word of FSDP or of distributed checkpoints.

A file without any of the markers is read and never parsed, and when no file has one, neither libcst
nor the rules are imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

Content = bytes | OSError
"""What reading a file gave."""

MARKERS = (
    b"fully_shard",
    b"FullyShardedDataParallel",
    b"distributed.fsdp",
    b"_composable.fsdp",
    b"d.checkpoint",  # torch.distributed.checkpoint and torch.distributed._shard.checkpoint
    b"distributed import checkpoint",
)
"""Few, because each is searched in each file, and literal, because a regular expression is slower.

``torch.distributed`` alone would pass ten times as many bytes and no finding more: a script without
any of these words cannot shard by FSDP.
"""

MAX_BYTES = 2_000_000
"""Larger files (generated ones) are not parsed: libcst takes about a second for each megabyte."""


def relevant(raw: bytes) -> bool:
    """Whether a file with these bytes is worth parsing."""
    return any(raw.find(marker) >= 0 for marker in MARKERS)


def sift(files: Iterable[str]) -> Iterator[tuple[str, Content]]:
    """The relevant files with their bytes; a file that cannot be read comes with its error."""
    for file in files:
        try:
            raw = _read(file)
        except OSError as error:
            yield file, error
            continue
        if relevant(raw):
            yield file, raw


def _read(path: str) -> bytes:
    """The bytes of a file; twice as fast as ``open`` for the thousands of files that hold nothing."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        size = os.fstat(descriptor).st_size + 1
        raw = os.read(descriptor, size)
        if len(raw) < size - 1:  # read may return less than was asked for
            parts = [raw]
            while parts[-1]:
                parts.append(os.read(descriptor, 1 << 20))
            raw = b"".join(parts)
        return raw
    finally:
        os.close(descriptor)
