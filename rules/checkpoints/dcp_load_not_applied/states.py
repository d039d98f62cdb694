"""The fix of a loaded optimizer state that nobody sets: the missing call below the load."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from fsdp2lint.api import (
    Container,
    Edit,
    Fix,
    InsertAfter,
    Layout,
    Loaded,
    Site,
    StateDict,
    StateDictTaken,
    Trace,
    name_for,
    walk,
)

from ..._common.fixes import call_of, path_text, receiver_of, sites_together, stands_alone
from ..._common.fixes_moving import bound_names

_HOME = "torch.distributed.checkpoint.state_dict"
_GETTERS = (f"{_HOME}.get_optimizer_state_dict", f"{_HOME}.get_state_dict")
_KEY = re.compile(r"\['(\w+)'\]\Z")


def set_below(trace: Trace, loaded: Loaded, states: Sequence[StateDict]) -> Fix | None:
    """``set_optimizer_state_dict`` below a load, for each optimizer state that it filled.

    None unless the model, the optimizer and the place of the state in the loaded dictionary are known.
    """
    if stands_alone(loaded.at) is None:
        return None
    setter = name_for(loaded.at.source, loaded.at.node, f"{_HOME}.set_optimizer_state_dict")
    lines: list[str] = []
    for state in states:
        owners = _owners(trace, loaded, state)
        place = _place(trace, loaded, state)
        if not owners or not place:
            return None
        model, optimizer, *more = owners
        lines.append(f"{setter.text}({', '.join((model, optimizer, place, *more))})")
    if not lines or len(set(lines)) != len(states):
        return None
    insert: Edit = InsertAfter(loaded.at.source, loaded.at.node, "\n".join(lines))
    return Fix(
        "give the loaded state to the optimizer",
        (insert, *setter.edits),
        "unsafe",
        "the optimizer goes on with the learning rate of the checkpoint",
    )


def _owners(trace: Trace, loaded: Loaded, state: StateDict) -> tuple[str, ...]:
    """The model and the optimizer that a state was taken of, as written, and the options to say again."""
    taken = next((t for t in trace.of(StateDictTaken) if t.state is state), None)
    call = None if taken is None else call_of(taken.at)
    if taken is None or call is None or state.kind != "optimizer" or state.via not in _GETTERS:
        return ()
    given = _arguments(call)
    model, optimizer = given.pop("model", None), given.pop("optimizers", None)
    texts = [path_text(taken.at, model), path_text(taken.at, optimizer)]
    options = given.pop("options", None)
    if options is not None:
        text = path_text(taken.at, options)
        if not text or state.full is not False:
            return ()
        texts.append(text)
    if given or not all(texts) or not _mean_the_same(taken, loaded, texts):
        return ()
    return (*texts[:2], *(f"options={text}" for text in texts[2:]))


def _arguments(call: cst.Call) -> dict[str, cst.BaseExpression]:
    """The arguments of a getter by name; an unknown one when some are passed on."""
    names = ("model", "optimizers")
    found: dict[str, cst.BaseExpression] = {}
    for index, argument in enumerate(call.args):
        name = "*" if argument.star or index >= len(names) else names[index]
        found[argument.keyword.value if argument.keyword else name] = argument.value
    return found


def _mean_the_same(taken: StateDictTaken, loaded: Loaded, texts: Sequence[str]) -> bool:
    """Whether names that are written where a state is taken mean the same where it is loaded."""
    above, below = sites_together(taken, loaded)
    if above.source is not below.source or below.node is not loaded.at.node:
        return False
    if above.node is not taken.at.node and not _of_self(taken, above, texts):
        return False
    source, layout = above.source, Layout.of(above.source)
    first, last = layout.span(above.node)[1], layout.span(below.node)[0]
    if _function(above) is not _function(below) or first > last:
        return False
    names = {part for text in texts for part in re.findall(r"\w+", text)}
    between = (n for n in walk(source.tree) if isinstance(n, cst.BaseSmallStatement | cst.For))
    return not any(bound_names(n) & names for n in between if first < layout.span(n)[0] < last)


def _of_self(taken: StateDictTaken, call: Site, texts: Sequence[str]) -> bool:
    """Whether a state is taken in a method that ``call`` asks of the same object, of attributes of it."""
    receiver = receiver_of(call)
    inner, outer = _function(taken.at), _function(call)
    if not isinstance(receiver, cst.Name) or receiver.value != "self":
        return False
    if taken.calls[-1:] != (call,) or taken.at.source is not call.source or inner is None:
        return False
    layout = Layout.of(call.source)
    same = outer is not None and _class(layout, inner) is _class(layout, outer)
    return same and all(text.startswith("self.") for text in texts)


def _function(site: Site) -> cst.FunctionDef | None:
    return Layout.of(site.source).function(site.node)


def _class(layout: Layout, function: cst.CSTNode) -> cst.CSTNode:
    around = layout.ancestors(function)
    return next((a for a in around if isinstance(a, cst.ClassDef)), function)


def _place(trace: Trace, loaded: Loaded, state: StateDict) -> str:
    """How the state inside what was loaded is written below the load."""
    call = call_of(loaded.at)
    given = [a for a in call.args if a.keyword and a.keyword.value == "state_dict"] if call else []
    given = given or [a for a in (call.args[:1] if call else ()) if not a.keyword and not a.star]
    if not given:
        return ""
    value = given[0].value
    text = path_text(loaded.at, value)
    if loaded.into is state:
        return text
    if not isinstance(loaded.into, Container) or loaded.into.kind != "dict":
        return ""
    held = [key for key, one in trace.memory.entries(loaded.into, loaded.guards) if one is state]
    key = _KEY.match(str(held[0])) if len(held) == 1 else None
    if key is None:
        return ""
    if isinstance(value, cst.Dict):
        return _named_entry(loaded.at, value, key[1])
    return f'{text}["{key[1]}"]' if text else ""


def _named_entry(site: Site, display: cst.Dict, key: str) -> str:
    """The name that stands for a key of a dictionary display."""
    for element in display.elements:
        if not isinstance(element, cst.DictElement):
            return ""
        if isinstance(element.key, cst.SimpleString) and element.key.evaluated_value == key:
            return path_text(site, element.value)
    return ""
