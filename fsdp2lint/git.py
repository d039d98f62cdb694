"""What git knows of the files: which have changed, what would be committed, and a commit of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Sequence

from fsdp2lint.discover import SUFFIXES

Wanted = Callable[[str], bool]
"""Whether a file, spelled from the current folder, is one that the run looks at."""


class GitProblem(Exception):
    """git is missing, or refuses; the message says what."""


def changed(paths: Sequence[str], wanted: Wanted, since: str | None = None) -> list[str]:
    """The wanted files below ``paths`` that differ from the last commit, untracked ones too.

    With ``since`` those that differ from where the present branch left that one.

    Raises:
        GitProblem: no repository, or no such revision.
    """
    _top()  # says so when there is no repository: git diff would compare folders
    base = "HEAD"
    if since is not None:
        base = _words("merge-base", since, "HEAD")[0].strip()
    elif not _succeeds("rev-parse", "--verify", "--quiet", "HEAD"):
        base = _words("hash-object", "-t", "tree", os.devnull)[0].strip()  # nothing is committed
    known = _names("diff", "--name-only", "--diff-filter=d", "-z", base)
    new = _names("ls-files", "--others", "--exclude-standard", "--full-name", "-z", ":/")
    return [path for _, path in _below(paths, (*known, *new), wanted)]


def staged(paths: Sequence[str], wanted: Wanted) -> tuple[list[str], dict[str, bytes]]:
    """The wanted files below ``paths`` that a commit would change, and the bytes that it would hold.

    The bytes are by absolute path, and there are those of every Python file that differs from its copy in
    the work tree, so that what a staged file imports is seen as it would be committed.

    Raises:
        GitProblem: no repository.
    """
    top = _top()
    chosen = _names("diff", "--cached", "--name-only", "--diff-filter=d", "-z")
    edited = _names("diff", "--name-only", "-z")
    python = (name for name in (*chosen, *edited) if name.endswith(SUFFIXES))
    mine = _below(paths, chosen, wanted)
    asked = list(dict.fromkeys((*(name for name, _ in mine), *python)))
    instead = {
        os.path.join(top, name): raw for name, raw in _in_the_index(asked) if raw is not None
    }
    return [path for _, path in mine], instead


def root_of(path: str) -> str | None:
    """The top folder of the repository that holds ``path``; None outside of one, or without git."""
    folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    try:
        return os.fsdecode(_git("rev-parse", "--show-toplevel", inside=folder)).rstrip("\n")
    except GitProblem:
        return None


def uncommitted(root: str) -> list[str]:
    """The known files of a repository that differ from the last commit, in git's short words.

    Raises:
        GitProblem: no repository.
    """
    said = _git("status", "--porcelain", "--untracked-files=no", inside=root)
    return os.fsdecode(said).splitlines()


def commit(root: str, files: Sequence[str], message: str) -> None:
    """Commit these files, and nothing else.

    Raises:
        GitProblem: git refuses, a hook for example.
    """
    paths = [os.path.abspath(file) for file in files]
    _git("add", "--", *paths, inside=root)
    _git("commit", "--quiet", "--message", message, "--", *paths, inside=root)


def _below(paths: Sequence[str], names: Iterable[str], wanted: Wanted) -> list[tuple[str, str]]:
    """The wanted files among ``names`` that lie below one of ``paths``: git's name, and as spelled from here."""
    top, here = _top(), os.path.realpath(os.getcwd())
    roots = [os.path.realpath(path) for path in paths]
    found = {}
    for name in names:
        full = os.path.join(top, name)
        if any(_inside(full, root) for root in roots):
            path = os.path.relpath(full, here)
            if wanted(path):
                found[path] = name
    return [(found[path], path) for path in sorted(found)]


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _top() -> str:
    return os.path.realpath(_words("rev-parse", "--show-toplevel")[0].rstrip("\n"))


def _in_the_index(names: Sequence[str]) -> Iterable[tuple[str, bytes | None]]:
    """The bytes of each file as it is staged; None for one that is not."""
    if not names:
        return
    asked = b"".join(b":" + os.fsencode(name) + b"\n" for name in names if "\n" not in name)
    raw = _git("cat-file", "--batch", given=asked)
    at = 0
    for name in (n for n in names if "\n" not in n):
        end = raw.index(b"\n", at)
        head = raw[at:end].split(b" ")
        at = end + 1
        if head[-1] == b"missing" or head[-2] != b"blob":
            yield name, None
            continue
        size = int(head[-1])
        yield name, raw[at : at + size]
        at += size + 1


def _names(*words: str) -> list[str]:
    return [os.fsdecode(name) for name in _git(*words).split(b"\0") if name]


def _words(*words: str) -> list[str]:
    return os.fsdecode(_git(*words)).splitlines(keepends=True) or [""]


def _succeeds(*words: str) -> bool:
    try:
        _git(*words)
    except GitProblem:
        return False
    return True


def _git(*words: str, given: bytes = b"", inside: str | None = None) -> bytes:
    # no -C of its own: inside a hook the environment names the repository, relative to where we are
    try:
        done = subprocess.run(
            ["git", *words], input=given, capture_output=True, check=False, cwd=inside
        )
    except OSError as error:
        raise GitProblem(f"git cannot be run: {error.strerror or error}") from error
    if done.returncode:
        said = os.fsdecode(done.stderr).strip().splitlines()
        raise GitProblem(f"git {words[0]}: {said[-1] if said else 'failed'}")
    return done.stdout
