"""Projects that build no FSDP1 model: callers pass theirs, of FSDP1 today and of ``fully_shard`` tomorrow.

What such a project asks of a model must hold for both. A branch that only models of FSDP1 take stays as it
is, since those of FSDP2 take the other one.
"""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import Layout, Program, Source, Wrapping, walk

from .loop_classes import class_test
from .loop_models import FSDP1

STAYS = "stays for models of FSDP1: those of fully_shard take the other branch"
_OWN = ("clip_grad_norm_", "no_sync", "module")
"""What only the wrapper of FSDP1, or of DDP, has."""
_BUILDING = (
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.wrap.enable_wrap",
    "torch.distributed.fsdp.wrap.wrap",
)


def is_library(program: Program) -> bool:
    """Whether the project asks for FSDP1's class and shards nothing itself, as far as its text says."""
    return program.derived(_is_library)


def _is_library(program: Program) -> bool:
    if program.framework or any(program.references(*_BUILDING)):
        return False
    if any(event.by == "fsdp1" for _, event in program.of(Wrapping)):
        return False
    asked = list(program.references(FSDP1))
    return bool(asked) and all(_only_asks(one.source, one.node) for one in asked)


def _only_asks(source: Source, node: cst.CSTNode) -> bool:
    """Whether the class is only tested for, annotated or asked for one of its methods."""
    layout = Layout.of(source)
    inner = node
    for around in layout.ancestors(node):
        if isinstance(around, cst.Annotation | cst.ImportAlias | cst.Attribute):
            return True
        if isinstance(around, cst.Call):
            named = isinstance(around.func, cst.Name) and around.func.value
            return inner is not around.func and named in ("isinstance", "issubclass")
        if isinstance(around, cst.Assign):
            return isinstance(inner, cst.Tuple)
        if isinstance(around, cst.ClassDef | cst.Return):
            return False
        inner = around
    return True


def is_for_fsdp1(program: Program, source: Source, node: cst.CSTNode) -> bool:
    """Whether only models that a test for FSDP1's class lets through come to a node."""
    inner = node
    for around in Layout.of(source).ancestors(node):
        if isinstance(around, cst.FunctionDef | cst.Lambda):
            return False
        if isinstance(around, cst.If | cst.IfExp) and inner is around.body:
            if any(class_test(program, source, one) for one in _joined(around.test)):
                return True
        inner = around
    return False


def _joined(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What is joined by ``and``."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*_joined(test.left), *_joined(test.right)]
    return [test]


def guards_fsdp1(program: Program, source: Source, node: cst.CSTNode) -> bool:
    """Whether a test for FSDP1's class leads to what only models of FSDP1 have."""
    layout = Layout.of(source)
    inner = node
    for around in layout.ancestors(node):
        if isinstance(around, cst.If | cst.IfExp) and inner is around.test:
            found = {r.node for r in program.named(source) if r.name.startswith(f"{FSDP1}.")}
            return any(
                one in found or (isinstance(one, cst.Attribute) and one.attr.value in _OWN)
                for one in walk(around.body)
            )
        if isinstance(around, cst.BaseCompoundStatement | cst.SimpleStatementLine):
            return False
        inner = around
    return False
