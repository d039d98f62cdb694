"""Making the fixes of findings: in rounds, until nothing changes, and safely on disk."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from fsdp2lint.source.source import Source, Unreadable
from fsdp2lint.system.files import is_below, read
from fsdp2lint.system.journal import NotWritten as NotWritten
from fsdp2lint.system.journal import Switch
from fsdp2lint.system.plain import one_line

if TYPE_CHECKING:
    from fsdp2lint.catalogue.findings import Fix
    from fsdp2lint.edits.apply import Outcome
    from fsdp2lint.edits.text import Edit

MAX_ROUNDS = 10


class Fixable(Protocol):
    """A finding, as a rule says it or as it is shown."""

    @property
    def message(self) -> str:
        """What is wrong."""

    @property
    def fix(self) -> Fix | None:
        """What removes it."""


F = TypeVar("F", bound=Fixable)


@dataclass(frozen=True, slots=True)
class Dropped(Generic[F]):
    """A fix that was not made, and why: it contradicts itself, or its text would not parse."""

    finding: F
    why: str


@dataclass(slots=True)
class Fixed(Generic[F]):
    """The outcome of fixing."""

    before: dict[str, Source]
    after: dict[str, Source]
    made: list[F] = field(default_factory=list)
    dropped: list[Dropped[F]] = field(default_factory=list)
    findings: Sequence[F] = ()
    """What is left, of the texts after the last round."""
    settled: bool = True
    """False when the last round allowed still changed something."""

    @property
    def changed(self) -> list[tuple[Source, Source]]:
        """Before and after of each file whose text is another now."""
        pairs = ((one, self.after[path]) for path, one in self.before.items())
        return [(old, new) for old, new in pairs if old.text != new.text]

    def diff(self) -> str:
        """The changes as a unified diff."""
        return "".join(diff(old, new.text) for old, new in self.changed)


def fix(
    sources: Sequence[Source],
    lint: Callable[[Sequence[Source]], Sequence[F]],
    *,
    unsafe: bool = False,
) -> Fixed[F]:
    """Make the safe fixes of what ``lint`` finds, the unsafe ones too when asked, and lint again.

    ``lint`` returns the findings in order of file, line and column, without those that are to stay. Of
    two fixes that conflict the first is made and the other gets its turn in the next round, of which
    there are at most :data:`MAX_ROUNDS`. Only files among ``sources`` are changed.
    """
    before = {source.path: source for source in sources}
    result: Fixed[F] = Fixed(before, dict(before))
    refused: set[Hashable] = set()
    for number in range(MAX_ROUNDS + 1):
        result.findings = lint(list(result.after.values()))
        wanted = [
            f for f in result.findings if _applicable(f.fix, unsafe) and _key(f) not in refused
        ]
        if number == MAX_ROUNDS:
            result.settled = not wanted
            break
        known = len(result.dropped)
        changed = _round(wanted, result)
        refused.update(_key(dropped.finding) for dropped in result.dropped[known:])
        if not changed:
            break
    return result


def diff(old: Source, new: str) -> str:
    """The change of one file as a unified diff, of each part of a document; empty when there is none."""
    if old.document is None:
        return _diff(old.path, old.text, new)
    pairs = zip(old.parts, old.with_text(new).parts, strict=True)
    parts = ((before.source, after.source) for before, after in pairs)
    return "".join(_diff(_name(a), a.text, b.text) for a, b in parts)


def write(
    changed: Iterable[tuple[Source, Source]],
    paths: Mapping[str, Path] | None = None,
    *,
    named: Sequence[str] | None = None,
) -> None:
    """Write the new texts to their files, all of them or none, as :func:`prepare` says.

    Raises:
        NotWritten: nothing was changed, and why.
    """
    with Switch() as switch:
        prepare(switch, changed, paths, named=named)


def prepare(
    switch: Switch,
    changed: Iterable[tuple[Source, Source]],
    paths: Mapping[str, Path] | None = None,
    *,
    named: Sequence[str] | None = None,
) -> None:
    """Have the new texts written to their files by the switch (``paths`` tells where that of a shown path is).

    A link is followed to the file that it leads to; with ``named``, the paths that the user gave, only to one
    below them, or where the link itself is among them.

    Raises:
        NotWritten: a file is read-only, has changed since it was read, cannot be encoded, or is gone; it has
            further names on the disk, or lies outside of what the user gave.
    """
    ready: dict[Path, tuple[Path, bytes]] = {}
    for old, new in changed:
        path = (paths or {}).get(old.path, Path(old.path))
        real, raw = _checked(old, new, path, named)
        if ready.setdefault(real, (path, raw))[1] != raw:
            raise NotWritten(f"{path}: not written, it is {ready[real][0]} under another name")
    for real, (path, raw) in ready.items():
        switch.put(real, raw, shown=str(path))


def _name(source: Source) -> str:
    return source.path if source.cell is None else f"{source.path}:cell {source.cell}"


def _diff(name: str, old: str, new: str) -> str:
    name = one_line(name)
    lines = difflib.unified_diff(_lines(old), _lines(new), f"a/{name}", f"b/{name}", lineterm="\n")
    return "".join(_ended(line) for line in lines)


def _round(wanted: Sequence[F], result: Fixed[F]) -> bool:
    """Make the fixes that go together; whether any text changed."""
    from fsdp2lint.edits.apply import combine

    while wanted:
        outcome = combine([_edits(f) for f in wanted])
        left = {one.index: one for one in outcome.left}
        result.dropped += [
            Dropped(wanted[one.index], one.why) for one in outcome.left if not one.again
        ]
        making = [f for i, f in enumerate(wanted) if i not in left]
        bad = _broken(outcome, result)
        if not bad:
            result.made += [f for f in making if _changes(f, outcome)]
            for source, text in outcome.texts.items():
                result.after[source.path] = source.with_text(text)
            return bool(outcome.spans)
        wanted = _without_broken(making, bad, result)
    return False


def _broken(outcome: Outcome, result: Fixed[F]) -> dict[Source, str]:
    """The sources that must not get their new text, and why."""
    bad: dict[Source, str] = {}
    for source, text in outcome.texts.items():
        current = result.after.get(source.path)
        if current is None or current.text != source.text:
            bad[source] = f"{source.path} is not among the files to change"
            continue
        try:
            source.encode(text)
        except Unreadable as error:
            bad[source] = error.message
            continue
        except UnicodeEncodeError as error:
            bad[source] = f"the changed text cannot be encoded: {error}"
            continue
        try:
            if source.with_text(text).tree.code != text:
                bad[source] = "the parser does not reproduce the changed text"
        except Unreadable as error:
            bad[source] = f"the changed text does not parse: {error.message}"
    return bad


def _without_broken(making: Sequence[F], bad: Mapping[Source, str], result: Fixed[F]) -> list[F]:
    """The fixes that are good alone; if all are, without the last of those that spoil a file together."""
    from fsdp2lint.edits.apply import combine

    good: list[F] = []
    for finding in making:
        alone = _broken(combine([_edits(finding)]), result)
        if alone:
            result.dropped.append(Dropped(finding, next(iter(alone.values()))))
        else:
            good.append(finding)
    if len(good) == len(making):
        last = next(f for f in reversed(good) if {e.source for e in _edits(f)} & set(bad))
        good.remove(last)
        why = next(bad[e.source] for e in _edits(last) if e.source in bad)
        result.dropped.append(Dropped(last, f"together with other fixes, {why}"))
    return good


def _applicable(fix: Fix | None, unsafe: bool) -> bool:
    """Whether a fix is made: safe ones always, unsafe ones when asked, shown ones never."""
    return fix is not None and (fix.safety == "safe" or (unsafe and fix.safety == "unsafe"))


def _edits(finding: Fixable) -> tuple[Edit, ...]:
    return finding.fix.edits if finding.fix is not None else ()


def _changes(finding: Fixable, outcome: Outcome) -> bool:
    return any(edit.source in outcome.spans for edit in _edits(finding))


def _key(finding: Fixable) -> Hashable:
    """What a finding whose fix was dropped is known by in the next round."""
    title = finding.fix.title if finding.fix is not None else ""
    return frozenset(edit.source.path for edit in _edits(finding)), finding.message, title


def _checked(
    old: Source, new: Source, path: Path, named: Sequence[str] | None
) -> tuple[Path, bytes]:
    """The file behind a path, and the bytes that it gets."""
    try:
        raw = read(str(path))
        if raw != old.encode(old.text):
            raise NotWritten(f"{path}: not written, its bytes are not those that were analysed")
        if not os.access(path, os.W_OK):
            raise NotWritten(f"{path}: not written, the file is read-only")
        real = path.resolve(strict=True)
        if named is not None and not _is_given(path, named):
            raise NotWritten(
                f"{path}: not written, it is a link to {real}, outside of what was given; "
                "give the link itself to have that file changed"
            )
        if real.stat().st_nlink > 1:
            raise NotWritten(
                f"{path}: not written, the file has other names (hard links), which would keep the old "
                "text; copy it over itself first to break the links"
            )
        return real, new.encode(new.text)
    except OSError as error:
        raise NotWritten(f"{path}: not written, {error.strerror or error}") from error
    except (UnicodeEncodeError, Unreadable) as error:
        raise NotWritten(f"{path}: not written, {error}") from error


def _is_given(path: Path, named: Sequence[str]) -> bool:
    """Whether the user named the path, or the file behind it lies below a folder that the user named."""
    if os.path.normpath(path) in map(os.path.normpath, named):
        return True
    return is_below(str(path), [one for one in named if os.path.isdir(one)])


def _lines(text: str) -> list[str]:
    r"""The lines with their ends; unlike ``splitlines``, only ``\n`` ends one, as for ``patch``."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + lines[-1:] * bool(lines[-1])


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
