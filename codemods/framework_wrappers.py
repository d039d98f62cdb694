"""Where a script asks a framework for FSDP1, it asks for version 2.

## What it does

Gives accelerate's `FullyShardedDataParallelPlugin` `fsdp_version=2`, and the `fsdp_config` of the Trainer's arguments
`"fsdp_version": 2`. Of the plugin, `sharding_strategy` becomes `reshard_after_forward`, arguments that version 2 ignores or
refuses go, and the type of the state dicts that version 1 means is written. For Lightning and Ray, which need other
code, it says what to write.

## Why

The framework calls FSDP1, builds the optimizer around it and saves its checkpoints; a rewriting of the script
alone would leave half of that behind. Each of them has a setting or a strategy for FSDP2.

## Before

```python
from accelerate import Accelerator, FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(sharding_strategy="SHARD_GRAD_OP")
accelerator = Accelerator(fsdp_plugin=plugin)
```

## After

```python
from accelerate import Accelerator, FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(reshard_after_forward=False, fsdp_version=2, state_dict_type="FULL_STATE_DICT")
accelerator = Accelerator(fsdp_plugin=plugin)
```

## What it leaves

Strategies that version 2 has no argument for (`NO_SHARD`, the hybrid ones), wrap policies and precisions that are
objects of FSDP1, settings that come from a variable: each place gets a comment that says what to set. Where a
program wraps no model by FSDP1 itself, what it asks of FSDP1 is left to the day when its framework uses FSDP2; where it
names FSDP2 as well it serves both, and stays.

## References

- https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2
- https://lightning.ai/docs/pytorch/stable/advanced/model_parallel/tp_fsdp.html
- https://huggingface.co/docs/transformers/fsdp
- `accelerate/utils/dataclasses.py` of accelerate 1.15, `transformers/training_args.py` of transformers 5.23
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    DROPPED_SETTINGS,
    FRAMEWORK_ARGUMENTS,
    FRAMEWORKS,
    Account,
    Arguments,
    Layout,
    Left,
    Program,
    Source,
    Splice,
    Step,
    codemod,
    inventory,
    settings_of,
)

FSDP2 = (
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.FSDPModule",
)
WHY = "the framework wraps the model, builds the optimizer and saves: only its own settings change that"

PLUGIN = "FullyShardedDataParallelPlugin"
VERSION_2 = "`fsdp_version=2` is fully_shard"
RESHARDS = {"FULL_SHARD": "True", "SHARD_GRAD_OP": "False"}
"""What `reshard_after_forward` is for a strategy of FSDP1."""

LOST = {
    "NO_SHARD": (
        "version 2 always shards",
        "leave the plugin out: without it accelerate replicates with DDP",
    ),
    "HYBRID_SHARD": (
        "version 2 has hybrid sharding as a mesh",
        "set fsdp_version=2 and reshard_after_forward=True, and give Accelerator "
        "parallelism_config=ParallelismConfig(dp_replicate_size=<machines>, dp_shard_size=<GPUs of one>)",
    ),
}
LOST["HYBRID_SHARD_ZERO2"] = (
    LOST["HYBRID_SHARD"][0],
    LOST["HYBRID_SHARD"][1].replace("True", "False"),
)
LOST_WORDS = {
    "no_shard": "leave fsdp and fsdp_config out: without them the Trainer replicates with DDP",
    **dict.fromkeys(
        ("hybrid_shard", "hybrid_shard_zero2"),
        'set fsdp="full_shard" and version 2, and give the arguments '
        "parallelism_config=ParallelismConfig(dp_replicate_size=<machines>, dp_shard_size=<GPUs of one>)",
    ),
}


@codemod(frameworks=True)
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Asking a framework for FSDP1."""
    for reference in program.references(*FRAMEWORKS):
        call = Layout.of(reference.source).parents.get(reference.node)
        todo = FRAMEWORKS[reference.name]
        if not reference.name.endswith(PLUGIN) or not isinstance(call, cst.Call):
            yield Left(reference.source, reference.node, WHY, todo)
        elif _version(call) == "2":
            why = "`fsdp_version=2` asks for FSDP2 already"
            yield Step((), (Account(reference.source, call, "preserved", why),))
        else:
            yield _plugin(program, reference.source, call, todo)
    for reference in program.references(*FRAMEWORK_ARGUMENTS):
        call = Layout.of(reference.source).parents.get(reference.node)
        if isinstance(call, cst.Call):
            wanted, todo = FRAMEWORK_ARGUMENTS[reference.name]
            given = [a for a in call.args if a.keyword and a.keyword.value in wanted and _asks(a)]
            if given and "fsdp_config" in wanted:
                yield from _of_the_trainer(program, reference.source, call, given, todo)
            else:
                yield from (Left(reference.source, arg, WHY, todo) for arg in given)
    yield from _of_hidden_wrappers(program)


# -- accelerate's plugin -----------------------------------------------------------------------------------------


