"""Clipping under tensor parallelism, as ``migrate`` writes it: one norm, that of the whole gradient, on all ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.rehearse.outcome import Request
from fsdp2lint.source.reading import read
from tests.verify.scenes import ROOT, forking

pytestmark = pytest.mark.ranks

pytest.importorskip("torch")

CASE = ROOT / "fixtures" / "codemods" / "clip_grad_norm" / "tensor_parallel" / "before.py"

CHECKED = """

import json


class Clipped:
    def __init__(self, clip):
        self.clip, self.said = clip, []

    def __call__(self, model, *rest, **named):
        whole = [p.grad.full_tensor().norm() for p in model.parameters()]
        norm = self.clip(model, *rest, **named)
        self.said.append((torch.stack(whole).norm().item(), norm.item()))
        return norm


clip_grad_norm_ = Clipped(clip_grad_norm_)
turn(net, optimizer, torch.ones(4, 8))
by_torch(torch.ones(4, 8))
shared = net.norm.weight.full_tensor()[:3].tolist()
with open(f"said{torch.distributed.get_rank()}.json", "w") as file:
    json.dump([clip_grad_norm_.said, shared], file)
"""


def test_it_is_that_of_the_whole_gradient(tmp_path: Path) -> None:
    made = migrate((read(CASE),), knowledge.codemods())
    assert made.failures == []
    (tmp_path / "work").mkdir()
    (tmp_path / "train.py").write_text(made.after[0].text + CHECKED)
    work = str(tmp_path / "work")
    request = Request(str(tmp_path / "train.py"), str(tmp_path), nproc=4, folder=work, seed=0)
    with forking() as ranks:
        run = ranks.launch(request, lambda _: None)
    assert [rank.error for rank in run.ranks if not rank.done] == []
    said = [json.loads((tmp_path / "work" / f"said{r}.json").read_text()) for r in range(4)]
    assert all(one == said[0] for one in said), "ranks that hold the same weights clip alike"
    norms, _ = said[0]
    assert len(norms) == 2
    for whole, clipped in norms:
        assert clipped == pytest.approx(whole, rel=1e-6)
