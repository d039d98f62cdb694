"""Functions that are written into a file where what FSDP1 was given is known only when the program runs."""

from __future__ import annotations

import re

from .._common.shared import Build, Naming

FSDP = "torch.distributed.fsdp."
STRATEGY = f"{FSDP}ShardingStrategy"
MESH = "torch.distributed.device_mesh.init_device_mesh"
OPTIONS_OF_A_STRATEGY = "The arguments of fully_shard that stand for a sharding strategy."
DIMENSIONS = '("dp_replicate", "dp_shard")'


def policy_helper(always_down: bool, ignores: bool) -> Build:
    """The function that asks a policy as ``_recursive_wrap`` does (torch/distributed/fsdp/wrap.py).

    With mixed precision FSDP1 joins the policy with one for batch norms, which always goes down. Lists of
    modules have no forward, so that ``fully_shard`` refuses them.
    """

    def build(name: str, named: Naming) -> str:
        more = "shard, ignored" if ignores else "shard"
        lists = f"({named('torch.nn.ModuleList')}, {named('torch.nn.ModuleDict')})"
        unless = " if p not in ignored" if ignores else ""
        lines = [
            f"def {name}(module, policy, {more}, is_root=True):",
            '    """Shard the submodules that a wrap policy chooses; return how many parameters they have."""',
            f"    numel = sum(p.numel() for p in module.parameters(){unless})",
            f"    if isinstance(module, {named(f'{FSDP}FSDPModule')}):",
            "        return numel",
            "    if not policy(module=module, recurse=True, nonwrapped_numel=numel):",
            "        return 0",
            f"    done = sum({name}(m, policy, {more}, False) for m in module.children())",
            f"    if is_root or isinstance(module, {lists}):",
            "        return done",
            "    if not policy(module=module, recurse=False, nonwrapped_numel=numel - done):",
            "        return done",
            "    shard(module)",
            "    return numel",
        ]
        return "\n".join(lines[:5] + lines[7:] if always_down else lines)

    return build


def children_first(name: str, named: Naming) -> str:
    """The function that goes through modules in the order in which FSDP1 wraps them."""
    return f'''def {name}(module):
    """All modules inside a module, each before what holds it."""
    for child in module.children():
        yield from {name}(child)
    yield module'''


def taken(device: str) -> str:
    """The parameter of a function that makes a mesh, where only the run knows the kind of device."""
    return "" if inside(device) == device else ", device_type"


def inside(device: str) -> str:
    """The expression for the kind of device inside such a function."""
    return device if re.fullmatch(r'"\w+"', device) else "device_type"


def pair_helper(device: str) -> Build:
    """The function that makes a mesh of FSDP1's pair of process groups, which is (shard, replicate)."""

    def build(name: str, named: Naming) -> str:
        dist = named("torch.distributed.all_gather_object").removesuffix("all_gather_object")
        mesh = named("torch.distributed.device_mesh.DeviceMesh")
        return f'''def {name}(shard_group, replicate_group{taken(device)}):
    """The mesh (replicate, shard) that two process groups make."""
    rows = [None] * {dist}get_world_size()
    {dist}all_gather_object(rows, {dist}get_process_group_ranks(shard_group))
    return {mesh}.from_group(
        [replicate_group, shard_group],
        {inside(device)},
        mesh=sorted({{tuple(row) for row in rows}}),
        mesh_dim_names={DIMENSIONS},
    )'''

    return build


def unsharded_helper(device: str) -> Build:
    """The function that makes a mesh over some ranks on which every one keeps all parameters.

    A group of one rank is made without the others (``use_local_synchronization``): they may not come by.
    """

    def build(name: str, named: Naming) -> str:
        dist = named("torch.distributed.new_group").removesuffix("new_group")
        mesh = named("torch.distributed.device_mesh.DeviceMesh")
        return f'''def {name}(mesh{taken(device)}):
    """A mesh over the same ranks, or over all, on which every rank keeps all parameters."""
    group = {dist}group.WORLD if mesh is None else mesh.get_group()
    rank = {dist}get_rank()
    alone = {dist}new_group([rank], use_local_synchronization=True)
    return {mesh}.from_group(
        [group, alone],
        {inside(device)},
        mesh=[[rank] for rank in {dist}get_process_group_ranks(group)],
        mesh_dim_names={DIMENSIONS},
    )'''

    return build


