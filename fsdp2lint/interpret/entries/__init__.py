"""Where runs begin: main modules first, then whatever they did not reach.

A function or a class that no resolved code uses is an entry of its own, with arguments of unknown origin.
A class gets one life: ``__init__``, then its methods in the order of the text; since no resolved code calls
them, the order between two of them is not certain (:attr:`Moment.stage`).
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

import libcst as cst

from fsdp2lint.frameworks.text import CommandText, SettingsText
from fsdp2lint.interpret.again import Reached, Runs
from fsdp2lint.interpret.entries.filling import those_that_fill_first
from fsdp2lint.interpret.entries.mocks import mocks
from fsdp2lint.interpret.entries.programs import runs_of, trains, workers_first
from fsdp2lint.interpret.functions import (
    methods_of,
    speaks_of_sharding,
    stranger_arguments,
    stranger_keywords,
)
from fsdp2lint.interpret.handlers import run_body
from fsdp2lint.interpret.imports import Namespace, namespace
from fsdp2lint.interpret.instances import life
from fsdp2lint.interpret.machine import MAX_STEPS, Machine
from fsdp2lint.interpret.scopes import Scope
from fsdp2lint.meanings import load
from fsdp2lint.meanings.frameworks.lightning import hooks_of
from fsdp2lint.model.basic_values import forget, noted, spare
from fsdp2lint.model.events import Backward, Sharded, Stepped, Wrapping
from fsdp2lint.model.guards import ALWAYS, Guards, forget_joins
from fsdp2lint.model.memory import Memory
from fsdp2lint.model.trace import Trace
from fsdp2lint.model.values import Class, Function, Value, lineage
from fsdp2lint.source.deferred import unread
from fsdp2lint.source.source import Site
from fsdp2lint.system.collector import no_collector

if TYPE_CHECKING:
    from fsdp2lint.project.project import Project
    from fsdp2lint.source.source import Source

RECURSION_LIMIT = 12_000

WORTH_FORGETTING = 400_000
"""So many objects (some 50 MB) are made before it is worth the time to look which of them can go."""


def traces(project: Project, runs: Runs | None = None, *, passing: bool = False) -> Iterator[Trace]:
    """One trace for each entry of the project's sources.

    ``runs`` are those of an earlier version of the project: of them only those are made again that can
    be others now, and they become those of this version. Traces that are ``passing`` are asked one after
    the other: what they know is forgotten when the machine that made them is done.
    """
    load()
    reached = Reached()
    programs = [*filter(_is_main, project.asked), *project.programs]
    others = sorted(project.asked, key=workers_first)
    todo = chain(
        ((_program, source, instead) for source, instead in runs_of(project, programs, reached)),
        ((_rest, source, "") for source in others),
    )
    yield from _of_settings(project)
    with _deep_recursion():
        for way, source, instead in todo:
            since = noted()
            for trace in _made(way, project, source, reached, runs, passing, instead):
                yield trace
                forget_joins()
                del trace  # what it holds can go before the next one is made
            if not passing and runs is None:  # else they are kept, and let go with their run
                spare(since)
                _forget()


def _of_settings(project: Project) -> Iterator[Trace]:
    """A trace for each file of settings or commands that asks for FSDP: nothing happens in it."""
    for source in project.settings:
        if isinstance(source, CommandText):
            trace = Trace("", source, Memory(), project.files, project.target)
            trace.commands = source.asking
            yield trace
        if isinstance(source, SettingsText) and source.asked is not None:
            trace = Trace("", source, Memory(), project.files, project.target)
            trace.settings = source.asked
            trace.launches = project.hints.launched_with(os.path.abspath(source.path))
            yield trace


def _made(
    way: Callable[[Machine, Source, Reached], Iterator[Trace]],
    project: Project,
    source: Source,
    reached: Reached,
    runs: Runs | None,
    passing: bool,
    instead: str = "",
) -> Iterable[Trace]:
    """The traces of one machine, those that it made before where nothing of them can have changed.

    The program runs with the module ``instead`` where it could name one of several.
    """
    key = f"{way.__name__}{instead}", source.path
    known = None if runs is None else runs.again(key, project, reached)
    if known is not None:
        return known
    machine = Machine(
        project,
        program=way is _program,
        interest=project.interests.get(source.path, "about"),
        trains=trains(source),
        instead=instead,
    )
    made = way(machine, source, reached)
    if passing:
        return _passing(machine, made)
    return made if runs is None else runs.keep(key, machine, reached, made)


def _passing(machine: Machine, made: Iterator[Trace]) -> Iterator[Trace]:
    """The traces of a machine, of which nothing is left when the last of them was asked."""
    since = noted()
    for trace in made:
        yield trace
        trace.forget()
    machine.forget()
    forget(since)


def _is_main(source: Source) -> bool:
    """Whether a file is meant to be run: it asks for ``__main__``, itself or by a decorator of fastcore."""
    text = source.said
    return ("__main__" in text and "__name__" in text) or "call_parse" in text


def _forget() -> None:
    """Let go of what a run has made: values know each other, so nothing of it goes by itself.

    What is left, the trees above all, stays, and is not looked through the next time.
    """
    if gc.get_count()[0] > WORTH_FORGETTING:
        gc.collect()
        gc.freeze()


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Room for deep syntax trees and call chains; garbage is collected between two runs, not inside one."""
    limit = sys.getrecursionlimit()
    with no_collector():
        gc.freeze()
        sys.setrecursionlimit(max(limit, RECURSION_LIMIT))
        try:
            yield
        finally:
            sys.setrecursionlimit(limit)
            gc.unfreeze()


