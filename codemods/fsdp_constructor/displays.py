"""Where a dictionary of keywords is written, and whether what is written there is all of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import Layout, Names, Program, Source, Trace, Wrapping, dotted, scope_of, walk

from .._common.names import named_once
from .._common.origins import Origin, callee, origins, returned

Place = cst.Assign | cst.Expr | cst.StarredDictElement | cst.Arg
Entries = list[tuple[str, cst.CSTNode, cst.BaseExpression]]
Events = Sequence[tuple[Trace, Wrapping]]


@dataclass(frozen=True)
class HandedOn(Origin):
    """The keywords of a call that the called function takes as ``**kwargs``: all but ``named``."""

    named: frozenset[str] = frozenset()


def display_of(
    program: Program, source: Source, node: cst.BaseExpression, events: Events, out: int = 1
) -> Origin | None:
    """The one display that an expression has its value from; None when it is not known, or what else is in it.

    ``out`` says how many functions further out than the events its parameters are given.
    """
    one = _display_of(program, source, node, events, out)
    if one is None or isinstance(one, HandedOn) or one.node is None:
        return one
    beside = isinstance(node, cst.Name) and one.source is source and _same_scope(source, node, one)
    if beside or additions(one.source, one.node) is not None:
        return one
    return one if additions_along(program, source, node, one, events) is not None else None


def _display_of(
    program: Program, source: Source, node: cst.BaseExpression, events: Events, out: int
) -> Origin | None:
    found = origins(program, source, node)
    if len(found) == 1 and found[0].node is None and isinstance(node, cst.Name):
        displays: dict[cst.CSTNode | None, Origin | None] = {}
        for one, led in _given(node.value, source, events, out):
            shown: Origin | None = None
            if isinstance(one, HandedOn):
                shown = one if one.source in program.sources else None
            elif one.node is not None:
                shown = _display_of(program, one.source, one.node, led, out + 1)
            displays[shown.node if shown is not None else None] = shown
        handed = [one for one in displays.values() if isinstance(one, HandedOn)]
        empty = len(handed) == len(displays) and not any(map(keywords_of, handed))
        return next(iter(displays.values())) if len(displays) == 1 or (displays and empty) else None
    if len(found) != 1 or not isinstance(found[0].node, cst.Dict | cst.Call):
        return None
    one = found[0]
    made = found[0].node
    known = one.source in program.sources and own_entries(made) is not None
    return one if known and taken_over(program, one) is not None else None


def handed_on(source: Source, node: cst.BaseExpression, events: Events) -> list[HandedOn]:
    """The keywords that each call of a function gives for its ``**node``; nothing where one is not known."""
    given = [one for one, _ in _given(dotted(node), source, events, 1)]
    found = [one for one in given if isinstance(one, HandedOn)]
    return found if len(found) == len(given) else []


def _same_scope(source: Source, node: cst.BaseExpression, one: Origin) -> bool:
    layout = Layout.of(source)
    assert one.node is not None
    return scope_of(layout.ancestors(node)) is scope_of(layout.ancestors(one.node))


def _given(name: str, source: Source, events: Events, out: int) -> list[tuple[Origin, Events]]:
    """What the calls that led to the events give for a parameter of the function that they are in, and which led to what.

    Where some run calls the function, its lives without a resolved caller do not count.
    """
    found: dict[cst.CSTNode | None, tuple[Origin, list[tuple[Trace, Wrapping]]]] = {}
    for trace, event in events:
        if len(event.moment.inside) < out:
            return []
        if len(event.calls) < out:
            continue
        function, call = event.moment.inside[-out], event.calls[-out]
        params = [p.name.value for p in function.node.params.params]
        if function.scope.source is not source:
            return []
        given: list[Origin] = []
        if name == _star_kwarg(function.node):
            given += _handed_on(source, function.node, name, call.source, call.node)
        elif name not in params:
            return []
        else:
            at = params.index(name) - (params[0] in ("self", "cls"))
            value = _argument(call.node, name, at)
            if value is None:
                return []
            given.append(Origin(call.source, value))
        for one in given:
            found.setdefault(one.node, (one, []))[1].append((trace, event))
    return list(found.values())


def given_by_callers(program: Program, source: Source, node: cst.BaseExpression) -> list[Origin]:
    """All that a parameter of a function can be, where the project does nothing with that function but call it.

    Nothing where that is not known.
    """
    if not isinstance(node, cst.Name) or node not in Layout.of(source).parents:
        return []
    function = scope_of(Layout.of(source).ancestors(node))
    if not isinstance(function, cst.FunctionDef):
        return []
    params = (*function.params.params, *function.params.kwonly_params)
    names = [one.name.value for one in params]
    if node.value not in names or len(Names.of(source).bindings[function][node.value]) != 1:
        return []
    calls = _calls_of(program, function)
    if scope_of(Layout.of(source).ancestors(function)) is not source.tree or not calls:
        return []
    default = params[names.index(node.value)].default
    found: list[Origin] = []
    for other, call in calls:
        if any(arg.star for arg in call.args):
            return []
        value = _argument(call, node.value, names.index(node.value))
        home = other if value is not None else source
        value = value if value is not None else default
        found += origins(program, home, value) if value is not None else [Origin(source, None)]
    return found if all(one.node is not None for one in found) else []


def _calls_of(program: Program, function: cst.FunctionDef) -> list[tuple[Source, cst.Call]]:
    """The calls of a function; none where it is also handed on, or something else has its name."""
    name, found = function.name.value, list[tuple[Source, cst.Call]]()
    for other in program.sources:
        layout = Layout.of(other)
        for node in walk(other.tree) if name in other.text else ():
            if not isinstance(node, cst.Name) or node.value != name or node is function.name:
                continue
            inner: cst.CSTNode = node
            parent = layout.parents[node]
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                inner, parent = parent, layout.parents[parent]
            if isinstance(parent, cst.Call) and parent.func is inner:
                found.append((other, parent))
            elif not isinstance(parent, cst.ImportAlias | cst.FunctionDef):
                return []  # one of the same name in another file is called like it
    return found


def is_empty_handed_on(source: Source, node: cst.BaseExpression, events: Events) -> bool:
    """Whether ``*args`` of a function that hands them on is empty in every call of it."""
    calls = [(event.moment.inside[-1], event.calls[-1]) for _, event in events if event.calls]
    for function, call in calls:
        star = function.node.params.star_arg
        named = isinstance(star, cst.Param) and star.name.value == dotted(node)
        taken = len((*function.node.params.posonly_params, *function.node.params.params))
        plain = (
            [a for a in call.node.args if a.keyword is None]
            if isinstance(call.node, cst.Call)
            else []
        )
        params = function.node.params.params
        bound = bool(params) and params[0].name.value in ("self", "cls")
        if not named or function.scope.source is not source or any(a.star == "*" for a in plain):
            return False
        if len([a for a in plain if not a.star]) + bound > taken:
            return False
    return bool(calls)


def _star_kwarg(function: cst.FunctionDef | cst.Lambda) -> str:
    """The name of the parameter that takes all other keywords."""
    star = function.params.star_kwarg
    return star.name.value if star is not None else ""


def _handed_on(
    home: Source,
    function: cst.FunctionDef | cst.Lambda,
    name: str,
    source: Source,
    call: cst.CSTNode,
) -> Iterator[Origin]:
    """What a call gives for ``**name``, which the function only hands on; unknown where it does more."""
    read = [n for n in walk(function.body) if isinstance(n, cst.Name) and n.value == name]
    params = function.params
    named = frozenset(p.name.value for p in (*params.params, *params.kwonly_params))
    if len(read) != 1 or not isinstance(call, cst.Call) or not _calls(source, call, home, function):
        yield Origin(source, None)
        return
    spread = [arg.value for arg in call.args if arg.star == "**"]
    rest = [a for a in call.args if a.keyword is not None and a.keyword.value not in named]
    if not spread:
        yield HandedOn(source, call, named)
    elif len(spread) == 1 and not rest:
        yield Origin(source, spread[0])
    else:
        yield Origin(source, None)


def _calls(
    source: Source, call: cst.Call, home: Source, function: cst.FunctionDef | cst.Lambda
) -> bool:
    """Whether a call names the function, and not one that calls it with arguments of its own."""
    name = function.name.value if isinstance(function, cst.FunctionDef) else ""
    if name == "__call__" and not any(arg.star == "*" for arg in call.args):
        return _is_bound(source, call)
    if name == "__init__":
        around = Layout.of(home).ancestors(function)
        name = next((one.name.value for one in around if isinstance(one, cst.ClassDef)), name)
    named = dotted(call.func).rpartition(".")[2] == name
    return named and not any(arg.star == "*" for arg in call.args)


def _is_bound(source: Source, call: cst.Call) -> bool:
    """Whether the file itself gives a value to what is called: an object, where a builtin or an import may be a function."""
    names, root = Names.of(source), dotted(call.func).partition(".")[0]
    owner = names.owner(root, scope_of(Layout.of(source).ancestors(call)))
    bound = names.bindings[owner][root] if owner is not None else []
    return bool(bound) and not any(isinstance(one, cst.ImportAlias) for one in bound)


def _argument(call: cst.CSTNode, name: str, at: int) -> cst.BaseExpression | None:
    plain = []
    for arg in call.args if isinstance(call, cst.Call) else ():
        if arg.keyword is not None and arg.keyword.value == name:
            return arg.value
        if arg.star:
            return None
        if arg.keyword is None:
            plain.append(arg.value)
    return plain[at] if 0 <= at < len(plain) else None


def entries_of(node: cst.BaseExpression | None) -> Entries | None:
    """The entries of a display: key, the node that writes it, and value; None when it may have more."""
    return own_entries(node) if node is not None and not stars_of(node) else None


def own_entries(node: cst.BaseExpression | None) -> Entries | None:
    """The entries that a display writes itself, beside those of dictionaries that it takes over."""
    found: Entries = []
    taken = [one for one, _ in stars_of(node)]
    if isinstance(node, cst.Dict):
        for element in node.elements:
            if element in taken:
                continue
            key = getattr(element, "key", None)
            if not isinstance(key, cst.SimpleString):
                return None
            found.append((str(key.evaluated_value), element, element.value))
        return found
    if isinstance(node, cst.Call) and dotted(node.func) == "dict":
        given = [arg for arg in node.args if arg not in taken]
        return [(a.keyword.value, a, a.value) for a in given if a.keyword is not None]
    return None


Spread = cst.Arg | cst.StarredDictElement


def is_keywords(layout: Layout, node: cst.CSTNode) -> bool:
    """Whether a node is a ``**name`` of a call, perhaps inside a ``**{**name}``."""
    if isinstance(node, cst.StarredDictElement):
        node = layout.parents[layout.parents[node]]
    return isinstance(node, cst.Arg) and node.star == "**"


def stars_of(
    node: cst.BaseExpression | None,
) -> list[tuple[cst.StarredDictElement | cst.Arg, cst.BaseExpression]]:
    """The dictionaries that a display takes over: ``{**one, …}``, ``dict(one, …)``, ``dict(**one, …)``."""
    if isinstance(node, cst.Dict):
        return [(e, e.value) for e in node.elements if isinstance(e, cst.StarredDictElement)]
    if isinstance(node, cst.Call) and dotted(node.func) == "dict":
        return [(a, a.value) for a in node.args if a.keyword is None and a.star != "*"]
    return []


def taken_over(program: Program, display: Origin) -> list[Write] | None:
    """The entries of the dictionaries that a display takes over; None where they are not known."""
    found: list[Write] = []
    for star, value in stars_of(display.node):
        more = _merged(program, display.source, value, star, sometimes=False)
        if more is None:
            return None
        found += more
    return found


def keywords_of(display: Origin) -> Entries | None:
    """The entries that a display writes itself, or a call whose keywords are handed on."""
    if not isinstance(display, HandedOn) or not isinstance(display.node, cst.Call):
        return own_entries(display.node)
    given = [(a.keyword.value, a, a.value) for a in display.node.args if a.keyword is not None]
    return [one for one in given if one[0] not in display.named]


@dataclass(frozen=True)
class Write:
    """``name["key"] = value`` or an entry of ``name.update(…)`` after the display.

    ``sometimes`` it does not run before the call.
    """

    key: str
    node: cst.CSTNode
    statement: Place
    """The statement; or the part ``**name`` of the display, where that takes over another dictionary."""
    value: cst.BaseExpression
    sometimes: bool
    display: cst.BaseExpression | None = None
    """The other dictionary that holds the entry, where all of it is added: ``name.update(function())``."""


def additions(
    source: Source, display: cst.BaseExpression, call: cst.Call | None = None
) -> list[Write] | None:
    """What is added to a dictionary where it is built, each key once; None where more is done with it.

    Only ``call`` may take it as its keywords.
    """
    layout = Layout.of(source)
    statement = layout.parents.get(display)
    if not isinstance(statement, cst.Assign | cst.AnnAssign):
        return [] if isinstance(statement, cst.Return | cst.Arg) else None
    found = writes_of(source, display, display)
    if not found:
        return found
    keys = [one.key for one in found] + [key for key, _, _ in entries_of(display) or ()]
    alone = len(set(keys)) == len(keys) and _is_only_returned(source, statement, call)
    return found if alone else None


def _is_only_returned(
    source: Source, statement: cst.Assign | cst.AnnAssign, call: cst.Call | None
) -> bool:
    """Whether a function does nothing with a dictionary but add to it and return it, or give it to a call."""
    layout = Layout.of(source)
    target = statement.target if isinstance(statement, cst.AnnAssign) else _only_target(statement)
    name = dotted(target) if target is not None else ""
    function = scope_of(layout.ancestors(statement))
    if not isinstance(function, cst.FunctionDef):
        return False
    for node in walk(function):
        if isinstance(node, cst.Name) and node.value == name and node is not target:
            parent = layout.parents[node]
            if call is not None and parent in call.args:
                continue
            added = isinstance(parent, cst.Subscript | cst.Attribute) and parent.value is node
            if not added and not isinstance(parent, cst.Return | cst.Arg | cst.Param):
                return False
            if isinstance(parent, cst.Arg) and parent.keyword is not node:
                return False
    return True


def additions_along(
    program: Program,
    source: Source,
    node: cst.BaseExpression,
    display: Origin,
    events: Events,
    call: cst.CSTNode | None = None,
    out: int = 1,
) -> list[Write] | None:
    """What is added to a dictionary on its way from where it is made to an expression, in the order of the run.

    None where more is done with it, or in another file. Only ``call`` may take what the expression gives.
    """
    if node is display.node:
        return []
    if isinstance(node, cst.Call):
        ran = callee(program, source, node)
        given = returned(ran[1]) if ran is not None else []
        if ran is None or len(given) != 1 or given[0] is None:
            return None
        return additions_along(program, ran[0], given[0], display, events, None, out)
    if not isinstance(node, cst.Name):
        return None
    call = call or Layout.of(source).parents.get(Layout.of(source).parents[node])
    bound = named_once(source, node)
    if bound is None:
        return _added_by_callers(program, source, node, display, events, out)
    before = additions_along(program, source, bound, display, events, None, out)
    here = writes_of(source, bound, node, program)
    if before is None or here is None or (here and source is not display.source):
        return None
    statement = Layout.of(source).parents[bound]
    assert isinstance(statement, cst.Assign | cst.AnnAssign)
    taken = call if isinstance(call, cst.Call) else None
    if here and not _is_only_returned(source, statement, taken):
        return None
    return before + here


def _added_by_callers(
    program: Program,
    source: Source,
    node: cst.Name,
    display: Origin,
    events: Events,
    out: int,
) -> list[Write] | None:
    """What the callers of a function add to a dictionary that they give it."""
    found: dict[cst.CSTNode, Write] = {}
    for one, led in _given(node.value, source, events, out):
        if one.node is None:
            return None
        more = additions_along(program, one.source, one.node, display, led, None, out + 1)
        if more is None:
            return None
        found |= {each.node: each for each in more}
    return list(found.values())


def _merged(
    program: Program,
    source: Source,
    taken: cst.BaseExpression,
    statement: Place,
    sometimes: bool,
) -> list[Write] | None:
    """The entries of the dictionary that a statement adds; None where they are not known."""
    found = origins(program, source, taken)
    shown = found[0].node if len(found) == 1 and found[0].source is source else None
    entries = entries_of(shown)
    if shown is None or entries is None or additions(source, shown) != []:
        return None
    return [Write(key, one, statement, value, sometimes, shown) for key, one, value in entries]


def writes_of(
    source: Source,
    display: cst.BaseExpression,
    call: cst.CSTNode,
    program: Program | None = None,
) -> list[Write] | None:
    """What is written into a dictionary after it was made, by key; None when that is not known.

    With the program, dictionaries from elsewhere may be added to it.
    """
    layout, names = Layout.of(source), Names.of(source)
    statement = layout.parents.get(display)
    if not isinstance(statement, cst.Assign | cst.AnnAssign):
        return []
    target = statement.target if isinstance(statement, cst.AnnAssign) else _only_target(statement)
    if not isinstance(target, cst.Name):
        return None if isinstance(statement, cst.AnnAssign) or len(statement.targets) > 1 else []
    scope = scope_of(layout.ancestors(display))
    if len(names.bindings.get(scope, {}).get(target.value, [])) != 1:
        return None
    around = set(layout.ancestors(call))
    found: list[Write] = []
    for node in walk(scope):
        owner = getattr(node, "value", None)
        if not isinstance(owner, cst.Name) or owner.value != target.value:
            continue
        more: list[Write] | None = []
        if isinstance(node, cst.Attribute) and node.attr.value in _CHANGING:
            more = _updates(layout, node, around)
            if more is None and program is not None:
                more = _takes_over(program, source, node, around)
        elif isinstance(node, cst.Subscript):
            more = _write(layout, node, around)
        if more is None:
            return None
        found += more
    return found


def is_read_by_key(program: Program, display: Origin, keys: Collection[str]) -> bool:
    """Whether the project takes one of these entries out of what the function around a dictionary gives."""
    layout = Layout.of(display.source)
    function = None if display.node is None else layout.function(display.node)
    if function is None:
        return False
    for source in program.sources if function.name.value not in ("__init__", "__call__") else ():
        parents = Layout.of(source).parents
        for call in walk(source.tree) if function.name.value in source.text else ():
            named = isinstance(call, cst.Call) and dotted(call.func).rpartition(".")[2]
            if named != function.name.value or not isinstance(call, cst.Call):
                continue
            if _takes(parents, call, keys):
                return True
            assign = parents[call]
            target = _only_target(assign) if isinstance(assign, cst.Assign) else None
            scope = scope_of(Layout.of(source).ancestors(call))
            for node in walk(scope) if isinstance(target, cst.Name) and scope is not None else ():
                if isinstance(node, cst.Name) and isinstance(target, cst.Name):
                    if node.value == target.value and _takes(parents, node, keys):
                        return True
    return False


def _takes(
    parents: Mapping[cst.CSTNode, cst.CSTNode], node: cst.CSTNode, keys: Collection[str]
) -> bool:
    """Whether an entry with one of the keys is read out of a dictionary here: ``node["key"]``, ``node.get("key")``."""
    around = parents[node]
    key: cst.CSTNode | None = None
    if isinstance(around, cst.Subscript) and around.value is node:
        target = parents[around]
        index = around.slice[0].slice
        written = isinstance(target, cst.AssignTarget)
        key = index.value if isinstance(index, cst.Index) and not written else None
    elif isinstance(around, cst.Attribute) and around.value is node:
        call = parents[around]
        asks = around.attr.value in ("get", "pop") and isinstance(call, cst.Call) and call.args
        key = call.args[0].value if asks and isinstance(call, cst.Call) else None
    return isinstance(key, cst.SimpleString) and key.evaluated_value in keys


def in_other_branches(source: Source, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Whether two statements are in branches of one ``if`` of which a run takes only one."""
    layout = Layout.of(source)
    above = [*layout.ancestors(one)]
    for choice in above:
        if isinstance(choice, cst.If) and choice.orelse is not None:
            first = choice.body in above
            there = [*layout.ancestors(other)]
            if (first and choice.orelse in there) or (
                choice.orelse in above and choice.body in there
            ):
                return True
    return False


