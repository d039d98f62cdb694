"""Every occurrence of FSDP1 in a program: symbols, arguments, methods, attributes, strings, imports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import libcst as cst

from fsdp2lint.ask.program import Program
from fsdp2lint.ask.wrapped import (
    ASKED_FROM_AFAR,
    by_derived_classes,
    is_fairscales,
    is_fsdp_itself,
    is_no_instance,
    is_own,
    kinds,
    names_the_class,
    of_a_plugin,
    of_own_class,
    unseen_methods,
    wrapper,
)
from fsdp2lint.edits.displays import displays, reaching
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.names import Names, dotted, scope_of
from fsdp2lint.meanings import fsdp1_symbols as facts
from fsdp2lint.meanings import load
from fsdp2lint.meanings.fsdp1 import FSDP1
from fsdp2lint.meanings.registry import canonical
from fsdp2lint.model.events import Called, Clipped, Event, Read, SyncPaused, Wrapping
from fsdp2lint.model.trace import options
from fsdp2lint.model.values import Wrapped
from fsdp2lint.project.project import Project
from fsdp2lint.source.walk import statements, walk

if TYPE_CHECKING:
    from fsdp2lint.ask.program import Reference
    from fsdp2lint.model.trace import Trace
    from fsdp2lint.model.values import Value
    from fsdp2lint.source.source import Source
    from fsdp2lint.system.files import Files

SHARED_METHODS = ("no_sync", "register_comm_hook")
"""Methods that DDP has too: they count only for a model that is known to be wrapped by FSDP1."""

Kind = Literal[
    "symbol",
    "argument",
    "method",
    "attribute",
    "string",
    "import",
    "framework",
    "launch",
    "setting",
]


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One piece of FSDP1 in the text: ``start`` and ``end`` are the offsets of its name."""

    source: Source
    node: cst.CSTNode
    kind: Kind
    symbol: str
    code: str
    """The rule of family 1 that reports it."""
    start: int
    end: int

    @property
    def instead(self) -> str:
        """What FSDP2 has in its place, in words; empty when the table says nothing."""
        names = self.symbol.rpartition(".")[2], self.symbol.partition(".")[0]
        symbol = next(filter(None, map(facts.BY_LAST_NAME.get, names)), None)
        return "" if symbol is None else symbol.instead

    @property
    def key(self) -> tuple[str, int, str]:
        """What tells it from every other in the same text."""
        return self.source.path, self.start, self.symbol


def inventory(program: Program) -> list[Occurrence]:
    """All occurrences in the files that may be changed, in the order of the text."""
    load()
    if is_fairscales(program.sources):
        return []
    found: dict[tuple[str, int, str], Occurrence] = {}
    mine = [source for source in program.sources if not is_fsdp_itself(source)]
    order = {source.path: number for number, source in enumerate(mine)}
    for source in mine:
        for one in (*_imports(program, source), *_static(program, source)):
            found.setdefault(one.key, one)
    shown = (*_from_traces(program), *_by_other_names(program), *_of_models_handed_in(program))
    for one in (o for o in shown if o.source.path in order):
        found.setdefault(one.key, one)
    return sorted(found.values(), key=lambda o: (order[o.source.path], o.start, o.end))


def imports(program: Program) -> Iterator[Occurrence]:
    """Those of all occurrences that are imports."""
    load()
    for source in () if is_fairscales(program.sources) else program.sources:
        if not is_fsdp_itself(source):
            yield from _imports(program, source)


def _from_traces(program: Program) -> Iterator[Occurrence]:
    named = "fsdp1" in program.wrappers or any(program.references(FSDP1, f"{FSDP1}.*"))
    for trace in program.traces:
        yield from _in_trace(trace, named)


def _by_other_names(program: Program) -> Iterator[Occurrence]:
    """Calls of the wrapper through a field, or through a name that can be another wrapper too."""
    for events in program.sites(Wrapping):
        source, call = events[0][1].at.source, events[0][1].at.node
        if not isinstance(call, cst.Call) or not any(event.by == "fsdp1" for _, event in events):
            continue
        func = call.func
        if any(r.node is func for r in program.named(source)):
            continue
        scope = scope_of(Layout.of(source).ancestors(func))
        name = func.value if isinstance(func, cst.Name) else ""
        if isinstance(func, cst.Attribute) or (name and Names.of(source).owner(name, scope)):
            yield _occurrence(source, func, "symbol", FSDP1.rpartition(".")[2], "FSDP101")


