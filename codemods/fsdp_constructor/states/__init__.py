"""What FSDP1 does to a module before it shards it: move, materialise, broadcast; and what it leaves alone.

Facts (torch/distributed/fsdp/_init_utils.py, ``_init_param_handle_from_module``, torch 2.13): unit by unit,
children first, it calls ``param_init_fn`` on each module of a unit that has meta parameters, moves the
unit to ``device_id``, and broadcasts parameters and buffers from the first rank of its process group
(``sync_module_states``; ``_sync_module_params_and_buffers``).
"""

from __future__ import annotations

import re

import libcst as cst

from fsdp2lint.api import (
    Container,
    Layout,
    Literal,
    Mesh,
    Moved,
    Names,
    Replace,
    Source,
    dotted,
    name_for,
    walk,
)

from ..._common.names import (
    OFF,
    external,
    function_scope,
    is_none,
    is_off,
    named_once,
)
from ..._common.origins import Origin, meaning, origins
from ..._common.shared import Helpers, Naming
from ..devices import device_of, is_cpu
from ..given import only_feeds_fsdp1
from ..helpers import FSDP
from ..pieces import Pieces
from ..sharding import is_default_group, is_parameter, mesh_call
from ..site import Argument, Construction, sources_of
from .meta import initialise

OFFLOAD = f"{FSDP}CPUOffload"
LONG = 60
_SETS_DEVICE = (
    "torch.cuda.set_device",
    "torch.accelerator.set_device_index",
    "torch.accelerator.set_device_idx",
    "torch.xpu.set_device",
    "torch.npu.set_device",
    ".set_device",
)
_OTHER_KINDS = ("torch.xpu.*", "torch.npu.*", "torch.hpu.*", "torch.mlu.*", "torch.accelerator.*")
"""Of what a program speaks that runs on other devices too."""


def states(site: Construction, pieces: Pieces, helpers: Helpers) -> None:
    """Plan what happens to parameters and buffers before they are sharded."""
    ignored(site, pieces)
    offload(site, pieces)
    device(site, pieces, helpers)
    materialises = initialise(site, pieces, helpers)
    synchronise(site, pieces, helpers, materialises)


# -- offload -------------------------------------------------------------------------------------------------------


def offload(site: Construction, pieces: Pieces) -> None:
    """``cpu_offload``."""
    argument = site.arguments.get("cpu_offload")
    if argument is None:
        return
    if argument.values and all(is_off(v) for v in argument.values):
        site.account(argument.node, "dropped", "without it nothing is offloaded, in both")
        return
    test = _offloads(site, argument.written or argument.value)
    if argument.said and test != "False":
        test = argument.said if test == "True" else None
    if test == "False":
        site.account(argument.node, "dropped", "it offloads nothing")
        return
    if test is None and (converted := _converted(site, argument)):
        pieces.shared["offload_policy"] = converted
        site.account(argument.node, "changed", "`CPUOffloadPolicy` keeps the parameters on the CPU")
        return
    policy = f"{site.name(f'{FSDP}CPUOffloadPolicy')}()"
    if test is None:
        text = site.text(argument.value)
        if not re.fullmatch(r"[\w.]+", text):
            name = site.free("offload", "cpu_offload")
            pieces.before.append(f"{name} = {text}")
            text = name
        test = f"{text} and {text}.offload_params"
    if test != "True":
        policy += f" if {test} else {site.name(f'{FSDP}OffloadPolicy')}()"
    pieces.shared["offload_policy"] = policy
    site.account(argument.node, "changed", "`CPUOffloadPolicy` keeps the parameters on the CPU")