def _plugin(program: Program, source: Source, call: cst.Call, todo: str) -> Step | Left:
    """The plugin in version 2; left where an argument of it has no equal there."""
    edit = Arguments(source, call)
    accounts = [Account(source, node, "changed", VERSION_2) for node in (call, call.func)]
    if edit.open or any(a.keyword is None for a in call.args):
        return Left(source, call, "its arguments are not all given by name", todo)
    given = {a.keyword.value: a for a in call.args if a.keyword is not None}
    for name, arg in given.items():
        lost = _without_equal(name, arg.value)
        if lost is not None:
            return Left(source, call, *lost)
        if name in DROPPED_SETTINGS:
            edit.remove(name)
            accounts.append(Account(source, arg, "dropped", DROPPED_SETTINGS[name], own=True))
    chosen = given.get("sharding_strategy")
    if chosen is not None and "reshard_after_forward" in given:
        edit.remove("sharding_strategy")
    elif chosen is not None:
        edit.rename("sharding_strategy", "reshard_after_forward")
    chosen = given.get("reshard_after_forward", chosen)
    strategy = "" if chosen is None else _strategy(chosen.value)
    if chosen is not None and strategy in RESHARDS:
        edit.replace(chosen, RESHARDS[strategy])
    offload = given.get("cpu_offload")
    if offload is not None and isinstance(offload.value, cst.Call):
        edit.replace(offload, _offloads(offload.value))
    edit.set("fsdp_version", "2")
    if "state_dict_type" not in given and not _types_in_files(program):
        edit.add("state_dict_type", '"FULL_STATE_DICT"')
    return Step((edit,), tuple(accounts))


def _without_equal(name: str, value: cst.BaseExpression) -> tuple[str, str] | None:
    """Why an argument cannot be given to version 2 as it is, and what to do."""
    if name in ("sharding_strategy", "reshard_after_forward"):
        strategy = _strategy(value)
        if strategy in LOST:
            return LOST[strategy]
        if strategy not in RESHARDS and not _is_literal(value, "True", "False"):
            return (
                "the strategy is chosen elsewhere",
                "set fsdp_version=2 and reshard_after_forward",
            )
    elif name == "cpu_offload" and not _is_literal(value, "True", "False"):
        if not (isinstance(value, cst.Call) and _offloads(value)):
            return (
                "the choice is made elsewhere",
                "set fsdp_version=2, and cpu_offload to True or False",
            )
    elif name == "auto_wrap_policy" and not isinstance(value, cst.SimpleString):
        return (
            "version 2 takes only the names of accelerate's own policies, and ignores another function",
            'set fsdp_version=2, auto_wrap_policy="transformer_based_wrap" and '
            "transformer_cls_names_to_wrap to the names of the classes",
        )
    elif name == "mixed_precision_policy" and not isinstance(value, cst.SimpleString):
        return (
            "version 2 refuses FSDP1's MixedPrecision",
            "set fsdp_version=2 and a MixedPrecisionPolicy with param_dtype, reduce_dtype and output_dtype",
        )
    elif name == "state_dict_type" and _strategy(value) == "LOCAL_STATE_DICT":
        return "version 2 refuses LOCAL_STATE_DICT", 'set fsdp_version=2 and "SHARDED_STATE_DICT"'
    return None


def _strategy(value: cst.BaseExpression) -> str:
    """The name of an enumeration's member: as text, or behind the dot."""
    if isinstance(value, cst.SimpleString):
        return str(value.evaluated_value).upper()
    return value.attr.value if isinstance(value, cst.Attribute) else ""


def _offloads(value: cst.Call) -> str:
    """``CPUOffload(offload_params=True)`` as the plugin takes it for both versions; empty if it is something else."""
    if _class_of(value) != "CPUOffload" or len(value.args) > 1:
        return ""
    if not value.args:
        return "False"
    inner = value.args[0].value
    return inner.value if isinstance(inner, cst.Name) and inner.value in ("True", "False") else ""


def _class_of(call: cst.Call) -> str:
    func = call.func
    last = func.attr if isinstance(func, cst.Attribute) else func
    return last.value if isinstance(last, cst.Name) else ""


def _is_literal(value: cst.BaseExpression, *words: str) -> bool:
    return isinstance(value, cst.Name) and value.value in words


def _types_in_files(program: Program) -> bool:
    """Whether a settings file of the project chooses the type of the state dicts: the plugin would override it."""
    found = (settings_of(text) for text in program.texts)
    return any(one is not None and one.option("state_dict_type") is not None for one in found)


def _version(call: cst.Call) -> str:
    found = (a.value for a in call.args if a.keyword and a.keyword.value == "fsdp_version")
    return getattr(next(found, None), "value", "")


# -- the Trainer's arguments -------------------------------------------------------------------------------------


