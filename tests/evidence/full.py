"""A storage that is full: the first rank cannot write its shards in the second save of a process.

That is how a crash in the middle of a save looks afterwards: some ranks have written, others have not.
"""

from __future__ import annotations

import errno
import time
from itertools import count
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemWriter

_TICK = 0.05
"""Seconds after which a new file is younger than an older one, by the clock of the kernel."""


def fill_up_storage(rank: int) -> None:
    """Let this process write one checkpoint, and on the first rank no shards of a second one."""
    write = FileSystemWriter.write_data
    numbers = count(1)

    def write_while_there_is_room(writer: FileSystemWriter, *args: Any) -> Any:
        if next(numbers) == 1:
            return write(writer, *args)
        if rank == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        time.sleep(_TICK)
        return write(writer, *args)

    FileSystemWriter.write_data = write_while_there_is_room  # type: ignore[method-assign, assignment]
