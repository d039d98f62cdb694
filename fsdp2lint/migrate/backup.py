"""A copy of the files that are about to change, where no git repository holds them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence

from fsdp2lint.system.journal import Switch

FOLDER = ".fsdp2lint_backup"


def back_up(switch: Switch, paths: Sequence[str]) -> str:
    """Have the switch put copies of files into a new folder beside them, below their names there; the folder.

    Raises:
        OSError: a copy cannot be made.
        NotWritten: the folder cannot be made.
    """
    files = [os.path.abspath(path) for path in paths]
    top = os.path.commonpath([os.path.dirname(file) for file in files])
    stamp = time.strftime("%Y%m%d-%H%M%S")
    every = os.path.join(top, FOLDER)
    folder, number = os.path.join(every, stamp), 1
    while os.path.exists(folder):
        number += 1
        folder = os.path.join(every, f"{stamp}-{number}")
    first = not os.path.exists(every)
    prepared = switch.add(every if first else folder)
    inside = os.path.join(prepared, os.path.basename(folder)) if first else prepared
    for file in files:
        copy = os.path.join(inside, os.path.relpath(file, top))
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copy2(file, copy)
    return os.path.relpath(folder)