def _of_models_handed_in(program: Program) -> Iterator[Occurrence]:
    """Methods of models that unseen code may have wrapped."""
    if "fsdp1" not in program.named_wrappers:
        return
    for events in program.sites(SyncPaused):
        func = _asking(events[0][1])
        if func is None or all(is_no_instance(one, one.module) for _, one in events):
            continue
        if "fsdp1" in kinds(program, [one.module for _, one in events]):
            yield _asked(events[0][1].at.source, func)
    for name in ASKED_FROM_AFAR:
        for source, node in unseen_methods(program, name):
            yield _asked(source, node)
    for _, read in program.of(Read):
        if read.name in facts.SETTINGS and isinstance(read.at.node, cst.Attribute):
            if wrapper(read.owner) == "unknown" and not of_own_class(read, read.owner):
                yield _asked(read.at.source, read.at.node)


def _asked(source: Source, node: cst.Attribute) -> Occurrence:
    """A method or an attribute of a wrapped model."""
    name = node.attr.value
    if name in facts.METHODS:
        return _occurrence(source, node.attr, "method", name, facts.METHODS[name])
    return _occurrence(source, node.attr, "attribute", name, facts.WRAPPED_ATTRIBUTES[name])


def occurrences(trace: Trace, code: str) -> Iterator[Occurrence]:
    """What a rule asks: the occurrences that it reports in the files of one trace, imports apart."""
    if is_fairscales(trace.sources):
        return
    found: dict[tuple[str, int, str], Occurrence] = {}
    texts = (source for source in trace.sources if source.derived(_says, code))
    static = (one for source in texts for one in source.derived(_of_source, trace.files))
    for one in (*static, *_in_trace(trace, names_the_class(trace))):
        if one.code == code:
            found.setdefault(one.key, one)
    yield from found.values()


def _says(source: Source, code: str) -> bool:
    return _words_of(code).search(source.text) is not None


@lru_cache(maxsize=32)
def _words_of(code: str) -> re.Pattern[str]:
    """A file without any of these words has nothing in its text that the rule reports."""
    names = {s.name.rpartition(".")[2] for s in facts.SYMBOLS.values() if s.code == code}
    names |= {"FullyShardedDataParallel"} if code in ("FSDP101", "FSDP110", "FSDP113") else set()
    if code == "FSDP101":
        names = names - {"fully_shard"} | {"_composable"}
    if code == "FSDP111":
        names |= {*facts.WORDS, *facts.UNMISTAKABLE_ATTRIBUTES}
    return re.compile(rf"(?:{'|'.join(sorted(names))})\b" if names else "(?!)")


def _of_source(source: Source, files: Files) -> tuple[Occurrence, ...]:
    program = Program((source,))
    program.project = Project.of((source,), files=files)
    return tuple(_static(program, source))


def _static(program: Program, source: Source) -> Iterator[Occurrence]:
    yield from _references(program, source)
    yield from _words(source)


def _imports(program: Program, source: Source) -> Iterator[Occurrence]:
    for one in Names.of(source).imports:
        name = canonical(program.origin(source, one.loads, one.statement))
        symbol = facts.SYMBOLS.get(name)
        if symbol is not None:
            yield _occurrence(source, one.alias, "import", name.rpartition(".")[2], symbol.code)
        elif name in facts.FRAMEWORKS:
            yield _occurrence(source, one.alias, "import", name.rpartition(".")[2], "FSDP113")


def _references(program: Program, source: Source) -> Iterator[Occurrence]:
    for reference in program.named(source):
        if reference.name in facts.FRAMEWORK_ARGUMENTS:
            yield from _framework_arguments(source, reference)
        found = _symbol(reference.name)
        if found is not None:
            code, said, kind = found
            if reference.name == FSDP1:
                code = _use_of_the_class(source, reference.node)
                yield from _of_a_partial(program, source, reference.node)
            yield _occurrence(source, reference.node, kind, said, code)


def _of_a_partial(
    program: Program, source: Source, node: cst.BaseExpression
) -> Iterator[Occurrence]:
    """The keywords that ``functools.partial`` keeps for the constructor."""
    parents = Layout.of(source).parents
    first = parents.get(node)
    call = parents.get(first) if isinstance(first, cst.Arg) else None
    if isinstance(call, cst.Call) and call.args[0] is first:
        if program.meaning(source, call, dotted(call.func)) == "functools.partial":
            yield from _keywords(source, call)


