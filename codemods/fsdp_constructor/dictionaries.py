"""Keywords of FSDP1 in a dictionary that is written elsewhere: there it becomes one for ``fully_shard``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import libcst as cst

from fsdp2lint.api import Arguments, Edit, InsertBefore, Replace, dotted

from .._common.shared import Helpers, stepped
from .custom import Mapped
from .devices import device_of
from .dropped import drop
from .plan import Plan
from .policies import Asked, Chosen, Nothing, Policy, policy_of
from .precision import NEW, Precision, precision_of
from .sharding import sharding
from .site import Construction
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
    if "device_id" in there:
        site.device = device_of(inside).text
    for name in there:
        if name != "sync_module_states":
            del site.arguments[name]
    edits = _rewritten(inside, made, entries)
    site.elsewhere |= inside.elsewhere
    site.elsewhere[display] = (*edits, *inside.edits)
    if helpers.texts:
        site.elsewhere[helpers.place] = tuple(helpers.all_edits())
    site.accounts += inside.accounts
    return _at_the_call(site, plan, first.spread, policy, precision)


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


def _makes_mesh(inside: Construction) -> bool:
    strategy = inside.arguments.get("sharding_strategy")
    text = inside.text(strategy.value) if strategy is not None else ""
    return bool(text) and not re.search(r"\.(FULL_SHARD|SHARD_GRAD_OP)$|^None$", text)


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
    text = stepped(text, layout.unit).replace("\n", indent)
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


def _at_the_call(
    site: Construction, plan: Plan, spread: cst.Arg, policy: Policy, precision: Precision | None
) -> Outside:
    """Take out of the dictionary what the call has to know."""
    text = site.text(spread.value)
    chosen = not isinstance(policy, Nothing)
    if not chosen and (precision is None or not precision.buffers):
        plan.spread.append(text)
        return Outside(policy, None)
    kwargs = site.free("fsdp_kwargs", "shard_kwargs")
    plan.before.append(f"{kwargs} = dict({text})")
    plan.spread.append(kwargs)
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