def _converted(site: Construction, argument: Argument) -> str:
    """The text of settings that are made elsewhere, only for FSDP1: there they become policies; empty if they cannot."""
    found = sources_of(site, argument) or []
    made = [one for one in found if not one.is_none]
    if any(".offload_params" in source.text for source in site.program.sources):
        return ""
    tests: dict[Origin, str] = {}
    for one in made:
        node = one.node
        if not isinstance(node, cst.Call) or node in site.fixed:
            return ""
        if meaning(site.program, one.source, node.func) != OFFLOAD or len(node.args) > 1:
            return ""
        if one.source not in site.program.sources or not only_feeds_fsdp1(site, node):
            return ""
        test = one.source.code(node.args[0].value) if node.args else "False"
        if node.args and node.args[0].star:
            return ""
        tests[one] = test
    for one, test in tests.items():
        assert isinstance(one.node, cst.Call)
        asked = {"True": ("CPUOffloadPolicy",), "False": ("OffloadPolicy",)}.get(test)
        named = [
            name_for(one.source, one.node, f"{FSDP}{policy}")
            for policy in asked or ("CPUOffloadPolicy", "OffloadPolicy")
        ]
        text = f" if {test} else ".join(f"{name.text}()" for name in named)
        parent = Layout.of(one.source).parents[one.node]
        plain = (
            isinstance(parent, cst.Assign | cst.Arg | cst.DictElement | cst.Return)
            and "\n" not in test
        )
        if asked is None and not plain:
            text = f"({text})"
        imports = (edit for name in named for edit in name.edits)
        site.elsewhere[one.node] = (Replace(one.source, one.node, text), *imports)
        why = "a policy of FSDP2 says the same"
        site.account(one.node, "changed", why, one.source)
    if not made:
        return ""
    text = site.text(argument.value)
    if len(made) == len(found):
        return text
    plain = isinstance(argument.value, cst.Name | cst.Attribute | cst.Subscript | cst.Call)
    text = text if plain else f"({text})"
    return f"{text} or {site.name(f'{FSDP}OffloadPolicy')}()"


def _offloads(site: Construction, node: cst.BaseExpression) -> str | None:
    """Under which condition an expression offloads parameters; None when it does not say."""
    if dotted(node) in OFF:
        return "False"
    if isinstance(node, cst.Name):
        made = named_once(site.source, node)
        return None if made is None or isinstance(made, cst.Name) else _offloads(site, made)
    if isinstance(node, cst.IfExp):
        return _either_side(site, node)
    if not isinstance(node, cst.Call):
        return None
    if not any(r.node is node.func and r.name == OFFLOAD for r in site.program.named(site.source)):
        return None
    if not node.args:
        return "False"
    return site.text(node.args[0].value) if len(node.args) == 1 and not node.args[0].star else None


def _either_side(site: Construction, node: cst.IfExp) -> str | None:
    body, other = _offloads(site, node.body), _offloads(site, node.orelse)
    test = site.text(node.test)
    if body is not None and other == "False":
        return test if body == "True" else f"{test} and {body}"
    if (body, other) == ("False", "True"):
        return f"not ({test})"
    return body if body == other else None


# -- devices ------------------------------------------------------------------------------------------------------


def device(site: Construction, pieces: Pieces, helpers: Helpers) -> None:
    """``device_id``."""
    argument = site.arguments.get("device_id")
    if argument is None:
        return
    why = "fully_shard moves parameters and buffers to the current device"
    if argument.values and all(is_none(v) for v in argument.values):
        site.account(argument.node, "dropped", "without it the current device is meant, in both")
        return
    if device_of(site).is_cpu:
        site.account(argument.node, "dropped", "the mesh is on the CPU")
        return
    if device_of(site).text == '"mps"':
        site.account(argument.node, "dropped", "there is one device of this kind")
        return
    if not _is_current(site, argument) and not _device_is_set(site, argument):
        if _is_set_above(site, argument, helpers):
            site.account(argument.node, "dropped", f"{why}, which is set above")
            return
        pieces.before[:0] = _set_device(site, argument)
        site.account(argument.node, "changed", f"{why}, which is set here")
        return
    site.account(argument.node, "dropped", why)


