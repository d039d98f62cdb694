"""Keywords of FSDP1 in a dictionary that is written elsewhere: there it becomes one for ``fully_shard``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from fsdp2lint.api import Arguments, Edit, InsertBefore, Remove, Replace, dotted, walk

from .._common.shared import Helpers, stepped
from .custom import Mapped
from .devices import device_of
from .dropped import WHY, drop
from .plan import Plan
from .policies import Asked, Chosen, Nothing, Policy, policy_of
from .precision import NEW, Precision, precision_of
from .sharding import RESHARD, sharding
from .site import Argument, Construction
from .states import ignored, offload

CLASSES = "wrap_classes"
BUFFERS = "buffer_dtype"
POLICY = "auto_wrap_policy"


@dataclass
class Outside:
    """What a dictionary from elsewhere says that the call itself has to know."""

    policy: Policy
    precision: Precision | None


def outside(site: Construction, plan: Plan) -> Outside | str:
    """Rewrite the dictionary of a call, if it has one; why it cannot be done, if so."""
    found = _rewritten_there(site, plan)
    filled = [one for one in site.arguments.values() if one.home is not None and one.beside]
    if isinstance(found, Outside) or not filled:
        return found
    for one in filled:  # it stays as it is, and the call asks for what is in it
        spread = dotted(one.spread.value) if one.spread is not None else ""
        one.home = one.added = None
        one.asked(f'{spread}.get("{one.name}")', only=True)
    return Outside(Nothing(), None)


def _rewritten_there(site: Construction, plan: Plan) -> Outside | str:
    there = {n: a for n, a in site.arguments.items() if a.home is not None}
    if not there:
        return Outside(Nothing(), None)
    first = next(iter(there.values()))
    assert first.home is not None
    assert first.spread is not None
    source, display = first.home
    if any(a.home != first.home for a in there.values()):
        return "its keywords come in several dictionaries that are built elsewhere"
    if display in site.fixed:
        return "the dictionary of its keywords is used by another call as it is"
    inside = Construction(
        site.program, source, display, site.events, display, there, fixed=site.fixed
    )
    helpers = Helpers.above(source, display)
    made = Plan()
    found = _planned(inside, made, helpers)
    if isinstance(found, str):
        return found
    policy, precision, entries = found
    added = [a for a in there.values() if a.added is not None]
    if added and (why := _why_not_added(inside, added, made, precision)):
        return why
    if "device_id" in there:
        site.device = device_of(inside).text
    for name in there:
        if name != "sync_module_states":
            del site.arguments[name]
    lines = _taken_from(entries, added)
    apart = POLICY in site.arguments or _is_asked_for(policy, precision)
    if any(a.name == "mixed_precision" for a in added) and apart:
        entries["mp_policy"] = f"{inside.name(NEW)}()"
        if precision is not None and precision.buffers:
            entries[BUFFERS] = "None"
    edits = _rewritten(inside, made, entries)
    edits += _added_anew(inside, lines)
    site.elsewhere |= inside.elsewhere
    site.elsewhere[display] = (*edits, *inside.edits)
    for one in site.arguments.values():
        if one.always is not None:  # the call says it itself now
            site.elsewhere[one.always] = (Remove(source, one.always, comments="lone"),)
    if helpers.texts:
        site.elsewhere[helpers.place] = tuple(helpers.all_edits())
    site.accounts += inside.accounts
    beside = source is site.source and _is_beside(site, display)
    known = _at_the_call(site, plan, first.spread, policy, precision, beside=beside)
    if "device_id" in site.arguments and "mesh" not in made.shared and not made.spread:
        plan.unmeshed += plan.spread
    return known


def _planned(
    inside: Construction, made: Plan, helpers: Helpers
) -> tuple[Policy, Precision | None, dict[str, str]] | str:
    """The policy and the precision of a dictionary, and what its entries become."""
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
    found = precision_of(inside, made, helpers)
    if why or isinstance(found, str):
        return why or str(found)
    if made.spread and _is_handed_on(inside.call):
        return "which keywords are handed on shows only in the run"
    entries = dict(made.shared)
    if isinstance(policy, Chosen):
        entries[CLASSES] = policy.classes
    elif isinstance(policy, Asked):
        entries[POLICY] = policy.policy
    if found is not None:
        if found.run_time and not isinstance(policy, Nothing):
            return "the mixed precision of its dictionary is known at run time only"
        entries |= _precise(inside, found)
    return policy, found, entries


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
_GONE = frozenset({*WHY, "backward_prefetch", "device_id"})


def _why_not_added(
    inside: Construction, added: list[Argument], made: Plan, precision: Precision | None
) -> str:
    """Why the statements that add to a dictionary cannot be rewritten where they stand; empty if they can."""
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


def _is_asked_for(policy: Policy, precision: Precision | None) -> bool:
    """Whether the call asks the dictionary for its policy of mixed precision."""
    return not isinstance(policy, Nothing) or (precision is not None and bool(precision.buffers))


def _taken_from(entries: dict[str, str], added: list[Argument]) -> dict[cst.CSTNode, list[str]]:
    """Take out of the entries what statements add, as the lines that stand for each of these."""
    found: dict[cst.CSTNode, list[str]] = {}
    for one in added:
        assert one.added is not None
        lines = found.setdefault(one.added.statement, [])
        for key in [key for key in entries if _FROM.get(key) == one.name]:
            lines.append(f'["{key}"] = {entries.pop(key)}')
    return found


def _added_anew(inside: Construction, lines: dict[cst.CSTNode, list[str]]) -> Iterator[Edit]:
    """The statements that add to the dictionary, each for the entries of ``fully_shard``."""
    layout = inside.layout
    made = layout.parents[inside.call]
    target = made.target if isinstance(made, cst.AnnAssign) else None
    if isinstance(made, cst.Assign):
        target = made.targets[0].target
    name = dotted(target) if target is not None else ""
    for statement, said in lines.items():
        if said:
            indent = layout.newline + layout.indentation(layout.line(statement))
            yield Replace(inside.source, statement, indent.join(f"{name}{one}" for one in said))
        else:
            yield Remove(inside.source, _with_its_test(inside, statement), comments="lone")


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


def _rewritten(inside: Construction, made: Plan, entries: dict[str, str]) -> list[Edit]:
    """The dictionary with other entries, and what comes before its statement."""
    display = inside.call
    if isinstance(display, cst.Call) and _is_handed_on(display):
        return _handed_on(inside, display, made, entries)
    if isinstance(display, cst.Call):
        said = [f"{name}={text}" for name, text in entries.items()]
        said += [f"**{one}" for one in made.spread]
        text = _lines("dict(", said, ")")
    else:
        said = [f'"{name}": {text}' for name, text in entries.items()]
        said += [f"**{one}" for one in made.spread]
        text = _lines("{", said, "}")
    layout = inside.layout
    statement = layout.statement(display)
    indent = layout.newline + layout.indentation(layout.line(statement))
    text = re.sub(r"\r?\n", indent, stepped(text, layout.unit))
    found: list[Edit] = [Replace(inside.source, display, text)]
    if made.before:
        found.append(InsertBefore(inside.source, statement, "\n".join(made.before)))
    return found


def _is_handed_on(display: cst.BaseExpression) -> bool:
    """Whether the keywords are those of a call of a function that hands them on."""
    return isinstance(display, cst.Call) and dotted(display.func) != "dict"


def _handed_on(
    inside: Construction, call: cst.Call, made: Plan, entries: dict[str, str]
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
    plan: Plan,
    spread: cst.Arg,
    policy: Policy,
    precision: Precision | None,
    *,
    beside: bool,
) -> Outside:
    """Take out of the dictionary what the call has to know; of a copy, unless it is there for the call alone."""
    text = site.text(spread.value)
    chosen = not isinstance(policy, Nothing)
    apart = POLICY in site.arguments  # its units get another policy of precision
    if not chosen and (precision is None or not (precision.buffers or apart)):
        plan.spread.append(text)
        plan.own = text if beside else ""
        return Outside(policy, None)
    kwargs = text
    if not beside:
        kwargs = site.free("fsdp_kwargs", "shard_kwargs")
        plan.before.append(f"{kwargs} = dict({text})")
    plan.spread.append(kwargs)
    plan.own = kwargs
    if chosen:
        key = CLASSES if isinstance(policy, Chosen) else POLICY
        name = site.free(key, "policy")
        plan.before.append(f'{name} = {kwargs}.pop("{key}")')
        if isinstance(policy, Asked):
            policy = replace(policy, policy=name)
        else:
            policy = _one_of(name)
    if precision is not None:
        policy_name = site.free("mp_policy", "precision")
        plan.before.append(f'{policy_name} = {kwargs}.pop("mp_policy")')
        precision = replace(precision, text=policy_name, test="", run_time="")
    if precision is not None and precision.buffers:
        dtype = site.free(BUFFERS, "dtype")
        plan.before.append(f'{dtype} = {kwargs}.pop("{BUFFERS}")')
        precision = replace(precision, buffers=dtype, guard=dtype)
    return Outside(policy, precision)


def _one_of(classes: str) -> Chosen:
    return Chosen(lambda variable: f"isinstance({variable}, {classes})", classes)
