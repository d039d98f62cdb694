"""Sharding strategy, process group and mesh of FSDP1 as ``mesh`` and ``reshard_after_forward``.

Facts (measured on torch 2.13): ``FULL_SHARD`` is what ``fully_shard`` does by default, the root's
parameters kept after forward; a mesh of two dimensions is (replicate, shard) in both; on a mesh of shape
(world, 1) every rank keeps all parameters and gradients are averaged, bit for bit as with ``NO_SHARD``.
"""

from __future__ import annotations

import re
from textwrap import dedent

import libcst as cst

from fsdp2lint.api import (
    Arguments,
    Container,
    External,
    Layout,
    Literal,
    Mesh,
    Names,
    OneOf,
    Part,
    Program,
    Replace,
    Source,
    dotted,
    scope_of,
    walk,
)

from .._common.names import function_scope, is_none, named_once, uses
from .._common.origins import Origin, entries_of, meaning, own_values, table_of
from .._common.shared import Helpers
from .chosen import held_by
from .devices import CUDA, Device, device_of
from .displays import given_by_callers
from .helpers import (
    STRATEGY,
    hybrid_mesh,
    pair_helper,
    replicated_mesh,
    strategy_helper,
    unsharded_helper,
)
from .pieces import Pieces
from .site import FSDP1, Argument, Construction, Fate, sources_of

MEMBERS = frozenset("FULL_SHARD SHARD_GRAD_OP NO_SHARD HYBRID_SHARD _HYBRID_SHARD_ZERO2".split())
HYBRID = frozenset({"HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"})
KEPT = frozenset({"SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"})


def sharding(site: Construction, pieces: Pieces, helpers: Helpers) -> str:
    """Plan the mesh and what is kept after forward; why it cannot be done, if so."""
    device = device_of(site)
    meshed = _given_mesh(site, pieces, helpers, device)
    if meshed.startswith("!"):
        return meshed[1:]
    argument = site.arguments.get("sharding_strategy")
    members = _members(site, argument) if argument is not None else frozenset({"FULL_SHARD"})
    if members is not None and len(members) > 1 and meshed and _is_surely_given(site):
        members = frozenset(_ON_A_MESH.get(one, one) for one in members)
    if argument is not None and members is not None and len(members) == 1:
        (member,) = members
        _one(site, pieces, helpers, argument, member, device, bool(meshed))
    elif argument is not None:
        _at_run_time(site, pieces, helpers, argument, members or MEMBERS, device, bool(meshed))
    if not _is_decided(device) and "mesh" not in pieces.shared and pieces.spread == pieces.unmeshed:
        world = f"{site.name('torch.distributed.get_world_size')}()"
        mesh = f"{site.name(_MESH)}({device.text}, ({world},))"
        if pieces.own:  # one mesh, however many modules are sharded
            pieces.before.append(f'{pieces.own}["mesh"] = {mesh}')
        else:
            pieces.shared["mesh"] = mesh
    return ""


_MESH = "torch.distributed.device_mesh.init_device_mesh"
_ON_A_MESH = {"HYBRID_SHARD": "FULL_SHARD", "_HYBRID_SHARD_ZERO2": "SHARD_GRAD_OP"}
"""What is left of a hybrid strategy where the mesh itself says which ranks hold copies."""


def _is_surely_given(site: Construction) -> bool:
    """Whether a mesh is given in every run."""
    mesh = site.arguments.get("device_mesh")
    found = sources_of(site, mesh) if mesh is not None else None
    return bool(found) and not any(one.is_none for one in found or ())


def _is_decided(device: Device) -> bool:
    """Whether `fully_shard` itself takes the right kind of device, without a mesh."""
    return device == CUDA or device.is_default or not device.meant


