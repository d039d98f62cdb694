"""What a script does with parts of FSDP1 that are not public, and what a person has to do instead."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Account,
    Edit,
    External,
    Layout,
    Left,
    Program,
    Read,
    Replace,
    Source,
    Step,
    Value,
    Wrapping,
    dotted,
    name_for,
    options,
    walk,
    wrapper,
)

from .loop_models import FSDP1
from .loop_text import receiver_text, text_of
from .names import is_none
from .shared import Helpers, Naming

_FSDP = "torch.distributed.fsdp."
_PRIVATE = (
    "_common_utils",
    "_dynamo_utils",
    "_exec_order_utils",
    "_flat_param",
    "_init_utils",
    "_limiter_utils",
    "_optim_utils",
    "_runtime_utils",
    "_shard_utils",
    "_state_dict_utils",
    "_trace_utils",
    "_traversal_utils",
    "_unshard_param_utils",
    "_wrap_utils",
    "flat_param",
)
"""The modules of ``torch/distributed/fsdp`` that are FSDP1's alone."""
_FLAT = "torch.distributed.fsdp.FlatParameter"
_OF_FLAT = ("_flat_param", "_is_flat_param", "_shard_param_infos")
"""Attributes of units and of flat parameters."""
OF_UNITS = ("_handle", "_is_root", "_has_params", "_fsdp_use_orig_params")
"""Attributes of FSDP1's units that other classes may have too (torch/distributed/fsdp/_common_utils.py)."""
OF_WRAPPERS = ("world_size", "rank", "params", "process_group", "_streams", "_handles")
"""What FSDP1 sets on the wrapper itself, which hides what the module inside has
(torch/distributed/fsdp/_init_utils.py)."""

_INSTEAD = {
    "_reshard": "call reshard() of the FSDPModule, which frees its gathered parameters",
    "_unshard": "call unshard() of the FSDPModule, which gathers its parameters",
    "FlatParamHandle.reshard": "call reshard() of the FSDPModule, which frees its gathered parameters",
    "FlatParamHandle.unshard": "call unshard() of the FSDPModule, which gathers its parameters",
    "_unshard_fsdp_state_params": "call unshard() and reshard() of each FSDPModule",
    "_lazy_init": "delete this, the first forward of the root does it",
    "_root_pre_forward": "delete this, the hooks of fully_shard do it",
    "_get_fsdp_states": "go through model.modules() and take each FSDPModule",
    "_get_fsdp_handles": "go through model.modules() and take each FSDPModule",
    "_get_fsdp_root_states": "keep the model that fully_shard was called on last",
    "_is_fsdp_flattened": "test isinstance(parameter, DTensor)",
    "_module_handle": "ask the FSDPModule itself: it holds its parameters as DTensors",
    "_handle": "use the module's own parameters, which are DTensors",
    "world_size": "call torch.distributed.get_world_size()",
    "rank": "call torch.distributed.get_rank()",
    "params": "use the module's own parameters, which are DTensors",
    "process_group": "keep the process group or the mesh in a variable",
    "_streams": "delete what uses FSDP1's streams: fully_shard keeps its own",
    "_handles": "use the module's own parameters, which are DTensors",
    "_has_params": "ask the module for its parameters",
    "_is_root": "compare with the model that fully_shard was called on last",
    "_FSDPState": "test isinstance(module, FSDPModule)",
    "_get_module_fsdp_state": "test isinstance(module, FSDPModule)",
    "TrainingState": "delete what sets or reads FSDP1's state of training: fully_shard keeps its own",
    "HandleTrainingState": "delete what sets or reads FSDP1's state of training: fully_shard keeps its own",
    "_post_backward_hook": "delete the patch: fully_shard has hooks of its own",
    "_pre_backward_hook": "delete the patch: fully_shard has hooks of its own",
    "_pre_forward": "delete the patch: fully_shard has hooks of its own",
    "_post_forward": "delete the patch: fully_shard has hooks of its own",
    "_init_streams": "delete the patch: fully_shard has streams of its own",
    "FlatParamHandle": "use the module's own parameters, which are DTensors",
    "HYBRID_SHARDING_STRATEGIES": "ask whether the mesh of the model has two dimensions",
    "_init_intra_and_inter_node_groups": "make the mesh of the nodes and their GPUs with init_device_mesh, and take the groups from it",
    "_post_backward_final_callback": "delete the patch: fully_shard has hooks of its own",
    "_auto_wrap": "call fully_shard on each of the modules, children first",
    "_recursive_wrap": "call fully_shard on each of the modules, children first",
}
"""What comes instead of the parts that scripts use most (torch/distributed/fsdp/_runtime_utils.py and others)."""


