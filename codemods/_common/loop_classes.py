"""Tests of classes: ``isinstance(model, (FSDP, DDP))``, and what they are without FSDP1's class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import Edit, Layout, Program, Replace, Source, Splice

from .loop_models import FSDP1
from .loop_text import text_of
from .names import named_once
from .shared import unimports


@dataclass(frozen=True, slots=True)
class ClassTest:
    """``isinstance(subject, classes)``; ``mine`` are the classes that are FSDP1's."""

    call: cst.Call
    subject: cst.BaseExpression
    classes: tuple[cst.BaseExpression, ...]
    mine: tuple[cst.BaseExpression, ...]

    @property
    def only_mine(self) -> bool:
        """Whether it asks for nothing else."""
        return self.classes == self.mine


def class_test(program: Program, source: Source, node: cst.CSTNode) -> ClassTest | None:
    """The test that a node is, if FSDP1's class is among what it asks for."""
    if not isinstance(node, cst.Call) or len(node.args) != 2:
        return None
    if not isinstance(node.func, cst.Name) or node.func.value != "isinstance":
        return None
    asked = fsdp1_names(program, source)
    classes = tuple(_classes(node.args[1].value))
    mine = tuple(one for one in classes if one in asked)
    return ClassTest(node, node.args[0].value, classes, mine) if mine else None


def fsdp1_names(program: Program, source: Source) -> frozenset[cst.BaseExpression]:
    """The nodes that name FSDP1's class."""
    return program.derived(_fsdp1_names, source)


def _fsdp1_names(program: Program, source: Source) -> frozenset[cst.BaseExpression]:
    return frozenset(r.node for r in program.named(source) if r.name == FSDP1)


def _classes(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(node, cst.Tuple | cst.List):
        for element in node.elements:
            yield from _classes(element.value)
    elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitOr):
        yield from _classes(node.left)
        yield from _classes(node.right)
    else:
        yield node


def without_fsdp1(
    program: Program, source: Source, test: cst.BaseExpression
) -> tuple[Edit, ...] | None:
    """The edits after which a test no longer asks for FSDP1's class; None when nothing else is asked."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or):
        left, right = (without_fsdp1(program, source, o) for o in (test.left, test.right))
        if left is None or right is None:
            kept = test.left if right is None else test.right
            if left is None and right is None:
                return None
            return (
                Replace(source, test, text_of(source, kept)),
                *unimports(program, source, FSDP1),
            )
        return (*left, *right)
    found = class_test(program, source, test)
    if found is None:
        return ()
    kept_classes = [text_of(source, c) for c in found.classes if c not in found.mine]
    if not kept_classes:
        return None
    text = kept_classes[0] if len(kept_classes) == 1 else f"({', '.join(kept_classes)})"
    asked = Layout.of(source).whole(found.call.args[1].value)
    return (Splice(source, *asked, text), *unimports(program, source, FSDP1))


def is_one_of_many(source: Source, node: cst.CSTNode, subject: cst.BaseExpression) -> bool:
    """Whether what is asked is the parameter of a lambda, or what a comprehension or loop takes one by one."""
    name = text_of(source, subject)
    for around in Layout.of(source).ancestors(node):
        if isinstance(around, cst.Lambda):
            return any(p.name.value == name for p in around.params.params)
        if isinstance(around, cst.BaseComp):
            return name in source.code(around.for_in.target)
        if isinstance(around, cst.For) and name in source.code(around.target):
            return True
        if isinstance(around, cst.FunctionDef):
            return False
    return False


def others_behind_test(program: Program, source: Source, node: cst.Attribute) -> bool | None:
    """Where ``model.module`` is behind a test for FSDP1's class of ``model``: whether others pass it too.

    None where it is behind none.
    """
    model = text_of(source, node.value)
    for test in _tests_around(source, node):
        for one in _conjuncts(test):
            asked_for = named_once(source, one) or one
            parts = [class_test(program, source, part) for part in _disjuncts(asked_for)]
            asked = [p for p in parts if p and text_of(source, p.subject) == model]
            if asked:
                return len(asked) < len(parts) or not all(p.only_mine for p in asked)
    return None


def has_test(source: Source, node: cst.CSTNode, model: str, name: str) -> bool:
    """Whether a node is behind ``hasattr(model, name)``."""
    return any(
        isinstance(one, cst.Call)
        and isinstance(one.func, cst.Name)
        and one.func.value == "hasattr"
        and len(one.args) == 2
        and text_of(source, one.args[0].value) == model
        and isinstance(one.args[1].value, cst.SimpleString)
        and one.args[1].value.evaluated_value == name
        for test in _tests_around(source, node)
        for one in _conjuncts(test)
    )


def _tests_around(source: Source, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """The tests that have come out true where a node is."""
    inner = node
    for around in Layout.of(source).ancestors(node):
        if isinstance(around, cst.If | cst.While | cst.IfExp) and around.body is inner:
            yield around.test
        elif isinstance(around, cst.BooleanOperation) and isinstance(around.operator, cst.And):
            if inner is around.right:
                yield around.left
        elif isinstance(around, cst.ListComp | cst.SetComp | cst.GeneratorExp):
            if inner is around.elt:
                yield from (one.test for one in around.for_in.ifs)
        elif isinstance(around, cst.FunctionDef):
            return
        inner = around


def _conjuncts(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        yield from _conjuncts(test.left)
        yield from _conjuncts(test.right)
    else:
        yield test


def _disjuncts(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or):
        yield from _disjuncts(test.left)
        yield from _disjuncts(test.right)
    else:
        yield test