def _set_device(site: Construction, argument: Argument) -> list[str]:
    """The statements that make a device the current one, where it is given and no CPU."""
    choice = argument.value
    if isinstance(choice, cst.IfExp) and device_of(site).text.startswith('"cuda" if '):
        sets = f"{site.name('torch.cuda.set_device')}({site.text(choice.body)})"
        return [f"if {site.text(choice.test)}:", f"    {sets}"]
    text, tests, lines = site.text(argument.value), list[str](), list[str]()
    kind, asked = device_of(site), text
    if _may_be_none(site, argument):
        if isinstance(argument.value, cst.IfExp) and dotted(argument.value.orelse) == "None":
            test = site.text(argument.value.test)
            tests.append(f"({test})" if " or " in test and not kind.is_known else test)
            asked = text = site.text(argument.value.body)
        else:
            if not re.fullmatch(r"[\w.]+", text):
                name = site.free("device", "device_id")
                lines.append(f"{name} = {text}")
                text = name
            tests.append(f"{text} is not None")
    any_kind = any(site.program.references(*_OTHER_KINDS))
    if not kind.is_known:
        of = site.name("torch.device")
        chosen = (
            asked != text or " if " in kind.text or " or " in kind.text
        )  # None is asked for already
        said = f"{of}({text}).type" if chosen else kind.text
        tests.append(f'{said} {"!= " if any_kind else "== "}"{"cpu" if any_kind else "cuda"}"')
    module = site.name(f"torch.{'get_device_module' if any_kind else 'cuda.set_device'}")
    sets = f"{module}().set_device({text})" if any_kind else f"{module}({text})"
    return [*lines, *([f"if {' and '.join(tests)}:", f"    {sets}"] if tests else [sets])]


def _may_be_none(site: Construction, argument: Argument) -> bool:
    """Whether no device may be given: then FSDP1 takes the current one."""
    if any(is_none(value) for value in argument.values):
        return True
    name, scope = dotted(argument.value), site.scope
    if not isinstance(scope, cst.FunctionDef):
        return False
    if len(Names.of(site.source).bindings.get(scope, {}).get(name, [])) > 1:
        return False
    params = (*scope.params.params, *scope.params.kwonly_params)
    return any(
        one.name.value == name and one.default is not None and dotted(one.default) == "None"
        for one in params
    )


def _is_current(site: Construction, argument: Argument) -> bool:
    """Whether it is the current device, of whichever kind, as the function of the call has asked for it; or the CPU."""
    found = sources_of(site, argument) or ()
    asked = [
        one
        for one in found
        if not one.is_none and (one.node is None or not is_cpu(one.source, one.node))
    ]
    return bool(asked) and all(
        one.node is not None
        and one.source is site.source
        and function_scope(site.source, one.node) is site.scope
        and "current_device" in site.source.code(one.node)
        for one in asked
    )


def _is_set_above(site: Construction, argument: Argument, helpers: Helpers) -> bool:
    """Whether the code of an earlier call, which runs whenever this one does, sets the same device."""
    layout, text = site.layout, site.text(argument.value)
    root = dotted(argument.value).partition(".")[0]
    bound = Names.of(site.source).bindings.get(site.scope, {}).get(root, [])
    if not root or len(bound) > 1:
        return False
    around = set(layout.ancestors(site.call))
    at = layout.span(site.call)[0]
    for other, said in helpers.devices.items():
        same = said == text and function_scope(site.source, other) is site.scope
        before = layout.span(other)[0] < at
        if same and before and layout.block(layout.statement(other)) in around:
            return True
    if isinstance(layout.parents[site.call], cst.Assign | cst.Expr):
        helpers.devices[site.call] = text
    return False