def insides(program: Program, handled: tuple[str, ...]) -> Iterator[Left]:
    """What works on flat parameters, and on other things inside FSDP1; ``handled`` are seen to elsewhere."""
    for reference in program.references(*(f"{_FSDP}{name}.*" for name in _PRIVATE)):
        if reference.name not in handled and not reference.name.startswith(_FLAT):
            why = "it is a part of FSDP1's own working"
            yield Left(reference.source, reference.node, why, instead(reference.name))
    why = "FSDP2 has no flat parameters"
    todo = "FSDP2 has no flat parameters: use the module's own parameters, which are DTensors"
    for reference in program.references(_FLAT, f"{_FLAT}.*"):
        yield Left(reference.source, reference.node, why, todo)
    for source, node in _of_flat(program):
        if not _is_its_own(source, node):
            yield Left(source, node, why, todo)
    for source, node in _of_units(program):
        if not _is_answered(program, source, node):
            yield Left(source, node, "an attribute of FSDP1's wrapper", instead(node.attr.value))


def _of_flat(program: Program) -> Iterator[tuple[Source, cst.Attribute]]:
    """What is read of flat parameters by its name."""
    for source in program.sources:
        for node in walk(source.tree) if any(name in source.text for name in _OF_FLAT) else ():
            if isinstance(node, cst.Attribute) and node.attr.value in _OF_FLAT:
                around = Layout.of(source).ancestors(node)
                if not any(isinstance(n, cst.Import | cst.ImportFrom) for n in around):
                    yield source, node


def _is_its_own(source: Source, node: cst.Attribute) -> bool:
    """Whether ``self._flat_param`` was put there by the class around it, which the script defines."""
    if not isinstance(node.value, cst.Name) or node.value.value != "self":
        return False
    around = Layout.of(source).ancestors(node)
    owner = next((n for n in around if isinstance(n, cst.ClassDef)), None)
    if owner is None or any(dotted(b.value).split(".")[-1] not in _PLAIN for b in owner.bases):
        return False
    return any(
        isinstance(one, cst.AssignTarget) and one.target.deep_equals(node) for one in walk(owner)
    )


_PLAIN = ("Module", "object")


_OF_ALL_RANKS = {
    "world_size": ("torch.distributed.get_world_size", "()"),
    "rank": ("torch.distributed.get_rank", "()"),
    "process_group": ("torch.distributed.group", ".WORLD"),
}
"""What is asked instead, and what follows that name."""


def of_wrappers(program: Program) -> Iterator[Step]:
    """``model.world_size``, ``model.rank`` and ``model.process_group``: FSDP1 knows them of the wrapper."""
    groups: dict[Source, list[cst.Attribute]] = {}
    for source, node in _of_units(program):
        if not _is_answered(program, source, node):
            continue
        if program.derived(_is_over_all_ranks):
            wanted, further = _OF_ALL_RANKS[node.attr.value]
            name = name_for(source, node, wanted)
            edits = (Replace(source, node, name.text + further), *name.edits)
            why = "the wrapper's own attribute: it is sharded over all ranks"
            yield Step(edits, (Account(source, node, "changed", why, own=True),))
        else:
            groups.setdefault(source, []).append(node)
    for source, nodes in groups.items():
        why = "the wrapper's own attribute: the mesh of its parameters knows the group"
        accounts = tuple(Account(source, node, "changed", why, own=True) for node in nodes)
        yield Step(tuple(_groups_of_meshes(program, source, nodes)), accounts)


def is_answered(program: Program, source: Source, node: cst.Attribute) -> bool:
    """Whether `of_wrappers` rewrites what is read of a unit."""
    return _is_answered(program, source, node) and (source, node) in set(_of_units(program))


def _is_answered(program: Program, source: Source, node: cst.Attribute) -> bool:
    if node.attr.value not in _OF_ALL_RANKS:
        return False
    if isinstance(Layout.of(source).parents[node], cst.AssignTarget | cst.AugAssign | cst.Del):
        return False
    if program.derived(_is_over_all_ranks):
        return True
    if node.attr.value != "process_group" or not program.derived(_has_one_mesh):
        return False
    asked = [read for _, read in program.of(Read) if read.at.node is node]
    return bool(asked) and all(wrapper(read.owner) == "fsdp1" for read in asked)


def _groups_of_meshes(
    program: Program, source: Source, nodes: list[cst.Attribute]
) -> Iterator[Edit]:
    """The groups of the ranks that share the parameters of models: in a mesh of two dimensions the last.

    FSDP1 has all ranks for its group where nothing is sharded (NO_SHARD); the mesh has one rank there.
    """
    strategies = program.derived(_strategies)
    if strategies is not None and "NO_SHARD" not in strategies:
        for node in nodes:
            model = receiver_text(source, node.value)
            group = f"next({model}.parameters()).device_mesh.get_group(-1)"
            yield Replace(source, node, group)
        return
    helpers = Helpers.above(source, min(nodes, key=lambda n: Layout.of(source).span(n)[0]))
    name = helpers.add("sharding_group", _sharding_group)
    for node in nodes:
        yield Replace(source, node, f"{name}({text_of(source, node.value)})")
    yield from helpers.all_edits()


