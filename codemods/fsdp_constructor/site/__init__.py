"""A call that wraps a module with FSDP1: what it is given, where that is written, what it can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import dedent, indent
from typing import Literal

import libcst as cst

from fsdp2lint.api import (
    OLD_NAMES,
    POSITIONS,
    Account,
    Edit,
    External,
    Layout,
    Program,
    Reference,
    Source,
    Trace,
    Value,
    Wrapping,
    dotted,
    options,
    walk,
)
from fsdp2lint.api import Literal as Constant

from ..._common.names import born, function_scope, is_none, is_taken
from ..._common.origins import Origin, meaning, origins
from ..._common.shared import Helpers, name_at
from ..chosen import is_field
from ..derived import WHY, derived, of_class
from ..displays import (
    Entries,
    Events,
    HandedOn,
    Spread,
    Write,
    additions,
    additions_along,
    display_of,
    handed_on,
    in_other_branches,
    is_empty_handed_on,
    is_read_by_key,
    keywords_of,
    taken_over,
    writes_of,
)
from ..fields import Field, display_of_field, field_of, means_the_same
from ..lines import expression_alone, reindented
from .records import record_of

Fate = Literal["preserved", "changed", "dropped"]

LINE = 76
FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
WRAP = "torch.distributed.fsdp.wrap.wrap"


@dataclass(eq=False)
class Argument:
    """One argument of the constructor: ``node`` is what the ledger knows, ``value`` the expression."""

    name: str
    node: cst.CSTNode
    value: cst.BaseExpression
    values: tuple[Value, ...]
    """What it can be, in all runs; empty when nothing is known."""
    spread: Spread | None = None
    """The ``**kwargs`` of the call that it comes through."""
    home: tuple[Source, cst.BaseExpression] | None = None
    """The dictionary in another function that writes it."""
    said: str = ""
    """The text that stands for it, where only the run knows whether it is given."""
    written: cst.BaseExpression | None = None
    """The only expression that is written, where ``value`` only asks for it."""
    kept: tuple[Origin, ...] = ()
    """All that an entry of a field can be, which ``value`` asks for when it runs."""
    is_read: bool = False
    """Whether the program asks for that entry too."""
    added: Write | None = None
    """What adds it to a dictionary that is built elsewhere."""
    before: tuple[Argument, ...] = ()
    """What the same dictionary may hold for it instead, in the order of the text."""
    voids: tuple[Write, ...] = ()
    """What writes None for it where nothing else does."""
    beside: bool = False
    """Whether that dictionary is filled beside the call."""
    entries: tuple[Origin, ...] = ()
    """All that is written for it into that dictionary; None where it may be left out."""
    always: cst.CSTNode | None = None
    """The statement that adds it in every run to a dictionary that others fill in some."""
    through: str = ""
    """The ``**kwargs`` of the function around, where no text shows which of its calls give it: then it is popped."""

    @property
    def sometimes(self) -> bool:
        """Whether some runs may leave it out of the dictionary."""
        return all(a.added is not None and a.added.sometimes for a in (*self.before, self))

    def add(self, write: Write, before: Argument | None) -> None:
        """Note what adds it to a dictionary that is built elsewhere, and what that may hold for it instead."""
        self.added = write
        if before is None or before.spread is not self.spread:
            return
        self.voids = before.voids
        alone = before.added is not None and before.added.display is None
        over = before.added is None or (before.before and before.added.sometimes)
        if before.added is not None and not over and alone and dotted(before.value) == "None":
            self.voids += (before.added,)  # written again after it, or in the other branch
        else:
            self.before = (*before.before, before)

    def asked(self, said: str, *, only: bool) -> None:
        """Know it only through ``said``, which is None where it is not given."""
        self.said, self.written, self.kept = said, self.value if only else None, self.entries
        self.value = cst.parse_expression(said)
        self.values = (*self.values, Constant(None)) if self.values else ()


@dataclass(eq=False)
class Construction:
    """A call of the constructor, with all that is needed to write what comes instead."""

    program: Program
    source: Source
    call: cst.BaseExpression
    """The call; or the dictionary of its keywords, while that is rewritten."""
    events: Sequence[tuple[Trace, Wrapping]]
    module: cst.BaseExpression
    arguments: dict[str, Argument]
    edits: list[Edit] = field(default_factory=list)
    accounts: list[Account] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    elsewhere: dict[cst.CSTNode, tuple[Edit, ...]] = field(default_factory=dict)
    """The edits of what is made elsewhere, which several calls may share, by its node."""
    handed: tuple[str, ...] = ()
    """What the call hands on as ``**kwargs`` for callers in unresolved code: those that are resolved give nothing."""
    device: str = ""
    """The expression for the kind of device, where ``device_id`` came in a dictionary from elsewhere."""
    fixed: frozenset[cst.CSTNode] = frozenset()
    """What is made elsewhere and must stay, because another call needs it as it is."""

    @property
    def layout(self) -> Layout:
        """The layout of the file."""
        return Layout.of(self.source)

    @property
    def scope(self) -> cst.CSTNode:
        """The scope that the statement of the call is in: comprehensions and lambdas left out."""
        return function_scope(self.source, self.call)

    def anew(self, fixed: frozenset[cst.CSTNode]) -> Construction:
        """The same call with nothing planned yet."""
        return Construction(
            self.program,
            self.source,
            self.call,
            self.events,
            self.module,
            dict(self.arguments),
            handed=self.handed,
            fixed=fixed,
        )

    def text(self, node: cst.CSTNode) -> str:
        """The text of an expression as it is, in the parentheses that it needs inside an argument."""
        for argument in self.arguments.values():
            if argument.value is node and argument.said:
                return argument.said
        return self.source.text[slice(*self.layout.whole(node))]

    @property
    def module_text(self) -> str:
        """The text of the module; a name without parentheses."""
        if isinstance(self.module, cst.Name | cst.Attribute):
            return self.source.text[slice(*self.layout.span(self.module))]
        return self.text(self.module)

    def flat(self, node: cst.CSTNode) -> str:
        """The text of an expression as it is alone: on one line if it fits, else from where it begins."""
        whole = self.text(node)
        if "\n" not in whole:
            return whole
        text = self.source.text[slice(*self.layout.span(node))]
        line = " ".join(text.split())
        if len(line) < LINE and "#" not in text and '"""' not in text:
            return line.replace("( ", "(").replace(" )", ")").replace(",)", ")")
        if not getattr(node, "lpar", ()):
            head, _, rest = text.partition("\n")
            whole = f"{head}\n{dedent(rest)}"
            if not expression_alone(whole):
                whole = f"(\n    {head}\n{indent(dedent(rest), '    ')}\n)"
        return reindented(whole)

    def name(self, target: str, alias: str = "") -> str:
        """How a name of another module is written at the call; its import comes along."""
        found = name_at(self.source, self.call, target, alias)
        self.edits += found.edits
        return found.text

    def free(self, *wanted: str) -> str:
        """The first of these names that means nothing yet around the call; else one with a number."""
        numbered = (f"{wanted[0]}_{n}" for n in range(2, 100))
        for name in (*wanted, *numbered):
            if name not in self.taken and not is_taken(self.source, self.scope, name):
                self.taken.add(name)
                return name
        raise ValueError(f"no free name like {wanted[0]}")

    def local(self, helpers: Helpers, *wanted: str) -> str:
        """A free name for a function beside the call, which no other call of the file has taken."""
        self.taken |= helpers.locals
        name = self.free(*wanted)
        helpers.locals.add(name)
        return name

    def account(
        self, node: cst.CSTNode, fate: Fate, why: str, source: Source | None = None
    ) -> None:
        """Say what became of a piece."""
        homes = (a.home for a in self.arguments.values() if a.node is node)
        home = next((h for h in homes if h is not None), None)
        kept = (a.kept[0].source for a in self.arguments.values() if a.node is node and a.kept)
        known = home[0] if home is not None else next(kept, self.source)
        self.accounts.append(Account(source or known, node, fate, why))


