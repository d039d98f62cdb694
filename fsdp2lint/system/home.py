"""The tool's own folder of the user: what it must be able to trust is kept there, and in no project.

A project comes from somebody else. What lies in it (a cache that was packed with it, say) is believed only
where a secret that lies here proves that this user's own runs have made it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

JOURNALS = "journal"
SECRET = "secret"
SECRET_BYTES = 32


def own_folder(*, make: bool = True) -> str | None:
    """The folder, made when it is missing; None where the user has none that others cannot write to.

    ``$XDG_STATE_HOME/fsdp2lint`` or ``~/.local/state/fsdp2lint``; without a home that can be written to, a
    folder of the user's own below the system's temporary one.
    """
    for folder in _candidates():
        with suppress(OSError):
            if make:
                os.makedirs(folder, mode=0o700, exist_ok=True)
            if is_private(folder) and os.access(folder, os.W_OK):
                return folder
        if not make and _could_be_made(folder):
            return None  # nor in the next place: whoever writes takes the first that can be made
    return None


def journals() -> list[str]:
    """The journals of writes that go on, or that were stopped."""
    home = own_folder(make=False)
    try:
        names = os.listdir(os.path.join(home, JOURNALS)) if home is not None else []
    except OSError:
        return []
    return [os.path.join(home or "", JOURNALS, name) for name in sorted(names)]


def secret(folder: str) -> bytes | None:
    """The secret that is kept in a folder, made when it is missing; None where it can be none."""
    path = os.path.join(folder, SECRET)
    for _ in range(2):
        found = _secret_at(path)
        if found is not None:
            return found
        with suppress(OSError):
            os.unlink(path)  # cut off, or open to others
        with suppress(OSError):
            _create(path, os.urandom(SECRET_BYTES))
    return None


def is_private(folder: str) -> bool:
    """Whether a path is a folder, no link to one, that nobody but this user may write to."""
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and _is_own(status, 0o022)


def _candidates() -> Iterator[str]:
    state = os.environ.get("XDG_STATE_HOME") or os.environ.get("LOCALAPPDATA")
    home = os.path.expanduser("~")
    if state and os.path.isabs(state):
        yield os.path.join(state, "fsdp2lint")
    elif os.path.isabs(home):
        yield os.path.join(home, ".local", "state", "fsdp2lint")
    import tempfile  # only where it must be: it costs more to import than all of this

    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    with suppress(OSError):  # there is none that can be written to
        yield os.path.join(tempfile.gettempdir(), f"fsdp2lint-{user}")


def _could_be_made(folder: str) -> bool:
    """Whether a folder is missing only because nobody has made it yet."""
    if os.path.lexists(folder):
        return False
    above = os.path.dirname(folder)
    while not os.path.lexists(above) and above != os.path.dirname(above):
        above = os.path.dirname(above)
    return os.path.isdir(above) and os.access(above, os.W_OK | os.X_OK)


def _is_own(status: os.stat_result, others: int) -> bool:
    if not hasattr(os, "getuid"):
        return True  # Windows: the user's own folder is the user's own
    return status.st_uid == os.getuid() and not status.st_mode & others


def _secret_at(path: str) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or not _is_own(status, 0o077):
            return None
        found = os.read(handle, SECRET_BYTES + 1)
        return found if len(found) == SECRET_BYTES else None
    except OSError:
        return None
    finally:
        os.close(handle)


def _create(path: str, raw: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, raw)
    finally:
        os.close(handle)
