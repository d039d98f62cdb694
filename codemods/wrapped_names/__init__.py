"""Names of parameters lose the prefix of the wrapper.

## What it does

Drops what takes `_fsdp_wrapped_module.` out of a name (`replace`, `removeprefix`, `re.sub`, `clean_tensor_name`)
and the prefix itself from names that the script puts together. What frees the gathered parameters of units through
FSDP1's private `_reshard` calls `reshard()`, and a call of its `_lazy_init` goes.

## Why

`fully_shard` keeps the names of a model's parameters: there is nothing to take out. A name with the prefix finds
nothing.

## Example

```diff
 from torch import nn
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 model = FSDP(nn.Linear(8, 8), use_orig_params=True)
 for name, parameter in model.named_parameters():
-    print(name.replace("_fsdp_wrapped_module.", ""), parameter.shape)
+    print(name, parameter.shape)
```

## What it leaves

- Names that come out of a file stay as they are cleaned: a file of an earlier run may have the prefix.
- Tests for the prefix that do more than clean a name.
- Everything that works inside FSDP1: flat parameters (`_flat_param`, `FlatParameter`), its private modules.

## References

- `torch/distributed/fsdp/_common_utils.py` (`clean_tensor_name`, `FSDP_PREFIX`)
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Account,
    Edit,
    Layout,
    Left,
    Program,
    Remove,
    Replace,
    Source,
    Step,
    codemod,
    name_for,
    walk,
)

from .._common.loop_insides import insides, of_wrappers
from .._common.loop_models import FSDP_MODULE
from .._common.loop_text import receiver_text, text_of
from .._common.shared import unimports
from .cleaning import (
    CONSTANTS,
    HOME,
    PREFIX,
    Cleaning,
    Mention,
    cleaned_only,
    cleaning,
    from_files,
    from_the_same,
    is_text,
    mentions,
    without_prefix,
)
from .comprehensions import all_of, plainer
from .purging import purging

CLEAN = f"{HOME}clean_tensor_name"
WHY = "FSDP2 keeps the names of parameters: there is no prefix to remove"
_AC_PREFIX = '"_checkpoint_wrapped_module."'


@codemod(after=("wrapped-module", "flat-parameters"))
def rewrite(program: Program) -> Iterator[Step | Left]:
    """The prefix of the wrapper in names."""
    loaded = from_the_same(program, from_files(program))
    gone: set[cst.CSTNode] = set()
    for mention in mentions(program):
        if mention.node in gone:
            continue
        test = cleaned_only(program, mention)
        if test is not None:
            inside = [m for m in mentions(program) if m.node in set(walk(test))]
            gone |= {m.node for m in inside}
            accounts = tuple(Account(m.source, m.node, "changed", WHY) for m in inside)
            yield Step((_removal(mention.source, test),), accounts)
            continue
        found = cleaning(program, mention)
        if found is None:
            yield _other(program, mention)
        elif found.call in loaded:
            why = "the name comes out of a file, which an earlier run may have written with the prefix"
            yield Step((), (Account(mention.source, mention.node, "preserved", why),))
        else:
            yield _uncleaned(program, mention, found)
    yield from _clean_tensor_name(program)
    yield from purging(program)
    yield from of_wrappers(program)
    yield from insides(program, (CLEAN, *CONSTANTS))


def _uncleaned(program: Program, mention: Mention, found: Cleaning) -> Step:
    """The name as it is in place of the call that cleans it; no statement that only does that."""
    source, layout = mention.source, Layout.of(mention.source)
    account = Account(source, mention.node, "changed", WHY)
    unused = _unused(program, source)
    name = receiver_text(source, found.name)
    statement = layout.parents[found.call]
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        if text_of(source, statement.targets[0].target) == name:
            return Step((_removal(source, _alone(source, statement)), *unused), (account,))
    plain = plainer(source, found.call, name) or _on_one_line(source, found.call, name)
    return Step((plain or Replace(source, found.call, name), *unused), (account,))


def _on_one_line(source: Source, call: cst.BaseExpression, name: str) -> Replace | None:
    """The name with the next method of a chain, where that is on a line of its own."""
    layout = Layout.of(source)
    further = layout.parents[call]
    if not isinstance(further, cst.Attribute) or further.value is not call:
        return None
    between = source.text[layout.span(call)[1] : layout.span(further.attr)[0]]
    if "\n" not in between or "#" in between:
        return None
    return Replace(source, further, f"{name}.{further.attr.value}")


def _unused(program: Program, source: Source) -> tuple[Edit, ...]:
    """The imports that only cleaning needed."""
    names = (*CONSTANTS, "re", "re.sub")
    return tuple(one for name in names for one in unimports(program, source, name))


def _removal(source: Source, statement: cst.CSTNode) -> Remove:
    """The removal of a statement, with the comments above it where they speak of the prefix.

    Or of FSDP, where they are about that statement alone: a blank line or the end of the block follows.
    """
    layout = Layout.of(source)
    line = layout.line(statement)
    above = source.text[layout.comments_above(line) : layout.top(line)]
    below = layout.bottom(line)
    alone = layout.blank_below(below) > below or layout.ends_block(line)
    return Remove(source, statement, comments=PREFIX in above or (alone and "FSDP" in above))


def _alone(source: Source, statement: cst.CSTNode) -> cst.CSTNode:
    """A statement, or the ``if`` around it that holds nothing else and calls nothing."""
    layout = Layout.of(source)
    line = layout.line(statement)
    block = layout.parents[line]
    around = layout.parents.get(block)
    if not isinstance(around, cst.If) or around.orelse is not None:
        return statement
    if isinstance(layout.parents[around], cst.If):
        return statement
    quiet = not any(isinstance(n, cst.Call) for n in walk(around.test))
    return around if quiet and list(getattr(block, "body", ())) == [line] else statement


def _other(program: Program, mention: Mention) -> Step | Left:
    """A mention that cleans nothing."""
    source, node = mention.source, mention.node
    layout = Layout.of(source)
    parent = layout.parents[node]
    account = Account(source, node, "changed", WHY)
    if is_text(node):
        why = "a text for people"
        return Step((), (Account(source, node, "preserved", why),))
    asked = _attribute_asked(source, node)
    if asked is not None:
        return Step((*asked,), (account,))
    if isinstance(parent, cst.BinaryOperation) and isinstance(parent.operator, cst.Add):
        if not without_prefix(node):
            other = parent.right if parent.left is node else parent.left
            return Step((Replace(source, parent, text_of(source, other)),), (account,))
    whole = all_of(source, parent) if without_prefix(node) == "" else None
    if whole is not None:
        return Step((whole, *_unused(program, source)), (account,))
    new = _shorter(node)
    if new is not None:
        return Step((Replace(source, node, new),), (account,))
    if isinstance(parent, cst.Element) or (isinstance(parent, cst.Assign) and parent.value is node):
        why = "a prefix among those that the script takes out: no name has it any more"
        return Step((), (Account(source, node, "preserved", why),))
    why = "names have no such part in FSDP2: what the script does with it is not certain"
    return Left(source, node, why, "names have no `_fsdp_wrapped_module` in FSDP2: adapt this")


def _shorter(node: cst.CSTNode) -> str | None:
    """A string of the script without the prefix; None when it is nothing else."""
    if not isinstance(node, cst.SimpleString | cst.FormattedStringText):
        return None
    rest = without_prefix(node)
    kept = rest or isinstance(node, cst.FormattedStringText)
    return rest if kept and rest != node.value else None


def _attribute_asked(source: Source, node: cst.CSTNode) -> tuple[Edit, ...] | None:
    """``getattr(m, "_fsdp_wrapped_module", m)`` and ``hasattr`` of it."""
    layout = Layout.of(source)
    arg = layout.parents[node]
    call = layout.parents.get(arg)
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name) or len(call.args) < 2:
        return None
    model = text_of(source, call.args[0].value)
    if call.args[1] is not arg:
        return None
    if call.func.value == "hasattr":
        name = name_for(source, call, FSDP_MODULE)
        return (Replace(source, call, f"isinstance({model}, {name.text})"), *name.edits)
    if call.func.value == "getattr":
        if len(call.args) == 2 or text_of(source, call.args[2].value) == model:
            return (Replace(source, call, model),)
    return None


def _clean_tensor_name(program: Program) -> Iterator[Step | Left]:
    """``clean_tensor_name(name)``, which takes out the prefix of activation checkpointing too."""
    for reference in program.references(CLEAN):
        source, call = reference.source, Layout.of(reference.source).parents[reference.node]
        if not isinstance(call, cst.Call) or call.func is not reference.node or len(call.args) != 1:
            why = "the function is handed on"
            todo = "names need no cleaning in FSDP2; drop `clean_tensor_name`"
            yield Left(source, reference.node, why, todo)
            continue
        name = receiver_text(source, call.args[0].value)
        text = f'{name}.replace({_AC_PREFIX}, "")' if "checkpoint" in program.wrappers else name
        edits = (Replace(source, call, text), *unimports(program, source, CLEAN))
        yield Step(edits, (Account(source, call, "changed", WHY),))
