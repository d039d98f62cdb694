"""Files that are written all together or not at all, whatever happens meanwhile.

The new files are prepared beside their places and synced; then they are moved into place in one short step,
during which signals are held. A journal in the user's own folder says what was begun. When the run fails, or is
interrupted, it takes back what it has moved; when it is killed, the next command does so by the journal. The old
files lie beside the new ones (as further names of the same bytes, so that taking them back needs no room on the
disk) until everything is done. A journal is locked by the run that writes it, and left alone by others as long.

A journal is text: one character that says whether all was moved (``0`` or ``1``, changed in its place, which
takes no room either), then lines of JSON: what is replaced, and at last what the new files are known by.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdp2lint.system.files import digest, read
from fsdp2lint.system.home import JOURNALS, journals, own_folder
from fsdp2lint.system.signals import Endings

_SMALL = 64_000_000
"""Bytes up to which a file is known by its content, not by its number and times."""


class NotWritten(Exception):
    """A file could not be written, or must not be; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch of git that is moved with the files."""

    root: str
    name: str
    old: str
    new: str


@dataclass(slots=True)
class _Piece:
    """What is put in one place."""

    target: str
    new: str
    """Where it is prepared."""
    old: str
    """Where what was there before is kept."""
    before: str
    """By what that is known."""
    lock: str
    """A name under which ``new`` is found too meanwhile: other programs take it for a lock."""
    shown: str
    """How a message names the place."""
    after: str = ""

    @property
    def made(self) -> tuple[str, str]:
        """What is removed in the end."""
        return self.new, self.old


class Switch:
    """Files and folders that take their places together when the ``with`` block ends without an exception.

    Raises:
        NotWritten: nothing was changed, and why; in rare cases (a disk that fails twice) that some of it is
            left to the next command.
    """

    def __init__(self) -> None:
        self._journal = _Journal.begin()
        self._token = os.path.basename(self._journal.path)
        self._pieces: list[_Piece] = []
        self._folders: list[str] = []
        self._ref: Ref | None = None
        self._endings = Endings()

    def __enter__(self) -> Switch:
        self._endings.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._endings.holding = self._endings.holding or error is not None
        try:
            try:
                if error is None:
                    self._settle()
                    self._endings.holding = True
                    self._move()
            except BaseException as problem:
                self._endings.holding = True
                error = problem
                raise
            finally:
                self._end(undo=error is not None)
        finally:
            self._endings.__exit__()

    def add(self, target: str | Path, *, shown: str = "", lock: str = "") -> str:
        """Where to prepare what is to take the place of ``target``, which need not exist.

        Raises:
            NotWritten: it cannot be.
        """
        path = str(target)
        folder, number = os.path.dirname(os.path.abspath(path)), len(self._pieces)
        name = os.path.join(folder, f".fsdp2lint-{self._token}-{number}")
        with _about(shown or path):
            piece = _Piece(
                os.path.abspath(path), f"{name}.new", f"{name}.old", mark(path), lock, shown or path
            )
            self._journal.append(
                [folder, os.path.basename(path), os.path.basename(name), piece.before, lock]
            )
        self._pieces.append(piece)
        return piece.new

    def put(self, target: str | Path, raw: bytes, *, shown: str = "", lock: str = "") -> None:
        """Prepare a file with these bytes, with the mode and the owner of the one that it replaces."""
        new = self.add(target, shown=shown, lock=lock)
        with _about(shown or target):
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
            try:
                left = memoryview(raw)
                while left:
                    left = left[os.write(handle, left) :]
                with suppress(FileNotFoundError):
                    _liken(handle, os.stat(target))
            finally:
                os.close(handle)

    def make_folders(self, folder: str | Path) -> None:
        """Make a folder and what is missing above it, here and now; they go again if the rest fails."""
        missing, path = [], os.path.abspath(folder)
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        with _about(folder):
            for one in reversed(missing):
                self._journal.append({"folder": one})
                self._folders.append(one)
                os.mkdir(one)

    def move_branch(self, ref: Ref) -> None:
        """Move a branch of git together with the files."""
        self._journal.append([ref.root, ref.name, ref.old, ref.new, "", "ref"])
        self._ref = ref

    def _settle(self) -> None:
        """The last of the preparations: everything is on the disk, and the old files have a second name."""
        for piece in self._pieces:
            with _about(piece.shown):
                _sync(piece.new)
                piece.after = mark(piece.new)
                if mark(piece.target) != piece.before:
                    raise NotWritten(f"{piece.shown}: not written, it has changed meanwhile")
                if piece.lock:
                    _lock(piece.new, piece.lock)
                if piece.before and not os.path.isdir(piece.target):
                    _second_name(piece.target, piece.old)
        with _about("the journal"):
            self._journal.append([piece.after for piece in self._pieces])
            self._journal.sync()
            _sync_folders(self._pieces)

    def _move(self) -> None:
        if self._ref is not None:
            _update(self._ref.root, self._ref.name, self._ref.new, self._ref.old)
        for piece in self._pieces:
            with _about(piece.shown):
                if os.path.isdir(piece.target) or os.path.isdir(piece.new):
                    if piece.before:
                        os.rename(piece.target, piece.old)  # a folder cannot be replaced in one go
                    os.rename(piece.new, piece.target)
                else:
                    os.replace(piece.new, piece.target)
        with _about("the folders"):
            _sync_folders(self._pieces)
            self._journal.done()

    def _end(self, *, undo: bool) -> None:
        try:
            if undo:
                self._journal.undone()
                _take_back(self._pieces, self._ref)
            _clean(self._pieces, self._folders if undo else ())
        except OSError as error:
            self._journal.leave()
            if undo:
                raise NotWritten(
                    f"{error.filename or 'the files'}: {error.strerror or error}; the next command of "
                    "fsdp2lint takes back what was begun"
                ) from error
        else:
            self._journal.end()


def replace_all(contents: Mapping[str | Path, bytes], *, folders: bool = False) -> None:
    """Put these bytes in place of the files, or into new ones: of all of them or of none.

    Links are followed; with ``folders`` those that are missing are made.

    Raises:
        NotWritten: nothing was changed, and why.
    """
    with Switch() as switch:
        for path, raw in contents.items():
            if folders:
                switch.make_folders(os.path.dirname(path) or ".")
            switch.put(os.path.realpath(path), raw, shown=os.path.normpath(path))


def recover() -> Iterator[str]:
    """Take back what runs left half-done that were killed; a sentence about each."""
    for path in journals():
        journal = _Journal.found(path)
        if journal is not None:
            yield from _recovered(journal)


def mark(path: str | Path) -> str:
    """By what a file or a folder is known again; empty where nothing is.

    Raises:
        OSError: it cannot be read.
    """
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if stat.S_ISDIR(status.st_mode):
        return f"folder {status.st_ino}"
    if stat.S_ISREG(status.st_mode) and status.st_size <= _SMALL:
        return digest(read(str(path)))
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"


_BINARY = getattr(os, "O_BINARY", 0)


class _Journal:
    """The file that says what was begun, locked while it is open."""

    def __init__(self, path: str, handle: int) -> None:
        self.path = path
        self._handle = handle

    @classmethod
    def begin(cls) -> _Journal:
        home = own_folder()
        if home is None:
            raise NotWritten(
                "nothing is written: there is no folder of your own for the journal that protects the "
                "files; name one that only you can write to with XDG_STATE_HOME"
            )
        with _about(home):
            folder = os.path.join(home, JOURNALS)
            os.makedirs(folder, mode=0o700, exist_ok=True)
            while True:
                path = os.path.join(folder, os.urandom(6).hex())
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, 0o600)
                if _locked(handle) and _is_at(handle, path):
                    os.write(handle, b"0\n")
                    return cls(path, handle)
                os.close(handle)  # another run took it for one that was left behind

    @classmethod
    def found(cls, path: str) -> _Journal | None:
        """A journal that was left behind; None while its run goes on."""
        try:
            handle = os.open(path, os.O_RDWR | _BINARY)
        except OSError:
            return None
        if _locked(handle) and _is_at(handle, path):
            return cls(path, handle)
        os.close(handle)
        return None

    def append(self, what: object) -> None:
        os.write(self._handle, json.dumps(what).encode() + b"\n")

    def sync(self) -> None:
        os.fsync(self._handle)

    def done(self) -> None:
        """Say that everything was moved; from here on nothing is taken back."""
        os.lseek(self._handle, 0, os.SEEK_SET)
        os.write(self._handle, b"1")
        with suppress(OSError):  # everything is in its place: there is nothing to take back for it
            os.fsync(self._handle)

    def undone(self) -> None:
        """Say that it must be taken back."""
        with suppress(OSError):
            os.lseek(self._handle, 0, os.SEEK_SET)
            os.write(self._handle, b"0")

    def lines(self) -> tuple[bool, list[Any]]:
        """Whether everything was moved, and the lines that are whole."""
        os.lseek(self._handle, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._handle), "rb") as file:
            first, *lines = file.read().split(b"\n")
        return first == b"1", [json.loads(line) for line in lines[:-1]]

    def leave(self) -> None:
        os.close(self._handle)

    def end(self) -> None:
        with suppress(OSError):
            if os.name == "nt":
                os.close(self._handle)
                os.unlink(self.path)
            else:
                os.unlink(self.path)
                os.close(self._handle)


def _recovered(journal: _Journal) -> Iterator[str]:
    try:
        done, lines = journal.lines()
        folders = [line["folder"] for line in lines if isinstance(line, dict)]
        pieces, ref = _planned([line for line in lines if isinstance(line, list)])
    except (OSError, ValueError, TypeError, KeyError):
        journal.leave()
        return
    names = f"{len(pieces)} file{'' if len(pieces) == 1 else 's'}"
    first = f" (first: {pieces[0].target})" if pieces else ""
    try:
        changed = [] if done else _take_back(pieces, ref)
        _clean(pieces, () if done else folders)
    except OSError as error:
        journal.leave()
        yield (
            f"an earlier run was stopped while it wrote {names}{first}, and it cannot be taken back yet: "
            f"{error.filename or ''}: {error.strerror or error}"
        )
        return
    journal.end()
    if changed:
        yield (
            f"an earlier run was stopped while it wrote {names}{first}; it was taken back, but "
            f"{changed[0]} has changed since and is left as it is"
        )
    elif done:
        yield f"an earlier run was stopped after it wrote {names}{first}; what it left behind is removed"
    elif pieces:
        yield (
            f"an earlier run was stopped while it wrote {names}{first}; "
            "everything is as it was before that run"
        )


def _planned(lines: Sequence[Any]) -> tuple[list[_Piece], Ref | None]:
    pieces, ref = [], None
    marks: list[str] = []
    for line in lines:
        if len(line) == 6 and line[-1] == "ref":
            ref = Ref(*line[:4])
        elif len(line) == 5 and isinstance(line[0], str) and os.path.isabs(line[0]):
            folder, target, name, before, lock = line
            base = os.path.join(folder, name)
            pieces.append(
                _Piece(
                    os.path.join(folder, target), f"{base}.new", f"{base}.old", before, lock, target
                )
            )
        else:
            marks = line
    for piece, after in zip(pieces, marks, strict=False):
        piece.after = after
    return pieces, ref


def _take_back(pieces: Sequence[_Piece], ref: Ref | None) -> list[str]:
    """Everything as it was; the files that somebody has changed since, which stay as they are."""
    if ref is not None and _current(ref.root, ref.name) == ref.new:
        _update(ref.root, ref.name, ref.old, ref.new)
    return [piece.target for piece in reversed(pieces) if not _taken_back(piece)]


def _taken_back(piece: _Piece) -> bool:
    now = mark(piece.target)
    if now == piece.before:
        return True
    aside = os.path.lexists(piece.old)
    if now and (not piece.after or now != piece.after or bool(piece.before) != aside):
        return False
    if now and not piece.before:
        os.rename(piece.target, piece.new)
    elif now and os.path.isdir(piece.target):
        os.rename(piece.target, piece.new)
        os.rename(piece.old, piece.target)
    elif aside:
        _unlock(piece)  # afterwards nothing would show any more whose lock it is
        os.replace(piece.old, piece.target)
    return True


def _clean(pieces: Sequence[_Piece], folders: Sequence[str]) -> None:
    for piece in pieces:
        _unlock(piece)
        for path in piece.made:
            _remove(path)
    _sync_folders(pieces)
    for folder in reversed(folders):
        with suppress(OSError):  # somebody has put something into it
            os.rmdir(folder)


def _unlock(piece: _Piece) -> None:
    """Remove the lock, if it is ours: a further name of the new file."""
    if piece.lock and any(_is_same(piece.lock, one) for one in (piece.new, piece.target)):
        os.unlink(piece.lock)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)


def _second_name(path: str, name: str) -> None:
    """Keep what is in a file under another name; where the disk knows no such names, in a copy."""
    try:
        os.link(path, name)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        shutil.copy2(path, name)


def _lock(new: str, lock: str) -> None:
    try:
        os.link(new, lock)
    except FileExistsError as error:
        raise NotWritten(
            f"{lock} exists: another git process is at work, or one was killed; nothing is written"
        ) from error


def _liken(handle: int, status: os.stat_result) -> None:
    if hasattr(os, "fchmod"):
        os.fchmod(handle, stat.S_IMODE(status.st_mode))
    if hasattr(os, "fchown") and status.st_uid != os.geteuid():
        with suppress(PermissionError):
            os.fchown(handle, status.st_uid, status.st_gid)


def _sync(path: str) -> None:
    """Have a file, or all files of a folder, on the disk and not only in memory."""
    if not os.path.isdir(path):
        handle = os.open(path, os.O_RDWR | _BINARY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        return
    for folder, _, names in os.walk(path):
        for name in names:
            _sync(os.path.join(folder, name))


def _sync_folders(pieces: Sequence[_Piece]) -> None:
    if os.name == "nt":
        return  # a folder cannot be opened there
    for folder in dict.fromkeys(os.path.dirname(piece.target) for piece in pieces):
        with suppress(FileNotFoundError):
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _locked(handle: int) -> bool:
    """Whether the file is ours alone from here until it is closed."""
    try:
        import fcntl
    except ImportError:
        return True  # Windows: an open file cannot be removed by others
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
    return True


def _is_at(handle: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def _current(root: str, name: str) -> str | None:
    from fsdp2lint.system.git import tip

    return tip(root, name)


def _update(root: str, name: str, new: str, old: str) -> None:
    from fsdp2lint.system.git import GitProblem, move

    try:
        move(root, name, new, old)
    except GitProblem as error:
        raise NotWritten(f"{name}: not moved, {error}") from error


@contextmanager
def _about(path: str | Path) -> Iterator[None]:
    """What goes wrong in the block is about a file."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"{path}: not written, {error.strerror or error}") from error