def _sharding_group(name: str, _: Naming) -> str:
    return f'''def {name}(model):
    """The ranks that share the parameters of a model, or that all keep them."""
    mesh = next(model.parameters()).device_mesh
    return mesh.get_group(-1 if mesh.size(-1) > 1 else 0)'''


_PLACES = ("process_group", "device_mesh")
_IGNORED = ("ignored_modules", "ignored_parameters", "ignored_states")


def _given(program: Program, *names: str) -> set[Value]:
    """What FSDP1's constructors are given for these arguments, but for None."""
    return {
        one
        for _, event in program.of(Wrapping)
        if event.by == "fsdp1"
        for name in names
        if (value := event.options.get(name)) is not None
        for one in options(value)
        if not is_none(one)
    }


def _strategies(program: Program) -> frozenset[str] | None:
    """The sharding strategies of all FSDP1 models; None where one is not known."""
    given = _given(program, "sharding_strategy")
    if not all(isinstance(one, External) for one in given):
        return None
    return frozenset(one.name.rpartition(".")[2] for one in given if isinstance(one, External))


def _is_over_all_ranks(program: Program) -> bool:
    """Whether every FSDP1 model is sharded over all ranks: no group, no mesh, no strategy that makes one."""
    strategies = _strategies(program)
    return strategies is not None and strategies <= _OVER_ALL and not _given(program, *_PLACES)


def _has_one_mesh(program: Program) -> bool:
    """Whether every parameter of every FSDP1 model is sharded on the same mesh, of copies and shards at most."""
    tensor_parallel = any(True for _ in program.references("torch.distributed.tensor.parallel.*"))
    places = _given(program, *_PLACES)
    return len(places) <= 1 and not tensor_parallel and not _given(program, *_IGNORED)


_OVER_ALL = frozenset({"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"})


def _of_units(program: Program) -> Iterator[tuple[Source, cst.Attribute]]:
    """What is read of a unit: of a resolved model, or where the function asks if it is FSDP1's."""
    found: dict[cst.Attribute, Source] = {}
    for _, read in program.of(Read):
        node = read.at.node
        if read.name in (*OF_UNITS, *OF_WRAPPERS) and wrapper(read.owner) == "fsdp1":
            if isinstance(node, cst.Attribute) and node.attr.value == read.name:
                found[node] = read.at.source
    found |= dict(_of_listed(program))
    for reference in program.references(FSDP1):
        source = reference.source
        around = list(Layout.of(source).ancestors(reference.node))
        asked = next((n for n in around if _is_test(n)), None)
        if isinstance(asked, cst.Call) and any(name in source.text for name in OF_UNITS):
            model = source.code(asked.args[0].value)
            scope = next((n for n in around if isinstance(n, cst.FunctionDef)), source.tree)
            for node in walk(scope):
                if isinstance(node, cst.Attribute) and node.attr.value in OF_UNITS:
                    if source.code(node.value) == model:
                        found[node] = source
    return ((source, node) for node, source in found.items())


def _of_listed(program: Program) -> Iterator[tuple[cst.Attribute, Source]]:
    """What is read of each wrapper in a loop over ``FSDP.fsdp_modules(model)``."""
    for reference in program.references(f"{FSDP1}.fsdp_modules"):
        layout = Layout.of(reference.source)
        loop = next(
            (n for n in layout.ancestors(reference.node) if isinstance(n, cst.For | cst.CompFor)),
            None,
        )
        if loop is None or not any(reference.node is one for one in walk(loop.iter)):
            continue
        bound = {n.value for n in walk(loop.target) if isinstance(n, cst.Name)}
        inside = layout.parents[loop] if isinstance(loop, cst.CompFor) else loop.body
        for node in walk(inside):
            if isinstance(node, cst.Attribute) and node.attr.value in (*OF_UNITS, *OF_WRAPPERS):
                if isinstance(node.value, cst.Name) and node.value.value in bound:
                    yield node, reference.source


def _is_test(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and len(node.args) == 2 and dotted(node.func) == "isinstance"


def instead(name: str) -> str:
    """What to do where something of FSDP1's own working is used."""
    parts = name.split(".")
    what = parts[-1]
    known = next(
        (_INSTEAD[name] for name in (".".join(parts[-2:]), *parts) if name in _INSTEAD), ""
    )
    return f"FSDP2 has no `{what}`: {known or 'find out what this is for'}"
