"""Sharding strategy, process group and mesh of FSDP1 as ``mesh`` and ``reshard_after_forward``.

Facts (measured on torch 2.13): ``FULL_SHARD`` is what ``fully_shard`` does by default, the root's
parameters kept after forward; a mesh of two dimensions is (replicate, shard) in both; on a mesh of shape
(world, 1) every rank keeps all parameters and gradients are averaged, bit for bit as with ``NO_SHARD``.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Arguments, Container, Literal, Mesh, Source, dotted, walk

from ._constructor_helpers import (
    STRATEGY,
    hybrid_mesh,
    pair_helper,
    replicated_mesh,
    strategy_helper,
    unsharded_helper,
)
from ._constructor_names import is_none, only_binding
from ._constructor_origins import Origin, meaning
from ._constructor_plan import Plan
from ._constructor_site import Argument, Construction, Fate, sources_of
from ._shared import Helpers

MEMBERS = frozenset("FULL_SHARD SHARD_GRAD_OP NO_SHARD HYBRID_SHARD _HYBRID_SHARD_ZERO2".split())
HYBRID = frozenset({"HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"})
KEPT = frozenset({"SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"})

_DEVICES = ("cuda", "cpu", "xpu", "npu", "hpu", "mtia", "mps")


def sharding(site: Construction, plan: Plan, helpers: Helpers) -> str:
    """Plan the mesh and what is kept after forward; why it cannot be done, if so."""
    device = device_type(site)
    meshed = _given_mesh(site, plan, helpers, device)
    if meshed.startswith("!"):
        return meshed[1:]
    argument = site.arguments.get("sharding_strategy")
    members = _members(site, argument) if argument is not None else frozenset({"FULL_SHARD"})
    if argument is not None and members is not None and len(members) == 1:
        (member,) = members
        _one(site, plan, helpers, argument, member, device, bool(meshed))
    elif argument is not None:
        _at_run_time(site, plan, helpers, argument, members or MEMBERS, device, bool(meshed))
    if device == "cpu" and "mesh" not in plan.shared and not plan.spread:
        world = f"{site.name('torch.distributed.get_world_size')}()"
        plan.shared["mesh"] = f'{site.name(_MESH)}("cpu", ({world},))'
    return ""


_MESH = "torch.distributed.device_mesh.init_device_mesh"


def _one(
    site: Construction,
    plan: Plan,
    helpers: Helpers,
    argument: Argument,
    member: str,
    device: str,
    meshed: bool,
) -> None:
    """A strategy that is known now."""
    made = [one for one in sources_of(site, argument) or () if one.node is not argument.value]
    if member == "FULL_SHARD":
        why = "fully_shard shards in full by default"
        site.account(argument.node, "dropped", why)
        _settle(site, made, "dropped", why)
        return
    said = []
    if member in KEPT:
        plan.shared["reshard_after_forward"] = "False"
        said.append("`reshard_after_forward=False` keeps the parameters after forward")
    if member in HYBRID and not meshed:
        name = site.free("mesh", "device_mesh", "hsdp_mesh")
        plan.before += hybrid_mesh(site.name, device, name)
        plan.shared["mesh"] = name
        said.append("the mesh has shards within a node and copies across nodes, as FSDP1 made it")
    elif member in HYBRID:
        said.append("the given mesh is (replicate, shard) in both")
    if member == "NO_SHARD":
        name = site.free("mesh", "device_mesh", "replicate_mesh")
        if meshed:
            given = helpers.add("unsharded_mesh", unsharded_helper(device))
            plan.before.append(f"{name} = {given}({plan.shared['mesh']})")
        else:
            plan.before += replicated_mesh(site.name, device, name)
        plan.shared["mesh"] = name
        said.append("on a mesh of shape (ranks, 1) nothing is sharded: every rank keeps all")
    site.account(argument.node, "changed", "; ".join(said))
    _settle(site, made, "changed", "; ".join(said))


def _settle(site: Construction, made: list[Origin], fate: Fate, why: str) -> None:
    """Account for where the value comes from, unless something else may read it too."""
    for one in made:
        if one.node is not None and not one.is_none and one.source in site.program.sources:
            site.account(one.node, fate, why, one.source)


def _at_run_time(
    site: Construction,
    plan: Plan,
    helpers: Helpers,
    argument: Argument,
    members: frozenset[str],
    device: str,
    meshed: bool,
) -> None:
    """A strategy that only the run knows: a small function makes arguments of it."""
    text = site.flat(argument.value)
    if any(one in text for one in (" if ", "\n", "{")):
        name = site.free("strategy", "sharding_strategy")
        plan.before.append(f"{name} = {text}")
        text = name
    if members <= {"FULL_SHARD", "SHARD_GRAD_OP"}:
        kept = f"{site.name(STRATEGY)}.SHARD_GRAD_OP"
        plan.conditional.append((f"{text} is {kept}", "reshard_after_forward", "False"))
    else:
        unsharded = ""
        if meshed and "NO_SHARD" in members:
            unsharded = helpers.add("unsharded_mesh", unsharded_helper(device))
        options = strategy_helper(members, device, meshed, unsharded)
        name = helpers.add("sharding_options", options)
        given = f", {plan.shared.pop('mesh')}" if meshed else ""
        plan.spread.append(f"{name}({text}{given})")
    site.account(
        argument.node, "changed", "the value of the run decides what is kept and on which mesh"
    )


def _members(site: Construction, argument: Argument) -> frozenset[str] | None:
    """The names of the strategies that it can be; None when some are known only at run time."""
    found = set()
    for one in sources_of(site, argument) or ():
        name = meaning(site.program, one.source, one.node)
        if one.is_none:
            found.add("FULL_SHARD")
        elif name.startswith(f"{STRATEGY}.") and name.rpartition(".")[2] in MEMBERS:
            found.add(name.rpartition(".")[2])
        else:
            return None
    return frozenset(found) or None


# -- meshes -----------------------------------------------------------------------------------------------------


def _given_mesh(site: Construction, plan: Plan, helpers: Helpers, device: str) -> str:
    """Plan the mesh that is given; ``!why`` when it cannot be done, else whether there is one."""
    mesh = site.arguments.get("device_mesh")
    if mesh is not None and all(is_none(v) for v in mesh.values) and mesh.values:
        site.account(mesh.node, "dropped", "all ranks are the default in both")
        mesh = None
    if mesh is not None:
        _name_dimensions(site, mesh)
        plan.shared["mesh"] = site.text(mesh.value)
        site.account(
            mesh.node, "changed", "the same mesh, under the name that fully_shard gives it"
        )
    group = site.arguments.get("process_group")
    if group is None:
        return "mesh" if mesh is not None else ""
    asked = isinstance(group.written or group.value, cst.Call)  # a run may answer otherwise
    if group.values and all(is_none(v) for v in group.values) and not asked:
        site.account(group.node, "dropped", "all ranks are the default in both")
        return "mesh" if mesh is not None else ""
    if mesh is not None:
        return "!it is given both a mesh and a process group"
    return _grouped(site, plan, helpers, group, device)


def _grouped(site: Construction, plan: Plan, helpers: Helpers, group: Argument, device: str) -> str:
    for value in group.values:
        if isinstance(value, Literal) and value.value is not None:
            return f"!the process group is {value.value!r}, which is none"
    text = site.text(group.value)
    is_pair = isinstance(group.value, cst.Tuple)
    given_values = [v for v in group.values if not is_none(v)]
    pairs = [v for v in given_values if isinstance(v, Container)]
    if pairs and len(pairs) < len(given_values):
        return "!it is given one process group or a pair of them"
    if is_pair or pairs:
        helper = helpers.add("hybrid_mesh", pair_helper(device))
        given = text.strip("()").rstrip(", ") if is_pair else f"*{text}"
        name = site.free("mesh", "device_mesh")
        unless = (
            f" if {text} is not None else None" if len(given_values) < len(group.values) else ""
        )
        plan.before.append(f"{name} = {helper}({given}){unless}")
        plan.shared["mesh"] = name
        site.account(group.node, "changed", "a mesh of the same groups: copies first, then shards")
        return "mesh"
    text = plan.group or text
    made = f'{site.name("torch.distributed.device_mesh.DeviceMesh")}.from_group({text}, "{device}")'
    if not group.values or any(is_none(v) for v in group.values):
        made += f" if {text} is not None else None"
    name = site.free("mesh", "device_mesh")
    plan.before.append(f"{name} = {made}")
    plan.shared["mesh"] = name
    site.account(group.node, "changed", "a mesh over the same ranks")
    return "mesh"


def _name_dimensions(site: Construction, mesh: Argument) -> None:
    """Give names to the dimensions of a mesh of two that has none: ``fully_shard`` wants them."""
    for value in mesh.values:
        call = mesh_call(site, mesh) if isinstance(value, Mesh) and value.names is None else None
        if call is not None and len(call.args) == 2 and _is_pair(call.args[1].value):
            edit = Arguments(site.source, call).add(
                "mesh_dim_names", '("dp_replicate", "dp_shard")'
            )
            site.elsewhere[call] = (edit,)


def mesh_call(site: Construction, mesh: Argument) -> cst.Call | None:
    """The ``init_device_mesh(...)`` that makes a mesh, if it is in sight."""
    node = mesh.written or mesh.value
    if isinstance(node, cst.Name):
        made = only_binding(site.source, node)
        node = made.value if made is not None else node
    is_made = isinstance(node, cst.Call) and dotted(node.func).endswith("init_device_mesh")
    return node if is_made and isinstance(node, cst.Call) else None


def _is_pair(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Tuple | cst.List) and len(node.elements) == 2


def device_type(site: Construction) -> str:
    """The kind of device that the program trains on, as far as the call says; else ``cuda``."""
    node = _device(site)
    if node is None:
        return site.device or "cuda"
    kinds = list(_kinds(site.source, node))
    others = [kind for kind in kinds if kind != "cpu"]
    chosen = any(isinstance(one, cst.IfExp) for one in _with_names(site.source, node))
    return "cpu" if kinds and not others and not chosen else (*others, "cuda")[0]


def may_be_cpu(site: Construction) -> bool:
    """Whether the device of a call is chosen, and one of them is the CPU."""
    node = _device(site)
    return node is not None and "cpu" in _kinds(site.source, node) and device_type(site) != "cpu"


def _device(site: Construction) -> cst.BaseExpression | None:
    """What the call is given for ``device_id``, where that is written."""
    argument = site.arguments.get("device_id")
    if argument is None:
        return None
    made = (
        only_binding(site.source, argument.value) if isinstance(argument.value, cst.Name) else None
    )
    return made.value if made is not None else argument.value


def _kinds(source: Source, node: cst.BaseExpression) -> Iterator[str]:
    """The kinds of device that an expression names, but for those that a choice in it asks about."""
    parts = list(_with_names(source, node))
    asked = {n for one in parts if isinstance(one, cst.IfExp) for n in walk(one.test)}
    for one in parts:
        said = ""
        if isinstance(one, cst.SimpleString):
            said = str(one.evaluated_value).partition(":")[0]
        elif isinstance(one, cst.Attribute) and dotted(one).startswith("torch."):
            said = dotted(one).split(".")[1]
        if said in _DEVICES and one not in asked:
            yield said


def _with_names(source: Source, node: cst.BaseExpression) -> Iterator[cst.CSTNode]:
    """The parts of an expression, and of what a name that ``torch.device`` is given is bound to."""
    yield from walk(node)
    if isinstance(node, cst.Call) and len(node.args) == 1:
        name = node.args[0].value
        made = only_binding(source, name) if isinstance(name, cst.Name) else None
        if made is not None and dotted(node.func) == "torch.device":
            yield from walk(made.value)