def constructions(program: Program) -> Iterator[Construction | tuple[Source, cst.CSTNode, str]]:
    """Every call that wraps with FSDP1 itself; for one that cannot be read, why."""
    seen: set[cst.CSTNode] = set()
    for events in program.sites(Wrapping):
        events = [(trace, event) for trace, event in events if event.by == "fsdp1"]
        if not events:
            continue
        at = events[0][1].at
        seen.add(at.node)
        if isinstance(at.node, cst.Call) and meaning(program, at.source, at.node.func) != WRAP:
            yield _construction(program, at.source, at.node, events)
    for reference in program.references(FSDP1):
        parent = Layout.of(reference.source).parents[reference.node]
        if isinstance(parent, cst.Call) and parent.func is reference.node and parent not in seen:
            yield _construction(program, reference.source, parent, ())
        elif isinstance(parent, cst.Arg) and _is_base(reference, parent):
            around = Layout.of(reference.source).parents[parent]
            assert isinstance(around, cst.ClassDef)
            if of_class(program, reference.source, around) is None:
                yield reference.source, parent, WHY


def _is_base(reference: Reference, arg: cst.Arg) -> bool:
    around = Layout.of(reference.source).parents[arg]
    return isinstance(around, cst.ClassDef)


def _construction(
    program: Program, source: Source, call: cst.Call, events: Sequence[tuple[Trace, Wrapping]]
) -> Construction | tuple[Source, cst.CSTNode, str]:
    found = arguments(program, source, call, events)
    if isinstance(found, str):
        return source, call, found
    given = _given_before(program, source, call, events)
    if isinstance(given, str):
        return source, call, given
    found = {**given, **found}
    module = found.pop("module", None)
    if module is None:
        return source, call, "the module comes in a dictionary"
    handed = tuple(_handed(program, source, call, events, found))
    return Construction(program, source, call, events, module.value, found, handed=handed)