def _of_the_trainer(
    program: Program, source: Source, call: cst.Call, given: list[cst.Arg], todo: str
) -> Iterator[Step | Left]:
    """``TrainingArguments(fsdp=…, fsdp_config=…)``: version 2 in the dictionary, which is made where there is none."""
    named = {a.keyword.value: a for a in given if a.keyword is not None}
    words, config = named.get("fsdp"), named.get("fsdp_config")
    lost = next((LOST_WORDS[w] for w in _words(words) if w in LOST_WORDS), None)
    if words is not None and lost is not None:
        yield Left(source, words, "version 2 has no word for this strategy", lost)
        return
    if words is not None and _is_off(words.value):
        yield Step((), tuple(Account(source, a, "preserved", "it asks for no FSDP") for a in given))
        return
    file = None if config is None else config.value
    if isinstance(file, cst.SimpleString) and _is_migrated(program, str(file.evaluated_value)):
        why = "the file that it names says the version"
        yield Step((), tuple(Account(source, a, "preserved", why) for a in given))
        return
    version = None if config is None else _entry(config.value, "version", "fsdp_version")
    if version is not None and getattr(version.value, "value", "") == "2":
        why = "the fsdp_config asks for version 2"
        yield Step((), tuple(Account(source, a, "preserved", why) for a in given))
        return
    edit: Arguments | Splice | None
    if config is None and words is not None and _is_written(words.value):
        edit = None if any(a.star for a in call.args) else Arguments(source, call)
        if isinstance(edit, Arguments):
            edit.add("fsdp_config", '{"fsdp_version": 2}')
    else:
        edit = None if config is None else _with_version(source, config.value, version)
    if edit is None:
        yield from (Left(source, arg, WHY, todo) for arg in given)
        return
    why = "version 2 of the fsdp_config is fully_shard (transformers >= 5.0)"
    yield Step((edit,), tuple(Account(source, a, "changed", why) for a in given))


def _is_migrated(program: Program, file: str) -> bool:
    """Whether a settings file is among those of this migration."""
    name = file.replace("\\", "/").rpartition("/")[2]
    return any(text.path.replace("\\", "/").rpartition("/")[2] == name for text in program.texts)


def _words(arg: cst.Arg | None) -> list[str]:
    """The options in ``fsdp="full_shard auto_wrap"``, or in a list of them."""
    if arg is None:
        return []
    if isinstance(arg.value, cst.SimpleString):
        return str(arg.value.evaluated_value).lower().split()
    items = arg.value.elements if isinstance(arg.value, cst.List | cst.Tuple) else ()
    texts = (e.value.evaluated_value for e in items if isinstance(e.value, cst.SimpleString))
    return [str(text).lower() for text in texts]


def _is_off(value: cst.BaseExpression) -> bool:
    """Whether ``fsdp`` is written out and empty."""
    if isinstance(value, cst.SimpleString):
        return not value.evaluated_value
    return _is_literal(value, "False", "None") or (
        isinstance(value, cst.List) and not value.elements
    )


def _is_written(value: cst.BaseExpression) -> bool:
    """Whether ``fsdp`` is written out, so that it is known to ask for FSDP."""
    return isinstance(value, cst.SimpleString | cst.List) or _is_literal(value, "True")


def _entry(value: cst.BaseExpression, *keys: str) -> cst.DictElement | None:
    """The entry of a dictionary that is written out."""
    for element in value.elements if isinstance(value, cst.Dict) else ():
        if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
            if element.key.evaluated_value in keys:
                return element
    return None


def _with_version(
    source: Source, value: cst.BaseExpression, version: cst.DictElement | None
) -> Splice | None:
    """The dictionary with version 2 in it."""
    if not isinstance(value, cst.Dict):
        return None
    layout = Layout.of(source)
    if version is not None:
        return Splice(source, *layout.span(version.value), "2")
    said = '"fsdp_version": 2'
    if not value.elements:
        end = layout.span(value)[1]
        return Splice(source, end - 1, end - 1, said)
    if any(isinstance(element, cst.StarredDictElement) for element in value.elements):
        return None
    first = value.elements[0]
    assert isinstance(first, cst.DictElement)
    at = layout.span(first.key)[0]
    before = source.text[layout.span(value)[0] + 1 : at]
    gap = before[before.rindex("\n") :] if "\n" in before else " "
    return Splice(source, at, at, f"{said},{gap}")


# -- what a framework does elsewhere -----------------------------------------------------------------------------


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
    when = f"once the settings of {framework} ask for FSDP2"
    if instead.startswith("nothing: "):
        return f"{when}, take this away: {instead.removeprefix('nothing: ')}"
    return f"{when}: {instead or 'look at this'}"


def _asks(arg: cst.Arg) -> bool:
    """Whether an argument asks for FSDP: a strategy does so by its name."""
    if arg.keyword is None or not arg.keyword.value.endswith("strategy"):
        return True
    return isinstance(arg.value, cst.SimpleString) and "fsdp" in str(arg.value.evaluated_value)
