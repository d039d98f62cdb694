"""Functions: how they are made, how arguments reach their parameters, how bodies run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from fsdp2lint.interpret.annotations import (
    annotated,
    believed,
    gives_its_own_kind,
    of_class,
    other_settings,
)
from fsdp2lint.interpret.classes import is_of_project
from fsdp2lint.interpret.displays import spread_into
from fsdp2lint.interpret.handlers import run_body
from fsdp2lint.interpret.scopes import Frame, Scope, name_value
from fsdp2lint.meanings.attributes import NAMED_RANKS, rank
from fsdp2lint.meanings.ranks import runs_on
from fsdp2lint.model.code import age
from fsdp2lint.model.events import OptimizerReceived, Placed
from fsdp2lint.model.guards import NEVER, Guard, Guards, negated, unit
from fsdp2lint.model.memory import NOT_YET, choose
from fsdp2lint.model.trace import options
from fsdp2lint.model.values import (
    Bound,
    Class,
    Container,
    Either,
    External,
    Function,
    Instance,
    Literal,
    Optimizer,
    Part,
    Unknown,
    Value,
    rank_dependent,
)
from fsdp2lint.source.deferred import says, unread
from fsdp2lint.source.source import Site
from fsdp2lint.source.walk import walk

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.source.source import Source

_KINDS = {
    "builtins.property": "property",
    "functools.cached_property": "property",
    "builtins.staticmethod": "staticmethod",
    "builtins.classmethod": "classmethod",
    "contextlib.contextmanager": "contextmanager",
    "contextlib.asynccontextmanager": "contextmanager",
}
_OF_THE_CLASS = frozenset({"__class_getitem__", "__init_subclass__"})
"""Methods that Python binds to the class by themselves."""
_ACCESSORS = ("getter", "setter", "deleter")
_STARTING = frozenset({"fastcore.script.call_parse", "fastcore.all.call_parse"})
"""Decorators that call their function in the program that runs (``fastcore/script.py``)."""
_KEEPING = frozenset({"functools.cache", "functools.cached_property", "functools.lru_cache"})


_BLANK = (Unknown, Part, Either)
"""What may be known by an annotation alone."""


class Generator(Value):
    """A generator of the project that has not run yet; ``given`` are the elements that `next` was given."""

    __slots__ = ("args", "function", "given", "keywords", "open")

    def __init__(
        self, function: Function, args: tuple[Value, ...], keywords: dict[str, Value], open_: bool
    ) -> None:
        super().__init__()
        self.function = function
        self.args = args
        self.keywords = keywords
        self.open = open_
        self.given: list[Value] | None = None

    def describe(self) -> str:
        return f"{self.function.name}(…)"


def define(machine: Machine, node: cst.FunctionDef) -> Value:
    """The value that a ``def`` binds: the function, or what its decorators of the project make of it."""
    defaults = defaults_of(machine, node.params)
    made = Function(node.name.value, node, machine.frame.scope, defaults, under=machine.here)
    machine.made.append(made)
    if made.name in _OF_THE_CLASS:
        made.kind = "classmethod"
    value: Value = made
    decorators = []
    for decorator in reversed(node.decorators):
        what = machine.eval(decorator.decorator)
        decorators.append(what)
        if isinstance(what, External) and what.name in _KEEPING and isinstance(value, Function):
            value.keeps = True
        if isinstance(what, Part) and isinstance(what.owner, Function) and what.name in _ACCESSORS:
            value = what.owner  # @name.setter: the name stays the property
            if what.name == "setter":
                what.owner.setter = made
        elif isinstance(what, External) and what.name in _KINDS:
            made.kind = _KINDS[what.name]
        elif (only := runs_on(machine, what)) is not None:
            made.only = only
        elif is_of_project(machine, what):
            result = machine.call(what, [value], {}, machine.site(decorator))
            if isinstance(result, Function | Bound):
                value = result
                if result is not made and isinstance(result, Function):
                    result.label = made.name
        else:
            _register(machine, decorator.decorator, made)
    made.decorators = tuple(reversed(decorators))
    if any(isinstance(d, External) and d.name in _STARTING for d in decorators):
        _start(machine, made, machine.site(node))
    return value


def _start(machine: Machine, function: Function, site: Site) -> None:
    """Call the function with arguments from the command line if its file is the program that runs."""
    name = function.scope.read("__name__", machine.here)
    if isinstance(name, Literal) and name.value == "__main__":
        machine.call(function, [], {}, site, True)


def _register(machine: Machine, decorator: cst.BaseExpression, function: Function) -> None:
    """``@app.command()``, ``@cli.command``: whoever calls the object has one of its functions called."""
    node = decorator.func if isinstance(decorator, cst.Call) else decorator
    if not isinstance(node, cst.Attribute):
        return
    owner = machine.eval(node.value)
    if isinstance(owner, Unknown | Function | Instance):
        machine.commands.setdefault(owner, []).append(function)


def defaults_of(machine: Machine, params: cst.Parameters) -> dict[str, Value]:
    """The defaults of parameters, evaluated now as Python does."""
    found: dict[str, Value] = {}
    for param in (*params.posonly_params, *params.params, *params.kwonly_params):
        if param.default is not None:
            found[param.name.value] = machine.eval(param.default)
    return found


@lru_cache(maxsize=20_000)
def is_generator(node: cst.FunctionDef, source: Source) -> bool:
    """Whether the own body of a function in a file yields."""
    if "yield" not in source.text or not says(node.body, "yield"):
        return False
    return any(isinstance(n, cst.Yield) for n in walk(node.body, into=False))


def invoke(
    machine: Machine,
    function: Function,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
    site: Site,
    open_: bool = False,
) -> Value:
    """Call a function of the project: run it, or make its generator."""
    machine.looked.add(function.node)
    if isinstance(function.node, cst.FunctionDef) and is_generator(
        function.node, function.scope.source
    ):
        return Generator(function, args, keywords, open_)
    if function.keeps and not open_:
        return _once(machine, function, args, keywords, site)
    return enter(machine, function, args, keywords, site, open_)


def _once(
    machine: Machine,
    function: Function,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
    site: Site,
) -> Value:
    """Call a function that keeps its results: with the same arguments it runs only the first time.

    Where it is not certain that the earlier call came before this one, it runs again.
    """
    key = (function, args, tuple(sorted(keywords.items())))
    known = machine.kept.get(key, ())
    here, stage, entered = machine.here, machine.stage, machine.entered
    for then, guards, value in known:
        if then in (0, stage) and not here.impossible and here.implies(guards):
            return value
    result = enter(machine, function, args, keywords, site)
    if machine.entered > entered:
        machine.kept[key] = (*known, (stage, here, result))
    return result


def enter(
    machine: Machine,
    function: Function,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
    site: Site,
    open_: bool = False,
    on_yield: Callable[[Value], None] | None = None,
) -> Value:
    """Run a function's body; what it returns."""
    machine.looked.add(function.node)
    if not machine.may_enter(function, (*args, *keywords.values())) or unread(function.node):
        if not (function in machine.running and _only_looks(function.node)):
            for value in (*args, *keywords.values()):
                machine.escape(value, site, function.name)
        return as_annotated(machine, function, args, machine.unknown(site))
    if not open_ and _lacks(function, len(args), keywords):
        for value in (*args, *keywords.values()):
            machine.escape(value, site, function.name)  # it raises, or a decorator adds the rest
    given = (*(("", value) for value in args), *keywords.items())
    idle = None if on_yield is not None else machine.idle_result(function, given)
    if idle is not None:
        return as_annotated(machine, function, args, idle)
    deeds, oldest, born = machine.deeds, machine.memory.oldest, age()
    steps = machine.steps
    machine.memory.oldest = NOT_YET
    machine.entered += 1
    machine.run_bodies.add(function.node)
    scope = Scope("function", function.scope.source, function.scope)
    _bind_parameters(machine, scope, function, args, keywords, open_)
    here, path, running = machine.here, machine.call_path, machine.running
    machine.call_path = (*path, site)
    machine.running = (*running, function)
    frame = machine.push(scope, function)
    frame.on_yield = on_yield
    frame.receiver = args[0] if args else None
    frame.given = (*args, *keywords.values())
    if function.only is not None:
        machine.here = here.also(unit(Guard(function.only, True, _head(function))))
    place = _place(machine, function, scope)
    makes = function.name == "__init__" and bool(args)
    if place is not None and (makes or on_yield is not None):
        _note_place(machine, function, place, args[0] if makes else None, site)
    try:
        result = _run_body(machine, function, frame, here)
    finally:
        machine.pop()
        machine.call_path, machine.running = path, running
        machine.here = _after(here, frame)
        machine.frame.exited += frame.exited
    if place is not None and not makes and on_yield is None:
        _note_place(machine, function, place, result, site)
    is_idle = machine.deeds == deeds and machine.memory.oldest > born
    machine.memory.oldest = min(oldest, machine.memory.oldest)
    if on_yield is None:
        machine.has_run(function, given, is_idle, result, machine.steps - steps)
        result = as_annotated(machine, function, args, result)
    return result