def _device_is_set(site: Construction, argument: Argument) -> bool:
    """Whether every run makes the device the current one, or one that is not surely another."""
    runs = [[*trace.calls(*_SETS_DEVICE)] for trace, _ in site.events]
    if not runs or not all(runs):
        return False
    if not _is_chosen(site, site.source, argument.value):
        return True
    return all(
        any(_is_chosen(site, called.at.source, called.at.node) for called in calls)
        for calls in runs
    )


def _is_chosen(site: Construction, source: Source, node: cst.CSTNode) -> bool:
    """Whether a device is taken out of a list of some (``devices[rank]``), and not counted by the rank alone."""
    parts = [one for one in walk(node) if isinstance(one, cst.Name | cst.Subscript)]
    made = [
        one
        for part in parts
        if isinstance(part, cst.Name)
        for one in origins(site.program, source, part)
    ]
    found = [*parts, *(n for one in made if one.node is not None for n in walk(one.node))]
    return any(
        isinstance(n, cst.Subscript) and not dotted(n.value).endswith("environ") for n in found
    )


# -- values ---------------------------------------------------------------------------------------------------------


def synchronise(site: Construction, pieces: Pieces, helpers: Helpers, materialises: bool) -> None:
    """``sync_module_states``."""
    argument = site.arguments.get("sync_module_states")
    if argument is None:
        return
    values = [v.value if isinstance(v, Literal) else ... for v in argument.values]
    if values and all(v is not ... and not v for v in values):
        site.account(argument.node, "dropped", "nothing is broadcast by default, in both")
        return
    test = "" if values and all(v is True for v in values) else site.text(argument.value)
    where, group = _target(site), _group(site, pieces)
    if materialises:
        if group:
            helper = helpers.add("broadcast_in_group", _grouped_helper)
        else:
            helper = helpers.add("broadcast_from_rank0", broadcast_helper)
        given = [where or _any_device(site), *([group] if group else [])]
        call = f"{helper}({{module}}, {', '.join(given)})"
        pieces.prepare += [f"if {test}:", f"    {call}"] if test else [call]
    else:
        lines = _broadcast(site, where, group)
        pieces.before += [f"if {test}:", *(f"    {one}" for one in lines)] if test else lines
    first = "the first rank of the group" if group else "rank 0"
    why = f"the parameters and buffers of {first} are broadcast here, before they are sharded"
    site.account(argument.node, "changed", why)


def _group(site: Construction, pieces: Pieces) -> str:
    """What says the group within which FSDP1 broadcasts; empty for all ranks."""
    group, mesh = site.arguments.get("process_group"), site.arguments.get("device_mesh")
    never = group is None or (group.values and all(is_none(v) for v in group.values))
    if group is not None and (not never or is_parameter(site, group.value)):
        if is_default_group(site, group):
            return ""
        if isinstance(group.value, cst.Tuple) or any(
            isinstance(v, Container) for v in group.values
        ):
            return ""
        pieces.group = site.text(group.value)
        if not re.fullmatch(r"[\w.]+", pieces.group):
            name = site.free("group", "process_group")
            pieces.before.append(f"{name} = {pieces.group}")
            pieces.group = name
        return pieces.group
    if mesh is None or mesh_call(site, mesh) is not None:
        return ""
    alone = [isinstance(v, Mesh) and v.names is not None and len(v.names) == 1 for v in mesh.values]
    return f"{site.text(mesh.value)}.get_group()" if alone and all(alone) else ""


def _broadcast(site: Construction, where: str, group: str) -> list[str]:
    source = f"group={group}, group_src=0" if group else "src=0"
    tensor, value = site.free("tensor", "state"), ""
    broadcast = site.name("torch.distributed.broadcast")
    head = f"for {tensor} in (*{{model}}.parameters(), *{{model}}.buffers()):"
    if not where:
        return [head, f"    {broadcast}({tensor}.detach(), {source})"]
    value = site.free("value", "full_value")
    return [
        head,
        f"    {value} = {tensor}.detach().to({where})",
        f"    {broadcast}({value}, {source})",
        f"    {tensor}.data.copy_({value})",
    ]


