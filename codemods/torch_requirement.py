"""The project asks for a torch release that has FSDP2.

## What it does

Raises the lower bound of torch in `requirements*.txt`, `pyproject.toml`, `setup.cfg` and conda files to the release
that the migration was asked for (`--target-torch`), when FSDP1 is used here, and to the one that has what the new
code calls. A pin to an older release is left.

## Why

`fully_shard` is at its public place since torch 2.6, `ignored_params` came with 2.7.

## Example

```diff
 from torch import nn
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 model = FSDP(nn.Linear(8, 8))
```

## What it leaves

Pins (`torch==2.1`), also those of torchvision and torchaudio, whose releases ask for one release of torch each, upper
bounds below the target, and requirements with extras or markers that it cannot read. The ledger names each.

## References

- `torch/distributed/fsdp/__init__.py` of torch 2.6
- https://packaging.python.org/en/latest/specifications/dependency-specifiers/
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp2lint.api import (
    Left,
    Literal,
    Program,
    Respelling,
    Source,
    Step,
    Wrapping,
    codemod,
    offer,
    options,
)

LISTS = re.compile(r"(requirements[^/]*\.txt|pyproject\.toml|setup\.cfg|environment[^/]*\.ya?ml)\Z")
TORCH, COMPANIONS = (
    re.compile(
        rf"""(?P<before>^[ \t]*(?:-[ \t]*)?|["'][ \t]*)(?P<name>{names})
    (?P<bounds>[ \t]*(?:[<>=!~]=?=?[ \t]*[\w.*+]+[ \t]*(?:,[ \t]*)?)*)
    (?P<after>(?=[ \t]*(?:["';\#]|\r?$)))""",
        re.MULTILINE | re.VERBOSE,
    )
    for names in ("torch|pytorch", "torchvision|torchaudio")
)
"""Requirements of torch, and of the libraries of which each release asks for one release of torch."""
TABLE = re.compile(r"^\[(?P<name>[^\[\]\n]+)\]", re.MULTILINE)
KEY = re.compile(r"""^(?P<name>[\w"'.-]+)[ \t]*=""", re.MULTILINE)
SECTION = re.compile(r"^(?P<name>[\w-]+)[ \t]*:", re.MULTILINE)
TABLES: dict[str, dict[str, str]] = {
    "pyproject.toml": {
        "project": "dependencies",
        "project.optional-dependencies": "*",
        "dependency-groups": "*",
    },
    "setup.cfg": {"options": "install_requires", "options.extras_require": "*"},
}
"""Where the requirements are in files that hold more than those: the table and its key."""
FIRST = (2, 6)
"""The first release with ``fully_shard`` in its public place."""

BOUND = re.compile(r"(?P<sign>[<>=!~]=?=?)(?P<gap>[ \t]*)(?P<version>[\w.*+]+)")


@codemod(after=("spawn-launch",))
def rewrite(program: Program) -> Iterator[Step | Left | Respelling]:
    """Requirements of torch."""
    if "fsdp1" not in program.wrappers:
        return
    needed = max(program.options.target_torch, _needed(program))
    for text in program.texts:
        if LISTS.search(text.path.replace("\\", "/")):
            held = _held_by(text, needed)
            for found in TORCH.finditer(text.text):
                if _is_requirement(text, found.start("name")):
                    yield from _raised(text, found, needed, held)


def _held_by(text: Source, needed: tuple[int, int]) -> str:
    """A library that is pinned to a release for an older torch: `torchvision` 0.21 is the one for torch 2.6."""
    for found in COMPANIONS.finditer(text.text):
        major, minor = needed
        asked = (0, minor + 15) if found["name"] == "torchvision" else (major, minor)
        if _is_requirement(text, found.start("name")) and _is_below(found, asked):
            return str(found["name"])
    return ""


def _is_below(found: re.Match[str], target: tuple[int, int]) -> bool:
    """Whether a requirement excludes a release and all later ones."""
    return any(
        b["sign"] in ("==", "===", "=", "~=", "<", "<=") and _parts(b) < target
        for b in BOUND.finditer(found["bounds"])
    )


def _needed(program: Program) -> tuple[int, int]:
    """The first release with all that ``fully_shard`` gets where FSDP1 was."""
    arguments = {
        name
        for _, wrapping in program.of(Wrapping)
        if wrapping.by == "fsdp1"
        for name, value in wrapping.options.items()
        if not all(isinstance(one, Literal) and one.value is None for one in options(value))
    }
    sharding = offer("torch.distributed.fsdp.fully_shard")
    if sharding is None or not arguments & {"ignored_modules", "ignored_states"}:
        return FIRST
    return next(since for since, names in sharding.signatures if "ignored_params" in names)


def _is_requirement(text: Source, offset: int) -> bool:
    """Whether a word is in a list of requirements, and not in the settings of some tool."""
    path = text.path.replace("\\", "/")
    if path.endswith((".yml", ".yaml")):  # a channel of conda is called `pytorch` too
        above = list(SECTION.finditer(text.text, 0, offset))
        return bool(above) and above[-1]["name"] == "dependencies"
    wanted = TABLES.get(path.rpartition("/")[2])
    if wanted is None:
        return True
    tables = list(TABLE.finditer(text.text, 0, offset))
    keys = list(KEY.finditer(text.text, tables[-1].end() if tables else 0, offset))
    table = tables[-1]["name"].strip() if tables else ""
    key = keys[-1]["name"].strip("\"'") if keys else ""
    return wanted.get(table) in (key, "*") if table in wanted else False


def _raised(
    text: Source, found: re.Match[str], target: tuple[int, int], held: str
) -> Iterator[Respelling]:
    wanted = ".".join(map(str, target))
    bounds = list(BOUND.finditer(found["bounds"]))
    start, end = found.start("name"), found.end("bounds")
    what = found["name"]
    lower = [b for b in bounds if b["sign"] in (">=", ">")]
    if _is_below(found, target):
        todo = f"ask for torch {wanted} or later here"
        yield Respelling(
            text, start, end, "", what, f"`{found[0].strip()}` is kept: a choice of yours", todo
        )
    elif held and not any(_parts(b) >= target for b in lower):
        why = f"kept: the `{held}` that is pinned here goes with an older torch"
        todo = f"ask for torch {wanted} or later here, and for the {held} that goes with it"
        yield Respelling(text, start, end, "", what, why, todo)
    elif lower and _parts(lower[0]) < target:
        at = found.start("bounds")
        first = lower[0]
        why = f"fully_shard and what comes with it need torch {wanted}"
        said = f">={first['gap']}{wanted}"
        yield Respelling(text, at + first.start(), at + first.end(), said, what, why)
    elif not bounds:
        why = f"fully_shard and what comes with it need torch {wanted}"
        yield Respelling(text, end, end, f">={wanted}", what, why)


def _parts(bound: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(p) for p in re.findall(r"\d+", bound["version"])[:2])