def strategy_helper(
    members: frozenset[str], device: str, meshed: bool, unsharded: str = "", whole: bool = False
) -> Build:
    """The function that turns a sharding strategy that is known at run time into arguments.

    With ``meshed`` it is given a mesh too, which may be None; ``unsharded`` is the function that makes
    of that mesh one on which nothing is sharded. With ``whole`` it makes a mesh of all ranks where no other
    is needed: without one ``fully_shard`` takes the accelerator, if there is one.
    """

    def build(name: str, named: Naming) -> str:
        strategy = named(STRATEGY)
        start = '{} if mesh is None else {"mesh": mesh}' if meshed else "{}"
        lines = [
            f"def {name}(strategy{', mesh' if meshed else ''}{taken(device)}):",
            f'    """{OPTIONS_OF_A_STRATEGY}"""',
            f"    options = {start}",
        ]
        unmeshed = " and mesh is None" if meshed else ""
        kept = _among(members, ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"), strategy)
        if kept:
            lines += [
                f"    if strategy {kept}:",
                '        options["reshard_after_forward"] = False',
            ]
        hybrid = _among(members, ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"), strategy)
        if hybrid:
            made = hybrid_mesh(named, inside(device), 'options["mesh"]')
            if hybrid.startswith("in "):
                lines.append(f"    hybrid = {hybrid.removeprefix('in ')}")
                hybrid = "in hybrid"
            lines += [f"    if strategy {hybrid}{unmeshed}:", *(f"        {one}" for one in made)]
        if "NO_SHARD" in members and unsharded:
            lines += [
                f"    if strategy is {strategy}.NO_SHARD:",
                f'        options["mesh"] = {unsharded}(mesh{taken(device)})',
            ]
        elif "NO_SHARD" in members:
            made = replicated_mesh(named, inside(device), 'options["mesh"]')
            lines += [f"    if strategy is {strategy}.NO_SHARD:"]
            lines += [f"        {one}" for one in made]
        if whole:
            world = f"{named('torch.distributed.get_world_size')}()"
            lines += [
                '    if "mesh" not in options:',
                f'        options["mesh"] = {named(MESH)}({inside(device)}, ({world},))',
            ]
        return "\n".join([*lines, "    return options"])

    return build


def precision_helper(name: str, named: Naming) -> str:
    """The function that turns mixed precision settings that are known at run time into a policy."""
    policy = named(f"{FSDP}MixedPrecisionPolicy")
    return f'''def {name}(precision, is_root):
    """The policy of fully_shard that stands for mixed precision settings, which may be None."""
    if not precision:
        return {policy}()
    casts = precision.cast_root_forward_inputs if is_root else precision.cast_forward_inputs
    return {policy}(
        precision.param_dtype, precision.reduce_dtype, cast_forward_inputs=casts
    )'''


def _among(members: frozenset[str], wanted: tuple[str, ...], strategy: str) -> str:
    found = [f"{strategy}.{name}" for name in wanted if name in members]
    if not found:
        return ""
    return f"is {found[0]}" if len(found) == 1 else f"in ({', '.join(found)})"


def hybrid_mesh(named: Naming, device: str, name: str = "mesh") -> list[str]:
    """Statements that make the mesh of ``HYBRID_SHARD``: shards within a node, copies across nodes.

    FSDP1 takes the number of devices of this node for the size of a node
    (torch/distributed/fsdp/_init_utils.py, ``_init_intra_and_inter_node_groups``).
    """
    if device == '"cuda"':
        size = f"{named('torch.cuda.device_count')}()"
    elif device == '"cpu"':
        size = f'int({named("os.environ")}["LOCAL_WORLD_SIZE"])'
    else:
        size = f"{named('torch.get_device_module')}({device}).device_count()"
    world = f"{named('torch.distributed.get_world_size')}()"
    return [
        f"local_size = {size}",
        f"shape = ({world} // local_size, local_size)",
        *_mesh(named, device, name, "shape"),
    ]


def replicated_mesh(named: Naming, device: str, name: str = "mesh") -> list[str]:
    """Statements that make the mesh on which every rank keeps all parameters."""
    world = f"{named('torch.distributed.get_world_size')}()"
    return _mesh(named, device, name, f"({world}, 1)")


def _mesh(named: Naming, device: str, name: str, shape: str) -> list[str]:
    line = f"{name} = {named(MESH)}({device}, {shape}, mesh_dim_names={DIMENSIONS})"
    if len(line) < 80:
        return [line]
    items = [device, shape, f"mesh_dim_names={DIMENSIONS}"]
    inside = ", ".join(items)
    held = [f"    {inside}"] if len(inside) < 72 else [f"    {item}," for item in items]
    return [f"{name} = {named(MESH)}(", *held, ")"]