def _one(
    site: Construction,
    pieces: Pieces,
    helpers: Helpers,
    argument: Argument,
    member: str,
    device: Device,
    meshed: bool,
) -> None:
    """A strategy that is known now."""
    made = [one for one in sources_of(site, argument) or () if one.node is not argument.value]
    if member == "FULL_SHARD":
        why = "fully_shard shards in full by default"
        why += ", over the given mesh" if meshed else ""
        site.account(argument.node, "dropped", why)
        _settle(site, made, "dropped", why)
        return
    said = []
    if member in KEPT:
        pieces.shared["reshard_after_forward"] = "False"
        said.append("`reshard_after_forward=False` keeps the parameters after forward")
    if member in HYBRID and not meshed:
        name = site.free("mesh", "device_mesh", "hsdp_mesh")
        pieces.before += hybrid_mesh(site.name, device.text, name)
        pieces.shared["mesh"] = name
        said.append("the mesh has shards within a node and copies across nodes, as FSDP1 made it")
    elif member in HYBRID:
        said.append("the given mesh is (replicate, shard) in both")
    if member == "NO_SHARD":
        name = site.free("mesh", "device_mesh", "replicate_mesh")
        if meshed:
            given = helpers.add("unsharded_mesh", unsharded_helper(device.text))
            pieces.before.append(f"{name} = {given}({pieces.shared['mesh']}{_handed(device)})")
        else:
            pieces.before += replicated_mesh(site.name, device.text, name)
        pieces.shared["mesh"] = name
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
    pieces: Pieces,
    helpers: Helpers,
    argument: Argument,
    members: frozenset[str],
    device: Device,
    meshed: bool,
) -> None:
    """A strategy that only the run knows: a small function makes arguments of it."""
    if members <= {"FULL_SHARD", "SHARD_GRAD_OP"}:
        text = resharding(site, argument)
        if "\n" in text or len(text) > 60:
            name = site.free("reshard_after_forward", "reshard")
            pieces.before.append(f"{name} = {text}")
            text = name
        pieces.shared["reshard_after_forward"] = text
        why = "whether parameters are freed after forward, as a bool; at the root too"
        site.account(argument.node, "changed", why)
        return
    if members <= HYBRID and not meshed:
        name = site.free("mesh", "device_mesh", "hsdp_mesh")
        pieces.before += hybrid_mesh(site.name, device.text, name)
        pieces.shared["mesh"] = name
        text = site.flat(argument.value)
        text = text if re.fullmatch(r"[\w.\[\]\"']+", text) else f"({text})"
        pieces.shared["reshard_after_forward"] = f"{text} is {site.name(STRATEGY)}.HYBRID_SHARD"
        why = (
            "a mesh with shards within a node and copies across nodes, as FSDP1 made it, and a bool"
        )
        site.account(argument.node, "changed", why)
        return
    text = site.flat(argument.value)
    if any(one in text for one in (" if ", "\n", "{")):
        name = site.free("strategy", "sharding_strategy")
        pieces.before.append(f"{name} = {text}")
        text = name
    shared = not meshed and "NO_SHARD" not in members and _gives_meshes(site, argument)
    unsharded = ""
    if meshed and "NO_SHARD" in members:
        unsharded = helpers.add("unsharded_mesh", unsharded_helper(device.text))
    whole = not _is_decided(device) and not (meshed and _is_surely_given(site))
    options = strategy_helper(members, device.text, meshed or shared, unsharded, whole)
    name = helpers.add("sharding_options", options)
    given = f", {pieces.shared.pop('mesh')}" if meshed else ", None" if shared else ""
    pieces.spread.append(f"{name}({text}{given}{_handed(device)})")
    site.account(argument.node, "changed", "chosen at run time by `sharding_options()`")


def _gives_meshes(site: Construction, argument: Argument) -> bool:
    """Whether another call of the file is given a mesh with the same strategy: then one function serves both."""
    said = site.text(argument.value)
    for node in walk(site.source.tree):
        if isinstance(node, cst.Call) and meaning(site.program, site.source, node.func) == FSDP1:
            given = {a.keyword.value: a.value for a in node.args if a.keyword is not None}
            if "device_mesh" in given and "sharding_strategy" in given:
                if site.source.code(given["sharding_strategy"]) == said:
                    return True
    return False


def _handed(device: Device) -> str:
    """What a function that makes a mesh is given besides, where only the run knows the device."""
    return "" if device.is_known else f", {device.text}"


