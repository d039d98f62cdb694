"""``optimizer.load_state_dict`` of what FSDP1 has flattened, by ``set_optimizer_state_dict``.

Ranks that load one after the other: what talks to all of them has to be done by all at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Edit,
    Guard,
    InsertAfter,
    InsertBefore,
    Layout,
    Left,
    Literal,
    Part,
    Program,
    Remove,
    Replace,
    Restored,
    Site,
    Source,
    Step,
    Wrap,
    name_for,
    rank_dependent,
    walk,
)

from .._common.loop_text import text_of
from .._common.states_asked import context_of
from .._common.states_assumed import assumed
from .._common.states_flattening import (
    Flattening,
    all_flattenings,
    as_called,
    field_at,
    field_given,
    gets_others,
    loads_of,
    name_of,
    statement_of,
)
from .._common.states_guards import bound_between
from .._common.states_holders import TODO as HOLDER_TODO
from .._common.states_text import (
    HOME,
    fitted,
    free_name,
    function_of,
    is_path,
    names_in,
    options_for,
    unimports,
)

_WHY = "the optimizer takes the state as it is: FSDP2 has no flat parameters"
_AGAIN = "; `state_dict()` of the optimizer gives it by numbers, as what follows wants it"
_EITHER = "; whole tensors are spread over the ranks, shards are taken as they are"
_TURNS = "; all ranks load together, as that takes them all"
_CLONED = "; tensors that a file of FSDP1 shares are cloned"
_HOLDERS = "it goes to an object around an optimizer, and which attribute holds that is not clear"
_TODO = "give the state to set_optimizer_state_dict(model, optimizer, state, options=...)"
_ALONE = "ranks come here one by one, and to spread whole tensors takes them all"
_ALONE_TODO = "call set_optimizer_state_dict(model, optimizer, state, options=...) on all ranks"
_SOMETIMES = cst.If | cst.IfExp | cst.Try | cst.While | cst.BooleanOperation | cst.Lambda
_SPREAD = "# whole tensors are spread over the ranks; shards are taken as they are"
_COMMENT = "# files of FSDP1 may share one `step` among several parameters: give each its own"


def loads(program: Program) -> Iterator[Step | Left]:
    """The rewriting of each call that flattens, with the load that it is for."""
    by_load: dict[cst.CSTNode, tuple[Restored, list[Flattening]]] = {}
    for found in all_flattenings(program):
        if isinstance(found, tuple):
            source, node, why = found
            yield Left(source, node, why, _TODO)
            continue
        restored = [r for _, r in loads_of(found)]
        if found.loads:
            field = field_given(found)
            if field is None:
                yield Left(found.source, found.call, _HOLDERS, HOLDER_TODO)
            else:
                yield _step(program, [found], _in_place(found, None, field))
        elif len({r.at.node for r in restored}) != 1:
            why = "no optimizer is found that loads its result"
            if restored:
                why = "its result is loaded in several places"
            yield Left(found.source, found.call, why, _TODO)
        else:
            by_load.setdefault(restored[0].at.node, (restored[0], []))[1].append(found)
    for load, every in by_load.values():
        if any(alone(one) for one in every):
            for one in every:
                yield Left(one.source, one.call, _ALONE, _ALONE_TODO)
            continue
        field = field_at(program, load)
        if field is None:
            for one in every:
                yield Left(one.source, one.call, _HOLDERS, HOLDER_TODO)
            continue
        edits = _together(program, load, every, field)
        if edits is not None:
            yield _step(program, every, *edits)
            continue
        for one in every:
            why = "where its result is loaded, the model or another state comes in between"
            yield Left(one.source, one.call, why, _TODO)


def _step(
    program: Program, every: Sequence[Flattening], edits: Sequence[Edit], more: str = ""
) -> Step:
    turns = tuple(all_at_once(every))
    why = _WHY + more
    why += _EITHER if any(one.either for one in every) else ""
    why += _CLONED if any(one.from_file for one in every) else ""
    why += _TURNS if turns else ""
    whole = [one for one in every if one.from_file and not one.either]
    why += assumed(program, [pair for one in whole for pair in one.events])
    accounts = (Account(one.source, one.call, "changed", why) for one in every)
    return Step((*edits, *turns), tuple(accounts))


def _together(
    program: Program, load: Restored, every: Sequence[Flattening], field: str
) -> tuple[list[Edit], str] | None:
    """The edits of a load and of what flattens for it, with a remark; None when none are surely right.

    ``field`` is the attribute that holds the optimizer, where the script has an object around it.
    """
    others, more = gets_others(program, load, every), ""
    if any(_read_on_the_way(load, one) for one in every):
        edits, more = _by_numbers(load, every, field), _AGAIN
    elif len(every) == 1 and not others:
        edits = _at_load(load, every[0], field)
    else:
        edits = _where_flattened(load, every, others, field)
    if edits is None:
        return None
    for source in {one.source for one in every}:
        edits += unimports(program, source)
    return edits, more


# -- where the state is loaded ----------------------------------------------------------------------------


def _at_load(load: Restored, found: Flattening, field: str) -> list[Edit] | None:
    source, call = load.at.source, load.at.node
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    optimizer = text_of(source, call.func.value) + field
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
        return cls(found.state, free_name(found.source, "optimizer_state", "loaded_state"))


def _loaded(
    source: Source,
    call: cst.Call,
    found: Flattening,
    model: str,
    optimizer: str,
    value: _Value,
    then: str = "",
) -> Iterator[Edit]:
    """``set_optimizer_state_dict`` in place of ``call``, below what the state needs first.

    Or, if there is a text for that place, as a statement above it.
    """
    text = text_of(source if not value.name else found.source, value.node)
    state = value.name or text
    setter = name_for(source, call, f"{HOME}.set_optimizer_state_dict")
    switches, more = options_for(source, call, found.switches)
    parts = [model, optimizer, state, *([switches] if switches else [])]
    said = fitted(source, call, setter.text, parts, inserted=bool(then))
    yield Replace(source, call, then or said)
    yield from (*setter.edits, *more, *found.imports)
    lines = [f"{value.name} = {text}"] if value.name else []
    path = bool(value.name) or is_path(source, value.node)
    if found.none and path and not _is_read_above(source, call, value.node):
        lines.append(f"if {state} is None:")
        lines.append(f"{Layout.of(source).unit}{state} = {{}}  # only rank 0 has read it")
    if found.from_file and path:
        torch = name_for(source, call, "torch", module=True)
        yield from torch.edits
        held = f'{state}.get("state", {{}})' if found.broadcast else f'{state}["state"]'
        one = free_name(source, "values", "entry", "parameter_state")
        cloned = f"{{k: v.clone() for k, v in {one}.items() if {torch.text}.is_tensor(v)}}"
        lines += [_COMMENT, f"for {one} in {held}.values():", f"    {one}.update({cloned})"]
    lines += [_SPREAD] if found.either else []
    lines += [said] if then else []
    if lines:
        yield InsertBefore(source, call, "\n".join(lines))


def _is_read_above(source: Source, call: cst.CSTNode, state: cst.CSTNode) -> bool:
    """Whether every run has taken an entry of the state before ``call``: then none has got None there."""
    function, layout = function_of(source, call), Layout.of(source)
    before = layout.span(call)[0]
    for node in walk(function):
        if isinstance(node, cst.Subscript) and node.value.deep_equals(state):
            around = list(layout.ancestors(node))
            above = around[: around.index(function)]
            at = layout.span(node)[1]
            if at < before and not any(isinstance(one, _SOMETIMES) for one in above):
                return not bound_between(source, layout.line(node), call) & names_in(state)
    return False


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
    around = (load.at.source, function_of(load.at.source, load.at.node))
    said = (as_called(found, found.model, called, around) for _, called in found.events)
    return next((text for text in said if text), "")


# -- where the state is flattened ---------------------------------------------------------------------------


def _where_flattened(
    load: Restored, every: Sequence[Flattening], others: bool, field: str
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
        edits += _in_place(found, call, field)
    if not others:
        return [*edits, Remove(source, call)]
    kept = _otherwise(source, statement, every) if len(every) == 1 else None
    return None if kept is None else [*edits, *kept]


def _in_place(found: Flattening, load: cst.Call | None, field: str) -> list[Edit]:
    """The load in place of the statement that flattens."""
    source = found.source
    statement = statement_of(source, found.call)
    optimizer = found.optimizer
    if optimizer is None and load is not None and isinstance(load.func, cst.Attribute):
        optimizer = load.func.value
    if optimizer is None or statement is None:
        return []
    text, model = text_of(source, optimizer) + field, text_of(source, found.model)
    edits = list(_loaded(source, found.call, found, model, text, _Value.of(found, found.call)))
    if isinstance(statement, cst.Assign):
        first = edits[0]
        assert isinstance(first, Replace)
        edits[0] = Replace(source, statement, first.text)
    return edits


def _read_on_the_way(load: Restored, found: Flattening) -> bool:
    """Whether the function that flattens and loads does more with the state in between."""
    source, call = found.source, load.at.node
    name = name_of(statement_of(source, found.call))
    function = function_of(source, found.call)
    if not name or source is not load.at.source or function is not function_of(source, call):
        return False
    given = call.args[0].value if isinstance(call, cst.Call) and call.args else None
    layout = Layout.of(source)
    first, last = layout.span(found.call)[1], layout.span(call)[1]
    uses = (n for n in walk(function) if isinstance(n, cst.Name) and n.value == name)
    uses = (n for n in uses if first < layout.span(n)[0] < last and n is not given)
    return any(not isinstance(layout.parents[n], cst.AssignTarget | cst.Del) for n in uses)


def _by_numbers(load: Restored, every: Sequence[Flattening], field: str) -> list[Edit] | None:
    """Each state is loaded where it was flattened, and what the optimizer then has goes the old way."""
    call = load.at.node
    edits: list[Edit] = []
    for found in every:
        optimizer = found.optimizer
        if optimizer is None and isinstance(call, cst.Call):
            optimizer = call.func.value if isinstance(call.func, cst.Attribute) else None
        same = function_of(found.source, found.call) is function_of(load.at.source, call)
        if optimizer is None or not same or not is_path(found.source, optimizer):
            return None
        said, model = text_of(found.source, optimizer), text_of(found.source, found.model)
        value = _Value.of(found, found.call)
        then = f"{said}.state_dict()"
        edits += _loaded(found.source, found.call, found, model, said + field, value, then)
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
    if _comes_next(layout, test, load) or _comes_next(layout, _context_ended_by(test, every), load):
        unit = layout.unit
        return [
            Remove(source, load),
            InsertAfter(source, test, f"else:\n{unit}{text_of(source, load)}"),
        ]
    asked = text_of(source, test.test)
    simple = isinstance(test.test, cst.Name | cst.Attribute | cst.Call | cst.Subscript)
    return [Wrap(source, load, f"if not {asked}:" if simple else f"if not ({asked}):")]


def _comes_next(layout: Layout, statement: cst.CSTNode | None, load: cst.Expr) -> bool:
    """Whether a load is the line below a statement."""
    block = list(getattr(layout.parents.get(statement), "body", ())) if statement else []
    line = layout.line(load)
    return line in block[1:] and block[block.index(line) - 1] is statement


def _context_ended_by(test: cst.If, every: Sequence[Flattening]) -> cst.With | None:
    """The ``with`` of FSDP1's ``state_dict_type``, which goes, where a choice is the last statement in it."""
    layout = Layout.of(every[0].source)
    around = layout.parents.get(layout.parents[test])
    if not isinstance(around, cst.With) or len(around.items) != 1:
        return None
    inside = any(context_of(trace, called) is not None for trace, called in every[0].events)
    return around if inside and around.body.body[-1] is test else None