def _handed(
    program: Program,
    source: Source,
    call: cst.Call,
    events: Sequence[tuple[Trace, Wrapping]],
    found: dict[str, Argument],
) -> Iterator[str]:
    for arg in call.args:
        display = display_of(program, source, arg.value, events) if arg.star == "**" else None
        through = any(one.through and one.node is arg for one in found.values())
        if through or (isinstance(display, HandedOn) and not keywords_of(display)):
            yield dotted(arg.value)


def _given_before(
    program: Program, source: Source, call: cst.Call, events: Sequence[tuple[Trace, Wrapping]]
) -> dict[str, Argument] | str:
    """The arguments that ``functools.partial`` gives to the constructor; why they are not known, if so."""
    if meaning(program, source, call.func) == FSDP1 or is_field(program, call.func):
        other = program.otherwise(source, call.func, dotted(call.func))
        return f"it is `{other}` where that can be imported" if other else {}
    one = derived(program, source, call.func)
    if one is not None:
        return {} if one.only_states else f"its class adds {', '.join(one.own)} to FSDP1"
    found = origins(program, source, call.func)
    if all(meaning(program, one.source, one.node) == FSDP1 for one in found):
        return {}
    made = found[0].node if len(found) == 1 else None
    if not isinstance(made, cst.Call) or not made.args or found[0].source is not source:
        return "what wraps the module is chosen at run time"
    partial = meaning(program, source, made.func) == "functools.partial"
    if not partial or meaning(program, source, made.args[0].value) != FSDP1:
        return "what wraps the module is chosen at run time"
    if function_scope(source, made) is not function_scope(source, call):
        return "its arguments are given in another function"
    if any(arg.keyword is None for arg in made.args[1:]):
        return "its arguments are given in another place"
    return arguments(program, source, made, events)


def _home(
    source: Source, call: cst.Call, display: Origin
) -> tuple[Source, cst.BaseExpression] | None:
    """Where a display is, unless its entries mean the same in the function of the call."""
    assert display.node is not None
    beside = display.source is source
    if beside and function_scope(source, display.node) is function_scope(source, call):
        return None
    if beside and means_the_same(source, display.node, call):
        return None
    return display.source, display.node


