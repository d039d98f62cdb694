"""What a framework wraps itself is left to its own settings, and said.

## What it does

Finds where accelerate, Lightning, Transformers' `Trainer` or Ray is asked for FSDP1, and says what to set there
instead. It rewrites nothing.

## Why

The framework calls FSDP1, builds the optimizer around it and saves its checkpoints; a rewriting of the script
alone would leave half of that behind. Each of them has a setting or a strategy for FSDP2.

## Before

```python
from accelerate import Accelerator, FullyShardedDataParallelPlugin

accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(use_orig_params=True))
```

## After

```python
from accelerate import Accelerator, FullyShardedDataParallelPlugin

accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(use_orig_params=True))
```

## What it leaves

All of it: each place gets a comment that says what to set. Settings in YAML and JSON files are not read. Where a
program wraps no model by FSDP1 itself, what it asks of FSDP1 is left to the day when its framework uses FSDP2; where it
names FSDP2 as well it serves both, and stays.

## References

- https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2
- https://lightning.ai/docs/pytorch/stable/advanced/model_parallel/tp_fsdp.html
- https://huggingface.co/docs/transformers/fsdp
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    FRAMEWORK_ARGUMENTS,
    FRAMEWORKS,
    Account,
    Layout,
    Left,
    Program,
    Step,
    codemod,
    inventory,
)

FSDP2 = (
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.FSDPModule",
)
WHY = "the framework wraps the model, builds the optimizer and saves: only its own settings change that"


@codemod(frameworks=True)
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Asking a framework for FSDP1."""
    yield from _of_hidden_wrappers(program)
    for reference in program.references(*FRAMEWORKS):
        call = Layout.of(reference.source).parents.get(reference.node)
        if isinstance(call, cst.Call) and _asks_for_version_2(call):
            why = "`fsdp_version=2` asks for FSDP2 already"
            yield Step((), (Account(reference.source, reference.node, "preserved", why),))
        else:
            yield Left(reference.source, reference.node, WHY, FRAMEWORKS[reference.name])
    for reference in program.references(*FRAMEWORK_ARGUMENTS):
        call = Layout.of(reference.source).parents.get(reference.node)
        if isinstance(call, cst.Call):
            wanted, todo = FRAMEWORK_ARGUMENTS[reference.name]
            for arg in call.args:
                if arg.keyword is not None and arg.keyword.value in wanted and _asks(arg):
                    yield Left(reference.source, arg, WHY, todo)


def _of_hidden_wrappers(program: Program) -> Iterator[Step | Left]:
    """What is asked of models that only the framework wraps, by FSDP1 or FSDP2 as its own settings say."""
    if not program.framework:
        return
    both = any(True for _ in program.references(*FSDP2))
    for one in inventory(program):
        if one.kind in ("import", "framework", "launch"):
            continue
        if both:
            why = f"it serves models that {program.framework} wraps by FSDP1, beside those of FSDP2"
            yield Step((), (Account(one.source, one.node, "preserved", why),))
        else:
            why = f"{program.framework} wraps the model, by FSDP1 or FSDP2 as its own settings say"
            instead = "test for FSDPModule" if one.code == "FSDP110" else one.instead
            yield Left(one.source, one.node, why, _later(program.framework, instead))


def _later(framework: str, instead: str) -> str:
    """What a person has to do when the framework's settings have changed."""
    when = f"once {framework} is told to use FSDP2"
    if instead.startswith("nothing: "):
        return f"{when}, take this away: {instead.removeprefix('nothing: ')}"
    return f"{when}: {instead or 'look at this'}"


def _asks_for_version_2(call: cst.Call) -> bool:
    return any(
        arg.keyword is not None
        and arg.keyword.value == "fsdp_version"
        and getattr(arg.value, "value", "") == "2"
        for arg in call.args
    )


def _asks(arg: cst.Arg) -> bool:
    """Whether an argument asks for FSDP: a strategy does so by its name."""
    if arg.keyword is None or not arg.keyword.value.endswith("strategy"):
        return True
    return isinstance(arg.value, cst.SimpleString) and "fsdp" in str(arg.value.evaluated_value)
