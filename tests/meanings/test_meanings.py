"""The names under which meanings are kept, and that none of them minds what it is given."""

from __future__ import annotations

import pytest

from fsdp2lint.meanings import load
from fsdp2lint.meanings.families import family
from fsdp2lint.meanings.registry import CALLS, METHODS, calls, canonical
from fsdp2lint.model.events import Called
from tests.support.meanings import trace_of


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        (
            "torch.distributed.fsdp._fully_shard._fully_shard.fully_shard",
            "torch.distributed.fsdp.fully_shard",
        ),
        (
            "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel",
            "torch.distributed.fsdp.FullyShardedDataParallel",
        ),
        ("torch.distributed.checkpoint.state_dict_saver.save", "torch.distributed.checkpoint.save"),
        ("torch.distributed._tensor.DTensor", "torch.distributed.tensor.DTensor"),
        ("torch.distributed._tensor.DeviceMesh", "torch.distributed.device_mesh.DeviceMesh"),
        ("torch.distributed.distributed_c10d.all_reduce", "torch.distributed.all_reduce"),
        ("torch.nn.utils.clip_grad.clip_grad_norm", "torch.nn.utils.clip_grad_norm_"),
        ("torch.optim.adamw.AdamW", "torch.optim.AdamW"),
        (
            "torch.distributed._composable.fully_shard",
            "torch.distributed._composable.fully_shard",
        ),
    ],
)
def test_one_name_for_one_thing(spelled: str, meant: str) -> None:
    load()
    assert canonical(spelled) == meant
    assert canonical(meant) == meant


def test_meanings_are_kept_under_canonical_names() -> None:
    load()
    assert [name for name in CALLS if canonical(name) != name] == []


@pytest.mark.parametrize("arguments", ["", "1", "None, None", "*a, **k", "[], {}, (), net"])
def test_no_meaning_minds_odd_arguments(arguments: str) -> None:
    load()
    functions = [n for n in sorted(CALLS) if "." in n and n.replace(".", "").isidentifier()]
    imports = "".join(f"import {name.rpartition('.')[0]}\n" for name in functions)
    script = "net = Net()\nopt = torch.optim.SGD(net.parameters())\n" + "".join(
        f"{name.removeprefix('builtins.')}({arguments})\n" for name in functions
    )
    for receiver in ("x", "net", "[]", "opt"):
        script += "".join(f"{receiver}.{name}({arguments})\n" for name in sorted(METHODS))
    called = {e.name for e in trace_of(imports + script).of(Called)}
    assert called >= set(functions) - {"builtins.super"}
    assert called >= {f".{name}" for name in METHODS if name != "__init__"}


def test_a_name_has_one_meaning() -> None:
    load()
    with pytest.raises(ValueError, match=r"torch\.save has two meanings"):
        calls("torch.save")(lambda call: None)


def test_a_family_is_named_by_whole_parts() -> None:
    with pytest.raises(ValueError, match="no prefix"):
        family("torch._foreach_")(lambda call: None)