def alone(found: Flattening) -> bool:
    """Whether ranks come to a load of whole tensors one by one, in a way that cannot be rewritten."""
    return any(not list(_first_turn(site)) for site in _turns([found]))


def all_at_once(every: Sequence[Flattening]) -> Iterator[Edit]:
    """``if turn == rank:`` in ``for turn in range(...)`` lets every rank in at the first turn."""
    for site in _turns(every):
        yield from _first_turn(site)


def _turns(every: Sequence[Flattening]) -> list[Site]:
    """The tests by which each rank waits for its turn to load whole tensors."""
    whole = [one for one in every if "full_state_dict=True" in one.switches]
    called = (called for one in whole for _, called in one.events)
    sites = (guard.site for one in called for guard in _by_turns(one))
    return list({site.statement: site for site in sites if site is not None}.values())


def _by_turns(called: Called) -> Iterator[Guard]:
    """The guards that compare something that all ranks go through with the rank."""
    for guard in called.guards:
        test = guard.test
        if not guard.taken or not isinstance(test, Part) or test.operation != "==":
            continue
        sides = test.made_of
        ranked = [rank_dependent(one) for one in sides]
        plain = not any(isinstance(one, Literal) for one in sides)
        if len(sides) == 2 and plain and sum(ranked) == 1:
            yield guard


def _first_turn(site: Site) -> Iterator[Edit]:
    """The rank in the test becomes the first turn, which comes for each rank."""
    source, asked = site.source, site.statement
    test = asked.test if isinstance(asked, cst.If) and asked.orelse is None else None
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return
    sides = (test.left, test.comparisons[0].comparator)
    for turn, rank in (sides, reversed(sides)):
        if isinstance(turn, cst.Name) and turn.value in _counted(source, asked):
            yield Replace(source, rank, "0")
            return


def _counted(source: Source, node: cst.CSTNode) -> Iterator[str]:
    """The names that loops around a node count from 0."""
    for around in Layout.of(source).ancestors(node):
        if isinstance(around, cst.For) and isinstance(around.iter, cst.Call):
            if source.code(around.iter.func) == "range" and len(around.iter.args) == 1:
                yield source.code(around.target)
        elif isinstance(around, cst.FunctionDef | cst.Lambda):
            return