def _target(site: Construction) -> str:
    """The device on which to broadcast; empty when the module is there already."""
    argument = site.arguments.get("device_id")
    if site.device:
        return site.device
    moved = all(
        any(_to_device(m) and trace.concerns(m, event.module) for m in trace.before(event, Moved))
        for trace, event in site.events
    )
    if argument is None or moved or device_of(site).is_cpu:
        return ""
    text = site.text(argument.value)
    return text if re.fullmatch(r"[\w.]+(\(\))?", text) else device_of(site).text


def _to_device(moved: Moved) -> bool:
    """Whether a move is one to an accelerator, not to another dtype or to the CPU."""
    if moved.how == "cuda":
        return True
    given = [v for v in moved.to if not external(v).startswith("torch.")]
    names = [str(v.value) for v in given if isinstance(v, Literal)]
    return moved.how == "to" and bool(given) and not any(n.startswith("cpu") for n in names)


def _any_device(site: Construction) -> str:
    return device_of(site).text


def broadcast_helper(name: str, named: Naming) -> str:
    """The function that broadcasts what is not sharded yet."""
    tensor = named("torch.distributed.tensor.DTensor")
    broadcast = named("torch.distributed.broadcast")
    return f'''def {name}(module, device):
    """Give the parameters and buffers of a module that are not sharded yet the values of rank 0."""
    for state in (*module.parameters(), *module.buffers()):
        if not isinstance(state, {tensor}):
            value = state.detach().to(device)
            {broadcast}(value, src=0)
            state.data.copy_(value)'''


def _grouped_helper(name: str, named: Naming) -> str:
    """The same within a group."""
    text = broadcast_helper(name, named).replace("(module, device)", "(module, device, group)")
    return text.replace("of rank 0", "of its first rank").replace(
        "src=0", "group=group, group_src=0"
    )


# -- what is left alone ---------------------------------------------------------------------------------------------


def ignored(site: Construction, pieces: Pieces) -> None:
    """``ignored_modules`` and ``ignored_states``."""
    parts = []
    for name in ("ignored_modules", "ignored_states"):
        argument = site.arguments.get(name)
        if argument is None:
            continue
        if argument.values and all(is_none(v) for v in argument.values):
            site.account(argument.node, "dropped", "nothing is ignored by default, in both")
            continue
        parts.append(_ignored(site, argument, name))
        site.account(argument.node, "changed", "`ignored_params` takes the parameters (torch 2.7)")
    if parts:
        name = site.free("ignored_params", "unsharded_params")
        pieces.before += [f"{name} = {parts[0]}", *(f"{name} |= {part}" for part in parts[1:])]
        pieces.shared["ignored_params"] = name


def _ignored(site: Construction, argument: Argument, name: str) -> str:
    text = site.text(argument.value)
    node = argument.value
    if name == "ignored_modules" and isinstance(node, cst.List | cst.Set | cst.Tuple):
        said = [site.text(e.value) for e in node.elements]
        if len(said) == 1:
            return f"set({said[0]}.parameters())"
    other = _or_none(node)
    given = bool(argument.values) and all(isinstance(v, Container) for v in argument.values)
    if other is not None:
        text = f"({site.text(other)} or ())"
    elif not given or is_parameter(site, argument.value, default="None"):
        text = f"({text} or ())"
    each = "m.parameters()"
    if name == "ignored_states":
        module = site.name("torch.nn.Module")
        each = f"(m.parameters() if isinstance(m, {module}) else [m])"
    whole = f"{{p for m in {text} for p in {each}}}"
    if len(whole) < LONG:
        return whole
    return f"{{\n    p\n    for m in {text}\n    for p in {each}\n}}"


def _or_none(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """``some`` of ``some or None``."""
    if not isinstance(node, cst.BooleanOperation) or not isinstance(node.operator, cst.Or):
        return None
    return node.left if dotted(node.right) == "None" else None
