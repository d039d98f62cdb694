"""What git knows of the files: which have changed, what would be committed, and commits of its own.

A repository may come from anybody, and its configuration can name programs for git to run. None of them is run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from fsdp2lint.system.discover import SUFFIXES

MAX_SECONDS = 300
"""How long git is waited for."""

Wanted = Callable[[str], bool]
"""Whether a file, spelled from the current folder, is one that the run looks at."""


class GitProblem(Exception):
    """git is missing, or refuses; the message says what."""


class GitNotStarted(GitProblem):
    """git is there, but the system could not start it: nobody knows what it would have said."""


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
    """The top folder of the repository that holds ``path``; None outside of one, or without git.

    Raises:
        GitNotStarted: the system is out of processes or memory, or its disk fails.
    """
    folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    try:
        return os.fsdecode(_git("rev-parse", "--show-toplevel", inside=folder)).rstrip("\n")
    except GitNotStarted:
        raise
    except GitProblem:
        return None


def uncommitted(root: str) -> list[str]:
    """The known files of a repository that differ from the last commit, in git's short words.

    Raises:
        GitProblem: no repository.
    """
    said = _git("status", "--porcelain", "--untracked-files=no", inside=root)
    return os.fsdecode(said).splitlines()


class Commits(NamedTuple):
    """Commits that were made and that no branch has yet."""

    branch: str
    """The branch that is to have them, or HEAD."""
    old: str
    """Its tip; empty when it has no commit."""
    new: str
    index_file: str
    """The file that is to hold ``raw`` then."""
    raw: bytes


def commits(root: str, stages: Iterable[tuple[Mapping[str, bytes], str]]) -> Commits:
    """A commit for each stage: the files that it changes with their new bytes, and the message.

    Nothing of the repository changes but that it holds the objects: an index of its own is used, and no hook
    runs. ``move`` gives them to the branch.

    Raises:
        GitProblem: git refuses; or a filter of the repository's own would have to run.
    """
    old = tip(root, "HEAD") or ""
    branch = _said("symbolic-ref", "--quiet", "HEAD", inside=root) or "HEAD"
    index = os.path.join(root, _said("rev-parse", "--git-path", "index", inside=root) or "")
    signed = _said("config", "--type=bool", "--get", "commit.gpgsign", inside=root) == "true"
    with tempfile.TemporaryDirectory(prefix="fsdp2lint-") as folder:
        own = os.path.join(folder, "index")
        with suppress(FileNotFoundError):
            shutil.copyfile(index, own)
        work = _Work(root, {"GIT_INDEX_FILE": own})
        new, tree = old, work.words("rev-parse", f"{old}^{{tree}}") if old else ""
        for files, message in stages:
            entries = [work.entry(path, raw) for path, raw in files.items()]
            work.git("update-index", "-z", "--index-info", given=b"".join(entries))
            made = work.words("write-tree")
            if made != tree:
                tree, above = made, ("-p", new) if new else ()
                sign = ("-S",) if signed else ()
                new = work.words("commit-tree", made, *above, *sign, given=message.encode())
        with open(own, "rb") as file:
            return Commits(branch, old, new, index, file.read())


def tip(root: str, branch: str) -> str | None:
    """The commit of a branch; None when it has none."""
    return _said("rev-parse", "--verify", "--quiet", f"{branch}^{{commit}}", inside=root) or None


def move(root: str, branch: str, new: str, old: str) -> None:
    """Move a branch from one commit to another; an empty one is no branch.

    Raises:
        GitProblem: it is somewhere else by now.
    """
    words = (branch, new, old) if new else ("-d", branch, old)
    _git("update-ref", "-m", "fsdp2lint migrate", *words, inside=root)


class _Work(NamedTuple):
    """A work tree with an index of our own."""

    root: str
    environment: Mapping[str, str]

    def git(self, *words: str, given: bytes = b"") -> bytes:
        return _git(*words, given=given, inside=self.root, environment=self.environment)

    def words(self, *words: str, given: bytes = b"") -> str:
        return os.fsdecode(self.git(*words, given=given)).strip()

    def entry(self, path: str, raw: bytes) -> bytes:
        """The line of the index for a file with new bytes, which become an object of the repository."""
        name = os.path.relpath(os.path.realpath(path), self.root).replace(os.sep, "/")
        driver = self.words("check-attr", "-z", "filter", "--", name).split("\0")[2]
        if any(key.startswith(f"filter.{driver}.") for key in _own_programs(self.root)):
            raise GitProblem(
                f"{path} goes through the filter `{driver}` of this repository's own configuration, which "
                "is not run: use --write and commit yourself"
            )
        mode = self.words("--literal-pathspecs", "ls-files", "--stage", "-z", "--", name)[:6]
        if not mode:
            if _succeeds("check-ignore", "--quiet", "--", name, inside=self.root):
                raise GitProblem(f"{path} is ignored by git: it cannot be committed")
            mode = "100755" if os.access(path, os.X_OK) else "100644"
        blob = self.words("hash-object", "-w", "--stdin", "--path", name, given=raw)
        return f"{mode} {blob}\t".encode() + os.fsencode(name) + b"\0"


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


def _said(*words: str, inside: str) -> str | None:
    """What git answers, on one line; None when it refuses."""
    try:
        return os.fsdecode(_git(*words, inside=inside)).strip()
    except GitProblem:
        return None


def _succeeds(*words: str, inside: str | None = None) -> bool:
    try:
        _git(*words, inside=inside)
    except GitProblem:
        return False
    return True


_CLEAN = (
    "core.fsmonitor=", f"core.hooksPath={os.devnull}", "core.splitIndex=false", "protocol.allow=never",
    "status.submoduleSummary=false", "diff.ignoreSubmodules=all", "submodule.recurse=false",
)  # fmt: skip
"""What a repository could have us run, switched off: a repository may come from anybody."""

_ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}

_PROGRAMS = r"^(filter\..*\.(clean|smudge|process|required)|gpg\..*(program|command))$"
"""Keys of a configuration that name programs which git would run for what we ask."""


def _git(
    *words: str,
    given: bytes = b"",
    inside: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> bytes:
    """What git prints, run such that it runs no program that the repository itself names."""
    clean = [*_CLEAN, *(f"{key}=" for key in _own_programs(inside or os.getcwd()))]
    return _run(
        [word for one in clean for word in ("-c", one)] + [*words], given, inside, environment
    )


@cache
def _own_programs(folder: str) -> tuple[str, ...]:
    """The keys by which the configuration of a repository itself names programs."""
    found: list[str] = []
    for scope in ("--local", "--worktree"):
        words = ["config", scope, "--includes", "--name-only", "-z", "--get-regexp", _PROGRAMS]
        try:
            found += os.fsdecode(_run(words, b"", folder, None)).split("\0")
        except GitNotStarted:
            raise
        except GitProblem:
            continue  # it names none
    return tuple(dict.fromkeys(filter(None, found)))


def _run(
    words: Sequence[str], given: bytes, inside: str | None, environment: Mapping[str, str] | None
) -> bytes:
    # no -C of its own: inside a hook the environment names the repository, relative to where we are
    try:
        done = subprocess.run(
            ["git", *words],
            input=given,
            capture_output=True,
            check=False,
            cwd=inside,
            env={**os.environ, **_ENVIRONMENT, **(environment or {})},
            timeout=MAX_SECONDS,
        )
    except subprocess.TimeoutExpired as error:  # its files may be pipes
        raise GitNotStarted(f"git gave no answer within {MAX_SECONDS} s") from error
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise GitProblem(f"git cannot be run: {error.strerror or error}") from error
    except OSError as error:
        raise GitNotStarted(f"git cannot be started: {error.strerror or error}") from error
    if done.returncode:
        said = os.fsdecode(done.stderr).strip().splitlines()
        verb = next((word for word in words if word[:1].isalpha() and "=" not in word), "")
        raise GitProblem(f"git {verb}: {said[-1] if said else 'failed'}")
    return done.stdout
