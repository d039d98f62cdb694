"""Tests and annotations that name FSDP1's class name `FSDPModule` instead.

## What it does

Rewrites `isinstance(x, FSDP)` (in tuples and unions too), `issubclass`, `type(x) is FSDP`,
`type(x).__name__ == "FullyShardedDataParallel"`, annotations (quoted ones too), `cast(FSDP, x)` and
`FSDP.fsdp_modules(x)`. A test for `ShardedTensor`, of which FSDP1's sharded state dicts are made, asks for `DTensor`.

## Why

`fully_shard` gives a module a class that derives from `FSDPModule`; a test for FSDP1's class is false from then on,
without an error. FSDP1's `modules()` had the wrapper and the module inside; a test that picked what is *no* wrapper
(`isinstance(m, Block) and not isinstance(m, FSDP)`) picks nothing where the two are one, so its second half goes.

## Example

```diff
 from torch import nn
-from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
+from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP


-def units(model: FSDP) -> int:
-    return sum(isinstance(module, FSDP) for module in model.modules())
+def units(model: FSDPModule) -> int:
+    return sum(isinstance(module, FSDPModule) for module in model.modules())


 print(units(FSDP(nn.Linear(8, 8))))
```

Where no file builds an FSDP1 model, callers pass theirs: then both classes are accepted, and what only FSDP1's has
(`if isinstance(model, FSDP): model.clip_grad_norm_(1.0)`) stays in its branch.

## What it leaves

- `check_is_root()`: FSDP2 does not tell which module is the root.
- `fsdp_modules(x, root_only=True)` of a model from unseen code.
- Classes that derive from FSDP1's.
- Tests for `ShardedTensor` where the program asks for what only that has, or gets flat shards (`LOCAL_STATE_DICT`).
- A test for FSDP1's class alone, where the program asks for `FSDPModule` of the same model in another place: what
  FSDP2 has sharded would take a branch that is not for it.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`FSDPModule`)
- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`fsdp_modules`, `check_is_root`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Edit,
    Layout,
    Left,
    Program,
    Reference,
    Replace,
    Source,
    Splice,
    Step,
    codemod,
    name_for,
    options,
    walk,
    wrapper,
)

from .._common.both_classes import is_library
from .._common.loop_classes import class_test, is_one_of_many
from .._common.loop_models import FSDP1, FSDP_MODULE
from .._common.loop_quoted import quotations
from .._common.loop_text import receiver_text, text_of
from .._common.shared import unimports
from .apart import beside_fsdp2, tests_apart
from .both import both_classes, listed
from .exact import exact_types, type_names
from .sharded import sharded_tensors

WHY = "fully_shard makes a module an FSDPModule"
_APART = "the program asks for `FSDPModule` of the same model elsewhere: it does something else with those"
_BEFORE = (
    "activation-checkpointing",
    "clip-grad-norm",
    "kept-state-dicts",
    "no-sync",
    "optim-state-dicts",
    "state-dict-types",
    "summon-full-params",
    "wrapped-names",
)
"""What asks which branch a wrapped model takes: a test for FSDP1's class answers that, the new one does not."""
_TESTS = ("isinstance", "issubclass")
_TYPES = ("typing.", "builtins.", "collections.abc.", "typing_extensions.")


@codemod(after=_BEFORE)
def rewrite(program: Program) -> Iterator[Step | Left]:
    """FSDP1's class where it is asked for."""
    if is_library(program):
        yield from both_classes(program)
        return
    apart = tests_apart(program)
    for reference in program.references(FSDP1):
        source, node = reference.source, reference.node
        dropped = _tells_the_inside(program, source, node)
        if dropped is not None:
            why = "FSDP2 has no wrapper, so this check would skip the model itself"
            account = Account(source, node, "changed", why)
            yield Step((dropped, *unimports(program, source, FSDP1)), (account,))
        elif _is_asked(program, reference):
            if any(one in apart for one in Layout.of(source).ancestors(node)):
                yield Left(source, node, _APART, "say which models of FSDP2 take this branch")
            else:
                yield _module(program, source, node)
    yield from exact_types(program)
    yield from type_names(program)
    for quoted in quotations(program, FSDP1):
        name = name_for(quoted.source, quoted.node, FSDP_MODULE)
        edits = (Splice(quoted.source, quoted.start, quoted.end, name.text), *name.edits)
        account = Account(quoted.source, quoted.node, "changed", WHY)
        yield Step((*edits, *unimports(program, quoted.source, FSDP1)), (account,))
    yield from sharded_tensors(program)
    yield from _methods(program)


def _module(program: Program, source: Source, node: cst.BaseExpression) -> Step:
    """The class of FSDP2 in place of FSDP1's; once, where both are side by side."""
    shorter = beside_fsdp2(program, source, node)
    if shorter is not None:
        once = (shorter, *unimports(program, source, FSDP1))
        return Step(once, (Account(source, node, "changed", WHY),))
    name = name_for(source, node, FSDP_MODULE)
    edits = (Replace(source, node, name.text), *name.edits, *unimports(program, source, FSDP1))
    return Step(edits, (Account(source, node, "changed", WHY),))