def _program(machine: Machine, source: Source, reached: Reached) -> Iterator[Trace]:
    module, trace = _begin(machine, source)
    _guarded(trace, lambda: module.load(machine, "__main__"))
    machine.project.budget.spend(machine.steps)
    reached.add(machine.run_bodies)
    reached.choices.setdefault(source.path, machine.choices)
    trace.visited = machine.visited
    yield trace
    yield from _closures(machine, module, reached)


def _closures(machine: Machine, module: Namespace, reached: Reached) -> Iterator[Trace]:
    """Functions that the program made inside others and never called: hooks and callbacks, handed away.

    No resolved code says when they run, so nothing is certain not to have happened around them.
    """
    about = machine.trace
    nothing = Trace("", about.source, machine.memory, about.files, about.target)
    index = 0
    while index < len(machine.made):
        function = machine.made[index]
        index += 1
        inner = function.scope.kind != "module" and function.home is None
        asked = function.scope.source in machine.project.asked
        if inner and asked and function.node not in reached:
            for trace in _entry(machine, module, function, nothing, reached):
                trace.truncated = True
                yield trace


def _begin(machine: Machine, source: Source) -> tuple[Namespace, Trace]:
    project = machine.project
    trace = Trace("__main__", source, machine.memory, project.files, project.target)
    launch = project.hints.launch(os.path.abspath(source.path)) if project.hints.launched else None
    trace.launches = () if launch is None else (launch,)
    machine.trace = trace
    return namespace(machine, project.path_of(source), _module_name(source)), trace


def _module_name(source: Source) -> str:
    return source.path.replace("\\", "/").removesuffix(".py").rpartition("/")[2]


def _guarded(trace: Trace, action: Callable[[], None]) -> None:
    """A script nested beyond all measure ends its trace early instead of the program."""
    try:
        action()
    except RecursionError:
        source = trace.source
        trace.cut_short("code is nested too deep", Site(source, source.tree, source.tree))


def _rest(machine: Machine, source: Source, reached: Reached) -> Iterator[Trace]:
    """The module itself, then its functions and classes that no run has reached yet."""
    module, trace = _begin(machine, source)
    _guarded(trace, lambda: module.load(machine))
    loaded = trace.begun("")
    if not _is_main(source):
        trace.visited = machine.visited
        yield trace
    reached.add(machine.run_bodies)
    if module.scope is None:
        return
    first_order, kept = machine.order, machine.kept
    for value in _definitions(module):
        machine.kept = kept.copy()
        yield from _entry(machine, module, value, loaded, reached)
        machine.order = first_order
    index = 0
    while index < len(machine.made):
        function = machine.made[index]
        index += 1
        if function.scope.source is source and function.node not in reached:
            machine.kept = kept.copy()
            yield from _entry(machine, module, function, loaded, reached)