def arguments(
    program: Program, source: Source, call: cst.Call, events: Sequence[tuple[Trace, Wrapping]]
) -> dict[str, Argument] | str:
    """The arguments of a call by name; why they are not known, if so."""
    found: dict[str, Argument] = {}
    position = 0
    given: list[cst.Arg | cst.BaseDictElement] = [*call.args]
    while given:
        arg = given.pop(0)
        inside = not isinstance(arg, cst.Arg)
        if isinstance(arg, cst.Arg) and arg.star == "*":
            if not is_empty_handed_on(source, arg.value, events):
                return "the arguments come in a tuple"
        elif isinstance(arg, cst.StarredDictElement) or (
            isinstance(arg, cst.Arg) and arg.star == "**"
        ):
            more = _spread(program, source, call, arg, events)
            if isinstance(more, str) and isinstance(arg.value, cst.Dict) and not inside:
                given = [*arg.value.elements, *given]
                continue
            if isinstance(more, str):
                return more
            if inside and not found.keys().isdisjoint(more):
                return _IN_PLACE
            found |= more
        elif isinstance(arg, cst.DictElement):
            key = arg.key.evaluated_value if isinstance(arg.key, cst.SimpleString) else None
            if not isinstance(key, str) or key in found:
                return _IN_PLACE
            values = _values(program, source, events, key, arg.value)
            found[key] = Argument(key, arg, arg.value, values)
        else:
            name = arg.keyword.value if isinstance(arg, cst.Arg) and arg.keyword else ""
            if not name:
                name = POSITIONS[min(position, len(POSITIONS) - 1)]
                position += 1
                if meaning(program, source, arg.value) == FSDP1:
                    continue  # what functools.partial calls
            values = _values(program, source, events, name, arg.value)
            name = OLD_NAMES.get(name, name)
            found[name] = Argument(name, arg, arg.value, values)
    known = (*POSITIONS, "wrapper_cls")  # the class itself, which `enable_wrap` takes
    foreign = next((name for name in found if name not in known), "")
    return f"FSDP1 has no argument named `{foreign}`" if foreign else found


_IN_PLACE = "only a run shows which of its keywords takes the place of another"
_DIFFERENT = "the calls of the function around it give it different keywords"
_AT_EACH_CALL = frozenset(
    "backward_prefetch cpu_offload forward_prefetch ignored_modules ignored_states limit_all_gathers"
    " use_orig_params".split()
)
"""Arguments that each call can give anew: what the constructor becomes does not depend on them."""


def _of_callers(
    program: Program, source: Source, spread: Spread, events: Events
) -> dict[str, Argument] | str:
    """The keywords that only some calls of a function give for ``**name``; why they cannot be given anew, if so."""
    found: dict[str, Argument] = {}
    for one in handed_on(source, spread.value, events):
        for key, node, value in keywords_of(one) or ():
            if key in found or key not in _AT_EACH_CALL or not isinstance(one.node, cst.Call):
                return _DIFFERENT
            values = _values(program, one.source, events, key, value)
            home = (one.source, one.node)
            found[key] = Argument(key, node, value, values, spread, home)
    return found


def _through_keywords(
    source: Source, call: cst.Call, arg: Spread, events: Events
) -> dict[str, Argument] | None:
    """What every run hands on by ``**kwargs`` of the function around, where that is only what ``fully_shard`` needs not.

    Other keywords, which a run may give that nobody has seen, raise in ``fully_shard``.
    """
    name = dotted(arg.value)
    if not events or not _only_hands_on(source, call, name) or any(e.open for _, e in events):
        return None
    written = {a.keyword.value for a in call.args if a.keyword is not None}
    given = [{k: v for k, v in e.options.items() if k not in written} for _, e in events]
    names = dict.fromkeys(key for one in given for key in one)
    if any(key not in NEEDLESS for key in names):
        return None
    return {
        key: Argument(
            key, arg, arg.value, tuple(o[key] for o in given if key in o), arg, through=name
        )
        for key in names
    }


NEEDLESS = {
    "limit_all_gathers": "FSDP2 frees memory in stream order and needs no rate limiter",
    "forward_prefetch": "only affects speed; `set_modules_to_forward_prefetch` does the same by hand",
    "use_orig_params": "FSDP2 always shows the original parameters",
}
"""What ``fully_shard`` has no argument for, and why it needs none."""


def _only_hands_on(source: Source, call: cst.Call, name: str) -> bool:
    """Whether a name is the ``**kwargs`` of the function around a call, which mentions it nowhere else."""
    function = Layout.of(source).function(call)
    taken = function.params.star_kwarg if function is not None else None
    if function is None or taken is None or taken.name.value != name:
        return False
    said = [n for n in walk(function.body) if isinstance(n, cst.Name) and n.value == name]
    return len(said) == 1


