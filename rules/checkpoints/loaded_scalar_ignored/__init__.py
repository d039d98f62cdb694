"""A number is loaded by `dcp.load` and the script goes on with the variable that it had before.

## What it does

Finds counters (they are 0 or -1) that a variable puts into the dictionary of `dcp.load`, when the loaded value is
never taken out again and the variable is used afterwards. Also a plain 0 in its place, in programs that save a count
under that key and train on after the load: nothing asks for the loaded number, or a helper returns it to a call whose
result is dropped. And counts (`self.step += 1`) that the `state_dict` of an object gives and its `load_state_dict`
does not take.

## Why is this bad

`dcp.load` fills tensors in place; numbers, strings and other objects are replaced in the dictionary. The variable
whose value was put there keeps that value: a run that should go on at step 2000 starts at step 0, with the
trained weights, silently.

## Example

```diff
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 step = 0
 state = {"model": model.state_dict(), "step": step}
 dcp.load(state, checkpoint_id="latest")
+step = state["step"]
 print(f"goes on at step {step}")
```

## Forms

- Found: a helper returns the number, and its caller drops it.
- Found: an object that DCP asks for its state, and gives it back in vain.
- Not found: a number that is asked for with the rest of the dictionary.

## Fix safety

Unsafe: look at what the script does with the variable before its next use.

## Known limits

Only dictionaries that are written in the call or bound to a name just for it, with those written inside of them, and
objects whose `load_state_dict` asks for its keys one by one. One that is handed on, returned
or looked through after the load is left alone.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`load`)
- `torch/distributed/checkpoint/default_planner.py` (`DefaultLoadPlanner.load_bytes`)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Container,
    Finding,
    Fix,
    Guards,
    InsertAfter,
    Layout,
    Literal,
    Loaded,
    Saved,
    Site,
    Stepped,
    Trace,
    Value,
    rule,
    walk,
)

from ..._common.fixes import call_of, path_text, stands_alone
from ..._common.shared import DCP, use_of
from .stateful import given_and_not_taken
from .uses import attribute_used, bound_by, function_of, is_name, names_after


@rule(code="FSDP322", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Numbers that stay in the dictionary."""
    for loaded in trace.of(Loaded):
        if loaded.via != f"{DCP}load" or not isinstance(loaded.into, Container):
            continue
        display, name = _display(loaded.at)
        if display is None:
            yield from _of_a_helper(trace, loaded, loaded.into)
        for element, keys in () if display is None else _elements(display):
            variable = path_text(loaded.at, element.value)
            if not _is_start(trace, loaded, loaded.into, keys):
                continue
            if isinstance(element.value, cst.Integer | cst.Float | cst.UnaryOperation) and name:
                if _counts(trace, loaded, keys) and _dropped(loaded, name, keys[0]):
                    yield _left_inside(loaded, keys)
                continue
            if not variable:
                continue
            if name and _taken_out(loaded.at, name, keys[0]):
                continue
            if _used(loaded.at, element, variable):
                yield Finding(
                    at=loaded,
                    message="`dcp.load` puts the loaded number into the dictionary under "
                    f"{_said(keys)}; `{variable}` keeps the value it had",
                    fix=_assigned(loaded.at, variable, name, keys),
                )
        for of, kept, key in given_and_not_taken(trace, loaded):
            yield Finding(
                at=loaded,
                message=f"`state_dict` of `{of}` gives `self.{kept}` under {key!r}, and its `load_state_dict` does not "
                "take it: a resumed run counts from the start again",
            )


def _elements(
    display: cst.Dict, above: tuple[str, ...] = ()
) -> Iterator[tuple[cst.DictElement, tuple[str, ...]]]:
    """What is in a dictionary and in the dictionaries in it, each with its keys as the script writes them."""
    for element in display.elements:
        if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
            keys = (*above, element.key.value)
            if isinstance(element.value, cst.Dict):
                yield from _elements(element.value, keys)
            else:
                yield element, keys


def _said(keys: Sequence[str]) -> str:
    return " and ".join(keys)


def _left_inside(loaded: Loaded, keys: Sequence[str]) -> Finding:
    return Finding(
        at=loaded,
        message=f"`dcp.load` puts the loaded number into the dictionary under {_said(keys)}, and nothing "
        "takes it out: a resumed run counts from the start again",
    )


def _of_a_helper(trace: Trace, loaded: Loaded, into: Container) -> Iterator[Finding]:
    """Numbers in a dictionary that a function of the script has made: ``state = self.state(step=0)``."""
    call = call_of(loaded.at)
    given = [] if call is None else [a.value for a in call.args if _is_state(a)][:1]
    name = given[0].value if given and isinstance(given[0], cst.Name) else ""
    if not name or not isinstance(_bound_once(loaded.at, name), cst.Call):
        return
    if use_of(loaded.at) != "Expr":
        return  # what is read of its result is FSDP304
    for entry, _ in list(trace.memory.entries(into)):
        key = entry[1:-1] if isinstance(entry, str) and entry.startswith(("['", '["')) else ""
        if key and _is_start(trace, loaded, into, (key,)):
            if _counts(trace, loaded, (key,)) and _dropped(loaded, name, key):
                yield _left_inside(loaded, (key,))


