"""Where ranks must meet, and the tests of the rank that keep some of them away."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    WHOLE,
    Backward,
    Bound,
    Called,
    Class,
    Clipped,
    Collective,
    Either,
    Event,
    Exited,
    External,
    Forward,
    Function,
    Guard,
    Guards,
    Instance,
    Layout,
    Literal,
    MainRank,
    Mesh,
    Module,
    Not,
    Parameters,
    Part,
    Site,
    StateDict,
    Trace,
    Value,
    Wrapping,
    call_that_made,
    is_choice,
    once,
    options,
    rank_dependent,
    root,
    unwrapped,
    walk,
)

from .loops import loops_at
from .norms import is_partial, norms
from .origins import is_of_shards
from .parts import holding_shards
from .ranks import decides, without_group
from .shared import is_ordinary, sharded, shards

_READING = (
    "builtins.",
    "copy.",
    "dataclasses.",
    "json.",
    "pickle.",
    "pprint.",
    "torch.save",
    "yaml.",
)


@dataclass(frozen=True, slots=True)
class Meeting:
    """An event to which all ranks must come: what kind it is, and how the reader would call it."""

    event: Event
    kind: str
    said: str


@once
def meetings(trace: Trace) -> tuple[Meeting, ...]:
    """All events to which every rank must come, in order."""
    found: list[Meeting] = []
    for collective in trace.of(Collective):
        if not _local(trace, collective):
            name = collective.name.rpartition(".")[2]
            norm = None if collective.about is None else norms(trace).get(collective.about)
            old = norm is not None and not norm.infinite
            of = " (before torch 2.10 each rank holds a part of this norm)" if old else ""
            found.append(Meeting(collective, name, f"`{name}`{of}"))
    for called in trace.calls(*_OVER_A_GROUP):
        name = called.name.rpartition(".")[2]
        group = called.argument(_OVER_A_GROUP[called.name], _keyword(called))
        if group is not None and _is_of_a_mesh(group):
            said = f"`{name}` of a group of the mesh"
            found.append(Meeting(called, f"{name} {group.words()}", said))
    for forward in trace.of(Forward):
        if forward.how == "call" and sharded(trace, forward, forward.module, itself=True):
            said = f"the forward of the sharded `{forward.module.words()}`"
            found.append(Meeting(forward, "forward", said))
    for clipped in trace.of(Clipped):
        if any(holding_shards(trace, clipped, p.of) is not None for p in clipped.parameters):
            found.append(Meeting(clipped, "clip_grad_norm_", "the norm over all shards"))
    for backward in trace.of(Backward):
        if backward.guards.clauses and is_of_shards(trace, backward):
            found.append(Meeting(backward, "backward", "the backward of a sharded model"))
    return tuple(sorted(found, key=lambda m: m.event.order))


_FUNCTIONAL = "torch.distributed._functional_collectives."
_TITAN = "torchtitan.distributed.utils."
_OVER_A_GROUP = {
    "torch.distributed.all_reduce": 2,
    "torch.distributed.barrier": 0,
    "torch.distributed.broadcast": 2,
    "torch.distributed.all_gather_into_tensor": 2,
    f"{_FUNCTIONAL}all_reduce": 2,
    f"{_FUNCTIONAL}broadcast": 2,
    f"{_FUNCTIONAL}all_gather_tensor": 2,
    f"{_FUNCTIONAL}reduce_scatter_tensor": 3,
    f"{_FUNCTIONAL}all_to_all_single": 3,
    f"{_TITAN}dist_max": 1,
    f"{_TITAN}dist_mean": 1,
    f"{_TITAN}dist_sum": 1,
}
"""Collectives to which the ranks of one group come, with the position of their ``group``."""


def _keyword(called: Called) -> str:
    return "mesh" if called.name.startswith(_TITAN) else "group"


def _is_of_a_mesh(group: Value) -> bool:
    """Whether a group is that of a dimension of a mesh: every rank is in one of those, beside others."""
    return all(isinstance(one, Mesh) or is_group_of_a_mesh(one) for one in options(group))


def is_group_of_a_mesh(group: Value) -> bool:
    """Whether a mesh was asked for a group of its own."""
    return (
        isinstance(group, Part)
        and isinstance(group.owner, Mesh)
        and group.operation == "call"
        and group.operands[:1] == (".get_group",)
    )


def _local(trace: Trace, collective: Collective) -> bool:
    """Whether a call may need no other rank: a state dict where nothing is sharded, or ``full_tensor()``.

    That of a norm that torch has reduced, or where the script asks first whether this is a ``DTensor`` at all, and it
    is not or nobody knows the answer.
    """
    about = collective.about
    if collective.name.startswith(_STATES) and _all_shard_elsewhere(trace, collective):
        return True  # whole tensors are taken as they are (``_iterate_state_dict`` in torch)
    if not collective.name.endswith("full_tensor") or about is None:
        return False
    norm = norms(trace).get(about)
    whole = root(about)
    asked = [g for g in collective.guards if asks_for_dtensor(g.test)]
    if any(not g.taken for g in asked):
        return True
    if norm is not None:
        return not is_partial(trace, norm)
    if isinstance(whole, External) and whole.name.endswith(("clip_grad_norm_", "get_total_norm")):
        return True
    if isinstance(whole, Parameters | StateDict) and sharded(trace, collective, whole.of):
        return False
    return bool(asked) and not _asks_rank_inside(collective, asked)


_STATES = "torch.distributed.checkpoint.state_dict.get_"


def _all_shard_elsewhere(trace: Trace, collective: Collective) -> bool:
    """Whether all that the script shards, it shards in branches that exclude this one, by whatever it does so.

    A model that comes from unseen code which is given one may be sharded there.
    """
    found: list[Event] = [one.event for one in shards(trace)]
    found += (one for one in trace.of(Wrapping) if one.by == "fsdp1")
    found += trace.calls("torch.distributed.tensor.parallel.parallelize_module")
    if not found or not all(one.guards.excludes(collective.guards) for one in found):
        return False
    about = options(collective.about) if collective.about is not None else ()
    made = [call_that_made(trace, one) for one in about if not isinstance(unwrapped(one), Module)]
    return not any(
        call is not None
        and any(
            isinstance(unwrapped(v), Module) for v in (*call.arguments, *call.keywords.values())
        )
        for call in made
    )


def _asks_rank_inside(collective: Collective, asked: list[Guard]) -> bool:
    """Whether a test for a ``DTensor`` has one of the rank inside it: then the other ranks hold a ``DTensor`` too."""
    ranks = [g.site for c in collective.guards.clauses if len(c) == 1 for g in c if decides(g.test)]
    return any(
        outer is not None
        and inner is not None
        and inner.source is outer.source
        and inner.statement is not outer.statement
        and _holds(inner, outer.statement)
        for outer in (g.site for g in asked)
        for inner in ranks
    )


def asks_for_dtensor(test: Value) -> bool:
    """Whether a test asks if something is a ``DTensor`` (or has a method that only those have)."""
    if not isinstance(test, Part) or not test.operation:
        return False
    if test.key == (WHOLE,):  # of what may be one of several
        asked = [one for one in options(test.owner) if not isinstance(one, Literal)]
        return bool(asked) and all(map(asks_for_dtensor, asked))
    how, what = test.operation, test.operands
    if how == "isinstance":
        return any(isinstance(c, External) and c.name.endswith(".DTensor") for c in what)
    return bool(how == "hasattr")


def rank_guards(event: Event) -> Iterator[Guard]:
    """The tests of the rank under which an event is, when they surely keep some ranks away.

    A test that only one process passes because it is alone (``world_size == 1``) keeps nobody away, one that it does not
    pass says nothing against it. What an ``assert`` or an early ``return`` lets pass is no such test: there may be several.
    """
    survived = event.guards.survived
    if any(
        _about_world(g) and not _of_one(~g) and frozenset((g,)) not in survived
        for g in event.guards
    ):
        return
    every = ([g for g in clause if not _no_group(g)] for clause in event.guards.clauses)
    found = [asked[0] for asked in every if len(asked) == 1 and parts(event, asked[0])]
    yield from sorted(found, key=Guard.words)  # clauses have no order, findings name the first


def parts(event: Event, guard: Guard) -> bool:
    """Whether a test of the rank parts the ranks that come to an event: those of one node, or the first of each, may be
    just the ranks of a group.
    """
    return decides(guard.test) and (not isinstance(event, Called) or _is_first(guard.test))


def _is_first(test: Value) -> bool:
    """Whether a test asks if this is rank 0 of all."""
    while isinstance(test, Not):
        test = test.test
    return isinstance(test, MainRank) and test.scope == "global"


def _no_group(guard: Guard) -> bool:
    """``not dist.is_initialized()``, said beside a test of the rank; or that no launcher has set the rank."""
    test = guard.test
    if _asks_launcher(test):
        return not guard.taken
    if isinstance(test, Part) and test.key is not None and _is_from_launcher(test.owner):
        how, *other = test.key if isinstance(test.key, tuple) else ("",)
        return how == "is" and guard.taken and all(map(_is_none, other))
    asked = root(test)
    if not isinstance(asked, External):
        return False
    absent = asked.name in ("torch.distributed.is_initialized", "torch.distributed.is_available")
    return (absent and not guard.taken) or (asked.name == "not distributed" and guard.taken)


def _asks_launcher(test: Value) -> bool:
    """``"RANK" in os.environ``: whether a launcher has started this process."""
    if not isinstance(test, Part) or not isinstance(test.key, tuple) or test.key[0] != "in":
        return False
    name, where = test.owner, test.key[1]
    environment = isinstance(where, External) and where.name == "os.environ"
    return environment and isinstance(name, Literal) and name.value in _LAUNCHED


_LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID")


def _is_from_launcher(value: Value | None) -> bool:
    """``os.environ.get("WORLD_SIZE")``."""
    return (
        isinstance(value, Part)
        and isinstance(value.owner, External)
        and value.owner.name == "os.environ"
        and value.key in [f"[{name!r}]" for name in _LAUNCHED]
    )


def _is_none(value: object) -> bool:
    return isinstance(value, Literal) and value.value is None


def _about_world(guard: Guard) -> bool:
    asked = root(guard.test)
    return isinstance(asked, External) and asked.name == "torch.distributed.get_world_size"


def alone(guards: Guards) -> bool:
    """Whether something happens only where one process runs: under ``world_size == 1``, or without a group."""
    return any(all(_of_one(g) or _no_group(g) for g in clause) for clause in guards.clauses)


def deciding(trace: Trace, guards: Guards, known: Collection[object] = ()) -> Iterator[Guard]:
    """The tests of several alternatives that decide alone on some path: with `if skip and isnan(loss): continue` the
    loss does where the run skips, with `if done or late(): break` the clock does where it is not done.

    Those that are ``known`` already are left out: most are over many events, and each path is a conjunction to keep.
    """
    for clause in guards.clauses:
        for guard in clause if len(clause) > 1 else ():
            others = [one for one in clause if one is not guard]
            if (
                guard in known
                or is_choice(guard.test)
                or any(rank_dependent(one.test) for one in others)
            ):
                continue
            path = guards.also(frozenset(frozenset((~one,)) for one in others))
            if not (path.impossible or alone(path) or without_group(trace, path)):
                yield guard


def _of_one(guard: Guard) -> bool:
    test, taken = guard.test, guard.taken
    while isinstance(test, Not):
        test, taken = test.test, not taken
    if not isinstance(test, Part) or len(test.operands) != 1:
        return False
    how, number = test.operation, test.operands[0]
    asked = isinstance(number, Literal) and _is_world_size(test.owner)
    one = (("==", 1), ("<", 2)) if taken else (("!=", 1), (">", 1))
    return asked and (how, number.value) in one


def _is_world_size(value: Value | None) -> bool:
    """Whether a value is what ``get_world_size()`` returns, where there are process groups."""
    if isinstance(value, Either):
        return any(_is_world_size(one) for one in options(value))
    asked = root(value) if value is not None else None
    return isinstance(asked, External) and asked.name == "torch.distributed.get_world_size"


def has_counterpart(trace: Trace, meeting: Meeting, guard: Guard) -> bool:
    """Whether the ranks on the other side of a test come to a meeting of the same kind, or may do so: where
    code that cannot be followed got hold of functions or objects of the script.
    """
    if any(_other_side(c.guards, guard) for c in _handing_over(trace)):
        return True
    return any(
        other.kind == meeting.kind
        and (
            any(
                _rounds(meeting.event, guard) == _rounds(other.event, one)
                for one in _other_side(other.event.guards, guard)
            )
            or _instead(trace, meeting, other, guard)
        )
        for other in meetings(trace)
    )


def _rounds(event: Event, guard: Guard) -> list[cst.For]:
    """The `for` loops that repeat an event together with the test above it: how often its ranks come.

    How often a `while` goes round is decided by what the ranks send each other, and loops below the test are
    each side's own.
    """
    if guard.site is None:
        return []
    at, sites = under(event, guard), [guard.site]
    for call in event.moment.calls:
        if call.node is at.node:
            break
        sites.append(call)
    return [loop for site in sites for loop in loops_at(site) if isinstance(loop, cst.For)]


def _instead(trace: Trace, meeting: Meeting, other: Meeting, guard: Guard) -> bool:
    """Whether those who come to ``meeting`` leave after it, and the others come to ``other`` further on."""
    return any(
        meeting.event.order < left.order < other.event.order
        and meeting.event.guards.implies(left.rank)
        and other.event.guards.units.get(guard.test) != guard
        and _leaves_out(left, other.event)
        for left in _rank_exits(trace)
    )


@once
def _rank_exits(trace: Trace) -> tuple[Exited, ...]:
    """The places that a rank leaves because of which rank it is."""
    return tuple(
        left for left in trace.of(Exited) if any(rank_dependent(g.test) for g in left.rank)
    )


@once
def _handing_over(trace: Trace) -> tuple[Called, ...]:
    """The calls under a test of the rank that are not followed and may call the script back."""
    known: dict[Guards, bool] = {}  # most calls of a function stand under the same conditions
    found = []
    for called in trace.of(Called):
        kept = known.get(called.guards)
        if kept is None:
            every = (guard for clause in _choosing(called.guards) for guard in clause)
            kept = known[called.guards] = any(decides(guard.test) for guard in every)
        if kept and _hands_over(called):
            found.append(called)
    return tuple(found)


def _leaves_out(left: Exited, event: Event) -> bool:
    """Whether a path that leaves a function or a loop passes over an event: a `return` of a helper leaves only that."""
    if left.how not in ("return", "break", "continue"):
        return True
    around = [site.node for site in left.moment.calls]
    return [site.node for site in event.moment.calls][: len(around)] == around


def _hands_over(called: Called) -> bool:
    """Whether a call that is not followed gets something that can call the script back.

    What reads an object (`vars(config)`, `json.dump`) calls none of its methods that train.
    """
    given = (*called.arguments, *called.keywords.values())
    if any(isinstance(one, Bound | Function) for one in given):
        return True
    return not called.name.startswith(_READING) and any(
        isinstance(one, Instance) and not isinstance(one, Module) and isinstance(one.cls, Class)
        for one in given
    )


def _other_side(guards: Guards, guard: Guard) -> list[Guard]:
    """The tests of the rank among conditions that come out otherwise."""
    return [
        one
        for clause in _choosing(guards)
        for one in clause
        if decides(one.test) and one.taken is not guard.taken
    ]


def _choosing(guards: Guards) -> Iterator[frozenset[Guard]]:
    """The conditions that keep anybody away in a run that goes well: not what is left of a test before a `raise`."""
    for clause in guards.clauses - guards.survived:
        if not any(map(is_ordinary, clause)):
            yield clause


def passes_without(guards: Guards, left: Guards, guard: Guard) -> bool:
    """Whether ``guards`` can hold where all of ``left`` holds but the test of the rank."""
    others = Guards(frozenset(c for c in left.clauses if guard not in c))
    beside = others.also(frozenset((frozenset((~guard,)),)))
    return not guards.excludes(beside)


def misses(event: Event, left: Exited) -> bool:
    """Whether those who have left never come to ``event``: it is excluded, or in the loop they broke out of."""
    if left.how in ("return", "break", "continue") and not _same_call(event, left):
        return False
    if left.how in ("return", "continue") and _is_next_round(event, left):
        return False
    if event.guards.excludes(left.rank):
        return True
    loop, at = _loop_around(left.at), beside(event, left)
    if loop is None or at.source is not left.at.source:
        return False
    if left.how == "return":  # what stands below the loop does not say that no round has returned
        return not _runs_anyway(at, left.at)
    return left.how == "break" and _holds(at, loop)


def _runs_anyway(at: Site, left: Site) -> bool:
    """Whether a place is reached after a `return` too: in a `finally` around it, or in what walks a generator."""
    for around in Layout.of(left.source).ancestors(left.node):
        if isinstance(around, cst.Try | cst.TryStar) and around.finalbody is not None:
            if _holds(at, around.finalbody):
                return True
        if isinstance(around, cst.FunctionDef):
            return any(isinstance(one, cst.Yield) for one in walk(around.body, into=False))
    return False


def _is_next_round(event: Event, left: Exited) -> bool:
    """Whether an event is above the place that was left, so that it happens in another call or round: to that
    one those who have left come too.
    """
    at = beside(event, left)
    if at.source is not left.at.source:
        return False
    above = (at.range.line, at.range.column) < (left.at.range.line, left.at.range.column)
    loop = _loop_around(left.at)
    if left.how == "continue":
        return above and loop is not None and _holds(at, loop)
    return above and (loop is None or not _holds(at, loop))


def _same_call(event: Event, left: Event) -> bool:
    """Whether the function that was left is one of those in which ``event`` happens."""
    return len(left.calls) <= len(event.calls) and all(
        mine.node is theirs.node for mine, theirs in zip(left.calls, event.calls, strict=False)
    )


def beside(event: Event, other: Event) -> Site:
    """The event, or the call that led to it, in the innermost function that ``other`` ran in too."""
    path = (*event.moment.calls, event.at)
    depth = 0
    while depth < min(len(other.moment.calls), len(path) - 1) and (
        other.moment.calls[depth].node is path[depth].node
    ):
        depth += 1
    return path[depth]


def _loop_around(site: Site) -> cst.CSTNode | None:
    """The innermost loop that a ``break`` leaves."""
    for around in Layout.of(site.source).ancestors(site.node):
        if isinstance(around, cst.For | cst.While):
            return around
        if isinstance(around, cst.FunctionDef):
            return None
    return None


def inside_test(event: Event, guard: Guard) -> bool:
    """Whether an event, or the call that led to it, is inside the statement that asks a test."""
    asked = guard.site
    if asked is None:
        return False
    at = under(event, guard)
    return at.source is asked.source and _holds(at, asked.statement)


def stands_under(trace: Trace, event: Event, guard: Guard) -> bool:
    """Whether a test of the rank decides about an event: around it, or by a value that a later test asks."""
    return inside_test(event, guard) or _by_a_value(trace, event, guard)


def _by_a_value(trace: Trace, event: Event, guard: Guard) -> bool:
    """Whether a test of the rank set a value that decides further on: ``path = newest() if rank == 0 else None`` and then
    ``if path is not None``. No rank has left by that test, and nothing ends the run by it.
    """
    if frozenset((guard,)) in event.guards.survived:
        return False
    return not any(
        left.order < event.order and one.test is guard.test and _leaves_out(left, event)
        for left in _rank_exits(trace)
        for one in left.rank
    )


@once
def one_sided(trace: Trace) -> tuple[tuple[Meeting, Guard, Site], ...]:
    """The meetings to which only some ranks surely come, the tests of the rank that say so, and what is under these."""
    return tuple(
        (meeting, guard, under(meeting.event, guard))
        for meeting in meetings(trace)
        for guard in rank_guards(meeting.event)
        if stands_under(trace, meeting.event, guard) and not has_counterpart(trace, meeting, guard)
    )


def meets_inside(meeting: Meeting, at: Site) -> tuple[tuple[Event, str], ...]:
    """Where the ranks meet, as a reason, when that is inside of what a finding is at."""
    return ((meeting.event, "the ranks meet here"),) if at is not meeting.event.at else ()


def under(event: Event, guard: Guard) -> Site:
    """The call, or the event itself, that is directly under a guard's test."""
    path = (*event.moment.calls, event.at)
    asked = guard.site
    if asked is None:
        return event.at
    for depth in range(len(event.moment.inside), 0, -1):
        function = event.moment.inside[depth - 1]
        if function.scope.source is asked.source and _holds(asked, function.node):
            return path[min(depth, len(path) - 1)]
    if path[0].source is asked.source and _holds(path[0], asked.statement):
        return path[0]
    return next((one for one in reversed(path) if _is_tested(one)), event.at)


def _is_tested(site: Site) -> bool:
    """Whether a place is under a test in its function."""
    for around in Layout.of(site.source).ancestors(site.node):
        if isinstance(around, cst.If | cst.IfExp | cst.While):
            return True
        if isinstance(around, cst.FunctionDef):
            return False
    return False


def _holds(site: Site, node: cst.CSTNode) -> bool:
    around = site.source.range(node)
    inner = site.range
    return (around.line, around.column) <= (inner.line, inner.column) and (
        inner.end_line,
        inner.end_column,
    ) <= (around.end_line, around.end_column)
