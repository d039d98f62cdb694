"""Direct calls of ``forward`` in methods of the module itself (FSDP203): who called the method, and did hooks run?"""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, named

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
"""
MODEL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)

    def fit(self, x):
        return self.score(x)

    def score(self, x):
        return self.forward(x).sum()

"""
FORMS = {
    "a method that trains": ("model.fit(x).backward()", True),
    "a class method that makes the model": (
        """
        class Trained(Net):
            @classmethod
            def run(cls, x):
                self = cls()
                fully_shard(self)
                self.forward(x).sum().backward()

        Trained.run(x)
        """,
        True,
    ),
    "a registered method": (
        "register_fsdp_forward_method(model, 'fit')\nmodel.fit(x).backward()",
        False,
    ),
    "a method whose name is not known": (
        "from settings import name\nregister_fsdp_forward_method(model, name)\nmodel.fit(x).backward()",
        False,
    ),
    "a method that the forward calls": (
        """
        class Outer(Net):
            def forward(self, x):
                return self.inner(x)

            def inner(self, x):
                return super().forward(x)

        model = Outer()
        fully_shard(model)
        model(x).sum().backward()
        """,
        False,
    ),
    "a method that something else calls": (
        "from elsewhere import run\nrun(model.fit, x)",
        False,
    ),
}


@pytest.mark.parametrize(("text", "found"), FORMS.values(), ids=FORMS)
def test_hooks_run_where_the_module_was_called(text: str, found: bool) -> None:
    shards = (
        'dist.init_process_group("nccl")\nx = torch.ones(2, 8)\nmodel = Net()\nfully_shard(model)\n'
    )
    source = Source("train.py", HEAD + MODEL + shards + dedent(text) + "\n")
    assert ("FSDP203" in {one.code for one in named(list(findings([source])))}) is found


TOGETHER = {
    "an optimizer of a table of classes": (
        """
        def build(params):
            for name, numbers in config.optimizer.items():
                kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}.get(name)
                if kind:
                    return kind(params, **numbers)
            raise ValueError(config.optimizer)

        model = Net()
        optimizer = build(model.parameters())
        if config.shard:
            fully_shard(model)
        model(x).sum().backward()
        optimizer.step()
        """,
        "FSDP201",
        True,
    ),
    "gathered after what may raise": (
        """
        try:
            from torch.distributed.tensor import DTensor
        except ImportError:
            DTensor = None

        def full(value):
            if DTensor is not None and isinstance(value, DTensor):
                return value.full_tensor()
            return value

        model = Net()
        if config.shard:
            fully_shard(model)
        try:
            model(x).sum().backward()
        except RuntimeError as error:
            print(error)
            raise
        if dist.get_rank() == 0:
            torch.save({k: full(v) for k, v in model.state_dict().items()}, "model.pt")
        """,
        "FSDP401",
        True,
    ),
    "gathered in a way of its own": (
        """
        from torch.distributed.tensor import DTensor

        def full(value):
            return value.full_tensor() if isinstance(value, DTensor) else value

        model = Net()
        if config.shard:
            fully_shard(model)
        if config.plain and dist.get_rank() == 0:
            torch.save({k: full(v) for k, v in model.state_dict().items()}, "model.pt")
        """,
        "FSDP401",
        False,
    ),
}


@pytest.mark.parametrize(("text", "code", "found"), TOGETHER.values(), ids=TOGETHER)
def test_what_no_setting_decides_keeps_two_events_of_one_run_together(
    text: str, code: str, found: bool
) -> None:
    start = 'from settings import config\n\ndist.init_process_group("nccl")\nx = torch.ones(2, 8)\n'
    source = Source("train.py", HEAD + MODEL + start + dedent(text))
    assert (code in {one.code for one in named(list(findings([source])))}) is found