def _lacks(function: Function, given: int, keywords: dict[str, Value]) -> bool:
    """Whether a call leaves out an argument that the function cannot do without."""
    params = function.node.params
    taken = (*params.posonly_params, *params.params)[given:]
    return any(
        param.default is None and param.name.value not in keywords
        for param in (*taken, *params.kwonly_params)
    )


def _place(machine: Machine, function: Function, scope: Scope) -> tuple[Value, Value] | None:
    """The place among the ranks that a function is given, and their number, where the place is a constant."""
    names = _names_of_place(function.node)
    if names is None:
        return None
    number, size = (scope.read(name, machine.here) for name in names)
    told = isinstance(number, Literal) and type(number.value) is int
    return (number, size) if told and number is not None and size is not None else None


def _note_place(
    machine: Machine,
    function: Function,
    place: tuple[Value, Value],
    subject: Value | None,
    site: Site,
) -> None:
    """Write down that a function was given its place, for an object that it makes or gives."""
    machine.placed.update(() if subject is None else options(subject))
    machine.record(Placed(machine.moment(site), function, subject, *place))


@cache
def _names_of_place(node: cst.FunctionDef | cst.Lambda) -> tuple[str, str] | None:
    """The parameters that say which of how many processes a function is for."""
    params = node.params
    names = [p.name.value for p in (*params.posonly_params, *params.params, *params.kwonly_params)]
    number = next(filter(_PLACE.fullmatch, names), None)
    size = next(filter(_PLACES.fullmatch, names), None)
    return None if number is None or size is None else (number, size)


