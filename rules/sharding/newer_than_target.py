"""Something is used that the oldest torch of the project does not have yet.

## What it does

Finds names, methods and arguments of FSDP2, Distributed Checkpoint, DTensor and DeviceMesh that were added to torch after
the release that the project names as its oldest: `target-torch`, `--target-torch`, or the lower bound of its own
dependencies. Names that are gone from that release on are found too.

## Why is this bad

Whoever installs the oldest release that the project allows gets ImportError, AttributeError or TypeError: often only
at the first checkpoint, an hour into the run.

## Example

```diff
 # target: torch 2.13
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-model.set_keep_unsharded_storage(True)
+if hasattr(model, "set_keep_unsharded_storage"):
+    model.set_keep_unsharded_storage(True)
```

## Forms

- Found: a name that the oldest torch does not have.
- Found: a method that a helper function calls.
- Not found: a call that an option switches on.

## Known limits

There is no fix: either the lower bound is too low, or the older release needs another way.
Without a target nothing is reported. What is under `if` or `try`, and what runs only under a condition, is how
code serves several releases and is not reported; nor is what only functions do that the script does not call. The
releases that are known are those in the data file of the installed version.

## References

- `torch/distributed/fsdp/__init__.py`, `torch/distributed/checkpoint/__init__.py` of each release
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Finding,
    Layout,
    Module,
    Offer,
    Sharded,
    Site,
    Trace,
    offer,
    options,
    rule,
    unwrapped,
)

from ._common.imports import imports

_MODULE = "torch.distributed.fsdp.FSDPModule"

Target = tuple[int, int]


@rule(code="FSDP259", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Names, methods and arguments that the target release lacks."""
    if trace.target is None:
        return
    imported = set()
    for source, statement, module in imports(trace, "torch"):
        names = () if isinstance(statement.names, cst.ImportStar) else statement.names
        for alias in names:
            name = f"{module}.{source.code(alias.name)}"
            said = _absent(offer(name), trace.target)
            if said:
                imported.add(name)
                message = f"`{name}` {said}"
                yield Finding(at=Site(source, alias, statement), message=message)
    for call in trace.of(Called):
        if trace.entry == "__main__" and not call.guards:
            name = _name(trace, call)
            said = "" if name in imported else _missing(call, name, trace.target)
            if said and not _tried(call):
                yield Finding(at=call, message=said)


def _tried(call: Called) -> bool:
    """Whether the call, or one that leads to it, is in a ``try`` that catches something."""
    return any(
        isinstance(one, cst.Try) and one.handlers
        for site in (call.at, *call.calls)
        for one in Layout.of(site.source).ancestors(site.node)
    )


def _name(trace: Trace, call: Called) -> str:
    """The public name of what is called; empty when it is not torch's."""
    if not call.name.startswith("."):
        return call.name
    called = [] if call.receiver is None else [unwrapped(one) for one in options(call.receiver)]
    name = f"{_MODULE}{call.name}"
    if not called or not all(isinstance(one, Module) for one in called) or offer(name) is None:
        return ""
    sharded = {m for e in trace.before(call, Sharded) for one in e.modules for m in options(one)}
    known = {unwrapped(one) for one in sharded}
    return name if known.issuperset(called) else ""


def _missing(call: Called, name: str, target: Target) -> str:
    """What the target release lacks of what is called."""
    offered = offer(name) if name else None
    if offered is None:
        return ""
    said = _absent(offered, target)
    if said:
        return f"`{name}` {said}"
    then, ever = offered.parameters(target), _ever(offered)
    if any(one.startswith("**") for one in then):
        return ""
    for keyword in call.keywords:
        if keyword not in then and keyword in ever:
            release = ".".join(map(str, ever[keyword]))
            return (
                f"`{keyword}=` of `{name}` came with torch {release}; the oldest torch of this "
                f"project is {target[0]}.{target[1]}"
            )
    return ""


def _ever(offered: Offer) -> dict[str, Target]:
    """Each parameter with the first release that has it."""
    found: dict[str, Target] = {}
    for since, names in offered.signatures:
        for name in names:
            found.setdefault(name, since)
    return found


def _absent(offered: Offer | None, target: Target) -> str:
    """That a name is not in the target release, or nothing."""
    if offered is None:
        return ""
    oldest = f"the oldest torch of this project is {target[0]}.{target[1]}"
    if target < offered.since:
        return f"came with torch {'.'.join(map(str, offered.since))}; {oldest}"
    if offered.until is not None and offered.until < target:
        return f"was last in torch {'.'.join(map(str, offered.until))}; {oldest}"
    return ""
