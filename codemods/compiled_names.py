"""Checkpoints of a compiled FSDP1 model are read under names without the prefix of `torch.compile`.

## What it does

Where the model is one that `torch.compile` has put a module of its own around, takes `_orig_mod.` out of the names in
what `set_model_state_dict` and `set_optimizer_state_dict` get from a file, and gives `dcp.load` a planner that finds
parameters by their names without it.

## Why

The state dicts of `torch.compile(FSDP(model))` had names that begin with `_orig_mod.`. `get_model_state_dict` and its
kin know them without it: `set_model_state_dict` misses every key of a file that FSDP1 wrote, `dcp.load` every key of a
folder, and `set_optimizer_state_dict` leaves the optimizer's groups without a learning rate.

## Example

```diff
 import torch
 from torch import nn
 from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

+
+def without_prefix(state):
+    \"\"\"The state of a checkpoint under the names that parameters have without torch.compile.\"\"\"
+    if isinstance(state, dict):
+        return {without_prefix(key): without_prefix(value) for key, value in state.items()}
+    if isinstance(state, list):
+        return [without_prefix(value) for value in state]
+    return state.replace("_orig_mod.", "") if isinstance(state, str) else state
+
+
 model = torch.compile(FSDP(nn.Linear(8, 8), use_orig_params=True))
 state = torch.load("model.pt")
-set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))
+set_model_state_dict(
+    model, without_prefix(state), options=StateDictOptions(full_state_dict=True)
+)
```

## What it leaves

- Modules that are compiled inside the model, and loads whose planner is not torch's own.
- Scripts that look up `"_orig_mod"` in a checkpoint themselves: those that are saved from now on have names without it.

## References

- `torch/distributed/checkpoint/state_dict.py` (`_get_fqns`)
- `torch/distributed/checkpoint/default_planner.py`, `torch/_dynamo/eval_frame.py` (`OptimizedModule`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Account,
    Arguments,
    Called,
    Edit,
    Layout,
    Left,
    Loaded,
    Program,
    Replace,
    Rewrite,
    Source,
    StateDict,
    Step,
    Trace,
    Value,
    argument,
    codemod,
    dotted,
    options,
    walk,
)

from ._common.loop_text import text_of
from ._common.shared import Helpers, Naming
from ._common.states_text import HOME, fitted
from ._common.states_uses import fsdp1_models_of, is_compiled, wrappers_of

_LOAD = "torch.distributed.checkpoint.load"
_PLANNER = "torch.distributed.checkpoint.default_planner.DefaultLoadPlanner"
_SETTERS = {
    f"{HOME}.set_model_state_dict": (1, "model_state_dict"),
    f"{HOME}.set_optimizer_state_dict": (2, "optim_state_dict"),
}
_AFTER = (
    "checkpoint-functions",
    "optim-state-dict-loads",
    "sharded-optim-state-dict-loads",
    "state-dict-types",
)
_PREFIX = "_orig_mod"
_WHY = "names in checkpoints of the compiled FSDP1 model begin with `_orig_mod.`, here they do not"

Calls = Sequence[tuple[Trace, Called]]


@codemod(after=_AFTER)
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Each call that puts the state of a file into a compiled model of FSDP1, or fills it from a folder."""
    found = False
    for events in program.sites(Called):
        source, call = events[0][1].at.source, events[0][1].at.node
        if not isinstance(call, cst.Call):
            continue
        if any(_sets(trace, called) for trace, called in events):
            found = True
            yield from _renamed(source, call, _SETTERS[events[0][1].name])
        elif any(_fills(trace, called) for trace, called in events):
            found = True
            yield from _planned(program, source, call)
    if found:
        yield from _spelled_out(program)


def _sets(trace: Trace, called: Called) -> bool:
    """Whether a state that a file may hold is put into a compiled model of FSDP1 or its optimizer."""
    if called.name not in _SETTERS:
        return False
    model, state = called.argument(0, "model"), called.argument(*_SETTERS[called.name])
    if model is None or state is None or not is_compiled(trace, called, model):
        return False
    if "fsdp1" not in wrappers_of(trace, called, model):
        return False
    mine = [one for one in options(state) if isinstance(one, StateDict)]
    if len(mine) < len(options(state)):
        return True
    is_loaded = any(one in loaded.states for loaded in trace.before(called, Loaded) for one in mine)
    return is_loaded and "optim" in called.name  # of which the planner knows no names in values