def _members(site: Construction, argument: Argument) -> frozenset[str] | None:
    """The names of the strategies that it can be; None when some are known only at run time."""
    found = set()
    sources = sources_of(site, argument) or given_by_callers(
        site.program, site.source, argument.value
    )
    each = [other for one in sources for other in held_by(site.program, one.node) or [one]]
    for one in each:
        name = meaning(site.program, one.source, one.node)
        if one.is_none:
            found.add("FULL_SHARD")
        elif name.startswith(f"{STRATEGY}.") and name.rpartition(".")[2] in MEMBERS:
            found.add(name.rpartition(".")[2])
        else:
            return _offered(argument)
    return frozenset(found) or _offered(argument)


def _offered(argument: Argument) -> frozenset[str] | None:
    """The same, where every run takes the name from an option of the command line that offers only some."""
    found: set[object] = set()
    for value in argument.values:
        key = value.key if isinstance(value, Part) else None
        asked = key[1] if isinstance(key, tuple) and key[0] == "[]" else None
        if isinstance(value, External) and value.name.startswith(f"{STRATEGY}."):
            found.add(value.name.rpartition(".")[2])
        elif (
            isinstance(asked, OneOf) and value.owner is not None and value.owner.words() == STRATEGY
        ):
            found.update(asked.constants)
        else:
            return None
    names = frozenset(str(one) for one in found)
    return names if names and names <= MEMBERS else None


# -- meshes -----------------------------------------------------------------------------------------------------


def _given_mesh(site: Construction, pieces: Pieces, helpers: Helpers, device: Device) -> str:
    """Plan the mesh that is given; ``!why`` when it cannot be done, else whether there is one."""
    mesh = site.arguments.get("device_mesh")
    if mesh is not None and all(is_none(v) for v in mesh.values) and mesh.values:
        site.account(mesh.node, "dropped", "all ranks are the default in both")
        mesh = None
    if mesh is not None:
        _name_dimensions(site, mesh)
        pieces.shared["mesh"] = _named_inside(site, mesh) or site.text(mesh.value)
        site.account(
            mesh.node, "changed", "the same mesh, under the name that fully_shard gives it"
        )
    group = site.arguments.get("process_group")
    if group is None:
        return "mesh" if mesh is not None else ""
    asked = isinstance(group.written or group.value, cst.Call)  # a run may answer otherwise
    asked |= is_parameter(site, group.value)  # so may a caller outside of the project
    if group.values and all(is_none(v) for v in group.values) and not asked:
        site.account(group.node, "dropped", "all ranks are the default in both")
        return "mesh" if mesh is not None else ""
    if is_default_group(site, group):
        site.account(group.node, "dropped", "all ranks are the default in both")
        return "mesh" if mesh is not None else ""
    if mesh is not None:
        return "!it is given both a mesh and a process group"
    return _grouped(site, pieces, helpers, group, device)


def is_parameter(site: Construction, node: cst.BaseExpression, default: str = "") -> bool:
    """Whether an expression is a parameter of the function, with a default (this one): callers may leave it."""
    scope = site.scope
    if not isinstance(node, cst.Name) or not isinstance(scope, cst.FunctionDef):
        return False
    params = (*scope.params.params, *scope.params.kwonly_params)
    named = next((one for one in params if one.name.value == node.value), None)
    if named is None or named.default is None:
        return False
    return default in ("", site.source.code(named.default))


def is_default_group(site: Construction, group: Argument) -> bool:
    """Whether it is the group of all ranks, by its name."""
    found = sources_of(site, group) or []
    return bool(found) and all(
        one.node is not None
        and meaning(site.program, one.source, _called(one.node)).rpartition("torch.distributed.")[2]
        in _DEFAULT
        for one in found
    )


