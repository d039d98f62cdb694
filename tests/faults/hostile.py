"""A repository of somebody who wishes us ill, and what must not have happened when we have looked at it.

Everything is made when it is needed: such names, links and settings are in no repository of ours.
"""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
from pathlib import Path
from typing import NamedTuple

LATE = """\
import torch
from torch.distributed.fsdp import fully_shard

model = torch.nn.Linear(4, 4)  # ##[error]owned \x1b]0;owned\x07 \x1b[2J
optimizer = torch.optim.AdamW(model.parameters())
fully_shard(model)
optimizer.step()
x = 1  # fsdp2lint: ignore[FSDP203] -- ::error::owned
"""
OLD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(torch.nn.Linear(4, 4))  # ::error::owned \x1b[2J
model.clip_grad_norm_(1.0)
"""
NAMES = (
    "a\n::error title=owned::gone.py", "b\x1b[2J\x1b]0;owned\x07.py", "c\u202egnp.py", "d\r::set-output name=x::y.py", "-rf.py",
    "e <b>&\"'`$(touch owned).py", "##[error]f.py", "g|h*?[i].py", "j%0A::error::k.py",
)  # fmt: skip
"""Names that a terminal, a CI, a shell, XML or HTML could take for something else."""

_GIT = """\
[core]
	repositoryformatversion = 0
	fsmonitor = {program}
	hooksPath = {hooks}
	sshCommand = {program}
	pager = {program}
	editor = {program}
	untrackedCache = true
[diff]
	external = {program}
[diff "evil"]
	textconv = {program}
	command = {program}
[filter "evil"]
	clean = {program}
	smudge = {program}
	process = {program}
	required = true
[merge "evil"]
	driver = {program}
[gpg]
	program = {program}
[gpg "ssh"]
	program = {program}
[credential]
	helper = !{program}
[alias]
	status = !{program}
	rev-parse = !{program}
[remote "origin"]
	url = ext::{program}
	promisor = true
	partialclonefilter = blob:none
[uploadpack]
	packObjectsHook = {program}
[include]
	path = {more}
[user]
	name = x
	email = x@example.org
