"""The groups that the migrated code shards are the units that FSDP1 made, on a fake process group of 8 ranks.

A case is a fixture of the constructor codemod whose ``before.py`` defines ``build()`` and functions
``wrap…(model)``: both sides are run, and each parameter must share its group with the same others.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

FIXTURES = Path(__file__).parents[2] / "fixtures" / "codemods"
CASES = sorted(p.parent for p in FIXTURES.glob("*/groups_*/before.py"))
Groups = set[frozenset[str]]


@pytest.fixture(scope="module", autouse=True)
def eight_ranks() -> Iterator[None]:
    """A process group of 8 ranks whose collectives do nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """FSDP1 wants to be told that it may use the CPU."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    original = FullyShardedDataParallel.__init__

    def patched(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        original(self, module, *args, **{**kwargs, "device_id": torch.device("cpu")})

    monkeypatch.setattr(FullyShardedDataParallel, "__init__", patched)


def wrappers(path: Path) -> tuple[Callable[[], Any], dict[str, Callable[[Any], Any]]]:
    """The functions of one side of a case."""
    names = runpy.run_path(str(path))
    return names["build"], {n: f for n, f in names.items() if n.startswith("wrap")}


def units(model: Any) -> Groups:
    """The names of the parameters of each unit of FSDP1."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    found = set()
    for name, module in model.named_modules():
        if isinstance(module, FullyShardedDataParallel) and module._handle is not None:
            prefix = name.replace("_fsdp_wrapped_module", "").replace("..", ".").strip(".")
            fqns = (f"{prefix}.{fqn}".strip(".") for fqn in module._handle.flat_param._fqns)
            found.add(frozenset(fqn.replace("_fsdp_wrapped_module.", "") for fqn in fqns))
    return found


def groups(model: Any) -> Groups:
    """The names of the parameters of each group of FSDP2."""
    from torch.distributed.fsdp import FSDPModule

    names = {parameter: name for name, parameter in model.named_parameters()}
    found = set()
    for module in model.modules():
        group = (
            module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
        )
        if group is not None:
            found.add(frozenset(names[p.sharded_param] for p in group.fsdp_params))
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=lambda p: p.name)
def test_groups_are_the_units(case: Path) -> None:
    build, before = wrappers(case / "before.py")
    build_after, after = wrappers(case / "after.py")
    assert before.keys() == after.keys()
    for name, wrap in before.items():
        expected = units(wrap(build()))
        assert len(expected) > 1
        assert groups(after[name](build_after())) == expected