def _display(site: Site) -> tuple[cst.Dict | None, str]:
    """The dictionary as it is written: in the call, or bound to a name once in the same function."""
    call = call_of(site)
    given = [] if call is None else [a for a in call.args if _is_state(a)][:1]
    for argument in given:
        if isinstance(argument.value, cst.Dict):
            return argument.value, ""
        if isinstance(argument.value, cst.Name):
            name = argument.value.value
            bound = _bound_once(site, name)
            if isinstance(bound, cst.Dict):
                return bound, name
    return None, ""


def _bound_once(site: Site, name: str) -> cst.BaseExpression | None:
    """What a name of a function is bound to, where that is done once."""
    bound = [
        node.value
        for node in walk(function_of(site))
        if isinstance(node, cst.Assign | cst.AnnAssign) and name in _targets(node)
    ]
    return bound[0] if len(bound) == 1 else None


def _is_state(argument: cst.Arg) -> bool:
    named = argument.keyword
    return not argument.star and (named is None or named.value == "state_dict")


def _targets(node: cst.Assign | cst.AnnAssign) -> list[str]:
    targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
    return [t.value for t in targets if isinstance(t, cst.Name)]


def _is_start(trace: Trace, loaded: Loaded, into: Container, keys: Sequence[str]) -> bool:
    """Whether a number is there that counters begin with: what is loaded is meant to replace it."""
    value = _below(trace, into, keys, loaded.guards)
    if not isinstance(value, Literal):
        return False
    if value.value is None:  # before anything was counted
        return _COUNTED.search(keys[-1]) is not None
    return type(value.value) in (int, float) and value.value in (0, -1)


_COUNTED = re.compile(r"step|epoch|iteration|iter\b|iter_num", re.IGNORECASE)


def _below(trace: Trace, whole: Value, keys: Sequence[str], here: Guards) -> Value | None:
    """What is in a dictionary under several keys, one inside of another."""
    found: Value | None = whole
    for key in keys:
        if found is not None:
            found = trace.memory.read(found, f"[{ast.literal_eval(key)!r}]", here)
    return found


def _taken_out(site: Site, name: str, key: str) -> bool:
    """Whether the dictionary is used, after the load, other than by asking it for other keys."""
    return next(_uses(site, name, key), None) is not None


def _uses(site: Site, name: str, key: str) -> Iterator[cst.CSTNode]:
    """Where the dictionary, or what it holds under a key, is used after the load."""
    parents = Layout.of(site.source).parents
    for node in names_after(site, name):
        above = parents.get(node)
        if not isinstance(above, cst.Subscript) or above.value is not node:
            yield node
            continue
        index = above.slice[0].slice
        asked = index.value if isinstance(index, cst.Index) else None
        if not isinstance(asked, cst.SimpleString) or asked.value[1:-1] == key[1:-1]:
            yield above


def _counts(trace: Trace, loaded: Loaded, keys: Sequence[str]) -> bool:
    """Whether training goes on after the load, and the program saves a count under the keys."""
    if next(trace.after(loaded, Stepped), None) is None:
        return False
    counts = [
        _below(trace, one.what, keys, one.guards)
        for one in trace.of(Saved)
        if isinstance(one.what, Container)
    ]
    return any(count is not None and not isinstance(count, Literal) for count in counts)


def _dropped(loaded: Loaded, name: str, key: str) -> bool:
    """Whether nobody gets what was loaded under the key: it is never asked for, or returned to calls that drop it."""
    site = loaded.at
    calls = list(loaded.moment.calls)
    uses = list(_uses(site, name, key))
    while uses:
        parents = Layout.of(site.source).parents
        if not all(isinstance(parents.get(use), cst.Return) for use in uses) or not calls:
            return False
        site = calls.pop()
        above = Layout.of(site.source).parents.get(site.node)
        if isinstance(above, cst.Expr):
            return True
        uses = [site.node]
    return True


def _used(site: Site, element: cst.DictElement, variable: str) -> bool:
    """Whether a variable, or an attribute that other functions see, is read with its old value."""
    if isinstance(element.value, cst.Attribute):
        return attribute_used(site, element.value)
    for node in names_after(site, variable):
        bound = bound_by(site, node)
        if bound is None:
            return True
        return any(n is not node for n in walk(bound) if is_name(n, variable))
    return False


def _assigned(site: Site, variable: str, name: str, keys: Sequence[str]) -> Fix | None:
    """Take the loaded number out of the dictionary."""
    if not name or stands_alone(site) is None:
        return None
    path = "".join(f"[{key}]" for key in keys)
    edit = InsertAfter(site.source, site.node, f"{variable} = {name}{path}")
    return Fix(
        f"take `{variable}` out of the dictionary", (edit,), "unsafe", "see where it is used"
    )