_INSIDE = cst.Tuple | cst.Element | cst.Arg | cst.ComparisonTarget | cst.BinaryOperation
_AROUND_A_CLASS = _INSIDE | cst.Subscript | cst.SubscriptElement | cst.Index


def _use_of_the_class(source: Source, node: cst.CSTNode) -> str:
    """The rule that reports a use of the wrapper class: it is built, tested for, or named as a type."""
    for around in Layout.of(source).ancestors(node):
        if isinstance(around, cst.Comparison):
            return "FSDP110"
        if isinstance(around, cst.Annotation):
            return "FSDP113"
        if isinstance(around, cst.Call) and around.func is not node:
            tested = getattr(around.func, "value", "") in ("isinstance", "issubclass")
            return "FSDP110" if tested else "FSDP101"
        if not isinstance(around, _AROUND_A_CLASS):
            break
    return "FSDP101"


def _symbol(name: str) -> tuple[str, str, Kind] | None:
    """The rule, the words and the kind for a dotted name, or for the symbol that it begins with."""
    if name in facts.FRAMEWORKS:
        return "FSDP113", name.rpartition(".")[2], "framework"
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        symbol = facts.SYMBOLS.get(".".join(parts[:end]))
        if symbol is not None:
            said = ".".join(parts[symbol.name.count(".") :])
            return symbol.code, said.removeprefix(f"{FSDP1}."), "symbol"
    return None


def _framework_arguments(source: Source, reference: Reference) -> Iterator[Occurrence]:
    """The arguments by which a framework is asked to wrap the model."""
    call = Layout.of(source).parents.get(reference.node)
    wanted = facts.FRAMEWORK_ARGUMENTS[reference.name][0]
    for arg in call.args if isinstance(call, cst.Call) else ():
        if arg.keyword is not None and arg.keyword.value in wanted:
            if arg.keyword.value.endswith("strategy") and not _says_fsdp(arg.value):
                continue
            yield _occurrence(source, arg, "framework", arg.keyword.value, "FSDP113")


def _says_fsdp(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.SimpleString) and "fsdp" in str(node.evaluated_value)


def _words(source: Source) -> Iterator[Occurrence]:
    if not any(word in source.text for word in (*facts.WORDS, *facts.UNMISTAKABLE_ATTRIBUTES)):
        return
    for node in walk(source.tree):
        if type(node) is cst.SimpleString or type(node) is cst.FormattedStringText:
            word = next((word for word in facts.WORDS if _names(node.value, word)), None)
            docstring = word and isinstance(Layout.of(source).parents.get(node), cst.Expr)
            if word is not None and not docstring:
                yield _occurrence(source, node, "string", word, "FSDP111")
        elif type(node) is cst.Attribute and node.attr.value in facts.UNMISTAKABLE_ATTRIBUTES:
            own = source.derived(_own_attributes)
            if node.attr.value not in own and not _is_imported(source, node):
                yield _occurrence(source, node.attr, "attribute", node.attr.value, "FSDP111")


def _names(text: str, word: str) -> bool:
    """Whether a string names FSDP1's ``word``: whole, and the class not in a sentence for people."""
    if word not in text or re.search(rf"(?<!\w){word}(?!\w)", text) is None:
        return False
    return word != "FullyShardedDataParallel" or " " not in text


def _own_attributes(source: Source) -> set[str]:
    """The attributes that classes of the file give to themselves: those are theirs, not FSDP1's."""
    assigned = (node for node in statements(source.tree) if isinstance(node, cst.Assign))
    targets = (t.target for node in assigned for t in node.targets)
    return {
        target.attr.value
        for target in targets
        if isinstance(target, cst.Attribute) and getattr(target.value, "value", "") == "self"
    }


def _is_imported(source: Source, node: cst.CSTNode) -> bool:
    """Whether a dotted name is the path of a module in an import."""
    around = Layout.of(source).ancestors(node)
    return any(isinstance(one, cst.Import | cst.ImportFrom) for one in around)


def _in_trace(trace: Trace, named: bool) -> Iterator[Occurrence]:
    """What only a run shows: arguments, methods and attributes of wrapped models, launches.

    ``named`` says whether FSDP1's class is: else clipping by the model is another wrapper's.
    """
    wrappings = [event for event in trace.of(Wrapping) if event.by == "fsdp1"]
    for wrapping in wrappings:
        yield from _arguments(wrapping)
    yield from _launches(trace, wrappings)
    for name, code in facts.METHODS.items():
        for source, node in by_derived_classes(trace, name):
            yield _occurrence(source, node, "symbol", name, code)
    for event in _asked_of_models(trace, named):
        func = _asking(event)
        if func is not None and func.attr.value in facts.METHODS | facts.WRAPPED_ATTRIBUTES:
            if event.guards.possible():
                yield _asked(event.at.source, func)