def _spread(
    program: Program, source: Source, call: cst.Call, arg: Spread, events: Events
) -> dict[str, Argument] | str:
    """The arguments that come in a dictionary; why they are not known, if so."""
    display = display_of_field(program, arg.value)
    display = display or display_of(program, source, arg.value, events)
    if display is not None and keywords_of(display) is not None:
        return _of_display(program, source, call, arg, events, display)
    if display is None:
        kept = record_of(program, source, arg.value, call) or field_of(program, arg.value)
        if isinstance(kept, str):
            return kept
        if kept is not None:
            return _kept(program, events, arg, kept)
        several = _of_callers(program, source, arg, events)
        if several:
            return several
        through = _through_keywords(source, call, arg, events)
        if through is not None:
            return through
    return _unknown_keywords(program, source, arg.value)


def _of_display(
    program: Program,
    source: Source,
    call: cst.Call,
    arg: Spread,
    events: Events,
    display: Origin,
) -> dict[str, Argument] | str:
    """The arguments that a display holds, with what is added to it on its way."""
    found: dict[str, Argument] = {}
    entries, shown = keywords_of(display) or [], display.node
    assert shown is not None
    home = _home(source, call, display)
    stars = taken_over(program, display) or []
    along = additions_along(program, source, arg.value, display, events, call)
    if home is None:
        writes = writes_of(source, shown, call)
        if stars or (writes is None and along is not None):
            home, writes = (source, shown), along
    else:
        writes = along if along is not None else additions(*home) or []
    filled = _filled_beside(source, call, display) if home is None else None
    if writes is None:
        return "the dictionary of its keywords is changed after it was made"
    keys = {key for key, _, _ in entries} | {one.key for one in (*stars, *writes)}
    if home is not None and is_read_by_key(program, display, keys):
        return "entries of the dictionary of its keywords are read elsewhere, too"
    for one in stars:
        values = _values(program, display.source, events, one.key, one.value)
        found[one.key] = Argument(one.key, one.node, one.value, values, arg, home, added=one)
    for name, node, value in entries:
        values = _values(program, display.source, events, name, value)
        before = found.get(name)
        found[name] = Argument(name, node, value, values, arg, home)
        if before is not None:
            found[name].before = (before,)
    for one in writes:
        values = _values(program, display.source, events, one.key, one.value)
        before = found.get(one.key)
        if home is not None and before is not None and _is_nothing_else(source, before, one):
            before.voids += (one,)
            continue
        found[one.key] = Argument(one.key, one.node, one.value, values, arg, home)
        found[one.key].entries = _written_into(display.source, one.key, entries, writes)
        if home is not None:
            found[one.key].add(one, before)
        elif filled is not None and one.sometimes:
            found[one.key].home, found[one.key].added = filled, one
            found[one.key].beside = True
        elif filled is not None:
            found[one.key].always = one.statement
        elif one.sometimes:
            said = f'{dotted(arg.value)}.get("{one.key}")'
            found[one.key].asked(said, only=before is None)
    return found


def _is_nothing_else(source: Source, before: Argument, write: Write) -> bool:
    """Whether a statement writes None where the one that writes an entry does not run: in the other branch."""
    if before.added is None or dotted(write.value) != "None":
        return False
    return in_other_branches(source, before.added.statement, write.statement)


def _unknown_keywords(program: Program, source: Source, node: cst.BaseExpression) -> str:
    """Why it is not known which keywords a call gets from an expression."""
    ends_here = any(one.node is node for one in origins(program, source, node))
    if ends_here and isinstance(node, cst.Call | cst.Subscript) and "\n" not in source.code(node):
        return f"only a run shows which keywords `{source.code(node)}` holds"
    return "the keywords come in a dictionary that is built elsewhere"


def _written_into(
    source: Source, key: str, entries: Entries, writes: Sequence[Write]
) -> tuple[Origin, ...]:
    """All that an entry of a dictionary can be; None where no run surely writes it."""
    first = [value for name, _, value in entries if name == key]
    added = [one for one in writes if one.key == key]
    found = [*first, *(one.value for one in added)]
    if not first and all(one.sometimes for one in added):
        found.append(cst.Name("None"))
    return tuple(Origin(source, one) for one in found)


