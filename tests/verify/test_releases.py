"""What is replaced of PyTorch's private parts bears how each release that is supported calls them; nothing here installs one."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from fsdp2lint.rehearse.contract.meetings import Meetings  # noqa: E402
from fsdp2lint.rehearse.standin import fsdp, groups  # noqa: E402
from fsdp2lint.rehearse.standin.replace import Counted  # noqa: E402

SIGNATURES = {
    "2.6": {
        "foreach_all_gather": "fsdp_params, group, async_op, all_gather_copy_in_stream, all_gather_stream, device",
        "foreach_reduce": "fsdp_params, unsharded_grads, reduce_scatter_group, reduce_scatter_stream, orig_dtype, reduce_dtype, device, "
        "reduce_scatter_reduce_op, all_reduce_group, all_reduce_stream, all_reduce_grads, partial_reduce_output",
        "_get_gradient_divide_factors": "reduce_scatter_group, all_reduce_group, reduce_dtype",
    },
    "2.7": {
        "foreach_all_gather": "fsdp_params, group, async_op, all_gather_copy_in_stream, all_gather_stream, device",
        "foreach_reduce": "fsdp_params, unsharded_grads, reduce_scatter_group, reduce_scatter_stream, orig_dtype, reduce_dtype, device, "
        "reduce_scatter_reduce_op, all_reduce_group, all_reduce_stream, all_reduce_grads, partial_reduce_output, all_reduce_hook",
        "_get_gradient_divide_factors": "reduce_scatter_group, all_reduce_group, reduce_dtype",
    },
    "2.8": {
        "foreach_all_gather": "fsdp_params, group, async_op, all_gather_copy_in_stream, all_gather_stream, device, "
        "allocate_memory_from_process_group=False",
        "foreach_reduce": "fsdp_params, unsharded_grads, reduce_scatter_group, reduce_scatter_stream, orig_dtype, reduce_dtype, device, "
        "gradient_divide_factor, all_reduce_group, all_reduce_stream, all_reduce_grads, partial_reduce_output, all_reduce_hook, "
        "allocate_memory_from_process_group=False, force_sum_reduction_for_comms=False",
        "_get_gradient_divide_factors": "reduce_scatter_group, all_reduce_group, reduce_dtype, device_type='', factor=None, "
        "force_sum_reduction_for_comms=False",
    },
    "2.9 to 2.13": {
        "foreach_all_gather": "fsdp_params, group, async_op, all_gather_copy_in_stream, all_gather_stream, device, all_gather_comm",
        "foreach_reduce": "fsdp_params, unsharded_grads, reduce_scatter_group, reduce_scatter_stream, reduce_scatter_comm, orig_dtype, "
        "reduce_dtype, device, gradient_divide_factor, all_reduce_group, all_reduce_stream, all_reduce_grads, partial_reduce_output, "
        "all_reduce_hook, force_sum_reduction_for_comms=False",
        "_get_gradient_divide_factors": "reduce_scatter_group, all_reduce_group, reduce_dtype, device_type='', factor=None, "
        "force_sum_reduction_for_comms=False",
    },
}
"""Of ``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``; its callers give all arguments by place."""
RELEASES = pytest.mark.parametrize("release", SIGNATURES)


def of(release: str, name: str, returns: str) -> Any:
    """A function with the signature of a release, which returns what an expression over its arguments gives."""
    found: dict[str, Any] = {}
    exec(f"def {name}({SIGNATURES[release][name]}): return {returns}", found)
    return found[name]


def called(release: str, name: str, function: Any, **named: Any) -> Any:
    """Call as the release does: all arguments by place, with something in each."""
    names = [one.partition("=")[0].strip() for one in SIGNATURES[release][name].split(",")]
    return function(*(named.get(one, one) for one in names))


def one_parameter() -> Any:
    """What the collectives are given of a parameter."""
    return SimpleNamespace(
        _param_fqn="layer.weight", sharded_param=torch.nn.Parameter(torch.ones(2))
    )


@RELEASES
def test_the_collectives_of_units_are_counted(release: str) -> None:
    group = SimpleNamespace(size=lambda: 2, group_name="dp")
    check = Meetings.__new__(Meetings)
    check._counts, check._gathered, check._log = {}, set(), -1
    gather = check._gathering(of(release, "foreach_all_gather", "group.group_name"))
    parameters = [one_parameter()]
    assert (
        called(release, "foreach_all_gather", gather, fsdp_params=parameters, group=group) == "dp"
    )
    reduce = check._reducing(of(release, "foreach_reduce", "len(fsdp_params)"))
    given = {"reduce_scatter_group": group, "all_reduce_group": None, "all_reduce_grads": True}
    assert called(release, "foreach_reduce", reduce, fsdp_params=parameters, **given) == 1
    assert check._counts["dp"] == {"layer.weight": 1}


@RELEASES
def test_a_factor_of_gradients_is_divided_by_afterwards(release: str) -> None:
    name, total = "_get_gradient_divide_factors", dist.ReduceOp.SUM
    if "factor" not in SIGNATURES[release][name]:
        plain = fsdp._divided(of(release, name, "(2.0, 4.0)"))
        assert called(release, name, plain) == (2.0, 4.0)
        return
    internal: Any = dist
    scaled = internal._make_nccl_premul_sum(0.25)
    factors = of(release, name, "(None, None, reduce_scatter_group, reduce_scatter_group)")
    divided = fsdp._divided(factors)
    assert called(release, name, divided, reduce_scatter_group=scaled, factor=4.0) == (
        None,
        4.0,
        total,
        total,
    )


@pytest.mark.parametrize(
    "call",
    [
        "reduce(output=whole, input=parts, group=None, op=average)",  # 2.6 to 2.8
        "reduce(output=whole, input=parts, group=None, op=average, async_op=False)",  # 2.9 to 2.12
        "reduce(whole, parts, op=average)",
        "reduce(whole, parts, average)",
    ],
)
def test_an_average_of_gradients_becomes_a_sum(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)

    def original(*given: Any, **how: Any) -> None:
        _, parts, operation = (
            *given,
            *(how[name] for name in ("output", "input", "op") if name in how),
        )
        seen.append((parts.tolist(), operation))

    reduce = groups._stacked(1)(groups._averaging(1, Counted({}))(original))
    names = {"whole": torch.zeros(1), "parts": torch.tensor([2.0, 4.0])}
    eval(call, names | {"reduce": reduce, "average": dist.ReduceOp.AVG})
    assert seen == [([1.0, 2.0], dist.ReduceOp.SUM)]


OLD = """
import torch
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

for name in ("record_event", "wait_event", "synchronize"):
    if hasattr(torch.cpu.Stream, name):
        delattr(torch.cpu.Stream, name)


def copy(result, parameters, group):
    for one in parameters[0].all_gather_outputs:
        one.add_(1)  # counted as a write, as on a CPU


_fsdp_collectives.foreach_all_gather_copy_out = copy
from fsdp2lint.rehearse.standin import older
from fsdp2lint.rehearse.standin.replace import Counted

older.install(Counted({}))
stream = torch.cpu.Stream()
stream.wait_event(stream.record_event())


class Parameter:
    all_gather_outputs = [torch.zeros(3)]


written = Parameter.all_gather_outputs[0]
_fsdp_collectives.foreach_all_gather_copy_out(None, [Parameter], None)
print(written.tolist(), written._version)
"""


def test_what_streams_lack_before_release_2_7_is_added() -> None:
    done = subprocess.run([sys.executable, "-c", OLD], capture_output=True, text=True, check=True)
    assert done.stdout == "[1.0, 1.0, 1.0] 0\n"
