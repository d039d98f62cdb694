"""Ranks share out files in the order in which a folder happens to list them.

## What it does

Finds `os.listdir`, `os.scandir`, `glob.glob` and the same of a `pathlib.Path` of which each rank takes its share by its
number (`files[rank::world_size]`, `files[rank]`), when nothing sorts the names, in a script that shards its model.

## Why is this bad

Python gives the names "in arbitrary order": that of the file system, which differs between two copies of a folder on
two hosts, by the order in which the files were written. The shares of the ranks then overlap: of eight files, copied
to a second folder in another order, two ranks read some twice and others never, without an error. Sort the names.

## Example

```diff
 import os

 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-files = os.listdir("data")
+files = sorted(os.listdir("data"))
 for name in files[dist.get_rank() :: dist.get_world_size()]:
     model(torch.load(f"data/{name}")).square().mean().backward()
```

## Forms

- Found: a share that a helper takes of a list made of the names.
- Found: a data set that keeps the share of its rank.
- Not found: a test of each file's number.

## Fix safety

Safe: `sorted(…)` around the names gives the same names, in an order that is the same on all ranks. Only
around `os.listdir` and `glob.glob`, which give lists.

## Known limits

Silent where anything that sorts is given the names, or something made of them; where only some ranks list them, where
they are handed to code that cannot be followed or sent to the other ranks; and for the local rank, as all ranks of one
host see one order. Where all ranks read one shared folder the order is mostly the same, but nothing promises it.

## References

- https://docs.python.org/3/library/os.html#os.listdir
- https://docs.python.org/3/library/glob.html#glob.glob
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Collective,
    Container,
    Escaped,
    External,
    Finding,
    Fix,
    Instance,
    Part,
    Rank,
    Rewrite,
    Round,
    Sharded,
    Trace,
    Value,
    options,
    rank_dependent,
    root,
    rule,
)

from .._common.shared import is_sharded_again

_LISTING = ("os.listdir", "os.scandir", "glob.glob", "glob.iglob")
_LISTS = ("os.listdir", "glob.glob")
_OF_A_PATH = (".iterdir", ".glob", ".rglob")
_ONLY_LOOKING = ("builtins.len", "builtins.print", "builtins.enumerate", "builtins.list")
_FOLLOWED = (".", "builtins.", "os.", "pathlib.", "torch.")
"""What leaves the order of a list as it is, or is known by its name to sort."""
_NAMING = ("os.path.join", "os.path.abspath", "os.path.basename", "pathlib.Path", "builtins.str")
_OF_NAMES = ("format", "str", "/", "+", ".path", ".name", ".stem", ".parent")
_DEPTH = 12
"""So many steps lead from a file's name back to the listing: an entry, a list of entries, a text made of one."""