def _only_target(statement: cst.Assign) -> cst.BaseExpression | None:
    return statement.targets[0].target if len(statement.targets) == 1 else None


_CHANGING = frozenset({"update", "pop", "setdefault", "clear", "popitem"})


def _write(layout: Layout, node: cst.Subscript, around: set[cst.CSTNode]) -> list[Write] | None:
    target = layout.parents[node]
    assign = layout.parents[target]
    index = node.slice[0].slice
    key = index.value if isinstance(index, cst.Index) else None
    if not isinstance(assign, cst.Assign) or not isinstance(key, cst.SimpleString):
        return None
    sometimes = layout.block(assign) not in around
    return [Write(str(key.evaluated_value), assign, assign, assign.value, sometimes)]


def _takes_over(
    program: Program, source: Source, node: cst.Attribute, around: set[cst.CSTNode]
) -> list[Write] | None:
    """What a statement ``name.update(other)`` writes."""
    layout = Layout.of(source)
    call = layout.parents[node]
    statement = layout.parents[call]
    if node.attr.value != "update" or not isinstance(statement, cst.Expr):
        return None
    if not isinstance(call, cst.Call) or len(call.args) != 1 or call.args[0].keyword is not None:
        return None
    sometimes = layout.block(statement) not in around
    return _merged(program, source, call.args[0].value, statement, sometimes)


def _updates(layout: Layout, node: cst.Attribute, around: set[cst.CSTNode]) -> list[Write] | None:
    """What a statement ``name.update(key=value, …)`` or ``name.update({"key": value})`` writes."""
    call = layout.parents[node]
    statement = layout.parents[call]
    if node.attr.value != "update" or not isinstance(statement, cst.Expr):
        return None
    if not isinstance(call, cst.Call) or any(arg.star for arg in call.args):
        return None
    sometimes = layout.block(statement) not in around
    found: list[Write] = []
    for arg in call.args:
        entries = entries_of(arg.value) if arg.keyword is None else None
        if arg.keyword is not None:
            entries = [(arg.keyword.value, arg, arg.value)]
        if entries is None:
            return None
        found += (Write(key, one, statement, value, sometimes) for key, one, value in entries)
    return found
