"""Lightning's FSDP2: the LightningModules of a program, and the ``configure_model`` that shards one of them."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import (
    Edit,
    InsertAfter,
    InsertBefore,
    Layout,
    Program,
    Source,
    name_for,
    unread,
    walk,
)

TRAINER = "lightning.pytorch.Trainer"
STRATEGY = "lightning.pytorch.strategies.FSDPStrategy"
_MODULES = ("lightning.pytorch.LightningModule", "lightning.pytorch.core.LightningModule")
_REGISTER = "register_fsdp_forward_method"

Module = tuple[Source, cst.ClassDef]


def lightning_modules(program: Program) -> list[Module]:
    """The classes of the program that derive from LightningModule themselves."""
    found = []
    for reference in program.references(*_MODULES):
        parents = Layout.of(reference.source).parents
        base = parents.get(reference.node)
        owner = parents.get(base) if isinstance(base, cst.Arg) else None
        if isinstance(owner, cst.ClassDef) and base in owner.bases:
            found.append((reference.source, owner))
    return found


def older_lightning(program: Program) -> tuple[str, str] | None:
    """Why no release of Lightning that the project allows has the strategy, and what to do; None where one has."""
    limits = program.options.limits
    named = [name for name in ("lightning", "pytorch-lightning") if name in dict(limits)]
    older = [unread(name, limits) for name in named]
    return older[0] if older and all(older) else None


def configure_model(module: Module, wrapped: set[str], *, keeps: bool) -> tuple[Edit, ...] | None:
    """The method that shards the parts of some classes, and the module; None where the module does not allow it.

    ``wrapped`` are names that the module's file knows; with ``keeps`` parameters stay gathered until the backward.
    """
    home, cls = module
    methods = [line for line in cls.body.body if isinstance(line, cst.FunctionDef)]
    names = {method.name.value for method in methods}
    steps = _registered(methods)
    if names & {"configure_model", "configure_sharded_model"} or not methods or steps is None:
        return None
    at = methods[0]
    shard = name_for(home, at, "torch.distributed.fsdp.fully_shard")
    sharded = name_for(home, at, "torch.distributed.fsdp.FSDPModule")
    lines = method_lines(shard.text, sharded.text, wrapped, keeps=keeps)
    register = name_for(home, at, f"torch.distributed.fsdp.{_REGISTER}") if steps else shard
    lines += [f'    {register.text}(self, "{step}")' for step in steps]
    first = next((m for m in methods if m.name.value == "__init__"), None)
    body = "\n".join(lines)
    edit: Edit = (
        InsertBefore(home, at, body + "\n")
        if first is None
        else InsertAfter(home, first, "\n" + body)
    )
    return (edit, *shard.edits, *sharded.edits, *(register.edits if steps else ()))


def method_lines(shard: str, sharded: str, wrapped: set[str], *, keeps: bool) -> list[str]:
    """The lines of a `configure_model` that shards what is of some classes, and the module."""
    options = "mesh=mesh" + ", reshard_after_forward=False" * keeps
    lines = [
        "def configure_model(self):",
        f"    if self.device_mesh is None or isinstance(self, {sharded}):",
        "        return",
        '    mesh = self.device_mesh["data_parallel"]',
    ]
    if wrapped:
        classes = ", ".join(sorted(wrapped))
        kinds = f"({classes})" if len(wrapped) > 1 else classes
        lines += [
            "    for module in reversed(list(self.modules())):",
            f"        if isinstance(module, {kinds}):",
            f"            {shard}(module, {options})",
        ]
    return [*lines, f"    {shard}(self, {options})"]


_STEPS = ("training_step", "validation_step", "test_step", "predict_step")


def _registered(methods: list[cst.FunctionDef]) -> list[str] | None:
    """The steps that have to gather the module's own parameters; None when only some of them call the module.

    FSDPStrategy runs a step inside of the wrapper's forward. ModelParallelStrategy calls it directly: without
    ``self(…)`` nothing gathers what the root holds.
    """
    steps = [method for method in methods if method.name.value in _STEPS]
    if not any(map(_calls_itself, methods)):
        return [step.name.value for step in steps]
    return [] if all(map(_calls_itself, steps)) else None


def _calls_itself(method: cst.FunctionDef) -> bool:
    calls = (node for node in walk(method) if isinstance(node, cst.Call))
    return any(isinstance(call.func, cst.Name) and call.func.value == "self" for call in calls)


def classes_at_top(source: Source) -> set[str]:
    """The classes that a file defines or imports by name."""
    found = set()
    for line in source.tree.body:
        if isinstance(line, cst.ClassDef):
            found.add(line.name.value)
        for part in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(part, cst.ImportFrom) and not isinstance(part.names, cst.ImportStar):
                found |= {alias.evaluated_alias or alias.evaluated_name for alias in part.names}
    return found