"""


class Hostile(NamedTuple):
    """The repository, what lies outside of it, and the file that appears when something of it is executed."""

    root: Path
    outside: Path
    owned: Path
    settings: Path
    """Folders beside it, each with settings that could take all of the machine."""

    def outside_now(self) -> dict[str, tuple[bytes, int]]:
        """Every file outside, with its bytes and the time of its last change."""
        files = (p for p in sorted(self.outside.rglob("*")) if p.is_file())
        return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


def build(folder: Path, *, sparse: int = 6_000_000_000) -> Hostile:
    """Make it below a folder."""
    made = Hostile(folder / "repository", folder / "outside", folder / "owned", folder / "settings")
    made.root.mkdir()
    made.outside.mkdir()
    program = _program(made)
    _code(made)
    _names(made)
    _links(made)
    _documents(made)
    _bombs(made, sparse)
    _repository(made, program)
    return made


def _program(made: Hostile) -> Path:
    program = made.root / "evil.sh"
    program.write_text(f"#!/bin/sh\ntouch '{made.owned}'\ncat\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    hooks = made.root / "hooks"
    hooks.mkdir()
    for name in (
        "pre-commit",
        "post-commit",
        "reference-transaction",
        "post-index-change",
        "fsmonitor-watchman",
    ):
        (hooks / name).symlink_to(program)
    return program


def _code(made: Hostile) -> None:
    """Modules that own whoever imports them, under names that something may import."""
    evil = f"open({str(made.owned)!r}, 'w').close()\n"
    names = (
        "conftest",
        "setup",
        "sitecustomize",
        "usercustomize",
        "torch",
        "click",
        "json",
        "libcst",
        "fsdp2lint",
        "helper",
    )
    for name in names:
        (made.root / f"{name}.py").write_text(evil + LATE)
    (made.root / "sub").mkdir()
    (made.root / "sub" / "__init__.py").write_text(evil)
    (made.root / "late.py").write_text("from helper import x\n" + LATE)
    (made.root / "old.py").write_text(OLD)


def _names(made: Hostile) -> None:
    for number, name in enumerate(NAMES):
        (made.root / name).write_text((LATE, OLD)[number % 2])


def _links(made: Hostile) -> None:
    """Ways out of the tree, and files that are none."""
    for name in ("late", "old", "hard"):
        (made.outside / f"{name}.py").write_text(OLD if name == "old" else LATE)
    (made.outside / "deep").mkdir()
    (made.outside / "deep" / "late.py").write_text(LATE)
    (made.root / "link.py").symlink_to(made.outside / "late.py")
    (made.root / "linked_old.py").symlink_to(made.outside / "old.py")
    (made.root / "folder").symlink_to(made.outside / "deep")
    (made.root / "loop").symlink_to(made.root)
    (made.root / "itself.py").symlink_to("itself.py")
    (made.root / "zero.py").symlink_to("/dev/zero")
    os.link(made.outside / "hard.py", made.root / "hard.py")
    os.mkfifo(made.root / "pipe.py")
    (made.root / ".fsdp2lint_cache").symlink_to(made.outside)
    (made.root / ".fsdp2lint_backup").symlink_to(made.outside)
    (made.root / "fsdp2lint-baseline.json").symlink_to(made.outside / "baseline.json")


class _Evil:
    def __init__(self, owned: Path) -> None:
        self.owned = str(owned)

    def __reduce__(self) -> tuple[object, ...]:
        return open, (self.owned, "w")


def _documents(made: Hostile) -> None:
    """A notebook, a checkpoint as a file and one as a folder, settings with tags of YAML."""
    evil = f"!touch '{made.owned}'\n"
    output = {
        "output_type": "display_data",
        "data": {"text/html": f"<script>{evil}</script>"},
        "metadata": {},
    }
    cells = [
        {
            "cell_type": "code",
            "metadata": {},
            "execution_count": 1,
            "outputs": [output],
            "source": evil + "%run evil.sh\n" + LATE,
        },
        {"cell_type": "code", "metadata": {}, "execution_count": 2, "outputs": [], "source": OLD},
    ]
    book = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (made.root / "book.ipynb").write_text(json.dumps(book))
    raw = pickle.dumps({"model": _Evil(made.owned)})
    (made.root / "last.pt").write_bytes(raw)
    (made.root / "checkpoint").mkdir()
    (made.root / "checkpoint" / ".metadata").write_bytes(raw)
    (made.root / "fsdp.yaml").write_text(
        f"distributed_type: FSDP\nx: !!python/object/apply:os.system ['touch {made.owned}']\nfsdp_config: {{}}\n"
    )


def _bombs(made: Hostile, sparse: int) -> None:
    """Little input that could take all of the machine."""
    many = "{a,b}" * 24
    for name, text in {
        "deep": "x = " + "[" * 20_000,
        "patterns": f"[tool.fsdp2lint]\nextend-exclude = ['{many}']\n",
        "table": "[" + ".".join("a" * 5_000) + "]\nx = 1\n",
        "bound": f"[project]\ndependencies = ['torch>={'9' * 6_000}']\n",
    }.items():
        (made.settings / name).mkdir(parents=True)
        (made.settings / name / "pyproject.toml").write_text(text)
        (made.settings / name / "late.py").write_text(LATE)
    bombs = made.root / "bombs"
    bombs.mkdir()
    (bombs / "stars").mkdir()
    (bombs / "stars" / ".gitignore").write_text(
        "**/" * 300 + "*a*b*c*d*e*f*g*h\n" + "*" * 5_000 + "x\n"
    )
    (bombs / "stars" / ("a" * 200 + ".py")).write_text(LATE)
    (bombs / "chain.py").write_text("import torch.distributed.fsdp\nx" + ".a()" * 3_000 + "\n")
    (bombs / "laugh.yaml").write_text(
        "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 20)).replace("*a0", "1")
    )
    (bombs / "nested.json").write_text("[" * 100_000)
    (bombs / "nested.ipynb").write_text('{"cells": ' + "[" * 100_000)
    with open(bombs / "sparse.py", "wb") as file:
        file.truncate(sparse)


def _repository(made: Hostile, program: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=made.root, check=True, capture_output=True)

    git("init", "-q")
    tracked = ("late.py", "old.py", "helper.py")
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    git("add", *tracked)
    git(*who, "commit", "-qm", "all")
    (made.root / ".gitattributes").write_text("*.py filter=evil diff=evil merge=evil\n")
    (made.root / "more").write_text(
        f'[core]\n\tfsmonitor = {program}\n[filter "evil"]\n\tclean = {program}\n'
    )
    text = _GIT.format(program=program, hooks=made.root / "hooks", more=made.root / "more")
    (made.root / ".git" / "config").write_text(text)
    (made.root / "late.py").write_text(LATE + "x = 2\n")