_PLACE = re.compile(
    r"((dp|ddp|data|data_?parallel|dist|global|proc|process|shard|worker)_)?rank|(process|shard)_(id|index)"
)
_PLACES = re.compile(
    r"((dp|ddp|data|data_?parallel|dist|global)_)?(world_size|num_(replicas|processes|proc|shards|ranks))"
    r"|(dp|ddp|data|data_?parallel)_(size|degree)|nranks"
)


@cache
def _only_looks(node: cst.FunctionDef | cst.Lambda) -> bool:
    """Whether a function that calls itself only looks at what it is given, counts, prints or collects it: it calls
    nothing that could change a model, and writes into none.
    """
    name = node.name.value if isinstance(node, cst.FunctionDef) else ""
    for one in walk(node.body):
        if isinstance(one, cst.Call):
            said = one.func.attr if isinstance(one.func, cst.Attribute) else one.func
            if not isinstance(said, cst.Name) or said.value not in (name, *_LOOKING):
                return False
        elif isinstance(one, cst.AssignTarget | cst.AugAssign | cst.AnnAssign | cst.NamedExpr):
            written = one.target
            if isinstance(written, cst.Subscript):
                written = written.value
            if isinstance(written, cst.Attribute):
                return False
    return True


_LOOKING = frozenset(
    "isinstance hasattr getattr len print sum str repr type id list set dict tuple sorted enumerate zip max min any all "
    "children named_children modules named_modules parameters named_parameters buffers numel nelement size element_size "
    "append extend add update items keys values get join format startswith endswith split info debug".split()
)
"""What walks over the parts of a model call to look at them: builtins, methods of modules, lists and texts."""


