"""A copy of the files that are about to change, where no git repository holds them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence

FOLDER = ".fsdp2lint_backup"


def back_up(paths: Sequence[str]) -> str:
    """Copy files into a new folder beside them, below their names there; the folder.

    Raises:
        OSError: a copy cannot be made.
    """
    files = [os.path.abspath(path) for path in paths]
    top = os.path.commonpath([os.path.dirname(file) for file in files])
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder, number = os.path.join(top, FOLDER, stamp), 1
    while os.path.exists(folder):
        number += 1
        folder = os.path.join(top, FOLDER, f"{stamp}-{number}")
    for file in files:
        copy = os.path.join(folder, os.path.relpath(file, top))
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copy2(file, copy)
    return os.path.relpath(folder)
