"""Questions about checkpoints: where they go, what was put into them, who comes to write them."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Arguments,
    Called,
    Container,
    Either,
    Event,
    External,
    Fix,
    Guard,
    Guards,
    Instance,
    Layout,
    Literal,
    Loaded,
    Optimizer,
    Part,
    Restored,
    Round,
    Saved,
    StateDict,
    StateDictTaken,
    Stepped,
    Trace,
    Value,
    options,
    parts_along,
    rank_dependent,
    root,
)

from ..._common.meetings import asks_for_dtensor
from ..._common.shared import DCP, is_none, state_shard, wrapped_by

OPTIMIZER_GETTERS = (
    f"{DCP}state_dict.get_optimizer_state_dict",
    f"{DCP}state_dict.get_state_dict",
)

_PATH_MAKERS = (
    *("os.path.", "pathlib.", "os.fspath", "os.getcwd", "tempfile.mkdtemp"),
    *("parse_args", "parse_known_args", "argparse.", "os.environ", "os.getenv", "sys.argv"),
)
"""How paths are made, and where a program gets them from: none of these gives an open file or a writer."""


def written(trace: Trace, saved: Saved) -> Iterator[Part]:
    """The tensors in the lists and dictionaries that are saved; not those that the script knows to be plain."""
    todo, seen = [saved.what], set[Value]()
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        if isinstance(one, Container):
            for stored in trace.memory.fields.get(one, {}).values():
                todo += [v for guards, v in stored.read(saved.guards) if not _plain(guards)]
        elif isinstance(one, Either):
            todo += [v for guards, v in one.options if not _plain(guards)]
        elif isinstance(one, Part):
            yield one


def is_entry(key: object) -> bool:
    """Whether a key leads from a state dict or parameters to one of their tensors."""
    return isinstance(key, Round) or key in _ELEMENT or str(key)[:2] in ("['", '["')


_ELEMENT = (".items()", ".values()", "[1]")


def _plain(guards: Guards) -> bool:
    """Whether something is meant where the script has asked for a ``DTensor`` and it was none."""
    return any(asks_for_dtensor(g.test) and not g.taken for g in guards)


def is_path(value: Value) -> bool:
    """Whether a value is surely a text or a path: of the script, its arguments or the environment, or made of one."""
    if any(one.operation == "format" for one in parts_along(value)):
        return True
    made = root(value)
    if isinstance(made, Literal):
        return isinstance(made.value, str)
    return isinstance(made, External) and made.name.startswith(_PATH_MAKERS)


def surely_empty(trace: Trace, value: Value, event: Event) -> bool:
    """Whether a value is a dictionary of the script into which nobody has put anything before `event`."""
    if not isinstance(value, Container) or value.kind != "dict" or value.open:
        return False
    if any(e.order < event.order for e in trace.escapes(value)):
        return False
    return not any(value in holders for holders in trace.memory.held_by.values())


_OF_ONE_PROCESS = ("tempfile.", "uuid.", "os.getpid", "random.", "time.", "datetime.", "socket.")
_OF_ONE_RANK = re.compile(r"rank|main|master|node|host")
"""What names of arguments say that are not the same on all ranks."""
_COUNTING = ("<", "<=", ">", ">=", "%")


def same_everywhere(value: Value | None) -> bool:
    """Whether a value (a path) is surely the same on all ranks."""
    seen = value
    while isinstance(seen, Part):
        if not all(map(same_everywhere, seen.made_of[1:])):
            return False
        seen = seen.owner
    if isinstance(seen, Either):
        return all(same_everywhere(v) for _, v in seen.options)
    if isinstance(seen, External):
        return not seen.name.startswith(_OF_ONE_PROCESS)
    return isinstance(seen, Literal)


def gathering(trace: Trace, state: StateDict) -> StateDictTaken | None:
    """The event at which all ranks gather the full state dict of a model that is spread over them."""
    if not state.full:
        return None
    for taken in trace.of(StateDictTaken):
        if taken.state is state:
            spread = any(wrapped_by(of, "ddp", "fsdp1") for of in options(state.of))
            return taken if spread or state_shard(trace, taken, state) is not None else None
    return None


def all_come(gathered: Event, event: Event) -> bool:
    """Whether every rank that is at one event surely comes to a later one.

    Neither may be under a test of the rank. Between them there may be only tests that count steps or ask for a
    switch of the program, and no function that is decorated: a decorator may keep ranks away.
    """
    if any(rank_dependent(guard.test) for clause in event.guards.clauses for guard in clause):
        return False
    for clause in event.guards.since(gathered.guards):
        if not all(_counts(guard.test) or _is_switch(guard.test) for guard in clause):
            return False
    inner = [f for f in event.moment.inside if f not in gathered.moment.inside]
    return not any(function.decorators for function in inner) and not _decided(gathered, event)


def _decided(gathered: Event, event: Event) -> bool:
    """Whether a test between the two has come out one way in this run only: a rank that falls back to 0."""
    asked = {g.site.statement for c in event.guards.clauses for g in c if g.site is not None}
    shared = set(Layout.of(gathered.at.source).ancestors(gathered.at.node))
    around = Layout.of(event.at.source).ancestors(event.at.node)
    return any(isinstance(a, cst.If) and a not in shared and a not in asked for a in around)


def _is_switch(test: Value) -> bool:
    """Whether a test is an argument of the program that all ranks are started with: ``args.export``."""
    if (
        not isinstance(test, Part)
        or not isinstance(test.owner, Part)
        or _OF_ONE_RANK.search(str(test.key))
    ):
        return False
    parsed = test.owner.owner
    return isinstance(parsed, External) and parsed.name.endswith(("parse_args", "parse_known_args"))


def _counts(test: Value) -> bool:
    """Whether a test is about a number or about one round of a loop."""
    return any(isinstance(p.key, Round) or p.operation in _COUNTING for p in parts_along(test))


def possible_at_first(guards: Guards) -> bool:
    """Whether what must hold surely can hold in the first round of the loops around.

    Tests of numbers are taken to fail there, but for ``step % n == 0`` of a loop that begins at zero.
    """
    asked = [clause for clause in guards.clauses if any(_counts(guard.test) for guard in clause)]
    return all(len(clause) == 1 and all(map(_holds_at_zero, clause)) for clause in asked)


def _holds_at_zero(guard: Guard) -> bool:
    """Whether a test asks whether the number of a round, which begins at zero, is a multiple of something."""
    test: Value | None = guard.test
    if isinstance(test, Part) and test.operation == "==":
        against = test.operands[0]
        if not guard.taken or not isinstance(against, Literal) or against.value != 0:
            return False
        test = test.owner
    elif guard.taken:
        return False
    if not isinstance(test, Part) or test.operation != "%":
        return False
    return _is_zero(test.owner)


def _is_zero(number: Value) -> bool:
    """Whether a number is that of the first round of ``range(n)`` or ``enumerate(x)``."""
    if isinstance(number, Part) and number.key == ("index",):
        return isinstance(number.owner.key, Round) and number.owner.key.number == 0
    if not isinstance(number, Part) or not isinstance(number.key, Round) or number.key.number:
        return False
    made = number.owner
    if not isinstance(made.owner, External) or made.owner.name != "builtins.range":
        return False
    given = made.operands
    return len(given) == 1 or (isinstance(given[0], Literal) and given[0].value == 0)


def switch(trace: Trace, given: Value, name: str) -> bool | None:
    """A switch of ``StateDictOptions``; off where no options are given, None when it is not known."""
    if isinstance(given, Literal):
        return False if given.value is None else None
    set_later = trace.memory.fields.get(given, {})
    value = given.part(f".{name}")
    if not isinstance(given, Instance) or f".{name}" in set_later:
        return None
    return value.value if isinstance(value, Literal) and isinstance(value.value, bool) else None


def switched_on(trace: Trace, given: Value, keyword: str, users: Sequence[str]) -> Fix | None:
    """``StateDictOptions`` with one more switch on, when only these functions use them."""
    if any(c.keywords.get("options") is given and c.name not in users for c in trace.of(Called)):
        return None
    born = given.born if isinstance(given, Instance) else None
    if born is None or not isinstance(born.node, cst.Call):
        return None
    edit = Arguments(born.source, born.node).set(keyword, "True")
    return Fix(f"set `{keyword}=True`", (edit,), "safe")


def counts_steps(optimizer: Value) -> bool:
    """Whether an optimizer of PyTorch makes updates that depend on how many it made: those of Adam."""
    if not isinstance(optimizer, Optimizer) or not isinstance(optimizer.cls, External):
        return False
    home, _, name = optimizer.cls.name.rpartition(".")
    return home == "torch.optim" and name in ("Adam", "AdamW", "Adamax", "NAdam", "RAdam")


def origins(trace: Trace, value: Value) -> Iterator[StateDict]:
    """The state dicts that a value surely is: handed on as they are, or through a file of the same run."""
    for one in options(value):
        keys: list[Hashable] = []
        while isinstance(one, Part) and not any(e.result is one for e in trace.of(Loaded)):
            keys.append(one.key)
            one = one.owner
        if isinstance(one, StateDict) and not keys:
            yield one
        for loaded in (e for e in trace.of(Loaded) if e.result is one):
            state = _written(trace, loaded, keys)
            if state is not None:
                yield state


def _written(trace: Trace, loaded: Loaded, keys: Sequence[Hashable]) -> StateDict | None:
    """What the script itself wrote last at the path of a load, below some keys."""
    for saved in trace.before(loaded, Saved):
        if saved.path is not None and saved.path is loaded.path:
            what: Value | None = saved.what
            for key in reversed(keys):
                what = trace.memory.read(what, key, saved.guards) if what is not None else None
            return what if isinstance(what, StateDict) else None
    return None


def untouched(trace: Trace, taken: StateDictTaken) -> bool:
    """Whether an optimizer surely is as it was built when its state is taken for the first time."""
    optimizer = taken.state.of
    if any(escaped.order < taken.order for escaped in trace.escapes(optimizer)):
        return False
    if any(
        trace.concerns(event, optimizer)
        for kind in (Stepped, Restored)
        for event in (*trace.before(taken, kind), *trace.beside(taken, kind))
    ):
        return False
    return not any(
        other.state.of is optimizer and other.state.via in OPTIMIZER_GETTERS
        for other in trace.before(taken, StateDictTaken)
    )


def has_own_group(trace: Trace, saved: Saved) -> bool:
    """Whether a save may name a process group."""
    return any(
        called.open or not is_none(called.keywords.get("process_group"))
        for called in trace.calls(saved.via)
        if called.at.node is saved.at.node
    )
