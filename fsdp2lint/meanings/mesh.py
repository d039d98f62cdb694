"""Device meshes.

Source: torch/distributed/device_mesh.py; slices (``mesh["dp"]``) and attributes are in ``attributes``.
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import each_choice, strings, text
from fsdp2lint.model.events import Collective
from fsdp2lint.model.values import Mesh, Value


@calls(
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.device_mesh.DeviceMesh",
    "torch.distributed.device_mesh.DeviceMesh.from_group",
)
def make_mesh(call: Call) -> Value | None:
    """Making a mesh makes process groups, so all ranks must do it; from groups that exist it is local."""
    if not call.name.endswith("from_group"):
        call.emit(Collective, name=call.name, about=None)
    named = call.keywords.get("mesh_dim_names")
    if named is None and call.name.endswith("init_device_mesh"):
        named = call.get(2)
    return Mesh(None if named is None else strings(call, named))


@method("_flatten")
def flatten(call: Call) -> Value | None:
    """``mesh["a", "b"]._flatten("ab")``: one dimension of that name."""
    receiver = call.receiver
    if not isinstance(receiver, Mesh):
        return None
    name = text(call.get(0, "mesh_dim_name"))
    names = (name,) if name is not None else None
    return receiver.keep(("flattened", name), Mesh(names))


@method("get_group", "get_all_groups", "size", "get_coordinate")
def ask(call: Call) -> Value | None:
    """Questions to a mesh answer alike when asked alike."""
    receiver = call.receiver
    if receiver is None or not isinstance(receiver, Mesh):
        return None
    operands = (*call.args, *call.keywords.values())
    return each_choice(receiver, lambda one: one.part(("call", call.name, *operands)))