def _asking(event: Event) -> cst.Attribute | None:
    """The ``model.method`` of an event, also where the script keeps the method under a name."""
    func = getattr(event.at.node, "func", event.at.node)
    if isinstance(func, cst.Attribute):
        return func
    name = "no_sync" if isinstance(event, SyncPaused) else getattr(event, "name", "")[1:]
    named = [n for n in walk(event.at.source.tree) if isinstance(n, cst.Attribute)]
    named = [n for n in named if n.attr.value == name]
    return named[0] if len(named) == 1 else None


def _launches(trace: Trace, wrappings: Sequence[Wrapping]) -> Iterator[Occurrence]:
    """The calls that start the processes in which a model is wrapped."""
    for called in trace.calls("torch.multiprocessing.spawn"):
        node = called.at.node
        if any(site.node is node for event in wrappings for site in event.moment.calls):
            yield _occurrence(called.at.source, node, "launch", "mp.spawn", "")


def _asked_of_models(trace: Trace, named: bool) -> Iterator[Event]:
    """What happens to wrapped models through methods and attributes that only FSDP1's wrapper has."""
    of_engines = {clipped.at.node for clipped in trace.of(Clipped) if clipped.module is None}
    for called in trace.of(Called):
        method = called.name.rpartition(".")[2]
        if method in facts.METHODS and called.receiver is not None:
            if called.at.node in of_engines or of_a_plugin(called):
                continue
            of_others = method in SHARED_METHODS or is_own(trace, method)
            of_others |= method == "clip_grad_norm_" and not named
            if not of_others or _is_wrapped(called.receiver):
                yield called
    by_class = {called.at.node for called in trace.calls(f"{FSDP1}.clip_grad_norm_")}
    for clipped in trace.of(Clipped):
        if clipped.module is not None and clipped.at.node not in by_class:
            if named or _is_wrapped(clipped.module):
                yield clipped
    yield from (paused for paused in trace.of(SyncPaused) if _is_wrapped(paused.module))
    for read in trace.of(Read):
        if read.name in facts.WRAPPED_ATTRIBUTES and _is_wrapped(read.owner):
            yield read


def _is_wrapped(value: Value) -> bool:
    return any(isinstance(one, Wrapped) and one.by == "fsdp1" for one in options(value))


def _arguments(wrapping: Wrapping) -> Iterator[Occurrence]:
    """The keywords of a constructor call, as they are written."""
    call = wrapping.at.node
    if not isinstance(call, cst.Call):
        return
    yield from _keywords(wrapping.at.source, call)
    for arg in call.args:
        if arg.star == "**":
            yield _occurrence(wrapping.at.source, arg, "argument", "**", "FSDP101")
            yield from _entries(wrapping, arg.value)


def _keywords(source: Source, call: cst.Call) -> Iterator[Occurrence]:
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value in facts.ARGUMENTS - {"module"}:
            yield _occurrence(source, arg, "argument", arg.keyword.value, "FSDP101")


def _entries(wrapping: Wrapping, spread: cst.BaseExpression) -> Iterator[Occurrence]:
    """The keywords of a call that come through a dictionary, where its display writes them."""
    calls = wrapping.moment.calls
    reached = reaching(wrapping.at.source, spread, wrapping.moment)
    for source in dict.fromkeys((wrapping.at.source, *(site.source for site in calls))):
        for display, written in source.derived(_displays).items():
            if reached is not None and (source, display) not in reached:
                continue
            for name, entry in written.items():
                if name in wrapping.options:
                    yield _occurrence(source, entry, "argument", name, "FSDP101")


def _displays(source: Source) -> dict[cst.CSTNode, dict[str, cst.CSTNode]]:
    """The displays of dictionaries that write keywords of the constructor and nothing else."""
    return {
        node: written
        for node, written in displays(source).items()
        if len(written) > 1 and written.keys() <= facts.ARGUMENTS
    }


def _occurrence(
    source: Source, node: cst.CSTNode, kind: Kind, symbol: str, code: str
) -> Occurrence:
    start, end = Layout.of(source).span(node)
    return Occurrence(source, node, kind, symbol, code, start, end)