def _filled_beside(
    source: Source, call: cst.Call, display: Origin
) -> tuple[Source, cst.BaseExpression] | None:
    """The dictionary beside a call that statements fill on condition, and that is there for the call alone."""
    made = display.node
    if made is None or display.source is not source:
        return None
    written = writes_of(source, made, call) or []
    if not any(one.sometimes for one in written) or not additions(source, made, call):
        return None
    if any(isinstance(one.statement, cst.Expr) and not one.sometimes for one in written):
        return None
    return source, made


def _kept(program: Program, events: Events, spread: Spread, entries: Field) -> dict[str, Argument]:
    """The entries of a field, each as the expression that asks for it."""
    found: dict[str, Argument] = {}
    for key, one in entries.items():
        said = one.said or f'{dotted(spread.value)}["{key}"]'
        first = one.kept[0] if len(one.kept) == 1 else None
        values: tuple[Value, ...] = ()
        if first is not None and first.node is not None:
            values = _values(program, first.source, events, key, first.node)
        found[key] = Argument(key, one.node, cst.parse_expression(said), values, spread, said=said)
        found[key].kept, found[key].is_read = one.kept, one.is_read
    return found


def _values(
    program: Program,
    source: Source,
    events: Sequence[tuple[Trace, Wrapping]],
    name: str,
    node: cst.BaseExpression,
) -> tuple[Value, ...]:
    """What an argument can be, as far as the runs and the text agree on it; empty where that is unknown."""
    found: dict[Value, None] = {}
    for _, event in events:
        value = event.options.get(name)
        if value is None:
            continue
        for one in options(value):
            found[one] = None
    if isinstance(node, cst.Attribute) and any(_is_setting(node, one) for one in found):
        return ()
    if any(not _is_known(program, one, tuple(found)) for one in origins(program, source, node)):
        return ()
    return tuple(found) or _constant(node)


def _is_known(program: Program, origin: Origin, values: tuple[Value, ...]) -> bool:
    """Whether the runs have met what an expression can be.

    They go with the settings as they are at first: one side of a choice, the default of a field. A command
    line or a file may set another.
    """
    node = origin.node
    if node is None or not values:
        return True  # a parameter: its callers say
    if origin.is_none:
        return any(is_none(one) for one in values)
    if isinstance(node, cst.Call | cst.Lambda | cst.Dict | cst.Set | cst.List | cst.Tuple):
        return any(not is_none(one) for one in values)
    if isinstance(node, cst.Name | cst.Attribute) and meaning(program, origin.source, node):
        return any(not is_none(one) for one in values)
    constants = [one for one in values if isinstance(one, Constant | External)]
    said = _constant(node) or ((...,) if isinstance(node, cst.BaseNumber | cst.BaseString) else ())
    return bool(said) or not constants


def _is_setting(node: cst.Attribute, value: Value) -> bool:
    """Whether a constant is what a field holds at first: a command line or a file may set another."""
    if isinstance(value, External):
        return value.name.rpartition(".")[2] != node.attr.value
    return isinstance(value, Constant)


_CONSTANTS = {"True": True, "False": False, "None": None}


def _constant(node: cst.BaseExpression) -> tuple[Value, ...]:
    text = dotted(node)
    return (Constant(_CONSTANTS[text]),) if text in _CONSTANTS else ()


def sources_of(site: Construction, argument: Argument) -> list[Origin] | None:
    """All expressions that an argument can get its value from; None when some are not known.

    What the text does not say (a parameter) the trace may know.
    """
    if argument.kept:
        every = [
            one
            for kept in argument.kept
            for one in (origins(site.program, kept.source, kept.node) if kept.node else [kept])
        ]
        return every if all(one.node is not None for one in every) else None
    if argument.said:
        return None
    found = origins(site.program, site.source, argument.value)
    known = [one for one in found if one.node is not None]
    if len(known) == len(found):
        return known
    if not argument.values:
        return None
    for value in argument.values:
        at = born(value)
        if is_none(value):
            known.append(Origin(site.source, cst.Name("None")))
        elif at is None or not isinstance(at.node, cst.BaseExpression):
            return None
        else:
            known.append(Origin(at.source, at.node))
    return list({one.node: one for one in known}.values())
