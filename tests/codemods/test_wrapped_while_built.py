"""A model whose parts wrap themselves while ``enable_wrap`` is open trains the same after migration."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source

MODEL = """\
from torch import nn
from torch.distributed.fsdp.wrap import wrap


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return x + self.inner(x).relu()


class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList([self.build_layer(width) for _ in range(depth)])
        self.head = wrap(nn.Linear(width, 1))

    def build_layer(self, width):
        return wrap(Layer(width))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
"""
TRAIN = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import enable_wrap, wrap

from net import Net


def build(precision):
    kwargs = dict(
        mixed_precision=precision, device_id=torch.device("cpu"), use_orig_params=True
    )
    with enable_wrap(wrapper_cls=FSDP, **kwargs):
        net = Net(8, 3)
        return wrap(net)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = build(MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(3):
    x = torch.ones(4, 8) * (step + dist.get_rank())
    model(x).float().square().mean().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def migrated(**files: str) -> dict[str, str]:
    sources = tuple(Source(f"{name}.py", text) for name, text in files.items())
    made = migrate(sources, knowledge.codemods())
    assert made.failures == []
    return {one.path: one.text for one in made.after}


def test_the_layers_are_sharded_where_the_context_was() -> None:
    after = migrated(net=MODEL, train=TRAIN)
    assert "wrap" not in after["net.py"]
    assert "for layer in net.layers:" in after["train.py"]
    assert "fully_shard(net.head, mp_policy=inner_policy, mesh=mesh)" in after["train.py"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("nn.Linear(width, width)", "wrap(nn.Linear(width, width))"),  # inside of another unit
        ("return wrap(Layer(width))", "return wrap(Layer(width)) if open('few') else Layer(width)"),
        ("self.head = wrap(", "if open('head'):\n            self.head = wrap("),
        ("wrap(nn.Linear(width, 1))", "wrap(nn.Linear(width, 1), use_orig_params=False)"),
    ],
)
def test_where_it_is_not_known_which_all_stays(old: str, new: str) -> None:
    after = migrated(net=MODEL.replace(old, new), train=TRAIN)
    assert "enable_wrap(wrapper_cls=FSDP, **kwargs)" in after["train.py"]
    assert "TODO(fsdp2lint)" in after["train.py"]
    assert "fully_shard" not in after["train.py"].replace("call fully_shard by hand", "")


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("torch") is None, reason="running needs torch")
def test_it_trains_the_same(tmp_path: Path) -> None:
    from fsdp2lint.prove.compare import Options, Trial
    from fsdp2lint.prove.equality import apart
    from fsdp2lint.prove.places import find
    from tests.verify.scenes import forking

    for folder, files in (
        ("before", {"net.py": MODEL, "train.py": TRAIN}),
        ("after", migrated(net=MODEL, train=TRAIN)),
    ):
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    with (
        forking() as ranks,
        Trial(
            find(str(tmp_path / "before" / "train.py")),
            Options(timeout=600.0),
            run=ranks.launch,
            compare=apart.main,
        ) as trial,
    ):
        found = trial.against(find(str(tmp_path / "after" / "train.py")))
    assert found.fault is None
    assert [one.message for one in found.differences] == []
