"""The machine: follows a script in the order in which Python would run it and writes a trace.

How it stays honest, in six sentences. Both sides of a branch are walked one after the other; ``here``
holds what must be true at the present point, every binding and every event carries it. A loop is
walked twice, so that its second round sees what the first left behind. A call of a project function is
entered, with a depth and a step budget; what lies beyond the budget makes the trace *truncated*. A
value that is handed to code that cannot be followed *escapes*. Code that Python cannot reach (after
``return``, under ``if False``) is walked too, so that every call is seen, but writes nothing down.
Whoever asks "did this never happen?" gets no for an answer wherever something was unresolved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from fsdp2lint.interpret import (  # displays, expressions, operators and statements fill the table
    attributes,
    displays,  # noqa: F401
    instances,
    loops,
    operators,  # noqa: F401
    statements,  # noqa: F401
)
from fsdp2lint.interpret.handlers import HANDLERS, run
from fsdp2lint.interpret.machine import (
    calls,
    expressions,  # noqa: F401
)
from fsdp2lint.interpret.scopes import Frame, Scope
from fsdp2lint.meanings.registry import canonical
from fsdp2lint.model.basic_values import MAX_DEPTH
from fsdp2lint.model.events import (
    Augmented,
    Called,
    Escaped,
    Event,
    Exited,
    Filled,
    Iterated,
    Moment,
    Operated,
    Placed,
    Sharded,
    Wrapping,
)
from fsdp2lint.model.guards import ALWAYS, NEVER, Guards, forget_joins
from fsdp2lint.model.memory import Memory, choose
from fsdp2lint.model.trace import Trace, options
from fsdp2lint.model.values import (
    Bound,
    Class,
    Container,
    Either,
    External,
    Function,
    Instance,
    Literal,
    MainRank,
    Module,
    Optimizer,
    Parameters,
    Part,
    StateDict,
    Unknown,
    Value,
    Wrapped,
    of_model,
    rank_dependent,
)
from fsdp2lint.source.source import Site, Source

if TYPE_CHECKING:
    from fsdp2lint.frameworks.recipes import Tree, Way
    from fsdp2lint.interpret.imports import Namespace
    from fsdp2lint.project.project import Interest, Project

Given = tuple[tuple[str, Value], ...]
"""The arguments of a call, each with its keyword or none."""

Body = tuple[cst.CSTNode, Scope]
"""The body of a function, with the names around it: each function that a decorator wraps has a wrapper of its own."""

Kept = tuple[Function, tuple[Value, ...], tuple[tuple[str, Value], ...]]
"""A function that keeps its results, and the arguments of a call."""

Asked = tuple[Callable[..., bool], cst.CSTNode, tuple[object, ...]]
"""A question about a function or a class, and what else it is given."""

MAX_CALL_DEPTH = 28
"""Calls nested deeper than this are not entered."""

MAX_STEPS = 35_000
"""Expressions evaluated for one entry before its calls are no longer entered."""

MAX_ENTERED = 1_500
"""Project calls entered for one entry, or more where it may take more steps:"""

STEPS_A_CALL = 20

STEPS_OF_JOINS = 8_000
"""For so many steps it is kept what guards were joined with: later it is rarely asked for again, and a third of the
memory."""

IDLE_RUNS = 24
"""A function that has run so often and did nothing but ask and compute is not run again for the same entry."""

STEPS_OF_A_RUN = 60
"""A run that takes many more steps than this counts as several."""

MAX_RECEIVERS = 3
"""A method that runs already is entered for objects of so many other classes."""


def _is_recorded_when_escaped(value: Value) -> bool:
    """Whether the trace says that a value escaped: an object, or a part of a model, with which that goes."""
    while type(value) is Part:
        value = value.owner
        if isinstance(value, Module):
            return True
    return isinstance(value, Instance | Wrapped | Optimizer | Parameters | StateDict | Container)


_NO_DEEDS = (Augmented, Called, Exited, Filled, Iterated, Operated, Placed)
"""Events that say what is at a place, not that something was done to a model: who has seen one there often has seen
it."""

_CONSTANTS = (Class, External, Literal)
_PLAIN = (Literal, Part, Unknown)
"""What a function gives of which no rule asks where it comes from."""


def _body(function: Function) -> Body:
    return function.node, function.scope


def _handed(given: Sequence[Value]) -> set[Body]:
    """The functions of the project among what is given."""
    called = {one.function if isinstance(one, Bound) else one for one in given}
    return {_body(one) for one in called if isinstance(one, Function)}


def _is_chosen(given: Given, result: Value) -> bool:
    """Whether constants were asked for one of several constants, or for something of a library: the same each time."""
    if not all(isinstance(value, _CONSTANTS) for _, value in given):
        return False
    found = options(result)
    return all(isinstance(one, _CONSTANTS) for one in found) and not (
        len(found) == 1 and isinstance(found[0], Literal)  # it may be a flag
    )


def _is_no_deed(event: Event) -> bool:
    """Whether nothing was done but to call something, to compute, or to give away a list, a dictionary, or an object of
    a library that is no model, or something of it.

    What these hold is reported, if it is more than settings.
    """
    if not isinstance(event, Escaped):
        return isinstance(event, _NO_DEEDS)
    value = event.value
    while type(value) is Part:
        value = value.owner
    of_library = type(value) is Instance and isinstance(value.cls, External)
    return of_library or isinstance(value, Container)


class Machine:
    """One run through the project, from one entry: a ``program``, or what no program reaches."""

    def __init__(
        self,
        project: Project,
        *,
        program: bool = False,
        interest: Interest = "about",
        trains: bool = True,
        instead: str = "",
    ) -> None:
        self.project = project
        self.instead = instead
        """The module that the program runs with where it could name one of several."""
        self.others: dict[str, dict[str, str]] = {}
        """The modules that it could name at a place, by their paths: by that of the simplest of them."""
        self.interest: Interest = interest
        """How much the work is about the file in which it begins."""
        self.memory = Memory()
        self.here: Guards = ALWAYS
        self.order = 0
        self.steps = 0
        self.ration = project.budget.ration(
            MAX_STEPS,
            program=program,
            interest=interest,
            trains=trains,
            chosen=instead != "",
        )
        self.entered = 0
        self.joins_kept = 0
        """When, in steps, it was last let go of what guards were joined with."""
        self.stage = 0
        self.looping = 0
        self.repeating = 0
        self.counted = True
        """Whether the innermost loop around the present point is walked as often as it runs, or there is none."""
        self.uncounted = 0
        """How many loops around the present point run more often than they are walked."""
        self.catching = 0
        """How many handlers around the present point may keep the program going when something is raised here."""
        self.deeds = 0
        """How many events were written down that are more than a call."""
        self.idle: dict[Body, int] = {}
        """How often bodies of functions have run in which nothing happened but calls, and nothing was stored."""
        self.placed: set[Value] = set()
        """The objects that got their place among the ranks as constants."""
        self.gave: dict[Body, Value] = {}
        """What each of them gave the last time."""
        self.telling: dict[Body, dict[Given, tuple[Guards, Value]]] = {}
        """Those of them that tell one rank from another, or give constants for constants: what they gave, by their
        arguments, and under which guards.
        """
        self.earlier: dict[instances.Making, instances.Earlier] = {}
        """Objects of data of the project's classes, by the arguments of which they were made."""
        self.forwards: dict[tuple[Instance, cst.CSTNode], tuple[int, Value]] = {}
        """How often the ``forward`` of models ran, and what it gave, by the call that ran it."""
        self.lives = 0
        """How many models that are known by an annotation are being built inside each other."""
        self.frames: list[Frame] = []
        self.call_path: tuple[Site, ...] = ()
        self.running: tuple[Function, ...] = ()
        self.escaped: dict[Value, list[Guards]] = {}
        """Under which conditions values escaped, of those whose escape is reported."""
        self.within: tuple[Value, ...] = ()
        self.modules_known: set[Value] = set()
        self.namespaces: dict[str, Namespace] = {}
        self.imported: set[str] = set()
        """The files that imports led to, whether they ran or wait until something of them is read."""
        self.missing: dict[str, Unknown] = {}
        """Whether imports that files try fail, by what is imported."""
        self.visited: set[cst.CSTNode] = set()
        self.walked: set[cst.CSTNode] = set()
        self.made: list[Function] = []
        self.kept: dict[Kept, tuple[tuple[int, Guards, Value], ...]] = {}
        """What functions that keep their results gave: in which stage, and under which guards."""
        self.recipes: list[tuple[Way, Tree]] = []
        """How recipes were read, and what they held."""
        self.hooks: dict[Value, tuple[Guards, Value]] = {}
        """What runs in a backward pass when a gradient is there, as far as it is the project's: under which guards it
        was registered, and the parameter for which it was first.
        """
        self.commands: dict[Value, list[Function]] = {}
        """Functions that were registered with an object by a decorator of it: ``@app.command()``."""
        self.run_bodies: set[cst.CSTNode] = set()
        self.barred: set[cst.CSTNode] = set()
        """The functions that got no further than to a ``raise`` under a test, as where an object is not filled yet."""
        self.looked: set[cst.CSTNode] = set()
        """The functions and classes of the project whose bodies mattered for any of its traces."""
        self.answers: dict[Asked, bool] = {}
        """What was asked of functions and classes of which nothing else mattered, with the answers."""
        self._sites: dict[cst.CSTNode, Site] = {}
        self._externals: dict[str, External] = {}
        self._literals: dict[tuple[type, object], Literal] = {}
        self._mains: dict[str, MainRank] = {}
        self.trace: Trace

    # -- the present point ---------------------------------------------------------------------

    @property
    def frame(self) -> Frame:
        """The innermost function that is running."""
        return self.frames[-1]

    @property
    def source(self) -> Source:
        """The file whose code is running."""
        return self.frames[-1].source

    def site(self, node: cst.CSTNode) -> Site:
        """A place in the running code."""
        frame = self.frames[-1]
        statement = frame.statement or node
        known = self._sites.get(node)
        if known is None or known.statement is not statement:
            known = self._sites[node] = Site(frame.source, node, statement)
        return known

    def moment(self, site: Site) -> Moment:
        """The present moment, at ``site``."""
        return Moment(
            site, self.order, self.here, self.call_path, self.within, self.running, self.stage
        )

    def record(self, event: Event) -> None:
        """Write an event down, unless Python could never get here."""
        if not self.here.impossible:
            self.order += 1
            if not _is_no_deed(event):
                self.deeds += 1
            self.trace.add(event)

    def escape(self, value: Value, site: Site, to: str) -> None:
        """``value`` escapes: code that cannot be followed gets hold of it."""
        if isinstance(value, (Literal, External)) or self.here.impossible:
            return
        every = value.options if isinstance(value, Either) else ((ALWAYS, value),)
        recorded = [(guards, one) for guards, one in every if _is_recorded_when_escaped(one)]
        self.memory.escape(value)
        here = self.here
        for guards, one in recorded:
            self.here = here.and_(guards)
            known = self.escaped.setdefault(one, [])
            if not any(map(self.here.implies, known)):
                known.append(self.here)
                self.record(Escaped(self.moment(site), one, to))
        self.here = here

    @property
    def choices(self) -> tuple[str, ...]:
        """The paths of the modules that the program could name."""
        return tuple(dict.fromkeys(path for others in self.others.values() for path in others))

    def ask(self, question: Callable[..., bool], node: cst.CSTNode, *given: object) -> bool:
        """The answer to a question about the text of a function or a class, on which the run depends, not on the text."""
        key = question, node, given
        if key not in self.answers:
            self.answers[key] = question(node, *given)
        return self.answers[key]

    # -- making values -------------------------------------------------------------------------

    def literal(self, value: object) -> Literal:
        """The constant ``value``, the same object each time."""
        key = (type(value), value)
        try:
            return self._literals[key]
        except KeyError:
            made = self._literals[key] = Literal(value)
            return made
        except TypeError:
            return Literal(value)

    def external(self, name: str) -> External:
        """The name ``name`` outside the project, under its canonical spelling."""
        known = self._externals.get(name)
        if known is None:
            spelled, name = name, canonical(name)
            known = self._externals.setdefault(name, External(name))
            self._externals[spelled] = known
        return known

    def main_rank(self, scope: str) -> MainRank:
        """The test "this is the first rank of ``scope``"."""
        return self._mains.setdefault(scope, MainRank(scope))

    def container(
        self, kind: str, items: Sequence[Value] | dict[str, Value], open_: bool = False
    ) -> Container:
        """A new list, tuple, set (of ``items``) or dict (from string keys)."""
        made = Container(kind, open_)
        if isinstance(items, dict):
            for key, value in items.items():
                self.memory.write(made, f"[{key!r}]", self.here, value)
        else:
            for index, value in enumerate(items):
                self.memory.write(made, f"[{index}]", self.here, value)
        return made

    def take(self, parameters: Parameters) -> Parameters:
        """A snapshot of ``parameters``, read into memory now."""
        return Parameters(parameters.of, self.order, parameters.named)

    def is_module(self, value: Value) -> bool:
        """Whether ``value`` is an ``nn.Module``: built as one, wrapped, used as one, or a part of one."""
        if isinstance(value, (Module, Wrapped)) or value in self.modules_known:
            return True
        if isinstance(value, Either):
            return all(self.is_module(v) for _, v in value.options)
        if not isinstance(value, Part):
            return False
        if isinstance(value.key, tuple) and value.key[0] != "[]":
            return False
        return self.is_module(value.owner)

    # -- branches ------------------------------------------------------------------------------

    def spread(self, value: Value, action: Callable[[Value], Value]) -> Value:
        """Do ``action`` with each thing that ``value`` can be, under its guards."""
        if not isinstance(value, Either):
            return action(value)
        here = self.here
        results: list[tuple[Guards, Value]] = []
        for guards, one in value.apart():
            self.here = here.and_(guards)
            if not self.here.impossible:
                results.append((guards, action(one)))
        self.here = here
        if not results:
            return action(value.options[0][1])
        return choose(results, here, apart=True) or results[0][1]

    def narrowed(self, value: Either) -> Value:
        """What a value can be at the present point."""
        here, every = self.here, value.apart()
        left = [(guards, one) for guards, one in every if not guards.excludes(here)]
        if len(left) == len(every) and every is value.options:
            return value
        return choose(left or list(every[:1]), here, apart=True) or every[0][1]

    # -- what the parts of the language do (each in its own file) --------------------------------

    def eval(self, node: cst.BaseExpression) -> Value:
        """The value of an expression."""
        self.steps += 1
        handler = HANDLERS.get(type(node))
        value: Value = self.unknown() if handler is None else handler(self, node)
        return value

    def unknown(self, at: Site | None = None, given_by: str = "") -> Value:
        """Something new of which nothing is known: ``given_by`` the function of this name, ``at`` a place."""
        frame = self.frames[-1] if self.frames else None
        if frame is None:
            return Unknown()
        if at is None and frame.statement is not None:
            at = Site(frame.source, frame.statement, frame.statement)
        return Unknown("", at, given_by, frame.function)

    def stranger(self, name: str) -> Value:
        """An argument of unknown origin."""
        value = Unknown(name)
        self.memory.foreign.add(value)
        return value

    def life(self, cls: Class, name: str) -> Instance:
        """An instance of a class that no resolved code makes."""
        return instances.life(self, cls, name)

    def run(self, block: Sequence[cst.CSTNode]) -> None:
        """Run statements."""
        run(self, block)

    def call(
        self,
        target: Value,
        args: Sequence[Value],
        keywords: dict[str, Value],
        site: Site,
        open_: bool = False,
    ) -> Value:
        """Call ``target``."""
        return calls.call(self, target, tuple(args), keywords, site, open_)

    def get(self, value: Value, name: str, site: Site) -> Value:
        """The attribute ``name`` of ``value``."""
        return attributes.get(self, value, name, site)

    def set(self, owner: Value, name: str, value: Value, site: Site) -> None:
        """Assign an attribute."""
        attributes.set_(self, owner, name, value, site)

    def item(self, value: Value, key: Value, site: Site) -> Value:
        """``value[key]``."""
        return attributes.item(self, value, key, site)

    def elements(self, value: Value, site: Site) -> list[Value]:
        """What the rounds of a loop over ``value`` see."""
        return loops.elements(self, value, site)

    def note_walk(self, value: Value, site: Site) -> None:
        """Write down that a loop, or a ``yield from``, walks ``value``."""
        loops.note_walk(self, value, site)

    def method(self, value: Value, name: str) -> Value | None:
        """The project function ``name`` bound to ``value``, if its class defines one."""
        return attributes.method(self, value, name)

    def enter_forward(
        self, module: Value, args: Sequence[Value], keywords: dict[str, Value], site: Site
    ) -> Value:
        """Run the ``forward`` of a project class; an unknown value when it has none that is resolved."""
        return calls.enter_forward(self, module, tuple(args), keywords, site)

    # -- running bodies ------------------------------------------------------------------------

    def may_enter(self, function: Function, given: Sequence[Value] = ()) -> bool:
        """Whether the budget allows another call; no recursion."""
        if self.here.impossible or self._recurs(function, given):
            return False
        if abs(self.steps - self.joins_kept) > STEPS_OF_JOINS:
            self.joins_kept = self.steps
            forget_joins()
        limit = self._limit_reached()
        if limit:
            statement = self.frame.statement or function.node
            self.trace.cut_short(limit, Site(self.source, statement, statement))
        return not limit

    def idle_result(self, function: Function, given: Given) -> Value | None:
        """What a function gives that has run so often and done nothing that it need not run again: something new like
        what it gave the last time, or the test of the rank that it gave for the same arguments.
        """
        body = _body(function)
        if self.idle.get(body, 0) < IDLE_RUNS:
            return None
        if body in self.telling:
            here, known = self.telling[body].get(given, (NEVER, None))
            return known if self.here.implies(here) else None
        every = [one for _, value in given for one in options(value)]
        if any(isinstance(v, Function | Bound) or self._is_model(v) for v in every):
            return None
        if not all(self._is_data(v, chosen=True) for v in every if isinstance(v, Container)):
            return None
        return self._another(self.gave[body])

    def has_run(
        self, function: Function, given: Given, is_idle: bool, result: Value, steps: int
    ) -> None:
        """A function has run for so many steps; ``is_idle`` when it did nothing but ask and compute, and stored nothing
        in what was there.
        """
        body = _body(function)
        tells = any(map(rank_dependent, options(result))) or _is_chosen(given, result)
        if is_idle and tells:
            self.telling.setdefault(body, {})[given] = self.here, result
        elif not self._is_data(result):
            is_idle = False  # one of several answers tells what it was asked of
        runs = max(1, steps // STEPS_OF_A_RUN)
        self.idle[body] = self.idle.get(body, 0) + runs if is_idle else -MAX_ENTERED
        if is_idle:
            self.gave[body] = result

    def _is_data(self, value: Value, depth: int = 0, *, chosen: bool = False) -> bool:
        """Whether no rule asks where a value comes from, nor what is in it when it is a list or a dictionary.

        One of several constants is, where it does not matter what was asked to choose it.
        """
        if isinstance(value, Container):
            held = [one for _, one in self.memory.entries(value, self.here)]
            return depth < MAX_DEPTH and all(
                self._is_data(one, depth + 1, chosen=chosen) for one in held
            )
        if isinstance(value, Either):
            return all(
                self._is_data(one, depth, chosen=chosen)
                and (chosen or not isinstance(one, Literal))
                for _, one in value.options
            )
        return isinstance(value, _PLAIN) and not self._is_model(value)

    def _another(self, value: Value) -> Value:
        """Something new of which as much is known: with the same keys, or as many entries in a tuple."""
        if isinstance(value, Either):
            return Either(tuple((guards, self._another(one)) for guards, one in value.options))
        if not isinstance(value, Container):
            return self.unknown()
        made = Container(value.kind, value.open or value.kind != "tuple")
        for key, entry in list(self.memory.entries(value, self.here)):
            if isinstance(key, str):
                self.memory.write(made, key, self.here, self._another(entry))
            else:
                made.open = True
        return made

    def _is_model(self, value: Value) -> bool:
        return of_model(value) or self.is_module(value)

    def _recurs(self, function: Function, given: Sequence[Value]) -> bool:
        """Whether a function runs already; a method that all classes inherit may run for each of them, and what is
        given a function to call for each of those.
        """
        body = _body(function)
        times = sum(_body(one) == body for one in self.running)
        if not times or times > MAX_RECEIVERS:
            return times > 0
        same = [f for f in self.frames if f.function and _body(f.function) == body]
        handed = _handed(given)
        if handed and len(same) == times and not any(handed & _handed(f.given) for f in same):
            return False
        receiver = given[0] if given else None
        cls = receiver.cls if isinstance(receiver, Instance) else None
        if cls is None or function.home is None or len(same) < times:
            return True
        return any(not isinstance(f.receiver, Instance) or f.receiver.cls is cls for f in same)

    def _limit_reached(self) -> str:
        """Which limit keeps the machine from entering another call, in words; empty when none does."""
        if len(self.running) >= MAX_CALL_DEPTH:
            return f"calls are nested more than {MAX_CALL_DEPTH} deep"
        if not self.ration.covers(self.steps) and not self._gets_more():
            return f"more than {self.ration.steps:,} expressions to follow"
        most = max(MAX_ENTERED * self.project.budget.patience, self.ration.steps // STEPS_A_CALL)
        if self.entered > most:
            return f"more than {most:,} calls to follow"
        return ""

    def _gets_more(self) -> bool:
        """Whether the run turns out to be worth more steps than others.

        What has sharded a model trains it next, and may take of what is left for programs. What began near to
        the work has patience when it turns out to be about it: it wraps a model by FSDP1.
        """
        ration = self.ration
        usual = MAX_STEPS if ration.program else MAX_STEPS // 2
        if ration.interest == "near":
            if any(event.by == "fsdp1" for event in self.trace.of(Wrapping)):
                self.ration = self.project.budget.ration(usual, program=ration.program)
        elif not ration.shards and self.trace.of(Sharded):
            self.ration = self.project.budget.for_sharding(ration, MAX_STEPS)
        return self.ration is not ration and self.ration.covers(self.steps)

    def dead(self, action: Callable[[], object]) -> None:
        """Walk code that Python cannot reach: every call is seen, nothing is written down."""
        here, self.here = self.here, NEVER
        action()
        self.here = here

    def push(self, scope: Scope, function: Function | None = None) -> Frame:
        """Begin to run something in ``scope``."""
        frame = Frame(scope, self.here, function)
        self.frames.append(frame)
        return frame

    def pop(self) -> None:
        """End what runs innermost."""
        self.frames.pop()

    def forget(self) -> None:
        """Let the names go: functions know the scope in which they were made, and it knows them."""
        loaded = (one.scope for one in self.namespaces.values() if one.scope is not None)
        for scope in (*loaded, *(function.scope for function in self.made)):
            scope.names.clear()
