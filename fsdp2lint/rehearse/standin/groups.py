"""Process groups and meshes: gloo in place of NCCL, CPU meshes in place of CUDA's."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from fsdp2lint.rehearse.standin.replace import (
    Counted,
    Function,
    is_cuda,
    on_cpu,
    wrap,
    wrap_everywhere,
)

_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")

requested: list[str | None] = []
"""The backends that ``init_process_group`` was asked for, in order; None for the default."""


def install(counted: Counted) -> None:
    """Replace backends, device ids and mesh types; averages are made by gloo's sum."""
    wrap_everywhere(distributed_c10d, "init_process_group", lambda init: _init(init, counted))
    meet_as_started(counted)
    wrap_everywhere(distributed_c10d, "new_group", lambda new: _new_group(new, counted))
    wrap_everywhere(device_mesh, "init_device_mesh", lambda init: _mesh(init, counted))
    wrap(device_mesh.DeviceMesh, "__init__", _mesh_class)
    wrap_everywhere(distributed_c10d, "barrier", _barrier)
    for name, place in (("all_reduce", 0), ("reduce", 0), ("reduce_scatter_tensor", 1)):
        wrap_everywhere(distributed_c10d, name, _averaging(place, counted))
    for name, place in (("all_gather_into_tensor", 0), ("reduce_scatter_tensor", 1)):
        wrap_everywhere(distributed_c10d, name, _stacked(place))
    for name in ("broadcast_object_list", "send_object_list", "recv_object_list"):
        wrap_everywhere(distributed_c10d, name, _device_keyword)
    namespace: Any = dist
    namespace.is_nccl_available = lambda: True
    if not hasattr(dist, "ProcessGroupNCCL"):  # a build for CPUs
        namespace.ProcessGroupNCCL = _NCCL


class _Options:
    """What NCCL may be asked for, which gloo does not do."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = SimpleNamespace()


class _NCCL:
    Options = _Options


def _gloo(backend: Any, counted: Counted) -> Any:
    if isinstance(backend, str) and "nccl" in backend.lower():
        counted.note(f'backend "{backend}"')
        return "gloo"
    return backend


def meet_as_started(counted: Counted) -> None:
    """Have the ranks meet as those who started them say, also where the script names a place and ranks of its own."""
    store = {name: os.environ[name] for name in _RENDEZVOUS if name in os.environ}
    wrap_everywhere(
        distributed_c10d, "init_process_group", lambda init: _meeting(init, counted, store)
    )


def _meeting(init: Function, counted: Counted, store: dict[str, str]) -> Function:
    def met(backend: Any = None, init_method: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(init_method, str) and init_method.startswith("tcp://"):
            counted.note(f'init_method "{init_method}"')
            init_method = "env://"
        if kwargs.get("store") is None:
            moved = [name for name, value in store.items() if os.environ.get(name) != value]
            for name in moved:
                counted.note(f"{name} set by the script")
            os.environ.update(store)
            for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
                fixed = kwargs.get(name)
                if fixed not in (None, -1) and store.get(variable, str(fixed)) != str(fixed):
                    counted.note(f"init_process_group({name}={fixed})")
                    kwargs[name] = int(store[variable])
        return init(backend, init_method, *args, **kwargs)

    return met


def _init(init: Function, counted: Counted) -> Function:
    def initialised(backend: Any = None, init_method: Any = None, *args: Any, **kwargs: Any) -> Any:
        requested.append(backend)
        if kwargs.pop("device_id", None) is not None:
            counted.note("init_process_group(device_id=…)")
        if isinstance(kwargs.get("pg_options"), dist.ProcessGroupNCCL.Options):
            counted.note("init_process_group(pg_options=…)")
            del kwargs["pg_options"]
        interface = os.environ.get("GLOO_SOCKET_IFNAME")
        if interface and interface not in {name for _, name in socket.if_nameindex()}:
            counted.note(f"GLOO_SOCKET_IFNAME={interface}")  # of the machine it was written for
            del os.environ["GLOO_SOCKET_IFNAME"]
        return init(_gloo(backend, counted) or "gloo", init_method, *args, **kwargs)

    return initialised


def _new_group(new: Function, counted: Counted) -> Function:
    def made(
        ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        kwargs.pop("device_id", None)
        if isinstance(kwargs.get("pg_options"), dist.ProcessGroupNCCL.Options):
            counted.note("new_group(pg_options=…)")
            del kwargs["pg_options"]
        return new(ranks, timeout, _gloo(backend, counted), *args, **kwargs)

    return made


def _mesh(init: Function, counted: Counted) -> Function:
    def meshed(device_type: str, *args: Any, **kwargs: Any) -> Any:
        if is_cuda(device_type):
            counted.note('init_device_mesh("cuda")')
            device_type = "cpu"
        return init(device_type, *args, **kwargs)

    return meshed


def _mesh_class(init: Function) -> Function:
    def meshed(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        init(self, "cpu" if is_cuda(device_type) else device_type, *args, **kwargs)

    return meshed


def _barrier(barrier: Function) -> Function:
    def met(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return barrier(group, async_op)

    return met


def _averaging(place: int, counted: Counted) -> Callable[[Function], Function]:
    """Gloo has no average: the parts are divided before they are summed.

    ``place`` is where among the arguments the parts are; torch 2.7 gives them by name.
    """

    def build(reduce: Function) -> Function:
        def reduced(*args: Any, **kwargs: Any) -> Any:
            average = dist.ReduceOp.AVG
            if any(_same(given, average) for given in (*args, *kwargs.values())):
                counted.note("ReduceOp.AVG")
                group = kwargs.get("group") or next(
                    (arg for arg in args if isinstance(arg, dist.ProcessGroup)), None
                )
                total = dist.ReduceOp.SUM
                kwargs = {k: total if _same(v, average) else v for k, v in kwargs.items()}
                args = tuple(total if _same(arg, average) else arg for arg in args)
                parts: Any = args[place] if len(args) > place else _parts(kwargs)
                parts.div_(dist.get_world_size(group))
            return reduce(*args, **kwargs)

        return reduced

    return build


def _stacked(place: int) -> Callable[[Function], Function]:
    """Gloo takes the parts of all ranks behind each other only; ``torch.distributed`` also allows them as a stack.

    Its threads copy, which autograd refuses for a part that needs a gradient; NCCL does not ask.

    ``place`` is where among the two tensors the whole is.
    """

    def build(move: Function) -> Function:
        def moved(*args: Any, **kwargs: Any) -> Any:
            args = tuple(map(_plain, args))
            kwargs = {name: _plain(given) for name, given in kwargs.items()}
            if len(args) > 1:
                whole, part = args[place], args[1 - place]
                if whole.dim() == part.dim() + 1 and whole.is_contiguous():
                    args = (*args[:place], whole.flatten(0, 1), *args[place + 1 :])
            return move(*args, **kwargs)

        return moved

    return build


def _plain(given: Any) -> Any:
    """A tensor without its history."""
    return given.detach() if isinstance(given, torch.Tensor) and given.requires_grad else given


def _parts(kwargs: dict[str, Any]) -> Any:
    return kwargs["input"] if "input" in kwargs else kwargs["tensor"]


def _same(given: object, operation: Any) -> bool:
    return isinstance(given, type(operation) | dist.ReduceOp) and bool(given == operation)


def _device_keyword(function: Function) -> Function:
    def called(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        return function(*args, **kwargs)

    return called