def _definitions(module: Namespace) -> list[Value]:
    """The classes and functions of a module: classes first, their methods are more of a story.

    Functions whose name the file mentions come last: those that mention them lead to them.
    """
    found: list[Value] = []
    for variable in module.scope.names.values() if module.scope else ():
        found += [v for _, v in variable.bindings]
    own = [v for v in found if isinstance(v, Class | Function) and v.scope.source is module.source]
    mentioned = _mentioned(module.source) if module.source is not None else frozenset()
    functions = [v for v in own if isinstance(v, Function)]
    functions.sort(key=lambda f: f.name in mentioned)
    return [*(v for v in own if isinstance(v, Class)), *functions]


_WORD = re.compile(r"\w+")


def _mentioned(source: Source) -> frozenset[str]:
    """The names that a file writes more than once: where they are defined, and where they are used."""
    counted = Counter(_WORD.findall(source.said))
    return frozenset(name for name, times in counted.items() if times > 1)


def _entry(
    machine: Machine,
    module: Namespace,
    value: Value,
    loaded: Trace,
    reached: Reached,
) -> Iterator[Trace]:
    """One entry of a module that is ``loaded`` already: what happened by then comes first in its trace."""
    methods = _unreached_methods(value, reached) if isinstance(value, Class) else []
    if isinstance(value, Function) and value.node in reached:
        return
    if isinstance(value, Class) and not methods:
        return
    trace = machine.trace = loaded.begun(value.words())
    machine.here, machine.steps, machine.entered, machine.stage = _under(value), 0, 0, 0
    shards = isinstance(value, Class) and speaks_of_sharding(value.node)
    usual = (
        MAX_STEPS if shards else MAX_STEPS // 2
    )  # a worker that shards and trains is a program of its own
    machine.ration = machine.project.budget.ration(usual, interest=machine.interest)
    machine.run_bodies = set()
    machine.earlier.clear()
    for kept in (machine.idle, machine.gave, machine.telling, machine.forwards, machine.hooks):
        kept.clear()
    if module.scope is None:
        return
    machine.push(module.scope)
    if isinstance(value, Class):
        _guarded(trace, lambda: _live(machine, value, methods))
    elif isinstance(value, Function):
        run = _see if mocks(value) else _run_stranger
        _guarded(trace, lambda: run(machine, value))
    del machine.frames[:]
    machine.running, machine.call_path, machine.within = (), (), ()
    machine.looping = machine.repeating = 0
    machine.counted = True
    machine.uncounted = 0
    machine.stage = 0
    machine.project.budget.spend(machine.steps)
    reached.add(machine.run_bodies)
    _forget_globals(machine, module)
    trace.visited = machine.visited
    yield trace


def _under(value: Value) -> Guards:
    """What holds wherever a function runs: what held where it was made, if anything could come there."""
    if isinstance(value, Function) and not value.under.impossible:
        return value.under
    return ALWAYS


def _unreached_methods(cls: Class, reached: Reached) -> list[Function]:
    return [f for f in methods_of(cls) if f.node not in reached]