def _called(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.func if isinstance(node, cst.Call) else node


_DEFAULT = (
    "group.WORLD",
    "GroupMember.WORLD",
    "distributed_c10d.group.WORLD",
    "distributed_c10d.GroupMember.WORLD",
    "distributed_c10d._get_default_group",
)


def _grouped(
    site: Construction, pieces: Pieces, helpers: Helpers, group: Argument, device: Device
) -> str:
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
        helper = helpers.add("hybrid_mesh", pair_helper(device.text))
        given = text.strip("()").rstrip(", ") if is_pair else f"*{text}"
        name = site.free("mesh", "device_mesh")
        unless = (
            f" if {text} is not None else None" if len(given_values) < len(group.values) else ""
        )
        pieces.before.append(f"{name} = {helper}({given}{_handed(device)}){unless}")
        pieces.shared["mesh"] = name
        site.account(group.node, "changed", "a mesh of the same groups: copies first, then shards")
        return "mesh"
    text = pieces.group or text
    maybe = not group.values or any(is_none(v) for v in group.values)
    maybe |= is_parameter(site, group.value, "None")
    if maybe and "(" in text:  # asked once
        asked, text = text, site.free("group", "process_group")
        pieces.before.append(f"{text} = {asked}")
    mesh = site.name("torch.distributed.device_mesh.DeviceMesh")
    made = f"{mesh}.from_group({text}, {device.text})"
    if maybe:
        made += f" if {text} is not None else None"
    name = site.free("mesh", "device_mesh")
    pieces.before.append(f"{name} = {made}")
    pieces.shared["mesh"] = name
    site.account(group.node, "changed", "a mesh over the same ranks")
    return "mesh"


def _name_dimensions(site: Construction, mesh: Argument) -> None:
    """Give names to the dimensions of a mesh of two that has none: ``fully_shard`` wants them."""
    for value in mesh.values:
        call = mesh_call(site, mesh) if isinstance(value, Mesh) and value.names is None else None
        if call is not None and _is_nameless(call) and not _is_inside(site, call):
            edit = Arguments(site.source, call).add(
                "mesh_dim_names", '("dp_replicate", "dp_shard")'
            )
            site.elsewhere[call] = (edit,)


def _is_nameless(call: cst.Call) -> bool:
    return len(call.args) == 2 and _is_pair(call.args[1].value)


def _is_inside(site: Construction, call: cst.Call) -> bool:
    return site.call in site.layout.ancestors(call)


def _named_inside(site: Construction, mesh: Argument) -> str:
    """The text of a mesh of two dimensions that is made in the call itself, with their names."""
    call = mesh_call(site, mesh)
    if call is None or not _is_nameless(call) or not _is_inside(site, call):
        return ""
    given = ", ".join(site.text(arg.value) for arg in call.args)
    return f'{dotted(call.func)}({given}, mesh_dim_names=("dp_replicate", "dp_shard"))'


def mesh_call(site: Construction, mesh: Argument) -> cst.Call | None:
    """The ``init_device_mesh(...)`` that makes a mesh, if it is resolved."""
    node = mesh.written or mesh.value
    node = named_once(site.source, node) or node
    is_made = isinstance(node, cst.Call) and dotted(node.func).endswith("init_device_mesh")
    return node if is_made and isinstance(node, cst.Call) else None


def _is_pair(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Tuple | cst.List) and len(node.elements) == 2


# -- a choice that the run makes between two strategies, as a bool: where it is written when nothing else reads
# it, else compared where the model is sharded

_WORDS = {f"{STRATEGY}.FULL_SHARD": "True", f"{STRATEGY}.SHARD_GRAD_OP": "False"}
RESHARD = "reshard_after_forward"

Written = dict[cst.BaseExpression, tuple[Source, str]]
"""The members of the enumeration that a choice is written with, and the bools in their place."""


def resharding(site: Construction, argument: Argument) -> str:
    """The text of ``reshard_after_forward`` for a strategy that the run chooses."""
    value, found = argument.value, Written()
    if (name := _name_of_member(site, value)) is not None:
        return f'{site.text(name)} != "SHARD_GRAD_OP"'  # the command line refuses all but the two
    is_here = argument.home is None or site.call in Layout.of(site.source).ancestors(value)
    if argument.said or not is_here or not _only_chooses(site, value, found):
        text = site.flat(value)
        if not isinstance(value, cst.Name | cst.Attribute | cst.Call | cst.Subscript):
            text = f"({text})"
        return f"{text} is not {site.name(STRATEGY)}.SHARD_GRAD_OP"
    inside = {node for node in found if site.call in Layout.of(site.source).ancestors(node)}
    for node, (source, word) in found.items():
        if node not in inside:
            choice = Layout.of(source).parents.get(node)
            test = _test_alone(site, source, choice, found) if isinstance(choice, cst.IfExp) else ""
            at, text = (choice, test) if choice is not None and test else (node, word)
            site.elsewhere[at] = (Replace(source, at, text),)
            site.account(node, "changed", "the bool that `fully_shard` takes", source)
    if isinstance(value, cst.Name):
        return _renamed(site, value)
    if isinstance(value, cst.Attribute) and own_values(site.program, site.source, value):
        return _renamed_field(site, value)
    return _with_words(site, value, {node: found[node][1] for node in inside})


def _name_of_member(site: Construction, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """What says the name in ``ShardingStrategy[name]`` and ``getattr(ShardingStrategy, name)``."""
    given: list[cst.BaseExpression] = []
    if isinstance(node, cst.Subscript):
        indices = (one.slice for one in node.slice)
        given = [node.value, *(one.value for one in indices if isinstance(one, cst.Index))]
    elif isinstance(node, cst.Call) and dotted(node.func) == "getattr":
        given = [one.value for one in node.args]
    if len(given) != 2 or meaning(site.program, site.source, given[0]) != STRATEGY:
        return None
    return given[1]


def _only_chooses(site: Construction, node: cst.BaseExpression, found: Written) -> bool:
    """Whether an expression is a choice between the two members, which is read nowhere else."""
    return _chooses(site, site.source, node, found)


def _chooses(site: Construction, source: Source, node: cst.BaseExpression, found: Written) -> bool:
    name = meaning(site.program, source, node)
    word = "True" if dotted(node) == "None" else _WORDS.get(name)
    if word is not None:
        found[node] = source, word
        return source in site.program.sources and node not in site.fixed
    if isinstance(node, cst.IfExp):
        sides = (node.body, node.orelse)
        return all(_chooses(site, source, side, found) for side in sides)
    table = table_of(site.program, source, node)
    if table is not None:
        other, display = table
        asked = isinstance(node, cst.Call)
        held = node.func if isinstance(node, cst.Call) else node
        held = held.value if isinstance(held, cst.Attribute | cst.Subscript) else held
        default = [one.value for one in node.args[1:]] if isinstance(node, cst.Call) else []
        if isinstance(held, cst.Name) and not _is_read_once(site.program, other, display):
            return False
        if asked and not default:
            return False  # `get` gives None for others
        return all(
            one is not None and _chooses(site, other, one, found) for one in entries_of(display)
        ) and all(_chooses(site, source, one, found) for one in default)
    if isinstance(node, cst.Name) and source is site.source:
        return _is_local(site, node) and all(
            _chooses(site, source, value, found) for value in _bound(source, node)
        )
    if source is site.source and isinstance(node, cst.Attribute | cst.Call):
        values = own_values(site.program, source, node)
        member = node.func if isinstance(node, cst.Call) else node
        return (
            bool(values)
            and isinstance(member, cst.Attribute)
            and _reads(site.program, member.attr.value) == 1
            and all(_chooses(site, source, value, found) for value in values)
        )
    return False


def _reads(program: Program, member: str) -> int:
    """How often the project reads a field or method of this name."""
    return sum(
        isinstance(node, cst.Attribute)
        and node.attr.value == member
        and not isinstance(Layout.of(source).parents[node], cst.AssignTarget)
        for source in program.sources
        if f".{member}" in source.text
        for node in walk(source.tree)
    )


def _is_local(site: Construction, name: cst.Name) -> bool:
    """Whether a name is a plain variable of the function, which is read here alone."""
    names, source = Names.of(site.source), site.source
    scope = names.owner(name.value, scope_of(Layout.of(source).ancestors(name)))
    if scope is not site.scope or uses(source, name) != 1:
        return False
    if scope is source.tree and _is_imported(site.program, source, name.value):
        return False
    bound = names.bindings[scope][name.value]
    parents = (Layout.of(source).parents.get(one) for one in bound)
    return all(isinstance(one, cst.Assign) and len(one.targets) == 1 for one in parents) and all(
        isinstance(getattr(one, "target", None), cst.Name) for one in bound
    )


def _bound(source: Source, name: cst.Name) -> list[cst.BaseExpression]:
    names, layout = Names.of(source), Layout.of(source)
    scope = names.owner(name.value, scope_of(layout.ancestors(name)))
    assert scope is not None
    assigns = (layout.parents[one] for one in names.bindings[scope][name.value])
    return [one.value for one in assigns if isinstance(one, cst.Assign)]


def _renamed(site: Construction, name: cst.Name) -> str:
    """The name of a variable that holds the bool now."""
    names, source = Names.of(site.source), site.source
    scope = names.owner(name.value, scope_of(Layout.of(source).ancestors(name)))
    assert scope is not None
    better = site.free(RESHARD, "reshard")
    for one in names.bindings[scope][name.value]:
        target = getattr(one, "target", one)
        site.elsewhere[target] = (Replace(source, target, better),)
    return better


def _renamed_field(site: Construction, field: cst.Attribute) -> str:
    """The text of a field that holds the bool now, by the name of what it is where that is free."""
    source, text = site.source, site.source.code(field)
    if RESHARD in source.text or _is_property(source, field.attr.value):
        return text
    for node in walk(source.tree):
        if isinstance(node, cst.AssignTarget) and isinstance(node.target, cst.Attribute):
            if node.target.attr.value == field.attr.value:
                name = node.target.attr
                site.elsewhere[name] = (Replace(source, name, RESHARD),)
    return f"{source.code(field.value)}.{RESHARD}"


def _is_property(source: Source, name: str) -> bool:
    return f"def {name}(" in source.text


def _is_read_once(program: Program, source: Source, display: cst.CSTNode) -> bool:
    """Whether the name of a table is read at one place of the program."""
    assign = Layout.of(source).parents.get(display)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) else None
    if isinstance(assign, cst.AnnAssign):
        target = assign.target
    if not isinstance(target, cst.Name) or function_scope(source, display) is not source.tree:
        return isinstance(target, cst.Name) and uses(source, target) == 1
    return uses(source, target) == 1 and not _is_imported(program, source, target.value)


def _is_imported(program: Program, source: Source, name: str) -> bool:
    """Whether another file of the program takes a name from this one."""
    return any(
        program.comes_from(other, one, source, name)
        for other in program.sources
        if other is not source and name in other.text
        for one in Names.of(other).imports
    )


def _test_alone(site: Construction, source: Source, choice: cst.IfExp, found: Written) -> str:
    """The test of a choice between the two bools, negated if need be, where that says the same."""
    if source is not site.source or not {choice.body, choice.orelse} <= found.keys():
        return ""
    test, words = site.text(choice.test), (found[choice.body][1], found[choice.orelse][1])
    is_bool = isinstance(choice.test, cst.Comparison) or (
        isinstance(choice.test, cst.UnaryOperation) and isinstance(choice.test.operator, cst.Not)
    )
    if words == ("True", "False") and is_bool:
        return test
    if words == ("True", "False") and isinstance(choice.test, cst.Name | cst.Attribute):
        return test if _is_annotated_bool(site, choice.test) else f"bool({test})"
    if words == ("False", "True"):
        plain = isinstance(choice.test, cst.Name | cst.Attribute | cst.Call)
        return f"not {test}" if plain else f"not ({test})"
    return ""


def _is_annotated_bool(site: Construction, node: cst.BaseExpression) -> bool:
    """Whether a name is a parameter of the function around it that is annotated as a bool."""
    function = scope_of(site.layout.ancestors(node))
    if not isinstance(function, cst.FunctionDef) or not isinstance(node, cst.Name):
        return False
    params = (*function.params.params, *function.params.kwonly_params)
    found = [one.annotation for one in params if one.name.value == node.value]
    return any(one is not None and dotted(one.annotation) == "bool" for one in found)


def _with_words(
    site: Construction, value: cst.BaseExpression, words: dict[cst.BaseExpression, str]
) -> str:
    """The text of an expression with the bools in it; a comparison alone where that says the same."""
    if isinstance(value, cst.IfExp):
        found = {node: (site.source, word) for node, word in words.items()}
        if test := _test_alone(site, site.source, value, found):
            return test
    start, end = site.layout.whole(value)
    text, at = "", start
    for node in sorted(words, key=lambda one: site.layout.span(one)[0]):
        first, last = site.layout.span(node)
        text += site.source.text[at:first] + words[node]
        at = last
    text += site.source.text[at:end]
    line = " ".join(text.split())
    if len(line) < 60 and "#" not in text:
        return line.replace("{ ", "{").replace(", }", "}").replace("( ", "(").replace(" )", ")")
    head, _, rest = text.partition("\n")
    return f"{head}\n{dedent(rest)}" if rest else text
