"""Keywords of FSDP1 in a dictionary that is written elsewhere: there it becomes one for ``fully_shard``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from fsdp2lint.api import (
    Arguments,
    Edit,
    InsertBefore,
    Layout,
    Remove,
    Replace,
    Source,
    dotted,
    walk,
)

from ..._common.origins import origins
from ..._common.shared import Helpers, stepped
from ..blocks import has_no_batch_norms
from ..custom import Mapped
from ..devices import device_of
from ..displays import Spread, stars_of
from ..dropped import drop
from ..pieces import Pieces
from ..policies import Asked, Chosen, Nothing, Policy, policy_of
from ..precision import NEW, Precision, precision_of
from ..sharding import RESHARD, sharding
from ..site import NEEDLESS, Argument, Construction
from ..states import ignored, offload

CLASSES = "wrap_classes"
BUFFERS = "buffer_dtype"
POLICY = "auto_wrap_policy"


@dataclass
class Outside:
    """What a dictionary from elsewhere says that the call itself has to know."""

    policy: Policy
    precision: Precision | None


def outside(site: Construction, pieces: Pieces) -> Outside | str:
    """Rewrite the dictionary of a call, if it has one; why it cannot be done, if so."""
    found = _rewritten_there(site, pieces)
    filled = [one for one in site.arguments.values() if one.home is not None and one.beside]
    if isinstance(found, Outside) or not filled:
        return found
    for one in filled:  # it stays as it is, and the call asks for what is in it
        spread = dotted(one.spread.value) if one.spread is not None else ""
        one.home = one.added = None
        one.asked(f'{spread}.get("{one.name}")', only=True)
    return Outside(Nothing(), None)


def _rewritten_there(site: Construction, pieces: Pieces) -> Outside | str:
    known = Outside(Nothing(), None)
    for home in dict.fromkeys(a.home for a in site.arguments.values()):
        there = {n: a for n, a in site.arguments.items() if a.home == home}
        one = _one_there(site, pieces, home, there) if home is not None else known
        if isinstance(one, str):
            return one
        policy = one.policy if isinstance(known.policy, Nothing) else known.policy
        known = Outside(policy, one.precision or known.precision)
    return known


def _one_there(
    site: Construction,
    pieces: Pieces,
    home: tuple[Source, cst.BaseExpression],
    there: dict[str, Argument],
) -> Outside | str:
    """The same of one of the dictionaries that a call takes."""
    first = next(iter(there.values()))
    assert first.spread is not None
    source, display = home
    if display in site.fixed:
        return "the dictionary of its keywords is used by another call as it is"
    helpers = Helpers.above(source, display)
    again = {name for name, a in there.items() if a.before}
    rounds = []
    for number in range(1 + max(len(a.before) for a in there.values())):
        given = {n: a for n, a in ((n, _of_round(a, number)) for n, a in there.items()) if a}
        inside = Construction(
            site.program, source, display, site.events, display, given, fixed=site.fixed
        )
        next_round = _round(inside, helpers, again)
        if isinstance(next_round, str):
            return next_round
        rounds.append(next_round)
    now, *earlier = rounds
    inside, made, policy, entries = now.inside, now.made, now.policy, now.entries
    precision = next((one.precision for one in rounds if one.precision is not None), None)
    added = [a for a in there.values() if a.added is not None]
    if added and (why := _why_not_added(inside, added, made, precision)):
        return why
    if why := _why_not_again(now, earlier):
        return why
    if "device_id" in there:
        site.device = device_of(inside).text
    for name in there:
        if name != "sync_module_states":
            del site.arguments[name]
    lines = _taken_from(entries, added)
    for before in earlier:
        for place, said in _of_earlier(before).items():
            if place is display:
                entries |= said
            else:
                lines.setdefault(place, {}).update(said)
    lines |= {void.statement: {} for a in there.values() for void in a.voids}
    apart = _is_apart(site, precision)
    asked = apart or _is_asked_for(policy, precision)
    if any(a.name == "mixed_precision" and a.sometimes for a in there.values()) and asked:
        entries.setdefault("mp_policy", f"{inside.name(NEW)}()")
        if precision is not None and precision.buffers:
            entries.setdefault(BUFFERS, "None")
    filled = [place for place, said in lines.items() if said]
    is_empty = not (entries or filled or made.spread or made.before)
    beside = source is site.source and _is_beside(site, display)
    idle = is_empty and beside and _serves_alone(site, inside, lines)
    edits: list[Edit] = []
    if idle:
        edits.append(Remove(source, inside.layout.parents[display], comments="lone"))
    elif not _goes(inside, is_empty):
        edits += _rewritten(inside, made, entries, filled)
    edits += _added_anew(inside, lines, added)
    site.elsewhere |= inside.elsewhere
    for before in earlier:
        inside.edits += before.inside.edits
        inside.accounts += before.inside.accounts
        site.elsewhere |= before.inside.elsewhere
    site.elsewhere[display] = (*edits, *inside.edits)
    for one in site.arguments.values():
        if one.always is not None:  # the call says it itself now
            site.elsewhere[one.always] = (Remove(source, one.always, comments="lone"),)
    if helpers.texts:
        site.elsewhere[helpers.place] = tuple(helpers.all_edits())
    site.accounts += inside.accounts
    if is_empty and (idle or not beside):
        return Outside(policy, precision)
    already = len(pieces.spread)
    known = _at_the_call(site, pieces, first.spread, policy, precision, beside=beside, apart=apart)
    if "device_id" in site.arguments and "mesh" not in made.shared and not made.spread:
        pieces.unmeshed += pieces.spread[already:]
    return known


def _goes(inside: Construction, is_empty: bool) -> bool:
    """Whether a dictionary at the top of a file holds nothing any more: it goes as a whole, if nothing else reads it."""
    made = inside.layout.parents[inside.call]
    top = isinstance(made, cst.Assign | cst.AnnAssign) and isinstance(inside.scope, cst.Module)
    return is_empty and top


def _serves_alone(
    site: Construction, inside: Construction, lines: dict[cst.CSTNode, dict[str, str]]
) -> bool:
    """Whether nothing but the call reads a dictionary, and nothing but what goes changes it."""
    layout, made = inside.layout, inside.layout.parents[inside.call]
    target = made.targets[0].target if isinstance(made, cst.Assign) else None
    if not isinstance(target, cst.Name) or isinstance(inside.scope, cst.Module):
        return False
    given = site.call.args if isinstance(site.call, cst.Call) else ()
    own = [one.value for one in given if one.star == "**"]
    return all(
        node in (target, *own) or not set(layout.ancestors(node)).isdisjoint(lines)
        for node in walk(inside.scope)
        if isinstance(node, cst.Name) and node.value == target.value
    )


@dataclass
class _Round:
    """What a dictionary comes to with one of the values that each entry gets on the way to the call."""

    inside: Construction
    made: Pieces
    policy: Policy
    precision: Precision | None
    entries: dict[str, str]


def _of_round(argument: Argument, number: int) -> Argument | None:
    """What an entry is in the end, or was before that: the last value for 0, the one before it for 1."""
    every = (*argument.before, argument)
    return every[-1 - number] if number < len(every) else None


_ANEW = {
    "mixed_precision": ("mp_policy", NEW),
    "cpu_offload": ("offload_policy", "torch.distributed.fsdp.OffloadPolicy"),
    "sharding_strategy": (RESHARD, ""),
}
"""Arguments of which an entry may be written more than once: the new entry, and the class of its default."""


def _why_not_again(now: _Round, earlier: list[_Round]) -> str:
    """Why entries that are written more than once cannot be rewritten at each place; empty if they can."""
    for one in earlier:
        plain = all(n in _ANEW or n in _GONE for n in one.inside.arguments)
        if not plain or now.made.before or one.made.before or now.made.spread:
            return "an entry of its dictionary is written more than once"
    every = [one for one in (now, *earlier) if "mixed_precision" in one.inside.arguments]
    known = [one.precision for one in every if one.precision is not None]
    kinds = {(one.inner_casts, one.run_time, bool(one.buffers)) for one in known}
    buffers = len(known) < len(every) and any(one.buffers for one in known)
    if earlier and (len(kinds) > 1 or buffers):
        return "the settings of mixed precision that its dictionary may hold differ in kind"
    return ""


def _of_earlier(one: _Round) -> dict[cst.CSTNode, dict[str, str]]:
    """The new entries of an earlier value of each argument, by the statement or the dictionary that writes it."""
    found: dict[cst.CSTNode, dict[str, str]] = {}
    for name, argument in one.inside.arguments.items():
        place = _place(argument) or one.inside.call
        mine = found.setdefault(place, {})
        mine |= {key: text for key, text in one.entries.items() if _FROM.get(key) == name}
    return found


def _place(argument: Argument) -> cst.CSTNode | None:
    """What writes an entry after its dictionary was made: a statement, or the display of another that is added."""
    added = argument.added
    return (added.display or added.statement) if added is not None else None


def _round(inside: Construction, helpers: Helpers, again: set[str]) -> _Round | str:
    """The policy and the precision of a dictionary, and what its entries become; some are written ``again``."""
    made = Pieces()
    if isinstance(inside.scope, cst.Module) and _makes_mesh(inside):
        return "a mesh cannot be made at the top of a file, where the dictionary of its keywords is built"
    if "param_init_fn" in inside.arguments:
        return "the function that initialises comes in a dictionary that is built elsewhere"
    drop(inside)
    device = inside.arguments.get("device_id")
    if device is not None:
        why = "fully_shard moves parameters and buffers to the current device"
        inside.account(device.node, "dropped", why)
    policy = policy_of(inside)
    if isinstance(policy, str):
        return policy
    if isinstance(policy, Mapped) or (isinstance(policy, Chosen) and not policy.classes):
        return "the dictionary with the test of its modules is built elsewhere"
    ignored(inside, made)
    offload(inside, made)
    why = sharding(inside, made, helpers)
    given = inside.arguments.get("mixed_precision")
    off = given is not None and dotted(given.value) == "None"
    found = None if off else precision_of(inside, made, helpers)
    if given is not None and off:
        inside.account(given.node, "changed", "without it everything stays in its own precision")
    if why or isinstance(found, str):
        return why or str(found)
    if made.spread and _is_handed_on(inside.call):
        return "which keywords are handed on is known only at run time"
    entries = dict(made.shared)
    if isinstance(policy, Chosen):
        entries[CLASSES] = policy.classes
    elif isinstance(policy, Asked):
        entries[POLICY] = policy.policy
    if found is not None:
        if found.run_time and not isinstance(policy, Nothing):
            return "the mixed precision of its dictionary is known at run time only"
        entries |= _precise(inside, found)
    for name in (
        again & inside.arguments.keys() & _ANEW.keys()
    ):  # it takes the place of another value
        key, default = _ANEW[name]
        entries.setdefault(key, f"{inside.name(default)}()" if default else "True")
    return _Round(inside, made, policy, found, entries)


def _precise(inside: Construction, found: Precision) -> dict[str, str]:
    """The entries for a policy, and for the dtype of buffers, which the calls see to."""
    text = found.text
    if found.run_time:
        text = f"{found.run_time}({text}, is_root=True)"
    elif found.test:
        text = f"{text} if {found.test} else {inside.name(NEW)}()"
    entries = {"mp_policy": text}
    if found.buffers:
        held = found.text if re.fullmatch(r"[\w.]+", found.text) else f"({found.text})"
        dtype = found.buffers.replace("{policy}", held)
        guard = found.guard.replace("{policy}", held)
        entries[BUFFERS] = f"{dtype} if {guard} else None" if guard not in ("", dtype) else dtype
    return entries


_FROM = {
    "mp_policy": "mixed_precision",
    BUFFERS: "mixed_precision",
    "offload_policy": "cpu_offload",
    RESHARD: "sharding_strategy",
    CLASSES: "auto_wrap_policy",
    POLICY: "auto_wrap_policy",
}
"""Which keyword of FSDP1 each new entry comes from, where a statement may add it."""
_GONE = frozenset({*NEEDLESS, "backward_prefetch", "device_id"})


def _why_not_added(
    inside: Construction, added: list[Argument], made: Pieces, precision: Precision | None
) -> str:
    """Why the statements that add to a dictionary cannot be rewritten where they are; empty if they can."""
    for one in added:
        assert one.added is not None
        simple = one.name in _FROM.values() or one.name in _GONE
        if not simple or (one.name == "auto_wrap_policy" and one.added.sometimes):
            return f"its `{one.name}` is added to a dictionary that is built elsewhere"
        meshed = "mesh" in made.shared and not _PLAIN.search(inside.text(one.value))
        if one.name == "sharding_strategy" and (made.spread or meshed):
            return "its strategy is added to a dictionary that is built elsewhere"
    stays = any(one.name not in _GONE for one in added)
    if stays and (made.before or (precision is not None and precision.run_time)):
        return "what is added to the dictionary of its keywords is known at run time only"
    return ""


def _is_apart(site: Construction, precision: Precision | None) -> bool:
    """Whether units that the call chooses get another policy of mixed precision than the model."""
    if POLICY not in site.arguments or precision is None:
        return False
    same = precision.inner_casts == "True" and not precision.run_time
    return not same or not has_no_batch_norms(site)


def _is_asked_for(policy: Policy, precision: Precision | None) -> bool:
    """Whether the call asks the dictionary for its policy of mixed precision."""
    return not isinstance(policy, Nothing) or (precision is not None and bool(precision.buffers))


def _taken_from(
    entries: dict[str, str], added: list[Argument]
) -> dict[cst.CSTNode, dict[str, str]]:
    """Take out of the entries what other places add to the dictionary, by these."""
    found: dict[cst.CSTNode, dict[str, str]] = {}
    for one in added:
        place = _place(one)
        assert place is not None
        mine = found.setdefault(place, {})
        mine |= {k: entries.pop(k) for k in list(entries) if _FROM.get(k) == one.name}
    return found


def _added_anew(
    inside: Construction, lines: dict[cst.CSTNode, dict[str, str]], added: list[Argument]
) -> Iterator[Edit]:
    """The places that add to the dictionary, each for the entries of ``fully_shard``."""
    layout = inside.layout
    whole = {a.added.display: a.added.statement for a in added if a.added and a.added.display}
    for place, said in lines.items():
        if isinstance(place, cst.BaseExpression) and said:
            new = _display(inside, place, said)  # other calls may take it as it is
            inside.elsewhere[place] = (Replace(inside.source, place, new),)
        elif isinstance(place, cst.BaseExpression):
            if not _only_gives(layout, place):  # its function does more, which has to go on
                yield Replace(inside.source, place, _display(inside, place, {}))
                continue
            if isinstance(whole[place], cst.BaseSmallStatement):
                yield Remove(inside.source, _with_its_test(inside, whole[place]), comments="lone")
            yield from _unused(inside, place)
        elif said:
            indent = layout.newline + layout.indentation(layout.line(place))
            name = _name_of(place)
            each = (f'{name}["{key}"] = {text}' for key, text in said.items())
            yield Replace(inside.source, place, indent.join(each))
        else:
            yield Remove(inside.source, _with_its_test(inside, place), comments="lone")


def _only_gives(layout: Layout, display: cst.BaseExpression) -> bool:
    """Whether the function around a dictionary, if any, does nothing but return it."""
    function = layout.function(display)
    lines = function.body.body if function is not None else ()
    small = [one for line in lines for one in (getattr(line, "body", None) or (line,))]
    return all(
        one is layout.parents[display]
        or (isinstance(one, cst.Expr) and isinstance(one.value, cst.BaseString))
        for one in small
    )


def _name_of(statement: cst.CSTNode) -> str:
    """The dictionary that ``name["key"] = value`` or ``name.update(…)`` changes."""
    if isinstance(statement, cst.Assign):
        target = statement.targets[0].target
        return dotted(target.value) if isinstance(target, cst.Subscript) else ""
    call = statement.value if isinstance(statement, cst.Expr) else None
    func = call.func if isinstance(call, cst.Call) else None
    return dotted(func.value) if isinstance(func, cst.Attribute) else ""


def _unused(inside: Construction, display: cst.BaseExpression) -> Iterator[Edit]:
    """The function that did nothing but return a dictionary, once nothing calls it."""
    function = inside.layout.function(display)
    if function is None or function.decorators or len(function.body.body) != 1:
        return
    named = [
        node
        for source in inside.program.sources
        if function.name.value in source.text
        for node in walk(source.tree)
        if isinstance(node, cst.Name) and node.value == function.name.value
    ]
    if len(named) == 2:  # itself and its call
        yield Remove(inside.source, function)


def _display(
    inside: Construction,
    display: cst.BaseExpression,
    said: dict[str, str],
    spread: Sequence[str] = (),
    first: Sequence[str] = (),
) -> str:
    """The text of a dictionary in its place, in the way that it was written in."""
    called, mark = isinstance(display, cst.Call), _quotation_mark(display)
    each = (
        f"{name}={one}" if called else f"{mark}{name}{mark}: {one}" for name, one in said.items()
    )
    whole = [*first, *each, *(f"**{one}" for one in spread)]
    text = _lines("dict(", whole, ")") if called else _lines("{", whole, "}")
    layout = inside.layout
    indent = layout.newline + layout.indentation(layout.line(layout.statement(display)))
    return re.sub(r"\r?\n", indent, stepped(text, layout.unit))


def _quotation_mark(display: cst.BaseExpression) -> str:
    """The one around the keys of a dictionary."""
    for one in display.elements if isinstance(display, cst.Dict) else ():
        if isinstance(one, cst.DictElement) and isinstance(one.key, cst.SimpleString):
            return one.key.quote
    return '"'


def _with_its_test(inside: Construction, statement: cst.CSTNode) -> cst.CSTNode:
    """The ``if`` that has nothing but the statement in it and whose test has no effect; else the statement."""
    block = inside.layout.block(statement)
    choice = inside.layout.parents.get(block) if block is not None else None
    if not isinstance(choice, cst.If) or choice.orelse is not None or len(choice.body.body) > 1:
        return statement
    is_elif = isinstance(inside.layout.parents[choice], cst.If)
    acts = any(isinstance(n, cst.Call | cst.NamedExpr | cst.Await) for n in walk(choice.test))
    return statement if is_elif or acts else choice


def _makes_mesh(inside: Construction) -> bool:
    strategy = inside.arguments.get("sharding_strategy")
    text = inside.text(strategy.value) if strategy is not None else ""
    return bool(text) and not _PLAIN.search(text)


_PLAIN = re.compile(r"\.(FULL_SHARD|SHARD_GRAD_OP)$|^None$")
"""Strategies that need no mesh of their own."""


def _rewritten(
    inside: Construction, made: Pieces, entries: dict[str, str], filled: Sequence[cst.CSTNode]
) -> list[Edit]:
    """The dictionary with other entries, and what comes before its statement.

    Of the dictionaries that it takes over those that are ``filled`` stay.
    """
    display = inside.call
    if isinstance(display, cst.Call) and _is_handed_on(display):
        return _handed_on(inside, display, made, entries)
    layout = inside.layout
    statement = layout.statement(display)
    kept = [
        inside.text(star.value)
        if isinstance(star, cst.Arg) and not star.star
        else f"**{inside.text(value)}"
        for star, value in stars_of(display)
        if any(one.node in filled for one in origins(inside.program, inside.source, value))
    ]
    text = _display(inside, display, entries, made.spread, kept)
    found: list[Edit] = [Replace(inside.source, display, text)]
    if made.before:
        found.append(InsertBefore(inside.source, statement, "\n".join(made.before)))
    return found


def _is_handed_on(display: cst.BaseExpression) -> bool:
    """Whether the keywords are those of a call of a function that hands them on."""
    return isinstance(display, cst.Call) and dotted(display.func) != "dict"


def _handed_on(
    inside: Construction, call: cst.Call, made: Pieces, entries: dict[str, str]
) -> list[Edit]:
    """The keywords of the call of a function that hands them on."""
    arguments = Arguments(inside.source, call)
    for name, argument in inside.arguments.items():
        if isinstance(argument.node, cst.Arg) and name not in entries:
            arguments.remove(argument.node)
    for name, value in entries.items():
        arguments.set(name, value)
    found: list[Edit] = [arguments]
    if made.before:
        statement = inside.layout.statement(call)
        found.append(InsertBefore(inside.source, statement, "\n".join(made.before)))
    return found


def _lines(head: str, said: list[str], tail: str) -> str:
    line = f"{head}{', '.join(said)}{tail}"
    if len(line) < 70:
        return line
    return "\n".join([head, *(f"    {one}," for one in said), tail])


def _is_beside(site: Construction, display: cst.BaseExpression) -> bool:
    """Whether a dictionary is made once for each time that the call runs, in the same block."""
    layout = site.layout
    if display not in layout.parents:
        return False
    made, called = layout.statement(display), layout.statement(site.call)
    return layout.block(made) is layout.block(called)


def _at_the_call(
    site: Construction,
    pieces: Pieces,
    spread: Spread,
    policy: Policy,
    precision: Precision | None,
    *,
    beside: bool,
    apart: bool,
) -> Outside:
    """Take out of the dictionary what the call has to know; of a copy, unless it is there for the call alone."""
    text = site.text(spread.value)
    chosen = not isinstance(policy, Nothing)
    if not chosen and (precision is None or not (precision.buffers or apart)):
        if text not in pieces.spread:  # several calls may give it
            pieces.spread.append(text)
        pieces.own = text if beside else ""
        return Outside(policy, None)
    kwargs = text
    if not beside:
        kwargs = site.free("fsdp_kwargs", "shard_kwargs")
        pieces.before.append(f"{kwargs} = dict({text})")
    pieces.spread.append(kwargs)
    pieces.own = kwargs
    if chosen:
        key = CLASSES if isinstance(policy, Chosen) else POLICY
        name = site.free(key, "policy")
        pieces.before.append(f'{name} = {kwargs}.pop("{key}")')
        if isinstance(policy, Asked):
            policy = replace(policy, policy=name)
        else:
            policy = _one_of(name)
    if precision is not None:
        policy_name = site.free("mp_policy", "precision")
        pieces.before.append(f'{policy_name} = {kwargs}.pop("mp_policy")')
        precision = replace(precision, text=policy_name, test="", run_time="")
    if precision is not None and precision.buffers:
        dtype = site.free(BUFFERS, "dtype")
        pieces.before.append(f'{dtype} = {kwargs}.pop("{BUFFERS}")')
        precision = replace(precision, buffers=dtype, guard=dtype)
    return Outside(policy, precision)


def _one_of(classes: str) -> Chosen:
    return Chosen(lambda variable: f"isinstance({variable}, {classes})", classes)
