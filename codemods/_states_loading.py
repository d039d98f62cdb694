"""``optimizer.load_state_dict`` of what FSDP1 has flattened, by ``set_optimizer_state_dict``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Edit,
    InsertAfter,
    InsertBefore,
    Layout,
    Left,
    Names,
    Program,
    Remove,
    Replace,
    Restored,
    Source,
    Step,
    Wrap,
    name_for,
    walk,
)

from ._states_flattening import (
    Flattening,
    all_flattenings,
    gets_others,
    loads_of,
    name_of,
    statement_of,
)
from ._states_text import (
    HOME,
    fitted,
    function_of,
    is_path,
    names_in,
    options_for,
    text_of,
    unimports,
)

_WHY = "the optimizer gets the state as it is: FSDP2 has no flat parameters to prepare it for"
_CLONED = "; tensors that a file of FSDP1 shares are cloned"
_TODO = "give the state to set_optimizer_state_dict(model, optimizer, state, options=...)"
_COMMENT = "# files of FSDP1 may share one `step` among several parameters: give each its own"


def loads(program: Program) -> Iterator[Step | Left]:
    """The rewriting of each call that flattens, with the load that it is for."""
    by_load: dict[cst.CSTNode, tuple[Restored, list[Flattening]]] = {}
    for found in all_flattenings(program):
        if isinstance(found, tuple):
            source, node, why = found
            yield Left(source, node, why, _TODO)
            continue
        restored = [r for _, r in loads_of(program, found)]
        if found.loads:
            yield _step([found], _in_place(found, None))
        elif len({r.at.node for r in restored}) != 1:
            why = "its result is loaded into no optimizer in sight"
            if restored:
                why = "its result is loaded in several places"
            yield Left(found.source, found.call, why, _TODO)
        else:
            by_load.setdefault(restored[0].at.node, (restored[0], []))[1].append(found)
    for load, every in by_load.values():
        edits = _together(program, load, every)
        if edits is not None:
            yield _step(every, edits)
            continue
        for one in every:
            why = "where its result is loaded, the model or another state comes in between"
            yield Left(one.source, one.call, why, _TODO)


def _step(every: Sequence[Flattening], edits: Sequence[Edit]) -> Step:
    why = _WHY + (_CLONED if any(one.from_file for one in every) else "")
    return Step(tuple(edits), tuple(Account(o.source, o.call, "changed", why) for o in every))


def _together(program: Program, load: Restored, every: Sequence[Flattening]) -> list[Edit] | None:
    """The edits of a load and of what flattens for it; None when there are none that are surely right."""
    others = gets_others(program, load, every)
    if len(every) == 1 and not others:
        edits = _at_load(program, load, every[0])
    else:
        edits = _where_flattened(load, every, others)
    if edits is None:
        return None
    for source in {one.source for one in every}:
        edits += unimports(program, source)
    return edits


# -- where the state is loaded ----------------------------------------------------------------------------


def _at_load(program: Program, load: Restored, found: Flattening) -> list[Edit] | None:
    source, call = load.at.source, load.at.node
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    optimizer = text_of(source, call.func.value)
    inside = found.call in set(walk(call))
    model = _model_at(load, found)
    if not model:
        return None
    if inside:
        return [*_loaded(source, call, found, model, optimizer, _Value.of(found, call))]
    statement = statement_of(found.source, found.call)
    same = found.source is source and function_of(source, call) is function_of(source, found.call)
    name = name_of(statement)
    if same and name and _can_say_again(found, call, name):
        edits = [*_loaded(source, call, found, model, optimizer, _Value(found.state, ""))]
        return [Remove(source, found.call), *edits]
    state = call.args[0].value if call.args else None
    if state is None:
        return None
    passed = Replace(found.source, found.call, text_of(found.source, found.state))
    return [passed, *_loaded(source, call, found, model, optimizer, _Value(state, ""))]


class _Value:
    """The state as the load says it: a node that can be said again, or a new ``name`` for it."""

    def __init__(self, node: cst.BaseExpression, name: str) -> None:
        self.node = node
        self.name = name

    @classmethod
    def of(cls, found: Flattening, at: cst.CSTNode) -> _Value:
        """The state that is flattened, under a new name if its text cannot be said again."""
        if is_path(found.source, found.state) or not (found.from_file or found.none):
            return cls(found.state, "")
        return cls(found.state, _free(found.source, "optimizer_state", "loaded_state"))


def _loaded(
    source: Source, call: cst.Call, found: Flattening, model: str, optimizer: str, value: _Value
) -> Iterator[Edit]:
    """``set_optimizer_state_dict`` in place of ``call``, below what the state needs first."""
    text = text_of(source if not value.name else found.source, value.node)
    state = value.name or text
    setter = name_for(source, call, f"{HOME}.set_optimizer_state_dict")
    switches, more = options_for(source, call, found.switches)
    parts = [model, optimizer, state, *([switches] if switches else [])]
    yield Replace(source, call, fitted(source, call, setter.text, parts))
    yield from (*setter.edits, *more, *found.imports)
    lines = [f"{value.name} = {text}"] if value.name else []
    path = bool(value.name) or is_path(source, value.node)
    if found.none and path:
        lines.append(f"if {state} is None:")
        lines.append(f"{Layout.of(source).unit}{state} = {{}}  # only rank 0 has read it")
    if found.from_file and path:
        torch = name_for(source, call, "torch", module=True)
        yield from torch.edits
        held = f'{state}.get("state", {{}})' if found.broadcast else f'{state}["state"]'
        one = _free(source, "values", "entry", "parameter_state")
        cloned = f"{{k: v.clone() for k, v in {one}.items() if {torch.text}.is_tensor(v)}}"
        lines += [_COMMENT, f"for {one} in {held}.values():", f"    {one}.update({cloned})"]
    if lines:
        yield InsertBefore(source, call, "\n".join(lines))


def _can_say_again(found: Flattening, load: cst.CSTNode, name: str) -> bool:
    """Whether the state can be named at the load, so that the name of the flat one goes."""
    source = found.source
    if not is_path(source, found.state):
        return False
    function = function_of(source, load)
    named = [n for n in walk(function) if isinstance(n, cst.Name) and n.value == name]
    if source.code(found.state) == name:
        return True
    layout = Layout.of(source)
    first, last = layout.span(found.call)[1], layout.span(load)[0]
    read = names_in(found.state)
    between = (n for n in walk(function) if isinstance(n, cst.Name) and n.value in read)
    bound = (n for n in between if first < layout.span(n)[0] < last and _is_target(layout, n))
    return len(named) == 2 and not any(True for _ in bound)


def _is_target(layout: Layout, node: cst.CSTNode) -> bool:
    parent = layout.parents[node]
    return isinstance(parent, cst.AssignTarget | cst.AnnAssign | cst.AugAssign | cst.For)


def _model_at(load: Restored, found: Flattening) -> str:
    """How the model is called where the state is loaded."""
    text = text_of(found.source, found.model)
    if found.source is load.at.source and function_of(found.source, found.call) is function_of(
        load.at.source, load.at.node
    ):
        return text
    return next((_as_passed(load, found, called) for _, called in found.events), "")


def _as_passed(load: Restored, found: Flattening, called: Called) -> str:
    """The argument of the call in the loading function that becomes the model of the flattening one."""
    calls, inside = called.calls, called.moment.inside
    if not calls or not inside or not isinstance(found.model, cst.Name):
        return ""
    site, function = calls[-1], inside[-1].node
    if not isinstance(site.node, cst.Call) or not isinstance(function, cst.FunctionDef):
        return ""
    if function_of(site.source, site.node) is not function_of(load.at.source, load.at.node):
        return ""
    names = [p.name.value for p in (*function.params.posonly_params, *function.params.params)]
    if names[:1] == ["self"]:
        names = names[1:]
    for index, arg in enumerate(site.node.args):
        given = arg.keyword.value if arg.keyword is not None else "".join(names[index : index + 1])
        if given == found.model.value and not arg.star and is_path(site.source, arg.value):
            return site.source.code(arg.value)
    return ""


# -- where the state is flattened ---------------------------------------------------------------------------


def _where_flattened(
    load: Restored, every: Sequence[Flattening], others: bool
) -> list[Edit] | None:
    """Each state is loaded where it was flattened; what else the load gets keeps the old load."""
    source, call = load.at.source, load.at.node
    statement = Layout.of(source).parents.get(call)
    if not isinstance(statement, cst.Expr) or not isinstance(call, cst.Call):
        return None
    edits: list[Edit] = []
    for found in every:
        if found.source is not source or statement_of(source, found.call) is None:
            return None
        if function_of(source, found.call) is not function_of(source, call):
            return None
        edits += _in_place(found, call)
    if not others:
        return [*edits, Remove(source, call)]
    kept = _otherwise(source, statement, every) if len(every) == 1 else None
    return None if kept is None else [*edits, *kept]


def _in_place(found: Flattening, load: cst.Call | None) -> list[Edit]:
    """The load in place of the statement that flattens."""
    source = found.source
    statement = statement_of(source, found.call)
    optimizer = found.optimizer
    if optimizer is None and load is not None and isinstance(load.func, cst.Attribute):
        optimizer = load.func.value
    if optimizer is None or statement is None:
        return []
    text, model = text_of(source, optimizer), text_of(source, found.model)
    edits = list(_loaded(source, found.call, found, model, text, _Value.of(found, found.call)))
    if isinstance(statement, cst.Assign):
        first = edits[0]
        assert isinstance(first, Replace)
        edits[0] = Replace(source, statement, first.text)
    return edits


def _otherwise(source: Source, load: cst.Expr, every: Sequence[Flattening]) -> list[Edit] | None:
    """The old load, for the runs that do not flatten."""
    layout = Layout.of(source)
    line = layout.line(layout.statement(every[0].call))
    test = layout.parents[layout.parents[line]]
    if (
        not isinstance(test, cst.If)
        or test.orelse is not None
        or test.body is not layout.parents[line]
    ):
        return None
    if isinstance(layout.parents[test], cst.If):
        return None
    block = list(getattr(layout.parents[test], "body", ()))
    if layout.line(load) in block[1:] and block[block.index(layout.line(load)) - 1] is test:
        unit = layout.unit
        return [
            Remove(source, load),
            InsertAfter(source, test, f"else:\n{unit}{text_of(source, load)}"),
        ]
    asked = text_of(source, test.test)
    simple = isinstance(test.test, cst.Name | cst.Attribute | cst.Call | cst.Subscript)
    return [Wrap(source, load, f"if not {asked}:" if simple else f"if not ({asked}):")]


def _free(source: Source, *wanted: str) -> str:
    """A name that nothing in the file binds, or that is bound by such a loop only."""
    used = {name for bound in Names.of(source).bindings.values() for name in bound}
    return next((name for name in wanted if name not in used), f"{wanted[-1]}_{len(used)}")
