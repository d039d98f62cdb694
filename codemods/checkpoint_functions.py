"""`save_state_dict` and `load_state_dict` of `torch.distributed.checkpoint` get their present names.

## What it does

Rewrites `save_state_dict(state, writer)` to `dcp.save(state, storage_writer=writer)`, and `load_state_dict` to
`dcp.load`. A process group that is read off FSDP1's wrapper goes. Imports from `torch.distributed._shard.checkpoint`
name the module's present home.

## Why

The old functions only warn and call the new ones. A sharded model has no `process_group`; all ranks save and load
together, and what several of them hold is written once.

## Example

```diff
 import torch.distributed.checkpoint as dcp
 from torch import nn
-from torch.distributed.checkpoint import FileSystemWriter, save_state_dict
+from torch.distributed.checkpoint import FileSystemWriter

-save_state_dict(nn.Linear(8, 8).state_dict(), FileSystemWriter("weights"))
+dcp.save(nn.Linear(8, 8).state_dict(), storage_writer=FileSystemWriter("weights"))
```

## What it leaves

Calls whose arguments are handed on from elsewhere.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
- `torch/distributed/checkpoint/state_dict_saver.py` (`save_state_dict`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Account,
    Arguments,
    Edit,
    Layout,
    Names,
    Program,
    Reference,
    Replace,
    Source,
    Step,
    Unimport,
    codemod,
    imported_module,
    name_for,
    walk,
)

DCP = "torch.distributed.checkpoint"
_OLD_HOME = "torch.distributed._shard.checkpoint"
_OLD = (f"{DCP}.save_state_dict", f"{DCP}.load_state_dict")
_PARAMETERS = (
    "state_dict",
    "storage_{}",
    "process_group",
    "coordinator_rank",
    "no_dist",
    "planner",
)


@codemod(frameworks=True)
def rewrite(program: Program) -> Iterator[Step]:
    """Each call of an old function, and where none is left the imports from the old home."""
    renamed = [source for source in program.sources if _under_a_name(source)]
    for source in renamed:  # its functions are called by that name, once it is that of the new home
        yield from _moved_imports(source)
    called = set(renamed)
    for reference in program.references(*_OLD):
        call = Layout.of(reference.source).parents.get(reference.node)
        if reference.source in renamed or not isinstance(call, cst.Call):
            continue
        if call.func is reference.node and not any(arg.star for arg in call.args):
            called.add(reference.source)
            yield _step(reference, call)
    for source in program.sources:
        if source not in called:
            yield from _moved_imports(source)


def _under_a_name(source: Source) -> bool:
    """Whether a file imports the old home itself under a name of its own."""
    return any(
        one.loads == _OLD_HOME and one.name != "torch" and isinstance(one.statement, cst.Import)
        for one in Names.of(source).imports
    )


def _moved_imports(source: Source) -> Iterator[Step]:
    """Imports from the old home; `import a.b` without a name binds the old path and stays."""
    if _OLD_HOME not in source.text:
        return
    for node in walk(source.tree):
        name: cst.CSTNode | None = None
        if isinstance(node, cst.ImportFrom) and imported_module(node) == _OLD_HOME:
            name = node.module
        elif isinstance(node, cst.ImportAlias) and node.asname is not None:
            name = node.name if source.code(node.name) == _OLD_HOME else None
        if name is not None:
            yield Step((Replace(source, name, DCP),), ())


def _step(reference: Reference, call: cst.Call) -> Step:
    source = reference.source
    saving = reference.name.endswith("save_state_dict")
    module = name_for(source, call, DCP, alias="dcp", module=True)
    function = Replace(source, call.func, f"{module.text}.{'save' if saving else 'load'}")
    edits: list[Edit] = [function, *module.edits, *_arguments(source, call, saving)]
    edits += [Unimport(source, one) for one in _imported(source)]
    why = "the old name only warns and calls this one"
    return Step(tuple(edits), (Account(source, call.func, "changed", why),))


def _arguments(source: Source, call: cst.Call, saving: bool) -> Iterator[Edit]:
    edit = Arguments(source, call)
    touched = False
    for index, arg in enumerate(call.args):
        name = arg.keyword.value if arg.keyword is not None else _PARAMETERS[index]
        if name == "coordinator_rank" or (name == "process_group" and _of_wrapper(arg.value)):
            edit.remove(arg)
            touched = True
        elif arg.keyword is None and index > 0:
            edit.name(index, name.format("writer" if saving else "reader"))
            touched = True
    if touched:
        yield edit


def _of_wrapper(value: cst.BaseExpression) -> bool:
    """Whether a group is an attribute: only FSDP1's wrapper has one, a script's own is a variable."""
    return isinstance(value, cst.Attribute) and value.attr.value == "process_group"


def _imported(source: Source) -> Iterator[str]:
    """The imports that bind an old function, or a module for nothing but them."""
    for one in Names.of(source).imports:
        old = one.loads.rpartition(".")[2] in ("save_state_dict", "load_state_dict")
        if old or one.loads == _OLD_HOME:
            yield one.loads