def _is_asked(program: Program, reference: Reference) -> bool:
    """Whether the class only says what something is: in a test or an annotation."""
    layout = Layout.of(reference.source)
    inner: cst.CSTNode = reference.node
    for around in layout.ancestors(reference.node):
        if isinstance(around, cst.Annotation):
            return True
        if isinstance(around, cst.Call):
            return _asks(program, reference.source, around, inner)
        if isinstance(around, cst.Assign):
            return isinstance(inner, cst.Tuple) and _only_tested(reference.source, around)
        if isinstance(around, cst.Subscript):
            if inner is not around.value and _is_type(program, reference.source, around.value):
                return True
        elif not isinstance(
            around,
            cst.Tuple
            | cst.List
            | cst.Element
            | cst.Arg
            | cst.BinaryOperation
            | cst.SubscriptElement
            | cst.Index,
        ):
            return False
        inner = around
    return False


def _only_tested(source: Source, assign: cst.Assign) -> bool:
    """Whether a tuple of classes gets a name that the file gives to nothing but ``isinstance``."""
    layout = Layout.of(source)
    target = assign.targets[0].target
    if len(assign.targets) != 1 or not isinstance(target, cst.Name):
        return False
    used = [
        layout.parents[n]
        for n in walk(source.tree)
        if isinstance(n, cst.Name) and n.value == target.value and n is not target
    ]
    return bool(used) and all(
        isinstance(one, cst.Arg)
        and isinstance(call := layout.parents[one], cst.Call)
        and isinstance(call.func, cst.Name)
        and call.func.value in _TESTS
        for one in used
    )


def _asks(program: Program, source: Source, call: cst.Call, inner: cst.CSTNode) -> bool:
    """Whether a call takes the class among what it tests for."""
    if isinstance(call.func, cst.Name) and call.func.value in _TESTS:
        return len(call.args) == 2 and call.args[1] is inner
    named = next((r.name for r in program.named(source) if r.node is call.func), "")
    return named == "typing.cast" and call.args[0] is inner


def _is_type(program: Program, source: Source, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Name) and node.value in ("list", "dict", "tuple", "set", "type"):
        return True
    return any(r.node is node and r.name.startswith(_TYPES) for r in program.named(source))


def _tells_the_inside(program: Program, source: Source, node: cst.BaseExpression) -> Replace | None:
    """The edit of ``x and not isinstance(m, FSDP)`` that drops its second half."""
    layout = Layout.of(source)
    call = next((a for a in layout.ancestors(node) if isinstance(a, cst.Call)), None)
    test = None if call is None else class_test(program, source, call)
    if call is None or test is None or not test.only_mine:
        return None
    negation = layout.parents[call]
    whole = layout.parents[negation]
    if not isinstance(negation, cst.UnaryOperation) or not isinstance(negation.operator, cst.Not):
        return None
    if not isinstance(whole, cst.BooleanOperation) or not isinstance(whole.operator, cst.And):
        return None
    if not is_one_of_many(source, whole, test.subject):
        return None
    kept = whole.left if whole.right is negation else whole.right
    return Replace(source, whole, text_of(source, kept))


def _methods(program: Program) -> Iterator[Step | Left]:
    """``fsdp_modules`` and ``check_is_root``."""
    for events in program.sites(Called):
        called = events[0][1]
        source, call = called.at.source, called.at.node
        if called.name in (f"{FSDP1}.fsdp_modules", ".fsdp_modules") and isinstance(call, cst.Call):
            first = called.argument(0, "module")
            sure = first is not None and {wrapper(v) for v in options(first)} == {"fsdp1"}
            yield _listed(program, source, call, sure)
    own = {
        n.name.value
        for s in program.sources
        if "check_is_root" in s.text
        for n in walk(s.tree)
        if isinstance(n, cst.FunctionDef)
    }
    for source in program.sources if "check_is_root" not in own else ():
        for node in walk(source.tree) if "check_is_root" in source.text else ():
            if isinstance(node, cst.Attribute) and node.attr.value == "check_is_root":
                why = "FSDP2 does not tell which module is the root"
                yield Left(source, node, why, "compare with the model that is sharded last")


def _filtered(source: Source, call: cst.Call, cls: str) -> Edit | None:
    """``for m in model.modules() if isinstance(m, FSDPModule)`` of a comprehension over the list; None elsewhere."""
    layout = Layout.of(source)
    loop = layout.parents[call]
    if not isinstance(loop, cst.CompFor) or loop.iter is not call:
        return None
    if not isinstance(loop.target, cst.Name):
        return None
    model = receiver_text(source, call.args[0].value)
    test = f"isinstance({loop.target.value}, {cls})"
    return Splice(source, *layout.whole(call), f"{model}.modules() if {test}")


def _listed(program: Program, source: Source, call: cst.Call, sure: bool) -> Step | Left:
    """The modules that ``FSDP.fsdp_modules(model)`` lists."""
    if not call.args or call.args[0].star or call.args[0].keyword is not None:
        return Left(
            source, call, "its model is not written out", "list the FSDPModules of the model"
        )
    model = text_of(source, call.args[0].value)
    if len(call.args) == 1 or text_of(source, call.args[1].value) == "False":
        name = name_for(source, call, FSDP_MODULE)
        edits = (
            _filtered(source, call, name.text) or Replace(source, call, listed(model, name.text)),
            *name.edits,
            *unimports(program, source, FSDP1),
        )
        return Step(edits, (Account(source, call, "changed", WHY),))
    if sure:
        edits = (Replace(source, call, f"[{model}]"), *unimports(program, source, FSDP1))
        why = "the model that is sharded last is the only root"
        return Step(edits, (Account(source, call, "changed", why),))
    why = "which of its modules are roots is known only when the program runs"
    return Left(source, call, why, "list the models that are sharded last")
