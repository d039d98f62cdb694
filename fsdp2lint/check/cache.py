"""Results that are kept from one run to the next: ``.fsdp2lint_cache/<version>/``.

What is kept is found by the bytes of the analysed files, the settings and the tool itself, and it is good
only while everything else that the analysis looked at (imported modules, files that were not there)
answers as it did then.

Each entry is one file that proves itself: it begins with a digest of its name and its content under a secret
of the user. An entry that somebody else has made, that was cut off, or of which a single bit is another is as
good as none. So an entry can be written in place, and two runs at once do no harm.
"""

from __future__ import annotations

import hmac
import os
import stat
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache as once
from functools import cached_property
from typing import TYPE_CHECKING

import fsdp2lint
from fsdp2lint import __version__
from fsdp2lint.check.diagnostics import shown
from fsdp2lint.config.settings import Plugin, Settings
from fsdp2lint.system.files import (
    ABSENT,
    FILE,
    FOLDER,
    NAMES,
    digest,
    digest_of_names,
    kind,
    names,
    read,
)
from fsdp2lint.system.home import own_folder, secret

if TYPE_CHECKING:
    from hashlib import blake2b

    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.check.stored import Known, Signature

MAX_ENTRIES = 2_000
_MARKS = {
    ".gitignore": "*\n",
    "CACHEDIR.TAG": "Signature: 8a477f597d28d172789f06886806bc55\n",
}
"""What tells git and backup programs (https://bford.info/cachedir/) to leave the folder alone."""
_PROOF_BYTES = 32
"""What an entry begins with."""
_FRESH = 2_000_000_000
"""Nanoseconds: a file changed so lately could change again without its time showing it."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a result is the answer to, apart from what the analysis finds out by itself."""

    kind: str
    settings: Settings
    files: Sequence[tuple[str, str]]
    """The analysed files as they were spelled, with the digests of their bytes."""
    more: Sequence[str] = ()

    @property
    def key(self) -> str:
        """The name under which the answer is kept."""
        return self._name(list(self.files))

    @property
    def about(self) -> str:
        """The name under which it is kept what the last answer was, whatever the files held."""
        return f"last-{self._name([path for path, _ in self.files])}"

    def _name(self, files: Sequence[object]) -> str:
        said = (tool_mark(), self.kind, os.getcwd(), self.settings, files, self.more)
        return digest(repr(said).encode("utf-8", "surrogatepass"))


