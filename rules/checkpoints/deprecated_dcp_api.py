"""A checkpoint is written or read by a function of DCP that will be removed.

## What it does

Finds calls of `save_state_dict` and `load_state_dict` of `torch.distributed.checkpoint`, and imports from its old
home `torch.distributed._shard.checkpoint`.

## Why is this bad

Both functions are deprecated since 2.2: each call says so in a `FutureWarning`, and a later release will not have
them. `save` and `load` do more: they ask objects with a `state_dict` for it and take a path as `checkpoint_id`.
The old module only hands on the new one, with a `DeprecationWarning`.

## Example

```diff
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-dcp.save_state_dict(model.state_dict(), dcp.FileSystemWriter("step_1"))
+dcp.save(model.state_dict(), storage_writer=dcp.FileSystemWriter("step_1"))
```

## Forms

- Found: names that are imported, or looked up.
- Found: the old home of the module.
- Not found: a call under `try`, which may be there for old releases.

## Fix safety

Safe: the new function gets the same arguments by name, and writes and reads the same files. A call that names
another coordinator than rank 0, or that passes `**kwargs` on, has no fix.

## Known limits

Calls under `try`, and calls where another branch calls the new function, serve old releases and are left alone.
`load_sharded_optimizer_state_dict` is not deprecated: FSDP1 checkpoints need it.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`save_state_dict`, `load_state_dict`)
- `torch/distributed/checkpoint/state_dict_saver.py` (`save_state_dict`)
- `torch/distributed/_shard/checkpoint/__init__.py`
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Arguments,
    Called,
    Edit,
    Finding,
    Fix,
    Layout,
    Names,
    Replace,
    Site,
    Source,
    Trace,
    Unimport,
    dotted,
    imported_module,
    name_for,
    rule,
    walk,
)

from .._common.fixes import call_of
from .._common.shared import DCP

_OLD_HOME = "torch.distributed._shard.checkpoint"
_NEW = {f"{DCP}save_state_dict": "save", f"{DCP}load_state_dict": "load"}
_STORAGE = {"save": "storage_writer", "load": "storage_reader"}


@rule(code="FSDP312", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Calls of the old functions, imports from the old module."""
    for called in trace.calls(*_NEW):
        new = _NEW[called.name]
        if _in_try(called.at.source, called.at.node) or _chosen(trace, called, new):
            continue
        yield Finding(
            at=called,
            message=f"`{called.name.removeprefix(DCP)}` is deprecated and will be removed; use `{new}` of "
            "`torch.distributed.checkpoint`",
            fix=_renamed(called, new),
        )
    for source in trace.sources:
        for statement in source.derived(_old_imports):
            yield Finding(
                at=Site(source, statement, statement),
                message=f"`{_OLD_HOME}` is the old home of `torch.distributed.checkpoint` and will be removed",
                fix=_at_home(source, statement),
            )


def _chosen(trace: Trace, called: Called, new: str) -> bool:
    """Whether another branch calls the new function, as code for several releases does."""
    return any(other.guards.excludes(called.guards) for other in trace.calls(f"{DCP}{new}"))


def _in_try(source: Source, node: cst.CSTNode) -> bool:
    """Whether something else is done where a call fails, or the call is what else is done."""
    return any(isinstance(a, cst.Try) for a in Layout.of(source).ancestors(node))


def _old_imports(source: Source) -> tuple[cst.Import | cst.ImportFrom, ...]:
    """The imports from the old module that are not under `try` or `if`."""
    if "_shard.checkpoint" not in source.text:
        return ()
    layout = Layout.of(source)
    return tuple(
        node
        for node in walk(source.tree)
        if isinstance(node, cst.Import | cst.ImportFrom) and _old_module(source, node) is not None
        if not any(isinstance(a, cst.Try | cst.If) for a in layout.ancestors(node))
    )


def _old_module(source: Source, node: cst.Import | cst.ImportFrom) -> cst.CSTNode | None:
    """The name of the old module in an import."""
    if isinstance(node, cst.ImportFrom):
        return node.module if imported_module(node) == _OLD_HOME else None
    found = [alias.name for alias in node.names if source.code(alias.name) == _OLD_HOME]
    return found[0] if found else None


def _at_home(source: Source, node: cst.Import | cst.ImportFrom) -> Fix | None:
    """The same import from where the names are now; `import a.b.c` binds the old path, so it has none."""
    if isinstance(node, cst.Import) and (len(node.names) != 1 or node.names[0].asname is None):
        return None
    name = _old_module(source, node)
    if name is None:
        return None
    return Fix(f"import from `{DCP[:-1]}`", (Replace(source, name, DCP[:-1]),), "safe")


def _renamed(called: Called, new: str) -> Fix | None:
    """The new function with the same arguments."""
    call, source = call_of(called.at), called.at.source
    if call is None or any(argument.star for argument in call.args):
        return None
    arguments = Arguments(source, call)
    names = ("state_dict", _STORAGE[new], "process_group", "coordinator_rank", "no_dist", "planner")
    touched = False
    for index, argument in enumerate(call.args):
        name = names[index] if argument.keyword is None else argument.keyword.value
        if name == "coordinator_rank":
            if source.code(argument.value) != "0":
                return None
            arguments.remove(argument)
            touched = True
        elif argument.keyword is None and index > 0:
            arguments.name(index, name)
            touched = True
    function = _function(source, call, called.name, new)
    return Fix(f"call `{new}`", (*function, *((arguments,) if touched else ())), "safe")


def _function(source: Source, call: cst.Call, old: str, new: str) -> tuple[Edit, ...]:
    """The name of the new function, and the imports that it needs instead of the old one."""
    func = call.func
    imports = Names.of(source).imports
    if isinstance(func, cst.Attribute):
        root = dotted(func.value).partition(".")[0]
        if any(one.name == root and one.target.startswith("torch") for one in imports):
            return (Replace(source, func.attr, new),)
    name = name_for(source, call, f"{DCP}{new}")
    unused = {one.loads for one in imports if one.loads.endswith(f".{old.rpartition('.')[2]}")}
    if unused:
        unused.add(old)  # as the import reads once it names the new home
    return (
        Replace(source, func, name.text),
        *name.edits,
        *(Unimport(source, u) for u in sorted(unused)),
    )
