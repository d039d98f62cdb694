"""From the calls of FSDP1's constructor to the steps that rewrite them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import libcst as cst

from fsdp2lint.api import (
    Account,
    Edit,
    Kept,
    Layout,
    Left,
    Program,
    Replace,
    Source,
    Step,
    Trace,
    Wrapping,
    inventory,
    is_unreached,
    options,
    unwrapped,
)

from ..._common.loop_insides import insides
from ..._common.shared import Helpers
from ..chosen import Chosen, chosen
from ..derived import HANDED_ON, derived, leave, still_wraps, uncalled
from ..dropped import drop, forget, of_records, unimports
from ..leavings import fallbacks, foreign, leavings
from ..pieces import Pieces
from ..policies import Chosen as ByTest
from ..policies import Nothing, Policy, policy_of
from ..precision import Units, place, precision, quantized
from ..sharding import sharding
from ..site import Construction, arguments, constructions, sources_of
from ..states import states
from ..write import Writer, write
from .asked import asked
from .dictionaries import outside
from .functions import functions
from .partials import partials
from .patches import patches
from .sweep import ENABLE, FSDP1, sweep

TODO = "call fully_shard by hand: {why}"

Events = Sequence[tuple[Trace, Wrapping]]


def steps(program: Program) -> Iterator[Step | Left | Kept]:
    """What becomes of every constructor call."""
    turned = list(functions(program))
    if turned:
        yield from turned
        return
    sites: list[Construction] = []
    others = chosen(program)
    for among in others:
        yield _among_others(program, among)
    handed, made = _handed_on(program, {among.node for among in others})
    yield from made
    known = {call for among in (*others, *handed) for call in among.calls}
    for one in constructions(program):
        if isinstance(one, Construction):
            sites.append(one)
        elif one[1] not in known:
            source, node, why = one
            yield Left(source, node, why, TODO.format(why=why))
    waiting = {site for site in sites if _holds_another(site, sites)}
    fixed: frozenset[cst.CSTNode] = frozenset()
    while True:
        helpers: dict[Source, Helpers] = {}
        done, left = _rewritten(
            [site.anew(fixed) for site in sites if site not in waiting], helpers
        )
        kept = [*waiting, *(site for site, _ in left)]
        more = frozenset(node for site in done for node in site.elsewhere) & _needed(kept)
        if not more:
            break
        fixed |= more
    for site, why in left:
        yield Left(site.source, site.call, why, TODO.format(why=why))
    _without_classes(program, done)
    for together in _together(done):
        yield _step(program, together, helpers)
    if done:
        yield from quantized(program)
    if not done and not waiting:
        yield from asked(program)
        yield from leave(program)
        yield from sweep(program)
        wrap = {one.source for one in program.references(FSDP1, ENABLE)}
        for group in program.groups:
            if wrap.isdisjoint(group):
                yield from leavings(program, group)
        if not wrap:
            yield from foreign(program)
        yield from fallbacks(program)
        gone = list(patches(program))
        yield from gone
        yield from unreached(program, {one.node for step in gone for one in step.accounts})


def _handed_on(
    program: Program, known: set[cst.BaseExpression]
) -> tuple[list[Chosen], list[Step | Left]]:
    """What becomes of the partial calls that are handed on; what calls one that stays is not theirs."""
    handed = partials(program, known)
    made = [_among_others(program, among) for among in handed]
    stays = [among for among, one in zip(handed, made, strict=True) if isinstance(one, Left)]
    old = {call for among in stays for call in among.calls}
    if old:
        handed = [
            replace(among, calls=tuple(c for c in among.calls if c not in old)) for among in handed
        ]
        made = [_among_others(program, among) for among in handed]
    return handed, made


def _without_classes(program: Program, done: list[Construction]) -> None:
    """The classes derived from FSDP1 go with their last calls, where they add nothing to the model."""
    calls = [site.call.func for site in done if isinstance(site.call, cst.Call)]
    for one, edits in uncalled(program, calls):
        base = one.node.bases[0]
        for site in done:
            if (
                isinstance(site.call, cst.Call)
                and derived(program, site.source, site.call.func) == one
            ):
                site.elsewhere[one.node] = tuple(edits)
                site.account(base, "dropped", HANDED_ON, one.source)


def _among_others(program: Program, one: Chosen) -> Step | Left:
    """A function that shards, in the place of FSDP1 among the other things that a name can be."""
    source, helpers = one.source, Helpers.above(one.source, one.node)
    call = one.node if isinstance(one.node, cst.Call) else None
    found = arguments(program, source, call, one.events) if call is not None else {}
    if isinstance(found, str):
        return Left(source, one.node, found, TODO.format(why=found))
    site, made = Construction(program, source, one.node, one.events, one.node, found), Pieces()
    policy = fill(site, made, helpers)
    both = {is_part(events) for events in by_call(one.events)} == {True, False}
    if both and "mixed_precision" in found:
        policy = "whether inputs are cast depends on which of the modules it is given is the root"
    if isinstance(policy, str):
        return Left(source, one.node, policy, TODO.format(why=policy))
    writer = Writer(site, made, policy, helpers)
    if writer.needs_name() or made.shared or made.spread or made.root:
        site.edits += writer.instead()
    else:
        site.edits.append(Replace(source, one.node, writer.shard))
    site.account(one.node, "changed", "replaced by `fully_shard`")
    for each in one.calls:
        site.account(each.func, "changed", "what it names shards the module or wraps it")
    elsewhere = [edit for edits in site.elsewhere.values() for edit in edits]
    made_edits = (*site.edits, *elsewhere, *helpers.all_edits())
    touched = {edit.source for edit in made_edits}
    return Step((*made_edits, *unimports(program, touched)), tuple(site.accounts))


def _rewritten(
    sites: list[Construction], helpers: dict[Source, Helpers]
) -> tuple[list[Construction], list[tuple[Construction, str]]]:
    """The sites that are rewritten, and the others with the reason."""
    done: list[Construction] = []
    left: list[tuple[Construction, str]] = []
    of_dictionaries = Counter(
        site.source
        for site in sites
        if any(a.home for n, a in site.arguments.items() if n in _ASKED_FOR)
    )
    for site in sites:
        here = helpers.setdefault(site.source, Helpers.above(site.source, site.call))
        here.several_of_dictionaries = of_dictionaries[site.source] > 1
        if why := rewrite_site(site, here):
            left.append((site, why))
            here.devices.pop(site.call, None)
        else:
            done.append(site)
    return done, left


_ASKED_FOR = ("auto_wrap_policy", "mixed_precision")
"""What a call takes out of a dictionary from elsewhere, before it hands it on."""


def _step(program: Program, sites: list[Construction], helpers: dict[Source, Helpers]) -> Step:
    """The calls of some files, which share functions and what is made elsewhere."""
    edits: list[Edit] = [edit for site in sites for edit in site.edits]
    elsewhere = {node: one for site in sites for node, one in site.elsewhere.items()}
    edits += [edit for one in elsewhere.values() for edit in one]
    for source in dict.fromkeys(site.source for site in sites):
        edits += helpers[source].all_edits()
    touched = {edit.source for edit in edits}
    accounts = tuple(account for site in sites for account in site.accounts)
    return Step((*edits, *unimports(program, touched)), accounts)


def _together(sites: list[Construction]) -> list[list[Construction]]:
    """The sites in groups that are in the same file or change the same thing elsewhere."""
    groups: list[list[Construction]] = []
    for site in sites:
        touching = [g for g in groups if any(_belong(site, other) for other in g)]
        groups = [g for g in groups if g not in touching]
        groups.append([*(one for g in touching for one in g), site])
    return groups


def _belong(site: Construction, other: Construction) -> bool:
    return site.source is other.source or bool(site.elsewhere.keys() & other.elsewhere.keys())


def _needed(kept: list[Construction]) -> frozenset[cst.CSTNode]:
    """What is made elsewhere and given to calls that stay for now."""
    return frozenset(
        one.node
        for site in kept
        for argument in site.arguments.values()
        for one in sources_of(site, argument) or ()
        if one.node is not None
    )


def rewrite_site(site: Construction, helpers: Helpers) -> str:
    """Plan one site and write its edits; why it cannot be done, if so."""
    made = Pieces()
    beside = helpers.beside.setdefault(site.layout.statement(site.call), set())
    site.taken |= beside
    policy = fill(site, made, helpers)
    if isinstance(policy, str):
        return policy
    site.account(site.call, "changed", "replaced by `fully_shard`")
    why = write(site, made, policy, helpers)
    of_records(site)
    beside |= site.taken
    return why


def fill(
    site: Construction, made: Pieces, helpers: Helpers, wrapped_before: ByTest | None = None
) -> Policy | str:
    """Plan what the arguments come to; why it cannot be done, if so.

    ``wrapped_before`` are units that no policy chose: they were wrapped while the model was built.
    """
    known = outside(site, made)
    if isinstance(known, str):
        return known
    made.spread += site.handed
    through = [one for one in site.arguments.values() if one.through]
    made.before += [f'{one.through}.pop("{one.name}", None)' for one in through]
    drop(site)
    policy = policy_of(site)
    if isinstance(policy, str):
        return policy
    if isinstance(policy, Nothing):
        policy = known.policy
    units: Units = "" if isinstance(policy, Nothing) else "by policy"
    if wrapped_before is not None:
        units = "while built"
    states(site, made, helpers)
    parts = {is_part(events) for events in by_call(site.events)}
    inner, below = parts == {True}, True in parts
    if known.precision is not None:
        place(site, made, known.precision, units=units, inner=inner, below=below)
    why = sharding(site, made, helpers) or precision(
        site, made, helpers, units=units, inner=inner, below=below
    )
    forget(site)
    return why or wrapped_before or policy


def by_call(events: Events) -> list[Events]:
    """The events of each call."""
    found: dict[cst.CSTNode, list[tuple[Trace, Wrapping]]] = {}
    for trace, event in events:
        found.setdefault(event.at.node, []).append((trace, event))
    return list(found.values())


def is_part(events: Events) -> bool:
    """Whether the module becomes a part of another that is wrapped too."""
    return any(
        other.by == "fsdp1"
        and other.at.node is not event.at.node
        and event.result not in options(other.module)
        and unwrapped(event.result) is not unwrapped(other.module)  # wrapped on another branch
        and trace.memory.inside(event.result, unwrapped(other.module))
        for trace, event in events
        for other in trace.of(Wrapping)
    )


def _holds_another(site: Construction, sites: list[Construction]) -> bool:
    """Whether another such call is inside this one: then that one goes first."""
    layout = Layout.of(site.source)
    return any(
        other is not site
        and other.source is site.source
        and site.call in layout.ancestors(other.call)
        for other in sites
    )


WHY = (
    "nothing imports this file, and no model is FSDP1's any more: delete it, or leave it for others"
)


def unreached(program: Program, gone: Collection[cst.CSTNode]) -> Iterator[Step]:
    """What works inside FSDP1 in such files, besides what is ``gone``, once the program wraps no model by it."""
    if still_wraps(program):
        return
    inside = [
        (left.source, left.node)
        for left in insides(program, ())
        if not any(node in gone for node in Layout.of(left.source).ancestors(left.node))
    ]
    found = [one for one in inventory(program) if one.kind not in ("import", "launch")]
    here = [(one.source, one.node) for one in found]
    files: dict[Source, bool] = {source: is_unreached(program, source) for source, _ in inside}
    for source, node in (*inside, *here):
        if files.get(source):
            yield Step((), (Account(source, node, "preserved", WHY),))