@rule(code="FSDP421", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Listings that ranks share out by their numbers."""
    listings = {called.result: called for called in _listings(trace)}
    if not listings or all(map(is_sharded_again, trace.of(Sharded))):
        return
    listings = {one: listings[one] for one in listings.keys() - _put_in_order(trace, listings)}
    said: set[object] = set()
    for share, read in _shares(trace) if listings else ():
        for listing in (listings[one] for one in _names_in(trace, share) if one in listings):
            if listing.at.node not in said:
                said.add(listing.at.node)
                yield _finding(listing, read)


def _finding(listing: Called, read: Called | None) -> Finding:
    return Finding(
        at=listing,
        message=f"each rank takes its share of the files in the order in which `{listing.name.lstrip('.')}` lists them, "
        "which can be another one on another host: some are read twice, others never; sort the names",
        because=() if read is None else ((read, "the share of a rank is read here"),),
        fix=_sorted(listing),
    )


def _listings(trace: Trace) -> Iterator[Called]:
    """The calls that give names in the order of a file system, on all ranks alike."""
    found = list(trace.calls(*_LISTING))
    found += [
        c for c in trace.calls(*_OF_A_PATH) if c.receiver is not None and _is_path(c.receiver)
    ]
    for called in found:
        tests = (guard.test for clause in called.guards.clauses for guard in clause)
        if not any(map(rank_dependent, tests)):
            yield called


def _is_path(value: Value) -> bool:
    made = root(value)
    return isinstance(made, External) and made.name in ("pathlib.Path", "pathlib.PosixPath")


def _put_in_order(trace: Trace, listings: dict[Value, Called]) -> set[Value]:
    """The listings that something sorts or sends to other ranks, or that code which cannot be followed gets."""
    handed = [one for c in trace.of(Called) if _may_order(c) for one in _given(c)]
    handed += [
        one
        for called in trace.of(Called)
        if not called.name.startswith(_FOLLOWED)
        for one in called.arguments
        if isinstance(one, Container) or one in listings
    ]
    handed += [one.value for one in trace.of(Escaped)]
    handed += [one.about for one in trace.of(Collective) if one.about is not None]
    return {found for one in handed for found in _made_of(one, trace) if found in listings}


def _may_order(called: Called) -> bool:
    return "sort" in called.name.lower() or "broadcast" in called.name or "gather" in called.name


def _given(called: Called) -> list[Value]:
    given = [*called.arguments, *called.keywords.values()]
    return given if called.receiver is None else [called.receiver, *given]


def _shares(trace: Trace) -> Iterator[tuple[Value, Called | None]]:
    """The lists of which each rank takes its share, with the call that is given it; None where an object keeps it."""
    seen: set[Value] = set()
    for called in trace.of(Called):
        if called.name not in _ONLY_LOOKING and "log" not in called.name:
            new = [one for one in _given(called) if one not in seen]
            seen.update(new)
            for given in new:
                for one in _made_of(given):
                    if (whole := _shared_out(one)) is not None:
                        yield whole, called
    for kept in trace.memory.held_by:
        if (whole := _shared_out(kept)) is not None:
            yield whole, None


def _shared_out(value: Value) -> Value | None:
    """The list that a value is a share of, by the number of a rank."""
    if not isinstance(value, Part) or value.operation not in ("[:]", "[]"):
        return None
    return value.owner if any(map(_by_rank, value.made_of[1:])) else None


def _names_in(trace: Trace, value: Value, depth: int = _DEPTH) -> Iterator[Value]:
    """The listings whose names a list has as its entries, as they are or as paths: not what was read in those files."""
    for one in options(value) if depth else ():
        yield one
        if isinstance(one, Part) and one.operation == "[:]":
            yield from () if one.owner is None else _names_in(trace, one.owner, depth - 1)
        for _, entry in trace.memory.entries(one) if isinstance(one, Container) else ():
            for named in _named(trace, entry, depth - 1):
                if isinstance(named, Part) and isinstance(named.key, Round) and named.owner:
                    yield from _names_in(trace, named.owner, depth - 1)


def _named(trace: Trace, value: Value, depth: int) -> Iterator[Value]:
    """A name, what it was made of where it is the path of one, and what an object holds that is made for a file."""
    for one in options(value) if depth else ():
        yield one
        if isinstance(one, Instance | Container):
            held = (v for _, v in trace.memory.entries(one))
            yield from (v for h in held for v in _named(trace, h, depth - 1))
        if not isinstance(one, Part) or isinstance(one.key, Round):
            continue
        how, given = one.operation or one.key, one.operands
        made = isinstance(one.owner, External) and one.owner.name in _NAMING
        if how in _OF_NAMES or made:
            below = [one.owner, *given] if how in _OF_NAMES else given
            yield from (
                v for b in below if isinstance(b, Value) for v in _named(trace, b, depth - 1)
            )


def _by_rank(value: Value) -> bool:
    """Whether a number is computed from the rank, not from that on one host."""
    if isinstance(value, Rank):
        return value.scope != "local"
    return isinstance(value, Part) and any(map(_by_rank, value.made_of))


def _made_of(value: Value, trace: Trace | None = None) -> set[Value]:
    """A value with all that it was made of: its owner, what a text has in it, and with a trace the entries of a list."""
    found: set[Value] = set()
    left = [value]
    for _ in range(_DEPTH):
        left = [one for v in left for one in options(v) if one not in found]
        found.update(left)
        left = [below for one in left for below in _parts(one, trace)]
    return found


def _parts(value: Value, trace: Trace | None) -> Iterator[Value]:
    if isinstance(value, Container) and trace is not None:
        yield from (one for _, one in trace.memory.entries(value))
    elif isinstance(value, Part):
        yield from value.made_of


def _sorted(listing: Called) -> Fix | None:
    """``sorted(…)`` around a call that gives a list of names; an iterator may be asked for its next."""
    node = listing.at.node
    if not isinstance(node, cst.Call) or listing.name not in _LISTS:
        return None
    edit = Rewrite(listing.at.source, node, lambda new: f"sorted({new(node)})")
    return Fix("sort the names", (edit,), "safe")
