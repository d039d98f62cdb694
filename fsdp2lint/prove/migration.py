"""The migrated program run beside the old one, before anything is written."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fsdp2lint.source.source import Source

Changed = Sequence[tuple[Source, Source]]

_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "venv", "node_modules", "__pycache__", "*.pyc")


class NoProof(Exception):
    """The program to run is not inside one folder with the files that change; the message says which."""


def prove(command: str, folder: str, changed: Changed, ledger: str) -> int:
    """Run ``fsdp2lint verify`` on a folder and on a copy of it with the new texts; its exit code.

    ``command`` is what one would write behind ``python``: a script of the folder and its arguments, after
    options of ``verify`` if there are any; ``ledger`` is the account of the migration as JSON.

    Raises:
        NoProof: the script is not there, or a changed file is outside of the folder.
    """
    words = shlex.split(command)
    scripts = (n for n, word in enumerate(words) if word.endswith(".py"))
    at = next(scripts, 0) if words[0].startswith("-") else 0
    options, script, arguments = words[:at], words[at], words[at + 1 :]
    if not os.path.isfile(os.path.join(folder, script)):
        raise NoProof(f"--verify: no such script in {folder}: {script}")
    root = Path(folder).resolve()
    with tempfile.TemporaryDirectory(prefix="fsdp2lint-") as scratch:
        copy = Path(scratch) / root.name
        shutil.copytree(root, copy, ignore=_LEFT_OUT, symlinks=True)
        for _, new in changed:
            path = Path(new.path).resolve()
            if not path.is_relative_to(root):
                raise NoProof(f"--verify: {new.path} lies outside of {folder}")
            (copy / path.relative_to(root)).write_bytes(new.encode(new.text))
        account = Path(scratch) / "ledger.json"
        account.write_text(ledger, "utf-8")
        words = ["verify", *options, str(root), str(copy), "--entry", script]
        words += ["--ledger", str(account), "--", *arguments]
        return subprocess.run([sys.executable, "-m", "fsdp2lint", *words], check=False).returncode