def as_annotated(
    machine: Machine, function: Function, args: tuple[Value, ...], result: Value
) -> Value:
    """What a call gives: an object of the class that the function says where its body does not show one."""
    node = function.node
    if not isinstance(node, cst.FunctionDef) or node.returns is None or machine.here.impossible:
        return result
    receiver = args[0] if args else None
    if gives_its_own_kind(node) and isinstance(receiver, Instance):
        other = other_settings(machine, receiver, result)
        if other is not None:
            return other
    if type(result) not in _BLANK:
        return result
    if gives_its_own_kind(node):
        cls = receiver.cls if isinstance(receiver, Instance) else receiver
        return of_class(machine, result, cls) if isinstance(cls, Class) else result
    load = _is_worth_reading(machine, machine.frame.function)
    return believed(machine, result, node.returns.annotation, function.scope, load=load)


def _head(function: Function) -> Site:
    node = function.node
    name = node.name if isinstance(node, cst.FunctionDef) else node
    return Site(function.scope.source, name, node)


def _run_body(machine: Machine, function: Function, frame: Frame, here: Guards) -> Value:
    if isinstance(function.node, cst.Lambda):
        frame.statement = function.node
        return machine.eval(function.node.body)
    run_body(machine, function.node.body)
    found = list(reversed(frame.returned))
    if not machine.here.impossible and not (found and here.implies(found[-1][0])):
        found.append((machine.here.lasting, machine.literal(None)))
    if not found and not here.impossible and frame.left and not _always_raises(function.node):
        machine.barred.add(function.node)
    return choose(found, here) or machine.unknown()


def _always_raises(node: cst.FunctionDef) -> bool:
    """Whether a body ends in a ``raise`` under no test, as that of an abstract method does."""
    last: cst.CSTNode = node.body.body[-1]  # of `def f(self): raise …` that is the `raise` itself
    last = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return isinstance(last, cst.Raise)


def _after(here: Guards, frame: Frame) -> Guards:
    """What holds behind a call: where it ended the program, or raised on some ranks, others go on."""
    result = here
    for exited in frame.exited:
        gone = exited.since(here)
        if not exited.impossible:
            result = result.also(negated(gone)) if gone else NEVER
    if result is NEVER:
        return NEVER
    for left in frame.left:
        gone = left.since(here)
        if left.impossible or not any(rank_dependent(g.test) for c in gone for g in c):
            continue
        result = result.also(negated(gone))
    return here if result is NEVER else result


def _bind_parameters(
    machine: Machine,
    scope: Scope,
    function: Function,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
    open_: bool,
) -> None:
    params = function.node.params
    positional = [p.name.value for p in (*params.posonly_params, *params.params)]
    rest = dict(keywords)
    here = machine.here
    taken = (*params.posonly_params, *params.params)
    for index, (param, value) in enumerate(zip(taken, args, strict=False)):
        name = param.name.value
        if index or function.home is None:  # an object is not called what its methods call it
            name_value(value, name)
        scope.write(name, here, _believed(machine, function, param, value))
    for param in (*taken[len(args) :], *params.kwonly_params):
        value = _argument(machine, function, param, rest, open_)
        scope.write(param.name.value, here, _believed(machine, function, param, value))
    for name in positional[: len(args)]:
        rest.pop(name, None)
    if isinstance(params.star_arg, cst.Param):
        extra = machine.container("tuple", args[len(positional) :], open_)
        scope.write(params.star_arg.name.value, here, extra)
    if params.star_kwarg is not None:
        scope.write(params.star_kwarg.name.value, here, machine.container("dict", rest, open_))


def _believed(machine: Machine, function: Function, param: cst.Param, value: Value) -> Value:
    """An argument of which nothing is known but what its annotation says."""
    if param.annotation is None or type(value) not in _BLANK:
        return value
    load = _is_worth_reading(machine, function)
    return believed(machine, value, param.annotation.annotation, function.scope, load=load)


def _argument(
    machine: Machine, function: Function, param: cst.Param, rest: dict[str, Value], open_: bool
) -> Value:
    """The argument for a parameter; one that is perhaps unpacked at run time is what its annotation says."""
    name = param.name.value
    if name in rest:
        return rest.pop(name)
    default = function.defaults.get(name)
    if default is not None and not open_:
        return default
    return _unpacked(machine, function, param) if open_ else Unknown(name)


def _unpacked(machine: Machine, function: Function, param: cst.Param) -> Value:
    """What ``Model(**settings)`` hands over under a name: settings of the project are known by their class."""
    name = param.name.value
    if param.annotation is None:
        return Unknown(name)
    node = param.annotation.annotation
    known = annotated(
        machine, node, function.scope, name, load=_is_worth_reading(machine, function)
    )
    return known if type(known) is Instance else Unknown(name)