class Cache:
    """The entries in one folder.

    ``named``: the user has named it for this run, not the project. Then the secret lies in it too, so that
    it can be carried from one machine of a CI to the next.
    """

    def __init__(self, folder: str, *, named: bool = False) -> None:
        self.folder = os.path.join(folder, __version__)
        self._named = named
        self._kinds: dict[str, str] = {}
        self._digests: dict[str, str] = {}
        self._table_file = f"files-{digest(os.fsencode(os.getcwd()))[:12]}"
        self._table: dict[str, Known] | None = None
        self._changed = False
        self._written = False

    # -- results ---------------------------------------------------------------------------------

    def get(self, question: Question, spelled: Mapping[str, str]) -> bytes | None:
        """The answer that was kept, if it is still good. ``spelled``: the passed files by absolute path."""
        from fsdp2lint.check.stored import decoded_entry

        entry = decoded_entry(self._read(question.key))
        if entry is None:
            return None
        if any(spelled.get(path, "") != entry.passed.get(path, "") for path in entry.seen):
            return None
        if any(self.state(path, was) != was for path, was in entry.seen.items()):
            return None
        return entry.result

    def get_moved(
        self, question: Question, spelled: Mapping[str, str], contents: Mapping[str, bytes]
    ) -> tuple[bytes, dict[str, str]] | None:
        """The last answer, with its places as they are now, and what it depends on, where all files say what they said.

        ``contents`` holds the bytes of the analysed files by absolute path.
        """
        from fsdp2lint.check.same_code import moves
        from fsdp2lint.check.stored import decoded_entry, decoded_last, moved, unsqueezed

        last = decoded_last(self._read(question.about))
        entry = None if last is None else decoded_entry(self._read(last.key))
        if last is None or entry is None:
            return None
        if any(spelled.get(path, "") != entry.passed.get(path, "") for path in entry.seen):
            return None
        seen = {path: self.state(path, was) for path, was in entry.seen.items()}
        was = {**entry.seen, **{os.path.abspath(path): mark for path, mark in last.files}}
        now = {**seen, **{os.path.abspath(path): mark for path, mark in question.files}}
        found = {}
        for path in (path for path, mark in was.items() if now.get(path) != mark):
            if path not in last.texts or now.get(path, ABSENT) in (ABSENT, FOLDER, FILE):
                return None
            new = contents[path] if path in contents else read(path)
            one = moves(unsqueezed(last.texts[path]), new)
            if one is None or digest(new) != now[path]:
                return None
            found[path] = one
        result = moved(entry.result, found)
        return None if result is None else (result, seen)

    def put(
        self,
        question: Question,
        seen: Mapping[str, str],
        spelled: Mapping[str, str],
        result: bytes,
        contents: Mapping[str, bytes] | None = None,
    ) -> None:
        """Keep an answer; with ``contents``, the bytes of the analysed files by absolute path, also for later texts
        that say the same.
        """
        from fsdp2lint.check.stored import Entry, encoded

        passed = {path: spelled[path] for path in seen if path in spelled}
        with suppress(UnicodeEncodeError):  # a file name that is no text
            self._write(question.key, encoded(Entry(dict(seen), passed, result)))
            if contents is not None:
                self._write(question.about, self._last(question, seen, contents))

    def _last(
        self, question: Question, seen: Mapping[str, str], contents: Mapping[str, bytes]
    ) -> bytes:
        """Which answer is the last one, and the texts that it is about."""
        from fsdp2lint.check.stored import Last, encoded, squeezed

        marks = {path: mark for path, mark in seen.items() if path.endswith(".py")}
        marks |= {os.path.abspath(path): mark for path, mark in question.files}
        texts = {}
        for path, mark in marks.items():
            if mark in (ABSENT, FOLDER, FILE) or not path.endswith(".py"):
                continue
            with suppress(OSError):
                raw = contents[path] if path in contents else read(path)
                if digest(raw) == mark:
                    texts[path] = squeezed(raw)
        return encoded(Last(question.key, list(question.files), texts))

    # -- rules -----------------------------------------------------------------------------------

    def rules(self, plugins: tuple[Plugin, ...] = ()) -> tuple[Rule, ...] | None:
        """What the rules say of themselves, if that was kept."""
        from fsdp2lint.check.stored import unpacked_rules

        return unpacked_rules(self._read(_rules_file(plugins)))

    def keep_rules(self, plugins: tuple[Plugin, ...], rules: Iterable[Rule]) -> None:
        """Keep what the rules say of themselves."""
        from fsdp2lint.check.stored import pack_rules

        self._write(_rules_file(plugins), pack_rules(list(rules)))

    # -- files -----------------------------------------------------------------------------------

    def known(self, path: str) -> Known | None:
        """What was read of the file at an absolute path, while it has not changed since."""
        known = self._files.get(path)
        if known is None:
            return None
        signature = _signature(path)
        return known if signature == known.signature else None

    def learn(self, path: str, raw: bytes, relevant: bool) -> Known:
        """Remember what was read; not when the file is so new that its time says nothing."""
        from fsdp2lint.check.stored import Known

        signature = _signature(path) or (0, 0, 0)
        known = Known(signature, digest(raw), relevant)
        settled = signature[1] and time.time_ns() - signature[1] > _FRESH
        if settled and shown(path) == path:
            self._files[path] = known
            self._changed = True
        return known

    def state(self, path: str, was: str) -> str:
        """What is at a path now, in the form of ``was``."""
        if os.path.basename(path) == NAMES:
            return digest_of_names(names(os.path.dirname(path)))
        found = self._kinds.get(path)
        if found is None:
            found = self._kinds[path] = kind(path)
        if found == FILE and was not in (ABSENT, FOLDER, FILE):
            return self._digest(path)
        return found

    def _digest(self, path: str) -> str:
        found = self._digests.get(path)
        if found is None:
            known = self.known(path)
            try:
                found = known.digest if known is not None else digest(read(path))
            except OSError:
                found = ABSENT
            self._digests[path] = found
        return found

    @property
    def _files(self) -> dict[str, Known]:
        if self._table is None:
            from fsdp2lint.check.stored import decoded_table

            self._table = decoded_table(self._read(self._table_file))
        return self._table

    def close(self) -> None:
        """Write down what was learnt of files, and drop what is old."""
        if self._changed and self._table is not None:
            from fsdp2lint.check.stored import encoded

            self._write(self._table_file, encoded(self._table))
            self._changed = False
        if self._written:
            self.trim()

    # -- the folder ------------------------------------------------------------------------------

    def _read(self, name: str) -> bytes | None:
        """The content of an entry that proves itself; None for anything else."""
        if self._secret is None:
            return None
        try:
            raw = read(os.path.join(self.folder, name))
        except OSError:
            return None
        proof, content = raw[:_PROOF_BYTES], raw[_PROOF_BYTES:]
        return content if hmac.compare_digest(proof, self._proof(name, content)) else None

    def _write(self, name: str, raw: bytes) -> None:
        """Keep an entry; where nothing can be written, nothing is kept."""
        if self._secret is None:
            return
        path = os.path.join(self.folder, name)
        with suppress(OSError):
            with suppress(FileNotFoundError):
                os.unlink(path)  # it may be a link to somewhere else
            _create(path, self._proof(name, raw) + raw)
            self._written = True

    def _proof(self, name: str, content: bytes) -> bytes:
        from hashlib import blake2b

        mark = blake2b(name.encode(), digest_size=_PROOF_BYTES, key=self._secret or b"")
        mark.update(b"\0")
        mark.update(content)
        return mark.digest()

    @cached_property
    def _secret(self) -> bytes | None:
        """What entries are proven by; None where the folder cannot be used."""
        try:
            self._make()
        except OSError:
            return None
        home = os.path.dirname(self.folder) if self._named else own_folder()
        return None if home is None else secret(home)

    def _make(self) -> None:
        above = os.path.dirname(self.folder)
        for folder in (above, self.folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            if not self._named and not stat.S_ISDIR(os.lstat(folder).st_mode):
                raise NotADirectoryError(folder)  # a link of the project leads who knows where
        for name, text in _MARKS.items():
            with suppress(OSError):
                _create(os.path.join(above, name), text.encode())

    def trim(self) -> None:
        """Drop the oldest entries when there are too many."""
        try:
            with os.scandir(self.folder) as entries:
                aged = sorted((e.stat().st_mtime_ns, e.path) for e in entries)
        except OSError:
            return
        for _, path in aged[: max(0, len(aged) - MAX_ENTRIES)]:
            with suppress(OSError):
                os.unlink(path)


def _rules_file(plugins: tuple[Plugin, ...]) -> str:
    return f"rules-{digest(repr((tool_mark(), plugins)).encode())[:12]}"


def _create(path: str, raw: bytes) -> None:
    """A new file that only this user may read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(raw)


@once
def tool_mark() -> str:
    """A mark of this very tool: its version, the files that make findings, the Python that runs it."""
    from hashlib import blake2b

    mark = blake2b(f"{__version__} {sys.version_info[:2]}".encode(), digest_size=16)
    own, *beside = fsdp2lint.__path__
    _add_files(mark, own)
    for folder in beside:  # a checkout
        _add_files(mark, os.path.join(folder, "rules"))
    return mark.hexdigest()


_NO_PART = frozenset(
    "__pycache__ bridge cli codemods migrate plan prove rehearse reporters".split()
)
"""Folders of the tool on which no finding depends."""


def _add_files(mark: blake2b, folder: str) -> None:
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in listed:
        if entry.name.endswith(".py"):
            stat = entry.stat()
            mark.update(f"{entry.name} {stat.st_size} {stat.st_mtime_ns}".encode())
        elif entry.is_dir() and entry.name not in _NO_PART:
            _add_files(mark, entry.path)


def _signature(path: str) -> Signature | None:
    try:
        stat = os.stat(path)
    except (OSError, ValueError):
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ino