def _renamed(source: Source, call: cst.Call, place: tuple[int, str]) -> Iterator[Step]:
    given = argument(call, *place)
    helpers = Helpers.above(source, call)
    name = helpers.add("without_prefix", without_prefix)
    if given is None or (
        isinstance(given.value, cst.Call) and dotted(given.value.func).endswith(name)
    ):
        return
    renamed = f"{name}({text_of(source, given.value)})"
    parts = [_part(source, a, renamed if a is given else "") for a in call.args]
    edit: Edit = Rewrite(source, given.value, lambda inner: f"{name}({inner.text})")
    if not _is_broken(source, call):
        edit = Replace(source, call, fitted(source, call, text_of(source, call.func), parts))
    yield Step((edit, *helpers.all_edits()), (Account(source, call, "changed", _WHY),))


def _part(source: Source, arg: cst.Arg, value: str = "") -> str:
    """An argument as it is written, or with another value."""
    name = arg.star if arg.keyword is None else f"{arg.keyword.value}="
    return name + (value or text_of(source, arg.value))


def _is_broken(source: Source, call: cst.Call) -> bool:
    """Whether the arguments of a call are on several lines already."""
    text = text_of(source, call)
    return text.count("\n") > 2 or "#" in text or '"""' in text


def _spelled_out(program: Program) -> Iterator[Left]:
    """The prefix where the script itself looks a name up by it, or gives it to one."""
    for source in program.sources:
        for node in walk(source.tree) if _PREFIX in source.text else ():
            if isinstance(node, cst.SimpleString) and node.raw_value.rstrip(".") == _PREFIX:
                if isinstance(Layout.of(source).parents[node], cst.DictElement | cst.Index):
                    why = "what is saved from now on has names without it"
                    yield Left(source, node, why, f"look up new checkpoints without `{_PREFIX}`")


def without_prefix(name: str, named: Naming) -> str:
    """The function that takes the prefix away, from what a file holds of a model or an optimizer."""
    return f'''def {name}(state):
    """The state of a checkpoint under the names that parameters have without torch.compile."""
    if isinstance(state, dict):
        return {{{name}(key): {name}(value) for key, value in state.items()}}
    if isinstance(state, list):
        return [{name}(value) for value in state]
    return state.replace("_orig_mod.", "") if isinstance(state, str) else state'''


def _fills(trace: Trace, called: Called) -> bool:
    """Whether the state of a compiled model of FSDP1, or of its optimizer, is filled from a folder."""
    if called.name != _LOAD:
        return False
    filled = [s for one in trace.of(Loaded) if one.at.node is called.at.node for s in one.states]
    return any(
        is_compiled(trace, called, model) and "fsdp1" in wrappers_of(trace, called, model)
        for state in filled
        if state.via.startswith(HOME)
        for model in _models(trace, state, called)
    )


def _models(trace: Trace, state: StateDict, called: Called) -> list[Value]:
    """The models whose names a state dict has."""
    return [state.of] if state.kind == "model" else fsdp1_models_of(trace, state.of, called)


def _planned(program: Program, source: Source, call: cst.Call) -> Iterator[Step]:
    planner = argument(call, 3, "planner")
    if planner is not None and not _is_default(program, source, planner.value):
        return
    helpers = Helpers.above(source, call)
    name = helpers.add("CompiledLoadPlanner", compiled_planner)
    edit: Edit = Arguments(source, call).set("planner", f"{name}()")
    if planner is None and not _is_broken(source, call):
        parts = [*(_part(source, arg) for arg in call.args), f"planner={name}()"]
        edit = Replace(source, call, fitted(source, call, text_of(source, call.func), parts))
    yield Step((edit, *helpers.all_edits()), (Account(source, call, "changed", _WHY),))


def _is_default(program: Program, source: Source, planner: cst.BaseExpression) -> bool:
    """Whether a planner is torch's own with its own settings."""
    if not isinstance(planner, cst.Call):
        return dotted(planner) == "None"
    made = program.meaning(source, planner, dotted(planner.func))
    return not planner.args and made.rpartition(".")[2] == "DefaultLoadPlanner"


def compiled_planner(name: str, named: Naming) -> str:
    """The planner that reads folders of a compiled model."""
    replace = named("dataclasses.replace")
    return f'''class {name}({named(_PLANNER)}):
    """Finds parameters by their names without torch.compile, in folders that FSDP1 wrote too."""

    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False):
        metadata.state_dict_metadata = {{
            key.replace("_orig_mod.", ""): value
            for key, value in metadata.state_dict_metadata.items()
        }}
        metadata.storage_data = {{
            {replace}(index, fqn=index.fqn.replace("_orig_mod.", "")): value
            for index, value in metadata.storage_data.items()
        }}
        super().set_up_planner(state_dict, metadata, is_coordinator)'''