def stranger_keywords(machine: Machine, function: Function) -> dict[str, Value]:
    """What such an entry gets by keyword only; what has a default is left to it."""
    return {
        param.name.value: _stranger(machine, function, param)
        for param in function.node.params.kwonly_params
        if param.default is None
    }


def stranger_arguments(machine: Machine, function: Function, bound: int) -> tuple[Value, ...]:
    """Arguments of unknown origin for an entry no resolved code calls; ``bound`` are given already."""
    params = function.node.params
    asked = [*params.posonly_params, *params.params][bound:]
    made = tuple(_stranger(machine, function, p) for p in asked)
    for param, value in zip(asked, made, strict=True):
        if isinstance(value, Optimizer):
            beside = tuple(v for v in made if v is not value)
            at = Site(function.scope.source, param, function.node)
            machine.record(OptimizerReceived(machine.moment(at), value, beside))
    return made


def _stranger(machine: Machine, function: Function, param: cst.Param) -> Value:
    """An argument of unknown origin: what its annotation says that it is."""
    name = param.name.value
    if name in NAMED_RANKS:
        return rank(machine, NAMED_RANKS[name])
    if param.annotation is not None:
        load = machine.project.budget.patience > 1 or _is_worth_reading(machine, function)
        node = param.annotation.annotation
        known = annotated(machine, node, function.scope, name, load=load)
        if known is not None:
            return known
    return Unknown(name)


_SHARDING = ("fully_shard", "fsdp", "parallelize")


def _is_worth_reading(machine: Machine, function: Function | None) -> bool:
    """Whether a function is worth to read files for the classes of what it gets: it, or what it makes, may shard one."""
    if function is None:
        return True
    made = function.home if function.name == "__init__" else None
    asked = function.node if made is None else made.node
    return machine.ask(speaks_of_sharding, asked)


def speaks_of_sharding(node: cst.CSTNode) -> bool:
    """Whether the names in a function or a class say that it may shard something."""
    words = words_of(node)
    return any(word in words for word in _SHARDING)


@lru_cache(maxsize=5_000)
def words_of(node: cst.CSTNode) -> str:
    """The names in a function or a class, in lower case."""
    names = (n.value for n in walk(node) if isinstance(n, cst.Name))
    return " ".join(names).lower()


def generate(
    machine: Machine, generator: Generator, give: Callable[[Value], None], site: Site
) -> None:
    """Run a generator; ``give`` gets each value that it yields, in the frame of the consumer."""
    consumer = machine.frames[-1]
    path, running = machine.call_path, machine.running

    def on_yield(value: Value) -> None:
        producer = machine.frames[-1]
        if producer is consumer:
            give(value)
            return
        depth = machine.frames.index(consumer)
        suspended = machine.frames[depth + 1 :]
        del machine.frames[depth + 1 :]
        inner_path, inner_running = machine.call_path, machine.running
        machine.call_path, machine.running = path, running
        try:
            give(value)
        finally:
            machine.frames.extend(suspended)
            machine.call_path, machine.running = inner_path, inner_running

    enter(
        machine,
        generator.function,
        generator.args,
        generator.keywords,
        site,
        generator.open,
        on_yield,
    )


def extend(machine: Machine, owner: Container, value: Value, site: Site) -> None:
    """``owner.extend(value)``, ``owner += value``, ``owner.update(value)``."""
    if owner.kind == "dict":
        spread_into(machine, owner, value)
        return
    exact = isinstance(value, Container) and not value.open
    for one in machine.elements(value, site):
        append(machine, owner, one)
    owner.open = owner.open or not exact


def append(machine: Machine, owner: Container, value: Value) -> None:
    """``owner.append(value)``; inside a loop nobody knows how often."""
    owner.open = owner.open or machine.looping > 0
    index = len(machine.memory.fields.get(owner, ()))
    machine.memory.write(owner, f"[{index}]", machine.here, value)


def methods_of(cls: Class) -> Iterator[Function]:
    """The functions that a class body defines, in order."""
    for variable in cls.scope.names.values():
        for _, value in variable.bindings:
            if isinstance(value, Function):
                yield value