def _live(machine: Machine, cls: Class, methods: list[Function]) -> None:
    """``__init__``, then the methods that nothing else has called by then, bases' methods included.

    A private method that the class calls is left to those calls, as long as the run gets to them: on its own it
    would run under no condition. The hooks that a framework calls in a known order run in it, as one stage. Half of the ration is
    there for each method, whatever those before it took, until all together have used it up; from
    then on only the methods themselves run, not what they call. A method that comes to nothing but a ``raise`` before it
    shards or trains, because what it needs is given by a method further down, perhaps to another object, runs again when
    all have run.
    """
    machine.steps = before = 0
    machine.looked.update(c.node for c in lineage(cls) if isinstance(c, Class))
    me = life(machine, cls)
    every = [f for c in reversed(list(lineage(cls))) if isinstance(c, Class) for f in methods_of(c)]
    names = {f.name: f for f in every}
    todo = [f for f in every if names[f.name] is f or f in methods]
    hooks = [names[name] for name in hooks_of(cls) if name in names]
    others = those_that_fill_first(cls, [f for f in todo if f not in hooks])
    others.sort(key=lambda f: _is_called_by_its_class(cls, f))
    todo, late = [*hooks, *others], set[Function]()
    for stage, function in enumerate(todo, 1):
        if function.node in machine.run_bodies and function not in late:
            continue
        if mocks(function) or (
            machine.trace.cut is None and _is_called_by_its_class(cls, function)
        ):
            _see(machine, function)
            continue
        machine.stage = 1 if function in hooks else stage
        kept = machine.ration.half_of(machine.steps)
        before += machine.steps - kept
        machine.steps = kept if machine.ration.covers(before + kept) else machine.ration.steps
        bound = 0 if function.kind == "staticmethod" else 1
        first: tuple[Value, ...] = (me,) if function.kind == "" else (cls,)
        machine.barred.clear()
        done = len(machine.trace.events)
        _run_stranger(machine, function, first if bound else ())
        if (
            machine.barred
            and function not in late
            and not any(isinstance(one, _LASTING) for one in machine.trace.events[done:])
        ):  # the list grows: once more behind all others
            late.add(function)
            todo.append(function)
    machine.stage = 0


_LASTING = (Sharded, Wrapping, Stepped, Backward)
"""What is not done twice: a method that came so far before it raised does not run again."""


def _is_called_by_its_class(cls: Class, function: Function) -> bool:
    """Whether a private method is called on ``self`` in the files of a class and its bases."""
    if not function.name.startswith("_") or function.name.startswith("__"):
        return False
    files = {c.scope.source for c in lineage(cls) if isinstance(c, Class)}
    return any(function.name in _called_by_classes(source.said) for source in files)


_PRIVATE_CALL = re.compile(r"\b(?:self|cls|super\(\))\.(_\w+)\(")


@lru_cache(maxsize=500)
def _called_by_classes(text: str) -> frozenset[str]:
    """The private methods that the classes of a file call."""
    return frozenset(_PRIVATE_CALL.findall(text))


def _see(machine: Machine, function: Function) -> None:
    """Walk a function to which no run comes, so that each of its calls is seen."""
    machine.looked.add(function.node)
    if unread(function.node) or isinstance(function.node, cst.Lambda):
        return
    body = function.node.body
    machine.push(Scope("function", function.scope.source, function.scope), function)
    machine.dead(lambda: run_body(machine, body))
    machine.pop()


def _run_stranger(machine: Machine, function: Function, first: tuple[Value, ...] = ()) -> None:
    """Run a function with arguments of unknown origin; what it returns escapes."""
    from fsdp2lint.interpret.functions import Generator, generate

    here = machine.here
    args = (*first, *stranger_arguments(machine, function, len(first)))
    machine.memory.foreign.update(args)
    site = Site(function.scope.source, function.node, function.node)  # perhaps of a base elsewhere
    keywords = stranger_keywords(machine, function)
    machine.memory.foreign.update(keywords.values())
    result = machine.call(function, args, keywords, site, open_=True)
    if isinstance(result, Generator):
        generate(machine, result, lambda value: machine.escape(value, site, "its caller"), site)
    else:
        machine.escape(result, site, "its caller")
    machine.here = here


def _forget_globals(machine: Machine, module: Namespace) -> None:
    """What one entry left in the module's names is of unknown history to the next."""
    if module.scope is None:
        return
    for variable in module.scope.names.values():
        for _, value in variable.bindings:
            if not isinstance(value, Class | Function):
                machine.memory.escape(value)
