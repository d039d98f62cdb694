"""``with FSDP.state_dict_type(…):`` from around its statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    NOT_RUN,
    Account,
    Called,
    Edit,
    Escaped,
    Event,
    Layout,
    Left,
    Names,
    Program,
    Remove,
    Restored,
    Source,
    StateDictTaken,
    Step,
    Trace,
    Unimport,
    Unwrap,
    Value,
    argument,
    dotted,
    is_no_instance,
    options,
    scope_of,
    unwrapped,
    walk,
)

from .._common.origins import meaning, only_asks
from .._common.states_asked import (
    CONTEXT,
    FSDP1,
    LOCAL_CHANGED,
    LOCAL_TODO,
    LOCAL_WHY,
    contexts_of,
    is_local,
    no_module,
)
from .._common.states_text import asks_already, function_of, unimports
from .._common.states_uses import is_bare

_WHY = "the state-dict type is now passed to each call"
_IDLE = "no state dict of the model is taken or loaded in it: it had no effect"
_TODO = "say the kind at each call (StateDictOptions), then take the `with` away"

_SHARDED_TODO = (
    "take the state with get_model_state_dict and write it with dcp.save on every rank; "
    "read it with dcp.load, then set_model_state_dict"
)
_FULL_TODO = (
    "take the state with get_model_state_dict and load it with set_model_state_dict, "
    "both with StateDictOptions(full_state_dict=True)"
)

_HARMLESS = tuple(
    ".parameters .named_parameters .buffers .named_buffers .modules .named_modules .children .train"
    " .eval .save_pretrained .state_dict_type".split()
)
"""Methods in which unresolved code takes no state dict."""

Entered = Sequence[tuple[Trace, Called]]


def contexts(program: Program) -> Iterator[Step | Left]:
    """Each context in which nothing asks FSDP1 for a state any more."""
    yield from _unreached(program)
    entered: dict[cst.CSTNode, Entered] = {}
    for events in program.sites(Called):
        mine = [(trace, called) for trace, called in events if called.name == CONTEXT]
        if mine:
            entered[mine[0][1].at.node] = mine
    made_by = {call: _maker(program, mine[0][1].at.source, call) for call, mine in entered.items()}
    while entered:
        call = next(iter(entered))
        source, maker = entered[call][0][1].at.source, made_by[call]
        same = [one for one in entered if maker is not None and _is_made_by(made_by[one], maker)]
        calls = same or [call]
        mine = [one for each in calls for one in entered.pop(each)]
        local = any(is_local(called) for _, called in mine)
        still = next((why for t, c in mine for why in _still_needed(t, c)), "")
        still = still or next((why for one in calls if (why := _unseen(program, source, one))), "")
        if local and still:
            yield from (Left(source, one, LOCAL_WHY, LOCAL_TODO) for one in calls)
            continue
        edits = tuple(_away(source, call))
        if maker is not None:
            edits = tuple(_without_maker(program, *maker))
        if still or not edits:
            why = still or "what it is part of is put together at run time"
            yield from (Left(source, one, why, _TODO) for one in calls)
        else:
            around = maker[1] if maker is not None else call
            why = LOCAL_CHANGED if local else _WHY
            if local and all(_is_idle(trace, called) for trace, called in mine):
                why = _IDLE
            account = Account(source, around, "changed", why)
            touched = dict.fromkeys(edit.source for edit in edits)
            gone = (one for source in touched for one in unimports(program, source))
            yield Step((*edits, *gone), (account,))


def _is_idle(trace: Trace, entered: Called) -> bool:
    """Whether no state of a model is taken or loaded in a context, and FSDP1 is asked for none."""
    for event in _inside(trace, entered):
        if isinstance(event, StateDictTaken) and (
            event.state.kind == "model"
            or (_of_fsdp1(event.state.via) and event.state.via[0] != ".")
        ):
            return False
        if isinstance(event, Restored) and event.kind == "model":
            return False
        if isinstance(event, Called) and event is not entered and _asks(entered, event):
            return False
    return True


def _is_made_by(one: Maker | None, maker: Maker) -> bool:
    return one is not None and one[1] is maker[1]


def _unreached(program: Program) -> Iterator[Left]:
    """The contexts that no run enters."""
    entered = {at.node for events in program.sites(Called) for at in (events[0][1].at,)}
    for reference in program.references(CONTEXT):
        source, layout = reference.source, Layout.of(reference.source)
        call = layout.parents[reference.node]
        if isinstance(call, cst.Call) and call.func is reference.node and call not in entered:
            if isinstance(layout.parents[call], cst.WithItem):
                sharded = "SHARDED_STATE_DICT" in source.code(call)
                yield Left(source, call, NOT_RUN, _SHARDED_TODO if sharded else _FULL_TODO)


def _still_needed(trace: Trace, entered: Called) -> Iterator[str]:
    """Why a context has to stay, if it has."""
    for event in _inside(trace, entered):
        if _is_asked_about(event):
            continue
        if isinstance(event, StateDictTaken) and _of_fsdp1(event.state.via):
            plain = event.state.via == ".state_dict"
            if not plain or (
                event.state.kind == "model" and not _of_others(trace, event, event.state.of)
            ):
                yield f"`{event.at.code}` in it takes the state dict by FSDP1 still"
        elif isinstance(event, Restored) and event.via == ".load_state_dict":
            mine = not (is_no_instance(event, event.into) or is_bare(trace, event, event.into))
            if event.kind == "model" and mine:
                yield f"`{event.at.code}` in it loads a state dict by FSDP1 still"
        elif (
            isinstance(event, Called)
            and event.name.startswith(f"{FSDP1}.")
            and event is not entered
        ):
            if event.name.endswith("state_dict") or "optim_state_dict" in event.name:
                yield f"`{event.at.code}` in it is FSDP1's still"
        elif isinstance(event, Escaped) and _is_model(entered, event):
            yield f"{event.words()} in it, where it may be asked for its state dict"


def _is_asked_about(event: Event) -> bool:
    """Whether the program asks whether the model is sharded by ``fully_shard``, and comes here if not."""
    call = event.at.node
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return False
    source = event.at.source
    return asks_already(source, call, source.code(call.func.value))


def _of_others(trace: Trace, taken: StateDictTaken, model: Value) -> bool:
    """Whether a state is only that of what is no module, or none that FSDP2 shards."""
    return no_module(taken) or is_no_instance(taken, model) or is_bare(trace, taken, model)


def _unseen(program: Program, source: Source, call: cst.CSTNode) -> str:
    """The call in the body of the context that gets the model and that nobody has followed."""
    around = Layout.of(source).ancestors(call)
    block = next((a for a in around if isinstance(a, cst.With | cst.FunctionDef)), None)
    model = argument(call, 0, "module") if isinstance(call, cst.Call) else None
    if not isinstance(block, cst.With) or model is None:
        return ""
    said = source.code(model.value)
    inside = [n for n in walk(block.body) if isinstance(n, cst.Call) and _gets(source, n, said)]
    if not inside:
        return ""
    followed = {site.node for t in program.traces for e in t for site in e.calls}
    seen = {e.at.node for kind in (StateDictTaken, Restored) for _, e in program.of(kind)}
    followed |= seen
    followed |= {
        called.at.node
        for _, called in program.of(Called)
        if not called.name.startswith(".") or called.name in _HARMLESS
    }
    unseen = next((n for n in inside if n not in followed and not _asks_none(program, n)), None)
    return "" if unseen is None else f"`{source.code(unseen)}` in it may take a state dict"


def _asks_none(program: Program, call: cst.Call) -> bool:
    """Whether a call is of a method that only the project has, in which the model is asked for nothing."""
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    named = list(_methods(program, name)) if name else []
    return bool(named) and all(_leaves_alone(program, one, (name,)) for one in named)


def _methods(program: Program, name: str) -> Iterator[cst.FunctionDef]:
    for source in program.sources:
        if f"def {name}(" in source.text:
            for node in walk(source.tree):
                if isinstance(node, cst.FunctionDef) and node.name.value == name:
                    yield node


def _leaves_alone(program: Program, method: cst.FunctionDef, known: tuple[str, ...]) -> bool:
    """Whether a method neither asks for a state dict nor hands its object on, nor do those that it calls."""
    first = method.params.params[:1]
    own = first[0].name.value if first else ""
    for call in walk(method.body):
        if isinstance(call, cst.Call):
            func = call.func
            name = func.attr.value if isinstance(func, cst.Attribute) else dotted(func)
            if "state_dict" in name or name == "super":
                return False
            if any(isinstance(a.value, cst.Name) and a.value.value == own for a in call.args):
                return False
            if any(isinstance(n, cst.Name) and n.value == own for n in walk(func)):
                further = [] if name in known else list(_methods(program, name))
                if not further and name not in known and dotted(func) == f"{own}.{name}":
                    return False
                if not all(_leaves_alone(program, one, (*known, name)) for one in further):
                    return False
    return bool(own)


def _gets(source: Source, call: cst.Call, model: str) -> bool:
    """Whether a call is handed the model, or asks it for something."""
    if isinstance(call.func, cst.Attribute) and source.code(call.func.value) == model:
        return True
    return any(source.code(arg.value) == model for arg in call.args)


def _asks(entered: Called, called: Called) -> bool:
    """Whether a call in the context asks FSDP1, or the model or a part of it, for a state dict."""
    if called.name.startswith(f"{FSDP1}."):
        return "optim_state_dict" in called.name
    if called.name not in (".state_dict", ".load_state_dict") or called.receiver is None:
        return False
    model = entered.argument(0, "module")
    models = {unwrapped(one) for one in options(model)} if model is not None else set()
    for receiver in options(called.receiver):
        whole: Value | None = unwrapped(receiver)
        while whole is not None and whole not in models:
            whole = whole.owner
        if whole is not None:
            return True
    return False


def _inside(trace: Trace, entered: Called) -> Iterator[Event]:
    return (e for e in trace if e.within and entered in contexts_of(trace, e))


def _of_fsdp1(via: str) -> bool:
    return via == ".state_dict" or via.startswith(f"{FSDP1}.")


def _is_model(entered: Called, event: Escaped) -> bool:
    model = entered.argument(0, "module")
    return model is not None and unwrapped(event.value) is unwrapped(model)


def _away(source: Source, call: cst.CSTNode) -> Iterator[Edit]:
    """The edits by which the context goes; none when it is not known how it is entered."""
    layout = Layout.of(source)
    node = call
    parent = layout.parents[node]
    if isinstance(parent, cst.IfExp) and _does_nothing(parent, call):
        node, parent = parent, layout.parents[parent]
    if isinstance(parent, cst.WithItem):
        holder = layout.parents[parent]
        if isinstance(holder, cst.With) and holder.asynchronous is None and parent.asname is None:
            yield _without(source, holder, parent)
    elif isinstance(parent, cst.Arg):
        outer = layout.parents[parent]
        entering = isinstance(outer, cst.Call) and dotted(outer.func).endswith(".enter_context")
        if entering and isinstance(layout.parents[outer], cst.Expr):
            yield Remove(source, outer, comments="lone")
    elif isinstance(parent, cst.Assign) and len(parent.targets) == 1:
        yield from _kept_in_a_name(source, parent)


Items = tuple[tuple[Source, cst.With | cst.Expr, cst.WithItem | None], ...]
"""Where a context is entered: a ``with`` and its item, or the statement of ``stack.enter_context(…)``."""
Maker = tuple[Source, cst.FunctionDef, Items]


def _maker(program: Program, source: Source, call: cst.CSTNode) -> Maker | None:
    """The function that only makes the context and gives it, with each place that enters what it gives.

    It may choose between two contexts: ``if self.sharded: return …`` and ``return …`` below it.
    """
    layout = Layout.of(source)
    function = function_of(source, call)
    if not isinstance(function, cst.FunctionDef):
        return None
    said = [dotted(one.decorator).rpartition(".")[2] for one in function.decorators]
    said = [one for one in said if one not in ("staticmethod", "classmethod")]
    gives = _yields_inside(source, call) if said else layout.parents[call]
    if not isinstance(gives, cst.Return | cst.With):
        return None
    lines = [line for line in function.body.body if not _returns_one(program, source, line)]
    if not isinstance(gives, cst.Return) or len(lines) == len(function.body.body):
        lines = list(function.body.body[:-1])
    if not all(_only_prepares(line) for line in lines):
        return None
    choice = function.body.body[-1]
    if isinstance(choice, cst.If) and isinstance(gives, cst.With):
        if not _yields_either_way(program, source, choice, gives):
            return None
    elif (isinstance(gives, cst.With) and layout.block(gives) is not function.body) or (
        isinstance(gives, cst.Return) and not _returns_one(program, source, choice)
    ):
        return None
    if said != (["contextmanager"] if isinstance(gives, cst.With) else []):
        return None
    name, items = (
        function.name.value,
        list[tuple[Source, cst.With | cst.Expr, cst.WithItem | None]](),
    )
    around = scope_of(layout.ancestors(function))
    cls = around if isinstance(around, cst.ClassDef) else None
    for other in program.sources:
        parents = Layout.of(other).parents
        for node in walk(other.tree) if name in other.text else ():
            if not isinstance(node, cst.Name) or node.value != name or node is function.name:
                continue
            parent = parents[node]
            asked = isinstance(parent, cst.Attribute) and parent.attr is node
            if (
                cls is not None
                and not asked
                and scope_of(Layout.of(other).ancestors(node)) is not cls
            ):
                continue  # a variable of that name
            if isinstance(parent, cst.ImportAlias):
                if other.path.endswith("__init__.py"):
                    return None  # who imports it from there is not seen
                continue
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                parent = parents[parent]
            item = parents[parent] if isinstance(parent, cst.Call) else parent
            if (stacked := _stacked(other, item)) is not None:
                items.append((other, stacked, None))
                continue
            holder = parents[item] if isinstance(item, cst.WithItem) and not item.asname else None
            if not isinstance(holder, cst.With) or not isinstance(item, cst.WithItem):
                return None
            items.append((other, holder, item))
    return (source, function, tuple(items)) if items else None


def _returns_one(program: Program, source: Source, line: cst.CSTNode) -> bool:
    """Whether a statement returns a context, or a test of what the program knows chooses one to return."""
    if isinstance(line, cst.If):
        sides = [line.body, *([line.orelse.body] if isinstance(line.orelse, cst.Else) else [])]
        plain = not isinstance(line.orelse, cst.If) and only_asks(program, source, line.test)
        return plain and all(
            len(one.body) == 1 and _returns_one(program, source, one.body[0]) for one in sides
        )
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else line
    value = small.value if isinstance(small, cst.Return) else None
    return isinstance(value, cst.Call) and meaning(program, source, value.func) == CONTEXT


def _stacked(source: Source, given: cst.CSTNode) -> cst.Expr | None:
    """The statement ``stack.enter_context(given)``."""
    parents = Layout.of(source).parents
    call = parents[given] if isinstance(given, cst.Arg) else None
    if not isinstance(call, cst.Call) or not dotted(call.func).endswith(".enter_context"):
        return None
    statement = parents[call]
    return statement if isinstance(statement, cst.Expr) else None


def _yields_inside(source: Source, call: cst.CSTNode) -> cst.With | None:
    """The ``with`` that enters the context alone and does nothing in it but ``yield``."""
    parents = Layout.of(source).parents
    holder = parents.get(parents[call])
    if not isinstance(holder, cst.With) or len(holder.items) != 1 or holder.items[0].asname:
        return None
    return holder if _only_yields(holder.body) else None


def _only_yields(block: cst.BaseSuite) -> bool:
    lines = [
        *(
            one
            for line in block.body
            if isinstance(line, cst.SimpleStatementLine)
            for one in line.body
        ),
        *(line for line in block.body if isinstance(line, cst.BaseCompoundStatement)),
    ]
    bare = len(lines) == 1 and isinstance(lines[0], cst.Expr) and lines[0].value
    return isinstance(bare, cst.Yield) and bare.value is None


def _yields_either_way(program: Program, source: Source, choice: cst.If, entered: cst.With) -> bool:
    """Whether a choice only yields on one side, and in the context on the other."""
    sides = [choice.body, choice.orelse.body] if isinstance(choice.orelse, cst.Else) else []
    inside = [one for one in sides if list(one.body) == [entered]]
    plain = [one for one in sides if _only_yields(one)]
    return len(inside) == len(plain) == 1 and only_asks(program, source, choice.test)


def _only_prepares(line: cst.CSTNode) -> bool:
    """Whether a statement is a docstring or gives a name a value."""
    return isinstance(line, cst.SimpleStatementLine) and all(
        isinstance(one, cst.Assign | cst.AnnAssign)
        or (isinstance(one, cst.Expr) and isinstance(one.value, cst.BaseString))
        for one in line.body
    )


def _without_maker(
    program: Program, source: Source, function: cst.FunctionDef, items: Items
) -> Iterator[Edit]:
    """The function goes, and so do each ``with``, the imports of the function and that of its decorator."""
    yield Remove(source, function, comments="lone")
    for other, holder, item in items:
        if item is None or isinstance(holder, cst.Expr):
            yield Remove(other, holder, comments="lone")
        else:
            yield _without(other, holder, item)
    for other in program.sources:
        for one in Names.of(other).imports:
            taken = other is not source and program.comes_from(
                other, one, source, function.name.value
            )
            if taken or (other is source and one.loads == "contextlib.contextmanager"):
                yield Unimport(other, one.loads)


def _without(source: Source, holder: cst.With, item: cst.WithItem) -> Edit:
    """The ``with`` without an item; nothing at all where another rewriting has emptied it."""
    body = holder.body.body
    idle = len(body) == 1 and source.code(body[0]).strip() == "pass"
    if idle and len(holder.items) == 1:
        return Remove(source, holder, comments="lone")
    return Unwrap(source, holder, item=item)


def _does_nothing(choice: cst.IfExp, call: cst.CSTNode) -> bool:
    """Whether the other side of a choice is ``nullcontext()``."""
    other = choice.orelse if choice.body is call else choice.body
    return isinstance(other, cst.Call) and dotted(other.func).endswith("nullcontext")


def _kept_in_a_name(source: Source, assigned: cst.Assign) -> Iterator[Edit]:
    """``context = FSDP.state_dict_type(…)``, then ``with context:``, and the name nowhere else."""
    target = assigned.targets[0].target
    if not isinstance(target, cst.Name):
        return
    function = function_of(source, assigned)
    uses = [n for n in walk(function) if isinstance(n, cst.Name) and n.value == target.value]
    parents = Layout.of(source).parents
    items = [parents[n] for n in uses if isinstance(parents[n], cst.WithItem)]
    if len(items) != len(uses) - 1:
        return
    yield Remove(source, assigned, comments="lone")
    for item in items:
        holder = parents[item]
        if isinstance(holder, cst.With) and isinstance(item, cst.WithItem):
            yield _without(source, holder, item)
