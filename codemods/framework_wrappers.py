"""Where a script asks a framework for FSDP1, it asks for version 2.

## What it does

Gives accelerate's `FullyShardedDataParallelPlugin` `fsdp_version=2`, and the `fsdp_config` of the Trainer's arguments
`"fsdp_version": 2`. Of the plugin, `sharding_strategy` becomes `reshard_after_forward`, arguments that version 2 ignores or
refuses go, and the type of the state dicts that version 1 means is written. Where the model and its optimizer are prepared by
two calls of a block, which version 2 refuses, one call takes both. Lightning's `FSDPStrategy` becomes
`ModelParallelStrategy`, and the only LightningModule of the program gets a `configure_model` that shards it. For Ray and
Fabric, which need other code, it says what to write.

## Why

The framework calls FSDP1, builds the optimizer around it and saves its checkpoints; a rewriting of the script
alone would leave half of that behind. Each of them has a setting or a strategy for FSDP2.

## Example

```diff
 from accelerate import Accelerator, FullyShardedDataParallelPlugin

-plugin = FullyShardedDataParallelPlugin(sharding_strategy="SHARD_GRAD_OP")
+plugin = FullyShardedDataParallelPlugin(
+    reshard_after_forward=False, fsdp_version=2, state_dict_type="FULL_STATE_DICT"
+)
 accelerator = Accelerator(fsdp_plugin=plugin)
```

## What it leaves

Strategies that version 2 has no argument for (`NO_SHARD`, the hybrid ones), programs that prepare two models by one call, or a model and its optimizer in different
places, wrap policies and precisions that are
objects of FSDP1, settings that come from a variable: each place gets a comment that says what to set. Of Lightning, a
strategy with other arguments than a wrap policy of classes, FULL_SHARD or SHARD_GRAD_OP and the state-dict type, a precision
other than 32, and a module that has a `configure_model` already. Where a
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
from pathlib import PurePath

import libcst as cst

from fsdp2lint.api import (
    BUFFERS_KEPT,
    DROPPED_SETTINGS,
    FRAMEWORK_ARGUMENTS,
    FRAMEWORKS,
    PACKAGES,
    Account,
    Arguments,
    Edit,
    Layout,
    Left,
    Program,
    Replace,
    Source,
    Splice,
    Step,
    codemod,
    inventory,
    name_for,
    settings_of,
    unread,
    walk,
)

from ._common.lightning import (
    STRATEGY,
    TRAINER,
    Module,
    classes_at_top,
    configure_model,
    lightning_modules,
    method_lines,
    older_lightning,
)
from ._common.prepared import prepared_together

FSDP2 = (
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.FSDPModule",
)
BOTH = "the plugin is of this class in both versions"
OF_FSDP1 = "Lightning's strategy for FSDP2 is another class, which this test does not let through"
SERVED = "the tests beside it have a path for `ModelParallelStrategy`"
TOO = "test for `ModelParallelStrategy` here too"
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
    converted: set[cst.CSTNode] = set()
    trainers = [one for one in _calls(program, TRAINER) if _may_be_fsdp(one[1])]
    older = older_lightning(program)
    made = _of_lightning(program, *trainers[0]) if len(trainers) == 1 and not older else None
    if made is not None:
        converted = {account.node for account in made.accounts}
        yield made
    joined: set[Source] = set()
    for reference in program.references(*FRAMEWORKS):
        call = Layout.of(reference.source).parents.get(reference.node)
        if call in converted:
            continue
        todo = FRAMEWORKS[reference.name]
        if _is_tested_for(reference.source, reference.node):
            if reference.name.endswith(PLUGIN):
                account = Account(reference.source, reference.node, "preserved", BOTH)
                yield Step((), (account,))
            elif _is_tested_beside(reference.source, reference.node):
                account = Account(reference.source, reference.node, "preserved", SERVED)
                yield Step((), (account,))
            else:
                yield Left(reference.source, reference.node, OF_FSDP1, TOO)
        elif not reference.name.endswith(PLUGIN) or not isinstance(call, cst.Call):
            code = _skeleton(reference.source, reference.name, call)
            if older is not None and "lightning" in reference.name:
                yield Left(reference.source, reference.node, *older)
            else:
                yield Left(reference.source, reference.node, WHY, todo, code)
        elif _version(call) == "2":
            why = "`fsdp_version=2` asks for FSDP2 already"
            yield Step((), (Account(reference.source, call, "preserved", why),))
        else:
            yield from _plugin(program, reference.source, call, todo, joined)
    for reference in program.references(*FRAMEWORK_ARGUMENTS):
        call = Layout.of(reference.source).parents.get(reference.node)
        if isinstance(call, cst.Call):
            wanted, todo = FRAMEWORK_ARGUMENTS[reference.name]
            given = [a for a in call.args if a.keyword and a.keyword.value in wanted and _asks(a)]
            given = [a for a in given if a not in converted]
            if given and "fsdp_config" in wanted:
                yield from _of_the_trainer(program, reference.source, call, given, todo)
            else:
                code = _skeleton(reference.source, reference.name, call)
                left = (WHY, todo, code)
                if older is not None and "lightning" in reference.name:
                    left = (*older, "")
                yield from (Left(reference.source, arg, *left) for arg in given)
    yield from _of_hidden_wrappers(program)


def _is_tested_beside(source: Source, node: cst.CSTNode) -> bool:
    """Whether the ``if`` that asks for a strategy has another branch, or the same test, for that of FSDP2."""
    layout = Layout.of(source)
    asked = next((one for one in layout.ancestors(node) if isinstance(one, cst.If)), None)
    if asked is None:
        return False
    while isinstance(above := layout.parents[asked], cst.If):
        asked = above
    tests: list[cst.BaseExpression] = []
    branch: cst.If | cst.Else | None = asked
    while isinstance(branch, cst.If):
        tests.append(branch.test)
        branch = branch.orelse
    return node in {one for test in tests for one in walk(test)} and any(
        "ModelParallelStrategy" in source.code(test) for test in tests
    )


def _is_tested_for(source: Source, node: cst.CSTNode) -> bool:
    """Whether a class is what `isinstance` or `issubclass` tests for, alone or in a tuple."""
    layout = Layout.of(source)
    inner = layout.parents[node]
    if isinstance(inner, cst.Element):
        inner = layout.parents[layout.parents[inner]]
    call = layout.parents[inner] if isinstance(inner, cst.Arg) else None
    name = call.func if isinstance(call, cst.Call) else None
    return isinstance(name, cst.Name) and name.value in ("isinstance", "issubclass")


# -- accelerate's plugin -----------------------------------------------------------------------------------------


def _plugin(
    program: Program, source: Source, call: cst.Call, todo: str, joined: set[Source]
) -> Iterator[Step | Left]:
    """The plugin in version 2, and the calls of ``prepare`` that it wants; ``joined`` are the files that have them.

    It is left where an argument has no equal there, such a call cannot be written, or the project's accelerate is older.
    """
    made = _second(program, source, call, todo)
    sources = program.programs_with(source)
    calls = [*prepared_together(sources)]
    apart = next((one for one in calls if isinstance(one, Left)), None)
    if isinstance(made, Step) and apart is not None:
        line = Layout.of(apart.source).place(Layout.of(apart.source).span(apart.node)[0])[0]
        file = PurePath(apart.source.path).name
        at = f"{apart.why}: `{apart.source.code(apart.node)}` ({file}:{line})"
        yield Left(source, call, at, f"{apart.todo}, and set fsdp_version=2")
        return
    yield made
    if isinstance(made, Step):
        yield from (one for one in calls if not _is_of(one, joined))
        joined |= sources


def _is_of(one: Step | Left, joined: set[Source]) -> bool:
    """Whether a call belongs to a file whose calls were joined already."""
    return isinstance(one, Step) and one.accounts[0].source in joined


def _second(program: Program, source: Source, call: cst.Call, todo: str) -> Step | Left:
    older = unread("accelerate", program.options.limits)
    if older is not None:
        return Left(source, call, *older)
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
    older = unread("transformers", program.options.limits)
    if older is not None:
        yield from (Left(source, arg, *older) for arg in given)
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
    mixed = (a for a in call.args if a.keyword and a.keyword.value in ("bf16", "fp16"))
    if any(_is_literal(a.value, "True") for a in mixed):
        why += f"; {BUFFERS_KEPT}"
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


# -- Lightning's strategy ----------------------------------------------------------------------------------------

_KNOWN = {"auto_wrap_policy", "sharding_strategy", "state_dict_type"}
_PRECISIONS = ("32", "'32'", '"32"', "'32-true'", '"32-true"')
_SHARDS = "ModelParallelStrategy is FSDP2; `configure_model` shards the module"


def _of_lightning(program: Program, source: Source, call: cst.Call) -> Step | None:
    """``Trainer(strategy=FSDPStrategy(…))`` with Lightning's FSDP2, and a ``configure_model`` in the module.

    None where the strategy, the number of devices or the module is not known.
    """
    given = {a.keyword.value: a for a in call.args if a.keyword is not None}
    strategy, precision = given.get("strategy"), given.get("precision")
    if strategy is None or any(a.star for a in call.args):
        return None
    settings = _strategy_of(program, strategy.value)
    modules = lightning_modules(program)
    size = _devices(source, call, given)
    if settings is None or len(modules) != 1 or size is None:
        return None
    if precision is not None and source.code(precision.value) not in _PRECISIONS:
        return None
    hooks = _configure_model(source, modules[0], settings)
    if hooks is None or any(o.kind not in ("import", "framework") for o in inventory(program)):
        return None
    home = "pytorch_lightning" if "pytorch_lightning" in source.text else "lightning.pytorch"
    name = name_for(source, call, f"{home}.strategies.ModelParallelStrategy")
    whole = "" if _text(settings.get("state_dict_type")) == "sharded" else _WHOLE
    new = f"{name.text}(data_parallel_size={size[0]}, tensor_parallel_size=1{whole})"
    edits = (Replace(source, strategy.value, new), *name.edits, *size[1], *hooks)
    accounts = [Account(source, node, "changed", _SHARDS) for node in (strategy, strategy.value)]
    return Step(edits, tuple(accounts))


_WHOLE = ", save_distributed_checkpoint=False"


def _calls(program: Program, name: str) -> Iterator[tuple[Source, cst.Call]]:
    for reference in program.references(name):
        call = Layout.of(reference.source).parents.get(reference.node)
        if isinstance(call, cst.Call) and call.func is reference.node:
            yield reference.source, call


def _may_be_fsdp(call: cst.Call) -> bool:
    """Whether a trainer has a strategy that is FSDP, or is chosen elsewhere."""
    chosen = [a.value for a in call.args if a.keyword and a.keyword.value == "strategy"]
    other = (v for v in chosen if isinstance(v, cst.SimpleString) and "fsdp" not in _text(v))
    return bool(chosen) and not any(other)


def _strategy_of(
    program: Program, value: cst.BaseExpression
) -> dict[str, cst.BaseExpression] | None:
    """The arguments of the strategy, if all of them have an equal in FSDP2."""
    if isinstance(value, cst.SimpleString):
        return {} if value.evaluated_value == "fsdp" else None
    if not isinstance(value, cst.Call):
        return None
    if not any(r.node is value.func for r in program.references(STRATEGY)):
        return None
    given = {a.keyword.value: a.value for a in value.args if a.keyword is not None}
    if len(given) != len(value.args) or not given.keys() <= _KNOWN:
        return None
    chosen = given.get("sharding_strategy")
    known = chosen is None or _strategy(chosen) in RESHARDS
    return (
        given if known and _text(given.get("state_dict_type")) in ("", "full", "sharded") else None
    )


def _text(value: cst.BaseExpression | None) -> str:
    """A text that is written out; empty when there is none, something else otherwise."""
    if value is None:
        return ""
    return str(value.evaluated_value) if isinstance(value, cst.SimpleString) else "?"


def _devices(
    source: Source, call: cst.Call, given: dict[str, cst.Arg]
) -> tuple[str, tuple[Edit, ...]] | None:
    """Over how many processes the strategy shards, as an expression; None when that is not known."""
    devices, nodes = given.get("devices"), given.get("num_nodes")
    edits: tuple[Edit, ...] = ()
    number = "" if devices is None else source.code(devices.value)
    if number in ("", "-1", "'auto'", '"auto"', "'-1'", '"-1"'):
        torch = name_for(source, call, "torch", module=True)
        number, edits = f"{torch.text}.cuda.device_count()", torch.edits
    elif not number.isdigit():
        return None
    if nodes is None or source.code(nodes.value) == "1":
        return number, edits
    machines = source.code(nodes.value)
    if isinstance(nodes.value, cst.Integer) and number.isdigit():
        return str(int(number) * int(machines)), edits
    if isinstance(nodes.value, cst.Integer | cst.Name | cst.Attribute):
        return f"{number} * {machines}", edits
    return None


def _configure_model(
    source: Source, module: Module, settings: dict[str, cst.BaseExpression]
) -> tuple[Edit, ...] | None:
    """The method that shards what the wrap policy chose, and the module; None when the classes are not at hand."""
    home, _ = module
    wrapped = _wrapped_classes(settings.get("auto_wrap_policy"))
    if wrapped is None or not (home is source or wrapped <= classes_at_top(home)):
        return None
    return configure_model(module, wrapped, keeps=_keeps(settings))


def _keeps(settings: dict[str, cst.BaseExpression]) -> bool:
    """Whether parameters stay gathered from the forward to the backward."""
    chosen = settings.get("sharding_strategy")
    return chosen is not None and _strategy(chosen) == "SHARD_GRAD_OP"


def _skeleton(source: Source, name: str, call: cst.CSTNode | None) -> str:
    """The strategy and the `configure_model` that take the place of Lightning's FSDP1, as far as the call says them.

    Empty for other frameworks. ``call`` builds the strategy, or the trainer that gets it by its name.
    """
    if name not in (STRATEGY, TRAINER):
        return ""
    layout, inner = Layout.of(source), call if isinstance(call, cst.Call) else None
    given = {a.keyword.value: a.value for a in (inner.args if inner else ()) if a.keyword}
    trainer = inner if name == TRAINER else _around(layout, inner)
    beside = {a.keyword.value: a for a in (trainer.args if trainer else ()) if a.keyword}
    number = source.code(beside["devices"].value) if "devices" in beside else ""
    known = {} if name == TRAINER else given
    wrapped = _wrapped_classes(known.get("auto_wrap_policy")) or {"Block"}
    whole = "" if _text(known.get("state_dict_type")) == "sharded" else _WHOLE
    size = number if number.isdigit() else "torch.cuda.device_count()"
    home = "pytorch_lightning" if "pytorch_lightning" in source.text else "lightning.pytorch"
    block = "" if _wrapped_classes(known.get("auto_wrap_policy")) else _BLOCK
    method = method_lines("fully_shard", "FSDPModule", wrapped, keeps=_keeps(known))
    return "\n".join(
        (
            f"from {home}.strategies import ModelParallelStrategy",
            "from torch.distributed.fsdp import FSDPModule, fully_shard",
            "",
            f"strategy = ModelParallelStrategy(data_parallel_size={size}, tensor_parallel_size=1{whole})",
            "",
            "# in the LightningModule" + block,
            *method,
        )
    )


_BLOCK = "; Block is the class of its repeated layers"


def _around(layout: Layout, call: cst.Call | None) -> cst.Call | None:
    """The call that is given the result of another one as it is written."""
    argument = None if call is None else layout.parents.get(call)
    outer = layout.parents.get(argument) if isinstance(argument, cst.Arg) else None
    return outer if isinstance(outer, cst.Call) else None


def _wrapped_classes(policy: cst.BaseExpression | None) -> set[str] | None:
    """The names of the classes in a wrap policy that is written out; none without a policy."""
    if policy is None:
        return set()
    if not isinstance(policy, cst.Set | cst.List | cst.Tuple):
        return None
    names = [element.value for element in policy.elements]
    if not all(isinstance(name, cst.Name) for name in names):
        return None
    return {name.value for name in names if isinstance(name, cst.Name)}


# -- what a framework does elsewhere -----------------------------------------------------------------------------


def _of_hidden_wrappers(program: Program) -> Iterator[Step | Left]:
    """Methods of models that only the framework wraps, by FSDP1 or FSDP2 as its own settings say."""
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
            yield Left(one.source, one.node, why, _later(program, instead))


def _later(program: Program, instead: str) -> str:
    """What a person has to do when the framework's settings have changed, which may be now."""
    when = f"once the settings of {program.framework} ask for FSDP2"
    if _asks_for_fsdp2(program):
        when = f"the settings of {program.framework} ask for FSDP2 now"
    if instead.startswith("nothing: "):
        return f"{when}, take this away: {instead.removeprefix('nothing: ')}"
    return f"{when}: {instead or 'look at this'}"


def _asks_for_fsdp2(program: Program) -> bool:
    """Whether a settings file of the project asks for FSDP2, or does so once it is migrated."""
    found = [one for one in map(settings_of, program.texts) if one is not None]
    return any(
        one.version == 2 or unread(PACKAGES.get(one.framework, ""), program.options.limits) is None
        for one in found
    )


def _asks(arg: cst.Arg) -> bool:
    """Whether an argument asks for FSDP: a strategy does so by its name."""
    if arg.keyword is None or not arg.keyword.value.endswith("strategy"):
        return True
    return isinstance(arg.value, cst.SimpleString) and "fsdp" in str(arg.value.evaluated_value)
